"""Gold without Spark: what DuckDB makes of the same bronze files, as the tables that a run would have written."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace

from lake.oracle import Oracle
from penstock.lake import tables
from penstock.lake.manifest import PART, WHOLE, Lake, new_manifest, with_parts

_TYPES = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
    "array<string>": pa.list_(pa.string()),
    tables.HISTOGRAM: pa.map_(pa.int32(), pa.int64()),
}


def gold(folder: Path, as_of: datetime) -> dict[str, Any]:
    oracle = Oracle(f"read_parquet('{folder}/*/*.parquet')", as_of=as_of)
    return {name: table(name, oracle.table(name)) for name in tables.GOLD}


def table(name: str, rows: list[dict[str, Any]]) -> Any:
    schema = pa.schema([(column, _TYPES[kind]) for column, kind in tables.GOLD[name].items()])
    return pa.Table.from_pylist(
        [{column: _cell(row.get(column)) for column in schema.names} for row in rows], schema
    )


def lake_of(made: dict[str, Any], place: str | Path, as_of: datetime) -> Lake:
    """A lake that has this gold and no other table; `hourly` by the day, as a run writes it."""
    lake, manifest = Lake(place), new_manifest({"feed": "f", "system": "none"}, {"xid": 1})
    days = sorted({str(hour.date()) for hour in made["hourly"]["hour"].to_pylist()})
    for name, rows in made.items():
        parts = {
            day: (f"gold/{name}/000001-a/{PART}{day}",) for day in (days if name == "hourly" else [WHOLE])
        }
        for day, (part,) in parts.items():
            path = Path(lake.storage.draft(part))
            path.mkdir(parents=True)
            chosen = (
                rows if day == WHOLE else rows.filter(pc.equal(pc.strftime(rows["hour"], "%Y-%m-%d"), day))
            )
            pq.write_table(chosen, path / "part-0.parquet")
            lake.storage.sync(part)
        manifest = with_parts(manifest, name, parts)
    lake.commit(replace(manifest, data_as_of=as_of, counts={day: {"job": 1} for day in days}))
    return lake


def _cell(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) else value
