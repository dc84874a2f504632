"""Somebody who follows the feed of a store."""

from __future__ import annotations

import asyncio

from penstock.core.ports import Store
from penstock.core.registry import Event

LONG = 20
"""Seconds that only a test which fails waits for."""


class Follower:
    """Follows a tenant's feed from a cursor on, and remembers where it is."""

    def __init__(self, store: Store, cursor: str, tenant: str = "default") -> None:
        self.store, self.cursor, self.tenant = store, cursor, tenant

    async def hears(self, number: int, limit: int = 500) -> list[Event]:
        """The next events, and no more than that; a store may tell them a moment later, while others are writing."""
        heard: list[Event] = []
        async with asyncio.timeout(LONG):
            while len(heard) < number:
                heard += await self.polls(limit)
        assert await self.polls(limit) == []
        assert len(heard) == number
        return heard

    async def hears_some(self, limit: int = 500) -> list[Event]:
        """The next page that has anything."""
        async with asyncio.timeout(LONG):
            while not (heard := await self.polls(limit)):
                pass
        return heard

    async def polls(self, limit: int = 500) -> list[Event]:
        page = await self.store.events(self.tenant, after=self.cursor, limit=limit)
        assert len(page.events) <= limit
        self.cursor = page.next
        return list(page.events)


async def follow(store: Store, tenant: str = "default") -> Follower:
    """From now on."""
    page = await store.events(tenant, limit=500)
    assert page.events == ()
    return Follower(store, page.next, tenant)
