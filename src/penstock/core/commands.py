"""What can be asked of a store, one frozen value per request, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from penstock.core.codec import NULL, JsonText
from penstock.core.errors import PenstockError
from penstock.core.job import Attempt, Cause, Change, Job, JobId, LeaseToken, Record, Status
from penstock.core.schedule import Schedule
from penstock.core.settings import QueueSettings

# ── Producing ─────────────────────────────────────────────────────────────────────────────────────


class Duplicate(StrEnum):
    """What made an enqueue answer with a job that was there before."""

    ID = "id"
    IDEMPOTENCY_KEY = "idempotency_key"
    UNIQUE_KEY = "unique_key"


class Enqueued(Struct, frozen=True, gc=False):
    """The answer to an enqueue: the new job, or the one that stands for it."""

    id: JobId
    duplicate: Duplicate | None = None


# ── Working ───────────────────────────────────────────────────────────────────────────────────────


class LeaseJobs(Struct, frozen=True, gc=False):
    """Lease the next jobs of a queue."""

    queue: str
    worker: str
    limit: int = 1
    seconds: float | None = None
    """None takes the queue's lease_seconds."""


class TakeJob(Struct, frozen=True, gc=False):
    """Lease one named job, if it may be leased now: somebody's choice, applied under its guard."""

    job_id: JobId
    token: LeaseToken
    worker: str
    seconds: float | None = None


class Parent(Struct, frozen=True, gc=False):
    """What a job may know of a job it waited for."""

    id: JobId
    status: Status
    result: JsonText | None


class Leased(Struct, frozen=True, gc=False):
    """A job in its worker's hands."""

    job: Job
    token: LeaseToken
    parents: tuple[Parent, ...] = ()

    @property
    def id(self) -> JobId:
        return self.job.asked.id


class Heartbeat(Struct, frozen=True, gc=False):
    """Extend a lease from now on."""

    job_id: JobId
    token: LeaseToken
    seconds: float | None = None
    progress: JsonText | None = None


class Beat(Struct, frozen=True, gc=False):
    """The answer to a heartbeat: how long the lease holds now, and whether the handler should stop."""

    expires_at: datetime
    cancel_requested: bool


class Ack(Struct, frozen=True, gc=False):
    """The attempt succeeded."""

    job_id: JobId
    token: LeaseToken
    result: JsonText = NULL
    logs: str | None = None


class Nack(Struct, frozen=True, gc=False):
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
    logs: str | None = None


class Release(Struct, frozen=True, gc=False):
    """Give the job back unharmed: the attempt does not count. Without a delay it keeps its place."""

    job_id: JobId
    token: LeaseToken
    delay: timedelta | None = None
    logs: str | None = None


class Snooze(Struct, frozen=True, gc=False):
    """Run the job again later: the attempt does not count."""

    job_id: JobId
    token: LeaseToken
    delay: timedelta
    logs: str | None = None


class Discard(Struct, frozen=True, gc=False):
    """End the job as cancelled: its handler was told to stop, or found nothing left to do."""

    job_id: JobId
    token: LeaseToken
    reason: str | None = None
    logs: str | None = None


Settle = Ack | Nack | Release | Snooze | Discard


class Settled(Struct, frozen=True, gc=False):
    """The answer to a settle: what the job became, and when it runs again if it was queued again."""

    job_id: JobId
    status: Status
    run_at: datetime | None


# ── Operating ─────────────────────────────────────────────────────────────────────────────────────


class CancelJob(Struct, frozen=True, gc=False):
    job_id: JobId
    actor: str
    reason: str | None = None


class RedriveJob(Struct, frozen=True, gc=False):
    """Bring a dead, held or cancelled job back."""

    job_id: JobId
    actor: str
    reason: str | None = None
    descendants: bool = True
    """Also those that were cancelled because this one failed."""


class Changed(Struct, frozen=True, gc=False):
    """The answer to a cancel or a redrive: what the job is now, and whose fate changed with it."""

    job_id: JobId
    status: Status
    cancel_requested: bool = False
    others: tuple[JobId, ...] = ()


class Bulk(Struct, frozen=True, gc=False):
    """What became of a change to all jobs that match a filter."""

    matched: int
    changed: int
    refused: tuple[PenstockError, ...] = ()
    """The first hundred refusals."""


class ConfigureQueue(Struct, frozen=True, gc=False):
    """Set some of a queue's settings; pause and resume are this too."""

    queue: str
    changes: Mapping[str, Any]
    actor: str
    reason: str | None = None


class PutSchedule(Struct, frozen=True, gc=False):
    """Make a schedule or replace the one of that name. Its next fire time is counted from now."""

    schedule: Schedule
    actor: str
    reason: str | None = None


class DropSchedule(Struct, frozen=True, gc=False):
    name: str
    actor: str
    reason: str | None = None


class Fire(Struct, frozen=True, gc=False):
    """Enqueue a schedule's due jobs and move it on, if it still stands where the caller saw it."""

    name: str
    due_at: datetime
    """The guard: the schedule's next_fire_at when this was worked out."""
    at: tuple[datetime, ...]
    next_fire_at: datetime | None


class Fired(Struct, frozen=True, gc=False):
    """The answer to a fire: the jobs it made; none when another scheduler was first."""

    name: str
    jobs: tuple[Enqueued, ...] = ()


class Due(Struct, frozen=True, gc=False):
    """How schedules stand, on the store's clock."""

    now: datetime
    tenants: tuple[str, ...]
    """Those who have schedules that are due, by name."""
    next_fire_at: datetime | None
    """When the next of the others is due; None if there is none."""


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────


class Filter(Struct, frozen=True, gc=False):
    """Which jobs: those that match every condition given. An empty one matches all."""

    statuses: tuple[Status, ...] = ()
    queue: str | None = None
    type: str | None = None
    key: str | None = None
    schedule: str | None = None
    cause: Cause | None = None
    created_from: datetime | None = None
    created_before: datetime | None = None
    parents: tuple[JobId, ...] = ()
    """Children of any of these."""
    in_flow: bool = False
    """Only jobs that have parents."""

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
            and (not self.parents or any(parent in self.parents for parent in asked.parents))
            and (not self.in_flow or bool(asked.parents))
        )


class Page(Struct, frozen=True, gc=False):
    """Some jobs, newest id first, and where to go on; a short page may still have a `next`."""

    jobs: tuple[Job, ...]
    next: JobId | None = None


class History(Struct, frozen=True, gc=False):
    """The audit trail of one job, queue or schedule, in the order in which things took effect."""

    records: tuple[Record, ...]

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return tuple(record for record in self.records if isinstance(record, Attempt))

    @property
    def changes(self) -> tuple[Change, ...]:
        return tuple(record for record in self.records if isinstance(record, Change))


class QueueView(Struct, frozen=True, gc=False):
    """A queue: its settings, how many jobs are in each state, and how long the oldest queued one has been due."""

    name: str
    settings: QueueSettings
    counts: Mapping[Status, int] = field(default_factory=dict)
    oldest_run_at: datetime | None = None
    """The earliest run_at among its queued jobs; in the future if none is due."""


class Swept(Struct, frozen=True, gc=False):
    """What a sweep did: jobs whose lease or deadline had run out, and ended jobs that left the store."""

    lost: int = 0
    expired: int = 0
    pruned: int = 0
