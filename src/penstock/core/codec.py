"""JSON text in and out, and the fingerprint that tells two requests apart."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NewType

from penstock.core.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.core.job import NewJob

JsonText = NewType("JsonText", str)
"""A JSON document as text: immutable, cheap to measure, shown to people exactly as it was sent."""

NULL = JsonText("null")
EMPTY_OBJECT = JsonText("{}")
MISSING: Any = object()
"""Stands for a value that was not given, where None means null."""

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_canonical = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"), sort_keys=True)

# Not part of what was asked for: the id names the request's job, the key names the request itself.
_NOT_IN_FINGERPRINT = frozenset({"id", "idempotency_key", "idempotency_window"})


def encode(value: object, *, field: str, limit: int) -> JsonText:
    """Encode a value as JSON text of at most `limit` bytes, or say what is wrong with it."""
    try:
        text = _encoder.encode(value)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(field, f"be JSON ({error})", value) from None
    if size > limit:
        raise InvalidInput(field, f"be at most {limit:,} bytes of JSON", f"{size:,} bytes")
    return JsonText(text)


def decode(text: JsonText) -> Any:
    """The value behind JSON text."""
    return json.loads(text)


def fingerprint(asked: NewJob) -> str:
    """A hash of what was asked for; the order of keys in JSON objects does not matter."""
    body: dict[str, object] = {}
    for field in fields(asked):
        if field.name in _NOT_IN_FINGERPRINT:
            continue
        value = getattr(asked, field.name)
        if field.name in ("payload", "headers") and value is not None:
            value = decode(value)
        body[field.name] = plain(value)
    return hashlib.sha256(_canonical.encode(body).encode()).hexdigest()


def plain(value: object) -> object:
    """A value of core as JSON can say it."""
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value / timedelta(microseconds=1)
        case _ if hasattr(value, "__dataclass_fields__"):
            return {field.name: plain(getattr(value, field.name)) for field in fields(value)}  # type: ignore[arg-type]
        case _:
            return value
