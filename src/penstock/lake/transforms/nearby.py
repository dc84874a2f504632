"""Where rows are while they are added up."""

from __future__ import annotations

from pyspark.sql import DataFrame


def nearby(rows: DataFrame, *keys: str) -> DataFrame:
    """Rows with those of the same keys beside them, so that they travel once, and not after each step of adding up.

    Where a session has all rows in one place, they are there already, and Spark would move them nevertheless.
    """
    return rows if _is_in_one_place(rows) else rows.repartition(*keys)


def by_hash(rows: DataFrame) -> DataFrame:
    """Rows that others are looked up among: what is small is not to be sorted for that, with all that is looked up."""
    return rows.hint("shuffle_hash") if _is_in_one_place(rows) else rows


def _is_in_one_place(rows: DataFrame) -> bool:
    return bool(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") == "1")
