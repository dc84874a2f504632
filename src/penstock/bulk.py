"""Changes to all jobs that match a filter, as operations that outlive the call: with progress, and an end people can hasten.

An operation is an entry. Whoever carries it out goes through the jobs page by page, newest first, and after each page
writes down how far it has come; another that takes over goes on from there. A page whose runner ended before that is
done once more, which harms no job, but the figures may then be off by it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, assert_never

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from penstock.core import bounds, codec
from penstock.core.codec import JsonText
from penstock.core.commands import CancelJob, Changed, Filter, RedriveJob
from penstock.core.errors import EntryConflict, OperationNotFound, PenstockError
from penstock.core.fingerprint import failure
from penstock.core.job import Job, JobId
from penstock.core.ports import Store
from penstock.core.registry import Audited, Entry, PutEntry
from penstock.core.requests import new_filter
from penstock.core.wakeups import BULK, EVERYONE
from penstock.queue import Queue, new_id

KIND = "bulk"
MOST_AT_ONCE = 500
MOST_PAGES = 20
"""Pages without much in them that a count goes through before it says that there may be more."""
MOST_TOLD = 20
"""Refusals that are kept in words."""
KEPT_SECONDS = 7 * 86_400
"""How long an operation stays after its end."""
LEAD_SECONDS = 30.0
LOOK_SECONDS = 15.0
"""How long an operation may stay unknown where no wake-up comes through."""
AGAIN_SECONDS = 5.0
"""How long an operation that failed is left alone, whatever else there is to do."""
RESIGN_SECONDS = 2.0
SLOWEST_PER_SECOND, FASTEST_PER_SECOND = 0.1, 100_000.0
_TICK = timedelta(microseconds=1)

logger = logging.getLogger("penstock.bulk")


class Action(StrEnum):
    CANCEL = "cancel"
    REDRIVE = "redrive"


class BulkState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    ABORTED = "aborted"


class BulkOperation(Struct, frozen=True):
    """A change to all jobs that match, and how far it has come."""

    id: str
    action: Action
    filter: Filter
    state: BulkState
    actor: str
    reason: str | None
    created_at: datetime
    matched: int = 0
    """Jobs of it that were come to so far."""
    changed: int = 0
    refused: int = 0
    refusals: tuple[str, ...] = ()
    """The first of them, in words."""
    ended_at: datetime | None = None
    fingerprint: str | None = None
    """Of the jobs that match, only those whose error has this one."""
    per_second: float | None = None
    """How many jobs are changed in a second, about; None for as fast as it goes."""


class _Kept(Struct, frozen=True):
    """What the entry holds."""

    operation: BulkOperation
    after: JobId | None = None
    """Where the next page begins."""


# ── Asking ────────────────────────────────────────────────────────────────────────────────────────


async def count(
    queue: Queue, conditions: Mapping[str, Any], *, most: int = 10_000, fingerprint: str | None = None
) -> tuple[int, bool]:
    """How many jobs match, up to `most`, and whether that is all of them: where few do among very many, not all are looked at."""
    filter, found, after = new_filter(conditions), 0, None
    bounds.integer("most", most, 1, 1_000_000)
    for _ in range(MOST_PAGES + most // MOST_AT_ONCE):
        wanted = min(MOST_AT_ONCE, most + 1 - found)
        page = await queue.store.find(queue.tenant, filter, after=after, limit=wanted)
        found, after = found + len(of_failure(page.jobs, fingerprint)), page.next
        if found > most:
            return most, False
        if after is None:
            return found, True
    return found, False


def of_failure(jobs: Sequence[Job], fingerprint: str | None) -> Sequence[Job]:
    """Those whose error has this fingerprint; with none given, all."""
    if fingerprint is None:
        return jobs
    return [job for job in jobs if job.error is not None and failure(job.error).fingerprint == fingerprint]


async def next_jobs(
    store: Store,
    tenant: str,
    filter: Filter,
    after: JobId | None,
    *,
    fingerprint: str | None,
    per_second: float | None,
    most: int = MOST_AT_ONCE,
) -> tuple[Sequence[Job], JobId | None]:
    """The next jobs to change, no more than a second's worth, and where to go on."""
    page = await store.find(tenant, filter, after=after, limit=most)
    jobs = of_failure(page.jobs, fingerprint)
    if per_second is not None and len(jobs) > (worth := max(1, math.floor(per_second))):
        return jobs[:worth], jobs[worth - 1].id
    return jobs, page.next


async def begin(
    queue: Queue,
    action: str,
    conditions: Mapping[str, Any],
    *,
    reason: str | None = None,
    fingerprint: str | None = None,
    per_second: float | None = None,
) -> BulkOperation:
    """Write the operation down; whoever runs `BulkRunner` on this store carries it out.

    Jobs that are made from now on are left alone, whatever the conditions say.
    """
    doing, filter = bounds.member("action", action, Action), new_filter(conditions)
    said = None if reason is None else bounds.text("reason", reason)
    now = await queue.store.now()
    until = now + _TICK if filter.created_before is None else min(filter.created_before, now + _TICK)
    operation = BulkOperation(
        new_id(), doing, replace(filter, created_before=until), BulkState.RUNNING, queue.actor, said, now,
        fingerprint=fingerprint, per_second=rate("per_second", per_second),
    )  # fmt: skip
    audit = Audited(operation.id, f"bulk {doing}", queue.actor, said, _detail(filter))
    try:
        await _put(queue.store, queue.tenant, _Kept(operation), version=0, audit=audit)
    except EntryConflict:
        pass  # nobody else knows this id: the store did it, lost its answer, and tried again
    queue.store.wakeups.wake(EVERYONE, [BULK])
    return operation


def rate(field: str, value: float | None) -> float | None:
    return None if value is None else bounds.number(field, value, SLOWEST_PER_SECOND, FASTEST_PER_SECOND)


async def abort(queue: Queue, operation_id: str) -> BulkOperation:
    """Change no more jobs; those changed so far stay so. An operation that has ended stays as it is."""
    while True:
        entry, kept = await _find(queue, operation_id)
        if kept.operation.state is not BulkState.RUNNING:
            return kept.operation
        aborted = replace(kept.operation, state=BulkState.ABORTED, ended_at=await queue.store.now())
        audit = Audited(operation_id, "bulk abort", queue.actor)
        try:
            await _put(
                queue.store,
                queue.tenant,
                replace(kept, operation=aborted),
                version=entry.version,
                audit=audit,
            )
        except EntryConflict:
            continue  # it has come a page further, or to its end
        return aborted


async def get(queue: Queue, operation_id: str) -> BulkOperation:
    _, kept = await _find(queue, operation_id)
    return kept.operation


async def operations(queue: Queue) -> list[BulkOperation]:
    """Those that go on, and those that ended within a week; newest first."""
    found = [_read(entry).operation for entry in await queue.store.entries(queue.tenant, KIND)]
    return sorted(found, key=lambda operation: (operation.created_at, operation.id), reverse=True)


async def _find(queue: Queue, operation_id: str) -> tuple[Entry, _Kept]:
    bounds.job_id("operation id", operation_id)
    found = await queue.store.entries(queue.tenant, KIND, [operation_id])
    if not found:
        raise OperationNotFound(operation_id)
    return found[0], _read(found[0])


def _read(entry: Entry) -> _Kept:
    return msgspec.json.decode(entry.body, type=_Kept)


async def _put(store: Store, tenant: str, kept: _Kept, *, version: int, audit: Audited | None = None) -> None:
    over = kept.operation.state is not BulkState.RUNNING
    command = PutEntry(
        KIND, kept.operation.id, JsonText(msgspec.json.encode(kept).decode()),
        version=version, seconds=KEPT_SECONDS if over else None, audit=audit,
    )  # fmt: skip
    [answer] = await store.put_entries(tenant, [command])
    if isinstance(answer, PenstockError):
        raise answer


def _detail(filter: Filter) -> JsonText:
    """The conditions as the audit trail keeps them."""
    given = {name: value for name, value in asdict(filter).items() if value not in (None, (), False)}
    return codec.encode(
        {name: codec.plain(value) for name, value in given.items()},
        field="conditions",
        limit=bounds.PAYLOAD_BYTES,
    )


# ── Carrying out ──────────────────────────────────────────────────────────────────────────────────


class BulkRunner:
    """Carries out operations, of all tenants. Any number may run; each operation has one that does it at a time."""

    def __init__(
        self,
        store: Store,
        *,
        lead_seconds: float = LEAD_SECONDS,
        look_seconds: float = LOOK_SECONDS,
        at_once: int = MOST_AT_ONCE,
    ) -> None:
        """Another takes an operation over within `lead_seconds` and `look_seconds` if this one is killed, at once if cancelled."""
        self._store = store
        self._lead_seconds = bounds.number("lead_seconds", lead_seconds, 0.1, 3_600)
        self._look_seconds = bounds.number("look_seconds", look_seconds, 0.01, 3_600)
        self._at_once = bounds.integer("at_once", at_once, 1, MOST_AT_ONCE)
        self._holder = f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(4)}"
        self._led: set[str] = set()
        self._resting: dict[str, float] = {}

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with self._store.wakeups.listen(EVERYONE, [BULK]) as bell:
                while True:
                    await bell.wait(0 if await self._round() else self._rest_seconds())
        finally:
            if self._led:
                await self._resign(*self._led)
                self._store.wakeups.wake(EVERYONE, [BULK])

    def _rest_seconds(self) -> float:
        """Until there is to be looked again: sooner, if an operation is at rest that is to go on at its rate."""
        now = asyncio.get_running_loop().time()
        return min([self._look_seconds, *(until - now for until in self._resting.values() if until > now)])

    async def _round(self) -> bool:
        """Do a page of every operation that nobody else carries out; says whether there is more to do.

        One page each, so that a long operation holds up no short one.
        """
        try:
            entries = await self._store.entries(None, KIND)
        except Exception as error:
            logger.warning("operations on many jobs cannot be looked for: %s", error)
            return False
        more = False
        for entry in entries:
            if self._resting.get(entry.name, 0.0) > asyncio.get_running_loop().time():
                continue
            self._resting.pop(entry.name, None)
            try:
                more |= await self._step(entry)
            except Exception:  # no reason for its neighbours to wait
                self._resting[entry.name] = asyncio.get_running_loop().time() + AGAIN_SECONDS
                logger.warning(
                    "operation %s of tenant %s failed, and is tried again",
                    entry.name,
                    entry.tenant,
                    exc_info=True,
                )
        return more

    async def _step(self, entry: Entry) -> bool:
        """Do one page of one operation, if that is for us to do; says whether there is more."""
        if _read(entry).operation.state is not BulkState.RUNNING:
            return False
        if not await self._store.lead(_office(entry.name), self._holder, self._lead_seconds):
            self._led.discard(entry.name)
            return False
        if entry.name not in self._led:
            # Whoever led before may have come further since we looked.
            self._led.add(entry.name)
            entries = await self._store.entries(entry.tenant, KIND, [entry.name])
            if not entries:
                return False
            [entry] = entries
        is_over = await self._page(entry, _read(entry))
        if is_over:
            self._resting.pop(entry.name, None)
            await self._resign(entry.name)
        return not is_over and entry.name not in self._resting

    async def _page(self, entry: Entry, kept: _Kept) -> bool:
        """Change a page of jobs and write down what came of it; says whether the operation is over."""
        operation = kept.operation
        if operation.state is not BulkState.RUNNING:
            return True
        jobs, after = await next_jobs(
            self._store, entry.tenant, operation.filter, kept.after,
            fingerprint=operation.fingerprint, per_second=operation.per_second, most=self._at_once,
        )  # fmt: skip
        answers = await self._apply(entry.tenant, operation, jobs) if jobs else []
        if operation.per_second is not None and jobs:
            until = asyncio.get_running_loop().time() + len(jobs) / operation.per_second
            self._resting[entry.name] = until
        errors = [answer for answer in answers if isinstance(answer, PenstockError)]
        moved = replace(
            operation,
            matched=operation.matched + len(jobs),
            changed=operation.changed + len(answers) - len(errors),
            refused=operation.refused + len(errors),
            refusals=(*operation.refusals, *(error.message for error in errors))[:MOST_TOLD],
        )
        if after is None:
            moved = replace(moved, state=BulkState.DONE, ended_at=await self._store.now())
        try:
            await _put(self._store, entry.tenant, _Kept(moved, after), version=entry.version)
        except EntryConflict:
            return await self._give_way(entry, kept, moved)
        return after is None

    async def _apply(
        self, tenant: str, operation: BulkOperation, jobs: Sequence[Job]
    ) -> list[Changed | PenstockError]:
        actor, reason = operation.actor, operation.reason
        match operation.action:
            case Action.CANCEL:
                return await self._store.cancel(tenant, [CancelJob(job.id, actor, reason) for job in jobs])
            case Action.REDRIVE:
                return await self._store.redrive(tenant, [RedriveJob(job.id, actor, reason) for job in jobs])
            case _:
                assert_never(operation.action)

    async def _give_way(self, entry: Entry, began: _Kept, moved: BulkOperation) -> bool:
        """Somebody has changed the operation meanwhile. If it was aborted, our page still counts: its jobs are changed."""
        entries = await self._store.entries(entry.tenant, KIND, [entry.name])
        if not entries:
            return True
        there = _read(entries[0])
        if there.operation.state is BulkState.RUNNING or there.after != began.after:
            return there.operation.state is not BulkState.RUNNING  # another runner has done the same page
        aborted = replace(moved, state=there.operation.state, ended_at=there.operation.ended_at)
        try:
            await _put(self._store, entry.tenant, _Kept(aborted, there.after), version=entries[0].version)
        except EntryConflict:
            pass  # once more would be once too many: figures are not worth it
        return True

    async def _resign(self, *operations: str) -> None:
        """Let others have these operations; if that cannot be done soon, our lead lapses by itself."""
        self._led.difference_update(operations)
        try:
            async with asyncio.timeout(RESIGN_SECONDS):
                for operation in operations:
                    await self._store.lead(_office(operation), self._holder, 0)
        except Exception as error:
            logger.warning("%s could not give up its operations: %s", self._holder, error)


def _office(operation_id: str) -> str:
    return f"bulk {operation_id}"
