"""The feed in PostgreSQL: what commits late is told late, once; what is gone is told to be gone; and how little is read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from penstock import Queue
from penstock.core.errors import InvalidInput
from penstock.core.job import JobId
from penstock.core.registry import Event
from penstock.stores.postgres import days
from penstock.stores.postgres.connected import _SETTINGS
from penstock.stores.postgres.migrate import load, migrate
from penstock.stores.postgres.rules import sql
from penstock.stores.postgres.snapshot import scratch
from penstock.stores.postgres.store import PostgresStore
from penstock.testing import START, FakeClock, counting_ids
from support.following import LONG, Follower, follow
from support.postgres import TABLES, EmptyPostgresStore, other_url, server_url

WIDE = ("job", "attempt", "change")
TODAY = START.date()
WEEK = timedelta(days=7)


def names(events: list[Event]) -> list[str]:
    return [event.name for event in events]


@pytest.fixture
async def store() -> AsyncIterator[PostgresStore]:
    store = EmptyPostgresStore(None)
    yield store
    await store.close()


@pytest.fixture
async def queue(store: PostgresStore) -> Queue:
    queue = Queue(store, actor="ada")
    await queue.enqueue("t")  # so that nobody waits for who makes the queue known
    return queue


@pytest.fixture
async def follower(queue: Queue) -> Follower:
    return await follow(queue.store)


@pytest.fixture
async def caller() -> AsyncIterator[Any]:
    """A connection of somebody else's, who enqueues in transactions of their own."""
    connection = await asyncpg.connect(server_url())
    yield connection
    await connection.close()


async def put(queue: Queue, caller: Any, number: int = 1) -> list[JobId]:
    """Enqueue in the caller's transaction."""
    jobs = [queue.new("t") for _ in range(number)]
    await queue.store.enqueue_in(caller, queue.tenant, jobs)  # type: ignore[attr-defined]
    return [job.id for job in jobs]


async def undone(queue: Queue, caller: Any) -> None:
    """The same, rolled back."""
    transaction = caller.transaction()
    await transaction.start()
    await put(queue, caller)
    await transaction.rollback()


class TestLateCommits:
    async def test_what_began_first_and_commits_last_is_told_once_and_nothing_is_lost(
        self, queue: Queue, follower: Follower, caller: Any
    ) -> None:
        transaction = caller.transaction()
        await transaction.start()
        [first] = await put(queue, caller)
        second = await queue.enqueue("t")
        assert await follower.polls() == []
        await transaction.commit()
        assert names(await follower.hears(2)) == [first, second.id]

    async def test_what_had_been_told_before_it_began_is_not_told_again(
        self, queue: Queue, follower: Follower, caller: Any
    ) -> None:
        before = await queue.enqueue("t")
        assert names(await follower.hears(1)) == [before.id]
        async with caller.transaction():
            [late] = await put(queue, caller)
            assert await follower.polls() == []
        assert names(await follower.hears(1)) == [late]

    async def test_what_is_rolled_back_is_not_told(
        self, queue: Queue, follower: Follower, caller: Any
    ) -> None:
        await undone(queue, caller)
        kept = await queue.enqueue("t")
        assert names(await follower.hears(1)) == [kept.id]

    async def test_a_savepoint_belongs_to_its_transaction(
        self, queue: Queue, follower: Follower, caller: Any
    ) -> None:
        async with caller.transaction():
            [outer] = await put(queue, caller)
            async with caller.transaction():
                [inner] = await put(queue, caller)
            await undone(queue, caller)
            other = await queue.enqueue("t")
            assert await follower.polls() == []
        assert names(await follower.hears(3)) == [*sorted([outer, inner]), other.id]

    @pytest.mark.parametrize("limit", [3, 500])
    async def test_with_many_writers_and_a_reader_all_the_while_each_event_is_told_once(
        self, store: PostgresStore, queue: Queue, follower: Follower, limit: int
    ) -> None:
        written: set[tuple[str, str]] = set()

        async def write(number: int) -> None:
            """Transactions that overlap, of several rows each, every third rolled back; and jobs in between."""
            connection = await asyncpg.connect(server_url())
            try:
                for turn in range(12):
                    transaction = connection.transaction()
                    await transaction.start()
                    mine = await put(queue, connection, 1 + turn % 3)
                    job = await queue.enqueue("t", queue=f"q{number}")
                    mine += await put(queue, connection)
                    if turn % 3 == 2:
                        await transaction.rollback()
                        mine = []
                    else:
                        await transaction.commit()
                    [leased] = await queue.lease(f"q{number}", worker="w")
                    await (queue.ack(leased) if turn % 2 else queue.nack(leased, "no", retry=False))
                    written.update((one, "enqueued") for one in [*mine, job.id])
                    written.add((job.id, "succeeded" if turn % 2 else "failed"))
            finally:
                await connection.close()

        writing = asyncio.ensure_future(asyncio.gather(*(write(number) for number in range(5))))
        heard: list[Event] = []
        async with asyncio.timeout(LONG):
            while not writing.done() or len(heard) < len(written):
                heard += await follower.polls(limit)
        await writing
        heard += await follower.polls()
        assert len(heard) == len(written)
        assert {(event.name, event.what) for event in heard} == written
        # Whoever comes later and reads at leisure is told the same in the same order.
        again = Follower(store, heard[0].cursor)
        assert await again.hears(len(heard) - 1) == heard[1:]

    async def test_a_long_transaction_is_told_in_pages(
        self, queue: Queue, follower: Follower, caller: Any
    ) -> None:
        async with caller.transaction():
            jobs = await put(queue, caller, 1203)
        assert names(await follower.hears(1203, limit=100)) == sorted(jobs)


class TestCursors:
    async def test_of_another_database_are_refused(self, store: PostgresStore) -> None:
        other = PostgresStore(other_url())
        foreign = (await other.events("default", limit=1)).next
        await other.close()
        with pytest.raises(InvalidInput, match="of this very feed"):
            await store.events("default", after=foreign, limit=1)

    async def test_from_before_the_feed_are_refused(self, store: PostgresStore, follower: Follower) -> None:
        name = follower.cursor.split(".")[0]
        with pytest.raises(InvalidInput, match="be newer"):
            await store.events("default", after=f"{name}.3.-1.{UUID(int=0).hex}", limit=1)


# ── Days ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def database() -> AsyncIterator[Any]:
    """A connection to an empty database without days."""
    connection = await asyncpg.connect(other_url())
    await connection.execute("; ".join(f"DELETE FROM penstock.{table}" for table in TABLES))
    for row in await connection.fetch(
        "SELECT to_date(right(inhrelid::regclass::text, 8), 'YYYYMMDD') AS day FROM pg_inherits "
        "WHERE inhparent = 'penstock.job'::regclass AND inhrelid::regclass::text !~ 'default'"
    ):
        await connection.execute("SELECT penstock.drop_day($1)", row["day"])
    yield connection
    await connection.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def aged(database: Any, clock: FakeClock) -> AsyncIterator[Queue]:
    """A queue whose jobs grow old with a clock, in that database."""
    store = PostgresStore(other_url(), clock, connections=3)
    yield Queue(store, actor="ada", ids=counting_ids())
    await store.close()


async def live(queue: Queue) -> JobId:
    job = await queue.enqueue("email.send")
    [leased] = await queue.lease(worker="w1")
    await queue.ack(leased)
    return job.id


async def tend(queue: Queue) -> None:
    await queue.store.sweep(limit=100)
    await queue.store.tend()  # type: ignore[attr-defined]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever tends the days here waits for an autovacuum to make way, instead of leaving it to a later sweep."""
    monkeypatch.setattr(days, "LOCK_MILLISECONDS", 5_000)


@pytest.mark.usefixtures("patient")
class TestDays:
    async def test_a_new_days_tables_have_the_index_and_the_default(self, database: Any, aged: Queue) -> None:
        await database.execute("SELECT penstock.add_day($1)", TODAY)
        for table in WIDE:
            [definition] = await database.fetchrow(
                "SELECT indexdef FROM pg_indexes WHERE tablename = $1 AND indexdef LIKE '%USING brin%'",
                f"{table}_{TODAY:%Y%m%d}",
            )
            assert "autosummarize='on', pages_per_range='64'" in definition
        follower = await follow(aged.store)
        await live(aged)
        await follower.hears(2)

    async def test_what_moves_into_a_days_tables_keeps_its_place(self, database: Any, aged: Queue) -> None:
        follower = await follow(aged.store)
        start = follower.cursor
        job = await live(aged)
        await aged.pause("default")
        [event] = await follower.hears_some(limit=1)
        await tend(aged)
        assert await database.fetchval("SELECT count(*) FROM penstock.job_default") == 0
        await aged.enqueue("t")
        rest = await follower.hears(3)
        assert [event.what for event in [event, *rest]] == ["enqueued", "succeeded", "configure", "enqueued"]
        assert names([event, *rest])[:2] == [job, job]
        assert await Follower(aged.store, start).hears(4) == [event, *rest]

    async def test_who_has_not_had_what_a_dropped_day_held_is_told_so(
        self, aged: Queue, clock: FakeClock
    ) -> None:
        await tend(aged)
        behind, halfway = await follow(aged.store), await follow(aged.store)
        await live(aged)
        await halfway.hears_some(limit=1)
        clock.set(START + WEEK)
        other = await aged.enqueue("t", id=counting_ids(clock.now())())
        current = await follow(aged.store)
        await tend(aged)
        for follower in (behind, halfway):
            with pytest.raises(InvalidInput, match="after must be newer"):
                await follower.polls()
        assert await current.polls() == []
        await aged.cancel(other.id)
        assert [event.what for event in await current.hears(1)] == ["cancel"]

    async def test_who_has_had_it_goes_on(self, aged: Queue, clock: FakeClock) -> None:
        await tend(aged)
        follower = await follow(aged.store)
        await live(aged)
        await follower.hears(2)
        clock.set(START + WEEK)
        await tend(aged)
        await aged.enqueue("t")
        await follower.hears(1)

    async def test_who_has_not_had_what_left_the_default_tables_is_told_so(
        self, aged: Queue, clock: FakeClock
    ) -> None:
        await tend(aged)
        behind = await follow(aged.store)
        await live(Queue(aged.store, ids=lambda: JobId(str(uuid4()))))
        current = Follower(aged.store, behind.cursor)
        await current.hears(2)
        clock.set(START + WEEK)
        await aged.store.sweep(limit=100)
        with pytest.raises(InvalidInput, match="after must be newer"):
            await behind.polls()
        assert await current.polls() == []

    async def test_who_has_not_had_the_former_life_of_an_id_is_told_so(
        self, aged: Queue, clock: FakeClock
    ) -> None:
        await tend(aged)
        behind = await follow(aged.store)
        former = await live(aged)
        current = Follower(aged.store, behind.cursor)
        await current.hears(2)
        clock.set(START + WEEK)
        await aged.store.sweep(limit=100)
        await aged.enqueue("t", id=former)
        with pytest.raises(InvalidInput, match="after must be newer"):
            await behind.polls()
        assert [(event.name, event.what) for event in await current.hears(1)] == [(former, "enqueued")]

    async def test_a_cursor_of_now_is_good_though_what_went_is_not_told_yet(
        self, database: Any, aged: Queue, clock: FakeClock
    ) -> None:
        """Some transaction holds the feed up while a day of later ones comes and goes."""
        await tend(aged)
        held_up = await asyncpg.connect(other_url())
        async with held_up.transaction():
            await held_up.execute("SELECT pg_current_xact_id()")
            await live(aged)
            clock.set(START + WEEK)
            await tend(aged)
            follower = await follow(aged.store)
            assert await follower.polls() == []
            await aged.enqueue("t")
        await held_up.close()
        await follower.hears(1)

    async def test_a_day_is_not_searched_for_what_is_older_than_the_day_before(
        self, database: Any, aged: Queue, clock: FakeClock
    ) -> None:
        """Two horizons are kept, each for a day at least; a cursor from before the older one is too old after a drop."""
        a_day_later = "UPDATE penstock.feed SET marked_at = now() - interval '25 hours'"
        ancient = await follow(aged.store)
        await live(aged)
        await ancient.hears(2)
        await database.execute(a_day_later)
        await tend(aged)  # which makes a day, and marks
        yesterday = await follow(aged.store)
        await aged.enqueue("t", id=counting_ids(START + timedelta(days=3))())
        await yesterday.hears(1)
        await database.execute(a_day_later)
        clock.set(START + WEEK)
        await tend(aged)  # which marks again, and drops the first day
        await yesterday.polls()
        with pytest.raises(InvalidInput, match="after must be newer"):
            await ancient.polls()


# ── The migration ─────────────────────────────────────────────────────────────────────────────────────


class TestMigration:
    async def test_rows_from_before_share_its_transaction_and_old_workers_may_go_on(
        self, tmp_path: Path
    ) -> None:
        [feed] = [each for each in load() if each.name == "feed"]
        for each in load()[: feed.number - 1]:
            (tmp_path / f"{each.label}.sql").write_text(each.sql, encoding="utf-8")
        async with scratch(server_url()) as url:
            await migrate(url, tmp_path)
            connection = await asyncpg.connect(url)
            new_id = counting_ids(START)
            ids = [UUID(new_id()) for _ in range(3)]
            before = """
                INSERT INTO penstock.job (tenant, id, queue, type, payload, priority, created_at, scheduled_at)
                SELECT 'default', id, 'q', 't', '{}', 0, now(), now() FROM unnest($1::uuid[]) AS id"""
            await connection.execute(before, ids[:1])
            await connection.execute(before, ids[1:2])
            change = {"tenant": "default", "seq": 1, "kind": "queue", "name": "q", "at": START.isoformat(), "verb": "configure", "actor": "ada"}  # fmt: skip
            whole = (
                "INSERT INTO penstock.change SELECT * FROM json_populate_recordset(NULL::penstock.change, $1)"
            )
            await connection.execute(whole, json.dumps([change]))
            await migrate(url)
            shared = "SELECT xid FROM penstock.job UNION SELECT xid FROM penstock.change"
            assert len(await connection.fetch(shared)) == 1
            store = PostgresStore(url)
            follower = await follow(store)
            # As a worker does that was started before the migration.
            await connection.execute(before, ids[2:])
            await connection.execute(whole, json.dumps([change | {"seq": 2, "verb": "later"}]))
            assert [(event.name, event.what) for event in await follower.hears(2)] == [
                (str(ids[2]), "enqueued"),
                ("q", "later"),
            ]
            await store.close()
            told = await connection.fetch(sql("events"), "default", 0, -1, UUID(int=0), 10)
            assert [row["what"] for row in told] == ["enqueued", "enqueued", "configure", "enqueued", "later"]
            await connection.close()


# ── Plans ─────────────────────────────────────────────────────────────────────────────────────────────

ROWS = 50_000


@pytest.fixture(params=["analysed", "not analysed"])
async def history(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """A hundred thousand rows of history, ten to a transaction; the next transaction would be the 10,000th."""
    async with scratch(server_url()) as url:
        await migrate(url)
        connection = await asyncpg.connect(url, server_settings=_SETTINGS)
        await connection.execute(
            f"""SET synchronous_commit = off;
                SELECT penstock.add_day('{TODAY}');
                WITH made AS (
                    INSERT INTO penstock.job (tenant, id, queue, type, payload, priority, created_at, scheduled_at, xid)
                    SELECT 't', overlay(penstock.first_id('{TODAY}')::text PLACING lpad(to_hex(n), 12, '0') FROM 25)::uuid,
                           'q', 'x', json_build_object('filler', repeat('x', 100)), 0, now(), now(), n / 5
                    FROM generate_series(1, {ROWS} - 1) AS n RETURNING *)
                INSERT INTO penstock.attempt (tenant, job_id, number, worker, token, started_at, ended_at, outcome, status, run_at, xid)
                SELECT tenant, id, 1, 'w', 'token', now(), now(), 'succeeded', 'succeeded', now(), xid FROM made;
                SELECT brin_summarize_new_values('penstock.job_{TODAY:%Y%m%d}_xid_idx'),
                       brin_summarize_new_values('penstock.attempt_{TODAY:%Y%m%d}_xid_idx')"""
        )
        if request.param == "analysed":
            await connection.execute("ANALYZE penstock.job, penstock.attempt, penstock.change")
        yield connection
        await connection.close()


async def pages_read(history: Any, after: int, horizon: int, most: int) -> tuple[int, int]:
    """How many events come of it, and how many pages are read for them, by the statement as the store asks it."""
    statement = sql("events")
    for place, value in [("h.horizon", horizon), ("$1", "'t'"), ("$2", after), ("$3", -1), ("$4", f"'{UUID(int=0)}'"), ("$5", most)]:  # fmt: skip
        statement = statement.replace(f"{place},", f"{value},").replace(f"{place})", f"{value})")
    text = await history.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {statement}")
    plan = json.loads(text)[0]["Plan"]
    return plan["Actual Rows"], plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


class TestPlans:
    async def test_the_end_the_middle_and_a_page_of_long_ago_are_read_and_little_more(
        self, history: Any
    ) -> None:
        [size] = await history.fetchrow(
            f"SELECT sum(pg_relation_size('penstock.' || name || '_{TODAY:%Y%m%d}')) / 8192 FROM unnest('{{job, attempt}}'::text[]) name"
        )
        assert size > 2000
        await pages_read(history, 9990, 10_000, 500)  # the first look also reads the catalogues
        for after, horizon, number in [(9990, 10_000, 100), (5000, 5010, 100), (100, 10_000, 500)]:
            rows, pages = await pages_read(history, after, horizon, 500)
            assert rows == number
            # Two ranges of 64 pages in each table at the most, and what the look-ups of the attempts' jobs take.
            assert pages < 4 * 64 + 4 * number

    async def test_where_nothing_happened_next_to_nothing_is_read(self, history: Any) -> None:
        await pages_read(history, 10_000, 10_000 + 5, 500)
        assert (await pages_read(history, 10_000, 10_000 + 5, 500))[1] < 200  # the indexes of every day
