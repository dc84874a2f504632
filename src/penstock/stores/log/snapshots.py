"""Where the snapshots of one log are: which segments make up the newest, and what readers may no longer rely on.

The manifest is the one object that changes, by compare-and-swap. Segments are written first and named by it after, so
that whoever reads it finds all it names; one it no longer names stays for a day, for those who read it before.

    <shard>/manifest      which segments, the watermark, what is to be deleted when
    <shard>/seg/<name>    a segment, never changed
    <shard>/hist/<name>   what happened from one entry to another, for the lake (`history`)
"""

from __future__ import annotations

import asyncio
import gc
import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import islice
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.core.job import Job, JobId, Status
from penstock.core.keys import Request
from penstock.core.machine import Machine
from penstock.stores.log import entry as entries
from penstock.stores.log import segments
from penstock.stores.log.backings import Objects
from penstock.stores.log.errors import LogCorrupt, LogTooNew
from penstock.stores.log.pooled import check_rules
from penstock.stores.log.state import Parts

FORMAT = 1
JOBS_PER_SEGMENT = 10_000
TOLD_PER_SEGMENT = 10_000
FETCHED_AHEAD = 8
"""Segments on their way while one is taken in: what is read in bulk and let go leaves holes in our memory."""
FROZEN_FROM = 10_000
KEPT_UNNAMED = timedelta(days=1)
"""How long a segment stays that no manifest names any more, or that none has named yet."""

Value = TypeVar("Value")


# ── What the manifest says ────────────────────────────────────────────────────────────────────────


class JobsAt(Struct, frozen=True, array_like=True):
    """The segment of a tenant's jobs from an id on, up to the next segment's."""

    first: JobId
    name: str
    count: int


class RunAt(Struct, frozen=True, array_like=True):
    """The segment of what is numbered from one number to another."""

    first: int
    name: str
    count: int


class TenantAt(Struct, frozen=True):
    """The segments of one tenant."""

    tenant: str
    jobs: list[JobsAt] = []
    told: list[RunAt] = []
    audited: list[RunAt] = []

    def names(self) -> Iterator[str]:
        return (one.name for run in (self.jobs, self.told, self.audited) for one in run)


class Snapshot(Struct, frozen=True):
    """A state as it was after one entry."""

    number: int
    head: str
    tenants: list[TenantAt] = []

    def names(self) -> set[str]:
        return {self.head, *(name for one in self.tenants for name in one.names())}


class Mark(Struct, frozen=True, array_like=True):
    """All entries up to a number are older than a time, by the store's clock."""

    number: int
    at: datetime


class HistoryAt(Struct, frozen=True, array_like=True):
    """The file of what happened from one entry to another, both among them."""

    first: int
    last: int
    name: str
    count: int
    until: datetime
    """When the latest of it happened."""


class Manifest(Struct, frozen=True):
    id: str
    """Of the log; two that have the same are the same."""
    fmt: int = FORMAT
    snapshot: Snapshot | None = None
    watermark: int = 0
    """Entries up to this one may be gone. It is published before any is deleted."""
    exported: int | None = None
    """How far the lake has read, by its promise; None as long as none follows."""
    history: list[HistoryAt] = []
    """What happened, as far as it is kept, in the order of the entries; those that brought nothing about are in no file."""
    forgotten: int = 0
    """What happened up to this entry is not kept."""
    told: int = 0
    """What happened up to this entry is in `history`. Below the snapshot's own: it was made without keeping history."""
    marks: list[Mark] = []
    retired: dict[str, datetime] = {}
    """Segments that are named no more, and since when."""
    made_by: str = ""
    rules: int = 1
    """By which the snapshot was made; older manifests do not say. What publishes it sets it."""

    @property
    def number(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.number

    @property
    def floor(self) -> int:
        """What happened after this entry is kept without a gap."""
        return self.forgotten if self.told == self.number else self.number

    def names(self) -> set[str]:
        """All that it names, segments and history."""
        return set() if self.snapshot is None else self.snapshot.names() | {one.name for one in self.history}


class _Format(Struct):
    fmt: int
    rules: int = 1


# ── Reading and writing ───────────────────────────────────────────────────────────────────────────


class Snapshots:
    """The snapshots of one log, among the objects of its store."""

    def __init__(self, objects: Objects, shard: str) -> None:
        self._objects = objects
        self._shard = shard

    @property
    def _place(self) -> str:
        return f"{self._shard}/manifest"

    async def manifest(self) -> tuple[Manifest, str] | None:
        """The manifest and its version; None before the first."""
        found = await self._objects.read(self._place)
        if found is None:
            return None
        data, version = found
        try:
            told = msgspec.json.decode(data, type=_Format)
            if told.fmt > FORMAT:
                raise LogTooNew(self._place, told.fmt, FORMAT)
            check_rules(self._place, told.fmt, told.rules)
            return msgspec.json.decode(data, type=Manifest), version
        except msgspec.DecodeError as error:
            raise LogCorrupt(self._shard, "its manifest", str(error)) from error

    async def publish(self, manifest: Manifest, version: str | None) -> str | None:
        """Put a manifest in the place of the one that was read; None: another was first."""
        data = msgspec.json.encode(replace(manifest, rules=entries.RULES))
        told = await self._objects.replace(self._place, data, version)
        if told is None and (there := await self._objects.read(self._place)) is not None and there[0] == data:
            return there[1]  # it was ours, and the reply was lost
        return told

    async def load(self, parts: Parts) -> tuple[Manifest, str] | None:
        """Fill parts with the newest snapshot and give its manifest; None if there is none yet.

        It may take a while, so the manifest is read again at the end: if the entries that follow the snapshot may be
        gone by now, everything starts over with the newer one that is there then.
        """
        while True:
            found = await self.manifest()
            if found is None or found[0].snapshot is None:
                return found
            complete = await self._fill(parts, found[0].snapshot)
            again = await self.manifest()
            if complete and again is not None and again[0].watermark <= found[0].snapshot.number:
                _settle_in(parts)
                return found
            if not complete and again is not None and again[1] == found[1]:
                raise LogCorrupt(
                    self._shard, f"snapshot {found[0].snapshot.number:,}", "a segment it names is not there"
                )
            _empty(parts)

    async def _fill(self, parts: Parts, snapshot: Snapshot) -> bool:
        """Fill parts from the segments, fetched ahead and taken in one after the other; False if one is gone."""
        wanted = [snapshot.head, *(name for one in snapshot.tenants for name in one.names())]
        waiting: list[tuple[Machine, Job]] = []
        ahead: dict[str, asyncio.Task[bytes | None]] = {}
        names = iter(wanted)

        def fetch(most: int) -> None:
            for name in islice(names, most):
                ahead[name] = asyncio.create_task(self._objects.get(self._key(name)))

        async def fetched(name: str) -> bytes | None:
            data = await ahead.pop(name)
            fetch(1)
            return data

        fetch(FETCHED_AHEAD)
        try:
            if (head := await fetched(snapshot.head)) is None:
                return False
            with self._naming(snapshot.head):
                segments.restore_head(parts, head)
            for one in snapshot.tenants:
                machine = parts.machines[one.tenant]
                for at in one.jobs:
                    if (data := await fetched(at.name)) is None:
                        return False
                    with self._naming(at.name):
                        for jobs in segments.restore_jobs(machine, data, parts.now):
                            waiting += [(machine, job) for job in jobs if job.status is Status.WAITING]
                            await asyncio.sleep(0)  # others have their turn
                for restore, runs in (
                    (segments.restore_feed, one.told),
                    (segments.restore_audit, one.audited),
                ):
                    for run in runs:
                        if (data := await fetched(run.name)) is None:
                            return False
                        with self._naming(run.name):
                            for _ in restore(machine, data):
                                await asyncio.sleep(0)
                        await asyncio.sleep(0)
        finally:
            for task in ahead.values():
                task.cancel()
            await asyncio.gather(*ahead.values(), return_exceptions=True)
        for machine, job in waiting:
            machine.ledger.count_waiting([job])
        return True

    @contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        """Say which segment is damaged: it is to be restored."""
        try:
            yield
        except msgspec.DecodeError as error:  # its checksum fits: it is another segment's
            raise LogCorrupt("a snapshot", self._key(name), str(error)) from error
        except LogCorrupt as error:
            raise LogCorrupt("a snapshot", self._key(name), str(error.facts["found"])) from None

    async def write(
        self, parts: Parts, before: Snapshot | None, touched: Mapping[str, Set[JobId]] | None = None
    ) -> Snapshot:
        """Write what changed since an earlier snapshot, by the jobs touched since; without that, everything.

        Nothing refers to what is written here until a manifest does.
        """
        earlier = {} if before is None or touched is None else {one.tenant: one for one in before.tenants}
        tenants = []
        for tenant, machine in parts.machines.items():
            there = earlier.get(tenant, TenantAt(tenant))
            tenants.append(
                TenantAt(
                    tenant,
                    await self._write_jobs(
                        machine, parts.now, there.jobs, (touched or {}).get(tenant, set())
                    ),
                    await self._write_told(machine, there.told),
                    await self._write_audited(machine, there.audited),
                )
            )
        return Snapshot(parts.number, await self._put(segments.head_segment(parts)), tenants)

    async def _write_jobs(
        self, machine: Machine, now: datetime, there: list[JobsAt], touched: Set[JobId]
    ) -> list[JobsAt]:
        """The segments of a machine's jobs, those that hold a touched one written anew."""
        if not there:
            there, stale = [JobsAt(JobId(""), "", 0)], {0}
        else:
            firsts = [one.first for one in there]
            stale = {bisect_right(firsts, job_id) - 1 for job_id in touched}
        requests = _by_segment(machine, now, there, stale)
        # Where all jobs have left nothing is touched any more: once its requests have lapsed too, it is dropped.
        stale |= {index for index, one in enumerate(there) if not one.count and not requests[index]}
        made: list[JobsAt] = []
        for begin, end in _runs(there, stale):
            if begin not in stale:
                made.append(there[begin])
                continue
            below = there[end].first if end < len(there) else None
            answered: dict[JobId, dict[str, Request]] = {}
            for index in range(begin, end):
                for key, one in requests[index].items():
                    answered.setdefault(one.job_id, {})[key] = one
            held = machine.ledger.jobs
            # What was answered with jobs long gone belongs somewhere too: where they were.
            gone = [job_id for job_id in answered if job_id not in held]
            ids = sorted(machine.ledger.catalogue.between(there[begin].first, below) + gone)
            start = 0
            while start < len(ids):
                some = ids[start : start + JOBS_PER_SEGMENT]
                taken, data = segments.jobs_segment(machine, some, answered)
                count = sum(job_id in held for job_id in some[:taken])
                made.append(JobsAt(ids[start] if start else there[begin].first, await self._put(data), count))
                start += taken
        if made:
            made[0] = JobsAt(JobId(""), made[0].name, made[0].count)
        return made

    async def _write_told(self, machine: Machine, there: list[RunAt]) -> list[RunAt]:
        ledger = machine.ledger
        first = ledger.told_count - len(ledger.told)
        return await self._write_runs(
            there, first, ledger.told_count,
            lambda begin, end: segments.feed_segment(islice(ledger.told, begin - first, end - first)),
        )  # fmt: skip

    async def _write_audited(self, machine: Machine, there: list[RunAt]) -> list[RunAt]:
        audited = machine.ledger.audited
        if not audited:
            return []
        first, last = audited[0][0], audited[-1][0] + 1
        return await self._write_runs(
            there, first, last,
            lambda begin, end: segments.audit_segment(islice(audited, begin - first, end - first)),
        )  # fmt: skip

    async def _write_runs(
        self, there: list[RunAt], first: int, last: int, encoded: Callable[[int, int], tuple[int, bytes]]
    ) -> list[RunAt]:
        """The segments of what is numbered from `first` to before `last`; those stay that are full, or to which nothing came."""
        made = [one for one in there if one.first + one.count > first]
        # Only the last may have room, by what it holds or by its bytes: what came next went into another.
        if made and made[-1].count != TOLD_PER_SEGMENT and made[-1].first + made[-1].count != last:
            del made[-1]
        start = made[-1].first + made[-1].count if made else first
        while start < last:
            count, data = encoded(start, min(start + TOLD_PER_SEGMENT, last))
            made.append(RunAt(start, await self._put(data), count))
            start += count
        return made

    async def _put(self, data: bytes) -> str:
        name = secrets.token_hex(16)
        await self._objects.create(self._key(name), data)
        return name

    def _key(self, name: str) -> str:
        return f"{self._shard}/seg/{name}"

    async def put_history(self, first: int, last: int, data: bytes) -> str:
        """Write a file of what happened; nothing refers to it until a manifest does."""
        name = f"{first:012}-{last:012}-{secrets.token_hex(4)}.parquet"
        await self._objects.create(f"{self._shard}/hist/{name}", data)
        return name

    async def get_history(self, at: HistoryAt) -> bytes:
        data = await self._objects.get(f"{self._shard}/hist/{at.name}")
        if data is None:
            raise LogCorrupt(self._shard, f"the history of entries {at.first:,} to {at.last:,}", "it is gone")
        return data

    async def delete_unnamed(self, before: datetime) -> int:
        """Delete segments that no manifest has named since a time; returns how many.

        `before` must lie well before the manifest was last published: whoever wrote an older segment and has not named
        it yet can no longer do so, because the manifest it began with has been replaced.
        """
        there = [one for kind in ("seg", "hist") for one in await self._objects.list(f"{self._shard}/{kind}")]
        found = await self.manifest()  # after the list: what it names was written before
        if found is None:
            return 0
        manifest = found[0]
        named = manifest.names()
        young = {name for name, since in manifest.retired.items() if since >= before}
        old = [
            one.key
            for one in there
            if one.modified < before
            and (name := one.key.rsplit("/", 1)[-1]) not in named
            and name not in young
        ]
        if old:
            await self._objects.delete(old)
        return len(old)


def _runs(there: list[JobsAt], stale: Set[int]) -> Iterator[tuple[int, int]]:
    """The segments, each by itself; those to be written anew that are neighbours together."""
    begin = 0
    while begin < len(there):
        end = begin + 1
        while begin in stale and end in stale:
            end += 1
        yield begin, end
        begin = end


def _by_segment(
    machine: Machine, now: datetime, there: list[JobsAt], stale: Set[int]
) -> dict[int, dict[str, Request]]:
    """The requests that are still answered, by the segment of the job that answered them: those of what is to be written,
    and where no job is left."""
    wanted = stale | {index for index, one in enumerate(there) if not one.count}
    firsts = [one.first for one in there]
    found: dict[int, dict[str, Request]] = {index: {} for index in range(len(there))}
    for key, request in machine.ledger.keys.requests.items():
        index = bisect_right(firsts, request.job_id) - 1
        if index in wanted and request.until > now:
            found[index][key] = request
    return found


def _empty(parts: Parts) -> None:
    for held in (
        parts.machines,
        parts.entries,
        parts.allowances,
        parts.insights,
        parts.offices,
        parts.writers,
    ):
        held.clear()


def _settle_in(parts: Parts) -> None:
    """What was loaded is here to stay: let the garbage collector not stop everything to go through it again and again."""
    if sum(len(machine.ledger.jobs) for machine in parts.machines.values()) > FROZEN_FROM:
        if gc.get_freeze_count():
            # One that was loaded before and let go of since is full of cycles: frozen, it would stay for ever.
            gc.unfreeze()
            gc.collect()
        gc.freeze()
