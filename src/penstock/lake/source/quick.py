"""Most rows of most writes ask for little. Those are checked by column, here; the others row by row, in rows.py.

What passes here would pass there too, and become the same job. What does not is not yet refused: it goes there.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from itertools import repeat
from typing import Any

import msgspec

from penstock.core import bounds
from penstock.core.errors import PenstockError
from penstock.core.job import IDEMPOTENCY_WINDOW
from penstock.lake.source.bulk import quick_fingerprint
from penstock.lake.source.rows import FIELDS, Shape, hashed
from penstock.queue import new_id

_COLUMNS = {"type", "queue", "payload", "priority", "key", "run_at", "max_attempts"}

_MOST_BRACKETS = 200
# Python reads some JSON that PostgreSQL does not, and the other way round: half of a surrogate pair, numbers that are no
# finite ones, control characters.
_DOUBTFUL = r"\\u[dD][89a-fA-F]|[eE]\+?\d\d\d|\d{300}|[\x00-\x1f]"

_is_json = msgspec.json.Decoder(msgspec.Raw).decode


def stage(shape: Shape, table: Any) -> tuple[Any | None, Any]:
    """The rows that can be staged at once, as bulk.COLUMNS wants them, and the numbers of the others."""
    import pyarrow as pa
    import pyarrow.compute as pc

    every = pa.array(range(table.num_rows), pa.int32())
    if not {column for column in shape.columns if column in FIELDS} <= _COLUMNS:
        return None, every
    given = {column: table[column].combine_chunks() for column in table.column_names}
    none = pa.nulls(table.num_rows, pa.string())
    checks = [
        _names(given.get("type", none), shape.defaults.get("type")),
        _names(given.get("queue", none), shape.defaults.get("queue", "default")),
        _payloads(given.get("payload", none)),
        _between(given.get("priority"), *bounds.PRIORITIES),
        _between(given.get("max_attempts"), 1, bounds.MOST_ATTEMPTS),
        _keys(given.get("key", none)),
        _moments(given.get("run_at")),
        _keyed([given[name] for name in shape.keys]),
    ]
    good = every
    if any(check is False for check in checks):
        return None, every
    masks = [check for check in checks if check is not True]
    mask = masks[0]
    for other in masks[1:]:
        mask = pc.and_(mask, other)
    good, rest = every.filter(mask), every.filter(pc.invert(mask))
    if len(good) == 0:
        return None, every
    return _staged(shape, {name: column.take(good) for name, column in given.items()}, good), rest


def _staged(shape: Shape, given: dict[str, Any], places: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    number = len(places)

    def column(name: str, kind: Any, default: Any) -> Any:
        if name not in given:
            return pa.array([default] * number, kind) if default is not None else pa.nulls(number, kind)
        found = given[name].cast(kind)
        return found if default is None else pc.fill_null(found, default)

    texts = {
        "queue": column("queue", pa.string(), shape.defaults.get("queue", "default")),
        "type": column("type", pa.string(), shape.defaults.get("type")),
        "payload": column("payload", pa.string(), "{}"),
        "priority": column("priority", pa.int16(), 0),
        "key": column("key", pa.string(), None),
        "run_at": _told(given["run_at"]) if "run_at" in given else pa.nulls(number, pa.string()),
    }
    most = column("max_attempts", pa.int32(), None).to_pylist()
    requests: list[str | None] = [None] * number
    prints: list[str | None] = [None] * number
    window = shape.window_seconds
    if shape.keys:
        # As the row says them: who says nothing is not the same as who says what is the default.
        named = [_said(given.get(name), shape.defaults.get(name), number) for name in ("type", "queue")]
        keys = (given[name].to_pylist(maps_as_pydicts="strict") for name in shape.keys)
        requests = list(map(hashed, repeat(shape.keys), *named, *keys))
        asked = [
            texts[name].to_pylist() for name in ("type", "queue", "payload", "priority", "key", "run_at")
        ]
        prints = list(map(quick_fingerprint, *asked, most))
    return pa.table(
        {
            "place": places,
            "id": pa.array([new_id() for _ in range(number)], pa.string()),
            **texts,
            "delay": pa.nulls(number, pa.float64()),
            "options": pa.array(_options(requests, most, window), pa.string()),
            "request": pa.array(requests, pa.string()),
            "seconds": pa.array([float(window or IDEMPOTENCY_WINDOW.total_seconds())] * number, pa.float64()),
            "fingerprint": pa.array(prints, pa.string()),
        }
    )


def _options(
    requests: Iterable[str | None], most: Iterable[int | None], window: int | None
) -> Iterable[str | None]:
    """What was asked for beyond the columns, as `to_options` in the store's rows.py says it."""
    differs = window is not None and window != IDEMPOTENCY_WINDOW.total_seconds()
    lasting = f',"idempotency_window":"PT{window}S"' if differs else ""
    for request, attempts in zip(requests, most, strict=True):
        parts = [] if attempts is None else [f'"max_attempts":{attempts}']
        if request is not None:
            parts.append(f'"idempotency_key":"{request}"{lasting}')
        yield "{" + ",".join(parts) + "}" if parts else None


def _said(column: Any, default: str | None, number: int) -> list[str | None]:
    if column is None:
        return [default] * number
    return [value or default for value in column.to_pylist()]


def _told(moments: Any) -> Any:
    import pyarrow as pa

    return moments.cast(pa.timestamp("us", tz="UTC")).cast(pa.string())


def _keyed(columns: list[Any]) -> Any:
    """Which rows say any of their keys."""
    import pyarrow.compute as pc

    valid = [pc.is_valid(column) for column in columns]
    return reduce(pc.or_, valid) if valid else True


def _names(column: Any, default: str | None) -> Any:
    """Which are good names; a row that says none has the default."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(column.type):
        return False
    good = [name for name in pc.unique(column).to_pylist() if _is_name(default if name is None else name)]
    return pc.is_in(column, value_set=pa.array(good, pa.string()))


def _is_name(value: str | None) -> bool:
    try:
        bounds.name("name", value)
    except PenstockError:
        return False
    return True


def _payloads(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(column.type):
        return False
    brackets = pc.add(pc.count_substring(column, "["), pc.count_substring(column, "{"))
    fits = pc.and_(
        pc.and_(
            pc.less_equal(pc.binary_length(column), bounds.PAYLOAD_BYTES),
            pc.less_equal(brackets, _MOST_BRACKETS),
        ),
        pc.invert(pc.match_substring_regex(column, _DOUBTFUL)),
    )
    read = pa.array([text is None or _reads(text) for text in column.to_pylist()], pa.bool_())
    return pc.and_(pc.fill_null(fits, True), read)


def _reads(text: str) -> bool:
    try:
        _is_json(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _between(column: Any, least: int, most: int) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if column is None:
        return True
    if not pa.types.is_integer(column.type):
        return False
    return pc.fill_null(pc.and_(pc.greater_equal(column, least), pc.less_equal(column, most)), True)


def _keys(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(column.type):
        return False
    length = pc.utf8_length(column)
    fits = pc.and_(pc.greater_equal(length, 1), pc.less_equal(length, bounds.KEY_CHARS))
    return pc.fill_null(pc.and_(fits, pc.invert(pc.match_substring(column, "\0"))), True)


def _moments(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if column is None:
        return True
    if not pa.types.is_timestamp(column.type) or column.type.tz is None:
        return False
    kind = pa.timestamp("us", tz="UTC")
    column = column.cast(kind)
    least, most = pa.scalar(bounds.EARLIEST, kind), pa.scalar(bounds.LATEST, kind)
    return pc.fill_null(pc.and_(pc.greater_equal(column, least), pc.less_equal(column, most)), True)
