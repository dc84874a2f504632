"""Workers that show themselves are seen by their own tenant, and only as long as they do."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from penstock.core.ports import Store
from penstock.presence import Presence, hide, show, workers
from penstock.testing import START, FakeClock
from support.stores import STORES

W1 = Presence("1", "w1", "default", {"emails": 3.0, "reports*": 1.0}, 10, 2, 1, 42, "host", "1.0", START)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "postgres"])
async def store(request: pytest.FixtureRequest, clock: FakeClock) -> AsyncIterator[Store]:
    store = STORES[request.param](clock)
    yield store
    await store.close()


async def test_a_worker_is_seen_as_it_showed_itself_and_when(store: Store, clock: FakeClock) -> None:
    await show(store, "default", W1, 60)
    shown_at = clock.advance(seconds=20)
    busy = replace(W1, running=10, stopping=True, memory_bytes=123_456_789)
    await show(store, "default", busy, 60)
    assert await workers(store, "default") == [replace(busy, seen_at=shown_at)]


async def test_one_that_shows_itself_no_longer_is_gone_when_its_time_is_over(
    store: Store, clock: FakeClock
) -> None:
    await show(store, "default", W1, 60)
    clock.advance(seconds=59)
    assert len(await workers(store, "default")) == 1
    clock.advance(seconds=1)
    assert await workers(store, "default") == []


async def test_one_that_hides_is_gone_at_once_and_may_hide_twice(store: Store) -> None:
    await show(store, "default", W1, 60)
    await hide(store, "default", "1")
    await hide(store, "default", "1")
    assert await workers(store, "default") == []


async def test_two_of_one_name_are_two(store: Store) -> None:
    for id in ("2", "1"):
        await show(store, "default", replace(W1, id=id), 60)
    await show(store, "default", replace(W1, id="3", worker="a"), 60)
    assert [(one.worker, one.id) for one in await workers(store, "default")] == [
        ("a", "3"), ("w1", "1"), ("w1", "2"),
    ]  # fmt: skip


async def test_other_tenants_do_not_see_it(store: Store) -> None:
    await show(store, "default", W1, 60)
    assert await workers(store, "other") == []
    await hide(store, "other", "1")
    assert len(await workers(store, "default")) == 1


@pytest.mark.parametrize(
    ("queue", "serves"), [("emails", True), ("reports", True), ("reports.daily", True), ("email", False)]
)
def test_it_serves_the_queues_that_its_names_and_patterns_mean(queue: str, serves: bool) -> None:
    assert W1.serves(queue) is serves


def test_one_that_stops_serves_no_queue() -> None:
    assert not replace(W1, stopping=True).serves("emails")
