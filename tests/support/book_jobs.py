"""The jobs of a book: what time does to them, and what becomes of those that wait for others."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from penstock.core.job import JobId, NewJob, OnExhausted, OnParentFailure, Status
from penstock.core.settings import QueueSettings

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
ACTIVE = {Status.WAITING, Status.QUEUED, Status.RUNNING}
FAILED = {Status.DEAD, Status.CANCELLED}


class Wrong(AssertionError):
    """What must not happen happened; the message says it, the seed replays it."""


@dataclass(eq=False)
class Kept:
    """A job in the book."""

    asked: NewJob
    status: Status
    run_at: datetime
    scheduled_at: datetime
    attempts: int = 0
    token: str | None = None
    until: datetime = LONG_AGO
    seconds: float = 0
    cancel_requested: bool = False
    ended_at: datetime | None = None
    abandoned: bool = False
    """Cancelled because a parent failed."""
    ended: dict[str, tuple[str, Status, datetime]] = field(default_factory=dict)
    """By token: how that lease ended, and what the job became."""

    @property
    def gives_up(self) -> bool:
        return self.asked.on_parent_failure is OnParentFailure.CANCEL


@dataclass
class Jobs:
    """All jobs of a log, and the settings of their queues."""

    time: datetime = LONG_AGO
    jobs: dict[str, dict[JobId, Kept]] = field(default_factory=dict)
    gone: dict[str, dict[JobId, Kept]] = field(default_factory=dict)
    """Jobs that left the store when their retention was over."""
    queues: dict[tuple[str, str], QueueSettings] = field(default_factory=dict)
    lost: int = 0
    """Leases that ran out."""

    def settings(self, tenant: str, queue: str) -> QueueSettings:
        return self.queues.get((tenant, queue), QueueSettings())

    def _holder(self, tenant: str, asked: NewJob) -> JobId | None:
        if asked.unique_key is None:
            return None
        same = (asked.queue, asked.unique_key)
        found = [
            job.asked.id
            for job in self.jobs[tenant].values()
            if job.status in ACTIVE and (job.asked.queue, job.asked.unique_key) == same
        ]
        assert len(found) <= 1, f"{found} have one unique key"
        return found[0] if found else None

    # Time.

    def _advance(self, tenant: str) -> int:
        """Leases that have run out end as of then. Among those of one moment, by id."""
        lost = 0
        jobs = self.jobs.setdefault(tenant, {})
        while over := [job for job in jobs.values() if job.token is not None and job.until <= self.time]:
            job = min(over, key=lambda one: (one.until, one.asked.id))
            lost += 1
            self._fail(tenant, job, "lost", job.until, job.until)
        self.lost += lost
        return lost

    def _prune(self) -> int:
        count = 0
        for tenant, jobs in self.jobs.items():
            while over := [job for job in jobs.values() if self._is_over(tenant, job)]:
                for job in over:
                    self.gone.setdefault(tenant, {})[job.asked.id] = jobs.pop(job.asked.id)
                    count += 1
        return count

    def _is_over(self, tenant: str, job: Kept) -> bool:
        if job.status not in {Status.SUCCEEDED, Status.CANCELLED} or self._children(tenant, job.asked.id):
            return False
        assert job.ended_at is not None
        kept = self.settings(tenant, job.asked.queue).retention_seconds
        return job.ended_at <= self.time - timedelta(seconds=kept)

    # Flows.

    def _children(self, tenant: str, parent: JobId) -> list[Kept]:
        found = [job for job in self.jobs[tenant].values() if parent in job.asked.parents]
        return sorted(found, key=lambda job: job.asked.id)

    def _pending(self, tenant: str, asked: NewJob) -> bool:
        """Whether one of its parents is still to come."""
        gives_up = asked.on_parent_failure is OnParentFailure.CANCEL
        done = {Status.SUCCEEDED} if gives_up else {Status.SUCCEEDED} | FAILED
        return any(self.jobs[tenant][parent].status not in done for parent in asked.parents)

    def _has_failed_parent(self, tenant: str, asked: NewJob) -> bool:
        gives_up = asked.on_parent_failure is OnParentFailure.CANCEL
        return gives_up and any(self.jobs[tenant][parent].status in FAILED for parent in asked.parents)

    def _finished(self, tenant: str, job: Kept) -> list[JobId]:
        """What follows for those that wait for a job that has ended."""
        others: list[JobId] = []
        parents = [job] if job.status in FAILED | {Status.SUCCEEDED} else []
        for parent in parents:
            at = parent.ended_at
            assert at is not None
            for child in self._children(tenant, parent.asked.id):
                if child.status is not Status.WAITING:
                    continue
                if parent.status in FAILED and child.gives_up:
                    child.status, child.ended_at, child.abandoned = Status.CANCELLED, at, True
                    parents.append(child)
                elif not self._pending(tenant, child.asked):
                    child.status, child.run_at = Status.QUEUED, max(child.run_at, at)
                else:
                    continue
                others.append(child.asked.id)
        return others

    # Ending.

    def _fail(
        self, tenant: str, job: Kept, outcome: str, at: datetime, run_at: datetime, *, refused: bool = False
    ) -> None:
        settings = self.settings(tenant, job.asked.queue)
        most = settings.max_attempts if job.asked.max_attempts is None else job.asked.max_attempts
        last = settings.on_exhausted if job.asked.on_exhausted is None else job.asked.on_exhausted
        if job.cancel_requested:
            self._end(tenant, job, outcome, Status.CANCELLED, at)
        elif refused or job.attempts >= most:
            self._end(tenant, job, outcome, Status.HELD if last is OnExhausted.HOLD else Status.DEAD, at)
        else:
            self._end(tenant, job, outcome, Status.QUEUED, at, run_at)

    def _end(
        self,
        tenant: str,
        job: Kept,
        outcome: str,
        status: Status,
        at: datetime,
        run_at: datetime | None = None,
    ) -> None:
        assert job.token is not None
        if status is Status.QUEUED:
            assert run_at is not None
            job.run_at = run_at
        job.ended[job.token] = (outcome, status, job.run_at)
        job.status, job.token, job.cancel_requested = status, None, False
        job.ended_at = None if status is Status.QUEUED else at
        self._finished(tenant, job)

    def _bring_back(self, tenant: str, job: Kept) -> None:
        job.status = Status.WAITING if self._pending(tenant, job.asked) else Status.QUEUED
        job.attempts, job.run_at, job.ended_at, job.abandoned = 0, self.time, None, False
