"""The history of a log: files that its compactor wrote, and the entries after them, applied anew.

The log itself is never read as what happened: it holds what was asked. An offset is the number of an entry. What lies
between two of them is the same whether it is still on the tape or in a file by now, so a plan stays good while the
compactor works.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, TypeVar

from msgspec import Struct

from penstock.core.errors import InvalidInput
from penstock.lake.source.asking import Ask, Offset
from penstock.lake.source.log_tables import TABLES, asked
from penstock.stores.log import history
from penstock.stores.log.backings import Backing, open_backing
from penstock.stores.log.entry import read
from penstock.stores.log.errors import Truncated
from penstock.stores.log.history import Fact, Facts
from penstock.stores.log.layout import shard_name
from penstock.stores.log.options import MOST_SHARDS
from penstock.stores.log.snapshots import HistoryAt, Manifest, Snapshots
from penstock.stores.log.state import Parts, State

Answer = TypeVar("Answer")

_DAY_MS = 86_400_000


class Reach(Struct, frozen=True):
    """What happened from one entry on, before another."""

    low: int = 0
    high: int = 0
    since: dict[str, Any] | None = None
    """The offset that a stream reads on from."""


class _Feed(Struct, frozen=True):
    """Whose history this is, from which entry on it is whole, and before which it is known."""

    feed: str
    """Empty as long as nothing was ever written to it."""
    floor: int
    horizon: int
    log: str
    """Which one of its place it is."""
    called: str

    def offset(self, xid: int, floor: int) -> Offset:
        return {"xid": xid, "floor": floor, "feed": self.feed, "system": self.system}

    @property
    def system(self) -> str:
        return f"log/{self.log}"

    def check(self, offset: Offset) -> None:
        """Refuse a place of another log, one from before what is kept, and one that this log has not come to."""
        try:
            feed, system = offset["feed"], offset["system"]
            xid, floor = int(offset["xid"]), int(offset["floor"])
        except (KeyError, TypeError, ValueError):
            raise InvalidInput("the checkpoint", "hold offsets of this source", offset) from None
        # An empty log has no name yet. A place in one says nothing of whose it is, and is before all that came in since.
        is_told_apart = self.feed and (feed or xid > 1)
        if system != self.system or (is_told_apart and feed != self.feed):
            raise InvalidInput(
                "the checkpoint",
                f"come from this very {self.called} (feed {self.feed}, system {self.system}); begin a new lake, or name "
                "the store that this one was made from",
                f"feed {feed}, system {system}",
            )
        if xid > max(self.horizon, self.floor):
            raise InvalidInput(
                "the checkpoint",
                f"not be ahead of the {self.called}, which has come to entry {self.horizon - 1:,}: it was restored from a copy; "
                "begin a new lake, or go back to the lake of that time",
                f"{xid:,}",
            )
        if self.floor > max(xid, floor):
            raise InvalidInput(
                "the checkpoint",
                f"not be older than what is kept, which is whole from entry {self.floor:,} on: some of what came after it "
                f"has left the {self.called} unread; begin a new lake",
                f"{xid:,}",
            )

    def check_between(self, start: Offset, end: Offset) -> None:
        """Refuse two places that what lies between is not all there of."""
        self.check(start)
        self.check({**end, "floor": self.floor})
        if int(start["xid"]) == 0:
            # A stream that died in its first batch asks anew where it begins; the end it had planned still says where that was.
            self.check({**start, "floor": end.get("floor")})


class _View(Struct, frozen=True):
    """A log as it was at one moment: its files, its state, and what happened since the files were written."""

    manifest: Manifest
    state: State
    tail: list[Fact]


class LogReader:
    """Reads one log, the only one of its place or one of several; opens it for each look and keeps nothing open."""

    def __init__(self, url: str, number: int = 0, logs: int = 1) -> None:
        self._url, self._number, self._logs = url, number, logs
        self._shard = shard_name(number)
        self._called = "log" if logs == 1 else f"log {self._shard}"
        self._seen: _View | None = None

    # ── All at once ───────────────────────────────────────────────────────────────────────────────

    def slices(self, ask: Ask, most: int) -> list[Reach]:
        if ask.table != "events":
            return [Reach()]
        view = self._look()
        feed = self._feed(view)
        return _cut(view.manifest, feed.floor, feed.horizon, most)

    # ── As a stream ───────────────────────────────────────────────────────────────────────────────

    def first(self) -> Offset:
        feed = self._feed(self._look())
        return feed.offset(0, feed.floor)

    def horizon(self) -> Offset:
        feed = self._feed(self._look())
        return feed.offset(feed.horizon, feed.floor)

    def latest(self, start: Offset, ask: Ask, most_rows: int | None, target: Offset | None) -> Offset:
        view = self._look(None if target is None else int(target["xid"]))
        feed = self._feed(view)
        feed.check(start)
        if target is not None:
            feed.check({**target, "floor": feed.floor})
        low, end = int(start["xid"]), feed.horizon if target is None else int(target["xid"])
        if most_rows is not None and low < end:
            end = _bounded(view, low, end, most_rows)
        return feed.offset(max(low, end), int(start["floor"]))

    def waiting(self, start: Offset, target: Offset) -> int:
        """How many rows there are from `start` to `target`; or more, where a file has some of before or after them."""
        view = self._look(int(target["xid"]))
        self._feed(view).check(start)
        low, end = int(start["xid"]), int(target["xid"])
        kept = sum(at.count for at in _kept(view.manifest) if at.first < end and at.last >= low)
        return kept + sum(low <= fact.xid < end for fact in view.tail)

    def between(self, start: Offset, end: Offset, ask: Ask, most: int) -> list[Reach]:
        low, high = int(start["xid"]), int(end["xid"])
        view = self._look(high)
        feed = self._feed(view)
        feed.check_between(start, end)
        # A file may tell of other entries only, and most entries bring nothing about.
        if not any(table.num_rows for table in self._facts(view.manifest, view.tail, low, high)):
            return []
        return _cut(view.manifest, low, high, most, since=start)

    # ── For whoever compares ──────────────────────────────────────────────────────────────────────

    def time(self) -> datetime:
        """The time of the store."""

        async def ask(backing: Backing) -> datetime:
            return await backing.objects.now()

        return self._ask(ask).astimezone(UTC)

    def counted(self, until: Mapping[str, Any], wanted: Sequence[str]) -> dict[tuple[str, str, int], int]:
        """How many jobs came in and attempts ended on these days, by the day in the job's id: before a place.

        By the files, and by the jobs that are there; whichever knows of more.
        """
        view, chosen, before = self._look(), set(wanted), int(until["xid"])
        told: dict[tuple[str, str, int], int] = {}
        later: dict[tuple[str, str, int], int] = {}
        columns = ("kind", "occurred_at", "job_id", "xid")
        for table in self._facts(view.manifest, view.tail, 0, view.state.number + 1):
            for row in table.select(columns).to_pylist():
                place = _place(row["kind"], row["occurred_at"], row["job_id"] or "")
                if row["kind"] in ("job", "attempt") and place[1] in chosen:
                    found = told if row["xid"] < before else later
                    found[place] = found.get(place, 0) + 1
        there: dict[tuple[str, str, int], int] = {}
        for machine in view.state.parts.machines.values():
            facts = [("job", job.created_at, job.id) for job in machine.ledger.jobs.values()]
            facts += [("attempt", one.ended_at, job.id) for job, one, _ in history.attempts(machine)]
            for place in (_place(*fact) for fact in facts):
                if place[1] in chosen:
                    there[place] = there.get(place, 0) + 1
        return {
            place: max(told.get(place, 0), there.get(place, 0) - later.get(place, 0))
            for place in {*told, *there}
        }

    # ── On an executor ────────────────────────────────────────────────────────────────────────────

    def read(self, ask: Ask, slice: Reach) -> Iterator[Any]:
        if ask.table != "events":
            yield from asked(ask, TABLES[ask.table](self._look().state.parts.machines)).to_batches()
            return
        manifest = self._current()
        tail: list[Fact] = []
        feed = self._feed_of(manifest.id, manifest, manifest.number)
        if slice.high > feed.horizon or not manifest.id:
            view = self._look()
            manifest, tail, feed = view.manifest, view.tail, self._feed(view)
        if slice.since is not None:
            feed.check(slice.since)
        for table in self._facts(manifest, tail, slice.low, slice.high):
            yield from asked(ask, self._placed(table)).to_batches()

    def _placed(self, table: Any) -> Any:
        """With places that no other log of several gives: entries are counted in each."""
        if self._logs == 1:
            return table
        import pyarrow.compute as pc

        places = pc.add(pc.multiply(table["xid"], MOST_SHARDS), self._number)
        return table.set_column(table.column_names.index("xid"), "xid", places)

    def _facts(self, manifest: Manifest, tail: Sequence[Fact], low: int, high: int) -> Iterator[Any]:
        """What happened from one entry on, before another, as tables."""
        import pyarrow.compute as pc

        for at in _kept(manifest):
            if at.first < high and at.last >= low:
                table = self._file(at)
                if at.first < low or at.last >= high:
                    numbers = table["xid"]
                    table = table.filter(pc.and_(pc.greater_equal(numbers, low), pc.less(numbers, high)))
                yield table
        if some := [fact for fact in tail if low <= fact.xid < high]:
            yield history.table(some)

    def _file(self, at: HistoryAt) -> Any:
        async def ask(backing: Backing) -> bytes:
            return await Snapshots(backing.objects, self._shard).get_history(at)

        return history.decoded(self._ask(ask))

    # ── Looking ───────────────────────────────────────────────────────────────────────────────────

    def _current(self) -> Manifest:
        async def ask(backing: Backing) -> Manifest:
            found = await Snapshots(backing.objects, self._shard).manifest()
            return Manifest("") if found is None else found[0]

        return self._ask(ask)

    def _feed(self, view: _View) -> _Feed:
        return self._feed_of(view.state.name, view.manifest, view.state.number)

    def _feed_of(self, name: str, manifest: Manifest, number: int) -> _Feed:
        return _Feed(name, manifest.floor + 1, number + 1, self._shard, self._called)

    def _look(self, high: int | None = None) -> _View:
        """The log as it is now; or as we saw it last, if only what is before an entry matters and that was there."""
        seen = self._seen
        if seen is None or high is None or high > seen.state.number + 1:
            seen = self._seen = self._ask(self._view)
        return seen

    def _ask(self, ask: Callable[[Backing], Awaitable[Answer]]) -> Answer:
        async def asked() -> Answer:
            backing = open_backing(self._url)
            try:
                return await ask(backing)
            finally:
                await backing.close()

        # In a thread of its own: a notebook has an event loop at work in this one.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: asyncio.run(asked())).result()

    async def _view(self, backing: Backing) -> _View:
        tape, name = backing.tape(self._shard), f"{backing.name} {self._shard}"
        last = await tape.last()
        while True:
            facts = Facts()
            parts = Parts(new_machine=facts.machine)
            found = await Snapshots(backing.objects, self._shard).load(parts)
            facts.follow(parts)
            state = State(parts)
            try:
                while state.number < last and (entries := await tape.read(state.number)):
                    for number, data in entries:
                        facts.begin(number)
                        state.apply(number, read(name, number, data))
                        facts.end()
            except Truncated:
                continue  # it was compacted meanwhile
            if not state.name and self._logs == 1:  # of several some may not have been needed yet
                raise InvalidInput("the log", "have something in it", backing.name)
            return _View(Manifest("") if found is None else found[0], state, facts.rows)


def _kept(manifest: Manifest) -> list[HistoryAt]:
    return manifest.history if manifest.told == manifest.number else []


def _cut(manifest: Manifest, low: int, high: int, most: int, since: Offset | None = None) -> list[Reach]:
    """Ranges of about as many files each, and what is in none by itself: only one task need apply entries for it."""
    if low >= high:
        return []
    ends = [one.last + 1 for one in _kept(manifest) if low < one.last + 1 <= manifest.number]
    step = -(-(len(ends) + 1) // max(1, most - 1))
    cuts = [*ends[step - 1 :: step], manifest.number + 1] if most > 1 else []
    edges = [low, *sorted({cut for cut in cuts if max(low, 1) < cut < high}), high]
    return [Reach(one, other, since) for one, other in pairwise(edges)]


def _bounded(view: _View, low: int, end: int, most: int) -> int:
    """The entry before which there are about so many rows from `low` on; neither a file nor an entry is cut in two."""
    tail = Counter(fact.xid for fact in view.tail if fact.xid >= low)
    seen = 0
    for first, count in [
        *((at.first, at.count) for at in _kept(view.manifest) if at.last >= low),
        *sorted(tail.items()),
    ]:
        if first >= low and seen and seen + count > most:
            return min(first, end)
        if first < end:
            seen += count
    return end


def _place(kind: str, moment: datetime, job_id: str) -> tuple[str, str, int]:
    id_day = int(job_id.replace("-", "")[:12] or "0", 16) // _DAY_MS if kind in ("job", "attempt") else 0
    return kind, str(moment.astimezone(UTC).date()), id_day
