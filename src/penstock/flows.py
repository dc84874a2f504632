"""Flows as a whole: the jobs that hang together by their parents, read level by level."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from msgspec import Struct

from penstock.core import bounds
from penstock.core.commands import Filter
from penstock.core.job import Job, JobId, Status
from penstock.core.lifecycle import ACTIVE
from penstock.queue import Queue

MOST_JOBS = 500
MOST_CHILDREN_READ = 200
"""Jobs with parents that a page of flows is made from."""


class FlowJob(Struct, frozen=True):
    """A job's part in a flow."""

    id: str
    type: str
    queue: str
    status: Status
    parents: tuple[str, ...]
    created_at: datetime
    run_at: datetime
    started_at: datetime | None
    """When its last attempt began; None if none ever did."""
    ended_at: datetime | None
    attempts: int
    error: str | None


class FlowView(Struct, frozen=True):
    """All jobs that hang together with one."""

    id: str
    """Of its first job; a flow may have several that wait for none."""
    jobs: list[FlowJob]
    """In the order in which they were made."""
    is_complete: bool
    """False: there are more jobs than are shown."""


class FlowSummary(Struct, frozen=True):
    id: str
    type: str
    """Of its first job."""
    counts: dict[Status, int]
    created_at: datetime
    ended_at: datetime | None
    """None while a part of it goes on."""
    is_complete: bool


class FlowPage(Struct, frozen=True):
    flows: list[FlowSummary]
    next: str | None = None


async def flow(queue: Queue, job_id: str) -> FlowView:
    """The flow that a job is part of; of a job that has neither parents nor children, just that."""
    jobs, is_complete = await _connected(queue, await queue.get(job_id))
    began = await _began(queue, jobs)
    shown = [
        FlowJob(
            job.id, job.type, job.queue, job.status, job.asked.parents, job.created_at, job.run_at,
            began.get(job.id), job.ended_at, job.attempts, job.error,
        )
        for job in jobs
    ]  # fmt: skip
    return FlowView(_root(jobs).id, shown, is_complete)


async def recent_flows(queue: Queue, *, after: str | None = None, limit: int = 20) -> FlowPage:
    """Flows whose youngest jobs were made last; a flow may turn up on two pages if others were made in between."""
    page = await queue.find(after=after, limit=MOST_CHILDREN_READ, in_flow=True)
    seen: set[JobId] = set()
    flows: list[FlowSummary] = []
    for place, job in enumerate(page.jobs):
        if job.id in seen:
            continue
        if len(flows) == limit:
            return FlowPage(flows, page.jobs[place - 1].id)
        jobs, is_complete = await _connected(queue, job)
        seen.update(one.id for one in jobs)
        flows.append(_summary(jobs, is_complete))
    return FlowPage(flows, page.next)


async def _connected(queue: Queue, job: Job) -> tuple[list[Job], bool]:
    """Everything that hangs together with a job, by two questions a level: whom it waits for, who waits for it."""
    jobs: dict[JobId, Job] = {job.id: job}
    fresh = [job]
    is_complete = True
    while fresh and len(jobs) < MOST_JOBS:
        above = list({parent for one in fresh for parent in one.asked.parents} - jobs.keys())
        found = (
            [one for one in await queue.store.get(queue.tenant, above) if isinstance(one, Job)]
            if above
            else []
        )
        for some in batched([one.id for one in fresh], bounds.MOST_PARENTS):
            children = Filter(parents=tuple(some))
            page = await queue.store.find(queue.tenant, children, after=None, limit=MOST_JOBS)
            is_complete = is_complete and page.next is None
            found += page.jobs
        fresh = [one for one in {one.id: one for one in found}.values() if one.id not in jobs]
        jobs.update((one.id, one) for one in fresh)
    kept = sorted(jobs.values(), key=lambda one: one.id)[:MOST_JOBS]
    return kept, is_complete and not fresh and len(jobs) <= MOST_JOBS


def batched(ids: Sequence[JobId], most: int) -> Iterator[Sequence[JobId]]:
    return (ids[start : start + most] for start in range(0, len(ids), most))


async def _began(queue: Queue, jobs: Iterable[Job]) -> dict[JobId, datetime]:
    subjects = [("job", job.id) for job in jobs if job.leases]
    histories = await queue.store.history(queue.tenant, subjects) if subjects else []
    began: dict[JobId, datetime] = {}
    for (_, name), history in zip(subjects, histories, strict=True):
        if not isinstance(history, Exception) and history.attempts:
            began[JobId(name)] = history.attempts[-1].started_at
    began.update((job.id, job.lease.taken_at) for job in jobs if job.lease is not None)
    return began


def _root(jobs: list[Job]) -> Job:
    return next((job for job in jobs if not job.asked.parents), jobs[0])


def _summary(jobs: list[Job], is_complete: bool) -> FlowSummary:
    counts: dict[Status, int] = {}
    for job in jobs:
        counts[job.status] = counts.get(job.status, 0) + 1
    ended = (
        None
        if any(job.status in ACTIVE for job in jobs)
        else max(job.ended_at or job.created_at for job in jobs)
    )
    root = _root(jobs)
    return FlowSummary(root.id, root.type, counts, root.created_at, ended, is_complete)
