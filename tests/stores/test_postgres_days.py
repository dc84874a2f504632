"""History by the day: tables are made ahead, dropped when the last job of their day has left, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from penstock import JobNotFound, Queue
from penstock.core.commands import Ack, Duplicate, Heartbeat
from penstock.core.errors import IdConflict, ParentNotFound
from penstock.core.job import JobId, LeaseToken, Status
from penstock.stores.postgres import days
from penstock.stores.postgres.migrate import migrate
from penstock.stores.postgres.snapshot import scratch
from penstock.stores.postgres.store import PostgresStore
from penstock.testing import START, FakeClock, counting_ids
from support.postgres import TABLES, other_url, server_url

WIDE = ("job", "attempt", "change")
TODAY = START.date()
WEEK = timedelta(days=7)
LONG = 20
"""Seconds that only a test which fails waits for."""


def day(number: int) -> date:
    return TODAY + timedelta(days=number)


@pytest.fixture
def url() -> str:
    return other_url()


@pytest.fixture
async def database(url: str) -> AsyncIterator[Any]:
    """A connection to an empty database without days: those of the migration are of the real clock."""
    connection = await asyncpg.connect(url)
    await connection.execute("; ".join(f"DELETE FROM penstock.{table}" for table in TABLES))
    for known in await days_of(connection):
        await connection.execute("SELECT penstock.drop_day($1)", known)
    yield connection
    await connection.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def stores(database: Any, url: str, clock: FakeClock) -> AsyncIterator[list[PostgresStore]]:
    opened = [PostgresStore(url, clock, connections=3) for _ in range(2)]
    yield opened
    for store in opened:
        await store.close()


@pytest.fixture
def store(stores: list[PostgresStore]) -> PostgresStore:
    return stores[0]


@pytest.fixture
def queue(store: PostgresStore) -> Queue:
    return Queue(store, actor="ada", ids=counting_ids())


async def days_of(database: Any, table: str = "job") -> list[date]:
    names = await database.fetch(
        "SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = $1::regclass ORDER BY 1",
        f"penstock.{table}",
    )
    return [
        datetime.strptime(row["name"][-8:], "%Y%m%d").replace(tzinfo=UTC).date()
        for row in names
        if not row["name"].endswith("default")
    ]


async def places(database: Any) -> dict[str, dict[str, int]]:
    """How many rows are in which partition of each wide table, the empty ones left out."""
    return {
        table: {
            row["place"].rpartition("_")[2]: row["n"]
            for row in await database.fetch(
                f"SELECT tableoid::regclass::text AS place, count(*) AS n FROM penstock.{table} GROUP BY 1"
            )
        }
        for table in WIDE
    }


async def live(queue: Queue) -> JobId:
    """A whole life with an attempt and a change in it."""
    job = await queue.enqueue("email.send")
    await queue.cancel(job.id)
    await queue.redrive(job.id)
    [leased] = await queue.lease(worker="w1")
    await queue.ack(leased, "the first life")
    return job.id


class TestAhead:
    async def test_a_new_database_has_the_days_that_come(self) -> None:
        async with scratch(server_url()) as url:
            await migrate(url)
            connection, store = await asyncpg.connect(url), PostgresStore(url)
            today = await connection.fetchval("SELECT (now() AT TIME ZONE 'UTC')::date")
            for table in WIDE:
                assert await days_of(connection, table) == [today + timedelta(days=n) for n in range(8)]
            await live(Queue(store, actor="ada"))
            assert all("default" not in found for found in (await places(connection)).values())
            await store.close()
            await connection.close()

    async def test_the_sweep_makes_today_and_a_week(self, store: PostgresStore, database: Any) -> None:
        await store.sweep(limit=1)
        for table in WIDE:
            assert await days_of(database, table) == [day(n) for n in range(8)]

    async def test_each_day_one_more_is_made(
        self, store: PostgresStore, queue: Queue, database: Any, clock: FakeClock
    ) -> None:
        await store.tend()
        await queue.enqueue("t")  # keeps the first day
        clock.advance(days=1)
        await store.tend()
        assert await days_of(database) == [day(n) for n in range(9)]

    async def test_a_sweep_looks_only_now_and_then(self, store: PostgresStore, database: Any) -> None:
        await store.sweep(limit=1)
        await database.execute("SELECT penstock.drop_day($1)", day(3))
        await store.sweep(limit=1)
        assert day(3) not in await days_of(database)
        await store.tend()
        assert day(3) in await days_of(database)

    async def test_what_belongs_to_a_job_is_in_the_tables_of_its_day(
        self, store: PostgresStore, database: Any
    ) -> None:
        await store.tend()
        for start in (START, START.replace(hour=23, minute=59, second=59), START + timedelta(days=1)):
            await live(Queue(store, actor="ada", ids=counting_ids(start)))
        assert await places(database) == {
            "job": {"20260101": 2, "20260102": 1},
            "attempt": {"20260101": 2, "20260102": 1},
            "change": {"20260101": 4, "20260102": 2},
        }


async def queued(queue: Queue) -> None:
    await queue.enqueue("t")


async def scheduled(queue: Queue) -> None:
    await queue.enqueue("t", delay=timedelta(days=1000).total_seconds())


async def running(queue: Queue) -> None:
    await queue.enqueue("t")
    await queue.lease(worker="w1", lease_seconds=80_000)


async def waiting(queue: Queue) -> None:
    later = Queue(queue.store, ids=counting_ids(START + timedelta(days=1)))
    parent = await later.enqueue("t")
    await queue.enqueue("t", parents=[parent.id])


async def dead(queue: Queue) -> None:
    await queue.enqueue("t")
    [leased] = await queue.lease(worker="w1")
    await queue.nack(leased, "no", retry=False)


async def held(queue: Queue) -> None:
    await queue.enqueue("t", on_exhausted="hold")
    [leased] = await queue.lease(worker="w1")
    await queue.nack(leased, "no", retry=False)


async def succeeded(queue: Queue) -> None:
    await live(queue)


async def cancelled(queue: Queue) -> None:
    job = await queue.enqueue("t")
    await queue.cancel(job.id)


async def of_another_tenant(queue: Queue) -> None:
    await queued(queue.for_tenant("zeta"))


STATES = [queued, scheduled, running, waiting, dead, held, succeeded, cancelled, of_another_tenant]


class TestDropping:
    @pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
    async def test_a_day_stays_while_a_job_of_it_is_there(
        self,
        store: PostgresStore,
        queue: Queue,
        database: Any,
        clock: FakeClock,
        state: Callable[[Queue], Awaitable[None]],
    ) -> None:
        await store.tend()
        await queue.configure("default", retention_seconds=timedelta(days=30).total_seconds())
        await state(queue)
        clock.set(START.replace(day=2, hour=0))
        await store.sweep(limit=100)
        await store.tend()
        assert day(0) in await days_of(database)
        assert (await places(database))["job"]["20260101"] == 1

    async def test_a_day_goes_when_its_last_job_has_left(
        self, store: PostgresStore, queue: Queue, database: Any, clock: FakeClock
    ) -> None:
        await store.tend()
        first = await live(queue)
        clock.advance(hours=1)
        last = await live(queue)
        clock.set(START + WEEK)
        await store.sweep(limit=100)
        await store.tend()
        with pytest.raises(JobNotFound):
            await queue.get(first)
        assert (await queue.get(last)).status is Status.SUCCEEDED
        # Nothing went row by row: what was the first job's is still there, seen by nobody.
        assert await places(database) == {
            "job": {"20260101": 2},
            "attempt": {"20260101": 2},
            "change": {"20260101": 4},
        }
        clock.advance(hours=1)
        await store.sweep(limit=100)
        await store.tend()
        for table in WIDE:
            assert day(0) not in await days_of(database, table)
        assert await places(database) == {table: {} for table in WIDE}

    async def test_a_day_that_is_not_over_stays(
        self, store: PostgresStore, queue: Queue, database: Any, clock: FakeClock
    ) -> None:
        await store.tend()
        await queue.configure("default", retention_seconds=0)
        await live(queue)
        clock.set(START.replace(hour=23, minute=59, second=59))
        assert (await store.sweep(limit=100)).pruned == 1
        await store.tend()
        assert (await places(database))["job"] == {"20260101": 1}
        clock.advance(seconds=1)
        await store.tend()
        assert day(0) not in await days_of(database)

    async def test_nothing_goes_before_the_lake_has_it(
        self, store: PostgresStore, queue: Queue, database: Any, clock: FakeClock
    ) -> None:
        await store.tend()
        await live(queue)
        clock.advance(days=30)
        await store.sweep(limit=100, exported_until=START - timedelta(microseconds=1))
        await store.tend()
        assert await places(database) == {
            "job": {"20260101": 1},
            "attempt": {"20260101": 1},
            "change": {"20260101": 2},
        }
        await store.sweep(limit=100, exported_until=START)
        await store.tend()
        assert await places(database) == {table: {} for table in WIDE}

    async def test_what_was_done_to_queues_and_schedules_stays(
        self, store: PostgresStore, queue: Queue, clock: FakeClock
    ) -> None:
        await store.tend()
        # A name that sorts among the ids of the day.
        name = counting_ids()()[:13]
        await queue.pause(name, "spring cleaning")
        clock.advance(days=30)
        await store.tend()
        [change] = (await queue.history(name, "queue")).changes
        assert change.reason == "spring cleaning"


@asynccontextmanager
async def meanwhile(
    url: str, database: Any, act: Callable[[], Awaitable[object]]
) -> AsyncIterator[asyncio.Future[Any]]:
    """What the block does is committed when what is done meanwhile waits for it."""
    watcher, transaction = await asyncpg.connect(url), database.transaction()
    acting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    try:
        await transaction.start()
        yield acting
        task = asyncio.ensure_future(act())
        async with asyncio.timeout(LONG):
            while not await watcher.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"):
                assert not task.done()
            await transaction.commit()
            acting.set_result(await task)
    finally:
        await watcher.close()


async def put(database: Any, job_id: JobId, state: str, values: str) -> None:
    """Make a job by hand, as a transaction that takes its time would."""
    await database.execute(
        """INSERT INTO penstock.job (tenant, id, queue, type, payload, priority, created_at, scheduled_at)
           VALUES ('default', $1, 'default', 't', '{}', 0, $2, $2)""",
        job_id, START,
    )  # fmt: skip
    await database.execute(
        f"INSERT INTO penstock.{state} VALUES ('default', $1, 'default', {values})", job_id, START
    )


class TestTogether:
    async def test_several_may_look_after_the_days_at_once(
        self, stores: list[PostgresStore], queue: Queue, database: Any, clock: FakeClock
    ) -> None:
        await asyncio.gather(*(store.tend() for store in stores * 3))
        await stores[0].tend()
        assert await days_of(database) == [day(n) for n in range(8)]
        clock.advance(days=3)
        await asyncio.gather(*(store.tend() for store in stores * 3))
        await stores[0].tend()
        for table in WIDE:
            assert await days_of(database, table) == [day(n) for n in range(3, 11)]

    async def test_one_leaves_it_to_the_other(self, store: PostgresStore, database: Any) -> None:
        async with database.transaction():
            await database.execute("SELECT pg_advisory_xact_lock(hashtextextended('penstock days', 0))")
            await store.tend()
        assert await days_of(database) == []

    async def test_a_long_transaction_on_the_tables_holds_nobody_up(
        self,
        stores: list[PostgresStore],
        queue: Queue,
        database: Any,
        clock: FakeClock,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        await queue.store.tend()  # type: ignore[attr-defined]
        clock.advance(days=1)
        await queue.enqueue("t")
        await database.execute("SELECT penstock.drop_day($1)", day(0))
        await database.execute("SELECT penstock.add_day($1)", day(-1))
        async with database.transaction():
            await database.fetch("SELECT FROM penstock.job")
            async with asyncio.timeout(LONG):
                tending = asyncio.create_task(stores[0].tend())
                other = Queue(stores[1])
                [leased] = await other.lease(worker="w1")
                await other.ack(leased)
                await tending
        assert day(-1) in await days_of(database)
        assert "until a later sweep" in caplog.text
        await stores[0].tend()
        assert day(-1) not in await days_of(database)

    async def test_a_job_that_comes_while_its_day_is_about_to_go_keeps_it(
        self,
        store: PostgresStore,
        queue: Queue,
        database: Any,
        clock: FakeClock,
        url: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(days, "LOCK_MILLISECONDS", LONG * 1000)
        await store.tend()
        await database.execute("SELECT penstock.add_day($1)", day(8))  # so that it has nothing to do but drop
        clock.advance(days=1)
        late = counting_ids(START + timedelta(hours=1))()
        async with meanwhile(url, database, store.tend):
            await put(
                database, late, "ready (tenant, id, queue, priority, run_at, scheduled_at)", "0, $2, $2"
            )
        assert day(0) in await days_of(database)
        assert (await queue.get(late)).status is Status.QUEUED


@pytest.fixture(params=["in a day's tables", "in the default ones"])
async def former(
    request: pytest.FixtureRequest, store: PostgresStore, queue: Queue, clock: FakeClock
) -> JobId:
    """The id of a job that has lived and left; its day is still kept by another one."""
    if request.param == "in a day's tables":
        await store.tend()
    job_id = await live(queue)
    clock.advance(days=1)
    await queue.enqueue("t", queue="another")
    clock.set(START + WEEK)
    assert (await store.sweep(limit=100)).pruned == 1
    await store.tend()
    return job_id


async def answered(queue: Queue, command: Heartbeat | Ack) -> Sequence[object]:
    if isinstance(command, Heartbeat):
        return await queue.store.heartbeat(queue.tenant, [command])
    return await queue.store.settle(queue.tenant, [command])


class TestAgain:
    async def test_a_job_that_left_is_not_found_by_anyone(self, queue: Queue, former: JobId) -> None:
        assert former not in [job.id for job in (await queue.find()).jobs]
        for ask in (queue.get, queue.history, queue.cancel, queue.redrive):
            with pytest.raises(JobNotFound):
                await ask(former)
        for word in (Heartbeat, Ack):
            [answer] = await answered(queue, word(former, LeaseToken("of the old life")))
            assert isinstance(answer, JobNotFound)
        with pytest.raises(ParentNotFound):
            await queue.enqueue("t", parents=[former])

    @pytest.mark.parametrize("options", [{}, {"unique_key": "u"}], ids=["plain", "by the rules"])
    async def test_its_id_can_be_used_anew_and_nothing_of_the_old_life_shows(
        self, queue: Queue, former: JobId, clock: FakeClock, options: dict[str, Any]
    ) -> None:
        again = Queue(queue.store, ids=lambda: former)
        job = await again.enqueue("t", {"life": 2}, **options)
        assert (job.id, job.duplicate) == (former, None)
        assert (await queue.get(former)).created_at == clock.now()
        assert (await queue.history(former)).records == ()
        [leased] = await queue.lease(worker="w2")
        assert leased.job.asked.payload == '{"life":2}'
        await queue.ack(leased, "the second")
        [attempt] = (await queue.history(former)).records
        assert (attempt.worker, attempt.number) == ("w2", 1)  # type: ignore[union-attr]
        assert (await queue.get(former)).result == '"the second"'

    async def test_of_several_who_use_it_anew_at_once_one_makes_the_job(
        self, stores: list[PostgresStore], queue: Queue, former: JobId
    ) -> None:
        asked = Queue(queue.store, ids=lambda: former).new("t", {"life": 2}, queue="anew")
        answers = await asyncio.gather(*(store.enqueue("default", [asked]) for store in stores * 4))
        duplicates = [answer.duplicate for [answer] in answers]  # type: ignore[union-attr]
        assert sorted(duplicates, key=str) == sorted([None, *[Duplicate.ID] * 7], key=str)
        assert len(await queue.lease("anew", worker="w1", limit=9)) == 1

    async def test_one_who_was_first_keeps_the_id_wherever_the_job_is_by_then(
        self, store: PostgresStore, queue: Queue, database: Any, url: str
    ) -> None:
        await store.tend()
        taken = counting_ids()()
        other = Queue(store, ids=lambda: taken)
        asked = other.new("other", unique_key="u")  # the long way
        async with meanwhile(url, database, lambda: store.enqueue("default", [asked])) as enqueuing:
            await put(
                database, taken,
                "lease (tenant, id, queue, priority, run_at, scheduled_at, attempts, leases, token, worker, taken_at, until, seconds)",
                "0, $2, $2, 1, 1, 'token', 'w1', $2, $2::timestamptz + interval '1 hour', 3600",
            )  # fmt: skip
        [answer] = enqueuing.result()
        assert isinstance(answer, IdConflict)
        job = await queue.get(taken)
        assert (job.asked.type, job.status) == ("t", Status.RUNNING)


class TestDefault:
    async def test_an_id_of_no_day_lives_there_and_leaves_row_by_row(
        self, store: PostgresStore, database: Any, clock: FakeClock
    ) -> None:
        await store.tend()
        await live(Queue(store, ids=lambda: JobId(str(uuid4())), actor="ada"))
        assert await places(database) == {
            "job": {"default": 1},
            "attempt": {"default": 1},
            "change": {"default": 2},
        }
        clock.set(START + WEEK)
        await store.sweep(limit=100)
        assert await places(database) == {table: {} for table in WIDE}

    async def test_a_few_rows_of_a_day_move_into_its_tables_when_they_are_made(
        self, store: PostgresStore, queue: Queue, database: Any
    ) -> None:
        former = await live(queue)
        job = await queue.enqueue("t")
        await store.tend()
        assert await places(database) == {
            "job": {"20260101": 2},
            "attempt": {"20260101": 1},
            "change": {"20260101": 2},
        }
        assert len((await queue.history(former)).records) == 3
        [leased] = await queue.lease(worker="w1")
        assert leased.id == job.id
        await queue.ack(leased)

    async def test_a_day_with_many_rows_gets_no_tables_and_the_others_do(
        self, store: PostgresStore, queue: Queue, database: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        await queue.enqueue_many([{"type": "t"} for _ in range(1001)])
        await store.tend()
        assert await days_of(database) == [day(n) for n in range(1, 8)]
        assert "2026-01-01 gets no tables" in caplog.text
        assert len(await queue.lease(worker="w1", limit=5)) == 5

    async def test_large_ones_are_not_read_while_everybody_waits(
        self,
        store: PostgresStore,
        queue: Queue,
        database: Any,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(days, "MOST_DEFAULT_BYTES", 0)
        await queue.enqueue("t")
        await store.tend()
        assert await days_of(database) == []
        assert "SELECT penstock.add_day('2026-01-01')" in caplog.text
