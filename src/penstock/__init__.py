"""Penstock: a durable job queue. Work goes in, waits in a store, and is let out to workers under a fenced lease."""

from penstock.connect import connect
from penstock.core.commands import Enqueued, Leased, Settled
from penstock.core.errors import (
    Conflict,
    IdConflict,
    IdempotencyConflict,
    InvalidInput,
    JobNotFound,
    LeaseLost,
    NotAllowed,
    NotFound,
    NotLeasable,
    ParentFailed,
    ParentNotFound,
    PenstockError,
    ScheduleNotFound,
    StoreUnavailable,
    UniqueConflict,
    UnknownStore,
)
from penstock.core.job import Job, NewJob, Status
from penstock.core.limits import Rate
from penstock.core.retry import Retry
from penstock.queue import Queue

__version__ = "0.1.0.dev0"

__all__ = [
    "Conflict",
    "Enqueued",
    "IdConflict",
    "IdempotencyConflict",
    "InvalidInput",
    "Job",
    "JobNotFound",
    "LeaseLost",
    "Leased",
    "NewJob",
    "NotAllowed",
    "NotFound",
    "NotLeasable",
    "ParentFailed",
    "ParentNotFound",
    "PenstockError",
    "Queue",
    "Rate",
    "Retry",
    "ScheduleNotFound",
    "Settled",
    "Status",
    "StoreUnavailable",
    "UniqueConflict",
    "UnknownStore",
    "connect",
]
