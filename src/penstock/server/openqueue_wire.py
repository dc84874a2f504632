"""OpenQueue's bodies and answers, field for field, and our jobs in its words.

How the two read each other, where they are not the same:

- A job that comes in this way has the type `openqueue` unless the body names one (`type`, which OpenQueue does not
  know); a Penstock worker that handles this type runs it. Jobs of every type can be leased this way.
- `max_retries` n are n + 1 attempts. They wait 1, 2, 4, 8, … s, up to 300, as with OpenQueue.
- A job that failed and will be tried again is `pending`, with its `retry_count` and `error_text`. Nothing is ever
  `failed`: OpenQueue itself has such jobs `dead`. One that is held for a person is `dead` too.
- What OpenQueue does not check is refused where it cannot be stored: names, priorities, very long texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from penstock.core import bounds
from penstock.core.commands import History, QueueView
from penstock.core.job import Cause, Job, Outcome, Status
from penstock.core.retry import Retry
from penstock.server.wire import MOST_IN_BATCH, NO_NUL, Moment, Name, raw

JOB_TYPE = "openqueue"
BACK_OFF = Retry.exponential(base=1, cap=300, jitter=0)
MOST_LISTED = 200
MOST_OFFSET = 10_000
"""Pages further down are read through all that lie above them; `/v1/jobs` has cursors for that."""

LeaseSeconds = Annotated[int, Meta(ge=1, le=3_600)]
LeaseToken = Annotated[str, Meta(pattern=NO_NUL, max_length=bounds.KEY_CHARS)]


class OpenQueueStatus(StrEnum):
    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEAD = "dead"


THEIRS: Mapping[Status, OpenQueueStatus] = {
    Status.WAITING: OpenQueueStatus.PENDING,
    Status.QUEUED: OpenQueueStatus.PENDING,
    Status.RUNNING: OpenQueueStatus.PROCESSING,
    Status.SUCCEEDED: OpenQueueStatus.COMPLETED,
    Status.DEAD: OpenQueueStatus.DEAD,
    Status.HELD: OpenQueueStatus.DEAD,
    Status.CANCELLED: OpenQueueStatus.CANCELLED,
}


def ours(status: OpenQueueStatus) -> tuple[Status, ...]:
    return tuple(mine for mine, theirs in THEIRS.items() if theirs is status)


# ── What they send ────────────────────────────────────────────────────────────────────────────────
# Fields that are not known are left unread, as OpenQueue does.


class OpenQueueJobRequest(Struct, frozen=True):
    payload: dict[str, Any]
    queue_name: Name = "default"
    priority: Annotated[int, Meta(ge=bounds.PRIORITIES[0], le=bounds.PRIORITIES[1])] = 0
    """The highest first."""
    max_retries: Annotated[int, Meta(ge=0, le=bounds.MOST_ATTEMPTS - 1)] = 3
    run_at: datetime | None = None
    """Without an offset it is in UTC."""
    type: Name = JOB_TYPE
    """Ours: the job type, for workers of Penstock."""


class OpenQueueBatchRequest(Struct, frozen=True):
    jobs: Annotated[list[OpenQueueJobRequest], Meta(max_length=MOST_IN_BATCH)]
    """All of them go in, or none."""


class OpenQueueLeaseRequest(Struct, frozen=True):
    worker_id: Annotated[str, Meta(pattern=NO_NUL, min_length=1, max_length=bounds.NAME_CHARS)]
    lease_seconds: LeaseSeconds = 30


class OpenQueueAckRequest(Struct, frozen=True):
    lease_token: LeaseToken
    result: dict[str, Any] | None = None


class OpenQueueNackRequest(Struct, frozen=True):
    lease_token: LeaseToken
    error: str
    retry: bool = True


class OpenQueueHeartbeatRequest(Struct, frozen=True):
    lease_token: LeaseToken
    lease_seconds: LeaseSeconds = 30


class OpenQueueJobsQuery(Struct, frozen=True):
    queue_name: Name | UnsetType = UNSET
    status: OpenQueueStatus | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MOST_LISTED)] = 50
    offset: Annotated[int, Meta(ge=0, le=MOST_OFFSET)] = 0
    """At most 10,000; further down go with the cursors of `/v1/jobs`."""


# ── What they get ─────────────────────────────────────────────────────────────────────────────────


class OpenQueueEnqueued(Struct, frozen=True):
    job_id: str
    status: str = "queued"


class OpenQueueBatchEnqueued(Struct, frozen=True):
    """The ids, in the order the jobs were sent."""

    job_ids: list[str]
    count: int


class OpenQueueState(Struct, frozen=True):
    job_id: str
    status: OpenQueueStatus


class OpenQueueDone(Struct, frozen=True):
    """Done; `status` says what, in OpenQueue's words."""

    job_id: str
    status: str


class OpenQueueJob(Struct, frozen=True, kw_only=True):
    """A job in OpenQueue's words."""

    id: str
    queue_name: str
    status: OpenQueueStatus
    priority: int
    payload: Raw
    result: Raw | None
    error_text: str | None
    retry_count: int
    max_retries: int | None
    """None: what the queue is set to."""
    created_at: Moment
    updated_at: Moment
    started_at: Moment | None
    """When it was first leased."""
    finished_at: Moment | None
    run_at: Moment
    lease_expires_at: Moment | None
    locked_by: str | None
    dead_at: Moment | None
    dead_reason: str | None
    lease_lost_count: int


class OpenQueueJobs(Struct, frozen=True):
    items: list[OpenQueueJob]
    total: int
    limit: int
    offset: int


class OpenQueueLease(Struct, frozen=True):
    job: OpenQueueJob
    lease_token: str
    lease_expires_at: Moment


class OpenQueueStats(Struct, frozen=True):
    queue_name: str
    pending: int
    processing: int
    completed: int
    failed: int
    cancelled: int
    dead: int
    total: int
    oldest_pending_created_at: Moment | None
    """Since when the longest waiting job could have run: alarms want that, and retries and delays do not disturb it."""


_NO_HISTORY = History(())
_WITHOUT_FAILURE = frozenset({Status.RUNNING, Status.SUCCEEDED, Status.DEAD, Status.HELD})
"""Where the last attempt is none that another followed: OpenQueue counts retries, not attempts."""
_DEAD_REASONS = {Cause.EXHAUSTED: "max_retries_exhausted", Cause.REFUSED: "retry_disabled"}


def has_a_past(job: Job) -> bool:
    """Whether there were leases before the one it may have now: then its history tells when it first ran."""
    return job.leases > (0 if job.lease is None else 1)


def openqueue_job(job: Job, history: History = _NO_HISTORY) -> OpenQueueJob:
    asked, lease, attempts = job.asked, job.lease, history.attempts
    started_at = attempts[0].started_at if attempts else None if lease is None else lease.taken_at
    moments = [job.created_at, started_at, job.ended_at, None if lease is None else lease.taken_at]
    moments += [attempt.ended_at for attempt in attempts]
    moments += [change.at for change in history.changes]
    dead = THEIRS[job.status] is OpenQueueStatus.DEAD
    return OpenQueueJob(
        id=asked.id,
        queue_name=asked.queue,
        status=THEIRS[job.status],
        priority=asked.priority,
        payload=Raw(asked.payload),
        result=raw(job.result),
        error_text=job.error,
        retry_count=max(0, job.attempts - (job.status in _WITHOUT_FAILURE)),
        max_retries=None if asked.max_attempts is None else asked.max_attempts - 1,
        created_at=job.created_at,
        updated_at=max(moment for moment in moments if moment is not None),
        started_at=started_at,
        finished_at=job.ended_at,
        run_at=job.run_at,
        lease_expires_at=None if lease is None else lease.expires_at,
        locked_by=None if lease is None else lease.worker,
        dead_at=job.ended_at if dead else None,
        dead_reason=_DEAD_REASONS.get(job.cause, job.cause) if dead and job.cause is not None else None,
        lease_lost_count=sum(attempt.outcome is Outcome.LOST for attempt in attempts),
    )


def openqueue_stats(view: QueueView, now: datetime) -> OpenQueueStats:
    counts = dict.fromkeys(OpenQueueStatus, 0)
    for status, count in view.counts.items():
        counts[THEIRS[status]] += count
    oldest = view.oldest_run_at
    return OpenQueueStats(
        queue_name=view.name,
        **{status.value: count for status, count in counts.items()},
        total=sum(counts.values()),
        oldest_pending_created_at=None if oldest is None else min(oldest, now),
    )


def total(views: Iterable[QueueView], queue: str | None, statuses: Iterable[Status]) -> int:
    """How many jobs match, by the store's own count of them."""
    return sum(
        view.counts.get(status, 0) for view in views if queue in (None, view.name) for status in statuses
    )
