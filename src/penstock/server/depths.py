"""Back-pressure: a queue that is set to hold so many jobs takes no more in while it does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from penstock.core.errors import Overloaded
from penstock.core.job import Status
from penstock.core.ports import Store

LOOK_SECONDS = 1.0
RETRY_SECONDS = 5.0


class Depths:
    """How full the queues of tenants are, looked up at most once a second, and only where a limit is set."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._full: dict[str, dict[str, tuple[int, int]]] = {}
        self._looked_at: dict[str, float] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}

    async def check(self, tenant: str, queues: Iterable[str]) -> None:
        """Overloaded if one of these queues is full."""
        looked_at = self._looked_at.get(tenant)
        if looked_at is None:
            await self._look(tenant)
        elif time.monotonic() - looked_at > LOOK_SECONDS and tenant not in self._looking:
            # Nobody waits for the look: what is known is at most a second and a look old.
            task = self._looking[tenant] = asyncio.create_task(self._look(tenant))
            task.add_done_callback(lambda done: self._done(tenant, done))
        full = self._full.get(tenant)
        if full:
            for queue in queues:
                if queue in full:
                    raise Overloaded(queue, *full[queue], RETRY_SECONDS)

    async def _look(self, tenant: str) -> None:
        full = {}
        for view in await self._store.queues(tenant):
            most = view.settings.max_depth
            depth = view.counts.get(Status.QUEUED, 0)
            if most is not None and depth >= most:
                full[view.name] = (depth, most)
        self._full[tenant] = full
        self._looked_at[tenant] = time.monotonic()

    def _done(self, tenant: str, task: asyncio.Task[None]) -> None:
        self._looking.pop(tenant, None)
        if not task.cancelled():
            task.exception()  # the store is away: those who enqueue learn of it by themselves
