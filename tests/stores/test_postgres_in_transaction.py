"""Enqueue as part of the caller's own transaction, from every driver people use, and from plain SQL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from penstock import Retry
from penstock.core.commands import Duplicate, Enqueued
from penstock.core.errors import IdConflict, IdempotencyConflict, InvalidInput, ParentNotFound
from penstock.core.job import JobId, Status
from penstock.queue import Queue, new_id
from penstock.stores.memory import MemoryStore
from penstock.stores.postgres.store import PostgresStore
from support.postgres import EmptyPostgresStore, server_url

Put = Callable[[Any], Awaitable[Any]]
LONG = 20.0


class Undo(Exception):
    """Raised by a test inside a transaction, to see it rolled back."""


@pytest.fixture
async def queue() -> AsyncIterator[Queue]:
    store = EmptyPostgresStore(None)
    await store.now()  # empties it
    yield Queue(store)
    await store.close()


# ── Drivers: each gives a connection inside a transaction that commits when the block ends well ──────


def dialect(driver: str) -> str:
    return urlsplit(server_url())._replace(scheme=f"postgresql+{driver}").geturl()


@asynccontextmanager
async def with_asyncpg() -> AsyncIterator[Any]:
    connection = await asyncpg.connect(server_url())
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def with_asyncpg_pool() -> AsyncIterator[Any]:
    async with (
        asyncpg.create_pool(server_url(), min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield connection


@asynccontextmanager
async def with_psycopg() -> AsyncIterator[Any]:
    with psycopg.connect(server_url(), row_factory=dict_row) as connection:
        yield connection


@asynccontextmanager
async def with_psycopg_async() -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(server_url(), row_factory=dict_row) as connection:
        yield connection


@asynccontextmanager
async def with_sqlalchemy_connection() -> AsyncIterator[Any]:
    engine = create_engine(dialect("psycopg"))
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


@asynccontextmanager
async def with_sqlalchemy_session() -> AsyncIterator[Any]:
    engine = create_engine(dialect("psycopg"))
    try:
        with Session(engine) as session, session.begin():
            yield session
    finally:
        engine.dispose()


@asynccontextmanager
async def with_sqlalchemy_scoped_session() -> AsyncIterator[Any]:
    engine = create_engine(dialect("psycopg"))
    session = scoped_session(sessionmaker(engine))
    try:
        with session.begin():
            yield session
    finally:
        session.remove()
        engine.dispose()


def with_sqlalchemy_async(driver: str) -> Callable[[], AbstractAsyncContextManager[Any]]:
    @asynccontextmanager
    async def open() -> AsyncIterator[Any]:
        engine = create_async_engine(dialect(driver))
        try:
            async with engine.begin() as connection:
                yield connection
        finally:
            await engine.dispose()

    return open


@asynccontextmanager
async def with_sqlalchemy_async_session() -> AsyncIterator[Any]:
    engine = create_async_engine(dialect("asyncpg"))
    try:
        async with AsyncSession(engine) as session, session.begin():
            yield session
    finally:
        await engine.dispose()


@cache
def django_is_set_up() -> None:
    import django
    from django.conf import settings

    parts = urlsplit(server_url())
    settings.configure(
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": parts.path[1:],
                "USER": parts.username,
                "PASSWORD": parts.password,
                "HOST": parts.hostname,
                "PORT": parts.port,
            }
        }
    )
    django.setup()


@asynccontextmanager
async def with_django() -> AsyncIterator[Any]:
    django_is_set_up()
    import os

    from django.db import connection, transaction

    # Django refuses sync calls where an event loop runs; here there is one only because the test is async.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    try:
        with transaction.atomic():
            yield connection
    finally:
        connection.close()
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


DRIVERS: dict[str, Callable[[], AbstractAsyncContextManager[Any]]] = {
    "asyncpg": with_asyncpg,
    "asyncpg pool": with_asyncpg_pool,
    "psycopg": with_psycopg,
    "psycopg async": with_psycopg_async,
    "sqlalchemy connection": with_sqlalchemy_connection,
    "sqlalchemy session": with_sqlalchemy_session,
    "sqlalchemy scoped session": with_sqlalchemy_scoped_session,
    "sqlalchemy async, asyncpg": with_sqlalchemy_async("asyncpg"),
    "sqlalchemy async, psycopg": with_sqlalchemy_async("psycopg"),
    "sqlalchemy async session": with_sqlalchemy_async_session,
    "django": with_django,
}
NOT_ASYNC = {"psycopg", "sqlalchemy connection", "sqlalchemy session", "sqlalchemy scoped session", "django"}


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class TestEveryDriver:
    async def test_jobs_are_there_when_the_transaction_commits_and_not_before(
        self, queue: Queue, driver: str
    ) -> None:
        async with DRIVERS[driver]() as connection:
            plain = await queue.enqueue("a", {"n": 1}, conn=connection)
            keyed = await queue.enqueue("b", unique_key="u", delay=60, conn=connection)
            assert not (await queue.find()).jobs
        jobs = {job.id: job for job in (await queue.find()).jobs}
        assert jobs.keys() == {plain.id, keyed.id}
        assert jobs[plain.id].payload == '{"n":1}'
        assert (jobs[keyed.id].run_at - jobs[keyed.id].created_at).total_seconds() == 60
        assert [leased.id for leased in await queue.lease(worker="w", limit=5)] == [plain.id]

    async def test_jobs_are_rolled_back_with_it(self, queue: Queue, driver: str) -> None:
        async def enqueue_and_fail() -> None:
            async with DRIVERS[driver]() as connection:
                await queue.enqueue("a", unique_key="u", idempotency_key="i", conn=connection)
                raise Undo

        with pytest.raises(Undo):
            await enqueue_and_fail()
        assert not (await queue.find()).jobs
        again = await queue.enqueue("b", unique_key="u", idempotency_key="i")
        assert again.duplicate is None, "no key outlives the transaction that took it"

    async def test_each_item_gets_its_own_answer(self, queue: Queue, driver: str) -> None:
        known = await queue.enqueue("a", unique_key="u")
        once = queue.new("b", id=new_id())
        missing = new_id()
        async with DRIVERS[driver]() as connection:
            answers = await queue.enqueue_many(
                [
                    once,
                    queue.new("c", id=once.id),
                    {"type": "no spaces"},
                    {"type": "d", "unique_key": "u"},
                    {"type": "e", "parents": [missing]},
                    {"type": "f", "parents": [once.id]},
                ],
                conn=connection,
            )
        assert answers[0] == Enqueued(once.id)
        assert isinstance(answers[1], IdConflict)
        assert isinstance(answers[2], InvalidInput)
        assert answers[3] == Enqueued(known.id, Duplicate.UNIQUE_KEY)
        assert isinstance(answers[4], ParentNotFound)
        assert answers[4].facts["parent_id"] == missing
        assert isinstance(answers[5], Enqueued)
        assert (await queue.get(answers[5].id)).status is Status.WAITING

    async def test_workers_are_woken_by_the_commit(self, queue: Queue, driver: str) -> None:
        store = PostgresStore(server_url())
        async with store.wakeups.listen("default", ["emails"]) as bell:
            async with DRIVERS[driver]() as connection:
                await queue.enqueue("a", queue="emails", conn=connection)
                assert not await bell.wait(0.05), "nothing to hear before the commit"
            assert await bell.wait(LONG) == {"emails"}
        await store.close()

    async def test_code_that_is_not_async_can_do_it_too(self, queue: Queue, driver: str) -> None:
        async with DRIVERS[driver]() as connection:
            if driver not in NOT_ASYNC:
                with pytest.raises(InvalidInput, match="not async"):
                    queue.enqueue_now([{"type": "a"}], conn=connection)
                return
            good, bad = queue.enqueue_now([{"type": "a"}, {"type": "no spaces"}], conn=connection)
        assert isinstance(good, Enqueued)
        assert isinstance(bad, InvalidInput)
        assert (await queue.get(good.id)).type == "a"


class TestOtherStores:
    async def test_a_store_without_transactions_says_so(self) -> None:
        queue = Queue(MemoryStore())
        with pytest.raises(InvalidInput, match="only a PostgreSQL store"):
            await queue.enqueue("a", conn=object())

    async def test_what_is_no_connection_is_refused(self, queue: Queue) -> None:
        with pytest.raises(InvalidInput, match="conn must be a connection"):
            await queue.enqueue("a", conn=object())


# ── Plain SQL ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def connection() -> AsyncIterator[Any]:
    connection = await asyncpg.connect(server_url())
    yield connection
    await connection.close()


async def put(connection: Any, job: Any, *tenant: str) -> JobId:
    """`SELECT penstock.enqueue(…)`."""
    places = ", ".join(f"${number}" for number in range(1, 2 + len(tenant)))
    found = await connection.fetchval(f"SELECT penstock.enqueue({places})", json.dumps(job), *tenant)
    return JobId(str(found))


RETRY = {"kind": "linear", "base": 3, "cap": 60, "jitter": 0}


class TestPlainSql:
    async def test_a_job_is_as_python_would_have_made_it(self, queue: Queue, connection: Any) -> None:
        parent = await queue.enqueue("parent")
        item: dict[str, Any] = {
            "type": "a", "queue": "emails", "payload": {"to": "ada", "n": [1, None]}, "priority": 7,
            "run_at": "2031-01-31T09:00:00+02:00", "expires_at": "2032-01-31T09:00:00.5Z", "max_attempts": 2, "retry": RETRY,
            "on_exhausted": "hold", "key": "k", "ordering_key": "o", "unique_key": "u", "idempotency_key": "i",
            "idempotency_window": 3600.5, "parents": [parent.id], "on_parent_failure": "run", "headers": {"trace": "x"},
        }  # fmt: skip
        asked = (await queue.get(await put(connection, item))).asked
        await queue.cancel(asked.id)
        same = dict(item, id=new_id(), retry=Retry.linear(3, cap=60, jitter=0), idempotency_key="j")
        for name in ("run_at", "expires_at"):
            same[name] = asked.run_at if name == "run_at" else asked.expires_at
        by_python = (await queue.get((await queue.enqueue(**same)).id)).asked
        for field in by_python.__struct_fields__:
            if field not in ("id", "idempotency_key", "payload", "headers"):
                assert getattr(asked, field) == getattr(by_python, field), field
        assert json.loads(asked.payload) == item["payload"]
        assert json.loads(asked.headers or "") == item["headers"]
        assert asked.run_at is not None
        assert asked.run_at.isoformat() == "2031-01-31T07:00:00+00:00"

    async def test_the_least_is_a_type(self, queue: Queue, connection: Any) -> None:
        job_id = await put(connection, {"type": "a"})
        job = await queue.get(job_id)
        assert (job.type, job.queue, job.payload, job.priority) == ("a", "default", "{}", 0)
        assert job_id[14] == "7", "a UUIDv7"

    async def test_null_stands_for_not_given_but_for_a_payload(self, queue: Queue, connection: Any) -> None:
        job = await queue.get(
            await put(connection, {"type": "a", "payload": None, "queue": None, "delay": None})
        )
        assert (job.payload, job.queue) == ("null", "default")

    async def test_ids_made_there_grow(self, connection: Any) -> None:
        first = await connection.fetchval("SELECT penstock.new_id()")
        await connection.execute("SELECT pg_sleep(0.002)")
        assert first < await connection.fetchval("SELECT penstock.new_id()")

    async def test_the_keys_hold(self, queue: Queue, connection: Any) -> None:
        item = {"type": "a", "idempotency_key": "i"}
        first = await put(connection, item)
        assert await put(connection, item) == first
        with pytest.raises(asyncpg.UniqueViolationError, match="first used, with a different body"):
            await put(connection, item | {"priority": 1})
        with pytest.raises(IdempotencyConflict):
            await queue.enqueue("other", idempotency_key="i")
        held = await put(connection, {"type": "a", "unique_key": "u"})
        assert await put(connection, {"type": "b", "unique_key": "u"}) == held
        with pytest.raises(asyncpg.ForeignKeyViolationError, match="does not exist"):
            await put(connection, {"type": "a", "parents": [new_id()]})
        same_id = {"type": "a", "id": new_id(), "payload": {"b": 1, "a": 2}}
        assert await put(connection, same_id) == await put(connection, same_id)
        with pytest.raises(asyncpg.UniqueViolationError, match="already has the id"):
            await put(connection, same_id | {"type": "b"})

    async def test_tenants_are_apart(self, queue: Queue, connection: Any) -> None:
        job_id = await put(connection, {"type": "a", "unique_key": "u"}, "acme")
        assert await put(connection, {"type": "a", "unique_key": "u"}) != job_id
        assert (await queue.for_tenant("acme").get(job_id)).type == "a"

    async def test_it_needs_no_more_than_a_role_that_may_write_the_tables(self, connection: Any) -> None:
        """No search path, no setting: what a stranger's session has is enough."""
        await connection.execute("SET search_path = pg_catalog")
        assert await put(connection, {"type": "a", "ordering_key": "o"})

    @pytest.mark.parametrize(
        ("item", "says"),
        [
            ([], "a job must be an object"),
            ({}, "type must be given"),
            ({"type": "a", "colour": 1}, "a job must have only the fields"),
            ({"type": 1}, "type must be 1 to 128 letters"),
            ({"type": "a", "queue": "no spaces"}, "queue must be 1 to 128 letters"),
            ({"type": "a", "queue": "q" * 129}, "queue must be 1 to 128 letters"),
            ({"type": "a\n"}, "type must be 1 to 128 letters"),
            ({"type": "a", "payload": "x" * 1_048_576}, "payload must be at most"),
            ({"type": "a", "headers": []}, "headers must be an object"),
            ({"type": "a", "headers": {"h": "x" * 16_384}}, "headers must be an object of at most"),
            ({"type": "a", "priority": 32_768}, "priority must be a whole number"),
            ({"type": "a", "priority": 1.5}, "priority must be a whole number"),
            ({"type": "a", "priority": "1"}, "priority must be a whole number"),
            ({"type": "a", "max_attempts": 0}, "max_attempts must be a whole number"),
            ({"type": "a", "run_at": "2031-01-31T09:00:00"}, "run_at must be a time"),
            ({"type": "a", "run_at": "2031-02-31T09:00:00Z"}, "run_at must be a time"),
            ({"type": "a", "run_at": "9999-01-01T00:00:00Z"}, "run_at must be a time"),
            ({"type": "a", "run_at": 5}, "run_at must be a time"),
            ({"type": "a", "expires_at": "soon"}, "expires_at must be a time"),
            ({"type": "a", "delay": -1}, "delay must be a number of seconds"),
            ({"type": "a", "delay": "1"}, "delay must be a number of seconds"),
            ({"type": "a", "idempotency_window": 0}, "idempotency_window must be a number"),
            ({"type": "a", "delay": 1, "run_at": "2031-01-31T09:00:00Z"}, "delay must not be given together"),
            ({"type": "a", "expires_in": 1, "expires_at": "2031-01-31T09:00:00Z"}, "expires_in must not be given"),
            ({"type": "a", "key": ""}, "key must be 1 to 512"),
            ({"type": "a", "unique_key": "x" * 513}, "unique_key must be 1 to 512"),
            ({"type": "a", "ordering_key": 1}, "ordering_key must be 1 to 512"),
            ({"type": "a", "id": "ABC"}, "id must be a UUID"),
            ({"type": "a", "parents": "x"}, "parents must be a list"),
            ({"type": "a", "parents": ["x"]}, "parents must be a list"),
            ({"type": "a", "parents": [str(JobId("0" * 8 + "-0000-7000-8000-" + "0" * 12))] * 2}, "different job ids"),
            ({"type": "a", "on_exhausted": "explode"}, "on_exhausted must be dead or hold"),
            ({"type": "a", "on_parent_failure": 1}, "on_parent_failure must be cancel or run"),
            ({"type": "a", "retry": 5}, "retry must be like"),
            ({"type": "a", "retry": {"kind": "fixed"}}, "retry must be like"),
            ({"type": "a", "retry": {"kind": "magic", "base": 1}}, "retry must be like"),
            ({"type": "a", "retry": {"kind": "fixed", "base": -1}}, "retry must be like"),
            ({"type": "a", "retry": {"kind": "fixed", "base": "1"}}, "retry must be like"),
            ({"type": "a", "retry": {"kind": "fixed", "base": 1, "colour": 1}}, "retry must be like"),
        ],
    )  # fmt: skip
    async def test_bad_input_is_refused_with_a_sentence(
        self, queue: Queue, connection: Any, item: Any, says: str
    ) -> None:
        with pytest.raises(asyncpg.InvalidParameterValueError, match=says):
            await put(connection, item)
        assert not (await queue.find()).jobs

    async def test_too_deep_is_refused(self, queue: Queue, connection: Any) -> None:
        deep: Any = 1
        for _ in range(200):
            deep = [deep]
        assert await put(connection, {"type": "a", "payload": deep})
        with pytest.raises(asyncpg.InvalidParameterValueError, match="200 deep"):
            await put(connection, {"type": "a", "payload": [deep]})

    async def test_requests_made_at_once_make_one_job(self, queue: Queue) -> None:
        async def one() -> JobId:
            connection = await asyncpg.connect(server_url())
            try:
                return await put(connection, {"type": "a", "unique_key": "u", "ordering_key": "o"})
            finally:
                await connection.close()

        assert len(set(await asyncio.gather(*(one() for _ in range(16))))) == 1

    async def test_the_same_id_at_once_makes_one_job(self, queue: Queue) -> None:
        job_id = new_id()

        async def one(item: dict[str, Any]) -> JobId:
            connection = await asyncpg.connect(server_url())
            try:
                async with connection.transaction():
                    return await put(connection, {"type": "a", "id": job_id, **item})
            finally:
                await connection.close()

        assert set(await asyncio.gather(*(one({"key": "k"}) for _ in range(8)))) == {job_id}
        job_id = new_id()
        assert set(await asyncio.gather(*(one({"expires_in": 60}) for _ in range(8)))) == {job_id}
        assert len((await queue.find()).jobs) == 2
