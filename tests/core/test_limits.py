"""Rates: never one lease too many, never one refused for nothing."""

from __future__ import annotations

from bisect import bisect_left
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import bounds
from penstock.core.errors import InvalidInput
from penstock.core.limits import Rate
from penstock.testing import START

quick = settings(max_examples=100, deadline=None, derandomize=True, database=None)

MICROSECOND = timedelta(microseconds=1)


def _rate(limit: int, per_microseconds: int, burst: int) -> Rate:
    return Rate(limit, per_microseconds / 1_000_000, burst)


rates = st.builds(
    _rate,
    limit=st.integers(1, 40),
    per_microseconds=st.integers(1_000, 5_000_000),
    burst=st.integers(1, 10),
)
gaps = st.lists(st.integers(0, 400_000), min_size=1, max_size=150)
"""Microseconds between arrivals; zero is a crowd at the door."""


def let_in(rate: Rate, arrivals: list[datetime]) -> list[datetime]:
    """Those of the arrivals that the rate lets through."""
    passed: list[datetime] = []
    full_until: datetime | None = None
    for now in arrivals:
        if full_until is None or rate.opens_at(full_until) <= now:
            full_until = rate.use(full_until, now)
            passed.append(now)
    return passed


def spaced(gaps: list[int]) -> list[datetime]:
    moments = [START]
    for gap in gaps:
        moments.append(moments[-1] + gap * MICROSECOND)
    return moments


def most_within(span: timedelta, moments: list[datetime]) -> int:
    """The most moments that any half-open span of this length holds."""
    return max(bisect_left(moments, first + span) - place for place, first in enumerate(moments))


class TestRate:
    @quick
    @given(rate=rates, gaps=gaps)
    def test_lets_no_more_than_limit_and_burst_into_any_span(self, rate: Rate, gaps: list[int]) -> None:
        passed = let_in(rate, spaced(gaps))
        assert most_within(timedelta(seconds=rate.per), passed) <= rate.limit + rate.burst - 1

    @quick
    @given(rate=rates)
    def test_lets_a_burst_through_and_then_one_more_per_spacing(self, rate: Rate) -> None:
        moments = [START] * rate.burst + [START + rate.spacing * n for n in range(1, rate.limit)]
        assert let_in(rate, moments) == moments

    @quick
    @given(rate=rates, count=st.integers(2, 100))
    def test_lets_arrivals_through_that_come_evenly_at_the_rate(self, rate: Rate, count: int) -> None:
        moments = [START + rate.spacing * n for n in range(count)]
        assert let_in(rate, moments) == moments

    @quick
    @given(rate=rates)
    def test_lets_its_burst_through_at_once_and_not_one_more(self, rate: Rate) -> None:
        assert len(let_in(rate, [START] * (rate.burst + 3))) == rate.burst

    @quick
    @given(rate=rates, gaps=gaps)
    def test_opens_at_the_very_microsecond_it_says(self, rate: Rate, gaps: list[int]) -> None:
        full_until: datetime | None = None
        for now in spaced(gaps):
            opens_at = now if full_until is None else max(now, rate.opens_at(full_until))
            full_until = rate.use(full_until, opens_at)
            assert rate.opens_at(full_until) - opens_at <= rate.spacing

    @quick
    @given(rate=rates)
    def test_a_rest_gives_back_the_whole_burst_and_no_more(self, rate: Rate) -> None:
        rested = START + rate.spacing * (10 * rate.burst)
        passed = let_in(rate, [START] * rate.burst + [rested] * (rate.burst + 1))
        assert passed == [START] * rate.burst + [rested] * rate.burst

    @quick
    @given(rate=rates)
    def test_rounds_its_spacing_up_by_less_than_a_microsecond(self, rate: Rate) -> None:
        per = timedelta(seconds=rate.per)
        assert rate.spacing * rate.limit >= per
        assert (rate.spacing - MICROSECOND) * rate.limit < per

    @pytest.mark.parametrize(
        ("rate", "microseconds"),
        [
            (Rate(1), 1_000_000),
            (Rate(3), 333_334),
            (Rate(7, per=60), 8_571_429),
            (Rate(1_000_000), 1),
            (Rate(1000, per=0.001), 1),
            (Rate(10, per=0.1), 10_000),
        ],
    )
    def test_has_the_spacing(self, rate: Rate, microseconds: int) -> None:
        assert rate.spacing == microseconds * MICROSECOND

    def test_a_burst_worth_ten_years_opens_at_once(self) -> None:
        rate = Rate(1, per=bounds.LONGEST_SECONDS / 1000, burst=1000)
        assert let_in(rate, [START, START]) == [START, START]

    @pytest.mark.parametrize(
        ("bad", "field"),
        [
            ({"limit": 0}, "rate.limit"),
            ({"limit": 1_000_001}, "rate.limit"),
            ({"limit": 1.5}, "rate.limit"),
            ({"limit": True}, "rate.limit"),
            ({"per": 0}, "rate.per"),
            ({"per": 0.0009}, "rate.per"),
            ({"per": float("nan")}, "rate.per"),
            ({"per": bounds.LONGEST_SECONDS + 1}, "rate.per"),
            ({"burst": 0}, "rate.burst"),
            ({"burst": 1_000_001}, "rate.burst"),
            ({"limit": 1001, "per": 0.001}, "rate"),
            ({"limit": 1, "per": 86_400, "burst": 1_000_000}, "rate.burst"),
        ],
    )
    def test_refuses_values_outside_their_limits(self, bad: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidInput) as refused:
            Rate(**{"limit": 10, **bad})
        assert refused.value.facts["field"] == field
