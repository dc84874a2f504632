"""Stand in for what other branches bring: goes away with the merge."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from penstock import access, bulk
from penstock.access import Scope, Token
from penstock.core.errors import NotFound, Unauthorized
from penstock.core.limits import Rate
from penstock.queue import new_id


class Access:
    def __init__(self, store: Any, *, remember_seconds: float = 2.0) -> None:
        self._by_secret: dict[str, Token] = {}

    async def check(self, secret: str) -> Token:
        token = self._by_secret.get(hashlib.sha256(secret.encode()).hexdigest())
        if token is None:
            raise Unauthorized("this token is not known, has expired or was revoked")
        return token

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
        token = Token(new_id(), tenant, name, tuple(map(Scope, scopes)), datetime.now(UTC), actor, rate=rate)
        secret = secret or f"pst_{token.id}"
        self._by_secret[hashlib.sha256(secret.encode()).hexdigest()] = token
        return token, secret

    async def rotate(self, tenant: str, token_id: str, **_: Any) -> tuple[Token, str]:
        raise NotFound("no such token")

    async def revoke(self, tenant: str, token_id: str, **_: Any) -> Token:
        raise NotFound("no such token")

    async def tokens(self, tenant: str) -> list[Token]:
        return [token for token in self._by_secret.values() if token.tenant == tenant]


class BulkRunner:
    def __init__(self, store: Any) -> None: ...

    async def run(self) -> None:
        await asyncio.Event().wait()


def install() -> None:
    from penstock.server import app
    from support import service

    access.Access = service.Access = Access  # type: ignore[misc,assignment,attr-defined]
    bulk.BulkRunner = app.BulkRunner = BulkRunner  # type: ignore[misc,assignment,attr-defined]
