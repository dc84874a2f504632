"""Rows as Spark wants to be given them."""

from __future__ import annotations

from typing import Any

from penstock.lake.source.asking import Ask
from penstock.lake.tables import SOURCE


def arrow_schema(ask: Ask) -> Any:
    """The columns asked for as Spark wants to be given them."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    table = SOURCE[ask.table]
    return pa.schema([(column, types[table[column]]) for column in ask.columns])


def days(moments: Any) -> Any:
    """The day of each moment as text. There are few: each is written once."""
    import pyarrow as pa

    found = moments.cast(pa.date32()).dictionary_encode()
    return found.dictionary.cast(pa.string()).take(found.indices)
