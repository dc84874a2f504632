"""One embedded PostgreSQL for the whole test run; every store gets it empty."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from penstock.core.commands import Enqueued
from penstock.core.errors import PenstockError
from penstock.core.job import NewJob
from penstock.stores.postgres import in_transaction
from penstock.stores.postgres.embedded import start
from penstock.stores.postgres.migrate import migrate
from penstock.stores.postgres.store import PostgresStore
from penstock.stores.wakeups.polling import NoWakeups
from penstock.testing import START, FakeClock

TABLES = [
    "job",
    "ready",
    "lane",
    "lease",
    "parked",
    "done",
    "attempt",
    "change",
    "insight",
    "edge",
    "request",
    "holder",
    "queue",
    "key_use",
    "schedule",
    "tally",
    "leader",
    "entry",
    "allowance",
]


@cache
def server_url() -> str:
    """The URL of the server, started and migrated at the first call and stopped at exit."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-tests-"))
    server = start(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.close)
    with ThreadPoolExecutor(1) as executor:  # the caller may be inside a running event loop
        executor.submit(lambda: asyncio.run(_prepare(server.url))).result()
    return server.url


@cache
def other_url() -> str:
    """The URL of a second database beside it, for tests that change the tables themselves."""
    url = server_url()
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(lambda: asyncio.run(_prepare_other(url))).result()


async def _prepare(url: str) -> None:
    await migrate(url)
    connection = await asyncpg.connect(url)
    # What is tested here is not the disk.
    await connection.execute("ALTER DATABASE penstock SET synchronous_commit = off")
    # So that the jobs of fake clocks are in the tables of a day too, and what is left of them outlives them.
    await connection.execute("SELECT penstock.add_day($1)", START.date())
    await connection.close()


async def emptied() -> None:
    """Take every row out of the tables."""
    connection = await asyncpg.connect(server_url())
    await connection.execute("; ".join(f"DELETE FROM penstock.{table}" for table in TABLES))
    await connection.close()


async def _prepare_other(url: str) -> str:
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE DATABASE other")
    await connection.execute("ALTER DATABASE other SET synchronous_commit = off")
    await connection.close()
    other = urlsplit(url)._replace(path="/other").geturl()
    await migrate(other)
    return other


class EmptyPostgresStore(PostgresStore):
    """A store whose tables are emptied when it is opened."""

    def __init__(self, clock: FakeClock | None) -> None:
        super().__init__(server_url(), clock, connections=4, wakeups=NoWakeups())
        self._emptying = asyncio.Lock()
        self._tend_at = inf  # the next test needs the same days; test_postgres_days.py is about them

    async def pool(self) -> Any:
        async with self._emptying:  # of several that call at once, one empties it, and before any has written
            if self._pool is None:
                await emptied()
            return await super().pool()


class CountingStore(EmptyPostgresStore):
    """Knows how many statements were sent."""

    def __init__(self) -> None:
        super().__init__(None)
        self.statements: list[str] = []

    async def _with_connection(self, work: Any) -> Any:
        async def counted(connection: Any) -> Any:
            with connection.query_logger(lambda record: self.statements.append(record.query)):
                return await work(connection)

        return await super()._with_connection(counted)


class SqlEnqueuingStore(EmptyPostgresStore):
    """The store with jobs put in as other drivers do it: by the function in the database."""

    async def enqueue(self, tenant: str, jobs: Sequence[NewJob]) -> list[Enqueued | PenstockError]:
        async def put(connection: Any) -> list[Enqueued | PenstockError]:
            async with connection.transaction():
                return await in_transaction.enqueue(connection, tenant, jobs, self._given_now())

        await self._catch_up(tenant)  # as `enqueue_in` does, but not with a connection of the pool in hand
        return await self._reach(put)


def several_stores(clock: FakeClock, number: int = 3) -> list[PostgresStore]:
    """Stores that know nothing of each other but the database, which the first empties when it is opened."""
    others = [
        PostgresStore(server_url(), clock, connections=3, wakeups=NoWakeups()) for _ in range(number - 1)
    ]
    return [EmptyPostgresStore(clock), *others]
