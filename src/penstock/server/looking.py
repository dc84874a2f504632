"""Look at jobs: one, many, their history, their results, and why they do not run."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from penstock import bulk
from penstock.access import Scope
from penstock.core import bounds
from penstock.core.archive import Archived
from penstock.core.errors import JobNotFound
from penstock.core.job import Cause, Job, JobId, Status
from penstock.core.lifecycle import ACTIVE
from penstock.explain import Explanation, explain
from penstock.server.operation import Call, Operation
from penstock.server.wire import (
    LONGEST_WAIT_SECONDS,
    ChangedAnswer,
    HistoryAnswer,
    Id,
    JobAnswer,
    JobsAnswer,
    Key,
    Moment,
    Name,
    ReasonRequest,
    RedriveRequest,
    ResultAnswer,
    archived_answer,
    conditions,
    history_answer,
    job_answer,
    raw,
)
from penstock.stores.wakeups import Backoff

LOOK_SECONDS = (0.01, 1.0)


class JobsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    status: list[Status] | UnsetType = UNSET
    """One or several."""
    queue: Name | UnsetType = UNSET
    type: Name | UnsetType = UNSET
    key: Key | UnsetType = UNSET
    schedule: Name | UnsetType = UNSET
    cause: Cause | UnsetType = UNSET
    created_from: Moment | UnsetType = UNSET
    created_before: Moment | UnsetType = UNSET
    parents: Annotated[list[Id], Meta(max_length=bounds.MOST_PARENTS)] | UnsetType = UNSET
    """Children of this job, or of any of several."""
    in_flow: bool | UnsetType = UNSET
    """Only jobs that have parents."""
    after: Id | UnsetType = UNSET
    """The `next` of the page before."""
    limit: Annotated[int, Meta(ge=1, le=bounds.MOST_LISTED)] = 100
    count: bool = False
    """Also count all that match, up to 10,000."""


class WaitQuery(Struct, frozen=True, forbid_unknown_fields=True):
    wait: Annotated[float, Meta(ge=0, le=LONGEST_WAIT_SECONDS)] = 0.0
    """Seconds to wait for the job to end."""


def job_id(call: Call) -> JobId:
    return JobId(bounds.job_id("id", call.path["id"]))


async def list_jobs(call: Call) -> JobsAnswer:
    """Jobs that match, newest first, a page at a time."""
    query: JobsQuery = call.query
    chosen = conditions(query)
    after = None if query.after is UNSET else query.after
    page = await call.caller.queue.find(after=after, limit=query.limit, **chosen)
    count, is_exact = await bulk.count(call.caller.queue, chosen) if query.count else (None, None)
    if page.next is not None:
        url = call.request.url.include_query_params(after=page.next)
        call.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
    return JobsAnswer([job_answer(job) for job in page.jobs], page.next, count, is_exact)


async def get_job(call: Call) -> JobAnswer:
    """A job as it stands; one that has left the store, as the lake has it."""
    try:
        return job_answer(await call.service.get(call.caller.tenant, job_id(call)))
    except JobNotFound:
        return archived_answer(await _archived(call))


async def get_attempts(call: Call) -> HistoryAnswer:
    """The audit trail of a job: every attempt, and what people and rules did besides. One that has left is in the lake."""
    try:
        return history_answer(await call.caller.queue.history(job_id(call)))
    except JobNotFound:
        found = await _archived(call)
        return replace(history_answer(found.history), source="lake", data_as_of=found.data_as_of)


async def _archived(call: Call) -> Archived:
    """The job in the lake, if there is one that has it; else it is not found, whosever it may be."""
    archive, wanted = call.service.archive, job_id(call)
    found = None if archive is None else await archive.find(call.caller.tenant, wanted)
    if found is None:
        raise JobNotFound(wanted)
    return found


async def get_result(call: Call) -> ResultAnswer:
    """What a job came to; with `wait`, as soon as it has ended. 202 while it has not."""
    job = await _ended(call, call.query.wait)
    if job.status in ACTIVE:
        call.status = 202
    return ResultAnswer(job.id, job.status, raw(job.result), job.error, job.cause)


async def _ended(call: Call, wait_seconds: float) -> Job:
    clock = asyncio.get_running_loop().time
    deadline = clock() + wait_seconds
    wanted = job_id(call)
    for pause in Backoff(Random(), *LOOK_SECONDS):
        job = await call.service.get(call.caller.tenant, wanted)
        left = deadline - clock()
        if (
            job.status not in ACTIVE
            or left <= 0
            or call.service.is_leaving
            or await call.request.is_disconnected()
        ):
            return job
        await asyncio.sleep(min(pause, left))
    raise AssertionError("back-off never ends")


async def explain_job(call: Call) -> Explanation:
    """Why a job is not running, in words."""
    return await explain(call.caller.queue, job_id(call))


async def cancel_job(call: Call) -> ChangedAnswer:
    """Cancel a job: at once if it does not run; one that runs is asked to stop."""
    changed = await call.caller.queue.cancel(job_id(call), call.body.reason)
    return ChangedAnswer(changed.job_id, changed.status, changed.cancel_requested, changed.others)


async def redrive_job(call: Call) -> ChangedAnswer:
    """Bring a dead, held or cancelled job back, with its history."""
    changed = await call.caller.queue.redrive(
        job_id(call), call.body.reason, descendants=call.body.descendants
    )
    return ChangedAnswer(changed.job_id, changed.status, changed.cancel_requested, changed.others)


_ONE = {404: "No such job in this tenant"}
_SEE = (Scope.READ, Scope.PRODUCE, Scope.WORK, Scope.OPERATE)

OPERATIONS = (
    Operation("GET", "/v1/jobs", list_jobs, "List jobs by filter", JobsAnswer, (Scope.READ, Scope.OPERATE),
              query=JobsQuery, tag="Look"),
    Operation("GET", "/v1/jobs/{id}", get_job, "Look at a job", JobAnswer, _SEE, also=_ONE, tag="Look"),
    Operation("GET", "/v1/jobs/{id}/attempts", get_attempts, "Read a job's audit trail", HistoryAnswer,
              (Scope.READ, Scope.OPERATE), also=_ONE, tag="Look"),
    Operation("GET", "/v1/jobs/{id}/result", get_result, "Wait for a job's result", ResultAnswer, _SEE,
              query=WaitQuery, also={202: "It has not ended yet", **_ONE}, tag="Look"),
    Operation("GET", "/v1/jobs/{id}/explain", explain_job, "Say why a job is not running", Explanation, _SEE,
              also=_ONE, tag="Look"),
    Operation("POST", "/v1/jobs/{id}/cancel", cancel_job, "Cancel a job", ChangedAnswer, (Scope.OPERATE, Scope.PRODUCE),
              ReasonRequest, body_is_optional=True, also={**_ONE, 409: "It has ended already"},
              example={"reason": "ordered twice"}, tag="Operate"),
    Operation("POST", "/v1/jobs/{id}/redrive", redrive_job, "Bring a job back", ChangedAnswer, Scope.OPERATE,
              RedriveRequest, body_is_optional=True, also={**_ONE, 409: "It is not dead, held or cancelled"},
              example={"reason": "the mail server is back"}, tag="Operate"),
)  # fmt: skip
