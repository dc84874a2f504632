"""Between rows and values: how a job, its trail and its settings look in the tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import fields

from penstock.core.codec import JsonText
from penstock.core.job import (
    Attempt,
    Cause,
    Change,
    Job,
    JobId,
    Lease,
    LeaseToken,
    NewJob,
    Outcome,
    Record,
    Status,
)

Row = Mapping[str, Any]

_COLUMNS = ("id", "type", "queue", "payload", "priority", "key", "schedule", "run_at")
_DEFAULTS = {field.name: field.default for field in fields(NewJob) if field.name not in _COLUMNS}

TABLES = {
    Status.QUEUED: "ready",
    Status.RUNNING: "lease",
    Status.WAITING: "parked",
    Status.DEAD: "parked",
    Status.HELD: "parked",
    Status.SUCCEEDED: "done",
    Status.CANCELLED: "done",
}
"""Where a job is kept, by its state."""


_INVOLVED = ("expires_at", "expires_in", "ordering_key", "unique_key", "idempotency_key", "schedule")


def is_plain(asked: NewJob) -> bool:
    """Whether a job concerns no other job, nor a deadline: then it only needs a place in the line."""
    return not asked.parents and all(getattr(asked, name) is None for name in _INVOLVED)


def to_options(asked: NewJob) -> str | None:
    """Everything that was asked for beyond a job's columns; None when that is nothing."""
    options = {
        name: getattr(asked, name) for name, default in _DEFAULTS.items() if getattr(asked, name) != default
    }
    return msgspec.json.encode(options).decode() if options else None


def to_asked(row: Row, queue: str) -> NewJob:
    """What was asked for."""
    options = row["options"]
    if options is None:
        return NewJob(
            JobId(str(row["id"])), row["type"], queue, JsonText(row["payload"]), row["priority"], row["asked_run_at"],
            key=row["key"], schedule=row["schedule"],
        )  # fmt: skip
    given = msgspec.json.decode(options)
    given |= {
        "id": str(row["id"]),
        "queue": queue,
        **{name: row[name] for name in _COLUMNS if name not in ("id", "queue", "run_at")},
        "run_at": row["asked_run_at"],
    }
    return msgspec.convert(given, NewJob)


def to_job(row: Row) -> Job:
    """A job from a row of job_now."""
    lease = None
    if row["token"] is not None:
        lease = Lease(LeaseToken(row["token"]), row["worker"], row["taken_at"], row["until"], row["seconds"])
    return Job(
        to_asked(row, row["queue"]), row["tenant"], row["created_at"], row["scheduled_at"], Status(row["status"]), row["run_at"],
        row["start_by"], row["attempts"], row["leases"], lease, row["cancel_requested"], row["result"], row["error"],
        None if row["cause"] is None else Cause(row["cause"]), row["ended_at"], row["progress"],
    )  # fmt: skip


def leased_job(row: Row, tenant: str, queue: str, worker: str) -> Job:
    """A job from what the lease statement returns to one who knows the rest."""
    lease = Lease(LeaseToken(row["token"]), worker, row["now"], row["until"], row["seconds"])
    return Job(
        to_asked(row, queue), tenant, row["created_at"], row["scheduled_at"], Status.RUNNING, row["run_at"],
        row["start_by"], row["attempts"], row["leases"], lease, error=row["error"],
    )  # fmt: skip


def asked_row(job: Job) -> tuple[Any, ...]:
    """The columns of `job` that ask.sql takes: what was asked."""
    asked = job.asked
    return (
        asked.id, asked.queue, asked.type, asked.payload, asked.priority, asked.key, asked.schedule, asked.run_at,
        to_options(asked), job.scheduled_at,
    )  # fmt: skip


def state_row(job: Job, is_parent: bool) -> dict[str, Any]:
    """The row of whichever table keeps a job in this state; columns that a table lacks are ignored by it."""
    asked, lease = job.asked, job.lease
    row: dict[str, Any] = {
        "tenant": job.tenant, "id": asked.id, "queue": asked.queue, "status": job.status, "priority": asked.priority,
        "run_at": job.run_at, "key": asked.key, "ordering_key": asked.ordering_key, "scheduled_at": job.scheduled_at,
        "is_parent": is_parent, "is_unique": asked.unique_key is not None, "start_by": job.expires_at, "attempts": job.attempts, "leases": job.leases,
        "error": job.error, "progress": job.progress, "cause": job.cause, "ended_at": job.ended_at,
        # Kept back until `admit` has looked at its ordering key.
        "blocked": asked.ordering_key is not None, "cancel_requested": job.cancel_requested,
    }  # fmt: skip
    if lease is not None:
        row |= {
            "token": lease.token, "worker": lease.worker, "taken_at": lease.taken_at, "until": lease.expires_at,
            "seconds": lease.seconds,
        }  # fmt: skip
    return row


def record_row(tenant: str, kind: str, name: str, record: Record, seq: int) -> dict[str, Any]:
    if isinstance(record, Attempt):
        row = {field.name: getattr(record, field.name) for field in fields(record)}
        return row | {"tenant": tenant, "seq": seq}
    row = {field.name: getattr(record, field.name) for field in fields(record)}
    return row | {"tenant": tenant, "seq": seq, "kind": kind, "name": name, "detail": _raw(record.detail)}


def to_attempt(row: Row) -> Attempt:
    return Attempt(
        JobId(str(row["job_id"])), row["number"], row["worker"], LeaseToken(row["token"]), row["started_at"],
        row["ended_at"], Outcome(row["outcome"]), Status(row["status"]), row["run_at"], row["error"], row["result"],
        row["logs"],
    )  # fmt: skip


def to_change(row: Row) -> Change:
    status = None if row["status"] is None else Status(row["status"])
    return Change(row["at"], row["verb"], row["actor"], row["reason"], status, row["detail"])


def as_json(rows: list[dict[str, Any]]) -> str:
    """Rows as one JSON array, for json_populate_recordset."""
    return msgspec.json.encode(rows).decode()


def _raw(text: str | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text.encode())
