"""A database loaded from a dump is another one: nothing that was told is told again, and nothing stays untold."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from msgspec.structs import replace

from penstock import Queue
from penstock.core.errors import InvalidInput
from penstock.core.promises import LAKE, Promise, encode
from penstock.core.registry import ALL_TENANTS, PutEntry
from penstock.stores.postgres.embedded import start
from penstock.stores.postgres.embedded.programs import INSTALLATION, PACKAGE
from penstock.stores.postgres.loaded import is_loaded
from penstock.stores.postgres.migrate import migrate
from penstock.stores.postgres.store import PostgresStore
from penstock.stores.wakeups.polling import NoWakeups
from penstock.testing import START
from support.postgres import emptied, server_url

FAR = 3_000
"""Transactions that a new server has not come to yet."""


def tool(name: str) -> str:
    """One of PostgreSQL's programs, of the version that runs: a newer one asks for what an older server has not got."""
    if (given := os.environ.get("PENSTOCK_PG_BIN")) is not None:
        return str(Path(given) / name)
    spec = find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    ours = Path(spec.origin).parent / INSTALLATION / "bin" / name
    found = str(ours) if ours.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def load(dump: Path, url: str) -> None:
    """Dump the tests' database, and load that into another."""
    subprocess.run([tool("pg_dump"), "-Fc", "-n", "penstock", "-f", dump, server_url()], check=True)
    subprocess.run([tool("pg_restore"), "--no-owner", "-d", url, dump], check=True)


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that has just begun to count."""
    folder = tmp_path_factory.mktemp("another")
    with start(folder) as server:
        yield server.url


@pytest.fixture
async def queue() -> AsyncIterator[Queue]:
    await emptied()
    async with Queue(PostgresStore(server_url(), wakeups=NoWakeups()), actor="ada") as queue:
        yield queue


async def lived(queue: Queue, far: int = 0) -> str:
    """Some history, far along the server's count, and the place in its feed before it."""
    connection = await asyncpg.connect(server_url())
    for _ in range(far):
        await connection.execute("SELECT pg_current_xact_id()")
    await connection.close()
    before = (await queue.store.events("default", limit=1)).next
    await queue.configure("default", retention_seconds=0)
    for _ in range(2):
        await queue.enqueue("mail")
    [held] = await queue.lease(worker="w")
    await queue.ack(held)
    return before


def facts(url: str) -> list[tuple[Any, ...]]:
    """What a lake that begins now would read, fact by fact."""
    pytest.importorskip("adbc_driver_postgresql")
    from penstock.lake.source import Ask, open_reader

    reader = open_reader(url)
    ask = Ask("events", ("kind", "job_id", "attempt", "verb", "xid"))
    parts = reader.between(reader.first(), reader.horizon(), ask, 1)
    rows = [row for part in parts for batch in reader.read(ask, part) for row in batch.to_pylist()]
    return sorted((row["kind"], row["job_id"] or "", row["attempt"] or 0, row["verb"] or "") for row in rows)


async def test_into_another_server(queue: Queue, another: str, tmp_path: Path) -> None:
    cursor = await lived(queue, FAR)
    told = (await queue.store.events("default", after=cursor, limit=100)).events
    from_the_original = facts(server_url())
    promise = Promise(place="/lake", run=1, since=START, exported_until=await queue.store.now())
    await queue.store.put_entries(ALL_TENANTS, [PutEntry(LAKE, "lake", encode(await of_here(promise)))])
    await asyncio.to_thread(load, tmp_path / "dump", another)

    connection = await asyncpg.connect(another)
    assert await is_loaded(connection)
    with pytest.raises(InvalidInput, match="run penstock migrate"):
        facts(another)
    await migrate(connection)
    assert not await is_loaded(connection)
    feed = await connection.fetchval("SELECT id FROM penstock.feed")
    assert facts(another) == from_the_original
    async with Queue(PostgresStore(another, wakeups=NoWakeups())) as loaded:
        with pytest.raises(InvalidInput, match="of this very feed"):
            await loaded.store.events("default", after=cursor, limit=100)
        place = (await loaded.store.events("default", limit=1)).next
        made = await loaded.enqueue("mail")
        [event] = (await loaded.store.events("default", after=place, limit=100)).events
        assert (event.name, event.what) == (made.id, "enqueued")
        assert len(told) > 1
        # The lake that promised to have this history has it of another database.
        assert (await loaded.sweep()).pruned == 0
    await migrate(connection)  # once is enough
    assert await connection.fetchval("SELECT id FROM penstock.feed") == feed
    await connection.close()
    assert (await queue.sweep()).pruned == 1


async def test_into_another_database_of_the_same_server(queue: Queue, tmp_path: Path) -> None:
    cursor = await lived(queue)
    connection = await asyncpg.connect(server_url())
    await connection.execute("DROP DATABASE IF EXISTS copied")
    await connection.execute("CREATE DATABASE copied")
    await connection.close()
    copied = urlsplit(server_url())._replace(path="/copied").geturl()
    await asyncio.to_thread(load, tmp_path / "dump", copied)
    checking = await asyncpg.connect(copied)
    assert not await is_loaded(checking)  # it goes on counting where the original does
    await checking.close()
    async with Queue(PostgresStore(copied, wakeups=NoWakeups())) as copy:
        with pytest.raises(InvalidInput, match="of this very feed"):
            await copy.store.events("default", after=cursor, limit=100)
    assert facts(copied) == facts(server_url())
    from penstock.lake.source import open_reader

    ours, theirs = open_reader(server_url()).horizon(), open_reader(copied).horizon()
    assert ours["feed"] == theirs["feed"]
    assert ours["system"] != theirs["system"]


async def of_here(promise: Promise) -> Promise:
    """As a lake that has read everything would say it."""
    from penstock.lake.source import open_reader

    return replace(promise, offset=open_reader(server_url()).horizon())
