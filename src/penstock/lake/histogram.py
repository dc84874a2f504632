"""Times as log-bucket histograms: exact to add up, and any percentile is read from them to within one per cent.

A histogram is bucket → count. The same rule is written here in Python and as the SQL of Spark and of DuckDB.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

Histogram = dict[int, int]

GROWTH = 1.02
_LN = math.log(GROWTH)


def bucket(ms: float) -> int:
    """The bucket of a time: 0 for less than a millisecond, then each is 2 % wider than the one before."""
    return 0 if ms < 1 else 1 + math.floor(math.log(ms) / _LN)


def value(bucket: int) -> float:
    """The time, in milliseconds, that stands for all of a bucket: its middle on the logarithmic scale."""
    return 0.0 if bucket <= 0 else GROWTH ** (bucket - 0.5)


def histogram(times_ms: Iterable[float]) -> Histogram:
    counts: Histogram = {}
    for ms in times_ms:
        counts[bucket(ms)] = counts.get(bucket(ms), 0) + 1
    return counts


def merge(*histograms: Mapping[int, int]) -> Histogram:
    """All of them as one, exactly as if it had been counted in one place."""
    counts: Histogram = {}
    for one in histograms:
        for place, count in one.items():
            counts[place] = counts.get(place, 0) + count
    return counts


def percentile(histogram: Mapping[int, int], share: float) -> float | None:
    """The time that this share of all did not exceed (0.99: the 99th percentile); None of an empty histogram.

    The nearest rank: of 1…100 the 0.5 is the 50th, not between two.
    """
    wanted = max(1, math.ceil(share * sum(histogram.values())))
    seen = 0
    for place in sorted(histogram):
        seen += histogram[place]
        if seen >= wanted:
            return value(place)
    return None


def within(histogram: Mapping[int, int], ms: float) -> int:
    """How many took no longer, rounded up to the end of the bucket: up to 2 % more than `ms` counts as no longer."""
    return sum(count for place, count in histogram.items() if place <= bucket(ms))


# ── The same in SQL ───────────────────────────────────────────────────────────────────────────────
# ln(1.02) is written out, so that no engine's own logarithm of it moves an edge.


def bucket_sql(ms: str) -> str:
    """As SQL that Spark and DuckDB both understand."""
    return f"CASE WHEN {ms} < 1 THEN 0 ELSE 1 + CAST(floor(ln({ms}) / CAST('{_LN!r}' AS DOUBLE)) AS INT) END"


def value_sql(bucket: str) -> str:
    return f"CASE WHEN {bucket} <= 0 THEN CAST(0 AS DOUBLE) ELSE power(CAST('{GROWTH}' AS DOUBLE), {bucket} - CAST('0.5' AS DOUBLE)) END"


def percentile_spark(histogram: str, share: float) -> str:
    """A percentile of a map column, as Spark's SQL."""
    total = f"aggregate(map_values({histogram}), 0L, (sum, n) -> sum + n)"
    wanted = f"greatest(1L, CAST(ceil({share!r}D * {total}) AS BIGINT))"
    place = (
        f"aggregate(array_sort(map_entries({histogram})), named_struct('seen', 0L, 'place', CAST(NULL AS INT)),"
        f" (at, e) -> IF(at.seen >= {wanted}, at, named_struct('seen', at.seen + e.value, 'place', e.key)), at -> at.place)"
    )
    return value_sql(place)


def percentile_duckdb(histogram: str, share: float) -> str:
    """A percentile of a map column, as DuckDB's SQL."""
    total = f"list_sum(map_values({histogram}))"
    wanted = f"greatest(1, ceil(CAST('{share!r}' AS DOUBLE) * {total}))"
    up_to = f"list_sum(list_transform(list_filter(map_entries({histogram}), lambda e: e.key <= place), lambda e: e.value))"
    place = f"list_min(list_filter(map_keys({histogram}), lambda place: {up_to} >= {wanted}))"
    return value_sql(place)
