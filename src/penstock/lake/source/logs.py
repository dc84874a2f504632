"""The history of a log: files that its compactor wrote, and the entries after them, applied anew.

The log itself is never read as what happened: it holds what was asked. An offset is the number of an entry. What lies
between two of them is the same whether it is still on the tape or in a file by now, so a plan stays good while the
compactor works.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from penstock.core.errors import InvalidInput
from penstock.core.job import Status
from penstock.core.machine import Machine
from penstock.core.settings import QueueSettings
from penstock.lake.source.arrow import arrow_schema, days
from penstock.lake.source.asking import Ask, Offset
from penstock.lake.source.filters import Condition
from penstock.lake.tables import SOURCE
from penstock.stores.log import history
from penstock.stores.log.backings import Backing, open_backing
from penstock.stores.log.entry import read
from penstock.stores.log.errors import Truncated
from penstock.stores.log.history import Fact, Facts
from penstock.stores.log.layout import count_shards
from penstock.stores.log.snapshots import HistoryAt, Manifest, Snapshots
from penstock.stores.log.state import Parts, State
from penstock.stores.log.store import SHARD
from penstock.stores.postgres.rows import to_options

Answer = TypeVar("Answer")

_SYSTEM = f"log/{SHARD}"
_DAY_MS = 86_400_000
_MOMENTS = {"events": "occurred_at", "attempts": "ended_at", "jobs": "created_at"}


class Reach(Struct, frozen=True):
    """What happened from one entry on, before another."""

    low: int = 0
    high: int = 0
    since: dict[str, Any] | None = None
    """The offset that a stream reads on from."""


class _Feed(Struct, frozen=True):
    """Whose history this is, from which entry on it is whole, and before which it is known."""

    feed: str
    floor: int
    horizon: int

    def offset(self, xid: int, floor: int) -> Offset:
        return {"xid": xid, "floor": floor, "feed": self.feed, "system": _SYSTEM}

    def check(self, offset: Offset) -> None:
        """Refuse a place of another log, one from before what is kept, and one that this log has not come to."""
        try:
            feed, system = offset["feed"], offset["system"]
            xid, floor = int(offset["xid"]), int(offset["floor"])
        except (KeyError, TypeError, ValueError):
            raise InvalidInput("the checkpoint", "hold offsets of this source", offset) from None
        if (feed, system) != (self.feed, _SYSTEM):
            raise InvalidInput(
                "the checkpoint",
                f"come from this very log (feed {self.feed}, system {_SYSTEM}); begin a new lake, or name the store that "
                "this one was made from",
                f"feed {feed}, system {system}",
            )
        if xid > max(self.horizon, self.floor):
            raise InvalidInput(
                "the checkpoint",
                f"not be ahead of the log, which has come to entry {self.horizon - 1:,}: it was restored from a copy; "
                "begin a new lake, or go back to the lake of that time",
                f"{xid:,}",
            )
        if self.floor > max(xid, floor):
            raise InvalidInput(
                "the checkpoint",
                f"not be older than what is kept, which is whole from entry {self.floor:,} on: some of what came after it "
                "has left the log unread; begin a new lake",
                f"{xid:,}",
            )


class _View(Struct, frozen=True):
    """A log as it was at one moment: its files, its state, and what happened since the files were written."""

    manifest: Manifest
    state: State
    tail: list[Fact]

    @property
    def feed(self) -> _Feed:
        return _Feed(self.state.name, self.manifest.floor + 1, self.state.number + 1)


class LogReader:
    """Reads one log; opens it for each look and keeps nothing open."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._seen: _View | None = None

    # ── All at once ───────────────────────────────────────────────────────────────────────────────

    def slices(self, ask: Ask, most: int) -> list[Reach]:
        if ask.table != "events":
            return [Reach()]
        view = self._look()
        return _cut(view.manifest, view.feed.floor, view.feed.horizon, most)

    # ── As a stream ───────────────────────────────────────────────────────────────────────────────

    def first(self) -> Offset:
        feed = self._look().feed
        return feed.offset(0, feed.floor)

    def horizon(self) -> Offset:
        feed = self._look().feed
        return feed.offset(feed.horizon, feed.floor)

    def latest(self, start: Offset, ask: Ask, most_rows: int | None, target: Offset | None) -> Offset:
        view = self._look(None if target is None else int(target["xid"]))
        feed = view.feed
        feed.check(start)
        if target is not None:
            feed.check({**target, "floor": feed.floor})
        low, end = int(start["xid"]), feed.horizon if target is None else int(target["xid"])
        if most_rows is not None and low < end:
            end = _bounded(view, low, end, most_rows)
        return feed.offset(max(low, end), int(start["floor"]))

    def between(self, start: Offset, end: Offset, ask: Ask, most: int) -> list[Reach]:
        low, high = int(start["xid"]), int(end["xid"])
        view = self._look(high)
        view.feed.check(start)
        view.feed.check({**end, "floor": view.feed.floor})
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

    def counted(self, until: int, wanted: Sequence[str]) -> dict[tuple[str, str, int], int]:
        """How many jobs came in and attempts ended on these days, by the day in the job's id: before an entry.

        By the files, and by the jobs that are there; whichever knows of more.
        """
        view, chosen = self._look(), set(wanted)
        told: dict[tuple[str, str, int], int] = {}
        later: dict[tuple[str, str, int], int] = {}
        columns = ("kind", "occurred_at", "job_id", "xid")
        for table in self._facts(view.manifest, view.tail, 0, view.feed.horizon):
            for row in table.select(columns).to_pylist():
                place = _place(row["kind"], row["occurred_at"], row["job_id"] or "")
                if row["kind"] in ("job", "attempt") and place[1] in chosen:
                    found = told if row["xid"] < until else later
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
            yield from _asked(ask, _TABLES[ask.table](self._look().state.parts.machines)).to_batches()
            return
        manifest = self._current()
        tail: list[Fact] = []
        feed = _Feed(manifest.id, manifest.floor + 1, manifest.number + 1)
        if slice.high > feed.horizon or not manifest.id:
            view = self._look()
            manifest, tail, feed = view.manifest, view.tail, view.feed
        if slice.since is not None:
            feed.check(slice.since)
        for table in self._facts(manifest, tail, slice.low, slice.high):
            yield from _asked(ask, table).to_batches()

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
            return await Snapshots(backing.objects, SHARD).get_history(at)

        return history.decoded(self._ask(ask))

    # ── Looking ───────────────────────────────────────────────────────────────────────────────────

    def _current(self) -> Manifest:
        async def ask(backing: Backing) -> Manifest:
            found = await Snapshots(backing.objects, SHARD).manifest()
            return Manifest("") if found is None else found[0]

        return self._ask(ask)

    def _look(self, high: int | None = None) -> _View:
        """The log as it is now; or as we saw it last, if only what is before an entry matters and that was there."""
        seen = self._seen
        if seen is None or high is None or high > seen.feed.horizon:
            seen = self._seen = self._ask(_view)
        return seen

    def _ask(self, ask: Callable[[Backing], Awaitable[Answer]]) -> Answer:
        async def asked() -> Answer:
            backing = open_backing(self._url)
            try:
                if (many := await count_shards(backing)) > 1:
                    must = "be a store of one log, for the lake does not read several yet"
                    raise InvalidInput("url", must, f"{backing.name} with {many} of them")
                return await ask(backing)
            finally:
                await backing.close()

        # In a thread of its own: a notebook has an event loop at work in this one.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: asyncio.run(asked())).result()


async def _view(backing: Backing) -> _View:
    tape = backing.tape(SHARD)
    last = await tape.last()
    while True:
        facts = Facts()
        parts = Parts(new_machine=facts.machine)
        found = await Snapshots(backing.objects, SHARD).load(parts)
        facts.follow(parts)
        state = State(parts)
        try:
            while state.number < last and (entries := await tape.read(state.number)):
                for number, data in entries:
                    facts.begin(number)
                    state.apply(number, read(backing.name, number, data))
                    facts.end()
        except Truncated:
            continue  # it was compacted meanwhile
        if not state.name:
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


# ── As Spark wants it ─────────────────────────────────────────────────────────────────────────────


def _asked(ask: Ask, table: Any) -> Any:
    """The rows and columns that were asked for."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if (moment := _MOMENTS.get(ask.table)) is not None:
        table = table.append_column("day", days(table[moment].combine_chunks()))
    conditions = [_filter(one) for one in ask.conditions]
    if ask.tenant is not None:
        conditions.append(pc.field("tenant") == ask.tenant)
    if moment is not None and ask.first_day is not None:
        conditions.append(pc.field("day") >= str(ask.first_day))
    if moment is not None and ask.last_day is not None:
        conditions.append(pc.field("day") <= str(ask.last_day))
    for condition in conditions:
        table = table.filter(condition)
    if not ask.columns:
        return pa.Table.from_batches([pa.RecordBatch.from_struct_array(pa.array([{}] * table.num_rows))])
    return table.select(list(ask.columns)).cast(arrow_schema(ask))


def _filter(one: Condition) -> Any:
    import pyarrow.compute as pc

    column = pc.field(one.column)
    match one.operator:
        case "IS NULL":
            return column.is_null()
        case "IS NOT NULL":
            return column.is_valid()
        case "IN":
            return column.isin(list(one.values))
        case ">":
            return column > one.values[0]
        case ">=":
            return column >= one.values[0]
        case "<":
            return column < one.values[0]
        case "<=":
            return column <= one.values[0]
        case _:
            return column == one.values[0]


def _jobs(machines: dict[str, Machine]) -> Any:
    rows = []
    for machine in machines.values():
        for job in machine.ledger.jobs.values():
            asked, lease = job.asked, job.lease
            rows.append(
                {
                    "tenant": machine.tenant, "job_id": asked.id, "queue": asked.queue, "type": asked.type,
                    "payload": asked.payload, "priority": asked.priority, "key": asked.key, "schedule": asked.schedule,
                    "asked_run_at": asked.run_at, "options": to_options(asked), "created_at": job.created_at,
                    "scheduled_at": job.scheduled_at, "status": str(job.status), "run_at": job.run_at,
                    "expires_at": job.expires_at, "attempts": job.attempts, "leases": job.leases, "error": job.error,
                    "progress": job.progress, "cause": None if job.cause is None else str(job.cause),
                    "ended_at": job.ended_at, "worker": None if lease is None else lease.worker,
                    "started_at": None if lease is None else lease.taken_at,
                    "lease_until": None if lease is None else lease.expires_at,
                    "cancel_requested": job.cancel_requested, "result": job.result,
                }
            )  # fmt: skip
    return _table("jobs", rows)


def _attempts(machines: dict[str, Machine]) -> Any:
    return _table(
        "attempts",
        [
            {
                "tenant": machine.tenant, "job_id": job.id, "attempt": one.number, "queue": job.queue, "type": job.type,
                "key": job.asked.key, "schedule": job.asked.schedule, "priority": job.priority, "worker": one.worker,
                "created_at": job.created_at, "scheduled_at": job.scheduled_at, "ready_at": ready_at,
                "started_at": one.started_at, "ended_at": one.ended_at, "run_at": one.run_at,
                "outcome": str(one.outcome), "status": str(one.status), "error": one.error, "result": one.result,
            }
            for machine in machines.values()
            for job, one, ready_at in history.attempts(machine)
        ],
    )  # fmt: skip


def _queues(machines: dict[str, Machine]) -> Any:
    return _table(
        "queues",
        [
            {
                "tenant": machine.tenant,
                "queue": name,
                "settings": "{}"
                if lane.settings == QueueSettings()
                else msgspec.json.encode(lane.settings).decode(),
                "paused": lane.settings.paused,
                **{str(status): lane.counts.get(status, 0) for status in Status},
            }
            for machine in machines.values()
            for name, lane in machine.ledger.lanes.items()
        ],
    )


def _schedules(machines: dict[str, Machine]) -> Any:
    return _table(
        "schedules",
        [
            {
                "tenant": machine.tenant,
                "schedule": one.name,
                "body": msgspec.json.encode(one).decode(),
                "next_fire_at": one.next_fire_at,
                "last_fire_at": one.last_fire_at,
            }
            for machine in machines.values()
            for one in machine.schedules()
        ],
    )


def _table(name: str, rows: list[dict[str, Any]]) -> Any:
    import pyarrow as pa

    schema = arrow_schema(Ask(name, tuple(column for column in SOURCE[name] if column != "day")))
    return pa.Table.from_pylist(rows, schema=schema)


_TABLES: dict[str, Callable[[dict[str, Machine]], Any]] = {
    "jobs": _jobs,
    "attempts": _attempts,
    "queues": _queues,
    "schedules": _schedules,
}
