"""Log-bucket histograms: exact to add up, true to one per cent, and the same in every engine."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lake import histogram as h

times = st.lists(st.integers(0, 10**10), max_size=60)


def test_puts_times_into_buckets_of_two_per_cent() -> None:
    assert [h.bucket(ms) for ms in (0, 0.5, 1, 1.01, 1.03, 2, 1000, 60_000)] == [0, 0, 1, 1, 2, 36, 349, 556]


@given(st.integers(1, 10**10))
def test_gives_every_time_a_value_within_one_per_cent(ms: int) -> None:
    assert abs(h.value(h.bucket(ms)) - ms) <= 0.01 * ms


def test_has_no_edge_near_a_whole_number_of_milliseconds() -> None:
    """Engines' logarithms differ in the last bit; an edge as near as that to a whole number would not be the same in all."""
    edge = Fraction(1)
    for place in range(1, 1163):  # up to 115 days
        edge *= Fraction(102, 100)
        for ms in (math.floor(edge), math.ceil(edge)):
            if ms > 1:
                away = abs(math.log1p(float((ms - edge) / edge))) / math.log(1.02)
                assert away > 8 * math.ulp(place), (place, ms)
                assert (h.bucket(ms) <= place) == (ms < edge)


@given(times, times, times)
def test_adds_up_the_same_in_any_order(a: list[int], b: list[int], c: list[int]) -> None:
    one, two, three = h.histogram(a), h.histogram(b), h.histogram(c)
    assert h.merge(h.merge(one, two), three) == h.merge(one, h.merge(two, three)) == h.histogram(a + b + c)
    assert h.merge(one, two) == h.merge(two, one)
    assert h.merge(one, {}) == one


@given(times.filter(bool), st.floats(0.0, 1.0))
def test_reads_any_percentile_within_one_per_cent_of_the_nearest_rank(
    given_times: list[int], share: float
) -> None:
    rank = max(1, math.ceil(share * len(given_times)))
    true = sorted(given_times)[rank - 1]
    found = h.percentile(h.histogram(given_times), share)
    assert found is not None
    assert abs(found - true) <= 0.01 * true


def test_has_no_percentile_of_nothing() -> None:
    assert h.percentile({}, 0.5) is None


def test_counts_what_took_no_longer_up_to_the_end_of_the_bucket() -> None:
    counts = h.histogram([10, 59_000, 60_000, 60_400, 61_000])
    assert h.within(counts, 60_000) == 4


@pytest.fixture(scope="module")
def duckdb() -> Any:
    return pytest.importorskip("duckdb", reason="the lake's packages are not installed").connect()


class TestDuckDb:
    def test_has_the_same_buckets(self, duckdb: Any) -> None:
        edges = [math.floor(1.02**place) + near for place in range(1, 1150) for near in (-1, 0, 1)]
        rows = duckdb.execute(
            f"SELECT ms, {h.bucket_sql('ms')}, {h.value_sql(h.bucket_sql('ms'))} FROM (SELECT unnest($1::bigint[]) AS ms)", [edges]
        ).fetchall()  # fmt: skip
        assert [place for _, place, _ in rows] == [h.bucket(ms) for ms in edges]
        assert [value for _, _, value in rows] == pytest.approx(
            [h.value(h.bucket(ms)) for ms in edges], rel=1e-12
        )

    @pytest.mark.parametrize("share", [0.0, 0.5, 0.95, 0.99, 1.0])
    def test_reads_the_same_percentiles(self, duckdb: Any, share: float) -> None:
        for counts in ({}, {0: 3}, {5: 1, 2: 1}, {556: 95, 1: 4, 900: 1}, {n: n for n in range(1, 90)}):
            [(found,)] = duckdb.execute(
                f"SELECT {h.percentile_duckdb('m', share)} FROM (SELECT map($1::int[], $2::bigint[]) AS m)",
                [list(counts), list(counts.values())],
            ).fetchall()  # fmt: skip
            assert found == (None if not counts else pytest.approx(h.percentile(counts, share)))
