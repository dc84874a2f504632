"""Those who follow what happens: however many there are of a tenant, one looks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.core.errors import PenstockError
from penstock.core.ports import Store
from penstock.core.registry import Event

logger = logging.getLogger("penstock.server")

LOOK_SECONDS = 0.5
AT_ONCE = 500
MOST_BEHIND = 10_000


class TooFarBehind(Exception):
    """A follower reads more slowly than things happen. It may come back where it was."""


class Follower:
    """What one who follows has yet to hear."""

    def __init__(self) -> None:
        self._heard: asyncio.Queue[tuple[Event, ...] | None] = asyncio.Queue()
        self._waiting = 0

    def tell(self, events: tuple[Event, ...]) -> None:
        self._waiting += len(events)
        if self._waiting <= MOST_BEHIND:
            self._heard.put_nowait(events)

    def end(self) -> None:
        """There is nothing more to hear."""
        self._heard.put_nowait(None)

    async def next(self, timeout_seconds: float) -> tuple[Event, ...] | None:
        """What has happened since the last call; nothing if the time is up, None if there will be no more."""
        if self._waiting > MOST_BEHIND:
            raise TooFarBehind
        try:
            async with asyncio.timeout(timeout_seconds):
                events = await self._heard.get()
        except TimeoutError:
            return ()
        self._waiting -= len(events or ())
        return events


class Feeds:
    """The tenants that are followed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._followers: dict[str, set[Follower]] = {}
        self._tasks: dict[str, tuple[asyncio.Task[None], asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def follow(self, tenant: str) -> AsyncIterator[Follower]:
        """Hear everything from some moment before this returns."""
        follower = Follower()
        followers = self._followers.setdefault(tenant, set())
        followers.add(follower)
        try:
            if tenant not in self._tasks:
                begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._tasks[tenant] = asyncio.create_task(self._look(tenant, begun)), begun
            await asyncio.shield(self._tasks[tenant][1])
            yield follower
        finally:
            followers.discard(follower)
            if not followers:
                self._followers.pop(tenant, None)
                if (looking := self._tasks.pop(tenant, None)) is not None:
                    looking[0].cancel()

    def leave(self) -> None:
        """Let everyone go who follows; they may come back elsewhere."""
        for followers in self._followers.values():
            for follower in followers:
                follower.end()

    async def close(self) -> None:
        for task, _ in self._tasks.values():
            task.cancel()

    async def _look(self, tenant: str, begun: asyncio.Future[None]) -> None:
        cursor: str | None = None
        while True:
            try:
                page = await self._store.events(tenant, after=cursor, limit=AT_ONCE)
            except PenstockError as error:
                logger.warning("what happens cannot be told at the moment: %s", error)
                if cursor is None and not begun.done():
                    begun.set_exception(error)
                    return
                await asyncio.sleep(LOOK_SECONDS * 4)
                continue
            cursor = page.next
            if not begun.done():
                begun.set_result(None)
            if page.events:
                for follower in self._followers.get(tenant, ()):
                    follower.tell(page.events)
            if len(page.events) < AT_ONCE:
                await asyncio.sleep(LOOK_SECONDS)
