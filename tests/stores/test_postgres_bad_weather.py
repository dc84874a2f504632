"""The database goes away in the middle of things: callers wait and succeed, or get an error that says to try again."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self
from urllib.parse import urlsplit

import asyncpg
import pytest

from penstock import LeaseLost, Queue, Status, StoreUnavailable
from penstock.core.commands import Duplicate
from penstock.core.job import JobId, Outcome
from penstock.stores.postgres import connected
from penstock.stores.postgres.embedded import start
from penstock.stores.postgres.embedded.programs import find_binaries, server_user
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


class TestAStoppedProcess:
    @pytest.mark.parametrize("stopped_at", ["between statements", "between parsing and running one"])
    async def test_its_locks_are_taken_from_it(self, queue: Queue, database: Any, stopped_at: str) -> None:
        """What SIGSTOP leaves behind: a transaction that holds a row, and a client that says no more."""
        await queue.configure("limited", max_concurrency=1)
        await queue.enqueue("t", queue="limited")
        stopped = PostgresStore(server_url(), connections=1)
        connection = await (await stopped.pool()).acquire()
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("SELECT FROM penstock.queue WHERE name = 'limited' FOR UPDATE")
        if stopped_at == "between parsing and running one":
            await connection.prepare(
                "SELECT 'something' AS never_run"
            )  # the server waits for the values to run it with
        assert len(await queue.lease("limited", worker="w")) == 1
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
            await connection.fetch("SELECT 1")
        await (await stopped.pool()).release(connection)
        await stopped.close()


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
            store = PostgresStore(server.url, patience_seconds=90)
            queue = Queue(store)
            await queue.enqueue("t")
            # The postmaster dies at once, as in a crash; whoever attaches next starts it again on the same port.
            os.kill(int((tmp_path / "data/pg/postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
            waiting = asyncio.create_task(queue.enqueue("t"))
            with await asyncio.to_thread(start, tmp_path / "data") as again:
                assert again.url == server.url
                # If the dying server still took it, the second try is told so; it is there once either way.
                assert (await waiting).duplicate in (None, Duplicate.ID)
                assert len(await queue.lease(worker="w", limit=5)) == 2
                await store.close()

    async def test_a_server_that_stays_away_is_an_error_that_says_to_try_again(self, tmp_path: Path) -> None:
        store = PostgresStore("postgresql://penstock:secret@127.0.0.1:1/penstock", patience_seconds=0.2)
        with pytest.raises(StoreUnavailable, match="could not be reached") as refused:
            await Queue(store).enqueue("t")
        assert "secret" not in str(refused.value)
        await store.close()


class SmallDisk:
    """A server of our own whose tables have little room, which is filled up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""

    async def start(self, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        raise NotImplementedError

    async def fill(self, database: Any) -> None:
        raise NotImplementedError

    async def make_room(self, database: Any) -> None:
        raise NotImplementedError


class LimitedFiles(SmallDisk):
    """No file may grow beyond two megabytes. It stands for a quota, and needs no privilege."""

    async def start(self, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        binaries = find_binaries(self.folder, server_user(self.folder))
        limited = public_folder(stack)
        # Files of the log have a size of their own; a block of ulimit is half a kilobyte.
        (limited / "initdb").write_text(f'#!/bin/sh\nexec "{binaries}/initdb" --wal-segsize=1 "$@"\n')
        (limited / "postgres").write_text(f'#!/bin/sh\nulimit -S -f 4096\nexec "{binaries}/postgres" "$@"\n')
        for program in ("initdb", "postgres"):
            (limited / program).chmod(0o755)
        monkeypatch.setenv("PENSTOCK_PG_BIN", str(limited))
        self.url = stack.enter_context(start(self.folder)).url
        await migrate(self.url)

    async def fill(self, database: Any) -> None:
        await database.execute("ALTER TABLE penstock.ready SET (autovacuum_enabled = off)")
        some = """INSERT INTO penstock.ready (tenant, id, queue, priority, run_at, scheduled_at)
                  SELECT 'filler', gen_random_uuid(), 'q', 0, now(), now() FROM generate_series(1, 100)"""
        with suppress(asyncpg.PostgresError):
            while True:
                await database.execute(some)

    async def make_room(self, database: Any) -> None:
        await database.execute("DELETE FROM penstock.ready WHERE tenant = 'filler'")
        await database.execute("VACUUM penstock.ready")


class FullFileSystem(SmallDisk):
    """The tables are on a file system of four megabytes, which only root can make."""

    async def start(self, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk = public_folder(stack) / "disk"
        self.disk.mkdir()
        self.url = stack.enter_context(start(self.folder)).url
        owner = (self.folder / "pg").stat()
        options = f"size=4m,mode=0700,uid={owner.st_uid},gid={owner.st_gid}"
        mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.disk)]
        mounted = await asyncio.to_thread(subprocess.run, mount, capture_output=True, text=True)
        if mounted.returncode != 0:
            pytest.skip(f"no file system may be mounted here: {mounted.stderr.strip()}")
        stack.callback(subprocess.run, ["umount", "--lazy", str(self.disk)], check=True)
        database = await asyncpg.connect(self.url)
        await database.execute(f"CREATE TABLESPACE small LOCATION '{self.disk}'")
        await database.execute("ALTER DATABASE penstock SET default_tablespace = small")
        await database.close()
        await migrate(self.url)

    async def fill(self, database: Any) -> None:
        with (self.disk / "filler").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    async def make_room(self, database: Any) -> None:
        (self.disk / "filler").unlink()


def public_folder(stack: AsyncExitStack) -> Path:
    """A folder that a user lent by root can reach, which pytest's own is not."""
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="penstock-tests-")))
    folder.chmod(0o755)
    return folder


async def enqueue_until_refused(queue: Queue, answered: list[JobId]) -> None:
    """Enqueue on: some jobs still fit into pages that are there."""
    for _ in range(5000):
        enqueued = await queue.enqueue("t")
        answered.append(enqueued.id)


@pytest.fixture(params=[LimitedFiles, FullFileSystem])
async def disk(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SmallDisk]:
    async with AsyncExitStack() as stack:
        disk: SmallDisk = request.param(tmp_path)
        await disk.start(stack, monkeypatch)
        yield disk


class TestFullDisk:
    async def test_a_refused_write_is_an_error_that_says_to_try_again_and_nothing_answered_is_lost(
        self, disk: SmallDisk
    ) -> None:
        store, database = PostgresStore(disk.url, patience_seconds=0.1), await asyncpg.connect(disk.url)
        queue = Queue(store)
        answered = [(await queue.enqueue("t")).id]
        [held] = await queue.lease(worker="w", lease_seconds=600)
        await disk.fill(database)
        with pytest.raises(StoreUnavailable, match="could not extend file"):
            await enqueue_until_refused(queue, answered)
        assert (await queue.get(held.id)).status is Status.RUNNING
        await disk.make_room(database)
        answered.append((await queue.enqueue("t")).id)
        await queue.ack(held)
        assert sorted([job.id async for job in queue.find_all()]) == sorted(answered)
        leased = await queue.lease(worker="w", limit=len(answered))
        assert sorted(one.id for one in leased) == sorted(set(answered) - {held.id})
        counts = (await queue.queue("default")).counts
        assert {status: n for status, n in counts.items() if n} == {
            Status.SUCCEEDED: 1,
            Status.RUNNING: len(answered) - 1,
        }
        await store.close()
        await database.close()

    async def test_a_call_waits_until_there_is_room(self, disk: SmallDisk) -> None:
        hasty = PostgresStore(disk.url, patience_seconds=0.1)
        patient = PostgresStore(disk.url, patience_seconds=90)
        database = await asyncpg.connect(disk.url)
        await Queue(patient).enqueue("t")
        await disk.fill(database)
        with pytest.raises(StoreUnavailable):
            await enqueue_until_refused(Queue(hasty), [])
        refused = asyncio.Event()
        watcher = logging.Handler()
        watcher.emit = lambda record: refused.set()  # type: ignore[method-assign]
        logging.getLogger("penstock.postgres").addHandler(watcher)
        try:
            waiting = asyncio.create_task(Queue(patient).enqueue("t"))
            await asyncio.wait_for(refused.wait(), 60)
            await disk.make_room(database)
            assert (await waiting).duplicate is None
        finally:
            logging.getLogger("penstock.postgres").removeHandler(watcher)
        for store in (hasty, patient):
            await store.close()
        await database.close()


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


class Line:
    """A line to the database that can go dead: nothing comes through any more, and nobody is told."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._there = (parts.hostname, parts.port)
        self._url = parts
        self._dead = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        user = self._url.netloc.rpartition("@")[0]
        self.url = self._url._replace(netloc=f"{user}@127.0.0.1:{port}").geturl()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()

    def cut(self) -> None:
        """Let whatever is connected, or connects from now on, hang."""
        self._dead = True

    def mend(self) -> None:
        """Let new connections through; those that hung stay dead."""
        self._dead = False

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._there)
        for source, target in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.create_task(self._carry(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while some := await source.read(65536):
                if self._dead:
                    await asyncio.Event().wait()  # for good: what was sent is lost
                target.write(some)
                await target.drain()
        except OSError:
            pass
        finally:
            target.close()


class TestDeadLine:
    async def test_a_connection_that_goes_dead_is_given_up_and_the_next_call_gets_a_new_one(
        self, database: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connected, "_LONGEST_COMMAND_SECONDS", 0.3)
        async with Line(server_url()) as line:
            store = PostgresStore(line.url, connections=2, patience_seconds=1)
            queue = Queue(store)
            await queue.enqueue("t")
            line.cut()
            with pytest.raises(StoreUnavailable):
                await queue.enqueue("t", idempotency_key="i")
            line.mend()
            await queue.enqueue("t", idempotency_key="i")
            assert len(await queue.lease(worker="w", limit=5)) == 2
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
        await database.execute("DROP DATABASE IF EXISTS bare")  # another test may have left one
        await database.execute("CREATE DATABASE bare")
        store = PostgresStore(server_url().rsplit("/", 1)[0] + "/bare")
        try:
            with pytest.raises(SchemaTooOld, match="penstock migrate"):
                await Queue(store).enqueue("t")
        finally:
            await store.close()
            await database.execute("DROP DATABASE bare WITH (FORCE)")
