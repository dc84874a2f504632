"""Gold goes back into the store, where the service and people read it: one transaction per run, the newest run alone.

The store is no second lake. What is published is bounded, the most telling rows first; the rest stays in the lake. And it
shows one run alone: tenants that this one does not tell of, such as those of a demo, have no answers any more.
Beside it, and for no tenant, the store keeps a mark of whose gold it shows: who publishes the same again has nothing to
do, and what a run has made and not published any more, the next one does.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.connecting import connect
from penstock.core import bounds
from penstock.core.codec import JsonText
from penstock.core.ports import Store
from penstock.core.registry import ALL_TENANTS, Insight
from penstock.insights import SUMMARY, Body, Row, Rows, Summary, encoded
from penstock.lake.manifest import WHOLE, Lake, Manifest, here
from penstock.lake.tables import GOLD, HISTOGRAM

MARK = "published"
"""The name of the mark, an insight of no tenant."""


class _Choice(Struct, frozen=True):
    """Which rows of a table are published."""

    most: int
    order: Callable[[Row], Any]
    """By what the most telling rows are found: highest first."""
    days: int | None = None
    """Only what is no older, by `time`."""
    time: str = "day"
    is_whole: bool = False
    """Whether its rows are parts of what happened in an hour or on a day: there, some are told with all others or not at all."""


CHOICES: Mapping[str, _Choice] = {
    "hourly": _Choice(20_000, lambda row: row["hour"], 14, "hour", is_whole=True),
    "daily": _Choice(10_000, lambda row: row["day"], 400, is_whole=True),
    "failures": _Choice(200, lambda row: (row["count_24h"], row["count"], row["last_seen"])),
    "capacity": _Choice(20_000, lambda row: row["offered_load"] or 0.0),
    "capacity_plan": _Choice(1_000, lambda row: row["utilisation"] or 0.0),
    "slo": _Choice(2_000, lambda row: row["burn_rate"] or 0.0),
    "anomalies": _Choice(500, lambda row: (row["hour"], abs(row["score"])), 30, "hour"),
    "flows": _Choice(200, lambda row: row["critical_ms"] or 0),
    "schedules": _Choice(5_000, lambda row: row["day"], 90),
    "usage": _Choice(10_000, lambda row: row["day"], 400, is_whole=True),
}


def publish_lake(
    url: str,
    lake: Lake,
    manifest: Manifest,
    *,
    renamed: Mapping[str, str] | None = None,
    always: bool = False,
) -> int:
    """Put a lake's gold into a store; says how many bodies, none if the store shows this very gold already.

    `renamed` gives tenants another name in the store. With `always` it is put there whatever the mark says.
    """

    async def put() -> int:
        async with connect(url, actor="lake") as queue:
            mark = _mark(manifest, renamed or {})
            there = await queue.store.insights(ALL_TENANTS, [MARK])
            if not always and there and there[0].body == mark:
                return 0
            assert manifest.data_as_of is not None
            return await publish(
                queue.store, gold(lake, manifest, renamed or {}), manifest.data_as_of, mark=mark
            )

    if manifest.data_as_of is None:
        return 0  # nothing was ever made
    # In a thread of its own: a notebook calls from inside an event loop.
    with ThreadPoolExecutor(1, "penstock lake publish") as executor:
        return executor.submit(lambda: asyncio.run(put())).result()


def gold(lake: Lake, manifest: Manifest, renamed: Mapping[str, str]) -> dict[str, Any]:
    """Gold from the lake's files (a pyarrow.Table by name), of those days that are published at all. Needs no Spark."""
    return {name: _read(lake, manifest, name, renamed) for name in GOLD}


def _read(lake: Lake, manifest: Manifest, name: str, renamed: Mapping[str, str]) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    assert manifest.data_as_of is not None
    back = CHOICES[name].days
    first = "" if back is None else str((manifest.data_as_of - timedelta(days=back)).date())
    days = [day for day in manifest.tables.get(name, {}) if day == WHOLE or day >= first]
    files = here(lake, manifest.folders(name, days))
    if not files:
        return pa.table({column: pa.array([], pa.string()) for column in GOLD[name]})
    table = pa.concat_tables([_file(pq, file, list(GOLD[name])) for file in files], promote_options="default")
    tenants = [renamed.get(tenant, tenant) for tenant in table["tenant"].to_pylist()]
    return table.set_column(table.column_names.index("tenant"), "tenant", pa.array(tenants, pa.string()))


def _file(pq: Any, path: str, columns: list[str]) -> Any:
    # Not `read_table`, which sets up a dataset of one file: with a file a day that is most of the reading.
    with pq.ParquetFile(path) as file:
        return file.read(columns)


def _mark(manifest: Manifest, renamed: Mapping[str, str]) -> JsonText:
    """Which gold this is: its folders, since none is ever written twice."""
    folders = [manifest.folders(name) for name in GOLD]
    told = msgspec.json.encode([manifest.lake, folders, renamed], order="sorted")
    return JsonText(msgspec.json.encode({"gold": hashlib.sha256(told).hexdigest()}).decode())


async def publish(
    store: Store, tables: Mapping[str, Any], as_of: datetime, *, mark: JsonText | None = None
) -> int:
    """Put a run's gold (a pyarrow.Table by name) into the store, in place of all that is there; says how many bodies.

    All of it or nothing: a run as of an earlier time than what is there is refused with InvalidInput.
    """
    missing = sorted(GOLD.keys() - tables.keys())
    if missing:
        raise ValueError(f"a run publishes all of gold, and {', '.join(missing)} are not given")
    found = list(insights(tables, as_of))
    marks = [] if mark is None else [Insight(ALL_TENANTS, MARK, as_of, mark)]
    await store.put_insights([*found, *marks])
    return len(found)


def insights(tables: Mapping[str, Any], as_of: datetime) -> Iterator[Insight]:
    """What is published of a run: for each tenant that occurs in it a body per table, and a summary."""
    owned = {name: _by_tenant(tables[name]) for name in GOLD}
    for tenant in sorted({tenant for places in owned.values() for tenant in places}):
        counts: dict[str, int] = {}
        for name in GOLD:
            # One tenant after the other: as rows of Python, gold takes many times the memory that it takes in columns.
            # A table in which a tenant does not occur is published too: it is asked for as well.
            places = owned[name].get(tenant)
            rows = [] if places is None else _rows(tables[name].take(places), name)
            body = _body(name, rows, as_of)
            counts[name] = len(body.rows)
            yield Insight(tenant, name, as_of, encoded(body))
        yield Insight(tenant, SUMMARY, as_of, encoded(Summary(counts)))


def _by_tenant(table: Any) -> dict[str, Any]:
    """Where in a table the rows of each tenant are, in order."""
    import pyarrow as pa

    places = pa.table({"tenant": table["tenant"], "place": pa.array(range(table.num_rows), pa.int64())})
    found = places.group_by("tenant", use_threads=False).aggregate([("place", "list")])
    lists = (one.values for one in found["place_list"])
    return dict(zip(found["tenant"].to_pylist(), lists, strict=True))


def _rows(table: Any, name: str) -> Rows:
    names = [column for column in GOLD[name] if column != "tenant"]
    columns = [_values(table[column]) for column in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: Any) -> list[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_map(column.type):
        return list(column.to_pylist())
    # As text, all at once: most of what is published are histograms, and nobody looks into them on the way.
    maps = column.combine_chunks()
    keys, counts = (pc.cast(part, pa.string()) for part in (maps.keys, maps.items))
    entries = pc.binary_join_element_wise(pc.binary_join_element_wise('"', keys, ""), counts, '":')
    texts = pc.binary_join(pa.ListArray.from_arrays(maps.offsets, entries), ",")
    return [msgspec.Raw(b"{%s}" % text) for text in pc.cast(texts, pa.binary()).to_pylist()]


def _body(name: str, rows: Rows, as_of: datetime) -> Body:
    choice = CHOICES[name]
    kinds = {column: kind for column, kind in GOLD[name].items() if column != "tenant"}
    recent = rows
    if choice.days is not None:
        since = as_of - timedelta(days=choice.days)
        recent = [row for row in rows if _moment(row[choice.time]) >= since]
    ordered = sorted(recent, key=choice.order, reverse=True)
    plain = [[_plain(row[column], kind) for column, kind in kinds.items()] for row in ordered[: choice.most]]
    kept = _fitting(Body(list(kinds), plain))
    if choice.is_whole:
        while 0 < kept < len(ordered) and ordered[kept - 1][choice.time] == ordered[kept][choice.time]:
            kept -= 1
    return Body(list(kinds), plain[:kept], len(rows) - kept)


def _fitting(body: Body) -> int:
    """How many of the first rows the store takes."""
    kept = len(body.rows)
    while (size := len(msgspec.json.encode(replace(body, rows=body.rows[:kept])))) > bounds.INSIGHT_BYTES:
        kept = int(kept * 0.95 * bounds.INSIGHT_BYTES / size)
    return kept


def _moment(value: date) -> datetime:
    if not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


def _plain(value: Any, kind: str) -> Any:
    if kind == HISTOGRAM:
        return value or {}
    return _moment(value) if isinstance(value, datetime) else value
