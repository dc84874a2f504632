"""Wake-ups within one process: for the memory store, and wherever workers and callers share a process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from penstock.core.wakeups import Bell, WakeupsStatus
from penstock.stores.wakeups.bells import Switchboard, Topic


class MemoryWakeups:
    """Rings the bells of this process and no others. There is no message, so there is nothing to gather."""

    def __init__(self, switchboard: Switchboard | None = None) -> None:
        self._switchboard = switchboard or Switchboard()

    def wake(self, tenant: str, queues: Iterable[str]) -> None:
        for queue in queues:
            self._switchboard.ring(Topic(tenant, queue))

    def listen(self, tenant: str, queues: Iterable[str]) -> AbstractAsyncContextManager[Bell]:
        return self._listen(tenant, queues)

    @asynccontextmanager
    async def _listen(self, tenant: str, queues: Iterable[str]) -> AsyncIterator[Bell]:
        with self._switchboard.bell(tenant, queues) as bell:
            yield bell

    async def start(self) -> None:
        pass

    def status(self) -> WakeupsStatus:
        return WakeupsStatus("memory", healthy=True, detail="wakes workers of the same process only")

    async def close(self) -> None:
        pass
