"""Which queues are asked, in which order, and how much is leased ahead."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from penstock import InvalidInput
from penstock.core.patterns import matching
from penstock.worker.feeding import Pace, in_turn, parse_queues


@pytest.mark.parametrize(
    ("given", "weights"),
    [
        ("emails", {"emails": 1}),
        ("emails=3,reports*", {"emails": 3, "reports*": 1}),
        (" emails = 0.5 , b ".replace(" = ", "="), {"emails": 0.5, "b": 1}),
        (["emails", "reports=2"], {"emails": 1, "reports": 2}),
        ({"emails": 7}, {"emails": 7}),
    ],
)
def test_queues_and_their_weights(given: Any, weights: dict[str, float]) -> None:
    assert parse_queues(given) == weights


@pytest.mark.parametrize("given", ["", "a b", "a=many", "a=0", "a=-1", [], {}, {"a": float("nan")}])
def test_what_names_no_queue_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput):
        parse_queues(given)


def test_a_queue_named_outright_keeps_its_weight_whatever_pattern_it_fits() -> None:
    weights = {"shop.*": 1.0, "shop.vip": 9.0, "*.slow": 0.1}
    known = ["shop.a", "shop.vip", "shop.slow", "bakery.slow", "bakery"]
    assert matching(weights, known) == {"shop.vip": 9, "shop.a": 1, "shop.slow": 1, "bakery.slow": 0.1}


def test_each_queue_is_first_as_often_as_its_weight_says_and_none_is_left_out() -> None:
    random = Random(1)
    first: Counter[str] = Counter()
    for _ in range(4_000):
        order = in_turn({"a": 3, "b": 1}, random)
        assert sorted(order) == ["a", "b"]
        first[order[0]] += 1
    assert 2_850 < first["a"] < 3_150


class TestPace:
    def test_nothing_is_leased_ahead_of_slow_handlers(self) -> None:
        pace = Pace(most=500)
        for second in range(10):
            pace.finished(float(second))
        assert pace.ahead(9.5) == 0

    def test_what_will_be_begun_at_once_is_leased_ahead(self) -> None:
        pace = Pace(most=500)
        for step in range(3_000):
            pace.finished(10 + step / 1_000)
        assert 80 <= pace.ahead(13.0) <= 120, "a tenth of a second of a thousand a second"

    def test_never_more_than_the_most(self) -> None:
        pace = Pace(most=50)
        for step in range(30_000):
            pace.finished(10 + step / 10_000)
        assert pace.ahead(13.0) == 50

    def test_it_forgets_when_nothing_is_finished(self) -> None:
        pace = Pace(most=500)
        for step in range(3_000):
            pace.finished(10 + step / 1_000)
        assert pace.ahead(20.0) == 0
