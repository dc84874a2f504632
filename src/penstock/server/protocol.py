"""HTTP as uvicorn reads it, with limits it has not: on the size of a request's head, and on the time it may take.

What cannot be read as HTTP at all is answered with a problem document too.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.core.errors import PenstockError
from penstock.server.problems import MEDIA_TYPE, BadRequest, ClientTooSlow, HeadTooLarge, problem

LINGER_SECONDS = 2.0


class Protocol(HttpToolsProtocol):
    most_head_bytes = 65_536
    head_seconds = 20.0
    """From the connection, or the first byte of a later request, to the end of its headers."""

    _requests = 0
    _in_head = False
    _unparsed_bytes = 0
    _parsed_bytes = 0
    _timer: asyncio.TimerHandle | None = None
    _refusal: PenstockError | None = None
    _refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.head_seconds, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        request = self._requests
        super().data_received(data)
        if (
            self._in_head and self._requests == request
        ):  # it began before, and has not ended: one header without end, say
            self._unparsed_bytes += len(data)
            if self._unparsed_bytes > self.most_head_bytes:
                self._refuse(self._too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._requests += 1
        self._in_head = True
        self._unparsed_bytes = self._parsed_bytes = 0
        if self._timer is None:
            self._timer = self.loop.call_later(self.head_seconds, self._too_slow)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._parsed_bytes += len(name) + len(value)
        if self._parsed_bytes > self.most_head_bytes:
            self._refusal = self._too_large()
            raise self._refusal
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or BadRequest("what was sent cannot be read as HTTP"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self._in_head:
            self._refuse(ClientTooSlow(f"the headers did not arrive within {self.head_seconds:g} s"))
        else:
            self.transport.close()

    def _too_large(self) -> PenstockError:
        return HeadTooLarge(
            f"the headers are longer than the {self.most_head_bytes:,} bytes that are taken",
            most_bytes=self.most_head_bytes,
        )

    def _refuse(self, error: PenstockError) -> None:
        """Answer and end the connection, but hear the client out: to close on it would take the answer away again."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._stop_timer()
        cycle: Any = self.cycle  # none yet on a connection whose first request is bad
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # whoever is at work on an answer need not go on
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
                return
        told = problem(error)
        content = msgspec.json.encode(told)
        lines = [
            f"HTTP/1.1 {told.status} {HTTPStatus(told.status).phrase}",
            f"content-type: {MEDIA_TYPE}",
            f"content-length: {len(content)}",
            "connection: close",
        ]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + content)
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)
