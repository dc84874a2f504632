"""Several stores on one PostgreSQL, one after another and at the same moment, answer as the state machine does.

PENSTOCK_TEST_HISTORIES sets how many histories each test tries; PENSTOCK_TEST_SEED begins with the one that failed.
"""

from __future__ import annotations

import os
from random import SystemRandom
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from support.interleaved import Bursts, ScatteredDifferential
from support.planted_postgres import AT_ONCE, SCATTERED, Plant
from support.postgres import several_stores

HISTORIES = int(os.environ.get("PENSTOCK_TEST_HISTORIES", "8"))
SEED = os.environ.get("PENSTOCK_TEST_SEED")
MOST_TRIED = 150
"""How many histories a planted bug may hide in."""

QUICK = settings(
    max_examples=HISTORIES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
SEEKING = settings(QUICK, max_examples=MOST_TRIED, phases=[Phase.generate], database=None, derandomize=True)


class Scattered(ScatteredDifferential):
    make_stores = staticmethod(several_stores)


class AtOnce(Bursts):
    make_stores = staticmethod(several_stores)


class TestOneAfterAnother:
    def test_it_does_not_matter_through_which_store_a_call_goes(self) -> None:
        run_state_machine_as_test(Scattered, settings=QUICK)

    @pytest.mark.parametrize(("plant", "about"), SCATTERED, ids=[plant.__name__ for plant, _ in SCATTERED])
    def test_a_bug_planted_on_purpose_is_found(
        self,
        plant: Plant,
        about: dict[str, Any],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        histories = 0

        class Subject(Scattered):
            def __init__(self) -> None:
                nonlocal histories
                histories += 1
                super().__init__()

        plant(monkeypatch)
        for name, value in about.items():
            monkeypatch.setattr(Subject, name, value)
        with pytest.raises(AssertionError):
            run_state_machine_as_test(Subject, settings=SEEKING)
        with capsys.disabled():
            print(f"\n  {plant.__name__}: found in history {histories}", end="")


class TestAtTheSameMoment:
    def test_the_outcome_is_that_of_some_serial_order(self) -> None:
        first = SystemRandom().randrange(10**9) if SEED is None else int(SEED)
        for seed in range(first, first + HISTORIES):
            try:
                AtOnce(seed).run(30)
            except BaseException as error:
                # Not every run of a seed interleaves alike: it may take some to see it again.
                error.add_note(f"PENSTOCK_TEST_SEED={seed}")
                raise

    @pytest.mark.parametrize(("plant", "about"), AT_ONCE, ids=[plant.__name__ for plant, _ in AT_ONCE])
    def test_a_bug_planted_on_purpose_is_found(
        self,
        plant: Plant,
        about: dict[str, Any],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        plant(monkeypatch)
        for name, value in about.items():
            monkeypatch.setattr(AtOnce, name, value)
        for seed in range(MOST_TRIED):
            try:
                AtOnce(seed).run(30)
            except Exception:  # a wrong answer, or a store that no longer understands what it finds
                with capsys.disabled():
                    print(f"\n  {plant.__name__}: found in history {seed + 1}", end="")
                return
        pytest.fail(f"{plant.__name__} went unnoticed in {MOST_TRIED} histories")
