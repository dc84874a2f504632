"""The database goes away in the middle of things: callers wait and succeed, or get an error that says to try again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from penstock import LeaseLost, Queue, Status, StoreUnavailable
from penstock.core.job import Outcome
from penstock.stores.postgres.embedded import start
from penstock.stores.postgres.migrate import SchemaTooNew, SchemaTooOld, migrate
from penstock.stores.postgres.store import PostgresStore
from support.postgres import TABLES, server_url


@pytest.fixture
async def database() -> AsyncIterator[Any]:
    connection = await asyncpg.connect(server_url())
    await connection.execute("; ".join(f"DELETE FROM penstock.{table}" for table in TABLES))
    yield connection
    await connection.close()


@pytest.fixture
async def queue(database: Any) -> AsyncIterator[Queue]:
    store = PostgresStore(server_url(), connections=3)
    yield Queue(store)
    await store.close()


async def terminate_others(database: Any) -> int:
    """End every other connection to this database, as an administrator or a failover would."""
    ended = await database.fetch(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    return len(ended)


class TestTerminatedConnections:
    async def test_the_next_call_gets_a_new_connection(self, queue: Queue, database: Any) -> None:
        await queue.enqueue("t")
        assert await terminate_others(database) > 0
        assert (await queue.enqueue("t")).duplicate is None
        assert len(await queue.lease(worker="w", limit=5)) == 2

    async def test_nothing_answered_is_lost_and_nothing_is_done_twice(
        self, queue: Queue, database: Any
    ) -> None:
        """Producers and workers go on while their connections are ended again and again."""
        done = asyncio.Event()
        answered: list[str] = []
        acked: list[str] = []

        async def produce() -> None:
            for _ in range(12):
                storm = asyncio.create_task(terminate_others(database))
                for _ in range(4):
                    # A lease whose reply is lost with its connection costs an attempt; let there be enough.
                    enqueued = await queue.enqueue("t", max_attempts=1000)
                    answered.append(enqueued.id)
                await storm
            done.set()

        async def work() -> None:
            while not done.is_set() or len(set(acked)) < len(answered):
                for leased in await queue.lease(worker="w", limit=5, lease_seconds=1):
                    try:
                        await queue.ack(leased)
                        acked.append(leased.id)
                    except LeaseLost:
                        continue  # it ran out while the database was away; the job comes again
                await asyncio.sleep(0.005)

        await asyncio.wait_for(asyncio.gather(produce(), work()), 60)
        assert sorted(set(acked)) == sorted(answered)
        for job_id in answered:
            attempts = (await queue.history(job_id)).attempts
            assert [attempt.outcome for attempt in attempts].count(Outcome.SUCCEEDED) == 1
        counts = (await queue.queue("default")).counts
        assert {status: n for status, n in counts.items() if n} == {Status.SUCCEEDED: 48}


class TestServerRestart:
    async def test_a_call_waits_for_the_server_to_come_back(self, tmp_path: Path) -> None:
        with start(tmp_path / "data") as server:
            await migrate(server.url)
            store = PostgresStore(server.url, patience_seconds=30)
            queue = Queue(store)
            await queue.enqueue("t")
            # The postmaster dies at once, as in a crash; whoever attaches next starts it again on the same port.
            os.kill(int((tmp_path / "data/pg/postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
            waiting = asyncio.create_task(queue.enqueue("t"))
            with await asyncio.to_thread(start, tmp_path / "data") as again:
                assert again.url == server.url
                assert (await waiting).duplicate is None
                assert len(await queue.lease(worker="w", limit=5)) == 2
                await store.close()

    async def test_a_server_that_stays_away_is_an_error_that_says_to_try_again(self, tmp_path: Path) -> None:
        store = PostgresStore("postgresql://penstock:secret@127.0.0.1:1/penstock", patience_seconds=0.2)
        with pytest.raises(StoreUnavailable, match="could not be reached") as refused:
            await Queue(store).enqueue("t")
        assert "secret" not in str(refused.value)
        await store.close()


class TestHungConnection:
    async def test_a_call_on_a_connection_that_hangs_is_given_up(self, database: Any) -> None:
        """A proxy that accepts and never answers stands for a half-open connection."""
        answered_by = asyncio.Event()

        async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            answered_by.set()
            await reader.read()
            writer.close()

        async with await asyncio.start_server(silence, "127.0.0.1", 0) as proxy:
            port = proxy.sockets[0].getsockname()[1]
            store = PostgresStore(f"postgresql://penstock:x@127.0.0.1:{port}/penstock", patience_seconds=0.2)
            with pytest.raises(StoreUnavailable):
                await Queue(store).enqueue("t")
            assert answered_by.is_set()
            await store.close()


class TestOtherSchemas:
    async def test_a_newer_schema_is_refused_with_what_to_do(self, queue: Queue, database: Any) -> None:
        await database.execute(
            "INSERT INTO penstock.migration (number, name, checksum, old_workers_may_run) VALUES (9999, 'later', 'x', false)"
        )
        try:
            with pytest.raises(SchemaTooNew, match="upgrade"):
                await queue.enqueue("t")
        finally:
            await database.execute("DELETE FROM penstock.migration WHERE number = 9999")

    async def test_a_database_without_the_schema_is_refused_with_what_to_do(
        self, tmp_path: Path, database: Any
    ) -> None:
        await database.execute("CREATE DATABASE bare")
        store = PostgresStore(server_url().rsplit("/", 1)[0] + "/bare")
        try:
            with pytest.raises(SchemaTooOld, match="penstock migrate"):
                await Queue(store).enqueue("t")
        finally:
            await store.close()
            await database.execute("DROP DATABASE bare WITH (FORCE)")
