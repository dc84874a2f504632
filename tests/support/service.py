"""The service on a real socket, in the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from penstock.access import Access
from penstock.core.ports import Store
from penstock.queue import Queue
from penstock.server.app import create_app
from penstock.server.service import Service

ADMIN = "pst_a-secret-that-only-tests-know"
"""The token of the service itself: all tenants, all scopes."""


@asynccontextmanager
async def serving(store: Store, *, log: bool = False, **options: Any) -> AsyncIterator[str]:
    """The URL of a service on this store while the block runs."""
    access = Access(store, remember_seconds=0)
    await access.create("*", "tests", ["admin"], actor="tests", secret=ADMIN)
    service = Service(Queue(store), access, **options)
    async with listening(create_app(service)) as url:
        yield url


@asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    config = uvicorn.Config(
        app, port=0, log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    running = asyncio.create_task(server._serve())
    while not server.started:
        if running.done():
            running.result()
        await asyncio.sleep(0.005)
    [port] = [sock.getsockname()[1] for one in server.servers for sock in one.sockets]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await running
