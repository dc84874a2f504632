"""Several stores on one log, one after another and at the same moment, answer as the state machine does.

PENSTOCK_TEST_HISTORIES sets how many histories each test tries; PENSTOCK_TEST_SEED begins with the one that failed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from penstock.core.ports import Store
from penstock.stores.log import entry, store
from penstock.stores.log.backings.filetape import FileTape
from penstock.stores.log.store import LogStore
from penstock.testing import START, FakeClock
from support.interleaved import Bursts, ScatteredDifferential
from support.logs import several_log_stores, slow_log_stores
from support.planted_log import PLANTED, Plant

HISTORIES = int(os.environ.get("PENSTOCK_TEST_HISTORIES", "12"))
SEED = os.environ.get("PENSTOCK_TEST_SEED")

QUICK = settings(
    max_examples=HISTORIES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
SEEKING = settings(QUICK, max_examples=100, phases=[Phase.generate], database=None, derandomize=True)


class Scattered(ScatteredDifferential):
    make_stores = staticmethod(several_log_stores)


class AtOnce(Bursts):
    make_stores = staticmethod(slow_log_stores)


def test_it_does_not_matter_through_which_store_a_call_goes() -> None:
    run_state_machine_as_test(Scattered, settings=QUICK)


def test_nor_does_it_on_a_folder(tmp_path: Path) -> None:
    folders = (tmp_path / str(number) for number in count())

    def stores(clock: FakeClock) -> Sequence[Store]:
        folder = next(folders)
        return [LogStore.on(FileTape(folder), clock) for _ in range(3)]

    class OnFiles(ScatteredDifferential):
        make_stores = staticmethod(stores)

    run_state_machine_as_test(OnFiles, settings=settings(QUICK, max_examples=3))


def test_calls_at_the_same_moment_take_effect_in_some_order() -> None:
    first = SystemRandom().randrange(2**32) if SEED is None else int(SEED)
    for seed in range(first, first + HISTORIES):
        try:
            AtOnce(seed).run(30)
        except Exception as error:
            error.add_note(f"PENSTOCK_TEST_SEED={seed} tries it again")
            raise


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_bug_planted_on_purpose_is_found(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    histories = 0

    class Subject(Scattered):
        def __init__(self) -> None:
            nonlocal histories
            histories += 1
            super().__init__()

    plant(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Subject, settings=SEEKING)
    with capsys.disabled():
        print(f"\n  {plant.__name__}: found in history {histories}", end="")


class Rewritten(Scattered):
    """Reads each call again as soon as it is written."""

    @classmethod
    def check(cls, monkeypatch: pytest.MonkeyPatch) -> None:
        def write(verb: str, tenant: str, given: Sequence[Any]) -> entry.Written:
            written = entry.write(verb, tenant, given)
            found = entry.read("it", 1, entry.entry(b"w", 1, START, [written.data]))
            assert found is not None
            [op] = found.ops
            assert repr((op.verb, op.tenant, list(op.given))) == repr((verb, tenant, list(given)))
            return written

        monkeypatch.setattr(store, "write", write)


def test_what_is_read_is_what_was_written_to_the_last_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 and 10.0 are equal, but not where a fingerprint is made of them."""
    Rewritten.check(monkeypatch)
    run_state_machine_as_test(Rewritten, settings=settings(QUICK, max_examples=5))
