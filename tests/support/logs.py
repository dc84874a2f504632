"""Stores on logs that tests can look into."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.ports import Store
from penstock.stores.log.backings.memory import MemoryTape
from penstock.stores.log.store import LogStore
from penstock.testing import FakeClock


def log_store(clock: FakeClock) -> LogStore:
    """A store on a log of its own."""
    return LogStore.on(MemoryTape(), clock)


def several_log_stores(clock: FakeClock) -> Sequence[Store]:
    """Stores of several processes, as it were, on one log."""
    tape = MemoryTape()
    return [LogStore.on(tape, clock) for _ in range(3)]
