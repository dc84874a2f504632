"""Who may do what: tokens, their scopes, and how they are checked."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from penstock.core.limits import Rate
from penstock.core.ports import Store


class Scope(StrEnum):
    PRODUCE = "produce"
    """Enqueue jobs, and look at those whose id one knows."""
    WORK = "work"
    """Lease, settle and send heartbeats."""
    READ = "read"
    """Look at everything."""
    OPERATE = "operate"
    """Cancel, redrive, pause, set queues and schedules."""
    ADMIN = "admin"
    """All of it, and tokens."""


class Token(Struct, frozen=True):
    """A token as people may see it: never its secret."""

    id: str
    tenant: str
    """`*` for a token of the service itself, which names the tenant with each request."""
    name: str
    scopes: tuple[Scope, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    last_seen_at: datetime | None = None
    rate: Rate | None = None
    replaced_by: str | None = None
    """The token that takes its place, while it still works beside it."""

    def allows(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes


class Access:
    """The tokens in a store. One per process: it remembers for a moment what it has looked up."""

    def __init__(self, store: Store, *, remember_seconds: float = 2.0) -> None:
        raise NotImplementedError

    async def check(self, secret: str) -> Token:
        """The token that a caller sent; Unauthorized if there is none such, or no longer."""
        raise NotImplementedError

    async def create(
        self,
        tenant: str,
        name: str,
        scopes: Iterable[str],
        *,
        actor: str,
        expires_in: float | None = None,
        rate: Rate | None = None,
        secret: str | None = None,
    ) -> tuple[Token, str]:
        """A new token and its secret, which nobody can look up later."""
        raise NotImplementedError

    async def rotate(
        self, tenant: str, token_id: str, *, actor: str, overlap_seconds: float = 86_400
    ) -> tuple[Token, str]:
        """A new token in the place of one, which goes on for a while beside it."""
        raise NotImplementedError

    async def revoke(self, tenant: str, token_id: str, *, actor: str, reason: str | None = None) -> Token:
        raise NotImplementedError

    async def tokens(self, tenant: str) -> list[Token]:
        raise NotImplementedError
