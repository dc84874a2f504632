"""Jobs that wait for other jobs, put in together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from penstock.app.handle import JobHandle
from penstock.app.sync import Sync
from penstock.core.commands import Changed
from penstock.core.errors import NotAllowed, PenstockError
from penstock.core.job import Cause, Job, JobId, NewJob, Status
from penstock.telemetry import spans

if TYPE_CHECKING:
    from penstock.app.penstock import Penstock

Node = NewJob | JobHandle | JobId
"""What a job may wait for: another of the flow, or one that was put in before."""


class Flow:
    """A flow to be.

    >>> flow = app.flow()                                                            # doctest: +SKIP
    ... pages = flow.add(fetch.new(url))
    ... parts = [flow.add(parse.new(part), after=pages) for part in range(3)]
    ... flow.add(store.new(), after=parts)
    ... run = await flow.enqueue()
    ... await run.results(timeout=60)
    """

    def __init__(self, app: Penstock) -> None:
        self._app = app
        self._jobs: list[NewJob] = []

    @property
    def sync(self) -> Any:
        return Sync(self, self._app.portal)

    def add(self, job: NewJob, *, after: Node | Iterable[Node] = ()) -> NewJob:
        """Add a job that runs once those it comes `after` have succeeded; its handler sees their results."""
        nodes = [after] if isinstance(after, NewJob | JobHandle | str) else list(after)
        parents = dict.fromkeys(
            [*job.parents, *(node if isinstance(node, str) else node.id for node in nodes)]
        )
        job = replace(job, parents=tuple(JobId(parent) for parent in parents))
        self._jobs.append(job)
        return job

    def chain(self, *jobs: NewJob, after: Node | Iterable[Node] = ()) -> NewJob:
        """Add jobs that run one after the other; returns the last."""
        if not jobs:
            raise ValueError("a chain needs at least one job")
        for job in jobs:
            after = self.add(job, after=after)
        assert isinstance(after, NewJob)
        return after

    async def enqueue(self, *, conn: object = None) -> FlowHandle:
        """Put all of it in with one call: all jobs, or none if one is refused."""
        with spans().sending(self._jobs, batch=True):
            answers = await self._app.queue.enqueue_many(self._jobs, conn=conn)
        refused = [answer for answer in answers if isinstance(answer, PenstockError)]
        if refused:
            # What did get in must not run without the rest.
            put = [
                answer.id
                for answer in answers
                if not isinstance(answer, PenstockError) and answer.duplicate is None
            ]
            for job_id in put if conn is None else []:
                await self._app.queue.cancel(job_id, "another job of its flow was refused")
            raise refused[0]
        return FlowHandle(
            self._app,
            [
                JobHandle(self._app, answer.id, answer.duplicate)
                for answer in answers
                if not isinstance(answer, PenstockError)
            ],
        )


class FlowHandle:
    """A flow that was put in."""

    def __init__(self, app: Penstock, jobs: Sequence[JobHandle]) -> None:
        self._app = app
        self.jobs = list(jobs)
        """In the order in which they were added."""

    @property
    def sync(self) -> Any:
        return Sync(self, self._app.portal)

    async def status(self) -> dict[JobId, Status]:
        """The state of each job."""
        return {job.id: job.status for job in await self._now()}

    async def results(self, timeout: float | None = None) -> dict[JobId, Any]:
        """Wait for every job; what each returned. Raises JobFailed for the first that did not end well."""
        deadline = None if timeout is None else time.monotonic() + timeout
        found = {}
        for handle in self.jobs:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            found[handle.id] = await handle.result(left)
        return found

    async def retry(self, reason: str | None = None) -> list[Changed]:
        """Go on from where it failed: bring back the jobs that failed, and those cancelled because of them.

        What succeeded does not run again.
        """
        changed = []
        for job in await self._now():
            is_root = job.status in (Status.DEAD, Status.HELD, Status.CANCELLED)
            if is_root and job.cause is not Cause.PARENT_FAILED:
                try:
                    changed.append(await self._app.queue.redrive(job.id, reason, descendants=True))
                except NotAllowed:
                    pass  # somebody else has brought it back meanwhile
        return changed

    async def cancel(self, reason: str | None = None) -> None:
        """Cancel whatever has not ended."""
        active = [
            job.id
            for job in await self._now()
            if job.status in (Status.WAITING, Status.QUEUED, Status.RUNNING)
        ]
        for job_id in active:
            try:
                await self._app.queue.cancel(job_id, reason)
            except NotAllowed:
                pass  # it has ended meanwhile

    async def _now(self) -> list[Job]:
        return list(await asyncio.gather(*(handle.job() for handle in self.jobs)))
