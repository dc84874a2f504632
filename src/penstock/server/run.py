"""The service as a process: a socket, a scheduler, and an end that keeps nobody waiting."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext

import uvicorn
from starlette.types import ASGIApp

from penstock.app.running import scheduling
from penstock.core.errors import InvalidInput
from penstock.server.protocol import Protocol
from penstock.server.service import Service

logger = logging.getLogger("penstock.server")

GRACE_SECONDS = 10


class _Server(uvicorn.Server):
    """Signals are the business of whoever runs it; and before it waits for requests to end, it ends those that only wait."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()
        self._service = service

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.leave()
        await super().shutdown(sockets)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise InvalidInput(
            "--host and --port", f"be an address of this machine that is free ({error})", f"{host}:{port}"
        ) from None
    listening.listen(1024)
    listening.set_inheritable(False)
    return listening


def address(listening: socket.socket) -> str:
    """The URL at which to reach it from here."""
    host, port = listening.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@asynccontextmanager
async def running(
    app: ASGIApp, service: Service, listening: socket.socket, *, scheduler: bool = True
) -> AsyncIterator[None]:
    """Serve while the block runs; with `scheduler`, schedules fire and old jobs leave from here too."""
    config = uvicorn.Config(
        app,
        http=Protocol,
        log_config=None,
        access_log=False,
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # that it started and ended is ours to say
    server = _Server(config, service)
    serving = asyncio.create_task(server.serve(sockets=[listening]), name="penstock server")
    is_up = asyncio.create_task(server.is_up.wait())
    await asyncio.wait([serving, is_up], return_when=asyncio.FIRST_COMPLETED)
    is_up.cancel()
    if serving.done():
        serving.result()
    try:
        async with scheduling(service.queue) if scheduler else nullcontext():
            yield
    finally:
        server.should_exit = True
        await serving
