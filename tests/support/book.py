"""A second opinion on a log of jobs: a plain book of every job, kept from the entries alone.

It shares no code with the state machine and has no indexes: each question is answered by going through all jobs. It
is told what the machine answered to each call, and says `Wrong` where the rules ask for another answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from penstock.core.commands import (
    Ack,
    Beat,
    CancelJob,
    Changed,
    ConfigureQueue,
    Discard,
    Duplicate,
    Enqueued,
    Fire,
    Fired,
    Heartbeat,
    Leased,
    LeaseJobs,
    Nack,
    PutSchedule,
    RedriveJob,
    Release,
    Settled,
    Snooze,
)
from penstock.core.errors import (
    JobNotFound,
    LeaseLost,
    NotAllowed,
    ParentFailed,
    ParentNotFound,
    PenstockError,
    UniqueConflict,
)
from penstock.core.job import JobId, NewJob, Status
from penstock.core.settings import QueueSettings
from penstock.stores.log.entry import LogEntry, Op
from support.book_jobs import FAILED, LONG_AGO, Jobs, Kept, Wrong

OUTCOMES: dict[Any, str] = {
    Ack: "succeeded",
    Nack: "failed",
    Release: "released",
    Snooze: "snoozed",
    Discard: "cancelled",
}


@dataclass
class Book(Jobs):
    """All jobs of one log. `apply` takes the next entry and what the machine answered to it."""

    requests: dict[tuple[str, str], tuple[JobId, datetime]] = field(default_factory=dict)
    schedules: dict[tuple[str, str], datetime | None] = field(default_factory=dict)
    """When each fires next."""
    made: dict[tuple[str, str], NewJob] = field(default_factory=dict)
    """What each makes."""
    fired: dict[JobId, tuple[str, str, datetime]] = field(default_factory=dict)
    """Jobs of fire times: tenant, schedule and time."""
    delivered: dict[tuple[str, str], datetime] = field(default_factory=dict)
    """The latest fire time of a schedule in another log that had its job here."""
    offices: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    writers: dict[bytes, int] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)
    held: list[tuple[JobId, str]] = field(default_factory=list)
    """Every lease there was."""
    late: int = 0
    """Settles and heartbeats that were refused because the lease was lost."""
    repeated: int = 0

    def apply(self, number: int, entry: LogEntry | None, answers: Sequence[Any]) -> None:
        if entry is None or entry.batch <= self.writers.get(entry.writer, -1):
            self.check(not answers, number, "a filler or an entry that was there before was answered")
            return
        self.writers[entry.writer] = entry.batch
        self.time = max(self.time, entry.ts)
        self.check(len(answers) == len(entry.ops), number, "not every call was answered")
        for op, answer in zip(entry.ops, answers, strict=True):
            self._apply(number, op, answer)

    def check(self, holds: bool, number: int, what: str) -> None:
        if not holds:
            raise Wrong(f"entry {number}: {what}")

    def _apply(self, number: int, op: Op, answer: Any) -> None:
        tenant = op.tenant
        if op.verb == "sweep":
            lost = sum(self._advance(one) for one in self.jobs)
            self.check((answer.lost, answer.pruned) == (lost, self._prune()), number, f"swept {answer}")
            return
        if op.verb == "lead":
            office, holder, seconds = op.given
            leader, until = self.offices.get(office, (holder, self.time))
            may = leader == holder or until <= self.time
            self.check(
                answer is may, number, f"{holder} was let lead: {answer}, and {leader} does until {until}"
            )
            if may:
                self.offices[office] = holder, self.time + timedelta(seconds=seconds)
            return
        self._advance(tenant)
        verb = getattr(self, f"_{op.verb}", None)
        if verb is not None:
            for command, told in zip(op.given, answer, strict=True):
                if op.verb == "lease":
                    self._lease(number, tenant, command, told)
                    continue
                expected = verb(tenant, command, told)
                self.check(
                    _alike(expected, told), number, f"{command} was answered {told!r}, not {expected!r}"
                )
                if isinstance(expected, LeaseLost):
                    self.late += 1

    # Producing.

    def _enqueue(self, tenant: str, asked: NewJob, told: Any) -> Enqueued | PenstockError:
        jobs = self.jobs[tenant]
        if asked.id in jobs:
            return Enqueued(asked.id, Duplicate.ID)
        key = (tenant, asked.idempotency_key or "")
        if asked.idempotency_key and (known := self.requests.get(key)) and known[1] > self.time:
            return Enqueued(known[0], Duplicate.IDEMPOTENCY_KEY)
        holder = self._holder(tenant, asked)
        if holder is None:
            for parent in asked.parents:
                if parent not in jobs:
                    return ParentNotFound(asked.id, parent)
        if asked.idempotency_key:
            self.requests[key] = (holder or asked.id, self.time + asked.idempotency_window)
        if holder is not None:
            return Enqueued(holder, Duplicate.UNIQUE_KEY)
        run_at = asked.run_at or self.time + (asked.delay or timedelta())
        job = jobs[asked.id] = Kept(asked, Status.QUEUED, run_at, run_at)
        if self._has_failed_parent(tenant, asked):
            job.status, job.ended_at, job.abandoned = Status.CANCELLED, self.time, True
        elif self._pending(tenant, asked):
            job.status = Status.WAITING
        return Enqueued(asked.id)

    # Working.

    def _lease(self, number: int, tenant: str, command: LeaseJobs, told: Sequence[Leased]) -> None:
        jobs, settings = self.jobs[tenant], self.settings(tenant, command.queue)
        here = [job for job in jobs.values() if job.asked.queue == command.queue]
        due = [job for job in here if job.status is Status.QUEUED and job.run_at <= self.time]
        room = command.limit
        if settings.max_concurrency is not None:
            room = min(room, settings.max_concurrency - sum(job.token is not None for job in here))
        if settings.paused:
            room = 0
        self.check(len(told) <= max(room, 0), number, f"{len(told)} leased, where there is room for {room}")
        if not any(job.asked.ordering_key for job in due):
            first = sorted(due, key=lambda job: (-job.asked.priority, job.run_at, job.asked.id))[
                : max(room, 0)
            ]
            expected, got = [job.asked.id for job in first], [leased.id for leased in told]
            self.check(expected == got, number, f"{got} were leased where it was the turn of {expected}")
        for leased in told:
            job = jobs.get(leased.id)
            self.check(any(job is one for one in due), number, f"{leased.id} was leased, and is not due")
            assert job is not None
            self.check(job.token is None, number, f"{leased.id} was leased while it is held")
            self.check(leased.token not in self.tokens, number, f"{leased.token} was given before")
            self.check(self._may_come(here, job), number, f"{leased.id} was leased out of order")
            self.tokens.add(leased.token)
            self.held.append((leased.id, leased.token))
            job.status, job.token, job.attempts = Status.RUNNING, leased.token, job.attempts + 1
            job.seconds = settings.lease_seconds if command.seconds is None else command.seconds
            job.until = self.time + timedelta(seconds=job.seconds)
            lease = leased.job.lease
            right = lease is not None and (lease.token, lease.expires_at) == (job.token, job.until)
            self.check(right, number, f"{leased.id} was leased with {lease}, not until {job.until}")

    def _may_come(self, here: Iterable[Kept], job: Kept) -> bool:
        """Behind an ordering key one runs at a time, in order; a held one keeps the others waiting."""
        if job.asked.ordering_key is None:
            return True
        same = [one for one in here if one.asked.ordering_key == job.asked.ordering_key]
        stand = [one for one in same if one.status in {Status.QUEUED, Status.RUNNING, Status.HELD}]
        busy = any(one.token is not None for one in stand)
        return not busy and job is min(stand, key=lambda one: (one.scheduled_at, one.asked.id))

    def _heartbeat(self, tenant: str, command: Heartbeat, told: Any) -> Beat | PenstockError:
        job = self.jobs[tenant].get(command.job_id)
        if job is None:
            return JobNotFound(command.job_id)
        if job.token != command.token:
            return LeaseLost(command.job_id)
        job.seconds = job.seconds if command.seconds is None else command.seconds
        job.until = self.time + timedelta(seconds=job.seconds)
        return Beat(job.until, job.cancel_requested)

    def _settle(self, tenant: str, command: Any, told: Any) -> Settled | PenstockError:
        job = self.jobs[tenant].get(command.job_id)
        if job is None:
            return JobNotFound(command.job_id)
        outcome = OUTCOMES[type(command)]
        if job.token != command.token:
            before = job.ended.get(command.token)
            if before is None or before[0] != outcome:
                return LeaseLost(command.job_id)
            self.repeated += 1
            return _settled(command.job_id, *before[1:])
        now = self.time
        match command:
            case Ack():
                self._end(tenant, job, outcome, Status.SUCCEEDED, now)
            case Nack():
                assert command.delay is not None
                self._fail(tenant, job, outcome, now, now + command.delay, refused=not command.retry)
            case Discard():
                self._end(tenant, job, outcome, Status.CANCELLED, now)
            case _:
                job.attempts -= 1
                status = Status.CANCELLED if job.cancel_requested else Status.QUEUED
                run_at = job.run_at if command.delay is None else now + command.delay
                self._end(tenant, job, outcome, status, now, run_at)
        return _settled(command.job_id, *job.ended[command.token][1:])

    # Operating.

    def _cancel(self, tenant: str, command: CancelJob, told: Any) -> Changed | PenstockError:
        job = self.jobs[tenant].get(command.job_id)
        if job is None:
            return JobNotFound(command.job_id)
        others: list[JobId] = []
        if job.status is Status.RUNNING:
            job.cancel_requested = True
        elif job.status in {Status.WAITING, Status.QUEUED, Status.HELD}:
            job.status, job.ended_at, job.abandoned = Status.CANCELLED, self.time, False
            others = self._finished(tenant, job)
        elif job.status is not Status.CANCELLED:
            return NotAllowed(command.job_id, "cancel", job.status)
        return Changed(command.job_id, job.status, job.cancel_requested, tuple(others))

    def _redrive(self, tenant: str, command: RedriveJob, told: Any) -> Changed | PenstockError:
        job = self.jobs[tenant].get(command.job_id)
        if job is None:
            return JobNotFound(command.job_id)
        if job.status not in FAILED | {Status.HELD}:
            return NotAllowed(command.job_id, "redrive", job.status)
        if holder := self._holder(tenant, job.asked):
            return UniqueConflict(command.job_id, job.asked.unique_key or "", holder)
        if self._has_failed_parent(tenant, job.asked):
            return ParentFailed(command.job_id, JobId(""), Status.DEAD)
        self._bring_back(tenant, job)
        status, back = job.status, [job]
        for parent in back:
            for child in self._children(tenant, parent.asked.id):
                abandoned = child.status is Status.CANCELLED and child.abandoned
                stays = self._holder(tenant, child.asked) or self._has_failed_parent(tenant, child.asked)
                if abandoned and not stays:
                    self._bring_back(tenant, child)
                    back.append(child)
        return Changed(command.job_id, status, others=tuple(one.asked.id for one in back[1:]))

    def _configure(self, tenant: str, command: ConfigureQueue, told: Any) -> QueueSettings:
        settings = self.settings(tenant, command.queue).changed(command.changes)
        self.queues[tenant, command.queue] = settings
        return settings

    # Schedules.

    def _put_schedules(self, tenant: str, command: PutSchedule, told: Any) -> Any:
        self.schedules[tenant, command.schedule.name] = told.next_fire_at
        self.made[tenant, command.schedule.name] = command.schedule.job
        return told

    def _fire(self, tenant: str, command: Fire, told: Any) -> Any:
        if not self._pass_on(tenant, command, told):
            return Fired(command.name)
        if not isinstance(told, Fired) or len(told.jobs) != len(command.at):
            return f"a job for each of {command.at}"
        made = self.made[tenant, command.name]
        jobs = [
            self._born_once(tenant, replace(made, id=job.id, run_at=at, schedule=command.name))
            for job, at in zip(told.jobs, command.at, strict=True)
        ]
        return Fired(command.name, tuple(jobs))

    def _pass_on(self, tenant: str, command: Fire, told: Any) -> bool:
        if self.schedules[tenant, command.name] != command.due_at:
            return False
        self.schedules[tenant, command.name] = command.next_fire_at
        return True

    def _deliver(self, tenant: str, asked: NewJob, told: Any) -> Enqueued | PenstockError:
        """Into another log than the schedule's: the same may be sent again at any time."""
        place = (tenant, asked.schedule or "")
        assert asked.run_at is not None
        if asked.run_at <= self.delivered.get(place, LONG_AGO):
            return Enqueued(asked.id, Duplicate.ID)
        self.delivered[place] = asked.run_at
        return self._born_once(tenant, asked)

    def _born_once(self, tenant: str, asked: NewJob) -> Enqueued:
        """Each fire time has one job, for ever."""
        if asked.id in self.fired:
            raise Wrong(f"the fire time {asked.run_at} of {asked.schedule} had its job before")
        assert asked.run_at is not None
        self.fired[asked.id] = tenant, asked.schedule or "", asked.run_at
        answer = self._enqueue(tenant, asked, None)
        assert isinstance(answer, Enqueued)
        return answer


def _settled(job_id: JobId, status: Status, run_at: datetime) -> Settled:
    return Settled(job_id, status, run_at if status is Status.QUEUED else None)


def _alike(expected: Any, told: Any) -> bool:
    if isinstance(expected, PenstockError):
        return type(expected) is type(told)
    return bool(expected == told)
