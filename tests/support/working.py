"""A worker at work, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from penstock.worker.worker import Stopped, Worker

LONG = 60.0
"""However busy the machine: processes are waited for, too."""


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what gives no signal: the state of a store."""
    async with asyncio.timeout(LONG):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Running:
    """A worker at work."""

    def __init__(self, worker: Worker, task: asyncio.Task[Stopped]) -> None:
        self.worker = worker
        self.task = task

    async def idle(self) -> bool:
        """Whether nothing is in its hand."""
        return not len(self.worker._hand)

    async def stop(self) -> Stopped:
        self.worker.stop()
        return await asyncio.wait_for(self.task, LONG)


Work = Callable[..., AbstractAsyncContextManager[Running]]
