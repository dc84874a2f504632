"""The log behind the port: what changes anything is written down, what only looks is answered from the state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from penstock.core.clock import Clock, SystemClock
from penstock.core.commands import (
    Beat,
    CancelJob,
    Changed,
    ConfigureQueue,
    DropSchedule,
    Due,
    Enqueued,
    Filter,
    Fire,
    Fired,
    Heartbeat,
    History,
    Leased,
    LeaseJobs,
    Page,
    PutSchedule,
    QueueView,
    RedriveJob,
    Settle,
    Settled,
    Swept,
)
from penstock.core.errors import PenstockError, StoreUnavailable
from penstock.core.job import Job, JobId, NewJob
from penstock.core.registry import AuditPage, Entry, Events, Insight, PutEntry, Spend, Spent
from penstock.core.schedule import Schedule
from penstock.core.settings import QueueSettings
from penstock.core.timetable import by_cron
from penstock.stores.log.backings import Backing, Tape
from penstock.stores.log.compacting import Tended
from penstock.stores.log.entry import write
from penstock.stores.log.log import MOST_BYTES, Log, LogWakeups, Source, in_parts
from penstock.stores.log.snapshots import Snapshots
from penstock.stores.log.state import Parts, State
from penstock.stores.wakeups.memory import MemoryWakeups

SHARD = "s00"
LONG_SECONDS = 1.0
"""A write that fails sooner costs a read little, so each tries it."""
NOBODY = ""
"""Stands for the tenant of what belongs to none."""


class LogStore:
    """Jobs in a log. Every process that opens it holds all of them in memory."""

    is_held_whole = True
    """Opened once more in one process, all jobs would be in its memory twice."""

    def __init__(
        self,
        open: Callable[[], Awaitable[Source]],
        *,
        name: str = "the log",
        cadence: float = 1.0,
        compactor: Tended | None = None,
        **options: Any,
    ) -> None:
        self.cadence = cadence
        """How many times more seldom than elsewhere an idle program should ask: here each request may cost money."""
        self._log = Log(name, open, **options)
        self._compactor = compactor
        self._tried_seconds = 0.0
        """How long it was tried in vain to write down what time has done; 0 if it was not, or failed at once."""
        self._tries_again_at = float("-inf")

    @classmethod
    def at(cls, backing: Backing, shard: str = SHARD, **options: Any) -> LogStore:
        """The store that is kept in a backing, which is not its to close; nothing is opened before the first call."""

        async def load(wakeups: MemoryWakeups) -> State:
            parts = Parts()
            await Snapshots(backing.objects, shard).load(parts)
            return State(parts, wakeups)

        async def open() -> Source:
            await backing.ready()
            return Source(backing.tape(shard), backing.objects.now, load, _leave_open)

        return cls(open, name=f"{backing.name} {shard}", **options)

    @classmethod
    def on(cls, tape: Tape, clock: Clock | None = None, **options: Any) -> LogStore:
        """A store on a tape, without snapshots."""
        clock = clock or SystemClock()

        async def now() -> datetime:
            return clock.now()

        async def load(wakeups: MemoryWakeups) -> State:
            return State(wakeups=wakeups)

        async def open() -> Source:
            return Source(tape, now, load, tape.close)

        return cls(open, **options)

    @property
    def is_open(self) -> bool:
        """Whether anything was asked of it yet."""
        return self._log.is_open

    @property
    def wakeups(self) -> LogWakeups:
        return self._log.wakeups

    # ── Written down ──────────────────────────────────────────────────────────────────────────────

    async def enqueue(self, tenant: str, jobs: Sequence[NewJob]) -> list[Enqueued | PenstockError]:
        return await self._each("enqueue", tenant, jobs)

    async def lease(self, tenant: str, requests: Sequence[LeaseJobs]) -> list[list[Leased] | PenstockError]:
        """What is known here to be there is asked for at once; otherwise a look tells whether to ask at all."""
        if not self._has_some(tenant, requests):
            await self._log.follow()
            if not await self._may_lease(tenant, requests):
                return [[] for _ in requests]
        return await self._each("lease", tenant, requests)

    def _has_some(self, tenant: str, requests: Sequence[LeaseJobs]) -> bool:
        if not self._log.is_open:
            return False
        state = self._log.state
        return any(state.foresees(tenant, request.queue, state.time) for request in requests)

    async def _may_lease(self, tenant: str, requests: Sequence[LeaseJobs]) -> bool:
        now, state = await self._log.now(), self._log.state
        return state.is_due(tenant, now) or any(
            state.foresees(tenant, request.queue, now) is not False for request in requests
        )

    async def heartbeat(self, tenant: str, beats: Sequence[Heartbeat]) -> list[Beat | PenstockError]:
        return await self._each("heartbeat", tenant, beats)

    async def settle(self, tenant: str, settles: Sequence[Settle]) -> list[Settled | PenstockError]:
        return await self._each("settle", tenant, settles)

    async def cancel(self, tenant: str, commands: Sequence[CancelJob]) -> list[Changed | PenstockError]:
        return await self._each("cancel", tenant, commands)

    async def redrive(self, tenant: str, commands: Sequence[RedriveJob]) -> list[Changed | PenstockError]:
        return await self._each("redrive", tenant, commands)

    async def configure(
        self, tenant: str, commands: Sequence[ConfigureQueue]
    ) -> list[QueueSettings | PenstockError]:
        return await self._each("configure", tenant, commands)

    async def put_schedules(
        self, tenant: str, commands: Sequence[PutSchedule]
    ) -> list[Schedule | PenstockError]:
        """When each fires next is worked out here: whoever applies it may know other time zones, or none."""
        now = await self._log.now()
        planned = [replace(one, schedule=_planned(one.schedule, now)) for one in commands]
        return await self._each("put_schedules", tenant, planned)

    async def drop_schedules(
        self, tenant: str, commands: Sequence[DropSchedule]
    ) -> list[Schedule | PenstockError]:
        return await self._each("drop_schedules", tenant, commands)

    async def fire(self, tenant: str, fires: Sequence[Fire]) -> list[Fired | PenstockError]:
        return await self._each("fire", tenant, fires)

    async def deliver(self, tenant: str, jobs: Sequence[NewJob]) -> list[Enqueued | PenstockError]:
        """Make the jobs of fire times of a schedule in another log, each once for ever, however often they are sent.

        In one entry, however large: that of a later time would have the earlier ones count as made.
        """
        answers: list[Enqueued | PenstockError] = await self._log.commit(write("deliver", tenant, list(jobs)))
        return answers

    async def pass_on(self, tenant: str, fires: Sequence[Fire]) -> list[bool | PenstockError]:
        """Move schedules on whose jobs were made in another log; False for one that no longer stands where it was seen."""
        return await self._each("pass_on", tenant, fires)

    async def put_entries(
        self, tenant: str, commands: Sequence[PutEntry]
    ) -> list[Entry | PenstockError | None]:
        return await self._each("put_entries", tenant, commands)

    async def spend(self, tenant: str, spends: Sequence[Spend]) -> list[Spent]:
        return await self._each("spend", tenant, spends)

    async def put_insights(self, insights: Sequence[Insight]) -> None:
        """All or nothing, and so in one entry, however large."""
        if insights:
            await self._log.commit(write("put_insights", NOBODY, list(insights)))

    async def lead(self, office: str, holder: str, seconds: float) -> bool:
        if self.cadence > 1 and (known := await self._known_to_lead(office, holder, seconds)) is not None:
            return known
        return bool(await self._log.commit(write("lead", NOBODY, (office, holder, seconds))))

    async def _known_to_lead(self, office: str, holder: str, seconds: float) -> bool | None:
        """The answer, if it need not be written down: another holds it, or more than half of our time is left."""
        if not self._log.wakeups.is_following:
            await self._log.follow()
        now = await self._log.now()
        leader, until = self._log.state.office(office) or (holder, now)
        left = (until - now).total_seconds()
        if leader != holder:
            return False if left > 0 else None
        return True if seconds > 0 and left > seconds / 2 else None

    async def sweep(self, *, limit: int, exported_until: datetime | None = None) -> Swept:
        if self._compactor is not None:
            await self._compactor.keep_going()
        await self._log.follow()
        if not self._log.state.may_sweep(await self._log.now(), exported_until):
            return Swept()
        swept: Swept = await self._log.commit(write("sweep", NOBODY, (limit, exported_until)))
        return swept

    async def _each(self, verb: str, tenant: str, given: Sequence[Any]) -> list[Any]:
        """The answers to a list; one that is too long for an entry goes in several, and some may fail where others do not."""
        if not given:
            return []
        given = list(given)
        written = write(verb, tenant, given)
        if len(given) == 1 or len(written.data) <= MOST_BYTES:
            answers: list[Any] = await self._log.commit(written)
            return answers
        parts = in_parts(given, len(written.data))
        answered = await self._log.commit_all([write(verb, tenant, part) for part in parts])
        return [
            answer
            for part, some in zip(parts, answered, strict=True)
            for answer in ([some] * len(part) if isinstance(some, PenstockError) else some)
        ]

    # ── Looked up ─────────────────────────────────────────────────────────────────────────────────

    async def due_schedules(self, tenant: str | None = None) -> Due:
        due: Due = await self._look(None, lambda state: state.due_schedules(tenant))
        return due

    async def get(self, tenant: str, ids: Sequence[JobId]) -> list[Job | PenstockError]:
        jobs: list[Job | PenstockError] = await self._look(tenant, lambda state: state.get(tenant, ids))
        return jobs

    async def history(
        self, tenant: str, subjects: Sequence[tuple[str, str]]
    ) -> list[History | PenstockError]:
        found: list[History | PenstockError] = await self._look(
            tenant, lambda state: state.history(tenant, subjects)
        )
        return found

    async def find(self, tenant: str, filter: Filter, *, after: JobId | None, limit: int) -> Page:
        page: Page = await self._look(
            tenant, lambda state: state.find(tenant, filter, after=after, limit=limit)
        )
        return page

    async def queues(self, tenant: str) -> list[QueueView]:
        views: list[QueueView] = await self._look(tenant, lambda state: state.queues(tenant))
        return views

    async def schedules(self, tenant: str) -> list[Schedule]:
        schedules: list[Schedule] = await self._look(tenant, lambda state: state.schedules(tenant))
        return schedules

    async def next_at(self, tenant: str, queues: Sequence[str]) -> datetime | None:
        if not self._log.wakeups.is_following:  # else the caller is woken by what we do not know yet
            await self._log.follow()
        now, state, queues = await self._log.now(), self._log.state, list(queues)
        is_known, at = state.foresees_at(tenant, queues, now)
        if is_known and not state.is_due(tenant, now):
            return at
        found: datetime | None = await self._log.commit(write("next_at", tenant, queues))
        return found

    async def now(self) -> datetime:
        return await self._log.now()

    async def tenants(self) -> list[str]:
        names: list[str] = await self._look(None, lambda state: state.tenants())
        return names

    async def entries(self, tenant: str | None, kind: str, names: Sequence[str] | None = None) -> list[Entry]:
        found: list[Entry] = await self._look(None, lambda state: state.entries(tenant, kind, names))
        return found

    async def known_entries(self, tenant: str, kind: str) -> list[Entry]:
        """Those that were there when the log was last looked at; nothing is asked of it."""
        return await self._log.state.entries(tenant, kind) if self._log.is_open else []

    async def insights(self, tenant: str, names: Sequence[str]) -> list[Insight]:
        found: list[Insight] = await self._look(None, lambda state: state.insights(tenant, names))
        return found

    async def audit(self, tenant: str, *, before: str | None = None, limit: int) -> AuditPage:
        page: AuditPage = await self._look(
            tenant, lambda state: state.audit(tenant, before=before, limit=limit)
        )
        return page

    async def events(self, tenant: str, *, after: str | None = None, limit: int) -> Events:
        await self._log.follow()
        if not self._log.state.name:  # a log with nothing in it has no cursor to give yet
            await self._tick(tenant)
        events: Events = await self._look(
            tenant, lambda state: state.events(tenant, after=after, limit=limit)
        )
        return events

    async def close(self) -> None:
        try:
            if self._compactor is not None:
                await self._compactor.close()
        finally:
            await self._log.close()

    async def _look(self, tenant: str | None, read: Callable[[State], Coroutine[Any, Any, Any]]) -> Any:
        """What the state says, once it knows all that was acknowledged anywhere, and all that time has done."""
        await self._log.follow()
        now = await self._caught_up(tenant)
        return self._log.state.look(read, now)

    async def _caught_up(self, tenant: str | None) -> datetime:
        """The time, once all that it has done to a tenant is written down; that of the newest entry if nothing can be written.

        Trying in vain may take half a minute; then nobody tries for as long again, and after that one for all who ask.
        """
        begun = _seconds()
        if begun < self._tries_again_at:
            return self._log.state.time
        try:
            now = await self._log.now()
            while self._log.state.is_due(tenant, now):
                self._tries_again_at = _seconds() + self._tried_seconds
                await self._tick(tenant or NOBODY)
                self._tried_seconds, self._tries_again_at = 0.0, float("-inf")
                # Asked again: a clock that was set back meanwhile would have us tick until it is there again.
                now = await self._log.now()
        except StoreUnavailable:  # the log could be read just now, so this can be told: how things stood then
            tried_seconds = _seconds() - begun
            self._tried_seconds = tried_seconds if tried_seconds >= LONG_SECONDS else 0.0
            self._tries_again_at = _seconds() + self._tried_seconds
            return self._log.state.time
        return now

    async def _tick(self, tenant: str) -> None:
        await self._log.commit(write("tick", tenant, ()))


def _seconds() -> float:
    return asyncio.get_running_loop().time()


async def _leave_open() -> None:
    """Other logs are in the same backing."""


def _planned(schedule: Schedule, now: datetime) -> Schedule:
    return replace(schedule, next_fire_at=None if schedule.paused else by_cron(schedule, now))
