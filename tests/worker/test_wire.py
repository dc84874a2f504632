"""Messages between a worker and its children: they arrive as they were, however they are cut up on the way."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.core.codec import JsonText
from penstock.core.commands import Parent
from penstock.core.job import JobId, OnExhausted, Status
from penstock.core.retry import Retry
from penstock.worker import wire
from support.processes import NOW, leased

FULL = leased(
    {"a": "ä\u0000"},
    (Parent(JobId("p"), Status.SUCCEEDED, JsonText("[1]")),),
    run_at=NOW + timedelta(microseconds=1),
    delay=timedelta(days=3, microseconds=7),
    retry=Retry.exponential(0.1),
    on_exhausted=OnExhausted.HOLD,
    headers=JsonText("{}"),
)


class TestUnframed:
    def test_gives_back_what_was_framed(self) -> None:
        message = wire.Run("module", "name", FULL)
        assert wire.Unframed(wire.to_child).feed(wire.framed(message)) == [message]

    def test_does_not_mind_where_the_bytes_are_cut(self) -> None:
        messages: list[wire.FromChild] = [
            wire.Begun(),
            wire.Progress(JsonText("1")),
            wire.Progress(JsonText("2")),
        ]
        data = b"".join(wire.framed(message) for message in messages)
        for size in (1, 3, 7, len(data)):
            unframed = wire.Unframed(wire.from_child)
            pieces = [data[start : start + size] for start in range(0, len(data), size)]
            assert [message for piece in pieces for message in unframed.feed(piece)] == messages

    @pytest.mark.parametrize("noise", [b"\xff" * 64, wire.behind_length(b"\x93abc"), wire.behind_length(b"")])
    def test_refuses_noise(self, noise: bytes) -> None:
        with pytest.raises(wire.Noise):
            wire.Unframed(wire.from_child, wire.LONGEST).feed(noise)
