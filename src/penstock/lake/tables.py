"""What the lake's tables look like: column by column, as Spark's DDL names the types. Plain data, for every engine to read.

`day` is a table's partition column where it is a string (yyyy-MM-dd, UTC), and comes last; in gold it is a date like any.
"""

from __future__ import annotations

from collections.abc import Mapping

Table = Mapping[str, str]

HISTOGRAM = "map<int,bigint>"
"""Bucket → count; see `penstock.lake.histogram` for which bucket a time falls into."""

# ── Bronze: history as it came ──────────────────────────────────────────────────────────────────────────────────────────

EVENTS: Table = {
    "tenant": "string",
    "xid": "bigint",
    "seq": "bigint",
    "kind": "string",
    "occurred_at": "timestamp",
    "job_id": "string",
    "queue": "string",
    "type": "string",
    "priority": "int",
    "key": "string",
    "schedule": "string",
    "created_at": "timestamp",
    "scheduled_at": "timestamp",
    "run_at": "timestamp",
    "options": "string",
    "attempt": "int",
    "ready_at": "timestamp",
    "started_at": "timestamp",
    "ended_at": "timestamp",
    "worker": "string",
    "outcome": "string",
    "status": "string",
    "error": "string",
    "name": "string",
    "verb": "string",
    "actor": "string",
    "reason": "string",
    "detail": "string",
    "day": "string",
}
"""One row per fact, known by (tenant, kind, xid, seq, job_id) wherever it is read again. `day` is that of occurred_at.

`xid` is the transaction that wrote it; of a log the number of the entry that brought it about, and of several logs in one
place 64 times that and the number of the log, so that no two of them say the same.
"""

# ── Silver: what the facts add up to ────────────────────────────────────────────────────────────────────────────────────

ATTEMPTS: Table = {
    "tenant": "string",
    "job_id": "string",
    "attempt": "int",
    "queue": "string",
    "type": "string",
    "key": "string",
    "schedule": "string",
    "priority": "int",
    "worker": "string",
    "created_at": "timestamp",
    "scheduled_at": "timestamp",
    "ready_at": "timestamp",
    "started_at": "timestamp",
    "ended_at": "timestamp",
    "wait_ms": "bigint",
    "run_ms": "bigint",
    "outcome": "string",
    "status": "string",
    "error": "string",
    "day": "string",
}
"""One row per (job, attempt) that ended. `day` is that of ended_at."""

JOBS: Table = {
    "tenant": "string",
    "job_id": "string",
    "queue": "string",
    "type": "string",
    "key": "string",
    "schedule": "string",
    "priority": "int",
    "created_at": "timestamp",
    "scheduled_at": "timestamp",
    "first_started_at": "timestamp",
    "ended_at": "timestamp",
    "status": "string",
    "attempts": "int",
    "failures": "int",
    "lost": "int",
    "wait_ms": "bigint",
    "run_ms": "bigint",
    "last_error": "string",
    "parents": "array<string>",
    "day": "string",
}
"""One row per job: its whole life, as far as it is known. `day` is that of created_at."""

# ── Gold: answers ───────────────────────────────────────────────────────────────────────────────────────────────────────

_FIGURES: Table = {
    "arrivals": "bigint",
    "succeeded": "bigint",
    "failed": "bigint",
    "lost": "bigint",
    "dead": "bigint",
    "held": "bigint",
    "cancelled": "bigint",
    "ended": "bigint",
    "retried": "bigint",
    "busy_ms": "bigint",
    "wait_hist": HISTOGRAM,
    "run_hist": HISTOGRAM,
}

HOURLY: Table = {"tenant": "string", "queue": "string", "type": "string", "hour": "timestamp", **_FIGURES}
DAILY: Table = {"tenant": "string", "queue": "string", "type": "string", "day": "date", **_FIGURES}

FAILURES: Table = {
    "tenant": "string",
    "fingerprint": "string",
    "error_type": "string",
    "top_frame": "string",
    "text": "string",
    "first_seen": "timestamp",
    "last_seen": "timestamp",
    "count": "bigint",
    "count_24h": "bigint",
    "trend": "double",
    "is_new": "boolean",
    "queues": "array<string>",
    "types": "array<string>",
    "sample_jobs": "array<string>",
}
"""One row per (tenant, fingerprint of an error that was seen in the last 90 days); all that is said is of these."""

CAPACITY: Table = {
    "tenant": "string",
    "queue": "string",
    "hour_of_week": "int",
    "arrivals_per_hour": "double",
    "service_ms": "double",
    "offered_load": "double",
}
"""One row per (tenant, queue, hour of the week); hour 0 begins on Monday at 00:00 UTC.

What a job takes, and so the load, is null for a queue of whose jobs none has ended yet.
"""

CAPACITY_PLAN: Table = {
    "tenant": "string",
    "queue": "string",
    "concurrency": "int",
    "lease_seconds": "double",
    "heartbeat_seconds": "double",
    "peak_hour_of_week": "int",
    "expected_wait_ms": "double",
    "utilisation": "double",
    "why": "string",
}
"""One row per (tenant, queue of whose jobs any has ended): what to set it to."""

SLO: Table = {
    "tenant": "string",
    "queue": "string",
    "target_wait_ms": "bigint",
    "objective": "double",
    "window": "string",
    "good": "bigint",
    "total": "bigint",
    "attainment": "double",
    "burn_rate": "double",
}
"""One row per (tenant, queue, window: 1h, 6h, 24h, 7d, 30d)."""

ANOMALIES: Table = {
    "tenant": "string",
    "queue": "string",
    "hour": "timestamp",
    "metric": "string",
    "value": "double",
    "expected": "double",
    "score": "double",
    "direction": "string",
}
"""One row per (tenant, queue, hour, metric) that is off the queue's own weekly pattern."""

FLOWS: Table = {
    "tenant": "string",
    "root_id": "string",
    "jobs": "int",
    "began_at": "timestamp",
    "ended_at": "timestamp",
    "critical_ms": "bigint",
    "critical_path": "array<string>",
    "status": "string",
}
"""One row per flow: the jobs that hang together by their parents."""

SCHEDULES: Table = {
    "tenant": "string",
    "schedule": "string",
    "day": "date",
    "fires": "bigint",
    "late_hist": HISTOGRAM,
    "p50_ms": "double",
    "p99_ms": "double",
    "max_ms": "double",
    "missed": "bigint",
}
"""One row per (tenant, schedule, day on which it fired) of the last 90 days: how punctual it was."""

USAGE: Table = {
    "tenant": "string",
    "day": "date",
    "queue": "string",
    "type": "string",
    "jobs": "bigint",
    "attempts": "bigint",
    "busy_ms": "bigint",
}
"""One row per (tenant, day, queue, type), for bills."""

# ── What the data source reads besides events: the store as it stands ──────────────────────────────────────────────────

JOBS_NOW: Table = {
    "tenant": "string",
    "job_id": "string",
    "queue": "string",
    "type": "string",
    "payload": "string",
    "priority": "int",
    "key": "string",
    "schedule": "string",
    "asked_run_at": "timestamp",
    "options": "string",
    "created_at": "timestamp",
    "scheduled_at": "timestamp",
    "status": "string",
    "run_at": "timestamp",
    "expires_at": "timestamp",
    "attempts": "int",
    "leases": "int",
    "error": "string",
    "progress": "string",
    "cause": "string",
    "ended_at": "timestamp",
    "worker": "string",
    "started_at": "timestamp",
    "lease_until": "timestamp",
    "cancel_requested": "boolean",
    "result": "string",
    "day": "string",
}
"""One row per job that is in the store. `day` is that of created_at."""

ATTEMPTS_NOW: Table = {
    "tenant": "string",
    "job_id": "string",
    "attempt": "int",
    "queue": "string",
    "type": "string",
    "key": "string",
    "schedule": "string",
    "priority": "int",
    "worker": "string",
    "created_at": "timestamp",
    "scheduled_at": "timestamp",
    "ready_at": "timestamp",
    "started_at": "timestamp",
    "ended_at": "timestamp",
    "run_at": "timestamp",
    "outcome": "string",
    "status": "string",
    "error": "string",
    "result": "string",
    "day": "string",
}
"""One row per (job, attempt) that ended and is in the store. `day` is that of ended_at."""

QUEUES_NOW: Table = {
    "tenant": "string",
    "queue": "string",
    "settings": "string",
    "paused": "boolean",
    "waiting": "bigint",
    "queued": "bigint",
    "running": "bigint",
    "succeeded": "bigint",
    "dead": "bigint",
    "held": "bigint",
    "cancelled": "bigint",
}
"""One row per (tenant, queue): its settings, as far as they were set, and how many of its jobs are in each state.

Of several logs a queue is in one, with all its jobs (`stores.log.layout.shard_of`): no other has a row of it.
"""

SCHEDULES_NOW: Table = {
    "tenant": "string",
    "schedule": "string",
    "body": "string",
    "next_fire_at": "timestamp",
    "last_fire_at": "timestamp",
}
"""One row per schedule."""

SOURCE: Mapping[str, Table] = {
    "events": EVENTS,
    "jobs": JOBS_NOW,
    "attempts": ATTEMPTS_NOW,
    "queues": QUEUES_NOW,
    "schedules": SCHEDULES_NOW,
}
"""What the data source `penstock` reads, by the names that it knows."""

BRONZE: Mapping[str, Table] = {"events": EVENTS}
SILVER: Mapping[str, Table] = {"attempts": ATTEMPTS, "jobs": JOBS}
GOLD: Mapping[str, Table] = {
    "hourly": HOURLY,
    "daily": DAILY,
    "failures": FAILURES,
    "capacity": CAPACITY,
    "capacity_plan": CAPACITY_PLAN,
    "slo": SLO,
    "anomalies": ANOMALIES,
    "flows": FLOWS,
    "schedules": SCHEDULES,
    "usage": USAGE,
}


def ddl(table: Table) -> str:
    """A table as Spark's schemas are written: `tenant string, xid bigint, …`."""
    return ", ".join(f"`{column}` {kind}" for column, kind in table.items())
