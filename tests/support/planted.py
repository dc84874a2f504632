"""Machines that are wrong on purpose, each in one way: what the differential test must be able to see."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from heapq import heappush

from msgspec.structs import replace

from penstock.core.commands import Beat, Enqueued, Fire, Fired, Heartbeat, Leased, LeaseJobs, Settle, Settled
from penstock.core.errors import IdempotencyConflict, LeaseLost
from penstock.core.groups import Group, Place
from penstock.core.job import Job, LeaseToken, NewJob
from penstock.core.machine import Machine
from penstock.core.ordering import Lane


class TakesAnyToken(Machine):
    """Settles whatever the token: a stale worker ends the job another one runs."""

    def settle(self, command: Settle, now: datetime) -> Settled:
        lease = self.ledger.job(command.job_id).lease
        return super().settle(command if lease is None else replace(command, token=lease.token), now)


class RevivesOnHeartbeat(Machine):
    """Heartbeats whatever the token."""

    def heartbeat(self, command: Heartbeat, now: datetime) -> Beat:
        lease = self.ledger.job(command.job_id).lease
        return super().heartbeat(command if lease is None else replace(command, token=lease.token), now)


class ForgetsLostAttempts(Machine):
    """Gives the attempt back when a lease runs out: a job that kills its worker runs for ever."""

    def _lose(self, job: Job, now: datetime) -> None:
        super()._lose(replace(job, attempts=job.attempts - 1), now)


class _UpsideDown(Lane):
    def _ready(self, job: Job, now: datetime) -> None:
        group = self._group(job.asked.key)
        entry = Place(job.asked.priority, job.run_at, job.id)
        heappush(group.heap, entry)
        if group.heap[0] is entry:
            self._list(group, now)


class TakesTheLeastUrgentFirst(Machine):
    """Turns priorities round."""

    lane_class = _UpsideDown


class _Generous(Lane):
    def _barred(self, now: datetime) -> str | None:
        self.running -= 1
        try:
            return super()._barred(now)
        finally:
            self.running += 1


class LetsOneTooManyRun(Machine):
    """Counts to the limit and one further."""

    lane_class = _Generous


class _Keyless(Lane):
    def _group_barred(self, group: Group, now: datetime) -> str | None:
        return None


class IgnoresKeyLimits(Machine):
    """Holds limits per queue and forgets those per key."""

    lane_class = _Keyless


class AnswersRepeatsWithLeaseLost(Machine):
    """Has no memory of what it settled: a retry after a lost reply looks like a lost lease."""

    def _settled_before(self, command: Settle) -> Settled:
        raise LeaseLost(command.job_id)


class ReplaysAnyBody(Machine):
    """Answers an idempotency key whatever came with it."""

    def enqueue(self, asked: NewJob, now: datetime) -> Enqueued:
        try:
            return super().enqueue(asked, now)
        except IdempotencyConflict:
            return Enqueued(asked.id)


class LetsChildrenGoEarly(Machine):
    """Lets a job go when the first of its parents is done."""

    def __init__(self, tenant: str) -> None:
        super().__init__(tenant)
        self.ledger.flow.parent_finished = lambda child: True  # type: ignore[method-assign]


class FiresTwice(Machine):
    """Fires a schedule for every scheduler that asks."""

    def fire(self, command: Fire, now: datetime) -> Fired:
        schedule = self._timetable.get(command.name)
        fired = super().fire(command, now)
        self._timetable._schedules[command.name] = schedule
        return fired


class DropsTheRequestOnCancel(Machine):
    """Tells no worker that its job was asked to stop."""

    def heartbeat(self, command: Heartbeat, now: datetime) -> Beat:
        return replace(super().heartbeat(command, now), cancel_requested=False)


class LeasesTheFuture(Machine):
    """Leases as if it were a second later: jobs start before they are due."""

    def lease(self, command: LeaseJobs, tokens: Iterator[LeaseToken], now: datetime) -> list[Leased]:
        return super().lease(command, tokens, now + timedelta(seconds=1))


PLANTED = [
    TakesAnyToken,
    RevivesOnHeartbeat,
    ForgetsLostAttempts,
    TakesTheLeastUrgentFirst,
    LetsOneTooManyRun,
    IgnoresKeyLimits,
    AnswersRepeatsWithLeaseLost,
    ReplaysAnyBody,
    LetsChildrenGoEarly,
    FiresTwice,
    DropsTheRequestOnCancel,
    LeasesTheFuture,
]
