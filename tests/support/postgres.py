"""One embedded PostgreSQL for the whole test run; every store gets it empty."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import asyncpg

from penstock.stores.postgres.embedded import start
from penstock.stores.postgres.migrate import migrate
from penstock.stores.postgres.store import PostgresStore
from penstock.testing import FakeClock

TABLES = [
    "job",
    "ready",
    "lane",
    "lease",
    "parked",
    "done",
    "attempt",
    "change",
    "edge",
    "request",
    "holder",
    "queue",
    "key_use",
    "schedule",
    "tally",
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


async def _prepare(url: str) -> None:
    await migrate(url)
    connection = await asyncpg.connect(url)
    # What is tested here is not the disk.
    await connection.execute("ALTER DATABASE penstock SET synchronous_commit = off")
    await connection.close()


class EmptyPostgresStore(PostgresStore):
    """A store whose tables are emptied when it is opened."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(server_url(), clock, connections=4)

    async def pool(self) -> Any:
        if self._pool is None:
            connection = await asyncpg.connect(self._url)
            await connection.execute("; ".join(f"DELETE FROM penstock.{table}" for table in TABLES))
            await connection.close()
        return await super().pool()


def several_stores(clock: FakeClock, number: int = 3) -> list[PostgresStore]:
    """Stores that know nothing of each other but the database, which the first empties when it is opened."""
    others = [PostgresStore(server_url(), clock, connections=3) for _ in range(number - 1)]
    return [EmptyPostgresStore(clock), *others]
