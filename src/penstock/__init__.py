"""Penstock: a durable job queue. Work goes in, waits in a store, and is let out to workers under a fenced lease."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.app import Flow, FlowHandle, JobHandle, JobType, Penstock
    from penstock.connecting import connect
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
        OperationNotFound,
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
    "OperationNotFound",
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

# Each is imported when it is first asked for: most programs need few of them, and `penstock --help` none.
_HOMES = {
    "penstock.app": "Flow FlowHandle JobHandle JobType Penstock",
    "penstock.connecting": "connect",
    "penstock.core.commands": "Enqueued Leased Settled",
    "penstock.core.errors": "Conflict EntryConflict Forbidden IdConflict IdempotencyConflict InvalidInput JobFailed JobNotFound LeaseLost NotAllowed NotFound NotLeasable OperationNotFound Overloaded ParentFailed ParentNotFound PenstockError RateLimited ScheduleNotFound StoreUnavailable TokenNotFound Unauthorized UniqueConflict UnknownStore",
    "penstock.core.job": "Job NewJob Status",
    "penstock.core.limits": "Rate",
    "penstock.core.retry": "Retry",
    "penstock.queue": "Queue",
    "penstock.worker.context": "Discard GiveUp JobContext RetryAfter Snooze",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
