"""Leased jobs for handlers in processes, and waiting for processes to be gone."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from penstock.core.codec import JsonText
from penstock.core.commands import Leased, Parent
from penstock.core.job import Job, JobId, Lease, LeaseToken, NewJob, Status
from penstock.worker.execution import Ending, How
from penstock.worker.handlers import Handler
from penstock.worker.processes import ProcessPool
from support.process_handlers import Decorated

NOW = datetime(2030, 1, 1, tzinfo=UTC)
PATIENCE_SECONDS = 60
"""Long past anything that works, on however busy a machine."""


def leased(payload: dict[str, Any], parents: tuple[Parent, ...] = (), **asked: Any) -> Leased:
    new = NewJob(JobId("job"), "test", payload=JsonText(json.dumps(payload)), **asked)
    token = LeaseToken("token")
    lease = Lease(token, "worker", NOW, NOW, 30)
    return Leased(
        Job(new, "default", NOW, NOW, Status.RUNNING, NOW, attempts=2, leases=3, lease=lease), token, parents
    )


async def run(
    pool: ProcessPool,
    handler: Handler | Decorated,
    report: Callable[[Any], None] = lambda value: None,
    **payload: Any,
) -> Ending:
    handler = handler.handler if isinstance(handler, Decorated) else handler
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await pool.run(handler, leased(payload), report)


async def result(pool: ProcessPool, handler: Handler | Decorated, **payload: Any) -> Any:
    ending = await run(pool, handler, **payload)
    assert ending.how is How.ACK, ending.error
    return None if ending.result is None else json.loads(ending.result)


class Started:
    """A run that is under way, and what it has reported."""

    def __init__(self, pool: ProcessPool, handler: Decorated, **payload: Any) -> None:
        self._reports: asyncio.Queue[Any] = asyncio.Queue()
        self.task = asyncio.create_task(run(pool, handler, self._reports.put_nowait, **payload))

    async def reported(self) -> Any:
        """The next value it reports; fails if it ends before."""
        report = asyncio.create_task(self._reports.get())
        await asyncio.wait([report, self.task], timeout=PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not report.done():
            report.cancel()
            raise AssertionError(f"ended without a report: {self.task}")
        return report.result()

    async def cancelled(self) -> bool:
        """Cancel it, and wait for that."""
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        return self.task.cancelled()


async def gone(pid: int) -> bool:
    """Wait until a process has ended, whosever child it is."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ended.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
    return True


def exists(pid: int) -> bool:
    """Whether there is such a process, be it a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
