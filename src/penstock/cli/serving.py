"""`penstock serve`: the HTTP service on any store."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from importlib.util import find_spec
from typing import Any

from penstock.access import Access
from penstock.connecting import Address, connect
from penstock.core.limits import Rate
from penstock.core.ports import Store
from penstock.core.registry import ALL_TENANTS
from penstock.queue import Queue
from penstock.server.app import create_app
from penstock.server.run import address, bind, running
from penstock.server.service import Service

logger = logging.getLogger("penstock.server")


def new_secret() -> str:
    return f"pst_{secrets.token_urlsafe(32)}"


@asynccontextmanager
async def service_on(
    queue: Queue, listening: Any, *, scheduler: bool = True, lake: str | None = None, **options: Any
) -> AsyncIterator[Service]:
    """The service on a store while the block runs. PENSTOCK_LIMITS=redis://… keeps rate limits there.

    Jobs that have left the store are looked for in the `lake`, which PENSTOCK_LAKE names too.
    """
    async with AsyncExitStack() as stack:
        if (archive := archive_in(lake or os.environ.get("PENSTOCK_LAKE"), queue.store)) is not None:
            options["archive"] = archive
            stack.push_async_callback(archive.close)
        if url := os.environ.get("PENSTOCK_LIMITS"):
            from penstock.server.redis_limits import RedisAllowances

            options["allowances"] = await stack.enter_async_context(aclosing(RedisAllowances(url)))
        service = Service(queue, Access(queue.store), **options)
        await stack.enter_async_context(running(create_app(service), service, listening, scheduler=scheduler))
        yield service


def archive_in(lake: str | None, store: Store) -> Any:
    """Who looks for jobs in a lake; None where none is named, or where it could not be read."""
    if lake is None:
        return None
    if find_spec("pyarrow") is None:
        # Not refused: the variable may be there for the workers, which make the lake.
        logger.warning(
            "jobs that have left the store are not looked for in the lake %s: pyarrow is not installed "
            '(pip install "penstock[lake]")', lake,
        )  # fmt: skip
        return None
    from penstock.lake.archive import LakeArchive

    return LakeArchive(lake, store)


async def ensure_token(queue: Queue, secret: str | None, *, tenant: str = "default") -> str | None:
    """See to it that somebody can get in: with the token given, or with a new one if there is none at all.

    Returns a secret that was made here and is to be shown, once.
    """
    access = Access(queue.store)
    if secret is not None:
        await access.create(tenant, "from the command line", ["admin"], actor="cli:serve", secret=secret)
        return None
    if await access.tokens(tenant) or await access.tokens(ALL_TENANTS):
        return None
    made = new_secret()
    await access.create(tenant, "first", ["admin"], actor="cli:serve", secret=made)
    return made


def until_signal() -> asyncio.Event:
    """Set when the process is asked to end."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping


def run(
    where: Address, *, host: str, port: int, token: str | None, scheduler: bool, tenant_rate: Rate | None, most_bytes: int,
    needs_idempotency_key: bool, lake: str | None = None,
) -> None:  # fmt: skip
    """Serve until SIGTERM or Ctrl-C."""
    listening = bind(host, port)

    async def serve() -> None:
        stopping = until_signal()
        async with connect(where.url, actor="service", migrates=where.migrates) as queue:
            made = await ensure_token(queue, token)
            async with service_on(
                queue, listening, scheduler=scheduler, tenant_rate=tenant_rate, most_bytes=most_bytes,
                needs_idempotency_key=needs_idempotency_key, lake=lake,
            ):  # fmt: skip
                logger.info("serving on %s", address(listening))
                if made is not None:
                    print(
                        f"The first token of this store, shown this once: {made}", file=sys.stderr, flush=True
                    )
                await stopping.wait()
                logger.info("ending: nothing new is taken, what is under way is answered")

    try:
        with asyncio.Runner(loop_factory=event_loop()) as runner:
            runner.run(serve())
    finally:
        where.close()


def event_loop() -> Any:
    """uvloop's where it is installed: a third faster, measured with benchmarks/service.py."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop
