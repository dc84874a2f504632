"""`penstock top`: the queues as they move, in a terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

import click
from msgspec import Struct

from penstock.cli.opening import on_store
from penstock.cli.output import Column, console, plain, print_json, table
from penstock.cli.queues import oldest
from penstock.cli.shapes import queue_plain
from penstock.core.commands import QueueView
from penstock.core.errors import StoreUnavailable
from penstock.core.job import Status
from penstock.queue import Queue

ENDED = (Status.SUCCEEDED, Status.DEAD, Status.HELD, Status.CANCELLED)
SECONDS_OF_RATES = 10.0
"""Rates are over about so long: steady enough to read, quick enough to follow."""


class Sample(Struct, frozen=True):
    at: datetime
    views: Sequence[QueueView]


class Rates(Struct, frozen=True):
    """Jobs a second; None until there were two looks."""

    entered: float | None = None
    ended: float | None = None


@click.command()
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.1, 60),
    help="Seconds between looks.",
)
@click.option("--once", is_flag=True, help="Print one frame and leave.")
@on_store
async def top(queue: Queue, /, interval: float, once: bool) -> None:
    """Watch the queues live: how many wait, run and fail, and how fast they move. `q` leaves.

    In a pipe it prints one frame as JSON.
    """
    if not sys.stdout.isatty():
        sample = await _look(queue)
        print_json({"at": plain(sample.at), "queues": [queue_plain(view) for view in sample.views]})
    elif once:
        sample = await _look(queue)
        console().print(frame(queue.tenant, sample, {}))
    else:
        await _watch(queue, interval)


async def _look(queue: Queue) -> Sample:
    return Sample(await queue.store.now(), await queue.queues())


async def _watch(queue: Queue, interval: float) -> None:
    from rich.live import Live

    leave = asyncio.Event()
    samples: deque[Sample] = deque(maxlen=max(2, round(SECONDS_OF_RATES / interval)))
    trouble = ""
    with _keys(leave.set), Live(console=console(), screen=True, auto_refresh=False) as live:
        while not leave.is_set():
            try:
                samples.append(await _look(queue))
                trouble = ""
            except StoreUnavailable as error:
                trouble = error.message
            if samples:
                live.update(frame(queue.tenant, samples[-1], rates(samples), trouble), refresh=True)
            elif trouble:
                raise StoreUnavailable("the store", trouble)
            with suppress(TimeoutError):
                await asyncio.wait_for(leave.wait(), interval)


def rates(samples: Sequence[Sample]) -> dict[str, Rates]:
    """How fast each queue moved between the first look and the last.

    They are differences of counts, so jobs that leave the store meanwhile are missing: never below nothing.
    """
    first, last = samples[0], samples[-1]
    seconds = (last.at - first.at).total_seconds()
    if seconds <= 0:
        return {}
    before = {view.name: view.counts for view in first.views}
    return {
        view.name: Rates(
            max(0, _count(view.counts) - _count(before.get(view.name, {}))) / seconds,
            max(0, _count(view.counts, ENDED) - _count(before.get(view.name, {}), ENDED)) / seconds,
        )
        for view in last.views
    }


def _count(counts: Mapping[Status, int], statuses: Sequence[Status] = tuple(Status)) -> int:
    return sum(counts.get(status, 0) for status in statuses)


def frame(tenant: str, sample: Sample, moved: Mapping[str, Rates], trouble: str = "") -> Any:
    from rich.console import Group
    from rich.text import Text

    from penstock.cli.output import clean

    total = {status: sum(view.counts.get(status, 0) for view in sample.views) for status in Status}
    title = Text.assemble(
        ("penstock", "bold"), f"  {sample.at.astimezone():%H:%M:%S}  tenant {tenant}",
        f"  {total[Status.QUEUED]:,} queued  {total[Status.RUNNING]:,} running", ("   q leaves", "dim"),
    )  # fmt: skip
    # The busiest first: who looks at a full screen looks at its top.
    views = sorted(
        sample.views, key=lambda view: (-_count(view.counts, (Status.RUNNING, Status.QUEUED)), view.name)
    )
    parts: list[Any] = [title, Text(""), table(_columns(sample.at, moved), views)]
    if not views:
        parts.append(Text("no queues yet", style="dim"))
    if trouble:
        parts.append(Text(f"\n{clean(trouble)}; trying again", style="bold red"))
    return Group(*parts)


def _columns(at: datetime, moved: Mapping[str, Rates]) -> list[Column]:
    def count(status: Status, spare: int = 0) -> Column:
        return Column(
            str(status),
            lambda view: f"{view.counts[status]:,}" if view.counts.get(status) else "·",
            right=True,
            spare=spare,
        )

    def rate(of: Callable[[Rates], float | None]) -> Callable[[QueueView], str]:
        def cell(view: QueueView) -> str:
            found = of(moved.get(view.name, Rates()))
            return "·" if not found else f"{found:,.1f}" if found < 10 else f"{found:,.0f}"

        return cell

    return [
        Column("queue", lambda view: view.name),
        Column("", lambda view: "paused" if view.settings.paused else ""),
        count(Status.QUEUED),
        Column("oldest due", lambda view: oldest(view, at), right=True),
        Column("in/s", rate(lambda found: found.entered), right=True, spare=2),
        Column("out/s", rate(lambda found: found.ended), right=True, spare=1),
        count(Status.RUNNING),
        count(Status.WAITING, spare=4),
        count(Status.DEAD),
        count(Status.HELD, spare=3),
    ]


@contextmanager
def _keys(leave: Callable[[], object]) -> Iterator[None]:
    """Hear `q` and Ctrl-C while the block runs, and leave the terminal as it was."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, leave)
    loop.add_signal_handler(signal.SIGTERM, leave)
    try:
        if not sys.stdin.isatty():
            yield
            return
        import termios
        import tty

        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
        tty.setcbreak(fd)

        def pressed() -> None:
            if os.read(fd, 1) in (b"q", b"Q", b""):
                leave()

        loop.add_reader(fd, pressed)
        try:
            yield
        finally:
            loop.remove_reader(fd)
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)
