"""Several logs as one store: which log what is in, and what holds across them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.connecting import connect
from penstock.core.commands import Fire, Fired, LeaseJobs
from penstock.core.errors import InvalidInput, LeaseLost, PenstockError
from penstock.core.job import LeaseToken
from penstock.queue import Queue
from penstock.stores.log.backings.memory import MemoryBacking, MemoryTape
from penstock.stores.log.errors import (
    CrossShard,
    LogCorrupt,
    LogTooNew,
    NotALog,
    ShardsDiffer,
    StorageFull,
)
from penstock.stores.log.layout import FORMAT_KEY, laid_out, shard_of, shard_of_token
from penstock.stores.log.shards import ShardedLogStore
from penstock.stores.log.store import LogStore
from penstock.testing import START, FakeClock, make_job

SHARDS = 3
NAMES = {shard_of("default", f"q{n}", SHARDS): f"q{n}" for n in range(20)}
"""A queue of each log."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def backing(clock: FakeClock) -> MemoryBacking:
    return MemoryBacking(clock=clock.now)


@pytest.fixture
def store(backing: MemoryBacking) -> ShardedLogStore:
    return ShardedLogStore(backing, SHARDS)


@pytest.fixture
def queue(store: ShardedLogStore) -> Queue:
    return Queue(store)


def opened(store: ShardedLogStore) -> list[int]:
    return [number for number, log in enumerate(store.known_logs) if log.is_open]


class TestLayout:
    def test_a_queue_stays_in_its_log_for_ever(self) -> None:
        found = [
            shard_of("acme", queue, 8) for queue in ("default", "emails", "orders/import", "orders/mail")
        ]
        assert found == [4, 6, 7, 7]

    async def test_is_written_once_and_holds_for_those_who_say_nothing(self, backing: MemoryBacking) -> None:
        first = await laid_out(backing, 8)
        assert await laid_out(backing) == await laid_out(backing, 8) == first
        assert first.shards == 8

    async def test_of_two_who_make_it_at_once_one_says_what_it_is(self, backing: MemoryBacking) -> None:
        answers = await asyncio.gather(laid_out(backing, 2), laid_out(backing, 4), return_exceptions=True)
        assert [type(answer).__name__ for answer in answers] == ["Format", "ShardsDiffer"]

    async def test_another_number_is_refused_with_what_to_do(self, backing: MemoryBacking) -> None:
        await laid_out(backing, 8)
        with pytest.raises(ShardsDiffer, match=r"made with shards=8 .* leave \?shards= out"):
            await Queue(ShardedLogStore(backing, 4)).queues()

    async def test_a_place_where_something_else_is_kept_is_left_alone(self, backing: MemoryBacking) -> None:
        await backing.objects.create("holiday/beach.jpg", b"...")
        with pytest.raises(NotALog, match="holiday"):
            await Queue(ShardedLogStore(backing)).enqueue("a")
        assert [found.key for found in await backing.objects.list("")] == ["holiday/beach.jpg"]

    async def test_one_of_a_newer_version_is_refused(self, backing: MemoryBacking) -> None:
        await backing.objects.create(FORMAT_KEY, b'{"fmt": 2, "rings": []}')
        with pytest.raises(LogTooNew, match=r"FORMAT is in format 2, .* up to 1; upgrade"):
            await Queue(ShardedLogStore(backing)).queues()

    @pytest.mark.parametrize("damaged", [b"", b"{", b'{"fmt": 1}', b'{"fmt": 1, "id": "a", "shards": 0}'])
    async def test_one_that_is_damaged_is_refused(self, backing: MemoryBacking, damaged: bytes) -> None:
        await backing.objects.create(FORMAT_KEY, damaged)
        with pytest.raises(LogCorrupt, match="FORMAT"):
            await Queue(ShardedLogStore(backing)).queues()

    async def test_is_given_in_the_url(self, tmp_path: Path) -> None:
        async with connect(f"file://{tmp_path}/jobs?shards=4") as queue:
            await queue.enqueue("a")
        assert msgspec.json.decode((tmp_path / "jobs" / FORMAT_KEY).read_bytes())["shards"] == 4
        async with connect(f"file://{tmp_path}/jobs") as queue:
            assert len((await queue.find()).jobs) == 1

    @pytest.mark.parametrize("given", ["0", "65", "many", "-1"])
    def test_must_be_a_sensible_number(self, given: str) -> None:
        with pytest.raises(InvalidInput, match="shards must be"):
            connect(f"memory+log://?shards={given}")


class TestRouting:
    async def test_only_the_logs_that_are_needed_are_opened(
        self, queue: Queue, store: ShardedLogStore
    ) -> None:
        await queue.enqueue("a", queue=NAMES[1])
        [leased] = await queue.lease(NAMES[1], worker="w")
        await queue.heartbeat(leased)
        await queue.ack(leased)
        await queue.get(leased.id)
        await queue.find(queue=NAMES[1])
        assert opened(store) == [1]

    async def test_a_token_begins_with_its_log(self, queue: Queue) -> None:
        for number, name in NAMES.items():
            await queue.enqueue("a", queue=name)
            [leased] = await queue.lease(name, worker="w")
            assert shard_of_token(leased.token, SHARDS) == number

    @pytest.mark.parametrize("token", ["", "nobody's", "ffff-1", "0000-1"])
    async def test_a_token_that_was_made_up_is_refused_by_the_jobs_own_log(
        self, queue: Queue, store: ShardedLogStore, token: str
    ) -> None:
        await queue.enqueue("a", queue=NAMES[2])
        [leased] = await queue.lease(NAMES[2], worker="w")
        with pytest.raises(LeaseLost):
            await queue.ack(msgspec.structs.replace(leased, token=LeaseToken(token)))

    async def test_pages_are_merged_newest_first(self, queue: Queue) -> None:
        spread = [*[2] * 10, *(n % SHARDS for n in range(10))]  # the oldest are all in one log
        jobs = [await queue.enqueue("a", queue=NAMES[log]) for log in spread]
        found, after = [], None
        while True:
            page = await queue.find(after=after, limit=3)
            found += [job.id for job in page.jobs]
            if (after := page.next) is None:
                break
        assert found == sorted((job.id for job in jobs), reverse=True)

    async def test_a_log_that_is_away_does_not_take_from_the_others_answers(
        self, queue: Queue, store: ShardedLogStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in NAMES.values():
            await queue.enqueue("a", queue=name)

        async def away(*args: Any) -> Any:
            raise OSError("away")

        monkeypatch.setattr(store.known_logs[1]._log._source.tape, "append", away)  # type: ignore[union-attr]
        answers = await store.lease("default", [LeaseJobs(NAMES[n], "w") for n in range(SHARDS)])
        assert [isinstance(answer, PenstockError) for answer in answers] == [False, True, False]

    async def test_who_listens_for_a_queue_hears_of_it_from_another_process(
        self, store: ShardedLogStore, backing: MemoryBacking
    ) -> None:
        other = Queue(ShardedLogStore(backing))
        async with store.wakeups.listen("default", [NAMES[2]]) as bell:
            assert opened(store) in ([], [2])
            await other.enqueue("a", queue=NAMES[2])
            assert await bell.wait(30) == {NAMES[2]}
        await store.close()

    async def test_who_listens_to_a_store_that_is_away_is_rung_when_it_is_back(
        self, store: ShardedLogStore, backing: MemoryBacking, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def is_away(*args: Any) -> Any:
            raise OSError("away")

        with monkeypatch.context() as away:
            away.setattr(backing.objects, "get", is_away)
            listening = store.wakeups.listen("default", [NAMES[2]])
            bell = await listening.__aenter__()
            assert "away" in store.wakeups.status().detail
        assert await bell.wait(30) == {NAMES[2]}
        assert "away" not in store.wakeups.status().detail
        await listening.__aexit__(None, None, None)
        await store.close()


class TestFlows:
    async def test_a_parent_in_another_log_is_refused_with_how_to_name_queues(self, queue: Queue) -> None:
        parent = await queue.enqueue("a", queue=NAMES[0])
        with pytest.raises(CrossShard, match=f"call it {NAMES[0]}/{NAMES[1]}"):
            await queue.enqueue("b", queue=NAMES[1], parents=[parent.id])

    async def test_queues_with_a_common_first_part_share_a_log(self, queue: Queue) -> None:
        parent = await queue.enqueue("a", queue=NAMES[0])
        child = await queue.enqueue("b", queue=f"{NAMES[0]}/{NAMES[1]}", parents=[parent.id])
        [leased] = await queue.lease(NAMES[0], worker="w")
        await queue.ack(leased)
        [freed] = await queue.lease(f"{NAMES[0]}/{NAMES[1]}", worker="w")
        assert freed.id == child.id


class TestSchedules:
    """A schedule is in the first log, its job in another."""

    @pytest.fixture
    async def fire(self, queue: Queue, clock: FakeClock) -> Fire:
        await queue.put_schedule("s", "* * * * *", {"type": "a", "queue": NAMES[1]})
        due_at = clock.advance(minutes=1)
        return Fire("s", due_at, (due_at,), due_at + timedelta(minutes=1))

    async def test_who_is_killed_between_two_logs_leaves_it_to_the_next(
        self, queue: Queue, store: ShardedLogStore, fire: Fire, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def killed(*args: Any) -> Any:
            raise asyncio.CancelledError

        with monkeypatch.context() as at_once:
            at_once.setattr(LogStore, "pass_on", killed)
            with pytest.raises(asyncio.CancelledError):
                await store.fire("default", [fire])
        [fired] = await queue.fire_due()
        assert len(fired.jobs) == 1
        assert len((await queue.find(schedule="s")).jobs) == 1
        assert (await queue.schedule("s")).next_fire_at == START + timedelta(minutes=2)

    async def test_of_missed_times_too_long_for_an_entry_none_is_lost(
        self, queue: Queue, store: ShardedLogStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If that of a later time could be made without the earlier ones, these would count as made."""
        monkeypatch.setattr("penstock.stores.log.store.MOST_BYTES", 300)
        monkeypatch.setattr("penstock.stores.log.log.MOST_BYTES", 300)
        await queue.put_schedule(
            "s", "* * * * *", {"type": "a", "queue": NAMES[1], "payload": {"x": "x" * 200}}, missed="all"
        )
        clock.advance(minutes=4)
        append = MemoryTape.append
        failing = iter([True])

        async def append_after_the_first(self: MemoryTape, data: bytes) -> int:
            if b"x" * 200 in data and next(failing, False):
                raise StorageFull("the disk", "no room")
            return await append(self, data)

        monkeypatch.setattr(MemoryTape, "append", append_after_the_first)
        with pytest.raises(StorageFull):
            await queue.fire_due()
        await queue.fire_due()
        assert len((await queue.find(schedule="s")).jobs) == 4

    async def test_who_slept_until_the_job_had_left_makes_no_second_one(
        self,
        queue: Queue,
        backing: MemoryBacking,
        fire: Fire,
        clock: FakeClock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        sleeper, looked, awake = ShardedLogStore(backing), asyncio.Event(), asyncio.Event()
        deliver = LogStore.deliver

        async def sleep_first(self: LogStore, *args: Any) -> Any:
            if self in sleeper.known_logs:
                looked.set()
                await awake.wait()
            return await deliver(self, *args)

        monkeypatch.setattr(LogStore, "deliver", sleep_first)
        asleep = asyncio.create_task(sleeper.fire("default", [fire]))
        await looked.wait()
        await queue.fire_due()
        [leased] = await queue.lease(NAMES[1], worker="w")
        await queue.ack(leased)
        clock.advance(days=400)
        assert (await queue.sweep(limit=10)).pruned == 1
        awake.set()
        assert await asleep == [Fired("s")]
        assert (await queue.find()).jobs == ()


class TestFeed:
    async def test_tells_each_thing_once_wherever_it_begins_again(
        self, queue: Queue, store: ShardedLogStore, clock: FakeClock
    ) -> None:
        start = cursor = (await store.events("default", limit=1)).next
        jobs = []
        for n in range(9):
            jobs.append((await queue.enqueue("a", queue=NAMES[n % SHARDS])).id)
            clock.advance(seconds=1)
        told = []
        while found := (await store.events("default", after=cursor, limit=2)).events:
            told += [event.name for event in found]
            cursor = found[0].cursor  # the second is told again
            told = told[: len(told) - len(found) + 1]
        assert told == jobs
        assert [event.name for event in (await store.events("default", after=start, limit=99)).events] == jobs

    async def test_refuses_a_cursor_that_is_none_of_its_own(
        self, store: ShardedLogStore, clock: FakeClock
    ) -> None:
        cursor = (await store.events("default", limit=1)).next
        feed, _, whose = cursor.split(".")
        for wrong in ("", "x", f"{feed}.1.{whose}", f"{feed}.9-9-9.{whose}", f"x.0-0-0.{whose}"):
            with pytest.raises(InvalidInput, match="after must"):
                await store.events("default", after=wrong, limit=1)
        with pytest.raises(InvalidInput):
            await store.events("other", after=cursor, limit=1)


async def test_the_audit_log_is_merged_by_time(
    queue: Queue, store: ShardedLogStore, clock: FakeClock
) -> None:
    names = [NAMES[n % SHARDS] for n in range(10)]
    for name in names:
        await queue.pause(name)
        await queue.resume(name)
        clock.advance(seconds=1)
    seen, before = [], None
    while True:
        page = await store.audit("default", before=before, limit=3)
        seen += [line.name for line in page.lines]
        if (before := page.next) is None:
            break
    assert seen == [name for name in reversed(names) for _ in range(2)]


async def test_two_clusters_pointed_at_one_place_are_one(backing: MemoryBacking) -> None:
    one, other = ShardedLogStore(backing, SHARDS), ShardedLogStore(backing)
    job = make_job(queue=NAMES[1])
    await one.enqueue("default", [job])
    [[leased]] = await other.lease("default", [LeaseJobs(NAMES[1], "w")])  # type: ignore[misc]
    assert leased.id == job.id
    assert await one.lease("default", [LeaseJobs(NAMES[1], "w")]) == [[]]


class TestClosing:
    async def test_no_log_waits_for_another(
        self, store: ShardedLogStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each may wait ten seconds for its compactor, and there may be 64."""
        begun = asyncio.Barrier(SHARDS)

        async def close(self: LogStore) -> None:
            await begun.wait()

        await store.logs()
        monkeypatch.setattr(LogStore, "close", close)
        async with asyncio.timeout(30):
            await store.close()

    async def test_one_that_cannot_be_closed_keeps_nothing_else_open(
        self, store: ShardedLogStore, backing: MemoryBacking, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        closed: list[object] = []
        logs = list(await store.logs())

        async def close(self: LogStore) -> None:
            closed.append(self)
            if self in logs[:2]:
                raise OSError(f"log {logs.index(self)}")

        async def close_backing() -> None:
            closed.append(backing)

        monkeypatch.setattr(LogStore, "close", close)
        monkeypatch.setattr(backing, "close", close_backing)
        with pytest.raises(OSError, match="log 0"):
            await store.close()
        assert closed == [*logs, backing]
