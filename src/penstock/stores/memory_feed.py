"""The feed of the memory store."""

from __future__ import annotations

from penstock.core.registry import Events


class MemoryFeed:
    """What happened in the memory store, for those who follow."""

    async def events(self, tenant: str, *, after: str | None = None, limit: int) -> Events:
        raise NotImplementedError
