"""One fixture decides where the conformance suite runs: adding a store is adding a line to STORES."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from penstock.core.ports import Store
from penstock.queue import Queue
from penstock.stores.memory import MemoryStore
from penstock.testing import FakeClock, counting_ids

STORES: dict[str, Callable[[FakeClock], Store]] = {
    "memory": MemoryStore,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store" in metafunc.fixturenames:
        only = metafunc.definition.get_closest_marker("only")
        names = [name for name in STORES if only is None or name in only.args]
        metafunc.parametrize("store_name", names)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(store_name: str, clock: FakeClock) -> AsyncIterator[Store]:
    store = STORES[store_name](clock)
    yield store
    await store.close()


@pytest.fixture
async def queue(store: Store) -> Queue:
    """A queue on the store under test. Jitter is always half of what it may be, so waits are known."""
    return Queue(store, actor="ada", ids=counting_ids(), entropy=lambda: 0.5)
