"""Lease, settle, heartbeat: what a worker in any language does."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from penstock.access import Scope
from penstock.core import bounds
from penstock.core.codec import encode
from penstock.core.commands import Heartbeat, LeaseJobs, Settle, Settled
from penstock.core.errors import PenstockError
from penstock.core.job import JobId, LeaseToken
from penstock.queue import Queue
from penstock.server.operation import Call, Operation, decoded
from penstock.server.problems import problem
from penstock.server.wire import (
    AckRequest,
    BeatAnswer,
    DiscardRequest,
    HeartbeatRequest,
    LeaseAnswer,
    LeaseRequest,
    NackRequest,
    ReleaseRequest,
    SettleBatch,
    SettleBatchAnswer,
    SettleBatchItem,
    SettledAnswer,
    SettleItem,
    SnoozeRequest,
    leased_answer,
)

_items = msgspec.json.Decoder(SettleItem)


class Holding(Struct, frozen=True, gc=False):
    """A lease, as its holder names it."""

    id: JobId
    token: LeaseToken


async def lease_jobs(call: Call) -> LeaseAnswer:
    """Take the next jobs of a queue; with `wait`, wait for one if there is none."""
    body: LeaseRequest = call.body
    request = LeaseJobs(
        bounds.name("queue", call.path["queue"]),
        bounds.text("worker_id", body.worker_id, bounds.NAME_CHARS, 1),
        body.limit,
        body.lease_seconds,
    )
    leased = await call.service.lines.lease(call.caller.tenant, request, body.wait, call.request)
    call.service.metrics.leased(request.queue, len(leased))
    return LeaseAnswer([leased_answer(one) for one in leased])


async def heartbeat_job(call: Call) -> BeatAnswer:
    """Keep a lease for its length from now on. `cancel_requested` asks the handler to stop."""
    body: HeartbeatRequest = call.body
    progress = None
    if body.progress is not None:
        progress = encode(body.progress, field="progress", limit=bounds.PROGRESS_BYTES)
    held = _held(call)
    beat = await call.service.heartbeat(
        call.caller.tenant, Heartbeat(held.id, held.token, body.lease_seconds, progress)
    )
    return BeatAnswer(beat.expires_at, beat.cancel_requested)


async def ack_job(call: Call) -> SettledAnswer:
    """The job succeeded."""
    return await _settle(call)


async def nack_job(call: Call) -> SettledAnswer:
    """The attempt failed: the job is tried again, or is dead."""
    return await _settle(call)


async def release_job(call: Call) -> SettledAnswer:
    """Give the job back; the attempt does not count."""
    return await _settle(call)


async def snooze_job(call: Call) -> SettledAnswer:
    """Run the job again after a while; the attempt does not count."""
    return await _settle(call)


async def discard_job(call: Call) -> SettledAnswer:
    """End the job as cancelled: its handler was told to stop, or found nothing left to do."""
    return await _settle(call)


async def settle_jobs(call: Call) -> SettleBatchAnswer:
    """Settle many jobs in one transaction; each gets its own answer or its own error."""
    items = [_built(call.caller.queue, raw) for raw in call.body.settles]
    settles = [item for item in items if not isinstance(item, PenstockError)]
    answers = await call.service.store.settle(call.caller.tenant, settles) if settles else []
    for settle, answer in zip(settles, answers, strict=True):
        call.service.metrics.settled(settle, answer)
    answered = iter(answers)
    return SettleBatchAnswer(
        [_told(item if isinstance(item, PenstockError) else next(answered)) for item in items]
    )


async def _settle(call: Call) -> SettledAnswer:
    settled = await settle_one(call, settle_for(call.caller.queue, _held(call), call.body))
    return SettledAnswer(settled.job_id, settled.status, settled.run_at)


async def settle_one(call: Call, settle: Settle) -> Settled:
    """Settle a job, together with others that are settled just now, and count it."""
    try:
        settled = await call.service.settle(call.caller.tenant, settle)
    except PenstockError as error:
        call.service.metrics.settled(settle, error)
        raise
    call.service.metrics.settled(settle, settled)
    return settled


def settle_for(queue: Queue, held: Holding, body: Any) -> Settle:
    """What a body asks for, checked as Python's own calls are."""
    logs = body.logs
    match body:
        case AckRequest():
            return queue.acked(held, body.result, logs=logs)
        case NackRequest():
            return queue.nacked(held, body.error, retry=body.retry, retry_in=body.retry_in, logs=logs)
        case ReleaseRequest():
            return queue.released(held, delay=body.delay, logs=logs)
        case SnoozeRequest():
            return queue.snoozed(held, body.delay, logs=logs)
        case DiscardRequest():
            return queue.discarded(held, body.reason, logs=logs)
    raise AssertionError(body)


def _built(queue: Queue, raw: msgspec.Raw) -> Settle | PenstockError:
    try:
        item = decoded(_items, bytes(raw))
        held = Holding(JobId(bounds.job_id("id", item.id)), LeaseToken(item.token))
        return settle_for(queue, held, item)
    except PenstockError as error:
        return error


def _told(answer: Settled | PenstockError) -> SettleBatchItem:
    if isinstance(answer, PenstockError):
        return SettleBatchItem(error=problem(answer))
    return SettleBatchItem(answer.job_id, answer.status, answer.run_at)


def _held(call: Call) -> Holding:
    return Holding(JobId(bounds.job_id("id", call.path["id"])), LeaseToken(call.body.token))


_LOST = {404: "No such job", 409: "`lease_lost`: the lease is no longer held with this token"}

OPERATIONS = (
    Operation(
        "POST", "/v1/queues/{queue}/lease", lease_jobs, "Lease the next jobs of a queue", LeaseAnswer, Scope.WORK,
        LeaseRequest, example={"worker_id": "worker-1", "limit": 10, "wait": 20}, tag="Work",
    ),
    Operation("POST", "/v1/jobs/{id}/ack", ack_job, "Say that a job succeeded", SettledAnswer, Scope.WORK, AckRequest,
              also=_LOST, example={"token": "…", "result": {"sent": True}}, tag="Work"),
    Operation("POST", "/v1/jobs/{id}/nack", nack_job, "Say that an attempt failed", SettledAnswer, Scope.WORK,
              NackRequest, also=_LOST, example={"token": "…", "error": "mailbox full"}, tag="Work"),
    Operation("POST", "/v1/jobs/{id}/release", release_job, "Give a job back", SettledAnswer, Scope.WORK,
              ReleaseRequest, also=_LOST, example={"token": "…"}, tag="Work"),
    Operation("POST", "/v1/jobs/{id}/snooze", snooze_job, "Run a job later", SettledAnswer, Scope.WORK, SnoozeRequest,
              also=_LOST, example={"token": "…", "delay": 60}, tag="Work"),
    Operation("POST", "/v1/jobs/{id}/discard", discard_job, "End a job as cancelled", SettledAnswer, Scope.WORK,
              DiscardRequest, also=_LOST, example={"token": "…", "reason": "nothing to do"}, tag="Work"),
    Operation("POST", "/v1/jobs/{id}/heartbeat", heartbeat_job, "Keep a lease", BeatAnswer, Scope.WORK,
              HeartbeatRequest, also=_LOST, example={"token": "…", "progress": {"done": 40}}, tag="Work"),
    Operation("POST", "/v1/settle", settle_jobs, "Settle many jobs", SettleBatchAnswer, Scope.WORK, SettleBatch,
              example={"settles": [{"verb": "ack", "id": "01890a5d-ac96-774b-bcce-b302099a8057", "token": "…"}]},
              tag="Work"),
)  # fmt: skip
