"""A store in memory and one in PostgreSQL, with a clock to move or with the time of day; and schedulers that run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar, cast

import pytest

from penstock.core.errors import StoreUnavailable
from penstock.core.ports import Store
from penstock.core.wakeups import EVERYONE, SCHEDULES
from penstock.queue import Queue
from penstock.scheduler import Scheduler
from penstock.stores.memory import MemoryStore
from penstock.stores.wakeups.memory import MemoryWakeups
from penstock.testing import FakeClock
from support.postgres import EmptyPostgresStore

LONG = 20.0
NEVER = 3600.0
Found = TypeVar("Found")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "postgres"])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def opened(where: str, clock: FakeClock | None) -> AsyncIterator[Queue]:
    store: MemoryStore | EmptyPostgresStore
    if where == "memory":
        store = MemoryStore(clock)
    else:
        store = EmptyPostgresStore(clock)
        store.wakeups = MemoryWakeups()
    yield Queue(store, actor="ada")
    await store.close()


@pytest.fixture
async def queue(where: str, clock: FakeClock) -> AsyncIterator[Queue]:
    """A queue whose time stands still until the test moves it."""
    async with opened(where, clock) as queue:
        yield queue


@pytest.fixture
async def live(where: str) -> AsyncIterator[Queue]:
    """A queue on the time of day."""
    async with opened(where, None) as queue:
        yield queue


@asynccontextmanager
async def running(*schedulers: Scheduler) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Schedulers at work while the block runs."""
    tasks = [asyncio.create_task(scheduler.run()) for scheduler in schedulers]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], Found]) -> Found:
    """Wait until something in this process is so."""
    async with asyncio.timeout(LONG):
        while True:
            if found := condition():
                return found
            await asyncio.sleep(0.005)


async def until_stored(look: Callable[[], Awaitable[Found]]) -> Found:
    """Wait until something is so in the store."""
    async with asyncio.timeout(LONG):
        while True:
            if found := await look():
                return found
            await asyncio.sleep(0.01)


def nudge(queue: Queue) -> None:
    """The clock was moved by hand: let the leader look at it, as it would have when its sleep was over."""
    queue.store.wakeups.wake(EVERYONE, [SCHEDULES])


def quiet(queue: Queue, **options: Any) -> Scheduler:
    """A scheduler that does nothing by itself after its first passes, but what the test is about."""
    return Scheduler(
        queue, **{"lead_seconds": NEVER, "look_seconds": NEVER, "sweep_seconds": NEVER, **options}
    )


class Weather:
    """Stands before a store; in a storm nothing comes through, and what is hung up never answers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.storm = False
        self.hung: set[str] = set()
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name == "wakeups":
            return found

        async def call(*values: Any, **options: Any) -> Any:
            self.calls.append(name)
            if name in self.hung:
                await asyncio.Event().wait()
            if self.storm:
                raise StoreUnavailable("the store", "a storm")
            return await found(*values, **options)

        return call

    @contextmanager
    def storming(self) -> Iterator[None]:
        self.storm = True
        yield
        self.storm = False


def weather(queue: Queue) -> tuple[Weather, Queue]:
    """The queue as it is reached through some weather."""
    between = Weather(queue.store)
    return between, Queue(cast(Store, between), tenant=queue.tenant, actor=queue.actor)
