"""At rest a scheduler asks PostgreSQL for less than one statement a second, however many tenants there are."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.queue import Queue
from penstock.scheduler import Scheduler
from penstock.stores.postgres.rules import sql
from support.postgres import CountingStore


@pytest.fixture
async def store() -> AsyncIterator[CountingStore]:
    store = CountingStore()
    yield store
    await store.close()


async def test_at_rest_it_asks_less_than_once_a_second(store: CountingStore) -> None:
    queue = Queue(store)
    for number in range(20):
        tenant = queue.for_tenant(f"t{number}")
        await tenant.put_schedule("s", "0 0 1 1 *", {"type": "a"})
        await tenant.enqueue("a")
        [leased] = await tenant.lease(worker="w")
        await tenant.ack(leased)
    scheduler = Scheduler(queue)
    await scheduler._sweep()  # what was done above is settled here

    cost, per_second = {}, 0.0
    for work in (scheduler._office.seek, scheduler._fire, scheduler._sweep):
        store.statements.clear()
        seconds = await work()
        cost[work.__name__] = len(store.statements)
        per_second += len(store.statements) / seconds
    assert cost == {"seek": 1, "_fire": 1, "_sweep": 2}
    assert per_second < 1


async def test_one_that_waits_for_the_office_writes_nothing(store: CountingStore) -> None:
    """An upsert that is refused would lock the row, and a fleet of workers asks every few seconds."""
    await store.lead("scheduler", "first", 60)
    async with (await store.pool()).acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        assert await connection.fetch(sql("lead"), "scheduler", "second", 60.0, None) == []
        assert await connection.fetchval("SELECT pg_current_xact_id_if_assigned()") is None
        await transaction.rollback()


async def test_statements_in_transactions_are_counted_too(store: CountingStore) -> None:
    await Queue(store).put_schedule("s", "0 0 1 1 *", {"type": "a"})
    assert any("pg_advisory_xact_lock" in statement for statement in store.statements)
