"""Whatever lets a job out rings its queue's bell: each verb, on each store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from penstock.core.wakeups import EVERYONE, SCHEDULES, Bell
from penstock.queue import Queue
from penstock.stores.memory import MemoryStore
from penstock.stores.wakeups.memory import MemoryWakeups
from penstock.testing import FakeClock
from support.postgres import EmptyPostgresStore
from support.service import ServedMemoryStore

LONG = 20.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "postgres", "remote"])
async def queue(request: pytest.FixtureRequest, clock: FakeClock) -> AsyncIterator[Queue]:
    store: MemoryStore | EmptyPostgresStore | ServedMemoryStore
    if request.param == "memory":
        store = MemoryStore(clock)
    elif request.param == "remote":
        store = ServedMemoryStore(clock)
    else:
        store = EmptyPostgresStore(clock)
        store.wakeups = MemoryWakeups()
    yield Queue(store)
    await store.close()


Prepare = Callable[[Queue], Awaitable[Callable[[], Awaitable[object]]]]
"""Brings a queue to a point, and returns what is to ring."""


async def enqueued(queue: Queue) -> Callable[[], Awaitable[object]]:
    return lambda: queue.enqueue("a")


async def enqueued_with_a_key(queue: Queue) -> Callable[[], Awaitable[object]]:
    return lambda: queue.enqueue("a", unique_key="u")


async def nacked(queue: Queue) -> Callable[[], Awaitable[object]]:
    await queue.enqueue("a")
    [leased] = await queue.lease(worker="w")
    return lambda: queue.nack(leased, "boom", retry_in=0)


async def released(queue: Queue) -> Callable[[], Awaitable[object]]:
    await queue.enqueue("a")
    [leased] = await queue.lease(worker="w")
    return lambda: queue.release(leased)


async def a_parent_acked(queue: Queue) -> Callable[[], Awaitable[object]]:
    parent = await queue.enqueue("a", queue="elsewhere")
    await queue.enqueue("b", parents=[parent.id])
    [leased] = await queue.lease("elsewhere", worker="w")
    return lambda: queue.ack(leased)


async def a_place_under_a_limit_freed(queue: Queue) -> Callable[[], Awaitable[object]]:
    await queue.configure("default", max_concurrency=1)
    await queue.enqueue_many([{"type": "a"}] * 2)
    [leased] = await queue.lease(worker="w", limit=2)
    return lambda: queue.ack(leased)


async def the_next_of_an_ordering_key_let_in(queue: Queue) -> Callable[[], Awaitable[object]]:
    await queue.enqueue_many([{"type": "a", "ordering_key": "o"}] * 2)
    [leased] = await queue.lease(worker="w", limit=2)
    return lambda: queue.ack(leased)


async def redriven(queue: Queue) -> Callable[[], Awaitable[object]]:
    job = await queue.enqueue("a")
    await queue.cancel(job.id)
    return lambda: queue.redrive(job.id)


async def resumed(queue: Queue) -> Callable[[], Awaitable[object]]:
    await queue.pause("default")
    await queue.enqueue("a")
    return lambda: queue.resume("default")


async def fired(queue: Queue) -> Callable[[], Awaitable[object]]:
    await queue.put_schedule("s", "* * * * *", {"type": "a"})
    queue.store._clock.advance(seconds=61)  # type: ignore[attr-defined]
    return lambda: queue.fire_due()


async def a_lost_lease_swept(queue: Queue) -> Callable[[], Awaitable[object]]:
    await queue.enqueue("a")
    await queue.lease(worker="w", lease_seconds=30)
    queue.store._clock.advance(seconds=31)  # type: ignore[attr-defined]
    return lambda: queue.sweep()


ALL: list[Prepare] = [
    enqueued,
    enqueued_with_a_key,
    nacked,
    released,
    a_parent_acked,
    a_place_under_a_limit_freed,
    the_next_of_an_ordering_key_let_in,
    redriven,
    resumed,
    fired,
    a_lost_lease_swept,
]


@pytest.mark.parametrize("prepare", ALL, ids=lambda prepare: prepare.__name__)
async def test_it_rings(queue: Queue, prepare: Prepare) -> None:
    act = await prepare(queue)
    async with queue.store.wakeups.listen("default", ["default"]) as bell:
        assert not await _rung(bell), "silent before"
        await act()
        assert await bell.wait(LONG) == {"default"}


async def test_what_changes_nothing_rings_nothing(queue: Queue) -> None:
    job = await queue.enqueue("a", delay=60)
    async with queue.store.wakeups.listen("default", ["default"]) as bell:
        await queue.get(job.id)
        await queue.lease(worker="w")
        await queue.cancel(job.id)
        assert not await _rung(bell)


async def test_nothing_crosses_tenants(queue: Queue) -> None:
    async with queue.store.wakeups.listen("acme", ["default"]) as bell:
        await queue.enqueue("a")
        assert not await _rung(bell)
        await queue.for_tenant("acme").enqueue("a")
        assert await bell.wait(LONG) == {"default"}


async def test_whoever_serves_all_tenants_hears_of_every_change_to_a_schedule(queue: Queue) -> None:
    acme = queue.for_tenant("acme")
    async with queue.store.wakeups.listen(EVERYONE, [SCHEDULES]) as bell:
        await acme.enqueue("a")
        assert not await _rung(bell)
        await acme.put_schedule("s", "* * * * *", {"type": "a"})
        assert await bell.wait(LONG) == {SCHEDULES}
        await acme.pause_schedule("s")
        assert await bell.wait(LONG) == {SCHEDULES}
        await acme.drop_schedule("s")
        assert await bell.wait(LONG) == {SCHEDULES}


async def _rung(bell: Bell) -> frozenset[str]:
    return await bell.wait(0)
