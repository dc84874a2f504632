"""A tiny HTTP listener for probes and metrics: /livez, /readyz, /metrics.

It has a thread and an event loop of its own. In the worker's, a handler that blocks would silence the very probe that
is to tell of it, and an orchestrator would kill a worker whose leases are being kept.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import re
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any

from penstock.core.errors import InvalidInput
from penstock.telemetry.prometheus import CONTENT_TYPE
from penstock.worker.worker import Worker

logger = logging.getLogger("penstock.worker")

HEAD_BYTES = 8_192
"""The longest request; a body is never read."""
REQUEST_SECONDS = 5.0
"""From the first byte to the last of the answer."""
MOST_CONNECTIONS = 64
JSON = "application/json"

_REQUEST = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.[01]\r\n")
_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^:\[\]\s/]*)):(?P<port>[0-9]{1,5})")

Answer = tuple[HTTPStatus, str, str]
"""The status, the type of the body and the body."""


@asynccontextmanager
async def listening(worker: Worker, address: str | None) -> AsyncIterator[str | None]:
    """Answer probes for the worker while the block runs; gives the address it listens on.

    `127.0.0.1:9100`, `[::1]:9100`, `localhost:9100`, or `:9100` for all of this machine's addresses; port 0 picks one.
    """
    if address is None:
        yield None
        return
    sockets = await asyncio.to_thread(_bound, *parse_address(address))
    listener = _Listener(worker, sockets)
    thread = threading.Thread(target=listener.run, name="penstock listener", daemon=True)
    thread.start()
    where = _shown(sockets[0])
    logger.info("probes and metrics are at http://%s: /livez, /readyz, /metrics", where)
    try:
        yield where
    finally:
        listener.stop()
        await asyncio.to_thread(thread.join, REQUEST_SECONDS)


def parse_address(address: str) -> tuple[str | None, int]:
    """The host and the port; no host stands for every address of this machine."""
    found = _ADDRESS.fullmatch(address.strip())
    if found is None or int(found["port"]) > 65_535:
        raise InvalidInput("listen", "be like 127.0.0.1:9100, [::1]:9100 or :9100", address)
    return found["v6"] or found["host"] or None, int(found["port"])


def _bound(host: str | None, port: int) -> list[socket.socket]:
    if host is None:
        try:
            # One socket for both families: with two, port 0 would be two ports.
            return [socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)]
        except (OSError, ValueError) as error:  # no IPv6 here
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                raise
            return [socket.create_server(("", port))]
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    refused: OSError | None = None
    for family, _, _, _, where in dict.fromkeys(found):
        if bound and port == 0:
            break
        try:
            bound.append(socket.create_server(where[:2], family=family))
        except OSError as error:  # such as ::1 for localhost where IPv6 is off
            refused = error
    if not bound and refused is not None:
        raise refused
    return bound


def _shown(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Listener:
    def __init__(self, worker: Worker, sockets: list[socket.socket]) -> None:
        self._worker = worker
        self._sockets = sockets
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._open: dict[asyncio.StreamWriter, None] = {}

    def run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except Exception:
            logger.exception("probes and metrics are gone")

    def stop(self) -> None:
        with suppress(RuntimeError):  # it is gone already
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def _serve(self) -> None:
        servers = [
            await asyncio.start_server(self._connected, sock=bound, limit=HEAD_BYTES)
            for bound in self._sockets
        ]
        await self._stopping.wait()
        for server in servers:
            server.close()  # what is still connected is cancelled with the loop

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = None
        if len(self._open) > MOST_CONNECTIONS:
            next(
                iter(self._open)
            ).transport.abort()  # the oldest: whoever sits there must not keep a probe out
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await self._serve_one(reader, writer)
        except (TimeoutError, OSError):
            pass  # too slow, or gone
        except Exception:
            logger.exception("a probe could not be answered")
        finally:
            del self._open[writer]
            writer.transport.abort()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return await _reply(writer, _said(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
        except asyncio.IncompleteReadError as error:
            if error.partial:
                await _reply(writer, _said(HTTPStatus.BAD_REQUEST))
            return None
        request = _REQUEST.match(head)
        if request is None:
            return await _reply(writer, _said(HTTPStatus.BAD_REQUEST))
        method, target = request[1].decode(), request[2].decode()
        return await _reply(writer, self._answer(method, target.partition("?")[0]), method != "HEAD")

    def _answer(self, method: str, path: str) -> Answer:
        answers = {"/livez": self._livez, "/readyz": self._readyz, "/metrics": self._metrics}
        answer = answers.get(path)
        if answer is None:
            return _said(HTTPStatus.NOT_FOUND)
        return answer() if method in ("GET", "HEAD") else _said(HTTPStatus.METHOD_NOT_ALLOWED)

    def _livez(self) -> Answer:
        alive = self._worker.is_alive()
        ages = {name: round(age, 3) for name, age in self._worker.ages().items()}
        late = [] if alive else self._worker.late()
        return _json(
            HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE,
            {"alive": alive, "late": late, "last_seen_seconds_ago": ages},
        )

    def _readyz(self) -> Answer:
        reason = None
        if self._worker.is_stopping:
            reason = "it is stopping"
        elif not self._worker.has_reached_store:
            reason = "the store was not reached yet"
        if reason is not None:
            return _json(HTTPStatus.SERVICE_UNAVAILABLE, {"ready": False, "reason": reason})
        return _json(HTTPStatus.OK, {"ready": True})

    def _metrics(self) -> Answer:
        return HTTPStatus.OK, CONTENT_TYPE, self._worker.metrics.text()


def _said(status: HTTPStatus) -> Answer:
    return status, "text/plain; charset=utf-8", f"{status.phrase}\n"


def _json(status: HTTPStatus, body: dict[str, Any]) -> Answer:
    return status, JSON, json.dumps(body) + "\n"


async def _reply(writer: asyncio.StreamWriter, answer: Answer, with_body: bool = True) -> None:
    status, type, text = answer
    body = text.encode()
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {type}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        head.append("Allow: GET, HEAD")
    writer.write("\r\n".join([*head, "", ""]).encode() + (body if with_body else b""))
    await writer.drain()
    writer.close()
    await writer.wait_closed()
