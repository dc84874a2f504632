"""Jobs and queues as JSON has them."""

from __future__ import annotations

from typing import Any

from penstock.cli.output import Plain, plain
from penstock.core.codec import JsonText, decode
from penstock.core.commands import QueueView
from penstock.core.job import Attempt, Change, Job, NewJob, Record, Status
from penstock.core.schedule import Schedule


def job_plain(job: Job) -> Plain:
    """A job, flat, with its payload and result as JSON and without the token of its lease, which is its worker's alone."""
    asked = asked_plain(job.asked)
    told = {
        "id": job.id,
        "type": job.type,
        "queue": job.queue,
        "status": job.status,
        "cause": job.cause,
        "attempts": job.attempts,
        "max_attempts": job.asked.max_attempts,
        "priority": job.priority,
        "created_at": job.created_at,
        "run_at": job.run_at,
        "ended_at": job.ended_at,
        "error": job.error,
        "payload": asked["payload"],
        "result": value(job.result),
        "progress": value(job.progress),
        "cancel_requested": job.cancel_requested,
        "worker": None if job.lease is None else job.lease.worker,
        "lease_expires_at": None if job.lease is None else job.lease.expires_at,
        "expires_at": job.expires_at,
        "tenant": job.tenant,
    }
    asked_only = ("key", "ordering_key", "unique_key", "idempotency_key", "parents", "schedule", "headers")
    return plain_dict(told | {name: asked[name] for name in asked_only})


def asked_plain(asked: NewJob) -> Plain:
    """What was asked for, with payload and headers as JSON."""
    return plain_dict(asked) | {"payload": value(asked.payload), "headers": value(asked.headers)}


def record_plain(record: Record) -> Plain:
    match record:
        case Attempt():
            told = plain_dict(record) | {"result": value(record.result)}
            del told["token"], told["job_id"]
            return {"kind": "attempt", **told}
        case Change():
            return {"kind": "change", **plain_dict(record), "detail": value(record.detail)}


def queue_plain(view: QueueView) -> Plain:
    return {
        "name": view.name,
        "counts": {status.value: view.counts.get(status, 0) for status in Status},
        "oldest_run_at": plain(view.oldest_run_at),
        "settings": plain(view.settings),
    }


def schedule_plain(schedule: Schedule) -> Plain:
    told = plain_dict(schedule)
    told["job"] = {
        name: said
        for name, said in asked_plain(schedule.job).items()
        if name not in ("id", "schedule", "run_at", "parents", "expires_at", "idempotency_key")
        and said is not None
    }
    return told


def plain_dict(struct: object) -> Plain:
    told: Plain = plain(struct)
    return told


def value(text: JsonText | None) -> Any:
    return None if text is None else decode(text)
