"""JSON text in and out, and the fingerprint that tells two requests apart."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NewType

from msgspec import Struct

from penstock.core.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.core.job import NewJob

JsonText = NewType("JsonText", str)
"""A JSON document as text: immutable, cheap to measure, shown to people exactly as it was sent."""

NULL = JsonText("null")
EMPTY_OBJECT = JsonText("{}")
MISSING: Any = object()
"""Stands for a value that was not given, where None means null."""

DEEPEST = 200
"""Levels of nesting: what one process can write another must be able to read, however full its stack."""

_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{}\]]')  # strings are found first, so that theirs are not

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_canonical = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"), sort_keys=True)

# Not part of what was asked for: the id names the request's job, the key names the request itself.
_NOT_IN_FINGERPRINT = frozenset({"id", "idempotency_key", "idempotency_window"})

TRACE_HEADERS = frozenset(
    {
        "traceparent", "tracestate", "baggage",  # W3C
        "b3", "x-b3-traceid", "x-b3-spanid", "x-b3-parentspanid", "x-b3-sampled", "x-b3-flags",
        "uber-trace-id", "x-amzn-trace-id",
    }
)  # fmt: skip
"""Headers that say which trace a request belongs to. No part of what was asked for either: a request that is repeated
after its reply was lost comes from another trace."""


def encode(value: object, *, field: str, limit: int) -> JsonText:
    """Encode a value as JSON text of at most `limit` bytes, or say what is wrong with it."""
    try:
        text = _encoder.encode(value)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(field, f"be JSON ({error})", value) from None
    if size > limit:
        raise InvalidInput(field, f"be at most {limit:,} bytes of JSON", f"{size:,} bytes")
    if text.count("[") + text.count("{") > DEEPEST and _depth(text) > DEEPEST:
        raise InvalidInput(field, f"be nested at most {DEEPEST} deep", value)
    return JsonText(text)


def _depth(text: str) -> int:
    depth = deepest = 0
    for found in _BRACKETS.finditer(text):
        if found[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif found[0] in "]}":
            depth -= 1
    return deepest


def decode(text: JsonText) -> Any:
    """The value behind JSON text."""
    return json.loads(text)


def fingerprint(asked: NewJob) -> str:
    """A hash of what was asked for; the order of keys in JSON objects does not matter."""
    body: dict[str, object] = {}
    for field in asked.__struct_fields__:  # not `fields()`, which works them out anew at each call
        if field in _NOT_IN_FINGERPRINT:
            continue
        value = getattr(asked, field)
        if field in ("payload", "headers") and value is not None:
            value = _decoded(value)
        if field == "headers" and isinstance(value, dict):
            value = {name: told for name, told in value.items() if name not in TRACE_HEADERS} or None
        body[field] = plain(value)
    return hashlib.sha256(_canonical.encode(body).encode()).hexdigest()


def _decoded(text: JsonText) -> object:
    # Never an error: what came by no door that checks it would stop everyone who applies a log.
    try:
        return decode(text)
    except (ValueError, RecursionError):
        return text


def plain(value: object) -> object:
    """A value of core as JSON can say it."""
    match value:
        case datetime():
            # In UTC: whoever reads a moment back from a store has it so, whoever asked perhaps not.
            return (value if value.tzinfo is UTC else value.astimezone(UTC)).isoformat()
        case timedelta():
            return value / timedelta(microseconds=1)
        case Struct():
            return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        case _:
            return value
