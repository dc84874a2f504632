"""Events as a stream, without Spark: nothing is skipped or told twice, and a place that is not of this history is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest

from penstock import Queue
from penstock.core.errors import InvalidInput
from penstock.core.job import JobId
from support.postgres import EmptyPostgresStore, other_url, server_url
from support.spark import WITHOUT

pytest.importorskip("pyspark", reason=WITHOUT)

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.lake.source import logs, postgres
from penstock.lake.source.asking import Offset
from penstock.lake.source.reading import StreamReader, stream_reader


@pytest.fixture
async def queue() -> AsyncIterator[Queue]:
    async with Queue(EmptyPostgresStore(None)) as queue:
        await queue.enqueue("t")  # so that nobody waits for who makes the queue known
        yield queue


@pytest.fixture
async def caller() -> AsyncIterator[Any]:
    """A connection of somebody else's, who enqueues in transactions of their own."""
    connection = await asyncpg.connect(server_url())
    yield connection
    await connection.close()


def stream(url: str | None = None, **options: str) -> StreamReader:
    return stream_reader(url or server_url(), options, ["job_id", "kind", "xid", "seq"])


def told(one: StreamReader, start: Offset, end: Offset) -> list[str]:
    """The jobs that came in between two offsets."""
    parts = one.partitions(start, end)
    return [row["job_id"] for part in parts for batch in one.read(part) for row in batch.to_pylist()]


def step(one: StreamReader, start: Offset) -> tuple[list[str], Offset]:
    end = one.latestOffset(start, ReadAllAvailable())
    return told(one, start, end), end


async def put(queue: Queue, caller: Any) -> JobId:
    job = queue.new("t")
    await queue.store.enqueue_in(caller, queue.tenant, [job])  # type: ignore[attr-defined]
    return job.id


class TestHorizon:
    async def test_what_commits_late_is_told_late_and_once(self, queue: Queue, caller: Any) -> None:
        one = stream()
        _, place = step(one, one.initialOffset())
        transaction = caller.transaction()
        await transaction.start()
        early = await put(queue, caller)  # takes its number first …
        late = (await queue.enqueue("t")).id  # … and this one commits first
        first, place = step(one, place)
        assert first == []
        await transaction.commit()
        second, place = step(one, place)
        assert sorted(second) == sorted([early, late])
        assert step(one, place)[0] == []

    async def test_what_is_rolled_back_is_never_told(self, queue: Queue, caller: Any) -> None:
        one = stream()
        _, place = step(one, one.initialOffset())
        transaction = caller.transaction()
        await transaction.start()
        await put(queue, caller)
        await transaction.rollback()
        kept = (await queue.enqueue("t")).id
        assert step(one, place)[0] == [kept]

    async def test_a_batch_read_again_is_the_same(self, queue: Queue) -> None:
        one = stream()
        start = one.initialOffset()
        first, end = step(one, start)
        await queue.enqueue("t")
        assert told(one, start, end) == first

    async def test_with_many_writers_each_event_is_told_once(self, queue: Queue) -> None:
        """Transactions of all lengths, read meanwhile."""
        one = stream(partitions="2")
        place, seen = one.initialOffset(), []
        callers = [await asyncpg.connect(server_url()) for _ in range(4)]
        made = [row["job_id"] for row in await _jobs()]
        for n in range(12):
            mine = callers[n % 4]
            if mine.is_in_transaction():
                await mine.execute("COMMIT")
            await mine.execute("BEGIN")
            made.append(await put(queue, mine))
            made.append((await queue.enqueue("t")).id)
            fresh, place = step(one, place)
            seen += fresh
        for mine in callers:
            await mine.execute("COMMIT")
            await mine.close()
        fresh, place = step(one, place)
        assert sorted(seen + fresh) == sorted(made)


async def _jobs() -> list[Any]:
    connection = await asyncpg.connect(server_url())
    found = await connection.fetch("SELECT id::text AS job_id FROM penstock.job")
    await connection.close()
    return list(found)


class TestBatches:
    async def test_a_batch_has_at_most_the_rows_asked_for(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres, "_FIRST_WIDTH", 2)
        for _ in range(9):
            await queue.enqueue("t")
        one, sizes, seen = stream(maxRowsPerBatch="4"), [], []
        place = one.initialOffset()
        limit = one.getDefaultReadLimit()
        assert limit == ReadMaxRows(4)
        while (end := one.latestOffset(place, limit)) != place:
            rows = told(one, place, end)
            sizes.append(len(rows))
            seen += rows
            place = end
        assert max(sizes) <= 4
        assert sum(sizes) == 10 == len(set(seen))

    async def test_a_transaction_is_never_cut_in_two(self, queue: Queue) -> None:
        one = stream(maxRowsPerBatch="2")
        _, place = step(one, one.initialOffset())
        await queue.enqueue_many([{"type": "t"}] * 5)
        end = one.latestOffset(place, ReadMaxRows(2))
        assert len(told(one, place, end)) == 5

    async def test_with_available_now_what_comes_later_waits(self, queue: Queue) -> None:
        one = stream()
        one.prepareForTriggerAvailableNow()
        start = one.initialOffset()
        await queue.enqueue("t")
        rows, end = step(one, start)
        assert len(rows) == 1
        assert step(one, end) == ([], end)

    async def test_slices_share_a_batch(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(postgres, "ROWS_A_SLICE", 1)
        for _ in range(7):
            await queue.enqueue("t")
        one = stream(partitions="3")
        start = one.initialOffset()
        end = one.latestOffset(start, ReadAllAvailable())
        assert len(one.partitions(start, end)) == 3
        assert len(set(told(one, start, end))) == 8

    async def test_one_tenant_can_be_followed_alone(self, queue: Queue) -> None:
        mine = (await queue.for_tenant("other").enqueue("t")).id
        one = stream(tenant="other")
        assert step(one, one.initialOffset())[0] == [mine]


class TestRefused:
    async def test_a_checkpoint_of_another_database(self, queue: Queue) -> None:
        one = stream()
        place = one.latestOffset(one.initialOffset(), ReadAllAvailable())
        with pytest.raises(InvalidInput, match="come from this very database"):
            stream(other_url()).latestOffset(place, ReadAllAvailable())

    async def test_a_checkpoint_of_a_copy_of_this_database(self, queue: Queue) -> None:
        one = stream()
        with pytest.raises(InvalidInput, match="come from this very database"):
            one.latestOffset({**one.initialOffset(), "system": "1"}, ReadAllAvailable())

    async def test_a_checkpoint_ahead_of_the_database(self, queue: Queue) -> None:
        one = stream()
        place = one.latestOffset(one.initialOffset(), ReadAllAvailable())
        with pytest.raises(InvalidInput, match="restored from a backup"):
            one.partitions(place, {**place, "xid": place["xid"] + 1_000_000})

    async def test_a_checkpoint_from_before_what_is_kept(self, queue: Queue, caller: Any) -> None:
        one = stream()
        place = one.initialOffset()
        end = one.latestOffset(place, ReadAllAvailable())
        parts = one.partitions(place, end)
        await caller.execute("DELETE FROM penstock.job")
        with pytest.raises(InvalidInput, match="has left the database unread"):
            one.latestOffset(place, ReadAllAvailable())
        with pytest.raises(InvalidInput, match="has left the database unread"):
            [list(one.read(part)) for part in parts]

    @pytest.mark.parametrize(
        "asks",
        [
            lambda place: stream().initialOffset(),
            lambda place: stream().latestOffset(place, ReadAllAvailable()),
            lambda place: stream().prepareForTriggerAvailableNow(),
        ],
        ids=["begins", "goes on", "reads what there is"],
    )
    async def test_a_database_that_was_loaded_from_a_dump(
        self, queue: Queue, caller: Any, asks: Callable[[Offset], Any]
    ) -> None:
        place = stream().initialOffset()
        ahead = "UPDATE penstock.job SET xid = xid {} 1000000"
        await caller.execute(ahead.format("+"))
        try:
            with pytest.raises(InvalidInput, match="run penstock migrate, which stamps it anew"):
                asks(place)
        finally:
            await caller.execute(ahead.format("-"))

    async def test_a_first_batch_planned_again_after_history_has_left(
        self, queue: Queue, caller: Any
    ) -> None:
        """Spark keeps where a batch ends. Where the first began it asks anew."""
        one = stream()
        end = one.latestOffset(one.initialOffset(), ReadAllAvailable())
        assert len(told(one, stream().initialOffset(), end)) == 1
        await caller.execute("DELETE FROM penstock.job")
        again = stream()
        with pytest.raises(InvalidInput, match="has left the database unread"):
            again.partitions(again.initialOffset(), end)

    def test_a_first_batch_of_a_log_planned_again_after_history_has_left(self) -> None:
        feed = logs._Feed("f", 5, 10, "0", "log")
        feed.check_between(feed.offset(0, 5), feed.offset(8, 5))
        with pytest.raises(InvalidInput, match="has left the log unread"):
            feed.check_between(feed.offset(0, 5), feed.offset(8, 2))

    async def test_what_is_no_offset(self, queue: Queue) -> None:
        with pytest.raises(InvalidInput, match="hold offsets of this source"):
            stream().latestOffset({"offset": 3}, ReadAllAvailable())

    def test_a_table_that_is_no_stream(self) -> None:
        with pytest.raises(InvalidInput, match="only what happened is a stream"):
            stream_reader(server_url(), {"table": "jobs"}, ["job_id"])
