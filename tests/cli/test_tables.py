"""How tables fit a terminal: no word in pieces, what people copy whole, and what is left out named."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from penstock import Queue
from penstock.cli import jobs, queues, top
from penstock.cli.output import Column, table
from penstock.cli.tables import Needs, needs, widths
from penstock.testing import FakeClock, memory_queue


def shown(made: Any, width: int) -> list[str]:
    out = StringIO()
    Console(file=out, width=width).print(made)
    return [line.rstrip() for line in out.getvalue().splitlines()]


async def some(clock: FakeClock) -> Queue:
    """A queue with a job in each state that people meet."""
    queue = memory_queue(clock)
    await queue.enqueue_many([{"type": "email.send", "queue": "emails"}] * 4)
    await queue.enqueue("email.send", queue="emails", delay=timedelta(minutes=12, seconds=30))
    first, second, _ = await queue.lease("emails", worker="host:1", limit=3)
    await queue.ack(first)
    await queue.nack(second, "no", retry=False)
    await queue.pause("emails")
    return queue


class TestListOfJobs:
    @pytest.mark.parametrize(
        ("width", "titles", "left_out"),
        [
            (60, ["id", "type", "status"], "no room for: queue, attempts, when"),
            (80, ["id", "type", "status", "when"], "no room for: queue, attempts"),
            (120, ["id", "type", "queue", "status", "attempts", "when"], None),
        ],
    )
    async def test_keeps_ids_types_and_states_whole(
        self, clock: FakeClock, width: int, titles: list[str], left_out: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:  # fmt: skip
        monkeypatch.setattr(jobs, "now", clock.now)
        queue = await some(clock)
        listed = (await queue.find()).jobs
        [title, *rows] = shown(table(jobs._columns(), listed), width)
        assert title.split() == titles
        if left_out is not None:
            assert rows.pop() == left_out
        assert len(rows) == len(listed)
        for row, job in zip(rows, listed, strict=True):
            assert row.split()[:2] == [job.id, "email.send"]
            assert job.status in row.split()
            assert len(row) <= width

    async def test_cuts_a_long_type_before_a_state(self, clock: FakeClock) -> None:
        queue = memory_queue(clock)
        await queue.enqueue("report.write.daily.summary.of.everything", queue="reports")
        [_, row, _] = shown(table(jobs._columns(), (await queue.find()).jobs), 60)
        assert "report.write." in row
        assert "… " in row
        assert row.endswith(" queued")


class TestQueues:
    @pytest.mark.parametrize("width", [60, 80, 120])
    async def test_and_top_have_no_word_in_pieces(self, clock: FakeClock, width: int) -> None:
        queue = await some(clock)
        views = await queue.queues()
        [title, *rest] = shown(table(queues.columns(clock.now()), views), width)
        frame = shown(top.frame("default", top.Sample(clock.now(), views), {}), width)
        for lines in ([title, *rest], frame[2:]):
            found = {word for line in lines for word in line.split()}
            assert {"emails", "paused", "queued", "running", "dead"} <= found
            assert all(len(line) <= width for line in lines)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def cells(*texts: str, title: str = "", spare: int = 0, firm: bool = False) -> Needs:
    return needs(title, texts, spare=spare, firm=firm)


class TestWidths:
    def fitted(self, room: int, *asked: Needs) -> list[int] | None:
        found = widths(asked, room)
        return None if found is None else [found.get(place, 0) for place in range(len(asked))]

    def test_are_as_they_like_where_there_is_room(self) -> None:
        assert self.fitted(80, cells("a" * 30), cells("a sentence of some words")) == [30, 24]

    def test_lines_end_where_words_do(self) -> None:
        assert self.fitted(40, cells("a" * 20), cells("a sentence of some words")) == [20, 18]

    def test_what_is_short_stays_on_its_line(self) -> None:
        assert self.fitted(34, cells("a" * 20), cells("3 m 12 s ago")) == [20, 12]
        assert self.fitted(30, cells("a" * 20), cells("3 m 12 s ago")) == [16, 12]

    def test_the_most_spare_is_left_out_first(self) -> None:
        asked = [cells("a" * 20, firm=True), cells("b" * 9, spare=1), cells("7", title="attempts", spare=2)]
        assert self.fitted(41, *asked) == [20, 9, 8]
        assert self.fitted(40, *asked) == [20, 9, 0]
        assert self.fitted(30, *asked) == [20, 0, 0]
        assert self.fitted(19, *asked) is None

    def test_a_column_with_nothing_in_it_takes_no_room(self) -> None:
        assert self.fitted(20, cells("a" * 20), cells("", "")) == [20, 0]

    def test_a_title_may_be_wrapped_and_is_never_cut(self) -> None:
        assert self.fitted(30, cells("a" * 20, firm=True), cells("5", title="oldest due", firm=True)) == [
            20,
            8,
        ]
        assert self.fitted(26, cells("a" * 20, firm=True), cells("5", title="oldest due", firm=True)) is None


@pytest.mark.parametrize(
    ("wide", "said"), [(False, ["id  text", "x   aaaaaaaaa…"]), (True, ["aaaaa", "bbbbb"])]
)
def test_only_what_was_asked_for_whole_is_never_cut(wide: bool, said: Sequence[str]) -> None:
    columns = [Column("id", lambda item: "x", whole=True), Column("text", lambda item: item)]
    lines = shown(table(columns, ["aaaaaaaaaabbbbb"], wide=wide), 14)
    assert all(any(part in line for line in lines) for part in said)
