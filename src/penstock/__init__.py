"""Penstock: a durable job queue. Work goes in, waits in a store, and is let out to workers under a fenced lease."""

from penstock.app import Flow, FlowHandle, JobHandle, JobType, Penstock
from penstock.connect import connect
from penstock.core.commands import Enqueued, Leased, Settled
from penstock.core.errors import (
    Conflict,
    EntryConflict,
    Forbidden,
    IdConflict,
    IdempotencyConflict,
    InvalidInput,
    JobFailed,
    JobNotFound,
    LeaseLost,
    NotAllowed,
    NotFound,
    NotLeasable,
    Overloaded,
    ParentFailed,
    ParentNotFound,
    PenstockError,
    RateLimited,
    ScheduleNotFound,
    StoreUnavailable,
    TokenNotFound,
    Unauthorized,
    UniqueConflict,
    UnknownStore,
)
from penstock.core.job import Job, NewJob, Status
from penstock.core.limits import Rate
from penstock.core.retry import Retry
from penstock.queue import Queue
from penstock.worker.context import Discard, GiveUp, JobContext, RetryAfter, Snooze

__version__ = "0.1.0.dev0"

__all__ = [
    "Conflict",
    "Discard",
    "Enqueued",
    "EntryConflict",
    "Flow",
    "FlowHandle",
    "Forbidden",
    "GiveUp",
    "IdConflict",
    "IdempotencyConflict",
    "InvalidInput",
    "Job",
    "JobContext",
    "JobFailed",
    "JobHandle",
    "JobNotFound",
    "JobType",
    "LeaseLost",
    "Leased",
    "NewJob",
    "NotAllowed",
    "NotFound",
    "NotLeasable",
    "Overloaded",
    "ParentFailed",
    "ParentNotFound",
    "Penstock",
    "PenstockError",
    "Queue",
    "Rate",
    "RateLimited",
    "Retry",
    "RetryAfter",
    "ScheduleNotFound",
    "Settled",
    "Snooze",
    "Status",
    "StoreUnavailable",
    "TokenNotFound",
    "Unauthorized",
    "UniqueConflict",
    "UnknownStore",
    "connect",
]
