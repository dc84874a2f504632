"""OpenQueue's protocol at its own addresses, so that its published client works here unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import UNSET

from penstock.access import Scope
from penstock.core import bounds
from penstock.core.commands import Heartbeat, LeaseJobs, Settle
from penstock.core.errors import JobNotFound, LeaseLost, NotFound, PenstockError
from penstock.core.job import Job, JobId, LeaseToken, NewJob, Status
from penstock.core.requests import new_job
from penstock.queue import new_id
from penstock.server.looking import job_id
from penstock.server.openqueue_wire import (
    BACK_OFF,
    THEIRS,
    OpenQueueAckRequest,
    OpenQueueBatchEnqueued,
    OpenQueueBatchRequest,
    OpenQueueDone,
    OpenQueueEnqueued,
    OpenQueueHeartbeatRequest,
    OpenQueueJob,
    OpenQueueJobRequest,
    OpenQueueJobs,
    OpenQueueJobsQuery,
    OpenQueueLease,
    OpenQueueLeaseRequest,
    OpenQueueNackRequest,
    OpenQueueState,
    OpenQueueStats,
    has_a_past,
    openqueue_job,
    openqueue_stats,
    ours,
    total,
)
from penstock.server.operation import Call, Operation
from penstock.server.problems import BadRequest
from penstock.server.producing import keyed
from penstock.server.working import Holding, settle_one

PENDING = (Status.WAITING, Status.QUEUED)


class NotCancellable(NotFound):
    """OpenQueue cancels pending jobs only. `POST /v1/jobs/{id}/cancel` asks one that runs to stop."""

    code = "not_cancellable"

    def __init__(self, job_id: str, status: str) -> None:
        super().__init__(
            f"job {job_id} is {status}; only pending jobs are cancelled here", job_id=job_id, status=status
        )


# ── Producing ─────────────────────────────────────────────────────────────────────────────────────


async def openqueue_enqueue(call: Call) -> OpenQueueEnqueued:
    """Put one job in. With an Idempotency-Key, the same key answers with the same job."""
    asked = keyed(call, _asked(call.body))
    await call.service.make_room(call.caller.tenant, [asked.queue])
    enqueued = await call.service.enqueue(call.caller.tenant, asked)
    call.service.metrics.enqueued(asked.queue, enqueued)
    return OpenQueueEnqueued(enqueued.id)


async def openqueue_enqueue_batch(call: Call) -> OpenQueueBatchEnqueued:
    """Put many jobs in: all of them, or, if one is refused, none."""
    jobs = [_asked(item) for item in call.body.jobs]
    if jobs and call.service.needs_idempotency_key:
        raise BadRequest("this service takes jobs only with a key each; use /v1/jobs/batch")
    if jobs:
        await call.service.make_room(call.caller.tenant, {job.queue for job in jobs})
    answers = await call.service.store.enqueue(call.caller.tenant, jobs) if jobs else []
    ids = []
    for job, answer in zip(jobs, answers, strict=True):
        if isinstance(
            answer, PenstockError
        ):  # none can be refused that was built here, with an id of its own
            raise answer
        call.service.metrics.enqueued(job.queue, answer)
        ids.append(str(answer.id))
    return OpenQueueBatchEnqueued(ids, len(ids))


def _asked(body: OpenQueueJobRequest) -> NewJob:
    item = {
        "type": body.type,
        "queue": body.queue_name,
        "payload": body.payload,
        "priority": body.priority,
        "max_attempts": body.max_retries + 1,
        "retry": BACK_OFF,
        "run_at": None if body.run_at is None else _in_utc(body.run_at),
    }
    return new_job(new_id(), item)


def _in_utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


# ── Looking ───────────────────────────────────────────────────────────────────────────────────────


async def openqueue_get_status(call: Call) -> OpenQueueState:
    """The status of a job alone."""
    job = await call.service.get(call.caller.tenant, job_id(call))
    return OpenQueueState(job.id, THEIRS[job.status])


async def openqueue_get_job(call: Call) -> OpenQueueJob:
    """A job in full."""
    job = await call.service.get(call.caller.tenant, job_id(call))
    [shown] = await _shown(call, [job])
    return shown


async def openqueue_list_jobs(call: Call) -> OpenQueueJobs:
    """Jobs that match, newest first, by offset. `/v1/jobs` pages by cursor, which stays right while jobs come in."""
    query: OpenQueueJobsQuery = call.query
    statuses = tuple(Status) if query.status is UNSET else ours(query.status)
    if not statuses:  # no job is ever `failed` here
        return OpenQueueJobs([], 0, query.limit, query.offset)
    conditions: dict[str, Any] = {} if query.queue_name is UNSET else {"queue": query.queue_name}
    if query.status is not UNSET:
        conditions["statuses"] = statuses
    jobs = await _page(call, conditions, query.offset, query.limit)
    views = await call.caller.queue.queues()
    return OpenQueueJobs(
        await _shown(call, jobs), total(views, conditions.get("queue"), statuses), query.limit, query.offset
    )


async def _page(call: Call, conditions: dict[str, Any], offset: int, limit: int) -> list[Job]:
    """Jobs by offset: the pages above are read and left out, a thousand jobs at a time."""
    found: list[Job] = []
    left, after = offset, None
    while len(found) < limit:
        wanted = min(left + limit - len(found), bounds.MOST_LISTED)
        page = await call.caller.queue.find(after=after, limit=wanted, **conditions)
        found += page.jobs[left:]
        left -= min(left, len(page.jobs))
        after = page.next
        if after is None:
            break
    return found


async def _shown(call: Call, jobs: Sequence[Job]) -> list[OpenQueueJob]:
    """Jobs in OpenQueue's words; of those that ran before, their history tells when."""
    told = [job.id for job in jobs if has_a_past(job)]
    if not told:
        return [openqueue_job(job) for job in jobs]
    histories = await call.service.store.history(call.caller.tenant, [("job", id) for id in told])
    # One that has left the store meanwhile is shown as it was found.
    known = {
        id: history
        for id, history in zip(told, histories, strict=True)
        if not isinstance(history, PenstockError)
    }
    return [openqueue_job(job, known[job.id]) if job.id in known else openqueue_job(job) for job in jobs]


async def openqueue_get_stats(call: Call) -> list[OpenQueueStats]:
    """How many jobs each queue has in each state."""
    views = await call.caller.queue.queues()
    now = await call.service.store.now()
    return [openqueue_stats(view, now) for view in views]


async def openqueue_cancel(call: Call) -> OpenQueueDone:
    """Cancel a job that is pending; 404 for any other, as OpenQueue answers."""
    job = await call.service.get(call.caller.tenant, job_id(call))
    if job.status not in PENDING:
        raise NotCancellable(job.id, THEIRS[job.status])
    changed = await call.caller.queue.cancel(job.id)
    if changed.status is not Status.CANCELLED:  # somebody has just leased it, and is now asked to stop
        raise NotCancellable(job.id, THEIRS[changed.status])
    return OpenQueueDone(job.id, "cancelled")


# ── Working ───────────────────────────────────────────────────────────────────────────────────────


async def openqueue_lease(call: Call) -> OpenQueueLease | None:
    """Lease the next job of a queue; null if there is none."""
    body: OpenQueueLeaseRequest = call.body
    request = LeaseJobs(
        bounds.name("queue_name", call.path["queue"]),
        bounds.text("worker_id", body.worker_id, bounds.NAME_CHARS, 1),
        1,
        body.lease_seconds,
    )
    leased = await call.service.lines.lease(call.caller.tenant, request, 0.0)
    call.service.metrics.leased(request.queue, len(leased))
    if not leased:
        return None
    [shown] = await _shown(call, [leased[0].job])
    lease = leased[0].job.lease
    assert lease is not None
    return OpenQueueLease(shown, leased[0].token, lease.expires_at)


async def openqueue_ack(call: Call) -> OpenQueueDone:
    """The job is completed."""
    return await _settle(call, call.caller.queue.acked(_held(call), call.body.result), "completed")


async def openqueue_nack(call: Call) -> OpenQueueDone:
    """The attempt failed: the job is pending again, or dead."""
    nacked = call.caller.queue.nacked(_held(call), call.body.error, retry=call.body.retry)
    return await _settle(call, nacked, "failed_or_requeued")


async def openqueue_heartbeat(call: Call) -> OpenQueueDone:
    """Keep a lease for so many seconds from now on."""
    held = _held(call)
    try:
        await call.service.heartbeat(
            call.caller.tenant, Heartbeat(held.id, held.token, call.body.lease_seconds)
        )
    except JobNotFound:
        raise LeaseLost(held.id) from None
    return OpenQueueDone(held.id, "lease_extended")


async def _settle(call: Call, settle: Settle, done: str) -> OpenQueueDone:
    try:
        settled = await settle_one(call, settle)
    except JobNotFound:  # OpenQueue does not tell a job that is gone from a lease that is
        raise LeaseLost(settle.job_id) from None
    return OpenQueueDone(settled.job_id, done)


def _held(call: Call) -> Holding:
    return Holding(JobId(job_id(call)), LeaseToken(call.body.lease_token))


_SEE = (Scope.READ, Scope.PRODUCE, Scope.WORK, Scope.OPERATE)
_ALL = (Scope.READ, Scope.OPERATE)
_ONE = {404: "No such job in this tenant"}
_LOST = {409: "The lease is not held with this token, or there is no such job"}
_EXAMPLE: dict[str, Any] = {"queue_name": "emails", "payload": {"to": "ada@example.com"}, "max_retries": 3}
_TAG = "OpenQueue"

OPERATIONS = (
    Operation("POST", "/jobs", openqueue_enqueue, "Enqueue a job", OpenQueueEnqueued, Scope.PRODUCE, OpenQueueJobRequest,
              status=201, headers={"Idempotency-Key": "Ours: the same key answers with the same job for 24 hours"},
              example=_EXAMPLE, tag=_TAG),
    Operation("POST", "/jobs/batch", openqueue_enqueue_batch, "Enqueue many jobs", OpenQueueBatchEnqueued, Scope.PRODUCE,
              OpenQueueBatchRequest, status=201, example={"jobs": [_EXAMPLE]}, tag=_TAG),
    Operation("GET", "/jobs", openqueue_list_jobs, "List jobs", OpenQueueJobs, _ALL, query=OpenQueueJobsQuery, tag=_TAG),
    Operation("GET", "/jobs/{id}", openqueue_get_status, "Look at a job's status", OpenQueueState, _SEE, also=_ONE, tag=_TAG),
    Operation("GET", "/jobs/{id}/detail", openqueue_get_job, "Look at a job", OpenQueueJob, _SEE, also=_ONE, tag=_TAG),
    Operation("POST", "/jobs/{id}/cancel", openqueue_cancel, "Cancel a pending job", OpenQueueDone,
              (Scope.OPERATE, Scope.PRODUCE), also={404: "No such job, or it is not pending"}, tag=_TAG),
    Operation("POST", "/queues/{queue}/lease", openqueue_lease, "Lease the next job of a queue", OpenQueueLease | None,
              Scope.WORK, OpenQueueLeaseRequest, example={"worker_id": "worker-1", "lease_seconds": 30}, tag=_TAG),
    Operation("POST", "/jobs/{id}/ack", openqueue_ack, "Say that a job is completed", OpenQueueDone, Scope.WORK,
              OpenQueueAckRequest, also=_LOST, example={"lease_token": "…", "result": {"sent": True}}, tag=_TAG),
    Operation("POST", "/jobs/{id}/nack", openqueue_nack, "Say that an attempt failed", OpenQueueDone, Scope.WORK,
              OpenQueueNackRequest, also=_LOST, example={"lease_token": "…", "error": "mailbox full"}, tag=_TAG),
    Operation("POST", "/jobs/{id}/heartbeat", openqueue_heartbeat, "Keep a lease", OpenQueueDone, Scope.WORK,
              OpenQueueHeartbeatRequest, also=_LOST, example={"lease_token": "…", "lease_seconds": 30}, tag=_TAG),
    Operation("GET", "/dashboard/queues", openqueue_get_stats, "Count jobs by queue and status", list[OpenQueueStats], _ALL,
              tag=_TAG),
)  # fmt: skip
