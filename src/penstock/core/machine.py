"""The rules. One machine holds the jobs of one tenant and decides everything that happens to them.

It does no I/O and has no clock: time, ids, tokens and randomness come with each call, so that the same
calls give the same answers anywhere. `advance` brings it up to a time; the verbs take it from there.
A verb that raises has changed nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import TypeVar

from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.commands import (
    Beat,
    CancelJob,
    Changed,
    ConfigureQueue,
    DropSchedule,
    Duplicate,
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
    TakeJob,
)
from penstock.core.errors import (
    IdConflict,
    LeaseLost,
    NotAllowed,
    NotLeasable,
    ParentFailed,
    ParentNotFound,
    PenstockError,
    UniqueConflict,
)
from penstock.core.groups import Turns
from penstock.core.job import (
    Attempt,
    Cause,
    Change,
    Job,
    JobId,
    Lease,
    LeaseToken,
    NewJob,
    Status,
)
from penstock.core.ledger import BY_EXPIRY, Ledger
from penstock.core.lifecycle import MOVES, Verb
from penstock.core.ordering import Lane
from penstock.core.schedule import Schedule, fire_job, told
from penstock.core.settings import QueueSettings, described
from penstock.core.timetable import Plan, Timetable, by_cron
from penstock.core.wakeups import CANCELS

Command = TypeVar("Command")
Answer = TypeVar("Answer")


def each(
    verb: Callable[[Command, datetime], Answer], commands: Iterable[Command], now: datetime
) -> list[Answer | PenstockError]:
    """Carry out many commands; one that is refused answers with its error and leaves its neighbours alone."""
    answers: list[Answer | PenstockError] = []
    for command in commands:
        try:
            answers.append(verb(command, now))
        except PenstockError as error:
            answers.append(error)
    return answers


class Machine:
    """The jobs, queues and schedules of one tenant. Every verb costs O(log n) in the number of jobs."""

    ledger_class: type[Ledger] = Ledger
    lane_class: type[Lane] = Lane
    """What decides the order; tests put broken ones here to see that they are found out."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.ledger = self.ledger_class(tenant, self.lane_class)
        self._timetable = Timetable()

    # ── Time ──────────────────────────────────────────────────────────────────────────────────────

    def advance(self, now: datetime) -> Swept:
        """Let everything happen that time alone makes happen, each at its own moment and in that order.

        What is noticed late is recorded as of when it was due, so it does not matter who notices it when.
        """
        lost = expired = 0
        while True:
            lost_at, expired_at = self.ledger.leases.first(), self.ledger.deadlines.first()
            if lost_at is not None and lost_at <= now and (expired_at is None or lost_at <= expired_at):
                self._lose(self.ledger.jobs[self.ledger.leases.pop()[1]], now)
                lost += 1
            elif expired_at is not None and expired_at <= now:
                self._expire(self.ledger.jobs[self.ledger.deadlines.pop()[1]], now)
                expired += 1
            else:
                return Swept(lost, expired)

    def is_due(self, now: datetime) -> bool:
        """Whether `advance` would find anything to do."""
        moments = (self.ledger.leases.first(), self.ledger.deadlines.first())
        return any(at is not None and at <= now for at in moments)

    def prune(self, now: datetime, limit: int, exported_until: datetime | None = None) -> int:
        """Let go of jobs whose retention has passed; of none that ended later than the lake has seen."""
        pruned, before = 0, -1
        while pruned > before:  # again, as long as children that left made their parents free to go
            before = pruned
            # By name: whoever reads a log of these calls must come to the same end.
            for queue in sorted(self.ledger.lanes):
                pruned += self._prune(queue, now, limit - pruned, exported_until)
        self.ledger.catalogue.tidy()
        self.ledger.keys.forget(now)
        return pruned

    def may_prune(self, now: datetime, exported_until: datetime | None = None) -> bool:
        """Whether `prune` might find anything to do."""
        if self.ledger.keys.may_forget(now):
            return True
        for queue, ended in self.ledger.ended.items():
            if (at := ended.first()) is not None and at <= self._kept_until(queue, now, exported_until):
                return True
        return False

    def _kept_until(self, queue: str, now: datetime, exported_until: datetime | None) -> datetime:
        until = now - timedelta(seconds=self.ledger.lanes[queue].settings.retention_seconds)
        return until if exported_until is None else min(until, exported_until)

    def _prune(self, queue: str, now: datetime, limit: int, exported_until: datetime | None) -> int:
        pruned, ended = 0, self.ledger.ended[queue]
        until = self._kept_until(queue, now, exported_until)
        while pruned < limit and (at := ended.first()) is not None and at <= until:
            job = self.ledger.jobs[ended.pop()[1]]
            # A parent stays as long as its children do: a redriven child wants its results.
            if not self.ledger.flow.has_children(job.id):
                self.ledger.remove(job)
                pruned += 1
        return pruned

    # ── Producing ─────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, asked: NewJob, now: datetime) -> Enqueued:
        known = self.ledger.jobs.get(asked.id)
        if known is not None:
            if known.asked != asked:
                raise IdConflict(asked.id)
            return Enqueued(asked.id, Duplicate.ID)
        if (answered := self.ledger.keys.answered(asked, now)) is not None:
            return Enqueued(answered, Duplicate.IDEMPOTENCY_KEY)
        if (holder := self.ledger.keys.holder(asked)) is not None:
            self.ledger.keys.remember(asked, holder, now)
            return Enqueued(holder, Duplicate.UNIQUE_KEY)
        for parent_id in asked.parents:
            if parent_id not in self.ledger.jobs:
                raise ParentNotFound(asked.id, parent_id)
        self.ledger.keys.remember(asked, asked.id, now)
        self.ledger.add(asked, now)
        return Enqueued(asked.id)

    # ── Working ───────────────────────────────────────────────────────────────────────────────────

    def lease(self, command: LeaseJobs, tokens: Iterator[LeaseToken], now: datetime) -> list[Leased]:
        """Choose the next jobs of a queue and lease them."""
        leased: list[Leased] = []
        lane = self.ledger.lanes.get(command.queue)
        if lane is None:
            return leased
        while len(leased) < command.limit and (job := lane.next(now)) is not None:
            leased.append(self._take(job, lane, next(tokens), command.worker, command.seconds, now))
        # When all are taken: a parent that was brought back may be among them, whichever came first.
        return [self.with_parents(one) if one.job.asked.parents else one for one in leased]

    def choose(self, queue: str, limit: int, now: datetime) -> list[JobId]:
        """The jobs that `lease` would take now, in that order; nothing is changed."""
        lane = self.ledger.lanes.get(queue)
        if lane is None:
            return []
        tried: list[tuple[Job, Turns]] = []
        while len(tried) < limit and (job := lane.next(now)) is not None:
            tried.append((job, lane.turns(job)))
            self.ledger.jobs[job.id] = replace(job, status=Status.RUNNING)
            lane.took(job, now)
        for job, before in reversed(tried):
            self.ledger.jobs[job.id] = job
            lane.untake(job, before, now)
        return [job.id for job, _ in tried]

    def take(self, command: TakeJob, now: datetime) -> Leased:
        """Lease one named job if it may be leased now, whoever chose it and by whatever order."""
        job = self.ledger.job(command.job_id)
        lane = self.ledger.lane(job.queue)
        if (reason := lane.why_not(job, now)) is not None:
            raise NotLeasable(job.id, reason)
        return self.with_parents(self._take(job, lane, command.token, command.worker, command.seconds, now))

    def heartbeat(self, command: Heartbeat, now: datetime) -> Beat:
        job = self.ledger.job(command.job_id)
        changes = {} if command.progress is None else {"progress": command.progress}
        beaten = lifecycle.heartbeat(job, command.token, command.seconds, now, **changes)
        self.ledger.keep(job, beaten, now)
        assert beaten.lease is not None
        self.ledger.leases.set(beaten.lease.expires_at, job.id)
        return Beat(beaten.lease.expires_at, job.cancel_requested)

    def settle(self, command: Settle, now: datetime) -> Settled:
        job = self.ledger.job(command.job_id)
        if job.lease is None or job.lease.token != command.token:
            return self._settled_before(command)
        ended, attempt = lifecycle.settle(job, command, self.ledger.lane(job.queue).settings, now)
        self.ledger.note(job.id, attempt)
        self.ledger.move(job, ended, now)
        return _settled(attempt)

    # ── Operating ─────────────────────────────────────────────────────────────────────────────────

    def cancel(self, command: CancelJob, now: datetime) -> Changed:
        job = self.ledger.job(command.job_id)
        cancelled = lifecycle.cancel(job, now)
        if cancelled == job:  # it was cancelled, or asked to stop, before
            return Changed(job.id, job.status, job.cancel_requested)
        self.ledger.note(job.id, Change(now, Verb.CANCEL, command.actor, command.reason, cancelled.status))
        if cancelled.cancel_requested:
            self.ledger.stirred.add(CANCELS)
        others = self.ledger.move(job, cancelled, now)
        return Changed(job.id, cancelled.status, cancelled.cancel_requested, others)

    def redrive(self, command: RedriveJob, now: datetime) -> Changed:
        job = self.ledger.job(command.job_id)
        if (Verb.REDRIVE, job.status) not in MOVES:
            raise NotAllowed(job.id, Verb.REDRIVE, job.status)
        if (obstacle := self._cannot_return(job)) is not None:
            raise obstacle
        status = self._bring_back(job, command.actor, command.reason, now)
        others = self._bring_back_descendants(job, command.actor, now) if command.descendants else ()
        return Changed(job.id, status, others=others)

    def configure(self, command: ConfigureQueue, now: datetime) -> QueueSettings:
        lane = self.ledger.lanes.get(command.queue)
        settings = (QueueSettings() if lane is None else lane.settings).changed(command.changes)
        lane = self.ledger.lane(command.queue)
        if settings != lane.settings:
            detail = described(command.changes)
            self.ledger.note(
                command.queue, Change(now, "configure", command.actor, command.reason, detail=detail), "queue"
            )
            lane.configure(settings, now)
            self.ledger.stirred.add(command.queue)
        return settings

    # ── Schedules ─────────────────────────────────────────────────────────────────────────────────

    def put_schedule(self, command: PutSchedule, now: datetime, plan: Plan = by_cron) -> Schedule:
        schedule, changed = self._timetable.put(command.schedule, now, plan)
        if changed:
            change = Change(now, "put", command.actor, command.reason, detail=told(schedule))
            self.ledger.note(schedule.name, change, "schedule")
        return schedule

    def restore_schedules(self, schedules: Iterable[Schedule]) -> None:
        """Take schedules as they stand, from wherever they were kept."""
        self._timetable.restore(schedules)

    def drop_schedule(self, command: DropSchedule, now: datetime) -> Schedule:
        schedule = self._timetable.drop(command.name)
        self.ledger.note(schedule.name, Change(now, "drop", command.actor, command.reason), "schedule")
        return schedule

    def fire(self, command: Fire, now: datetime) -> Fired:
        schedule = self._timetable.pass_on(command)
        if schedule is None:
            return Fired(command.name)
        return Fired(command.name, tuple(self._fire(schedule, at, now) for at in command.at))

    def pass_on(self, command: Fire, now: datetime) -> bool:
        """Move a schedule on whose jobs are made elsewhere; False if it no longer stands where the caller saw it."""
        return self._timetable.pass_on(command) is not None

    # ── Reading ───────────────────────────────────────────────────────────────────────────────────

    def get(self, job_id: JobId, now: datetime) -> Job:
        return self.ledger.job(job_id)

    def history(self, subject: tuple[str, str], now: datetime) -> History:
        """The trail of ("job", id), ("queue", name), ("schedule", name) or an entry of whatever kind; empty if it has none."""
        kind, name = subject
        if kind == "job":
            self.ledger.job(JobId(name))
        return History(tuple(self.ledger.trails.get(subject, ())))

    def find(self, filter: Filter, after: JobId | None, limit: int) -> Page:
        if filter.parents:  # few, and known by their parents: no need to go through all there is
            children = {child.id: child for one in filter.parents for child in self.ledger.flow.children(one)}
            below = sorted((one for one in children if after is None or one < after), reverse=True)
            found = [children[one] for one in below if filter.matches(children[one])]
            return Page(tuple(found[:limit]), found[limit - 1].id if len(found) > limit else None)
        return self.ledger.catalogue.page(filter, after, limit)

    def queues(self) -> list[QueueView]:
        lanes = (self.ledger.lanes[name] for name in sorted(self.ledger.lanes))
        return [
            QueueView(lane.name, lane.settings, dict(lane.counts), lane.oldest_run_at()) for lane in lanes
        ]

    def schedules(self) -> list[Schedule]:
        return self._timetable.all()

    def due_schedules(self, now: datetime) -> tuple[bool, datetime | None]:
        return self._timetable.due(now)

    def next_at(self, queues: Iterable[str], now: datetime) -> datetime | None:
        """When time alone may next let a job of these queues out: never later than the truth; None if never."""
        lanes = [self.ledger.lanes[name] for name in queues if name in self.ledger.lanes]
        moments = [
            self.ledger.leases.first(),
            self.ledger.deadlines.first(),
            *(lane.next_at(now) for lane in lanes),
        ]
        return min((moment for moment in moments if moment is not None), default=None)

    def foresees(self, queue: str, now: datetime) -> bool | None:
        """Whether `lease` would find a job of this queue; None if only trying will tell. Nothing is changed."""
        lane = self.ledger.lanes.get(queue)
        return False if lane is None else lane.foresees(now)

    def foresees_at(self, queues: Iterable[str], now: datetime) -> tuple[bool, datetime | None]:
        """What `next_at` would say, and whether that is known without asking it. Nothing is changed."""
        lanes = [self.ledger.lanes[name] for name in queues if name in self.ledger.lanes]
        moments = [self.ledger.leases.first(), self.ledger.deadlines.first()]
        for lane in lanes:
            is_known, at = lane.foresees_at(now)
            if not is_known:
                return False, None
            moments.append(at)
        return True, min((moment for moment in moments if moment is not None), default=None)

    # ── Inside ────────────────────────────────────────────────────────────────────────────────────

    def _take(
        self, job: Job, lane: Lane, token: LeaseToken, worker: str, seconds: float | None, now: datetime
    ) -> Leased:
        seconds = lane.settings.lease_seconds if seconds is None else seconds
        lease = Lease(token, worker, now, now + timedelta(seconds=seconds), seconds)
        taken = lifecycle.take(job, lease)
        self.ledger.keep(job, taken, now)
        self.ledger.leases.set(lease.expires_at, job.asked.id)
        return Leased(taken, token)

    def with_parents(self, leased: Leased) -> Leased:
        """With what its parents have come to by now."""
        return Leased(leased.job, leased.token, self.ledger.flow.parents(leased.job.asked))

    def _lose(self, job: Job, now: datetime) -> None:
        lost, attempt = lifecycle.lose(job, self.ledger.lane(job.queue).settings)
        self.ledger.note(job.id, attempt)
        self.ledger.move(job, lost, now)

    def _expire(self, job: Job, now: datetime) -> None:
        expired = lifecycle.expire(job)
        assert expired.ended_at is not None
        reason = "it had not started by its expires_at"
        self.ledger.note(job.id, Change(expired.ended_at, Verb.EXPIRE, BY_EXPIRY, reason, expired.status))
        self.ledger.move(job, expired, now)

    def _settled_before(self, command: Settle) -> Settled:
        """The answer this settle had when it took effect; a settle that never did has lost its lease."""
        outcome = lifecycle.OUTCOMES[lifecycle.VERBS[type(command)]]
        for record in reversed(self.ledger.trails.get(("job", command.job_id), ())):
            if isinstance(record, Attempt) and record.token == command.token and record.outcome is outcome:
                return _settled(record)
        raise LeaseLost(command.job_id)

    def _cannot_return(self, job: Job) -> PenstockError | None:
        """What keeps a job that ended from coming back."""
        if (holder := self.ledger.keys.holder(job.asked)) is not None:
            return UniqueConflict(job.id, job.asked.unique_key or "", holder)
        if (parent := self.ledger.flow.failed_parent(job.asked)) is not None:
            return ParentFailed(job.id, parent.id, parent.status)
        return None

    def _bring_back(self, job: Job, actor: str, reason: str | None, now: datetime) -> Status:
        status = Status.WAITING if self.ledger.flow.count_pending(job.asked) else Status.QUEUED
        self.ledger.note(job.id, Change(now, Verb.REDRIVE, actor, reason, status))
        self.ledger.keep(job, lifecycle.redrive(job, status, now), now)
        return status

    def _bring_back_descendants(self, job: Job, actor: str, now: datetime) -> tuple[JobId, ...]:
        """Bring back the jobs that were cancelled because this one failed, as far as nothing else stops them."""
        back: list[JobId] = []
        parents = deque([job.id])
        while parents:
            parent_id = parents.popleft()
            for child in self.ledger.flow.children(parent_id):
                if child.cause is Cause.PARENT_FAILED and self._cannot_return(child) is None:
                    self._bring_back(child, actor, f"parent {parent_id} was brought back", now)
                    back.append(child.id)
                    parents.append(child.id)
        return tuple(back)

    def _fire(self, schedule: Schedule, at: datetime, now: datetime) -> Enqueued:
        asked = fire_job(self.tenant, schedule, at)
        # This fire time may have had its job from an earlier form of the schedule; then that is the one.
        return Enqueued(asked.id, Duplicate.ID) if asked.id in self.ledger.jobs else self.enqueue(asked, now)


def _settled(attempt: Attempt) -> Settled:
    return Settled(
        attempt.job_id, attempt.status, attempt.run_at if attempt.status is Status.QUEUED else None
    )
