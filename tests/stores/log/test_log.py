"""The log store by itself: what it writes and when, what it does when the log is away, damaged or too new."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from penstock.connecting import connect
from penstock.core.commands import Ack, Filter, LeaseJobs, PutSchedule
from penstock.core.errors import PenstockError, StoreUnavailable, UnknownStore
from penstock.core.job import JobId, LeaseToken, Status
from penstock.core.machine import Machine
from penstock.core.registry import PutEntry
from penstock.core.requests import new_schedule
from penstock.queue import Queue
from penstock.stores.log import log as log_module
from penstock.stores.log.backings.memory import MemoryTape
from penstock.stores.log.entry import read
from penstock.stores.log.errors import (
    LogCorrupt,
    LogGap,
    LogStopped,
    LogTooNew,
    OutcomeUnknown,
    StorageFull,
)
from penstock.stores.log.state import Parts, State
from penstock.stores.log.store import LogStore
from penstock.testing import START, FakeClock, make_job
from support.differential import History
from support.gcs import running_gcs
from support.log_dump import dumped
from support.s3 import Weather, running_s3


class Watched(MemoryTape):
    """A tape that counts what is asked of it, and can be held up."""

    def __init__(self) -> None:
        super().__init__()
        self.appends = self.reads = 0
        self.open = asyncio.Event()
        self.open.set()
        self.asked = asyncio.Event()
        self.error: Exception | None = None
        self.after = False

    async def append(self, data: bytes) -> int:
        self.appends += 1
        self.asked.set()
        await self.open.wait()
        if self.error is not None and not self.after:
            raise self.error
        number = await super().append(data)
        if self.error is not None:
            raise self.error
        return number

    async def read(self, after: int, most: int = 1000) -> list[tuple[int, bytes]]:
        self.reads += 1
        if self.error is not None and not self.after:
            raise self.error
        return await super().read(after, most)

    @property
    def entries(self) -> list[bytes]:
        return self._entries


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def tape() -> Watched:
    return Watched()


@pytest.fixture
async def store(tape: Watched, clock: FakeClock) -> AsyncIterator[LogStore]:
    store = LogStore.on(tape, clock)
    yield store
    await store.close()


def ops(tape: Watched, number: int) -> list[str]:
    found = read("it", number, tape.entries[number - 1])
    assert found is not None
    return [op.verb for op in found.ops]


class TestTogether:
    async def test_what_comes_while_an_entry_is_on_its_way_rides_in_the_next(
        self, store: LogStore, tape: Watched
    ) -> None:
        tape.open.clear()
        first = asyncio.create_task(store.enqueue("t", [make_job()]))
        await tape.asked.wait()
        others = [asyncio.create_task(store.enqueue("t", [make_job()])) for _ in range(20)]
        await asyncio.sleep(0)
        tape.open.set()
        await asyncio.gather(first, *others)
        assert [ops(tape, 1), ops(tape, 2)] == [["enqueue"], ["enqueue"] * 20]
        assert tape.appends == 2

    async def test_its_own_entry_is_not_read_again(self, store: LogStore, tape: Watched) -> None:
        await store.enqueue("t", [make_job()])
        before = tape.reads
        await store.enqueue("t", [make_job()])
        assert tape.reads == before

    async def test_each_gets_its_own_answer_and_its_own_error(self, store: LogStore) -> None:
        job, thief = make_job(), Ack(JobId("nobody's"), LeaseToken("nobody's"))
        answers: Any = await asyncio.gather(
            store.enqueue("t", [job]), store.enqueue("t", [job]), store.settle("t", [thief])
        )
        [[_], [again], [lost]] = answers
        assert again.duplicate == "id"
        assert lost.code == "job_not_found"

    async def test_an_entry_is_no_longer_than_allowed(
        self, store: LogStore, tape: Watched, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(log_module, "MOST_BYTES", 2_000)
        monkeypatch.setattr("penstock.stores.log.store.MOST_BYTES", 2_000)
        jobs = [make_job(payload="x" * 500) for _ in range(20)]
        answers = await store.enqueue("t", jobs)
        assert [answer.id for answer in answers] == [job.id for job in jobs]  # type: ignore[union-attr]
        assert len(tape.entries) > 4
        assert max(map(len, tape.entries)) < 2_500


class TestReading:
    async def test_what_another_was_told_is_done_is_seen(self, tape: Watched, clock: FakeClock) -> None:
        one, other = LogStore.on(tape, clock), LogStore.on(tape, clock)
        job = make_job()
        assert [*await other.queues("t")] == []
        await one.enqueue("t", [job])
        [seen] = await other.get("t", [job.id])
        assert seen.id == job.id  # type: ignore[union-attr]
        [[leased]] = await other.lease("t", [LeaseJobs("default", "w")])  # type: ignore[misc]
        assert leased.id == job.id

    async def test_nothing_is_written_where_there_is_nothing_to_do(
        self, store: LogStore, tape: Watched, clock: FakeClock
    ) -> None:
        await store.enqueue("t", [make_job(queue="paused", delay=5), make_job(delay=60)])
        await Queue(store, tenant="t").configure("paused", paused=True)
        clock.advance(seconds=10)
        written = tape.appends
        for _ in range(3):
            assert await store.lease("t", [LeaseJobs("default", "w"), LeaseJobs("paused", "w")]) == [[], []]
            assert await store.lease("t", [LeaseJobs("unknown", "w")]) == [[]]
            await store.sweep(limit=10)
            await store.next_at("t", ["default"])
            await store.find("nobody", Filter(), after=None, limit=10)
        assert tape.appends == written

    async def test_what_time_has_done_is_written_before_it_is_told(
        self, store: LogStore, tape: Watched, clock: FakeClock
    ) -> None:
        job = make_job(max_attempts=1)
        await store.enqueue("t", [job])
        await store.lease("t", [LeaseJobs("default", "w", 1, 5)])
        clock.advance(seconds=6)
        [found] = await store.get("t", [job.id])
        assert found.status == "dead"  # type: ignore[union-attr]
        assert ops(tape, 3) == ["tick"]
        await store.get("t", [job.id])
        assert tape.appends == 3

    async def test_a_clock_that_is_set_back_while_somebody_looks_is_not_waited_for(
        self, store: LogStore, tape: Watched, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await store.enqueue("t", [make_job()])
        await store.lease("t", [LeaseJobs("default", "w", 1, 5)])
        before = clock.now()
        told = iter([before + timedelta(seconds=6)])  # then it is set back
        monkeypatch.setattr(clock, "now", lambda: next(told, before))
        append = tape.append

        async def append_few(data: bytes) -> int:
            if tape.appends > 5:
                raise OSError("it writes for ever")
            return await append(data)

        monkeypatch.setattr(tape, "append", append_few)
        [view] = await store.queues("t")
        assert view.counts[Status.RUNNING] == 1
        assert tape.appends == 3

    async def test_an_office_that_is_held_is_kept_without_writing_while_time_is_left(
        self, tape: Watched, clock: FakeClock
    ) -> None:
        store = LogStore.on(tape, clock, cadence=6.0)
        assert await store.lead("o", "ada", 30)
        clock.advance(seconds=14)
        assert await store.lead("o", "ada", 30)
        assert not await store.lead("o", "eve", 30)
        assert tape.appends == 1
        clock.advance(seconds=2)
        assert await store.lead("o", "ada", 30)
        assert tape.appends == 2
        clock.advance(seconds=30)
        assert await store.lead("o", "eve", 30)
        await LogStore.on(tape, clock).lead("o", "eve", 0)
        assert await store.lead("o", "ada", 30), "it was given up elsewhere"


class TestWaking:
    async def test_who_listens_is_woken_by_what_another_process_wrote(
        self, tape: Watched, clock: FakeClock
    ) -> None:
        here, there = LogStore.on(tape, clock), LogStore.on(tape, clock)
        async with here.wakeups.listen("t", ["default"]) as bell:
            await there.enqueue("t", [make_job()])
            assert await bell.wait(5.0) == {"default"}
        await here.close()

    def test_who_listens_in_another_event_loop_is_woken_too(self, tape: Watched, clock: FakeClock) -> None:
        here, there = LogStore.on(tape, clock), LogStore.on(tape, clock)

        async def listen() -> None:
            async with asyncio.timeout(30), here.wakeups.listen("t", ["default"]) as bell:
                await here.wakeups.start()
                await asyncio.sleep(0.05)  # it rests
                await there.enqueue("t", [make_job()])
                assert await bell.wait(20) == {"default"}
                await asyncio.sleep(0.05)
                assert here.wakeups.status().healthy

        for _ in range(2):
            asyncio.run(listen())

    async def test_nobody_who_does_not_listen_polls(self, store: LogStore, tape: Watched) -> None:
        await store.enqueue("t", [make_job()])
        assert not store.wakeups.is_following
        assert not [task for task in asyncio.all_tasks() if "following" in task.get_name()]

    async def test_an_office_that_is_given_up_is_heard_of_elsewhere(
        self, tape: Watched, clock: FakeClock
    ) -> None:
        here, there = LogStore.on(tape, clock), LogStore.on(tape, clock)
        await there.lead("o", "ada", 30)
        async with here.wakeups.listen("!everyone", ["!offices"]) as bell:
            await there.lead("o", "ada", 0)
            assert await bell.wait(5.0) == {"!offices"}
        await here.close()

    async def test_rests_grow_while_nothing_is_rung(
        self, tape: Watched, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Workers that show themselves, and offices that are kept, are no reason to look more often."""
        here, there, rests = LogStore.on(tape, clock), LogStore.on(tape, clock), []
        enough = asyncio.Event()

        async def rest(self: Any, seconds: float) -> bool:
            rests.append(seconds)
            await there.put_entries("t", [PutEntry("worker", "w", "{}", seconds=60)])  # type: ignore[arg-type]
            await asyncio.sleep(0)
            if len(rests) == 30:
                enough.set()
            return False

        monkeypatch.setattr(log_module.LogWakeups, "_rest", rest)
        async with here.wakeups.listen("t", ["default"]):
            await enough.wait()
        assert sum(rests[9:]) / len(rests[9:]) > 3.0
        await here.close()


class TestBadWeather:
    async def test_a_log_that_is_away_is_an_error_that_may_pass(self, store: LogStore, tape: Watched) -> None:
        tape.error = OSError("the disk is on fire")
        with pytest.raises(StoreUnavailable, match="the disk is on fire"):
            await store.enqueue("t", [make_job()])
        with pytest.raises(StoreUnavailable):
            await store.queues("t")
        tape.error = None
        await store.enqueue("t", [make_job()])
        assert [view.counts["queued"] for view in await store.queues("t")] == [1]  # type: ignore[index]

    async def test_of_a_list_too_long_for_an_entry_each_is_told_what_became_of_it(
        self, store: LogStore, tape: Watched, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Told that nothing was changed, one would send all of it again."""
        monkeypatch.setattr(log_module, "MOST_BYTES", 2_000)
        monkeypatch.setattr("penstock.stores.log.store.MOST_BYTES", 2_000)
        await store.queues("t")
        jobs = [make_job(payload="x" * 500) for _ in range(20)]
        append = tape.append

        async def append_some(data: bytes) -> int:
            if tape.appends >= 2:
                raise StorageFull("the disk", "no room")
            return await append(data)

        with monkeypatch.context() as patched:
            patched.setattr(tape, "append", append_some)
            answers = await store.enqueue("t", jobs)
        there = [not isinstance(job, PenstockError) for job in await store.get("t", [job.id for job in jobs])]
        assert there == [not isinstance(answer, StorageFull) for answer in answers]
        assert 0 < sum(there) < 20

    async def test_what_may_have_been_written_can_be_sent_again(self, store: LogStore, tape: Watched) -> None:
        job = make_job()
        tape.error, tape.after = OutcomeUnknown("it", "an entry", "no answer"), True
        with pytest.raises(OutcomeUnknown):
            await store.enqueue("t", [job])
        tape.error = None
        [again] = await store.enqueue("t", [job])
        assert again.duplicate == "id"  # type: ignore[union-attr]
        assert [view.counts["queued"] for view in await store.queues("t")] == [1]  # type: ignore[index]

    async def test_an_entry_that_stands_there_twice_counts_once(
        self, store: LogStore, tape: Watched, clock: FakeClock
    ) -> None:
        await store.enqueue("t", [make_job(), make_job()])
        await store.lease("t", [LeaseJobs("default", "w")])
        tape.entries.append(tape.entries[-1])
        other = LogStore.on(tape, clock)
        assert [view.counts["running"] for view in await other.queues("t")] == [1]  # type: ignore[index]

    async def test_a_filler_means_nothing(self, store: LogStore, tape: Watched) -> None:
        tape.entries.append(b"")
        await store.enqueue("t", [make_job()])
        assert len(await store.queues("t")) == 1

    @pytest.mark.parametrize(
        ("data", "error", "says"),
        [
            (b"\x00\x01\x02\x03\x04\x05", LogCorrupt, "entry 1"),
            (b"xx", LogCorrupt, "checksum"),
            ("format", LogTooNew, "upgrade"),
            ("rules", LogTooNew, "upgrade"),
            ("verb", LogCorrupt, "99"),
        ],
    )
    async def test_what_cannot_be_read_is_told_and_nothing_is_guessed(
        self, store: LogStore, tape: Watched, data: bytes | str, error: type[PenstockError], says: str
    ) -> None:
        bodies = {
            "format": (9, 1, "a newer form"),
            "rules": (1, 9, b"w", 1, START, []),
            "verb": (1, 1, b"w", 1, START, [(99, "t", ())]),
        }
        if isinstance(data, str):
            body = msgspec.msgpack.encode(bodies[data])
            data = body + zlib.crc32(body).to_bytes(4, "big")
        tape.entries.append(data)
        for _ in range(2):
            with pytest.raises(error, match=says):
                await store.queues("t")
        with pytest.raises(error, match=says):
            await store.enqueue("t", [make_job()])

    async def test_after_a_bug_it_stops(
        self, store: LogStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def breaks(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        with monkeypatch.context() as patched:
            patched.setattr(Machine, "enqueue", breaks)
            with pytest.raises(LogStopped, match="a bug"):
                await store.enqueue("t", [make_job()])
        with pytest.raises(LogStopped):
            await store.enqueue("t", [make_job()])
        with pytest.raises(LogStopped):
            await store.queues("t")
        assert "could not be applied" in caplog.text

    async def test_a_log_from_the_future_is_told_of_and_its_time_stands_still(
        self, store: LogStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock.advance(seconds=10)
        await store.enqueue("t", [make_job()])
        clock.set(START)
        await store.enqueue("t", [make_job()])
        await store.enqueue("t", [make_job()])
        assert caplog.text.count("10.0 s in the future") == 1
        page = await store.find("t", Filter(), after=None, limit=10)
        assert {(job.created_at - START).total_seconds() for job in page.jobs} == {10.0}

    async def test_nobody_hammers_at_a_log_that_is_away(
        self, store: LogStore, tape: Watched, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pauses, enough = [], asyncio.Event()

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 12:
                enough.set()
                await asyncio.Event().wait()

        tape.error = OSError("away")
        monkeypatch.setattr("penstock.stores.wakeups.loop.asyncio.sleep", sleep)
        async with store.wakeups.listen("t", ["default"]):
            await enough.wait()
            assert not store.wakeups.status().healthy
        assert pauses[-1] > 1.0

    async def test_a_missing_number_is_told(self, store: LogStore, tape: Watched) -> None:
        await store.enqueue("t", [make_job()])
        found = tape.read

        async def skips(after: int, most: int = 1000) -> list[tuple[int, bytes]]:
            return [(number + 1, data) for number, data in await found(after, most)]

        tape.entries.append(tape.entries[0])
        tape.read = skips  # type: ignore[method-assign]
        with pytest.raises(LogGap):
            await store.queues("t")

    async def test_a_log_cut_behind_it_is_read_from_the_newest_snapshot(
        self, tape: Watched, clock: FakeClock
    ) -> None:
        writer, parts = LogStore.on(tape, clock), Parts()
        reader = LogStore.on(tape, clock)

        async def load(wakeups: Any) -> State:
            return State(parts, wakeups)

        await reader.queues("t")
        for _ in range(5):
            await writer.enqueue("t", [make_job()])
        parts = writer._log.state.parts
        await tape.truncate(5)
        source = reader._log._source
        assert source is not None
        reader._log._source = msgspec.structs.replace(source, load=load)
        assert [view.counts["queued"] for view in await reader.queues("t")] == [5]  # type: ignore[index]
        await reader.enqueue("t", [make_job()])
        assert [view.counts["queued"] for view in await reader.queues("t")] == [6]  # type: ignore[index]


class TestTheSameEverywhere:
    def test_processes_with_other_hash_seeds_come_to_the_same_state(self, tmp_path: Path) -> None:
        (tmp_path / "entries").write_bytes(msgspec.msgpack.encode(written_by(7, 400)))
        dumps = {_dump(tmp_path, seed) for seed in ("0", "1", "4711")}
        assert len(dumps) == 1
        assert len(json.loads(dumps.pop())["acme"]["jobs"]) > 50

    def test_what_somebody_looked_up_does_not_show(self) -> None:
        """A state that is looked at between any two entries is the one that is never looked at."""
        plain, looked = State(), State()
        for number, data in enumerate(written_by(11, 300), 1):
            found = read("it", number, data)
            plain.apply(number, found)
            looked.apply(number, found)
            for tenant in ("acme", "zeta", "nobody"):
                looked.foresees(tenant, "emails", looked.time)
                looked.foresees_at(tenant, ["emails", "reports"], looked.time)
                looked.look(lambda state, tenant=tenant: state.queues(tenant), looked.time)  # type: ignore[misc]
                looked.look(lambda state, tenant=tenant: state.audit(tenant, limit=5), looked.time)  # type: ignore[misc]
        assert dumped(looked) == dumped(plain)

    async def test_a_reader_that_knows_other_time_zones_comes_to_the_same(
        self, tape: Watched, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, other = LogStore.on(tape, clock), LogStore.on(tape, clock)
        schedule = new_schedule("s", "0 9 * * *", {"type": "a"}, tz="Europe/Paris")
        [put] = await one.put_schedules("t", [PutSchedule(schedule, "ada")])
        monkeypatch.setattr("penstock.core.timetable.next_fire", lambda cron, tz, now: now)
        assert await other.schedules("t") == [put]

    def test_what_is_foreseen_comes_true(self) -> None:
        """Nobody may be sent away from a queue that has something; whoever is not may find nothing now and then."""
        state, known, unknown = State(), 0, 0
        for number, data in enumerate(written_by(5, 500), 1):
            state.apply(number, read("it", number, data))
            for tenant, machine in state.parts.machines.items():
                if machine.is_due(state.time):
                    continue
                for queue in ("emails", "reports"):
                    foreseen = state.foresees(tenant, queue, state.time)
                    is_known, at = state.foresees_at(tenant, [queue], state.time)
                    there = bool(machine.choose(queue, 1, state.time))
                    assert foreseen in (there, None)
                    assert not is_known or at == machine.next_at([queue], state.time)
                    known, unknown = known + (foreseen is not None), unknown + (foreseen is None)
        assert known > 10 * unknown


def written_by(seed: int, steps: int) -> list[bytes]:
    """The log of a random history."""
    tape = MemoryTape()

    class Written(History):
        make_store = staticmethod(lambda clock: LogStore.on(tape, clock))

    history, dice = Written(), Random(seed)
    for _ in range(steps):
        getattr(history, history.draw(dice))(dice)
    history.close()
    return tape._entries


def _dump(folder: Path, seed: str) -> bytes:
    support = Path(__file__).parents[2] / "support" / "log_dump.py"
    return subprocess.run(
        [sys.executable, str(support), str(folder / "entries")],
        env={**os.environ, "PYTHONHASHSEED": seed},
        stdout=subprocess.PIPE,
        check=True,
    ).stdout


class TestOpening:
    async def test_a_log_is_named_by_a_url(self, tmp_path: Path) -> None:
        async with connect(f"file://{tmp_path}/jobs") as queue:
            await queue.enqueue("a")
        async with connect(f"file://{tmp_path}/jobs") as queue:
            [leased] = await queue.lease("default", worker="w")
            await queue.ack(leased)
            assert (await queue.get(leased.id)).status == "succeeded"

    async def test_stores_of_one_process_share_a_log_in_memory(self) -> None:
        async with connect("memory+log://shared") as one, connect("memory+log://shared") as other:
            await one.enqueue("a")
            assert len(await other.lease("default", worker="w")) == 1

    async def test_a_url_of_no_store_is_refused(self) -> None:
        with pytest.raises(UnknownStore, match="file:"):
            connect("ftp://somewhere")


EACH_CLOUD = pytest.mark.parametrize("running", [running_s3, running_gcs], ids=["s3", "gcs"])


class TestInABucket:
    """Over real HTTP: what the tape and the store make of each other."""

    @EACH_CLOUD
    @pytest.mark.parametrize(
        "faults", [{}, {"cut after": 0.1, "500 after": 0.1, "409": 0.1}], ids=["fair", "foul"]
    )
    async def test_several_machines_share_the_work(self, faults: dict[str, float], running: Any) -> None:
        with running(Weather(faults=faults)) as server:
            async with connect(server.url()) as one, connect(server.url()) as other:
                both = (one, other)
                await asyncio.gather(*(queue.enqueue("a") for queue in both * 10))
                leased = await asyncio.gather(
                    *(queue.lease("default", worker="w", limit=11) for queue in both)
                )
                jobs = [job for some in leased for job in some]
                assert len({job.id for job in jobs}) == len(jobs) == 20
                await asyncio.gather(*(other.ack(job) for job in jobs))
                assert [view.counts[Status.SUCCEEDED] for view in await one.queues()] == [20]

    @EACH_CLOUD
    async def test_credentials_that_expire_are_told_and_come_back(self, running: Any) -> None:
        with running() as server:
            async with connect(server.url()) as queue:
                await queue.enqueue("a")
                server.refuses = "ExpiredToken"
                with pytest.raises(StoreUnavailable, match="credentials"):
                    await queue.enqueue("a")
                with pytest.raises(StoreUnavailable, match="credentials"):
                    await queue.queues()
                server.refuses = None
                await queue.enqueue("a")
                assert [view.counts[Status.QUEUED] for view in await queue.queues()] == [2]
