"""The values: what was asked for, what it has become, and what happened on the way."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import NewType

from msgspec import Struct

from penstock.core.codec import EMPTY_OBJECT, JsonText
from penstock.core.retry import Retry

JobId = NewType("JobId", str)
"""A UUIDv7 made by the client, in its usual lower-case form: it sorts by age, as text and as a number."""

LeaseToken = NewType("LeaseToken", str)
"""The fence: known only to the holder of one lease of one job, and never used twice."""


class Status(StrEnum):
    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    HELD = "held"
    CANCELLED = "cancelled"


class Cause(StrEnum):
    """Why a job is dead, held or cancelled."""

    EXHAUSTED = "exhausted"
    """Its last allowed attempt failed or was lost."""
    REFUSED = "refused"
    """Its handler said that trying again is pointless."""
    CANCELLED = "cancelled"
    """Somebody cancelled it."""
    DISCARDED = "discarded"
    """Its handler found that there is nothing left to do."""
    EXPIRED = "expired"
    """It had not started by its expires_at."""
    PARENT_FAILED = "parent_failed"
    """A job it waited for ended dead or cancelled."""


class OnExhausted(StrEnum):
    DEAD = "dead"
    HOLD = "hold"


class OnParentFailure(StrEnum):
    CANCEL = "cancel"
    RUN = "run"


IDEMPOTENCY_WINDOW = timedelta(hours=24)


class NewJob(Struct, frozen=True, gc=False):
    """What a producer asks for. It never changes; None means that the queue's settings decide, now and later."""

    id: JobId
    type: str
    queue: str = "default"
    payload: JsonText = EMPTY_OBJECT
    priority: int = 0
    run_at: datetime | None = None
    """Not before this time; `delay` says the same on the store's clock."""
    delay: timedelta | None = None
    expires_at: datetime | None = None
    """Cancelled as expired unless its first lease began before this time; `expires_in` likewise."""
    expires_in: timedelta | None = None
    max_attempts: int | None = None
    retry: Retry | None = None
    on_exhausted: OnExhausted | None = None
    key: str | None = None
    """Whose job this is within its queue (a customer, a shop): limits per key and fair turns go by it."""
    ordering_key: str | None = None
    """Jobs of one queue that share it run one at a time, in order."""
    unique_key: str | None = None
    idempotency_key: str | None = None
    idempotency_window: timedelta = IDEMPOTENCY_WINDOW
    parents: tuple[JobId, ...] = ()
    on_parent_failure: OnParentFailure = OnParentFailure.CANCEL
    headers: JsonText | None = None
    """What travels with the job but is not its payload, such as trace context."""
    schedule: str | None = None
    """The schedule that fired it, if one did; the fire time is its run_at."""


class Lease(Struct, frozen=True, gc=False):
    """A temporary claim on a job."""

    token: LeaseToken
    worker: str
    taken_at: datetime
    expires_at: datetime
    seconds: float
    """What a heartbeat extends it by, from the time of the heartbeat."""


class Job(Struct, frozen=True, gc=False):
    """A job as it stands: what was asked for and what has become of it."""

    asked: NewJob
    tenant: str
    created_at: datetime
    scheduled_at: datetime
    """The run time first asked for. Retries move run_at, never this: it is a job's place behind its ordering key."""
    status: Status
    run_at: datetime
    expires_at: datetime | None = None
    attempts: int = 0
    """Attempts used up; released and snoozed leases are not among them."""
    leases: int = 0
    """All leases there ever were. It numbers attempts and only grows, so it can fence writes elsewhere."""
    lease: Lease | None = None
    cancel_requested: bool = False
    result: JsonText | None = None
    error: str | None = None
    cause: Cause | None = None
    ended_at: datetime | None = None
    """When it became succeeded, dead, held or cancelled."""
    progress: JsonText | None = None

    @property
    def id(self) -> JobId:
        return self.asked.id

    @property
    def type(self) -> str:
        return self.asked.type

    @property
    def queue(self) -> str:
        return self.asked.queue

    @property
    def payload(self) -> JsonText:
        return self.asked.payload

    @property
    def priority(self) -> int:
        return self.asked.priority


class Outcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    RELEASED = "released"
    SNOOZED = "snoozed"
    CANCELLED = "cancelled"


class Attempt(Struct, frozen=True, gc=False):
    """One lease of a job and how it ended."""

    job_id: JobId
    number: int
    worker: str
    token: LeaseToken
    started_at: datetime
    ended_at: datetime
    outcome: Outcome
    status: Status
    """What the job became by it."""
    run_at: datetime
    """When the job may run again, if it was queued again."""
    error: str | None = None
    result: JsonText | None = None
    logs: str | None = None
    """What its handler logged, as far as it fits."""


class Change(Struct, frozen=True, gc=False):
    """Something a person or a rule did to a job, a queue or a schedule, outside of any attempt."""

    at: datetime
    verb: str
    actor: str
    """Who: a person or program by the name it gave, or `rule:…`."""
    reason: str | None = None
    status: Status | None = None
    """What the job became by it; None for queues and schedules."""
    detail: JsonText | None = None
    """What was set, for queues and schedules."""


class Born(Struct, frozen=True, gc=False):
    """That a job came in, as it is told to those who follow: what is told must not keep its payload alive."""

    at: datetime
    queue: str
    type: str


Record = Attempt | Change
"""A line of the audit trail. A trail is in the order in which its records took effect."""
