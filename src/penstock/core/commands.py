"""What can be asked of a store, one frozen value per request, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from penstock.core.codec import NULL, JsonText
from penstock.core.job import Attempt, Cause, Change, Job, JobId, LeaseToken, Record, Status
from penstock.core.schedule import Schedule
from penstock.core.settings import QueueSettings

# ── Producing ─────────────────────────────────────────────────────────────────────────────────────


class Duplicate(StrEnum):
    """What made an enqueue answer with a job that was there before."""

    ID = "id"
    IDEMPOTENCY_KEY = "idempotency_key"
    UNIQUE_KEY = "unique_key"


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The answer to an enqueue: the new job, or the one that stands for it."""

    id: JobId
    duplicate: Duplicate | None = None


# ── Working ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class LeaseJobs:
    """Lease the next jobs of a queue."""

    queue: str
    worker: str
    limit: int = 1
    seconds: float | None = None
    """None takes the queue's lease_seconds."""


@dataclass(frozen=True, slots=True)
class TakeJob:
    """Lease one named job, if it may be leased now: somebody's choice, applied under its guard."""

    job_id: JobId
    token: LeaseToken
    worker: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Parent:
    """What a job may know of a job it waited for."""

    id: JobId
    status: Status
    result: JsonText | None


@dataclass(frozen=True, slots=True)
class Leased:
    """A job in its worker's hands."""

    job: Job
    token: LeaseToken
    parents: tuple[Parent, ...] = ()

    @property
    def id(self) -> JobId:
        return self.job.asked.id


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Extend a lease from now on."""

    job_id: JobId
    token: LeaseToken
    seconds: float | None = None
    progress: JsonText | None = None


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a heartbeat: how long the lease holds now, and whether the handler should stop."""

    expires_at: datetime
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class Ack:
    """The attempt succeeded."""

    job_id: JobId
    token: LeaseToken
    result: JsonText = NULL


@dataclass(frozen=True, slots=True)
class Nack:
    """The attempt failed."""

    job_id: JobId
    token: LeaseToken
    error: str
    retry: bool = True
    """False: trying again is pointless, whatever attempts are left."""
    delay: timedelta | None = None
    """The handler's own wait before the next attempt, instead of the retry policy's."""
    entropy: float = 0.0
    """A random number in [0, 1) that places the wait within the jitter."""


@dataclass(frozen=True, slots=True)
class Release:
    """Give the job back unharmed: the attempt does not count. Without a delay it keeps its place."""

    job_id: JobId
    token: LeaseToken
    delay: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Snooze:
    """Run the job again later: the attempt does not count."""

    job_id: JobId
    token: LeaseToken
    delay: timedelta


@dataclass(frozen=True, slots=True)
class Discard:
    """End the job as cancelled: its handler was told to stop, or found nothing left to do."""

    job_id: JobId
    token: LeaseToken
    reason: str | None = None


Settle = Ack | Nack | Release | Snooze | Discard


@dataclass(frozen=True, slots=True)
class Settled:
    """The answer to a settle: what the job became, and when it runs again if it was queued again."""

    job_id: JobId
    status: Status
    run_at: datetime | None


# ── Operating ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class CancelJob:
    job_id: JobId
    actor: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RedriveJob:
    """Bring a dead, held or cancelled job back."""

    job_id: JobId
    actor: str
    reason: str | None = None
    descendants: bool = True
    """Also those that were cancelled because this one failed."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The answer to a cancel or a redrive: what the job is now, and whose fate changed with it."""

    job_id: JobId
    status: Status
    cancel_requested: bool = False
    others: tuple[JobId, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigureQueue:
    """Set some of a queue's settings; pause and resume are this too."""

    queue: str
    changes: Mapping[str, Any]
    actor: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PutSchedule:
    """Make a schedule or replace the one of that name. Its next fire time is counted from now."""

    schedule: Schedule
    actor: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class DropSchedule:
    name: str
    actor: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Fire:
    """Enqueue a schedule's due jobs and move it on, if it still stands where the caller saw it."""

    name: str
    due_at: datetime
    """The guard: the schedule's next_fire_at when this was worked out."""
    at: tuple[datetime, ...]
    next_fire_at: datetime | None


@dataclass(frozen=True, slots=True)
class Fired:
    """The answer to a fire: the jobs it made; none when another scheduler was first."""

    name: str
    jobs: tuple[Enqueued, ...] = ()


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs: those that match every condition given. An empty one matches all."""

    statuses: tuple[Status, ...] = ()
    queue: str | None = None
    type: str | None = None
    key: str | None = None
    schedule: str | None = None
    cause: Cause | None = None
    created_from: datetime | None = None
    created_before: datetime | None = None

    def matches(self, job: Job) -> bool:
        asked = job.asked
        return (
            (not self.statuses or job.status in self.statuses)
            and (self.queue is None or asked.queue == self.queue)
            and (self.type is None or asked.type == self.type)
            and (self.key is None or asked.key == self.key)
            and (self.schedule is None or asked.schedule == self.schedule)
            and (self.cause is None or job.cause is self.cause)
            and (self.created_from is None or job.created_at >= self.created_from)
            and (self.created_before is None or job.created_at < self.created_before)
        )


@dataclass(frozen=True, slots=True)
class Page:
    """Some jobs, newest id first, and where to go on; a short page may still have a `next`."""

    jobs: tuple[Job, ...]
    next: JobId | None = None


@dataclass(frozen=True, slots=True)
class History:
    """The audit trail of one job, queue or schedule, in the order in which things took effect."""

    records: tuple[Record, ...]

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return tuple(record for record in self.records if isinstance(record, Attempt))

    @property
    def changes(self) -> tuple[Change, ...]:
        return tuple(record for record in self.records if isinstance(record, Change))


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue: its settings, how many jobs are in each state, and how long the oldest queued one has been due."""

    name: str
    settings: QueueSettings
    counts: Mapping[Status, int] = field(default_factory=dict)
    oldest_run_at: datetime | None = None
    """The earliest run_at among its queued jobs; in the future if none is due."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did: jobs whose lease or deadline had run out, and ended jobs that left the store."""

    lost: int = 0
    expired: int = 0
    pruned: int = 0
