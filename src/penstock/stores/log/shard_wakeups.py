"""How those who sleep on queues of several logs are woken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from random import Random
from typing import Protocol

from penstock.core.errors import PenstockError
from penstock.core.wakeups import CANCELS, Bell, WakeupsStatus
from penstock.stores.log.store import LogStore
from penstock.stores.wakeups.bells import Switchboard
from penstock.stores.wakeups.loop import end
from penstock.stores.wakeups.memory import MemoryWakeups
from penstock.stores.wakeups.polling import Backoff


class Logs(Protocol):
    """What has several logs."""

    @property
    def known_logs(self) -> Sequence[LogStore]: ...

    async def logs(self) -> Sequence[LogStore]: ...

    def shard(self, tenant: str, queue: str) -> int: ...


class ShardWakeups(MemoryWakeups):
    """One switchboard for all logs; only those are followed whose queues somebody listens for."""

    def __init__(self, store: Logs) -> None:
        super().__init__()
        self._store = store
        self._problem: str | None = None

    @property
    def switchboard(self) -> Switchboard:
        return self._switchboard

    def listen(self, tenant: str, queues: Iterable[str]) -> AbstractAsyncContextManager[Bell]:
        return self._listen_and_follow(tenant, list(queues))

    @asynccontextmanager
    async def _listen_and_follow(self, tenant: str, queues: Sequence[str]) -> AsyncIterator[Bell]:
        async with AsyncExitStack() as stack:
            bell = stack.enter_context(self._switchboard.bell(tenant, queues))
            if await self._is_laid_out():
                await self._follow(stack, tenant, queues)
                yield bell
                return
            later = asyncio.create_task(self._follow_later(stack, tenant, queues), name="penstock logs")
            try:
                yield bell
            finally:
                await end(later)

    async def _is_laid_out(self) -> bool:
        try:
            await self._store.logs()
        except PenstockError as error:
            self._problem = error.message
            return False
        self._problem = None
        return True

    async def _follow(self, stack: AsyncExitStack, tenant: str, queues: Sequence[str]) -> None:
        logs = await self._store.logs()
        # Who listens for cancelled jobs holds some, and so listens for their queues too.
        wanted = {
            0 if queue.startswith("!") else self._store.shard(tenant, queue)
            for queue in queues
            if queue != CANCELS or len(logs) == 1
        }
        for number in sorted(wanted):
            await stack.enter_async_context(logs[number].wakeups.listen(tenant, ()))

    async def _follow_later(self, stack: AsyncExitStack, tenant: str, queues: Sequence[str]) -> None:
        waits = Backoff(Random())
        for seconds in waits:
            if await self._is_laid_out():
                break
            await asyncio.sleep(seconds)
        await self._follow(stack, tenant, queues)
        self.wake(tenant, queues)

    async def start(self) -> None:
        if await self._is_laid_out():
            await self._store.known_logs[0].wakeups.start()

    def status(self) -> WakeupsStatus:
        if self._problem is not None:
            return WakeupsStatus("log", healthy=False, detail=self._problem)
        every = [log.wakeups.status() for log in self._store.known_logs]
        ill = [one for one in every if not one.healthy]
        return next(
            iter(ill or every),
            WakeupsStatus("log", healthy=True, detail="wakes by reading what others wrote to the log"),
        )
