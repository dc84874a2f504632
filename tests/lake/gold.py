"""Gold without Spark: what DuckDB makes of the same bronze files, as the tables that a run would have written."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from lake.oracle import Oracle
from penstock.lake import tables

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


def _cell(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) else value
