"""Insights in PostgreSQL, where two runs may publish in the same moment."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from penstock.core.codec import JsonText
from penstock.core.errors import InvalidInput
from penstock.core.registry import Insight
from penstock.stores.postgres import registry
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


def insight(name: str, chars: int = 2, tenant: str = "default") -> Insight:
    return Insight(tenant, name, START, JsonText('"' + "x" * (chars - 2) + '"'))


def test_bodies_are_sent_in_slices_that_the_database_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_SLICE_CHARS", 100)
    slices = registry._slices(
        [insight("a", 60), insight("b", 40), insight("c", 2), insight("d", 500), insight("e")]
    )
    assert [[one.name for one in some] for some in slices] == [["a", "b"], ["c"], ["d"], ["e"]]


async def test_all_slices_are_of_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_SLICE_CHARS", 1)
    store = EmptyPostgresStore(None)
    try:
        run = [insight("slo"), insight("flows"), insight("slo", tenant="other")]
        await store.put_insights(run)
        assert await store.insights("default", ["flows", "slo"]) == [insight("flows"), insight("slo")]
        with pytest.raises(asyncpg.DataError):
            await store.put_insights(
                [insight("slo", 9), Insight("default", "flows", START, JsonText("no JSON"))]
            )
        assert await store.insights("default", ["flows", "slo"]) == [insight("flows"), insight("slo")]
    finally:
        await store.close()
