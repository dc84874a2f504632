"""Where lakes are kept a job leaves PostgreSQL when all of its rows are in them, whatever their times say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import date, timedelta
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from penstock import Queue
from penstock.core.job import Status
from penstock.core.promises import LAKE, Promise, encode
from penstock.core.registry import ALL_TENANTS, PutEntry
from penstock.stores.postgres.store import PostgresStore
from penstock.stores.wakeups.polling import NoWakeups
from penstock.testing import START, FakeClock, counting_ids
from support.postgres import TABLES, other_url

DAY = timedelta(days=1)


@pytest.fixture
async def database() -> AsyncIterator[Any]:
    """A connection to an empty database without days."""
    connection = await asyncpg.connect(other_url())
    await connection.execute("; ".join(f"DELETE FROM penstock.{table}" for table in TABLES))
    for known in await days_of(connection):
        await connection.execute("SELECT penstock.drop_day($1)", known)
    yield connection
    await connection.close()


async def days_of(database: Any) -> list[date]:
    found = await database.fetch(
        "SELECT to_date(right(relname, 8), 'YYYYMMDD') AS day FROM pg_class WHERE relname ~ '^job_[0-9]{8}$' ORDER BY 1"
    )
    return [row["day"] for row in found]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(database: Any, clock: FakeClock) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(other_url(), clock, connections=3, wakeups=NoWakeups())
    yield opened
    await opened.close()


@pytest.fixture
async def queue(store: PostgresStore) -> Queue:
    queue = Queue(store, actor="ada", ids=counting_ids())
    await queue.configure("default", retention_seconds=0)
    return queue


async def as_read(database: Any, clock: FakeClock, **promised: Any) -> Promise:
    """What a lake would promise that had read everything it may by now."""
    row = await database.fetchrow(
        "SELECT f.id AS feed, s.system_identifier || '/' || d.oid AS system,"
        " pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xid"
        " FROM penstock.feed f, pg_control_system() s, pg_database d WHERE d.datname = current_database()"
    )
    made = Promise(place="here", run=1, since=START, exported_until=clock.now(), offset={**row})
    return replace(made, **promised)


async def tell(store: PostgresStore, promise: Promise) -> None:
    await store.put_entries(ALL_TENANTS, [PutEntry(LAKE, "a lake", encode(promise))])


async def test_what_ended_before_the_lake_read_but_was_noticed_after_stays(
    store: PostgresStore, queue: Queue, database: Any, clock: FakeClock
) -> None:
    job = await queue.enqueue("mail", expires_in=60)
    clock.advance(hours=1)
    promise = await as_read(
        database, clock
    )  # the lake has the job, and nobody has noticed yet that it expired
    await tell(store, promise)
    swept = await queue.sweep()
    assert (swept.expired, swept.pruned) == (1, 0)
    gone = await queue.get(job.id)
    assert gone.ended_at == START + timedelta(seconds=60) < promise.until
    await tell(store, await as_read(database, clock))
    assert (await queue.sweep()).pruned == 1


async def test_what_a_transaction_brought_in_that_was_open_at_the_horizon_stays(
    store: PostgresStore, queue: Queue, database: Any, clock: FakeClock
) -> None:
    caller = await asyncpg.connect(other_url())
    transaction = caller.transaction()
    await transaction.start()
    await store.enqueue_in(caller, "default", [queue.new("mail")])
    clock.advance(hours=1)
    open_at_the_horizon = await as_read(database, clock, exported_until=START + 30 * DAY)
    await transaction.commit()
    await caller.close()
    [leased] = await queue.lease(worker="w")
    await queue.ack(leased)
    clock.advance(days=1)
    # Even if its attempt were in the lake: a transaction may take its number early and write late.
    await database.execute("UPDATE penstock.attempt SET xid = 1")
    await tell(store, open_at_the_horizon)
    assert (await queue.sweep()).pruned == 0
    await tell(store, await as_read(database, clock))
    assert (await queue.sweep()).pruned == 1


async def test_a_day_stays_until_the_lake_has_all_of_it_and_doubts_none(
    store: PostgresStore, queue: Queue, database: Any, clock: FakeClock
) -> None:
    await queue.sweep()  # makes the days, and looks after them no more for a while
    before = await as_read(database, clock)
    await queue.enqueue("mail")
    [leased] = await queue.lease(worker="w")
    await queue.ack(leased)
    clock.advance(days=30)
    assert (await queue.sweep()).pruned == 1  # there is no lake yet
    much_later = replace(before, exported_until=START + 29 * DAY)
    await tell(store, much_later)
    await store.tend()
    assert START.date() in await days_of(database)
    assert START.date() + DAY not in await days_of(database)  # of which there is nothing
    read = await as_read(database, clock)
    await tell(store, replace(read, doubts=("2026-01-20",)))
    await store.tend()
    assert START.date() in await days_of(database)
    await tell(store, replace(read, exported_until=START.replace(hour=23)))
    await store.tend()
    assert START.date() in await days_of(database)
    await tell(store, read)
    await store.tend()
    assert START.date() not in await days_of(database)


async def test_a_promise_about_another_database_is_none_about_this_one(
    store: PostgresStore, queue: Queue, database: Any, clock: FakeClock
) -> None:
    await queue.enqueue("mail")
    [leased] = await queue.lease(worker="w")
    await queue.ack(leased)
    clock.advance(days=1)
    read = await as_read(database, clock)
    for other in ({"feed": "another"}, {"system": "1"}):
        await tell(store, replace(read, offset={**read.offset, **other}))
        assert (await queue.sweep()).pruned == 0
    await tell(store, read)
    assert (await queue.sweep()).pruned == 1
    assert (await queue.find(status=Status.SUCCEEDED)).jobs == ()
