"""Around every request: an id, the time it took, and headers that keep browsers careful."""

from __future__ import annotations

import re
import secrets
import time
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.server.problems import MethodNotAllowed, NoSuchPage, answer
from penstock.server.service import Service

_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}\Z")
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
]


class Edge:
    """The outermost layer. It sees every request, also those that no route answers."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        request_id = _request_id(scope)
        status = 0
        state: dict[str, Any] = scope.setdefault("state", {})
        state["request_id"] = request_id

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                standing = state.get("standing")
                more = () if standing is None else standing.headers().items()
                message["headers"] = [
                    *message["headers"], *_HEADERS, (b"x-request-id", request_id.encode()),
                    *((name.lower().encode(), told.encode()) for name, told in more),
                ]  # fmt: skip
            await send(message)

        metrics = self._service.metrics
        metrics.in_flight += 1
        try:
            await self._app(scope, receive, sending)
        finally:
            metrics.in_flight -= 1
            metrics.request(scope["method"], state.get("route"), status, time.perf_counter() - begun)


def _request_id(scope: Scope) -> str:
    for name, told in scope["headers"]:
        if name == b"x-request-id":
            text = told.decode("latin-1")
            if _ID.match(text):
                return str(text)
    return secrets.token_hex(8)


async def no_such_page(request: Request, error: Exception) -> Any:
    return answer(NoSuchPage("nothing answers at this address; /docs lists what does"), request.url.path)


async def wrong_method(request: Request, error: Exception) -> Any:
    allowed = getattr(error, "headers", None) or {}
    told = MethodNotAllowed(f"{request.method} is not a method of this address")
    return answer(told, request.url.path, allowed)
