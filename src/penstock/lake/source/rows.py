"""From the rows of a DataFrame to jobs: columns by name are what enqueue takes, and every value is checked as there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any

import msgspec
from msgspec import Struct

from penstock.core import bounds
from penstock.core.errors import InvalidInput, PenstockError
from penstock.core.job import NewJob
from penstock.core.requests import new_job
from penstock.core.retry import Retry
from penstock.lake.source import options as said
from penstock.queue import new_id

FIELDS = tuple(field.name for field in msgspec.structs.fields(NewJob) if field.name != "schedule")
"""The columns that mean something to enqueue."""

DEFAULTS = ("type", "queue")
"""What an option can say for all rows that do not say it themselves."""

_TEXTS = ("payload", "headers", "retry")
"""Given as an object, or as JSON text."""


class Rejected(Struct, frozen=True):
    """A row that is no job, and why."""

    row: dict[str, Any]
    reason: str

    @property
    def line(self) -> str:
        return json.dumps(
            {"reason": self.reason, "row": _shown(self.row)}, ensure_ascii=False, allow_nan=False
        )


class Shape(Struct, frozen=True):
    """How the rows of one write become jobs."""

    columns: tuple[str, ...]
    keys: tuple[str, ...] = ()
    defaults: dict[str, str] = {}
    window_seconds: int | None = None
    """How long a row's key is remembered; None: as long as any request's."""
    may_repeat: bool = False
    """Whether rows need no key, though they may then come in twice."""

    def __post_init__(self) -> None:
        for key in self.keys:
            if key not in self.columns:
                raise InvalidInput("keyColumns", f"be columns of the rows: {', '.join(self.columns)}", key)
        for column in self.columns:
            if column not in FIELDS and column not in self.keys:
                raise InvalidInput(
                    "the rows",
                    f"have only columns that enqueue takes ({', '.join(FIELDS)}) or that are keys",
                    column,
                )
        if "type" not in self.columns and "type" not in self.defaults:
            raise InvalidInput("type", "be a column of the rows, or given as an option", None)

    @property
    def is_keyed(self) -> bool:
        """Whether rows written once more are known again."""
        return bool(self.keys) or "idempotency_key" in self.columns or "id" in self.columns


def shape(options: Mapping[str, str], columns: Sequence[str]) -> Shape:
    """What a user's options make of rows with these columns."""
    keys = said.names(options, "keyColumns")
    window = said.number(options, "keySeconds", 0, 1, int(bounds.LONGEST_SECONDS)) or None
    found = Shape(
        tuple(columns), keys, {name: options[name] for name in DEFAULTS if options.get(name)}, window,
        said.flag(options, "allowDuplicates"),
    )  # fmt: skip
    if keys and {"id", "idempotency_key"} & set(columns):
        raise InvalidInput("keyColumns", "not be given with a column id or idempotency_key", ", ".join(keys))
    if not found.is_keyed and not found.may_repeat:
        raise InvalidInput(
            "keyColumns",
            "name the columns that tell one row from another (or let there be a column idempotency_key or id): Spark runs "
            "tasks again, and jobs without a key would then come in twice. If that is no harm, set allowDuplicates",
            None,
        )
    return found


def row_key(shape: Shape, row: Mapping[str, Any]) -> str:
    """The key by which a row is known again: from the columns said to be its keys, and from what it asks to be run.

    A name space of its own: no other producer comes with such keys.
    """
    asked = [row.get(name) or shape.defaults.get(name) for name in DEFAULTS]
    return hashed(shape.keys, *asked, *(row[name] for name in shape.keys))


def hashed(names: Sequence[str], *values: Any) -> str:
    """The key of a row with these values, the last of which are those of the columns named."""
    # With the names: user 7 and order 7 are not the same row.
    told = [list(names), *map(_same, values)]
    return "row:" + hashlib.sha256(msgspec.json.encode(told, enc_hook=str)).hexdigest()


def _same(value: Any) -> Any:
    """What a value has in common with all that mean the same, and with no other of its column."""
    match value:
        case None | str() | int():
            return value
        case float():
            # JSON has no word for a number that is none: all of them, and null, would be one key.
            return value if isfinite(value) else str(value)
        case datetime() if value.tzinfo is not None:
            # Spark tells times in the zone of its session, which is another one tomorrow.
            return value.astimezone(UTC)
        case Mapping():
            # Of a map each reader gives the entries in an order of its own, and its keys need not be text.
            entries = [[_same(key), _same(one)] for key, one in value.items()]
            return sorted(entries, key=lambda entry: msgspec.json.encode(entry[0], enc_hook=str))
        case list() | tuple():
            return [_same(one) for one in value]
        case _:
            return value


def _shown(value: Any) -> Any:
    """A value as JSON can show it, whatever it is."""
    match value:
        case None | str() | int():
            return value
        case float() if isfinite(value):
            return value
        case Mapping():
            return {str(key): _shown(one) for key, one in value.items()}
        case list() | tuple():
            return [_shown(one) for one in value]
        case _:
            return str(value)


def to_job(shape: Shape, row: Mapping[str, Any]) -> NewJob:
    """The job that a row asks for; what is wrong with it is raised as InvalidInput."""
    item: dict[str, Any] = dict(shape.defaults)
    for name in shape.columns:
        if name in FIELDS and (value := row[name]) is not None:
            item[name] = _value(name, value)
    if any(row[name] is not None for name in shape.keys):
        item["idempotency_key"] = row_key(shape, row)
    elif shape.keys or (not shape.may_repeat and item.keys().isdisjoint(("id", "idempotency_key"))):
        asked = ", ".join(shape.keys) or "id, idempotency_key"
        raise InvalidInput(
            asked, "be given in each row, one of them at least: without it the job would come in twice", None
        )
    if shape.window_seconds is not None and "idempotency_key" in item:
        item.setdefault("idempotency_window", timedelta(seconds=shape.window_seconds))
    return new_job(new_id(), item)


def _value(name: str, value: Any) -> Any:
    if name in _TEXTS and isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(name, f"be JSON ({error})", value) from None
    if name == "retry" and isinstance(value, dict):
        given = {field: one for field, one in value.items() if one is not None}
        try:
            return msgspec.convert(given, Retry, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidInput(name, f'be like {{"kind": "fixed", "base": 5}} ({error})', value) from None
    return float(value) if isinstance(value, Decimal) else value


def to_jobs(
    shape: Shape, rows: Sequence[Mapping[str, Any]]
) -> tuple[list[NewJob], list[Mapping[str, Any]], list[Rejected]]:
    """The jobs of these rows, the row of each, and the rows that are none."""
    jobs: list[NewJob] = []
    good: list[Mapping[str, Any]] = []
    bad: list[Rejected] = []
    for row in rows:
        try:
            jobs.append(to_job(shape, row))
            good.append(row)
        except PenstockError as error:
            bad.append(Rejected(dict(row), str(error)))
    return jobs, good, bad
