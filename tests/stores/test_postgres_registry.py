"""Entries and allowances in PostgreSQL under many connections at once, and what a sweep takes away."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Any

import asyncpg
import pytest

from penstock.core.codec import JsonText
from penstock.core.registry import PutEntry, Spend
from penstock.stores.postgres.rules import sql
from penstock.testing import FakeClock
from support.postgres import EmptyPostgresStore, emptied, server_url

CONNECTIONS = 8
NAMES = ["a", "b", "c", "d"]


@pytest.fixture
async def connections() -> AsyncIterator[list[Any]]:
    await emptied()
    opened = [await asyncpg.connect(server_url()) for _ in range(CONNECTIONS)]
    yield opened
    for connection in opened:
        await connection.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(clock: FakeClock) -> AsyncIterator[EmptyPostgresStore]:
    store = EmptyPostgresStore(clock)
    yield store
    await store.close()


class TestManyConnections:
    """On bare connections: the store would try again after a deadlock, and nobody would see it."""

    async def test_spend_no_more_than_the_burst_and_what_time_has_filled_up(
        self, connections: list[Any]
    ) -> None:
        rate, burst, dice = 200.0, 7.0, Random(7)
        granted, refused = Counter[str](), 0

        async def work(connection: Any) -> None:
            nonlocal refused
            for _ in range(30):
                names = dice.choices(NAMES, k=6)
                found = await connection.fetch(
                    sql("spend"), "t", None, names, [1.0] * 6, [rate] * 6, [burst] * 6
                )
                for row in found:
                    granted[names[row["place"] - 1]] += row["granted"]
                    refused += not row["granted"]

        started = await connections[0].fetchval("SELECT clock_timestamp()")
        await asyncio.gather(*map(work, connections))
        ended = await connections[0].fetchval("SELECT clock_timestamp()")
        most = burst + rate * (ended - started).total_seconds()
        assert refused > 0
        assert all(burst <= granted[name] <= most for name in NAMES)
        # To the row as well: what was taken and what is left have both been there.
        for row in await connections[0].fetch("SELECT * FROM penstock.allowance"):
            since = burst + rate * (row["at"] - started).total_seconds()
            assert granted[row["name"]] + row["remaining"] <= since + 1e-6

    async def test_change_entries_in_any_order_and_lose_none(self, connections: list[Any]) -> None:
        dice = Random(7)

        async def work(connection: Any) -> None:
            for _ in range(30):
                names = dice.choices(NAMES, k=6)
                bodies = [None if dice.random() < 0.2 else "1" for _ in names]
                nothing: list[None] = [None] * 6
                found = await connection.fetch(
                    sql("put_entries"), "t", None, ["thing"] * 6, names, bodies, nothing, nothing, nothing,
                    names, ["put" if body else "drop" for body in bodies], ["ada"] * 6, nothing, nothing,
                )  # fmt: skip
                assert len(found) == 6

        await asyncio.gather(*map(work, connections))
        for name in NAMES:  # a version is how often it was put since it was last dropped
            verbs = [
                row["verb"]
                for row in await connections[0].fetch(
                    "SELECT verb FROM penstock.change WHERE kind = 'thing' AND name = $1 ORDER BY seq", name
                )
            ]
            since = verbs[::-1].index("drop") if "drop" in verbs else len(verbs)
            version = await connections[0].fetchval(
                "SELECT version FROM penstock.entry WHERE name = $1", name
            )
            assert (version or 0) == since


class TestWaiting:
    """One who has waited for another decides by what that one left behind."""

    @pytest.mark.parametrize(
        ("guard", "commits", "version"),
        [(0, True, None), (0, False, 1), (None, True, 2), (None, False, 1)],
    )
    async def test_for_an_entry_to_be_made(
        self, connections: list[Any], guard: int | None, commits: bool, version: int | None
    ) -> None:
        assert await self._after(connections, guard, commits) == version

    @pytest.mark.parametrize(
        ("guard", "commits", "version"),
        [(1, True, None), (1, False, 2), (None, True, 3), (None, False, 2), (2, True, 3), (0, True, None)],
    )
    async def test_for_an_entry_to_be_changed(
        self, connections: list[Any], guard: int | None, commits: bool, version: int | None
    ) -> None:
        await self._put(connections[0])
        assert await self._after(connections, guard, commits) == version

    @pytest.mark.parametrize(
        ("guard", "commits", "version"),
        [(1, True, None), (1, False, 2), (None, True, 1), (None, False, 2), (0, True, 1), (0, False, None)],
    )
    async def test_for_an_entry_to_be_dropped(
        self, connections: list[Any], guard: int | None, commits: bool, version: int | None
    ) -> None:
        await self._put(connections[0])
        assert await self._after(connections, guard, commits, [None]) == version

    @pytest.mark.parametrize(("guard", "version"), [(None, 2), (0, None), (1, 2), (5, None)])
    async def test_for_an_entry_to_be_dropped_and_made_anew(
        self, connections: list[Any], guard: int | None, version: int | None
    ) -> None:
        await self._put(connections[0], times=5)
        assert await self._after(connections, guard, True, [None, "1"]) == version

    async def test_and_drops_what_was_made_anew_with_a_record(self, connections: list[Any]) -> None:
        await self._put(connections[0])
        assert await self._after(connections, None, True, [None, "1"], then=None) == 0
        told = await connections[0].fetch(
            "SELECT verb FROM penstock.change WHERE kind = 'thing' AND name = 'a' ORDER BY seq"
        )
        assert [row["verb"] for row in told] == ["put", "drop", "put", "drop"]

    async def _after(
        self,
        connections: list[Any],
        guard: int | None,
        commits: bool,
        bodies: Sequence[str | None] = ("1",),
        then: str | None = "1",
    ) -> Any:
        """The version that a change gets while others are under way, once those are committed or taken back."""
        first, second, watcher, *_ = connections
        transaction = first.transaction()
        await transaction.start()
        for body in bodies:
            await self._put(first, body=body)
        waiting = asyncio.create_task(self._put(second, guard, then))
        blocked = "SELECT cardinality(pg_blocking_pids($1)) > 0"
        while not await watcher.fetchval(blocked, second.get_server_pid()):
            assert not waiting.done()
        await (transaction.commit() if commits else transaction.rollback())
        return await waiting

    @staticmethod
    async def _put(connection: Any, guard: int | None = None, body: str | None = "1", times: int = 1) -> Any:
        audit = [["a"], ["drop" if body is None else "put"], ["ada"], [None], [None]]
        columns = [["thing"], ["a"], [body], [guard], [None], [None], *audit]
        for _ in range(times):
            found = await connection.fetchrow(sql("put_entries"), "t", None, *columns)
        return found["put_version"]


class TestSweep:
    async def test_removes_what_is_over_and_no_more_at_once_than_asked(
        self, store: EmptyPostgresStore, clock: FakeClock
    ) -> None:
        entries = [PutEntry("thing", f"{number}", JsonText("1"), seconds=number) for number in range(1, 6)]
        await store.put_entries("default", [*entries, PutEntry("thing", "ever", JsonText("1"))])
        clock.advance(seconds=4)
        for left in (["3", "4", "5", "ever"], ["5", "ever"], ["5", "ever"]):
            await self._swept(store, limit=2)
            assert sorted(await self._names(store, "entry")) == left

    async def test_removes_allowances_an_hour_or_two_after_they_were_full(
        self, store: EmptyPostgresStore, clock: FakeClock
    ) -> None:
        await store.spend(
            "default", [Spend("a", 60, rate=1, burst=60), Spend("b", 1, rate=1 / 36000, burst=60)]
        )
        clock.advance(minutes=60)
        await self._swept(store)
        assert sorted(await self._names(store, "allowance")) == ["a", "b"]
        clock.advance(minutes=60)
        await self._swept(store)
        assert await self._names(store, "allowance") == ["b"]

    async def test_leaves_alone_what_somebody_is_changing(
        self, store: EmptyPostgresStore, clock: FakeClock
    ) -> None:
        await store.put_entries("default", [PutEntry("thing", "a", JsonText("1"), seconds=1)])
        await store.spend("default", [Spend("a", 1, rate=1, burst=1)])
        clock.advance(days=1)
        connection = await asyncpg.connect(server_url())
        async with connection.transaction():
            await connection.execute("UPDATE penstock.entry SET expires_at = NULL")
            await connection.execute("UPDATE penstock.allowance SET kept_until = 'infinity'")
            await self._swept(store)
        await connection.close()
        assert await self._names(store, "entry") == ["a"]
        assert await self._names(store, "allowance") == ["a"]

    async def test_looks_for_them_once_a_minute_only(
        self, store: EmptyPostgresStore, clock: FakeClock
    ) -> None:
        await store.sweep(limit=10)
        await store.put_entries("default", [PutEntry("thing", "a", JsonText("1"), seconds=1)])
        clock.advance(seconds=1)
        await store.sweep(limit=10)
        assert await self._names(store, "entry") == ["a"]

    @staticmethod
    async def _swept(store: EmptyPostgresStore, limit: int = 10) -> None:
        store._tidy_at = 0
        await store.sweep(limit=limit)

    @staticmethod
    async def _names(store: EmptyPostgresStore, table: str) -> list[str]:
        found = await store._fetch(f"SELECT name FROM penstock.{table}")
        return [row["name"] for row in found]
