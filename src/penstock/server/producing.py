"""Enqueue, one job or many."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from penstock.access import Scope
from penstock.core.commands import Enqueued
from penstock.core.errors import InvalidInput, PenstockError
from penstock.core.job import NewJob
from penstock.core.requests import new_job
from penstock.queue import new_id
from penstock.server.operation import Call, Operation, decoded
from penstock.server.problems import BadRequest, problem
from penstock.server.wire import Batch, BatchAnswer, BatchItem, EnqueuedAnswer, JobRequest, given

_decoder = msgspec.json.Decoder(JobRequest)


async def enqueue_job(call: Call) -> EnqueuedAnswer:
    """Put one job in. Sent again with the same Idempotency-Key it answers with the first one's job, and with 200."""
    asked = keyed(call, new_job(new_id(), given(call.body)))
    await call.service.make_room(call.caller.tenant, [asked.queue])
    enqueued = await call.service.enqueue(call.caller.tenant, asked)
    call.service.metrics.enqueued(asked.queue, enqueued)
    if enqueued.duplicate is not None:
        call.status = 200
    call.headers["Location"] = f"{call.request.scope.get('root_path', '')}/v1/jobs/{enqueued.id}"
    return EnqueuedAnswer(enqueued.id, enqueued.duplicate)


async def enqueue_batch(call: Call) -> BatchAnswer:
    """Put many jobs in, in one transaction; each gets its own answer or its own error."""
    items = [_built(raw) for raw in call.body.jobs]
    jobs = [item for item in items if isinstance(item, NewJob)]
    if call.service.needs_idempotency_key and any(job.idempotency_key is None for job in jobs):
        raise BadRequest("this service takes jobs only with an idempotency_key each")
    if jobs:
        await call.service.make_room(call.caller.tenant, {job.queue for job in jobs})
    answers = iter(await call.service.store.enqueue(call.caller.tenant, jobs) if jobs else ())
    return BatchAnswer(
        [_item(call, item, next(answers) if isinstance(item, NewJob) else item) for item in items]
    )


def keyed(call: Call, asked: NewJob) -> NewJob:
    """A job with the idempotency key of its request."""
    key = idempotency_key(call)
    if key is not None:
        if asked.idempotency_key not in (None, key):
            raise InvalidInput("idempotency_key", "be the same in header and body", asked.idempotency_key)
        return replace(asked, idempotency_key=key)
    if call.service.needs_idempotency_key and asked.idempotency_key is None:
        raise BadRequest("this service takes jobs only with an Idempotency-Key header")
    return asked


def _built(raw: msgspec.Raw) -> NewJob | PenstockError:
    try:
        return new_job(new_id(), given(decoded(_decoder, bytes(raw))))
    except PenstockError as error:
        return error


def _item(call: Call, item: NewJob | PenstockError, answer: Enqueued | PenstockError) -> BatchItem:
    if isinstance(answer, PenstockError):
        return BatchItem(error=problem(answer))
    assert isinstance(item, NewJob)
    call.service.metrics.enqueued(item.queue, answer)
    return BatchItem(answer.id, answer.duplicate)


def idempotency_key(call: Call) -> str | None:
    """The header's key; written as a structured string ("…") or as it is."""
    sent = call.request.headers.get("idempotency-key")
    if sent is None:
        return None
    if len(sent) >= 2 and sent[0] == sent[-1] == '"':
        sent = sent[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    if not 1 <= len(sent) <= 512:
        raise InvalidInput("Idempotency-Key", "be 1 to 512 characters", sent)
    return sent


_EXAMPLE: dict[str, Any] = {
    "type": "email.send",
    "queue": "emails",
    "payload": {"to": "ada@example.com"},
    "priority": 5,
    "max_attempts": 5,
}

OPERATIONS = (
    Operation(
        "POST", "/v1/jobs", enqueue_job, "Enqueue a job", EnqueuedAnswer, Scope.PRODUCE, JobRequest, status=201,
        also={200: "The same idempotency or unique key, or id: the job that stands for it", 409: "Another job has this id"},
        headers={"Idempotency-Key": "1 to 512 characters; within 24 hours the same key answers with the same job"},
        example=_EXAMPLE, tag="Produce",
    ),
    Operation(
        "POST", "/v1/jobs/batch", enqueue_batch, "Enqueue many jobs", BatchAnswer, Scope.PRODUCE, Batch,
        example={"jobs": [_EXAMPLE, {"type": "email.send", "queue": "emails"}]}, tag="Produce",
    ),
)  # fmt: skip
