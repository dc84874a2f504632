"""`penstock top`: one frame in a pipe, a live view on a terminal that `q` leaves as it was."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import termios
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.cli.top import Rates, Sample, frame, rates
from penstock.core.commands import QueueView
from penstock.core.job import Status
from penstock.core.settings import QueueSettings

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def sample(seconds: float, **counts: int) -> Sample:
    view = QueueView("emails", QueueSettings(), {Status(name): n for name, n in counts.items()})
    return Sample(NOON + timedelta(seconds=seconds), [view])


class TestRates:
    def test_are_differences_of_counts_over_the_time_between_looks(self) -> None:
        moved = rates(
            [sample(0, queued=10), sample(1, queued=50), sample(10, queued=60, succeeded=25, dead=5)]
        )
        assert moved == {"emails": Rates(entered=8.0, ended=3.0)}

    def test_of_jobs_that_leave_the_store_are_never_below_nothing(self) -> None:
        assert rates([sample(0, succeeded=100), sample(1, succeeded=0)]) == {"emails": Rates(0.0, 0.0)}

    def test_are_unknown_at_the_first_look(self) -> None:
        assert rates([sample(0, queued=1)]) == {}

    def test_of_a_queue_that_is_new_count_from_nothing(self) -> None:
        assert rates([Sample(NOON, []), sample(2, queued=4)])["emails"].entered == 2.0


def test_a_frame_has_the_busiest_first_and_says_what_is_paused() -> None:
    from io import StringIO

    from rich.console import Console

    views = [
        QueueView("calm", QueueSettings(paused=True), {Status.QUEUED: 1}, NOON - timedelta(minutes=3)),
        QueueView("busy", QueueSettings(), {Status.QUEUED: 5_000, Status.DEAD: 7}),
    ]
    out = StringIO()
    Console(file=out, width=120).print(
        frame("shop", Sample(NOON, views), {"busy": Rates(12.3, 4.56)}, "PostgreSQL is away")
    )
    title, _, _, busy, calm, _, trouble = out.getvalue().splitlines()
    assert "tenant shop" in title
    assert busy.split() == ["busy", "5,000", "·", "12", "4.6", "·", "·", "7", "·"]
    assert calm.split()[:3] == ["calm", "paused", "1"]
    assert "3 m" in calm
    assert trouble.startswith("PostgreSQL is away")


def test_in_a_pipe_prints_one_frame_as_json(run: Any) -> None:
    run("enqueue", "t", "-q", "emails")
    for once in ([], ["--once"]):
        shown = json.loads(run("top", *once).stdout)
        assert [(queue["name"], queue["counts"]["queued"]) for queue in shown["queues"]] == [("emails", 1)]


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, url: str, *arguments: str) -> None:
        self._main, side = pty.openpty()
        self._side = side
        self.before = termios.tcgetattr(side)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *arguments], stdin=side, stdout=side, stderr=side,
            env={**os.environ, "PENSTOCK_URL": url, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
            start_new_session=True,
        )  # fmt: skip

    def read_until(self, text: str) -> str:
        seen = ""
        while text not in seen:
            seen += os.read(self._main, 65_536).decode()
        return seen

    def press(self, keys: bytes) -> None:
        os.write(self._main, keys)

    def interrupt(self) -> None:
        self._process.send_signal(2)

    def end(self) -> int:
        try:
            return self._process.wait(timeout=30)
        finally:
            self._process.kill()
            self._process.wait()

    def restored(self) -> bool:
        return termios.tcgetattr(self._side) == self.before

    def close(self) -> None:
        os.close(self._main)
        os.close(self._side)


@pytest.mark.parametrize("how", ["q", "Ctrl-C"])
def test_on_a_terminal_is_live_and_leaves_it_as_it_was(url: str, run: Any, how: str) -> None:
    run("enqueue", "t", "-q", "emails")
    terminal = Terminal(url, "top", "--interval", "0.1")
    terminal.read_until("emails")
    run("enqueue", "t", "-q", "letters")
    terminal.read_until("letters")
    if how == "q":
        terminal.press(b"xq")
    else:
        terminal.interrupt()
    shown = terminal.read_until("\x1b[?1049l")  # the screen of before is back
    assert terminal.end() == 0
    assert "Aborted" not in shown
    assert terminal.restored()
    terminal.close()


def test_once_on_a_terminal_prints_one_frame_and_ends(url: str, run: Any) -> None:
    run("enqueue", "t", "-q", "emails")
    terminal = Terminal(url, "top", "--once")
    assert "\x1b[?1049h" not in terminal.read_until("emails")
    assert terminal.end() == 0
    terminal.close()
