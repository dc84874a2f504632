"""A handle on a job: ask what became of it, wait for its result, cancel it."""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import TYPE_CHECKING, Any

from penstock.app.sync import Sync
from penstock.core.codec import decode
from penstock.core.commands import Changed, Duplicate
from penstock.core.errors import JobFailed
from penstock.core.job import Job, JobId, Status
from penstock.queue import Queue
from penstock.stores.wakeups import Backoff

if TYPE_CHECKING:
    from penstock.app.penstock import Penstock

LOOK_SECONDS = 0.01
LONGEST_SECONDS = 1.0


class JobHandle:
    """A job that was put in, or the one that stands for it."""

    __slots__ = ("_app", "duplicate", "id")

    def __init__(self, app: Penstock, id: JobId, duplicate: Duplicate | None = None) -> None:
        self._app = app
        self.id = id
        self.duplicate = duplicate
        """What made the store answer with a job that was there before; None for a new one."""

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r})"

    @property
    def sync(self) -> Any:
        """The same for code that is not async: `handle.sync.result(timeout=30)`."""
        return Sync(self, self._app.portal)

    async def job(self) -> Job:
        """The job as it stands."""
        return await self._app.queue.get(self.id)

    async def status(self) -> Status:
        return (await self.job()).status

    async def wait(self, timeout: float | None = None) -> Job:
        """Wait until the job has ended, one way or another; TimeoutError if that takes longer."""
        return await ended(self._app.queue, self.id, timeout)

    async def result(self, timeout: float | None = None) -> Any:
        """What the handler returned. Raises JobFailed if the job ended any other way than well, TimeoutError if it takes longer."""
        job = await self.wait(timeout)
        if job.status is not Status.SUCCEEDED:
            raise JobFailed(job.id, job.status, job.error, job.cause)
        return None if job.result is None else decode(job.result)

    async def cancel(self, reason: str | None = None) -> Changed:
        """Cancel the job, or ask it to stop if it runs."""
        return await self._app.queue.cancel(self.id, reason)


async def ended(queue: Queue, job_id: str, timeout: float | None = None) -> Job:
    """Wait until a job has ended, one way or another; TimeoutError if that takes longer."""
    deadline = None if timeout is None else time.monotonic() + timeout
    for pause in Backoff(Random(), LOOK_SECONDS, LONGEST_SECONDS):
        job = await queue.get(job_id)
        if job.status in (Status.SUCCEEDED, Status.DEAD, Status.HELD, Status.CANCELLED):
            return job
        if deadline is not None and time.monotonic() + pause > deadline:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"job {job_id} is still {job.status} after {timeout:g} seconds")
            pause = deadline - time.monotonic()
        await asyncio.sleep(max(0.0, pause))
    raise AssertionError("a back-off never ends")
