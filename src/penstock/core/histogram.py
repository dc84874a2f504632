"""Times as log-bucket histograms: exact to add up, and any percentile is read from them to within one per cent.

A histogram is bucket → count. `penstock.lake.histogram` has the same rule as the SQL of Spark and of DuckDB.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

Histogram = dict[int, int]

GROWTH = 1.02
LN = math.log(GROWTH)


def bucket(ms: float) -> int:
    """The bucket of a time: 0 for less than a millisecond, then each is 2 % wider than the one before."""
    return 0 if ms < 1 else 1 + math.floor(math.log(ms) / LN)


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
