"""Random histories of commands, run against the state machine and every store, must give the same answers."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from penstock.core.machine import Machine
from penstock.stores.memory import MemoryStore
from penstock.testing import FakeClock
from support.differential import Differential
from support.logs import store_sharded_by_tenant
from support.planted import PLANTED
from support.stores import STORES

QUICK = settings(
    max_examples=50,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)

# No shrinking: that a bug shows is what counts here, not how it looks at its smallest.
SEEKING = settings(QUICK, max_examples=200, phases=[Phase.generate], database=None, derandomize=True)


@pytest.mark.parametrize("store_name", STORES)
def test_a_store_answers_as_the_state_machine_does(store_name: str) -> None:
    class Subject(Differential):
        make_store = staticmethod(store_sharded_by_tenant if store_name == "shards" else STORES[store_name])

    run_state_machine_as_test(Subject, settings=QUICK)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.__name__)
def test_a_bug_planted_on_purpose_is_found(
    planted: type[Machine], capsys: pytest.CaptureFixture[str]
) -> None:
    histories = 0

    class Subject(Differential):
        def __init__(self) -> None:
            nonlocal histories
            histories += 1
            super().__init__()

        @staticmethod
        def make_store(clock: FakeClock) -> MemoryStore:
            return MemoryStore(clock, machine=planted)

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Subject, settings=SEEKING)
    with capsys.disabled():
        print(f"\n  {planted.__name__}: found in history {histories}", end="")
