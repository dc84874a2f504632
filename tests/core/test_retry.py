"""How long a failed job waits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import bounds
from penstock.core.errors import InvalidInput
from penstock.core.retry import DEFAULT_RETRY, Retry, RetryKind

quick = settings(max_examples=100, deadline=None, derandomize=True, database=None)

LONGEST = float(bounds.LONGEST_SECONDS)

retries = st.builds(
    Retry,
    kind=st.sampled_from(RetryKind),
    base=st.floats(0, LONGEST),
    factor=st.floats(1, 100),
    cap=st.floats(0, LONGEST),
    jitter=st.floats(0, 1),
)
attempts = st.integers(1, bounds.MOST_ATTEMPTS)


def waits(retry: Retry, *attempts: int) -> list[float]:
    return [retry.delay(attempt, 0).total_seconds() for attempt in attempts]


class TestDelay:
    def test_fixed_is_the_base_each_time(self) -> None:
        assert waits(Retry.fixed(5), 1, 2, 3, 1000) == [5, 5, 5, 5]

    def test_fixed_is_not_capped_below_its_base(self) -> None:
        assert waits(Retry.fixed(86_400), 1) == [86_400]

    def test_linear_is_the_base_times_the_attempt(self) -> None:
        assert waits(Retry.linear(5), 1, 2, 3, 10) == [5, 10, 15, 50]

    def test_exponential_is_the_base_times_the_factor_to_the_attempts_before(self) -> None:
        assert waits(Retry.exponential(5), 1, 2, 3, 4) == [5, 10, 20, 40]
        assert waits(Retry.exponential(2, factor=3), 1, 2, 3, 4) == [2, 6, 18, 54]

    def test_exponential_with_a_small_factor_still_reaches_its_cap(self) -> None:
        # 1.1 to the 64th is 446, to the 86th 3,632: the cap comes late, but it comes.
        patient = Retry.exponential(1, factor=1.1, cap=3600)
        assert waits(patient, 80) == [pytest.approx(1.1**79)]
        assert waits(patient, 100, 1000) == [3600, 3600]

    def test_exponential_with_the_factor_one_is_fixed(self) -> None:
        assert waits(Retry.exponential(5, factor=1), 1, 2, 1000) == [5, 5, 5]

    def test_is_capped(self) -> None:
        assert waits(Retry.linear(5, cap=12), 2, 3, 1000) == [10, 12, 12]
        assert waits(Retry.exponential(5, cap=600), 7, 8, 1000) == [320, 600, 600]

    def test_a_base_of_zero_is_no_wait(self) -> None:
        assert waits(Retry.exponential(0), 1, 2, 1000) == [0, 0, 0]

    def test_is_exact_to_the_microsecond(self) -> None:
        assert Retry.fixed(0.1, jitter=0.5).delay(1, 0.5) == timedelta(microseconds=125_000)

    def test_jitter_comes_on_top_after_the_cap(self) -> None:
        assert Retry.exponential(100, cap=100, jitter=0.5).delay(9, 0.5) == timedelta(seconds=125)

    def test_by_default_waits_from_five_seconds_to_an_hour(self) -> None:
        assert waits(DEFAULT_RETRY, 1, 2, 1000) == [5, 10, 3600]

    @quick
    @given(retry=retries, attempt=attempts, entropy=st.floats(0, 1, exclude_max=True))
    def test_jitter_adds_at_most_its_fraction_and_takes_nothing_away(
        self, retry: Retry, attempt: int, entropy: float
    ) -> None:
        least = retry.delay(attempt, 0)
        wait = retry.delay(attempt, entropy)
        microsecond = timedelta(microseconds=1)
        assert least <= wait <= least * (1 + retry.jitter) + microsecond

    @quick
    @given(retry=retries, attempt=attempts)
    def test_never_exceeds_the_cap_and_its_jitter(self, retry: Retry, attempt: int) -> None:
        most = timedelta(seconds=retry.cap) * (1 + retry.jitter) + timedelta(microseconds=1)
        assert timedelta(0) <= retry.delay(attempt, 0.999999) <= most

    @quick
    @given(retry=retries, attempt=st.integers(1, bounds.MOST_ATTEMPTS - 1))
    def test_never_shrinks_from_one_attempt_to_the_next(self, retry: Retry, attempt: int) -> None:
        assert retry.delay(attempt, 0) <= retry.delay(attempt + 1, 0)

    @pytest.mark.parametrize("kind", RetryKind)
    def test_overflows_nowhere_with_the_largest_values_allowed(self, kind: RetryKind) -> None:
        largest = Retry(kind, LONGEST, factor=100, cap=LONGEST, jitter=1)
        longest = timedelta(seconds=LONGEST)
        assert [largest.delay(n, 0) for n in range(1, bounds.MOST_ATTEMPTS + 1)] == [longest] * 1000


class TestRetry:
    def test_takes_its_kind_by_name(self) -> None:
        assert Retry("linear", 5) == Retry.linear(5)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("bad", "field"),
        [
            ({"kind": "random"}, "retry.kind"),
            ({"kind": None}, "retry.kind"),
            ({"base": -1}, "retry.base"),
            ({"base": LONGEST * 1.01}, "retry.base"),
            ({"base": float("nan")}, "retry.base"),
            ({"base": float("inf")}, "retry.base"),
            pytest.param({"base": 10**400}, "retry.base", id="too large for a float"),
            ({"base": True}, "retry.base"),
            ({"base": "5"}, "retry.base"),
            ({"base": None}, "retry.base"),
            ({"factor": 0.99}, "retry.factor"),
            ({"factor": 100.5}, "retry.factor"),
            ({"cap": -1}, "retry.cap"),
            ({"cap": float("inf")}, "retry.cap"),
            ({"jitter": -0.1}, "retry.jitter"),
            ({"jitter": 1.1}, "retry.jitter"),
        ],
    )
    def test_refuses_values_outside_their_limits(self, bad: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidInput) as refused:
            Retry(**{"kind": "exponential", "base": 5, **bad})
        assert refused.value.facts["field"] == field

    @pytest.mark.parametrize("base", [-1, "5", None, float("nan"), float("inf")])
    @pytest.mark.parametrize("kind", [Retry.fixed, Retry.linear, Retry.exponential])
    def test_its_short_forms_refuse_them_too(self, kind: Any, base: object) -> None:
        with pytest.raises(InvalidInput, match=r"retry\.base must"):
            kind(base)
