"""Histograms of times as SQL of Spark and of DuckDB, by the same rule as the Python of `core.histogram`."""

from __future__ import annotations

from penstock.core.histogram import GROWTH, LN, Histogram, bucket, histogram, merge, percentile, value, within

__all__ = [
    "GROWTH", "Histogram", "bucket", "bucket_sql", "histogram", "merge", "percentile", "percentile_duckdb",
    "percentile_spark", "value", "value_sql", "within",
]  # fmt: skip

# ln(1.02) is written out, so that no engine's own logarithm of it moves an edge.


def bucket_sql(ms: str) -> str:
    """As SQL that Spark and DuckDB both understand."""
    return f"CASE WHEN {ms} < 1 THEN 0 ELSE 1 + CAST(floor(ln({ms}) / CAST('{LN!r}' AS DOUBLE)) AS INT) END"


def value_sql(bucket: str) -> str:
    return f"CASE WHEN {bucket} <= 0 THEN CAST(0 AS DOUBLE) ELSE power(CAST('{GROWTH}' AS DOUBLE), {bucket} - CAST('0.5' AS DOUBLE)) END"


def percentile_spark(histogram: str, share: float) -> str:
    """A percentile of a map column, as Spark's SQL."""
    total = f"aggregate(map_values({histogram}), 0L, (sum, n) -> sum + n)"
    wanted = f"greatest(1L, CAST(ceil({share!r}D * {total}) AS BIGINT))"
    # The state carries what is wanted: within the lambda it would be added up again for every bucket.
    begin = f"named_struct('wanted', {wanted}, 'seen', 0L, 'place', CAST(NULL AS INT))"
    place = (
        f"aggregate(sort_array(map_entries({histogram})), {begin},"
        " (at, e) -> IF(at.seen >= at.wanted, at, named_struct('wanted', at.wanted, 'seen', at.seen + e.value, 'place', e.key)),"
        " at -> at.place)"
    )
    return value_sql(place)


def percentile_duckdb(histogram: str, share: float) -> str:
    """A percentile of a map column, as DuckDB's SQL."""
    total = f"list_sum(map_values({histogram}))"
    wanted = f"greatest(1, ceil(CAST('{share!r}' AS DOUBLE) * {total}))"
    up_to = f"list_sum(list_transform(list_filter(map_entries({histogram}), lambda e: e.key <= place), lambda e: e.value))"
    place = f"list_min(list_filter(map_keys({histogram}), lambda place: {up_to} >= {wanted}))"
    return value_sql(place)
