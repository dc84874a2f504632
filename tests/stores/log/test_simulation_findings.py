"""What the simulation of the whole store has found, each by itself."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import pytest
from msgspec.structs import replace

from penstock.core.commands import Duplicate, Enqueued
from penstock.core.errors import StoreUnavailable
from penstock.core.job import NewJob
from penstock.stores.log import log
from penstock.stores.log.backings.memory import MemoryBacking, MemoryObjects, MemoryTape
from penstock.stores.log.backings.numbered import ObjectTape
from penstock.stores.log.compacting import Rhythm, compactor
from penstock.stores.log.entry import read
from penstock.stores.log.errors import OutcomeUnknown
from penstock.stores.log.layout import shard_of
from penstock.stores.log.shards import ShardedLogStore
from penstock.stores.log.state import State
from penstock.stores.log.store import SHARD, LogStore
from penstock.stores.wakeups.memory import MemoryWakeups
from penstock.testing import FakeClock, make_job


class Flaky(MemoryTape):
    """A tape that takes entries and at times gives none back."""

    is_away = False

    async def read(self, after: int, most: int = 1000) -> list[tuple[int, bytes]]:
        if self.is_away:
            raise ConnectionError("gone")
        return await super().read(after, most)


async def test_nobody_is_told_that_an_entry_is_not_written_because_it_cannot_be_read_back() -> None:
    tape, clock, job = Flaky(), FakeClock(), make_job()
    store, other = LogStore.on(tape, clock), LogStore.on(tape, clock)
    await store.enqueue("t", [make_job()])
    await other.enqueue("t", [make_job()])
    tape.is_away = True
    with pytest.raises(OutcomeUnknown):
        await store.enqueue("t", [job])
    tape.is_away = False
    assert await store.enqueue("t", [job]) == [Enqueued(job.id, Duplicate.ID)]


class Gated(MemoryTape):
    """A tape some of whose answers wait: by what was asked for, and how often before."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[int] = Counter()
        self.gates: dict[tuple[int, int], tuple[asyncio.Event, asyncio.Event]] = {}

    def gate(self, after: int, time: int) -> tuple[asyncio.Event, asyncio.Event]:
        """Who comes there says so with the first event, and waits for the second."""
        return self.gates.setdefault((after, time), (asyncio.Event(), asyncio.Event()))

    async def read(self, after: int, most: int = 1000) -> list[tuple[int, bytes]]:
        found = await super().read(after, most)
        self.asked[after] += 1
        if gate := self.gates.get((after, self.asked[after])):
            gate[0].set()
            await gate[1].wait()
        return found


async def test_a_snapshot_that_comes_late_does_not_undo_what_was_read_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log, "READ_AT_ONCE", 1)
    tape, clock = Gated(), FakeClock()
    store, other = LogStore.on(tape, clock), LogStore.on(tape, clock)
    await store.enqueue("t", [make_job()])
    for _ in range(4):
        await other.enqueue("t", [make_job()])
    entries = await tape.read(0)
    await tape.truncate(3)
    is_loading, may_load = asyncio.Event(), asyncio.Event()

    async def load(wakeups: MemoryWakeups) -> State:
        """The snapshot, at once to all but the first who asks."""
        state = State(wakeups=wakeups)
        for number, data in entries[:3]:
            state.apply(number, read("it", number, data))
        if not is_loading.is_set():
            is_loading.set()
            await may_load.wait()
        return state

    source = store._log._source
    assert source is not None
    store._log._source = replace(source, load=load)
    tape.asked.clear()
    has_read_on, may_take = tape.gate(4, 1)
    is_back, may_go_on = tape.gate(3, 2)

    look = asyncio.create_task(store.queues("t"))
    await is_loading.wait()
    write = asyncio.create_task(store.enqueue("t", [make_job()]))
    await has_read_on.wait()
    may_load.set()
    await asyncio.wait([asyncio.create_task(is_back.wait()), look], return_when=asyncio.FIRST_COMPLETED)
    may_take.set()
    [answer] = await write
    may_go_on.set()
    assert isinstance(answer, Enqueued)
    await look
    assert [view.counts["queued"] for view in await store.queues("t")] == [6]  # type: ignore[index]


class TestCompactor:
    async def test_what_its_tape_has_not_seen_of_the_log_is_no_gap_if_the_snapshot_has_it(self) -> None:
        at = [0.0]
        objects = MemoryObjects(FakeClock().now)

        def tape() -> ObjectTape:
            return ObjectTape(objects, SHARD, clocks=lambda: (at[0],))

        rhythm = Rhythm(retention=timedelta(0))
        store, behind = LogStore.on(tape()), compactor(tape(), objects, SHARD, rhythm)
        await store.enqueue("t", [make_job()])
        assert await behind.follow() == 1
        for _ in range(3):
            await store.enqueue("t", [make_job()])
        assert (await compactor(tape(), objects, SHARD, rhythm).compact()).watermark == 4
        at[0] += 10 * 86_400
        behind._state = None  # as after a round that failed
        assert await behind.follow() == 0

    async def test_history_that_another_has_written_anew_is_not_missed(self) -> None:
        clock = FakeClock()
        backing = MemoryBacking(clock=clock.now)
        store, number = LogStore.at(backing), 0
        rhythm = Rhythm(retention=timedelta(days=365), history=timedelta(days=365))
        one, other = (compactor(backing.tape(SHARD), backing.objects, SHARD, rhythm) for _ in range(2))

        async def write() -> None:
            nonlocal number
            number += 1
            await store.enqueue("t", [NewJob(make_job().id, f"type-{number}")])

        await write()
        await one.compact()
        await other.follow()
        for _ in range(2):  # the first file becomes part of another, and is deleted when nobody can want it
            await write()
            await one.compact()
            clock.advance(hours=30)
        await write()
        await one.compact()
        await write()
        assert not (await other.compact()).wrote, "it had begun with a manifest that holds no more"
        assert (await other.compact()).wrote
        found = await other._snapshots.manifest()
        assert found is not None
        assert found[0].told == number
        assert sum(one.count for one in found[0].history) == number


@pytest.mark.parametrize("unknown", [0, 1])
async def test_of_several_logs_that_are_away_one_that_may_have_taken_effect_decides(
    unknown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ShardedLogStore(MemoryBacking(), 2)
    jobs = {shard_of("t", f"q{n}", 2): make_job(queue=f"q{n}") for n in range(10)}
    for number, one in enumerate(await store.logs()):

        async def away(tenant: str, given: Sequence[NewJob], number: int = number) -> list[Enqueued]:
            if number == unknown:
                raise OutcomeUnknown("the log", "a call", "no answer")
            raise StoreUnavailable("the log", "no answer")

        monkeypatch.setattr(one, "enqueue", away)
    with pytest.raises(OutcomeUnknown):
        await store.enqueue("t", [jobs[0], jobs[1]])


def test_reading_history_leaves_no_thread_behind_that_may_abort_the_process_when_it_ends() -> None:
    """Arrow's own threads, which Python knows nothing of: so they are counted where the system keeps them."""
    script = (
        "import os\n"
        "from datetime import UTC, datetime\n"
        "from penstock.stores.log import history\n"
        "data = history.encoded(history.table([history.Fact('t', 1, 0, 'job', datetime.now(UTC))]))\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "assert history.decoded(data).num_rows == 1\n"
        "print(len(os.listdir('/proc/self/task')) - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
