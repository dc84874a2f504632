"""A log's rows as Spark wants them: those asked for, and the tables of what is in its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.core.job import Status
from penstock.core.machine import Machine
from penstock.core.settings import QueueSettings
from penstock.lake.source.arrow import arrow_schema, days
from penstock.lake.source.asking import Ask
from penstock.lake.source.filters import Condition
from penstock.lake.tables import SOURCE
from penstock.stores.log import history
from penstock.stores.postgres.rows import to_options

_MOMENTS = {"events": "occurred_at", "attempts": "ended_at", "jobs": "created_at"}


def asked(ask: Ask, table: Any) -> Any:
    """The rows and columns that were asked for."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if (moment := _MOMENTS.get(ask.table)) is not None:
        table = table.append_column("day", days(table[moment].combine_chunks()))
    conditions = [_filter(one) for one in ask.conditions]
    if ask.tenant is not None:
        conditions.append(pc.field("tenant") == ask.tenant)
    if moment is not None and ask.first_day is not None:
        conditions.append(pc.field("day") >= str(ask.first_day))
    if moment is not None and ask.last_day is not None:
        conditions.append(pc.field("day") <= str(ask.last_day))
    for condition in conditions:
        table = table.filter(condition)
    if not ask.columns:
        return pa.Table.from_batches([pa.RecordBatch.from_struct_array(pa.array([{}] * table.num_rows))])
    return table.select(list(ask.columns)).cast(arrow_schema(ask))


def _filter(one: Condition) -> Any:
    import pyarrow.compute as pc

    column = pc.field(one.column)
    match one.operator:
        case "IS NULL":
            return column.is_null()
        case "IS NOT NULL":
            return column.is_valid()
        case "IN":
            return column.isin(list(one.values))
        case ">":
            return column > one.values[0]
        case ">=":
            return column >= one.values[0]
        case "<":
            return column < one.values[0]
        case "<=":
            return column <= one.values[0]
        case _:
            return column == one.values[0]


def _jobs(machines: dict[str, Machine]) -> Any:
    rows = []
    for machine in machines.values():
        for job in machine.ledger.jobs.values():
            asked, lease = job.asked, job.lease
            rows.append(
                {
                    "tenant": machine.tenant, "job_id": asked.id, "queue": asked.queue, "type": asked.type,
                    "payload": asked.payload, "priority": asked.priority, "key": asked.key, "schedule": asked.schedule,
                    "asked_run_at": asked.run_at, "options": to_options(asked), "created_at": job.created_at,
                    "scheduled_at": job.scheduled_at, "status": str(job.status), "run_at": job.run_at,
                    "expires_at": job.expires_at, "attempts": job.attempts, "leases": job.leases, "error": job.error,
                    "progress": job.progress, "cause": None if job.cause is None else str(job.cause),
                    "ended_at": job.ended_at, "worker": None if lease is None else lease.worker,
                    "started_at": None if lease is None else lease.taken_at,
                    "lease_until": None if lease is None else lease.expires_at,
                    "cancel_requested": job.cancel_requested, "result": job.result,
                }
            )  # fmt: skip
    return _table("jobs", rows)


def _attempts(machines: dict[str, Machine]) -> Any:
    return _table(
        "attempts",
        [
            {
                "tenant": machine.tenant, "job_id": job.id, "attempt": one.number, "queue": job.queue, "type": job.type,
                "key": job.asked.key, "schedule": job.asked.schedule, "priority": job.priority, "worker": one.worker,
                "created_at": job.created_at, "scheduled_at": job.scheduled_at, "ready_at": ready_at,
                "started_at": one.started_at, "ended_at": one.ended_at, "run_at": one.run_at,
                "outcome": str(one.outcome), "status": str(one.status), "error": one.error, "result": one.result,
            }
            for machine in machines.values()
            for job, one, ready_at in history.attempts(machine)
        ],
    )  # fmt: skip


def _queues(machines: dict[str, Machine]) -> Any:
    return _table(
        "queues",
        [
            {
                "tenant": machine.tenant,
                "queue": name,
                "settings": _text(lane.settings),
                "paused": lane.settings.paused,
                **{str(status): lane.counts.get(status, 0) for status in Status},
            }
            for machine in machines.values()
            for name, lane in machine.ledger.lanes.items()
        ],
    )


def _text(settings: QueueSettings) -> str:
    if settings == QueueSettings():
        return "{}"
    # As they are read back from a snapshot or a database: 30 seconds that nobody has set would else be 30, and then 30.0.
    read = msgspec.json.decode(msgspec.json.encode(settings), type=QueueSettings)
    return msgspec.json.encode(read).decode()


def _schedules(machines: dict[str, Machine]) -> Any:
    return _table(
        "schedules",
        [
            {
                "tenant": machine.tenant,
                "schedule": one.name,
                "body": msgspec.json.encode(one).decode(),
                "next_fire_at": one.next_fire_at,
                "last_fire_at": one.last_fire_at,
            }
            for machine in machines.values()
            for one in machine.schedules()
        ],
    )


def _table(name: str, rows: list[dict[str, Any]]) -> Any:
    import pyarrow as pa

    schema = arrow_schema(Ask(name, tuple(column for column in SOURCE[name] if column != "day")))
    return pa.Table.from_pylist(rows, schema=schema)


TABLES: dict[str, Callable[[dict[str, Machine]], Any]] = {
    "jobs": _jobs,
    "attempts": _attempts,
    "queues": _queues,
    "schedules": _schedules,
}
