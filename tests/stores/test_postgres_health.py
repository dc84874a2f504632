"""What the database says about itself, and the culprit it names when a snapshot is held open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from penstock import Queue
from penstock.stores.postgres import health as health_module
from penstock.stores.postgres.health import Pin, Table, health, threats
from penstock.stores.postgres.store import PostgresStore
from support.postgres import TABLES, server_url


@pytest.fixture
async def database() -> AsyncIterator[Any]:
    connection = await asyncpg.connect(server_url())
    await connection.execute("; ".join(f"DELETE FROM penstock.{table}" for table in TABLES))
    yield connection
    await connection.close()


@pytest.fixture
async def idler() -> AsyncIterator[Any]:
    """Somebody who opened a transaction, looked once, and went to lunch."""
    connection = await asyncpg.connect(server_url(), server_settings={"application_name": "lunch"})
    yield connection
    await connection.close()


async def test_every_table_of_the_queue_is_told_of(database: Any) -> None:
    found = await health(database)
    assert {table.name for table in found.tables} == {*TABLES, "feed", "feed_floor", "migration"}
    assert all(table.bytes >= 0 and table.index_bytes >= 0 for table in found.tables)


async def test_a_long_open_snapshot_is_named_with_its_culprit_and_what_to_do(
    database: Any, idler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_module, "LONG_SECONDS", 0)
    async with idler.transaction(isolation="repeatable_read"):
        pid = await idler.fetchval(
            "SELECT pg_backend_pid() FROM penstock.job RIGHT JOIN (SELECT) AS one ON true LIMIT 1"
        )
        found = await health(database)
        [pin] = [pin for pin in found.pins if pin.application == "lunch"]
        assert pin.name == str(pid)
        assert pin.state == "idle in transaction"
        [threat] = [threat for threat in found.threats if "lunch" in threat]
        assert f"pg_terminate_backend({pid})" in threat
    assert not [pin for pin in (await health(database)).pins if pin.application == "lunch"]


async def test_what_somebody_asked_is_not_repeated(database: Any, idler: Any) -> None:
    async with idler.transaction(isolation="repeatable_read"):
        await idler.fetch("SELECT 'a secret' FROM penstock.job")
        assert "a secret" not in repr(await health(database))


async def test_a_prepared_transaction_would_be_told_how_to_end() -> None:
    [threat] = threats((), (Pin("prepared transaction", "two-phase", "", "ada", "prepared", 3600.0),))
    assert "ROLLBACK PREPARED 'two-phase'" in threat


async def test_dead_rows_that_outweigh_the_live_ones_are_a_threat() -> None:
    crowded, busy = Table("ready", 10, 500_000, 0, 0, None), Table("lease", 400_000, 500_000, 0, 0, None)
    [threat] = threats((crowded, busy), ())
    assert threat.startswith("ready has 500,000 dead rows")


async def test_what_a_claim_costs_is_known_once_something_was_leased(database: Any) -> None:
    store = PostgresStore(server_url())
    queue = Queue(store)
    await queue.enqueue_many([{"type": "t"} for _ in range(10)])
    assert len(await queue.lease(worker="w", limit=10)) == 10
    await store.close()
    await database.execute("SELECT pg_stat_clear_snapshot()")
    assert isinstance((await health(database)).read_per_job, float)
