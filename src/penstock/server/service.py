"""What all operations share: the store, who calls, and the grouping of single calls into batches."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from msgspec import Struct
from starlette.requests import Request

from penstock.access import Access, Scope, Token
from penstock.coalesce import MOST_GROUPS, Groups
from penstock.core import bounds
from penstock.core.archive import Archive
from penstock.core.commands import Beat, Enqueued, Heartbeat, Settle, Settled
from penstock.core.errors import Forbidden, Overloaded, RateLimited, Unauthorized
from penstock.core.job import Job, JobId, NewJob
from penstock.core.limits import Rate
from penstock.core.registry import ALL_TENANTS
from penstock.figures.historian import LOOK_SECONDS, Historian
from penstock.queue import Queue
from penstock.server.depths import Depths
from penstock.server.feeds import Feeds
from penstock.server.limits import Keeper, Limits
from penstock.server.lines import Lines
from penstock.server.metrics import ServiceMetrics
from penstock.server.rings import Rings
from penstock.server.sessions import Sessions

logger = logging.getLogger("penstock.server")

TENANT_HEADER = "penstock-tenant"
MOST_BYTES = 16 * 1_048_576
BODY_SECONDS = 30.0
"""How long a body may take to arrive."""


class Caller(Struct, frozen=True):
    """Who calls, and the jobs that are theirs."""

    token: Token | None
    queue: Queue

    @property
    def tenant(self) -> str:
        return self.queue.tenant

    @property
    def is_the_service(self) -> bool:
        """Whether it may see to all tenants."""
        return self.token is not None and self.token.tenant == ALL_TENANTS


class Service:
    """One instance of the service on a store."""

    def __init__(
        self,
        queue: Queue,
        access: Access,
        *,
        most_bytes: int = MOST_BYTES,
        body_seconds: float = BODY_SECONDS,
        needs_idempotency_key: bool = False,
        tenant_rate: Rate | None = None,
        allowances: Keeper | None = None,
        figures_seconds: float = LOOK_SECONDS,
        archive: Archive | None = None,
    ) -> None:
        """`allowances` says where rate limits are kept, if not in the store itself; `figures_seconds` how soon figures follow;
        `archive` who knows of jobs that left.
        """
        self.queue = queue
        self.store = queue.store
        self.access = access
        self.sessions = Sessions(queue.store, access)
        self.most_bytes = most_bytes
        self.body_seconds = body_seconds
        self.needs_idempotency_key = needs_idempotency_key
        self.archive = archive
        store = self.store
        self.enqueue: Groups[NewJob, Enqueued] = Groups(store.enqueue, 2)
        self.settle: Groups[Settle, Settled] = Groups(store.settle, 2)
        self.heartbeat: Groups[Heartbeat, Beat] = Groups(store.heartbeat, 1)
        self.get: Groups[JobId, Job] = Groups(store.get, 1)
        self.lines = Lines(store)
        self.feeds = Feeds(store)
        self.rings = Rings(store)
        self.limits = Limits(allowances or store, tenant_rate)
        self.metrics = ServiceMetrics()
        self.historian = Historian(store, look_seconds=figures_seconds)
        self.is_leaving = False
        self._depths = Depths(store)
        self._queues: dict[tuple[str, str], Queue] = {}

    async def make_room(self, tenant: str, queues: Iterable[str]) -> None:
        """Overloaded if one of these queues holds as much as it is set to."""
        try:
            await self._depths.check(tenant, queues)
        except Overloaded:
            self.metrics.overloaded()
            raise

    def leave(self) -> None:
        """End what only waits: this instance stops."""
        self.is_leaving = True
        self.lines.leave()
        self.feeds.leave()
        self.rings.leave()

    async def close(self) -> None:
        await self.lines.close()
        await self.feeds.close()
        await self.rings.close()
        await self.metrics.close()
        await self.access.close()

    async def caller(self, request: Request, scope: Scope | tuple[Scope, ...] | None) -> Caller:
        """Who sends this request, if that is known and it is allowed to."""
        if scope is None:
            return Caller(None, self.queue)
        if "authorization" in request.headers:
            token = await self.access.check(bearer(request))
        else:
            token = await self.sessions.check(request)
        tenant = _tenant(request, token)
        if not any(token.allows(one) for one in ((scope,) if isinstance(scope, Scope) else scope)):
            needed = scope if isinstance(scope, Scope) else " or ".join(scope)
            raise Forbidden(
                f"this needs a token with the scope {needed}; {token.name!r} has {', '.join(token.scopes)}",
                needed=str(needed),
                scopes=", ".join(token.scopes),
            )
        try:
            standing = await self.limits.draw(token, tenant)
        except RateLimited as error:
            self.metrics.rate_limited()
            request.state.standing = self.limits.refused(token, error)
            raise
        if standing is not None:
            request.state.standing = standing
        return Caller(token, self._queue_of(tenant, f"token:{token.name}"))

    def _queue_of(self, tenant: str, actor: str) -> Queue:
        queue = self._queues.get((tenant, actor))
        if queue is None:
            if len(self._queues) >= MOST_GROUPS:
                self._queues.clear()
            queue = self.queue.for_tenant(tenant, actor=actor[: bounds.NAME_CHARS])
            self._queues[tenant, actor] = queue
        return queue


def bearer(request: Request) -> str:
    """The secret that a request carries."""
    sent = request.headers.get("authorization")
    if sent is None:
        raise Unauthorized("no token was sent; send it as `Authorization: Bearer …`")
    kind, _, secret = sent.partition(" ")
    if kind.lower() != "bearer" or not secret:
        raise Unauthorized("the Authorization header must be `Bearer` and a token")
    return secret.strip()


def _tenant(request: Request, token: Token) -> str:
    named = request.headers.get(TENANT_HEADER)
    if token.tenant == ALL_TENANTS:
        return bounds.name("Penstock-Tenant", named or "default")
    if named is not None and named != token.tenant:
        raise Forbidden(
            f"this token is for the tenant {token.tenant!r}; leave the header Penstock-Tenant out"
        )
    return token.tenant
