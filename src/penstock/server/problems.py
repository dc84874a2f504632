"""Errors as RFC 9457 problem documents: one stable code each, the same over HTTP as in Python."""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from penstock.core.errors import (
    Conflict,
    Forbidden,
    IdempotencyConflict,
    InvalidInput,
    LeaseLost,
    NotFound,
    Overloaded,
    ParentNotFound,
    PenstockError,
    RateLimited,
    StoreUnavailable,
    Unauthorized,
)

MEDIA_TYPE = "application/problem+json"


class NoSuchPage(PenstockError):
    """Nothing answers at this address. /docs lists what does."""

    code = "no_such_page"


class MethodNotAllowed(PenstockError):
    """This address answers to other methods; `Allow` names them."""

    code = "method_not_allowed"


class TooLarge(PenstockError):
    """The request is larger than this service takes. Send less, or in several requests."""

    code = "too_large"


class HeadTooLarge(PenstockError):
    """The headers of the request are larger than this service takes."""

    code = "headers_too_large"


class BadRequest(PenstockError):
    """The request cannot be read: its JSON, its encoding or its headers are malformed."""

    code = "bad_request"


class ClientTooSlow(PenstockError):
    """The body did not arrive in time."""

    code = "client_too_slow"


class InternalError(PenstockError):
    """Something went wrong that should not have. The log has it under the request's id."""

    code = "internal_error"


# The most particular class first.
_STATUS: tuple[tuple[type[PenstockError], int], ...] = (
    (BadRequest, 400),
    (Unauthorized, 401),
    (Forbidden, 403),
    (NoSuchPage, 404),
    (ParentNotFound, 422),  # it is the request that names it
    (NotFound, 404),
    (MethodNotAllowed, 405),
    (ClientTooSlow, 408),
    (IdempotencyConflict, 422),
    (Conflict, 409),
    (LeaseLost, 409),
    (TooLarge, 413),
    (InvalidInput, 422),
    (HeadTooLarge, 431),
    (RateLimited, 429),
    (Overloaded, 503),
    (StoreUnavailable, 503),
)


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong. `code` is stable; `detail` is for people."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    instance: str | None = None
    facts: dict[str, Any] | None = None
    """What the error is about: the field, the job id, the scope that is missing, …"""


def status_of(error: PenstockError) -> int:
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def problem(error: PenstockError, instance: str | None = None) -> Problem:
    status = status_of(error)
    return Problem(
        f"urn:penstock:problem:{error.code}",
        HTTPStatus(status).phrase,
        status,
        error.code,
        error.message,
        instance,
        {name: _plain(fact) for name, fact in error.facts.items()} or None,
    )


def answer(error: PenstockError, instance: str | None = None, headers: Mapping[str, str] = {}) -> Response:
    """The problem document of an error, with the headers that belong to its status."""
    told = problem(error, instance)
    more = dict(headers)
    if told.status == 401:
        more["WWW-Authenticate"] = 'Bearer realm="penstock"'
    if told.status == 408:
        more["Connection"] = "close"  # the rest of the body may still come, and is no request
    if told.status in (429, 503):
        more["Retry-After"] = str(max(1, math.ceil(_retry_after(error))))
    return Response(msgspec.json.encode(told), told.status, more, MEDIA_TYPE)


def _retry_after(error: PenstockError) -> float:
    seconds = error.facts.get("retry_after", 1.0)
    return seconds if isinstance(seconds, int | float) else 1.0


def _plain(fact: object) -> object:
    return fact if isinstance(fact, str | int | float | bool | None) else str(fact)
