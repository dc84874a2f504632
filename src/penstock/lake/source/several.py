"""The history of a place for logs: of one as it is, of several by a reader for each.

An offset of several holds one of each log, in the logs' own words, for each goes at its own pace; beside them their sum,
which grows when any of them does, and says to whoever compares two offsets of one stream which is the later. Nothing else
may be read from the sum: one log may have fallen behind what another is ahead.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, TypeVar

from penstock.core.errors import InvalidInput
from penstock.lake.source.asking import Ask, Offset
from penstock.lake.source.logs import LogReader, Reach
from penstock.stores.log.backings import open_backing
from penstock.stores.log.layout import Format, found_layout
from penstock.stores.log.options import read_options

Answer = TypeVar("Answer")

Some = tuple[tuple[int, Reach], ...]
"""What one task reads: from which logs, and what of each."""

AT_ONCE = 8
"""How many logs are looked at at the same time: mostly they wait for a bucket."""


def open_logs(url: str) -> LogReader | LogsReader:
    """The reader for as many logs as there are in a place."""
    address, options = read_options(url)

    async def look() -> Format | None:
        backing = open_backing(address)
        try:
            return await found_layout(backing, options.shards)
        finally:
            await backing.close()

    # In a thread of its own: a notebook has an event loop at work in this one.
    with ThreadPoolExecutor(1) as thread:
        place = thread.submit(lambda: asyncio.run(look())).result()
    if place is None or place.shards == 1:
        return LogReader(address)
    return LogsReader(address, place.id, place.shards)


class LogsReader:
    """Reads the logs of one place together."""

    def __init__(self, url: str, id: str, logs: int) -> None:
        self._logs = [LogReader(url, number, logs) for number in range(logs)]
        self._feed, self._system = id, f"logs/{logs}"

    # ── All at once ───────────────────────────────────────────────────────────────────────────────

    def slices(self, ask: Ask, most: int) -> list[Some]:
        share = max(1, most // len(self._logs))
        return _dealt(self._each(lambda log: log.slices(ask, share)), most)

    # ── As a stream ───────────────────────────────────────────────────────────────────────────────

    def first(self) -> Offset:
        return self._together(self._each(LogReader.first))

    def horizon(self) -> Offset:
        return self._together(self._each(LogReader.horizon))

    def latest(self, start: Offset, ask: Ask, most_rows: int | None, target: Offset | None) -> Offset:
        starts = self._apart(start)
        targets = self._apart(self.horizon() if target is None else target)
        shares: Sequence[int | None] = [None] * len(self._logs)
        if most_rows is not None:
            shares = _shares(self._each(LogReader.waiting, starts, targets), most_rows)
        return self._together(
            self._each(
                lambda log, start, share, target: log.latest(start, ask, share, target),
                starts, shares, targets,
            )
        )  # fmt: skip

    def between(self, start: Offset, end: Offset, ask: Ask, most: int) -> list[Some]:
        starts, ends = self._apart(start), self._apart(end)
        moved = sum(one != other for one, other in zip(starts, ends, strict=True))
        share = max(1, most // max(1, moved))
        found = self._each(lambda log, start, end: log.between(start, end, ask, share), starts, ends)
        return _dealt(found, most)

    # ── For whoever compares ──────────────────────────────────────────────────────────────────────

    def time(self) -> datetime:
        """The time of the store, which is that of the place."""
        return self._logs[0].time()

    def counted(self, until: Mapping[str, Any], wanted: Sequence[str]) -> dict[tuple[str, str, int], int]:
        """How many jobs came in and attempts ended on these days, in all logs: see LogReader.counted."""
        sums: Counter[tuple[str, str, int]] = Counter()
        for counts in self._each(lambda log, until: log.counted(until, wanted), self._apart(until)):
            sums.update(counts)
        return dict(sums)

    # ── On an executor ────────────────────────────────────────────────────────────────────────────

    def read(self, ask: Ask, slice: Some) -> Iterator[Any]:
        """Of `queues` there is a row per (tenant, queue): each queue is in one log (`layout.shard_of`), with all its jobs."""
        for number, reach in slice:
            yield from self._logs[number].read(ask, reach)

    # ── Apart and together ────────────────────────────────────────────────────────────────────────

    def _each(self, ask: Callable[..., Answer], *given: Iterable[Any]) -> list[Answer]:
        """What each log says; of those that refuse, the first is heard."""
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return list(threads.map(ask, self._logs, *given))

    def _together(self, offsets: Sequence[Offset]) -> Offset:
        return {
            "xid": sum(int(one["xid"]) for one in offsets),
            "floor": sum(int(one["floor"]) for one in offsets),
            "feed": self._feed,
            "system": self._system,
            "logs": list(offsets),
        }

    def _apart(self, offset: Mapping[str, Any]) -> list[Offset]:
        """The offset of each log; one of another place is refused."""
        try:
            feed, system = offset["feed"], offset["system"]
        except (KeyError, TypeError):
            raise InvalidInput("the checkpoint", "hold offsets of this source", offset) from None
        if (feed, system) != (self._feed, self._system):
            raise InvalidInput(
                "the checkpoint",
                f"come from this very place of logs (feed {self._feed}, system {self._system}); begin a new lake, or name "
                "the store that this one was made from",
                f"feed {feed}, system {system}",
            )
        logs = offset.get("logs")
        if not isinstance(logs, list | tuple) or len(logs) != len(self._logs):
            raise InvalidInput("the checkpoint", "hold offsets of this source", offset)
        return list(logs)


def _shares(waiting: Sequence[int], most: int) -> list[int]:
    """How many rows of each log may be read: as many of one as of another, and what one has not, the others may have more."""
    shares, left = [1] * len(waiting), most
    for place, number in enumerate(sorted(range(len(waiting)), key=waiting.__getitem__)):
        shares[number] = max(1, left // (len(waiting) - place))
        left -= min(shares[number], waiting[number])
    return shares


def _dealt(found: Sequence[Sequence[Reach]], most: int) -> list[Some]:
    """At most so many slices, of as many parts each."""
    parts = [(number, reach) for number, reaches in enumerate(found) for reach in reaches]
    step = max(1, -(-len(parts) // most))
    return [tuple(parts[first : first + step]) for first in range(0, len(parts), step)]
