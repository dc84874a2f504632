"""Insights in PostgreSQL, where two runs may publish in the same moment."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from penstock.core.codec import JsonText
from penstock.core.errors import InvalidInput
from penstock.core.registry import Insight
from penstock.testing import START
from support.postgres import EmptyPostgresStore, server_url
from support.working import until


async def test_a_run_waits_for_one_that_publishes_and_gives_way_if_that_was_newer() -> None:
    store = EmptyPostgresStore(None)
    assert await store.insights("default", ["slo"]) == []  # and the tables are empty
    other, watcher = await asyncpg.connect(server_url()), await asyncpg.connect(server_url())

    async def is_waiting() -> bool:
        return bool(await watcher.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))

    try:
        async with other.transaction():
            await other.execute("LOCK TABLE penstock.insight IN SHARE ROW EXCLUSIVE MODE")
            await other.execute(
                "INSERT INTO penstock.insight (tenant, name, as_of, body) VALUES ('default', 'slo', $1, '{}')",
                START + timedelta(hours=1),
            )
            older = asyncio.create_task(
                store.put_insights([Insight("default", "slo", START, JsonText("{}"))])
            )
            await until(is_waiting)
            assert await store.insights("default", ["slo"]) == [], "nobody who reads has to wait"
        with pytest.raises(InvalidInput, match="no older"):
            await older
    finally:
        await other.close()
        await watcher.close()
        await store.close()
