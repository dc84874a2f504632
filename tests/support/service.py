"""The service on a real socket, in the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from penstock.access import Access, Scope, Token
from penstock.core.errors import Unauthorized
from penstock.core.ports import Store
from penstock.queue import Queue
from penstock.server.app import create_app
from penstock.server.protocol import Protocol
from penstock.server.service import Service
from penstock.stores.memory import MemoryStore
from penstock.stores.remote.store import RemoteStore
from penstock.testing import FakeClock

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
        app, port=0, http=Protocol, log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=1
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


class KnownTokens(Access):
    """Tokens that are in no store: the store under test has nothing in it but what the test puts there."""

    def __init__(self, tokens: Mapping[str, Token]) -> None:
        self._tokens = tokens

    async def check(self, secret: str) -> Token:
        if secret not in self._tokens:
            raise Unauthorized("this token is not known")
        return self._tokens[secret]

    async def close(self) -> None: ...


def token(name: str, tenant: str, *scopes: Scope) -> Token:
    return Token(name, tenant, name, scopes, datetime(2026, 1, 1, tzinfo=UTC), "tests")


TOKENS = {ADMIN: token("tests", "*", Scope.ADMIN)}


class Swift:
    """A server that begins and ends within milliseconds: uvicorn's protocol on a socket, without what is around it."""

    def __init__(self, store: Store, access: Access | None = None, **options: Any) -> None:
        self.service = Service(Queue(store), access or KnownTokens(TOKENS), **options)
        self._config = uvicorn.Config(
            create_app(self.service), lifespan="off", log_config=None, access_log=False, ws="none"
        )
        self._state = ServerState()
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> str:
        """Begin, and say where."""
        self._config.load()
        self._server = await asyncio.get_running_loop().create_server(self._protocol, "127.0.0.1", port)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def _protocol(self) -> asyncio.Protocol:
        kind: Any = self._config.http_protocol_class
        protocol: asyncio.Protocol = kind(config=self._config, server_state=self._state, app_state={})
        return protocol

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for connection in list(self._state.connections):
                connection.transport.abort()
            for task in list(self._state.tasks):
                task.cancel()
            if self._state.tasks:
                await asyncio.wait(self._state.tasks)
            await self.service.close()
            await self._server.wait_closed()


@asynccontextmanager
async def swiftly(store: Store, access: Access | None = None, **options: Any) -> AsyncIterator[str]:
    """The URL of a service on this store while the block runs, without what `serving` starts beside it."""
    server = Swift(store, access, **options)
    try:
        yield await server.start()
    finally:
        await server.stop()


class ServedMemoryStore(RemoteStore):
    """A store in memory behind HTTP; the server begins with the first call and ends with the store."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__("http://127.0.0.1:1", ADMIN)
        self._clock = clock
        self._server: Swift | None = Swift(MemoryStore(clock))
        self._starting: asyncio.Task[None] | None = None
        ask = self._http.ask

        async def ask_once_it_runs(*args: Any, **options: Any) -> bytes:
            if self._starting is None:
                self._starting = asyncio.create_task(self._start())
            await asyncio.shield(self._starting)
            return await ask(*args, **options)

        self._http.ask = ask_once_it_runs  # type: ignore[method-assign]

    async def _start(self) -> None:
        assert self._server is not None
        self._http.url = await self._server.start()

    async def close(self) -> None:
        await super().close()
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop()
