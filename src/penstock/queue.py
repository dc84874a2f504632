"""The one door: check what people send, build commands, ask the store."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, Self, TypeVar

import uuid_utils
from msgspec.structs import replace

from penstock.core import bounds, codec
from penstock.core.codec import JsonText
from penstock.core.commands import (
    Ack,
    Beat,
    Bulk,
    CancelJob,
    Changed,
    ConfigureQueue,
    Discard,
    DropSchedule,
    Enqueued,
    Filter,
    Fire,
    Fired,
    Heartbeat,
    History,
    Leased,
    LeaseJobs,
    Nack,
    Page,
    PutSchedule,
    QueueView,
    RedriveJob,
    Release,
    Settle,
    Settled,
    Snooze,
    Swept,
)
from penstock.core.cron import plan
from penstock.core.errors import InvalidInput, PenstockError, ScheduleNotFound
from penstock.core.job import Job, JobId, LeaseToken, NewJob
from penstock.core.ports import Store, TransactionalStore
from penstock.core.requests import new_filter, new_job, new_schedule
from penstock.core.schedule import Schedule
from penstock.core.settings import QueueSettings, checked_settings

logger = logging.getLogger("penstock")

Answer = TypeVar("Answer")
Span = timedelta | float
"""A duration: a timedelta, or seconds."""


class Held(Protocol):
    """Whoever holds a lease: an answer of `lease`, or anything else that knows the job's id and the token."""

    @property
    def id(self) -> JobId: ...
    @property
    def token(self) -> LeaseToken: ...


def new_id() -> JobId:
    """A UUIDv7; ids made by one process grow."""
    return JobId(str(uuid_utils.uuid7()))


class Queue:
    """A tenant's jobs in a store. Every face of Penstock, from Python to HTTP, comes through here."""

    def __init__(
        self,
        store: Store,
        *,
        tenant: str = "default",
        actor: str = "app",
        ids: Callable[[], JobId] = new_id,
        entropy: Callable[[], float] = random.random,
    ) -> None:
        self.store = store
        self.tenant = bounds.name("tenant", tenant)
        self.actor = bounds.text("actor", actor, bounds.NAME_CHARS, 1)
        self._ids = ids
        self._entropy = entropy

    def for_tenant(self, tenant: str, *, actor: str | None = None) -> Queue:
        """The same store as another tenant sees it."""
        return Queue(
            self.store, tenant=tenant, actor=actor or self.actor, ids=self._ids, entropy=self._entropy
        )

    async def close(self) -> None:
        await self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ── Producing ─────────────────────────────────────────────────────────────────────────────────

    def new(self, type: str, payload: object = codec.MISSING, **options: Any) -> NewJob:
        """A job to be enqueued with others; its id is made here, so that it can be named as a parent."""
        if payload is not codec.MISSING:
            options["payload"] = payload
        return new_job(self._ids(), {"type": type, **options})

    async def enqueue(
        self, type: str, payload: object = codec.MISSING, *, conn: object = None, **options: Any
    ) -> Enqueued:
        """Put one job in. Options are the fields of NewJob: queue, priority, run_at, delay, unique_key, …

        With `conn`, a connection of your own to the same PostgreSQL, it is part of the transaction that is open there.
        """
        [answer] = await self.enqueue_many([self.new(type, payload, **options)], conn=conn)
        return _value([answer])

    async def enqueue_many(
        self, items: Iterable[NewJob | Mapping[str, Any]], *, conn: object = None
    ) -> list[Enqueued | PenstockError]:
        """Put many jobs in with one call to the store; each item gets its own answer or its own error."""
        if conn is None:
            return await _where_good(items, self._new_job, lambda jobs: self.store.enqueue(self.tenant, jobs))
        store = self._riding()
        return await _where_good(items, self._new_job, lambda jobs: store.enqueue_in(conn, self.tenant, jobs))

    def enqueue_now(
        self, items: Iterable[NewJob | Mapping[str, Any]], *, conn: object
    ) -> list[Enqueued | PenstockError]:
        """`enqueue_many` in the open transaction of a connection that is not async, from code that is not either."""
        store = self._riding()
        built, answers = _built(items, self._new_job)
        return _filled(answers, store.enqueue_in_now(conn, self.tenant, built) if built else [])

    def _riding(self) -> TransactionalStore:
        if not isinstance(self.store, TransactionalStore):
            raise InvalidInput(
                "conn", "be left out: only a PostgreSQL store can use your connection", self.store
            )
        return self.store

    def _new_job(self, item: NewJob | Mapping[str, Any]) -> NewJob:
        if isinstance(item, NewJob):
            return item
        if not isinstance(item, Mapping):
            raise InvalidInput("a job", "be an object with at least a type", item)
        return new_job(self._ids(), item)

    # ── Working ───────────────────────────────────────────────────────────────────────────────────

    async def lease(
        self, queue: str = "default", *, worker: str, limit: int = 1, lease_seconds: float | None = None
    ) -> list[Leased]:
        """Lease up to `limit` jobs of a queue. Settle each before its lease runs out, or send heartbeats."""
        command = LeaseJobs(
            bounds.name("queue", queue),
            bounds.text("worker", worker, bounds.NAME_CHARS, 1),
            bounds.integer("limit", limit, 1, bounds.MOST_LEASED),
            _lease_seconds(lease_seconds),
        )
        return _value(await self.store.lease(self.tenant, [command]))

    async def heartbeat(
        self, held: Held, *, lease_seconds: float | None = None, progress: object = None
    ) -> Beat:
        """Keep a lease for its length from now on. `cancel_requested` in the answer asks the handler to stop."""
        kept = None
        if progress is not None:
            kept = codec.encode(progress, field="progress", limit=bounds.PROGRESS_BYTES)
        command = Heartbeat(held.id, held.token, _lease_seconds(lease_seconds), kept)
        return _value(await self.store.heartbeat(self.tenant, [command]))

    async def ack(self, held: Held, result: object = None) -> Settled:
        """The job succeeded."""
        return await self._settle(self.acked(held, result))

    async def nack(
        self, held: Held, error: object, *, retry: bool = True, retry_in: Span | None = None
    ) -> Settled:
        """The attempt failed: try again by the retry policy, in `retry_in`, or (retry=False) never."""
        return await self._settle(self.nacked(held, error, retry=retry, retry_in=retry_in))

    async def release(self, held: Held, *, delay: Span | None = None) -> Settled:
        """Give the job back; the attempt does not count."""
        return await self._settle(self.released(held, delay=delay))

    async def snooze(self, held: Held, delay: Span) -> Settled:
        """Run the job again after a while; the attempt does not count."""
        return await self._settle(self.snoozed(held, delay))

    async def discard(self, held: Held, reason: str | None = None) -> Settled:
        """End the job as cancelled: it was asked to stop, or there is nothing left to do."""
        return await self._settle(self.discarded(held, reason))

    async def settle_many(self, settles: Sequence[Settle]) -> list[Settled | PenstockError]:
        """Settle many jobs with one call to the store; make the settles with acked, nacked, released, …"""
        return await self.store.settle(self.tenant, settles)

    def acked(self, held: Held, result: object = None, *, logs: str | None = None) -> Ack:
        if result is None and logs is None:
            return Ack(held.id, held.token)
        encoded = codec.encode(result, field="result", limit=bounds.RESULT_BYTES)
        return Ack(held.id, held.token, encoded, _logs(logs))

    def acked_text(self, held: Held, result: JsonText | None, *, logs: str | None = None) -> Ack:
        """`acked` with a result that is JSON text already, and within its limit."""
        return Ack(held.id, held.token, codec.NULL if result is None else result, _logs(logs))

    def nacked(
        self,
        held: Held,
        error: object,
        *,
        retry: bool = True,
        retry_in: Span | None = None,
        logs: str | None = None,
    ) -> Nack:
        return Nack(
            held.id,
            held.token,
            bounds.error_text(error),
            bounds.flag("retry", retry),
            None if retry_in is None else bounds.span("retry_in", retry_in),
            self._entropy(),
            _logs(logs),
        )

    def released(self, held: Held, *, delay: Span | None = None, logs: str | None = None) -> Release:
        wait = None if delay is None else bounds.span("delay", delay)
        return Release(held.id, held.token, wait, _logs(logs))

    def snoozed(self, held: Held, delay: Span, *, logs: str | None = None) -> Snooze:
        return Snooze(held.id, held.token, bounds.span("delay", delay), _logs(logs))

    def discarded(self, held: Held, reason: str | None = None, *, logs: str | None = None) -> Discard:
        said = None if reason is None else bounds.error_text(reason)
        return Discard(held.id, held.token, said, _logs(logs))

    async def _settle(self, settle: Settle) -> Settled:
        return _value(await self.store.settle(self.tenant, [settle]))

    async def next_at(self, queues: Sequence[str]) -> datetime | None:
        """When time alone may next let a job of these queues out; never later than the truth."""
        return await self.store.next_at(self.tenant, queues)

    async def next_in(self, queues: Sequence[str]) -> timedelta | None:
        """How long until `next_at`; None if time alone will let nothing out."""
        at = await self.next_at(queues)
        return None if at is None else at - await self.store.now()

    # ── Looking ───────────────────────────────────────────────────────────────────────────────────

    async def get(self, job_id: str) -> Job:
        return _value(await self.store.get(self.tenant, [_id(job_id)]))

    async def history(self, name: str, kind: str = "job") -> History:
        """The audit trail of a job, a queue, a schedule, or of what else is kept: a `token`, say."""
        return _value(await self.store.history(self.tenant, [_subject(name, kind)]))

    async def find(self, *, after: str | None = None, limit: int = 100, **conditions: Any) -> Page:
        """A page of the jobs that match, newest first; conditions are the fields of Filter."""
        bounds.integer("limit", limit, 1, bounds.MOST_LISTED)
        cursor = None if after is None else _id(after, "after")
        return await self.store.find(self.tenant, new_filter(conditions), after=cursor, limit=limit)

    async def find_all(self, **conditions: Any) -> AsyncIterator[Job]:
        """All jobs that match, newest first."""
        async for page in self._pages(new_filter(conditions)):
            for job in page.jobs:
                yield job

    async def _pages(self, filter: Filter) -> AsyncIterator[Page]:
        page = await self.store.find(self.tenant, filter, after=None, limit=bounds.MOST_LISTED)
        yield page
        while page.next is not None:
            page = await self.store.find(self.tenant, filter, after=page.next, limit=bounds.MOST_LISTED)
            yield page

    # ── Operating ─────────────────────────────────────────────────────────────────────────────────

    async def cancel(self, job_id: str, reason: str | None = None) -> Changed:
        """Cancel a job that does not run, at once; ask one that runs to stop."""
        command = CancelJob(_id(job_id), self.actor, _reason(reason))
        return _value(await self.store.cancel(self.tenant, [command]))

    async def redrive(self, job_id: str, reason: str | None = None, *, descendants: bool = True) -> Changed:
        """Bring a dead, held or cancelled job back, and those that were cancelled because it failed."""
        command = RedriveJob(_id(job_id), self.actor, _reason(reason), descendants)
        return _value(await self.store.redrive(self.tenant, [command]))

    async def cancel_matching(
        self,
        reason: str | None = None,
        *,
        dry_run: bool = False,
        progress: Callable[[int], object] | None = None,
        **conditions: Any,
    ) -> Bulk:
        """Cancel all jobs that match, page by page; `dry_run` only counts them, `progress` hears how many so far."""

        def cancel(jobs: Sequence[Job]) -> Any:
            commands = [CancelJob(job.id, self.actor, _reason(reason)) for job in jobs]
            return self.store.cancel(self.tenant, commands)

        return await self._bulk(cancel, new_filter(conditions), dry_run, progress)

    async def redrive_matching(
        self,
        reason: str | None = None,
        *,
        dry_run: bool = False,
        progress: Callable[[int], object] | None = None,
        **conditions: Any,
    ) -> Bulk:
        """Bring back all jobs that match, page by page; `dry_run` only counts them, `progress` hears how many so far."""

        def redrive(jobs: Sequence[Job]) -> Any:
            commands = [RedriveJob(job.id, self.actor, _reason(reason)) for job in jobs]
            return self.store.redrive(self.tenant, commands)

        return await self._bulk(redrive, new_filter(conditions), dry_run, progress)

    async def _bulk(
        self,
        act: Callable[[Sequence[Job]], Any],
        filter: Filter,
        dry_run: bool,
        progress: Callable[[int], object] | None,
    ) -> Bulk:
        matched = changed = 0
        refused: list[PenstockError] = []
        async for page in self._pages(filter):
            matched += len(page.jobs)
            if page.jobs and not dry_run:
                answers = await act(page.jobs)
                errors = [answer for answer in answers if isinstance(answer, PenstockError)]
                changed += len(answers) - len(errors)
                refused += errors[: 100 - len(refused)]
            if progress is not None:
                progress(matched)
        return Bulk(matched, changed, tuple(refused))

    async def configure(self, queue: str, *, reason: str | None = None, **changes: Any) -> QueueSettings:
        """Set some of a queue's settings; the fields of QueueSettings."""
        command = ConfigureQueue(
            bounds.name("queue", queue), checked_settings(changes), self.actor, _reason(reason)
        )
        return _value(await self.store.configure(self.tenant, [command]))

    async def pause(self, queue: str, reason: str | None = None) -> QueueSettings:
        """Lease no more jobs of a queue; running ones finish, new ones are taken in."""
        return await self.configure(queue, reason=reason, paused=True)

    async def resume(self, queue: str, reason: str | None = None) -> QueueSettings:
        return await self.configure(queue, reason=reason, paused=False)

    async def queues(self) -> list[QueueView]:
        """Every queue: its settings, and how many of its jobs are in each state."""
        return await self.store.queues(self.tenant)

    async def queue(self, name: str) -> QueueView:
        """One queue; one that nobody has used yet has the default settings and no jobs."""
        bounds.name("queue", name)
        return next(
            (view for view in await self.queues() if view.name == name), QueueView(name, QueueSettings())
        )

    # ── Schedules ─────────────────────────────────────────────────────────────────────────────────

    async def put_schedule(
        self, name: str, cron: str, job: Mapping[str, Any], *, reason: str | None = None, **options: Any
    ) -> Schedule:
        """Enqueue a job at each time of a cron expression; options are tz, missed and paused.

        Whoever edits a schedule that a program declares in its code keeps its marks, and so the program keeps the edit.
        """
        command = PutSchedule(new_schedule(name, cron, job, **options), self.actor, _reason(reason))
        return _value(await self.store.put_schedules(self.tenant, [command]))

    async def pause_schedule(self, name: str, reason: str | None = None) -> Schedule:
        return await self._set_paused(name, True, reason)

    async def resume_schedule(self, name: str, reason: str | None = None) -> Schedule:
        """Fire again from now on; times that passed meanwhile are not missed, they were off."""
        return await self._set_paused(name, False, reason)

    async def _set_paused(self, name: str, paused: bool, reason: str | None) -> Schedule:
        schedule = await self.schedule(name)
        command = PutSchedule(replace(schedule, paused=paused), self.actor, _reason(reason))
        return _value(await self.store.put_schedules(self.tenant, [command]))

    async def drop_schedule(self, name: str, reason: str | None = None) -> Schedule:
        command = DropSchedule(bounds.name("name", name), self.actor, _reason(reason))
        return _value(await self.store.drop_schedules(self.tenant, [command]))

    async def schedules(self) -> list[Schedule]:
        return await self.store.schedules(self.tenant)

    async def schedule(self, name: str) -> Schedule:
        found = next((schedule for schedule in await self.schedules() if schedule.name == name), None)
        if found is None:
            raise ScheduleNotFound(name)
        return found

    async def run_schedule(self, name: str) -> Enqueued:
        """Enqueue a schedule's job once, now; its fire times stay as they are."""
        schedule = await self.schedule(name)
        job = replace(schedule.job, id=self._ids(), schedule=schedule.name)
        return _value(await self.store.enqueue(self.tenant, [job]))

    async def fire_due(self) -> list[Fired]:
        """Enqueue the jobs of all schedules that are due. Any number of processes may call this at any time."""
        now = await self.store.now()
        fires = [fire for schedule in await self.schedules() if (fire := _planned(schedule, now)) is not None]
        answers = await self.store.fire(self.tenant, fires) if fires else []
        return [answer for answer in answers if isinstance(answer, Fired)]

    async def sweep(self, *, limit: int = 10_000) -> Swept:
        """Do what time asks for, for all tenants: lost leases, missed deadlines, retention."""
        return await self.store.sweep(limit=limit)


def _planned(schedule: Schedule, now: datetime) -> Fire | None:
    try:
        return plan(schedule, now)
    except Exception:
        # It was checked when it was put; a time zone may have left the IANA database since. Its neighbours fire.
        logger.exception("schedule %r cannot fire", schedule.name)
        return None


def _value(answers: Sequence[Answer | PenstockError]) -> Answer:
    """The answer to a batch of one."""
    [answer] = answers
    if isinstance(answer, PenstockError):
        raise answer
    return answer


Item = TypeVar("Item")
Command = TypeVar("Command")


async def _where_good(
    items: Iterable[Item],
    build: Callable[[Item], Command],
    ask: Callable[[list[Command]], Any],
) -> list[Any]:
    """Ask the store about the items that can be built, and put the others' errors in their places."""
    built, answers = _built(items, build)
    return _filled(answers, await ask(built) if built else [])


def _built(items: Iterable[Item], build: Callable[[Item], Command]) -> tuple[list[Command], list[Any]]:
    """What could be built of the items, and the answers so far: None where there is none yet."""
    built: list[Command] = []
    answers: list[Any] = []
    for item in items:
        try:
            built.append(build(item))
            answers.append(None)
        except PenstockError as error:
            answers.append(error)
    return built, answers


def _filled(answers: list[Any], given: Iterable[Any]) -> list[Any]:
    given = iter(given)
    return [next(given) if answer is None else answer for answer in answers]


def _id(value: object, field: str = "job id") -> JobId:
    return JobId(bounds.job_id(field, value))


def _subject(name: object, kind: object) -> tuple[str, str]:
    """What an audit trail is about. What is kept besides jobs need not have names that people type."""
    match bounds.name("kind", kind):
        case "job":
            return "job", _id(name)
        case "queue" | "schedule" as kind:
            return kind, bounds.name(kind, name)
        case other:
            return other, bounds.key(other, name)


def _logs(value: str | None) -> str | None:
    return None if value is None else bounds.error_text(value, bounds.LOG_CHARS)


def _reason(value: str | None) -> str | None:
    return None if value is None else bounds.text("reason", value)


def _lease_seconds(value: float | None) -> float | None:
    return None if value is None else bounds.number("lease_seconds", value, 1, bounds.LONGEST_LEASE_SECONDS)
