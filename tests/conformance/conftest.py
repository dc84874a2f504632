"""One fixture decides where the conformance suite runs: every store in support/stores.py."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from penstock.core.commands import Settled
from penstock.core.ports import Store
from penstock.queue import Held, Queue
from penstock.testing import FakeClock, counting_ids
from support.logs import DIFFERS
from support.stores import STORES

ABOUT_ENQUEUE = (
    "rule_01",
    "rule_02",
    "rule_03",
    "rule_10",
    "rule_11",
    "rule_13",
    "rule_17",
    "rule_19",
    "rule_20",
    "expiry",
)
"""Where jobs put in by SQL may turn out otherwise. The rest is the same store, which the differential test runs too."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store" in metafunc.fixturenames:
        only = metafunc.definition.get_closest_marker("only")
        names = [name for name in STORES if only is None or name in only.args]
        if not any(part in metafunc.module.__name__ for part in ABOUT_ENQUEUE):
            names = [name for name in names if name != "sql"]
        if metafunc.function.__name__ in DIFFERS:
            names = [name for name in names if name != "shards"]
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


SETTLES: dict[str, Callable[[Queue, Held], Awaitable[Settled]]] = {
    "ack": lambda queue, held: queue.ack(held, {"done": True}),
    "nack": lambda queue, held: queue.nack(held, "boom", retry_in=10),
    "release": lambda queue, held: queue.release(held),
    "snooze": lambda queue, held: queue.snooze(held, 10),
    "discard": lambda queue, held: queue.discard(held, "nothing left to do"),
}


@pytest.fixture(params=SETTLES)
def settle(request: pytest.FixtureRequest) -> Callable[[Queue, Held], Awaitable[Settled]]:
    """Each way to end a lease in turn: `await settle(queue, leased)`."""
    return SETTLES[request.param]
