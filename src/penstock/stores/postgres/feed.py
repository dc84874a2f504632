"""What happened, as a feed that leaves nothing out."""

from __future__ import annotations

from penstock.core.registry import Events
from penstock.stores.postgres.registry import Registry


class Feed(Registry):
    """The part of the store that tells what happened."""

    async def events(self, tenant: str, *, after: str | None = None, limit: int) -> Events:
        raise NotImplementedError
