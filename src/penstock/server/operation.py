"""One HTTP operation: who may call it, what it takes, what it answers. Routes and the OpenAPI document come from it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope

from penstock.access import Scope
from penstock.core.errors import InvalidInput, PenstockError
from penstock.server.problems import BadRequest, ClientTooSlow, InternalError, TooLarge
from penstock.server.problems import answer as problem_answer

if TYPE_CHECKING:
    from penstock.server.service import Caller, Service

logger = logging.getLogger("penstock.server")

_encode = msgspec.json.Encoder().encode


class Call:
    """One request, as far as an operation wants to know of it."""

    __slots__ = ("body", "caller", "headers", "query", "request", "service", "status")

    def __init__(self, service: Service, request: Request, caller: Caller, body: Any, query: Any) -> None:
        self.service = service
        self.request = request
        self.caller = caller
        self.body = body
        self.query = query
        self.status: int | None = None
        """Set to answer with another status than usual."""
        self.headers: dict[str, str] = {}

    @property
    def path(self) -> Mapping[str, str]:
        return self.request.path_params


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    handle: Callable[[Call], Awaitable[Any]]
    summary: str
    answer: Any
    """The type it answers with; None for an empty answer."""
    scope: Scope | tuple[Scope, ...] | None
    """The scope it needs, or any of several; None for everyone."""
    body: Any = None
    query: type[Struct] | None = None
    status: int = 200
    also: Mapping[int, str] = field(default_factory=dict)
    """Other statuses it answers with, and when."""
    example: Mapping[str, Any] | None = None
    """A body that works."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Request headers it takes, and what they mean."""
    body_is_optional: bool = False
    media_type: str = "application/json"
    tag: str = ""

    @property
    def name(self) -> str:
        return self.handle.__name__


def routes(operations: Iterable[Operation], service: Service) -> list[Route]:
    """A route for each address, in the order in which they are to be tried.

    The longest first, and of those the most particular: a name may have a slash in it, and must not swallow what follows.
    """
    by_path: dict[str, list[Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, []).append(operation)
    in_order = sorted(by_path, key=lambda path: (-path.count("/"), path.count("{")))
    # Names may have a slash in them, ids may not.
    return [
        Route(re.sub(r"\{(queue|name)\}", r"{\1:path}", path), _Address(by_path[path], service))
        for path in in_order
    ]


class _Address:
    """All operations of one address. It takes every method, so that no other address answers in its place."""

    def __init__(self, operations: Iterable[Operation], service: Service) -> None:
        self._endpoints = {operation.method: _endpoint(operation, service) for operation in operations}
        if "GET" in self._endpoints:
            self._endpoints["HEAD"] = self._endpoints["GET"]
        self._allowed = ", ".join(sorted(self._endpoints))

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get(scope["method"])
        if endpoint is None:
            raise HTTPException(405, headers={"Allow": self._allowed})
        request = Request(scope, receive, send)
        response = await endpoint(request)
        await response(scope, receive, send)


def _endpoint(operation: Operation, service: Service) -> Callable[[Request], Awaitable[Response]]:
    decoder = None if operation.body is None else msgspec.json.Decoder(operation.body)
    handle, usual, scope, query_type = operation.handle, operation.status, operation.scope, operation.query
    media_type = operation.media_type

    async def answered(request: Request) -> Response:
        caller = await service.caller(request, scope)
        body: Any = None
        if decoder is not None:
            sent = await read_body(request, service.most_bytes, service.body_seconds)
            body = decoded(decoder, sent) if sent or not operation.body_is_optional else operation.body()
        query = None if query_type is None else read_query(request, query_type)
        call = Call(service, request, caller, body, query)
        answer = await handle(call)
        if isinstance(answer, Response):
            return answer
        content = b"" if operation.answer is None else _encode(answer)
        return Response(content, call.status or usual, call.headers, media_type)

    async def endpoint(request: Request) -> Response:
        request.scope["state"]["route"] = operation.path
        try:
            return await answered(request)
        except PenstockError as error:
            return problem_answer(error, request.url.path)
        except Exception:
            request_id = request.scope["state"].get("request_id")
            logger.exception("request %s (%s %s) failed", request_id, request.method, request.url.path)
            told = InternalError(f"something went wrong here; the log has it as request {request_id}")
            return problem_answer(told, request.url.path)

    return endpoint


def decoded(decoder: msgspec.json.Decoder[Any], sent: bytes) -> Any:
    """A body, or a clear error: 400 for what is no JSON, 422 for JSON that does not fit."""
    try:
        return decoder.decode(sent)
    except PenstockError:
        raise
    except msgspec.ValidationError as error:
        said, _, place = str(error).partition(" - at `$")
        field = place.rstrip("`").lstrip(".") or "the body"
        raise InvalidInput(field, f"fit its description: {said}", _shown(sent)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise BadRequest("the body is nested too deep") from None


def _shown(sent: bytes) -> str:
    return f"a body of {len(sent):,} bytes"


async def read_body(request: Request, most: int, seconds: float) -> bytes:
    """The whole body; refused as soon as it is known to be too large, and not waited for without end."""
    announced = request.headers.get("content-length")
    if announced is not None and announced.isdigit() and int(announced) > most:
        raise TooLarge(f"the body has {int(announced):,} bytes; at most {most:,} are taken", most_bytes=most)
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                size += len(piece)
                if size > most:
                    raise TooLarge(
                        f"the body is longer than the {most:,} bytes that are taken", most_bytes=most
                    )
                pieces.append(piece)
    except TimeoutError:
        raise ClientTooSlow(f"the body did not arrive within {seconds:g} s") from None
    except ClientDisconnect:
        raise BadRequest("the client went away before the body was complete") from None
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_query(request: Request, kind: type[Struct]) -> Any:
    """The query string as a struct: values that occur several times are lists, numbers and times are read from text."""
    given: dict[str, Any] = {}
    lists, moments = _fields_of(kind, "list["), _fields_of(kind, "datetime")
    for name, value in request.query_params.multi_items():
        if name in lists:
            given.setdefault(name, []).append(value)
        elif name in given:
            raise InvalidInput(name, "be given once", request.query_params.getlist(name))
        elif name in moments and value[4:5] != "-":
            # Bare numbers would be read as seconds since 1970; those who have milliseconds would never know.
            raise InvalidInput(name, "be a time with a zone, such as 2026-01-31T09:00:00Z", value)
        else:
            given[name] = value
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        said, _, place = str(error).partition(" - at `$")
        field = place.rstrip("`").lstrip(".") or "the query"
        raise InvalidInput(field, f"fit its description: {said}", given.get(field, dict(given))) from None


@cache
def _fields_of(kind: type[Struct], word: str) -> frozenset[str]:
    """The fields whose type has this word in it."""
    return frozenset(one.name for one in msgspec.structs.fields(kind) if word in str(one.type))
