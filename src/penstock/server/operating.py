"""Queues and their settings, schedules, operations on many jobs, workers."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec import Struct

from penstock import bulk
from penstock.access import Scope
from penstock.bulk import BulkOperation
from penstock.core import bounds
from penstock.core.errors import InvalidInput
from penstock.core.job import Status
from penstock.core.schedule import Schedule
from penstock.presence import Presence, workers
from penstock.server.operation import Call, Operation
from penstock.server.wire import (
    BulkCount,
    BulkRequest,
    ChangeAnswer,
    EnqueuedAnswer,
    QueueAnswer,
    QueuesAnswer,
    ReasonRequest,
    ScheduleAnswer,
    ScheduleRequest,
    SchedulesAnswer,
    SettingsRequest,
    StatsAnswer,
    change_answer,
    conditions,
    given,
    queue_answer,
    schedule_answer,
)

# ── Queues ────────────────────────────────────────────────────────────────────────────────────────


async def list_queues(call: Call) -> QueuesAnswer:
    """Every queue: its settings, and how many of its jobs are in each state."""
    return QueuesAnswer([queue_answer(view) for view in await call.caller.queue.queues()])


async def get_stats(call: Call) -> StatsAnswer:
    """How many jobs are in each state, in all and by queue."""
    views = await call.caller.queue.queues()
    counts: Counter[Status] = Counter()
    for view in views:
        counts.update(view.counts)
    return StatsAnswer(await call.service.store.now(), dict(counts), [queue_answer(view) for view in views])


async def get_queue(call: Call) -> QueueAnswer:
    """One queue; one that nobody has used yet has the default settings and no jobs."""
    return queue_answer(await call.caller.queue.queue(call.path["queue"]))


async def set_queue(call: Call) -> QueueAnswer:
    """Change some settings of a queue; what is left out stays. It holds from the next lease on, everywhere."""
    changes = given(call.body)
    reason = changes.pop("reason", None)
    await call.caller.queue.configure(call.path["queue"], reason=reason, **changes)
    return await get_queue(call)


async def pause_queue(call: Call) -> QueueAnswer:
    """Lease no more jobs of a queue; running ones finish, new ones are taken in."""
    await call.caller.queue.pause(call.path["queue"], call.body.reason)
    return await get_queue(call)


async def resume_queue(call: Call) -> QueueAnswer:
    await call.caller.queue.resume(call.path["queue"], call.body.reason)
    return await get_queue(call)


class ChangesAnswer(Struct, frozen=True):
    changes: list[ChangeAnswer]


async def get_queue_history(call: Call) -> ChangesAnswer:
    """What people changed about a queue, in order."""
    history = await call.caller.queue.history(call.path["queue"], "queue")
    return ChangesAnswer([change_answer(change) for change in history.changes])


# ── Schedules ─────────────────────────────────────────────────────────────────────────────────────


async def list_schedules(call: Call) -> SchedulesAnswer:
    return SchedulesAnswer([schedule_answer(schedule) for schedule in await call.caller.queue.schedules()])


async def get_schedule(call: Call) -> ScheduleAnswer:
    return schedule_answer(await _schedule(call))


async def put_schedule(call: Call) -> ScheduleAnswer:
    """Make a schedule, or replace the one of that name."""
    body: ScheduleRequest = call.body
    put = await call.caller.queue.put_schedule(
        call.path["name"], body.cron, given(body.job), reason=body.reason, tz=body.tz, missed=body.missed,
        paused=body.paused,
    )  # fmt: skip
    return schedule_answer(put)


async def drop_schedule(call: Call) -> None:
    await call.caller.queue.drop_schedule(call.path["name"])


async def pause_schedule(call: Call) -> ScheduleAnswer:
    """Fire no more until it is resumed."""
    return schedule_answer(await call.caller.queue.pause_schedule(call.path["name"], call.body.reason))


async def resume_schedule(call: Call) -> ScheduleAnswer:
    return schedule_answer(await call.caller.queue.resume_schedule(call.path["name"], call.body.reason))


async def run_schedule(call: Call) -> EnqueuedAnswer:
    """Enqueue the schedule's job once, now; its fire times stay as they are."""
    enqueued = await call.caller.queue.run_schedule(call.path["name"])
    return EnqueuedAnswer(enqueued.id, enqueued.duplicate)


async def _schedule(call: Call) -> Schedule:
    return await call.caller.queue.schedule(call.path["name"])


# ── Many jobs ─────────────────────────────────────────────────────────────────────────────────────


class BulkAnswer(Struct, frozen=True, omit_defaults=True):
    """What a dry run counted, or the operation that was begun."""

    dry_run: BulkCount | None = None
    operation: BulkOperation | None = None


class BulksAnswer(Struct, frozen=True):
    operations: list[BulkOperation]


async def begin_bulk(call: Call) -> BulkAnswer:
    """Cancel or redrive all jobs that match. A dry run unless `dry_run` is false; then it goes on by itself."""
    body: BulkRequest = call.body
    if body.action not in list(bulk.Action):
        raise InvalidInput("action", f"be one of {', '.join(bulk.Action)}", body.action)
    chosen = conditions(body.filter)
    if body.dry_run:
        return BulkAnswer(BulkCount(*await bulk.count(call.caller.queue, chosen)))
    operation = await bulk.begin(call.caller.queue, body.action, chosen, reason=body.reason)
    call.status = 202
    call.headers["Location"] = f"{call.request.scope.get('root_path', '')}/v1/bulk/{operation.id}"
    return BulkAnswer(operation=operation)


async def list_bulk(call: Call) -> BulksAnswer:
    """The operations of the last week, newest first."""
    return BulksAnswer(await bulk.operations(call.caller.queue))


async def get_bulk(call: Call) -> BulkOperation:
    """How far an operation has come."""
    return await bulk.get(call.caller.queue, bounds.job_id("id", call.path["id"]))


async def abort_bulk(call: Call) -> BulkOperation:
    """Let an operation change no more jobs. What it has changed stays."""
    return await bulk.abort(call.caller.queue, bounds.job_id("id", call.path["id"]))


class WorkersAnswer(Struct, frozen=True):
    workers: list[Presence]


async def list_workers(call: Call) -> WorkersAnswer:
    """Who is at work: workers that have shown themselves within the last minute."""
    return WorkersAnswer(await workers(call.service.store, call.caller.tenant))


_SEE = (Scope.READ, Scope.OPERATE)
_QUEUE = "/v1/queues/{queue}"
_SCHEDULE = "/v1/schedules/{name}"
_NO_SCHEDULE = {404: "No such schedule"}
_NO_BULK = {404: "No such operation"}
_NIGHTLY: dict[str, Any] = {"cron": "0 9 * * 1-5", "tz": "Europe/Paris", "job": {"type": "report.daily"}}

OPERATIONS = (
    Operation("GET", "/v1/queues", list_queues, "List queues", QueuesAnswer, _SEE, tag="Queues"),
    Operation("GET", _QUEUE, get_queue, "Look at a queue", QueueAnswer, _SEE, tag="Queues"),
    Operation("PUT", _QUEUE, set_queue, "Change a queue's settings", QueueAnswer, Scope.OPERATE, SettingsRequest,
              example={"max_concurrency": 20, "reason": "the mail server is slow"}, tag="Queues"),
    Operation("POST", f"{_QUEUE}/pause", pause_queue, "Pause a queue", QueueAnswer, Scope.OPERATE, ReasonRequest,
              body_is_optional=True, example={"reason": "incident 42"}, tag="Queues"),
    Operation("POST", f"{_QUEUE}/resume", resume_queue, "Resume a queue", QueueAnswer, Scope.OPERATE, ReasonRequest,
              body_is_optional=True, example={"reason": "over"}, tag="Queues"),
    Operation("GET", f"{_QUEUE}/history", get_queue_history, "Read what was changed about a queue", ChangesAnswer,
              _SEE, also={404: "Nobody has changed anything about such a queue"}, tag="Queues"),
    Operation("GET", "/v1/stats", get_stats, "Count jobs by state", StatsAnswer, _SEE, tag="Queues"),
    Operation("GET", "/v1/schedules", list_schedules, "List schedules", SchedulesAnswer, _SEE, tag="Schedules"),
    Operation("GET", _SCHEDULE, get_schedule, "Look at a schedule", ScheduleAnswer, _SEE, also=_NO_SCHEDULE, tag="Schedules"),
    Operation("PUT", _SCHEDULE, put_schedule, "Make or replace a schedule", ScheduleAnswer, Scope.OPERATE,
              ScheduleRequest, example=_NIGHTLY, tag="Schedules"),
    Operation("DELETE", _SCHEDULE, drop_schedule, "Drop a schedule", None, Scope.OPERATE, status=204,
              also=_NO_SCHEDULE, tag="Schedules"),
    Operation("POST", f"{_SCHEDULE}/pause", pause_schedule, "Pause a schedule", ScheduleAnswer, Scope.OPERATE,
              ReasonRequest, body_is_optional=True, also=_NO_SCHEDULE, tag="Schedules"),
    Operation("POST", f"{_SCHEDULE}/resume", resume_schedule, "Resume a schedule", ScheduleAnswer, Scope.OPERATE,
              ReasonRequest, body_is_optional=True, also=_NO_SCHEDULE, tag="Schedules"),
    Operation("POST", f"{_SCHEDULE}/run", run_schedule, "Run a schedule's job now", EnqueuedAnswer, Scope.OPERATE,
              status=201, also=_NO_SCHEDULE, tag="Schedules"),
    Operation("GET", "/v1/workers", list_workers, "List workers", WorkersAnswer, _SEE, tag="Look"),
    Operation("POST", "/v1/bulk", begin_bulk, "Cancel or redrive all jobs that match", BulkAnswer, Scope.OPERATE,
              BulkRequest, also={202: "Begun; `Location` tells how far it is"},
              example={"action": "redrive", "filter": {"status": ["dead"], "queue": "emails"}, "dry_run": True}, tag="Operate"),
    Operation("GET", "/v1/bulk", list_bulk, "List operations on many jobs", BulksAnswer, _SEE, tag="Operate"),
    Operation("GET", "/v1/bulk/{id}", get_bulk, "See how far an operation is", BulkOperation, _SEE, also=_NO_BULK, tag="Operate"),
    Operation("POST", "/v1/bulk/{id}/abort", abort_bulk, "Abort an operation", BulkOperation, Scope.OPERATE, also=_NO_BULK,
              tag="Operate"),
)  # fmt: skip
