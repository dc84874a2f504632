"""The compactor may be killed at any step, and there may be two: nothing that is needed is ever deleted."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from penstock import connect
from penstock.cli.main import main
from penstock.core.commands import Ack, Filter, LeaseJobs
from penstock.core.errors import StoreUnavailable
from penstock.core.job import Job, LeaseToken, NewJob, Status
from penstock.queue import Queue
from penstock.scheduler.scheduler import Scheduler
from penstock.stores.log import compacting, snapshots
from penstock.stores.log.backings import open_backing
from penstock.stores.log.backings.memory import MemoryObjects, MemoryTape
from penstock.stores.log.compacting import (
    Compacted,
    Compactor,
    CompactorProcess,
    Rhythm,
    Tended,
    compact_once,
    succeeding,
)
from penstock.stores.log.errors import LogGap, OutcomeUnknown, Truncated
from penstock.stores.log.snapshots import Manifest, Snapshot, Snapshots, TenantAt
from penstock.stores.log.state import Parts
from penstock.stores.log.store import LogStore
from penstock.testing import START, FakeClock, counting_ids, make_job
from support.processes import exists

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
RHYTHM = Rhythm(retention=DAY)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "JOBS_PER_SEGMENT", 4)
    monkeypatch.setattr(snapshots, "TOLD_PER_SEGMENT", 10)


class Tiny:
    """A state small enough to be sure of: an entry is one job to enqueue, or an order to run one."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def fold(self, number: int, data: bytes) -> None:
        assert number == self.parts.number + 1, "an entry was left out, or came twice"
        parts = self.parts
        parts.number, parts.now = number, START + timedelta(seconds=number)
        if "acme" not in parts.machines:
            parts.machines["acme"] = parts.new_machine("acme")
        machine, now = parts.machines["acme"], parts.now
        if data == b"run":
            for leased in machine.lease(LeaseJobs("default", "w"), iter([LeaseToken(f"t{number}")]), now):
                machine.settle(Ack(leased.id, leased.token), now)
        else:
            machine.enqueue(msgspec.msgpack.decode(data, type=NewJob), now)


def jobs(parts: Parts) -> dict[str, tuple[Job, ...]]:
    return {name: machine.find(Filter(), None, 1000).jobs for name, machine in parts.machines.items()}


class Killed(BaseException):
    """As after kill -9: nothing of what follows happens."""


class World:
    """A tape and objects, what was ever written, and a hand that kills or lets others go first at every step."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.clock = FakeClock()
        self.objects = MemoryObjects(self.clock.now)
        self.tape = MemoryTape()
        self.written: list[bytes] = []
        self.new_id = counting_ids()

    async def write(self, number: int) -> None:
        for _ in range(number):
            run = self.dice.random() < 0.4
            self.written.append(b"run" if run else msgspec.msgpack.encode(NewJob(self.new_id(), "test.job")))
            await self.tape.append(self.written[-1])

    async def check(self) -> None:
        """Whoever opens the log now sees all that was ever written, and nothing else."""
        least = len(self.written)  # another may write while we read
        parts = Parts()
        for tries in count():
            assert tries < 100
            await Snapshots(self.objects, "s00").load(parts)
            try:
                entries = await self.tape.read(parts.number, 10_000)
                break
            except Truncated:  # it moved on since
                parts = Parts()
        state = Tiny(parts)
        for number, data in entries:
            state.fold(number, data)
        assert state.parts.number >= least
        expected = Tiny(Parts())
        for number, data in enumerate(self.written[: state.parts.number], 1):
            expected.fold(number, data)
        assert jobs(state.parts) == jobs(expected.parts)

    def compactor(self, stumble: Callable[[], Coroutine[Any, Any, None]]) -> Compactor:
        return Compactor(
            _Stumbling(self.tape, stumble), _Stumbling(self.objects, stumble), "s00", Tiny, RHYTHM
        )


class _Stumbling:
    """What something does, with a step before and after each call."""

    def __init__(self, inner: Any, stumble: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._inner = inner
        self._stumble = stumble

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            await self._stumble()
            answer = await getattr(self._inner, name)(*arguments, **options)
            await self._stumble()
            return answer

        return call


async def test_killed_at_any_step_it_leaves_everything_readable_and_the_next_one_goes_on() -> None:
    """Each round is killed one step later than the one before, until one comes through."""
    world, most = World(1), 0
    for _round in range(4):
        steps = 0
        await world.write(12)
        while True:
            steps += 1
            left = steps

            async def stumble() -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    raise Killed

            world.clock.advance(hours=1)
            try:
                await world.compactor(stumble).compact()
            except Killed:
                await world.check()
                continue
            await world.check()
            most = max(most, steps)
            break
    assert most > 20
    found = await Snapshots(world.objects, "s00").manifest()
    assert found is not None
    assert found[0].watermark > 0
    assert (
        await world.tape.last() - len(await world.tape.read(found[0].watermark, 10_000)) == found[0].watermark
    )


@pytest.mark.parametrize("seed", range(12))
async def test_two_at_once_with_kills_and_suspensions_of_days_lose_nothing(seed: int) -> None:
    world = World(seed)

    async def life() -> None:
        async def stumble() -> None:
            for _ in range(world.dice.choice([0, 0, 1, 3])):
                await asyncio.sleep(0)
            if world.dice.random() < 0.02:
                raise Killed
            if world.dice.random() < 0.05:
                world.clock.advance(hours=world.dice.choice([1, 5, 30, 70]))

        for _ in range(6):
            compactor = world.compactor(stumble)
            try:
                for _ in range(world.dice.randint(1, 4)):
                    await compactor.compact()
                    await world.write(world.dice.randint(0, 5))
            except Killed:
                pass
            await world.check()

    await world.write(10)
    async with asyncio.TaskGroup() as group:
        group.create_task(life())
        group.create_task(life())
    await world.check()


async def test_what_is_not_needed_is_deleted() -> None:
    world = World(3)
    compactor = world.compactor(lambda: asyncio.sleep(0))
    for _ in range(20):
        await world.write(6)
        await compactor.compact()
        world.clock.advance(hours=6)
    found = await Snapshots(world.objects, "s00").manifest()
    assert found is not None
    manifest = found[0]
    assert manifest.snapshot is not None
    there = {
        one.key.rsplit("/", 1)[-1]
        for kind in ("seg", "hist")
        for one in await world.objects.list(f"s00/{kind}")
    }
    assert there == manifest.names() | manifest.retired.keys()
    # A day of four rounds is kept, by the round.
    assert manifest.snapshot.number - manifest.watermark in (24, 30)
    assert len(await world.tape.read(manifest.watermark, 1000)) == len(world.written) - manifest.watermark


async def test_only_segments_with_touched_jobs_are_written_again() -> None:
    world = World(4)
    for _ in range(20):
        world.written.append(msgspec.msgpack.encode(NewJob(world.new_id(), "test.job")))
        await world.tape.append(world.written[-1])
    compactor = world.compactor(lambda: asyncio.sleep(0))
    await compactor.compact()
    before = await _jobs_at(world)
    assert [one.count for one in before] == [4, 4, 4, 4, 4]
    await world.tape.append(b"run")  # the oldest job
    await compactor.compact()
    after = await _jobs_at(world)
    assert after[0].name != before[0].name
    assert after[1:] == before[1:]


async def test_what_happened_to_others_is_not_written_again(tmp_path: Path) -> None:
    url, segments = f"file://{tmp_path}/log", tmp_path / "log/s00/seg"
    async with connect(url) as queue:
        for tenant in ("acme", "other", "third"):
            await queue.store.enqueue(tenant, [make_job()])
        await compact_once(url, "s00")
        before = len(os.listdir(segments))
        await queue.store.enqueue("acme", [make_job()])
        await compact_once(url, "s00")
        assert len(os.listdir(segments)) - before == 3, "the head, acme's jobs, and what happened to them"
    parts = Parts()
    backing = open_backing(url)
    await Snapshots(backing.objects, "s00").load(parts)
    await backing.close()
    assert [len(parts.machines[tenant].ledger.told) for tenant in ("acme", "other", "third")] == [2, 1, 1]


async def _jobs_at(world: World) -> Sequence[snapshots.JobsAt]:
    found = await Snapshots(world.objects, "s00").manifest()
    assert found is not None
    assert found[0].snapshot is not None
    return found[0].snapshot.tenants[0].jobs


class TestWatermark:
    def test_it_never_passes_what_the_lake_has_read(self) -> None:
        manifest = Manifest("log", exported=7)
        manifest = succeeding(manifest, Snapshot(10, "h1"), START, DAY)
        manifest = succeeding(manifest, Snapshot(20, "h2"), START + 2 * DAY, DAY)
        assert manifest.watermark == 7
        freed = msgspec.structs.replace(manifest, exported=15)
        assert succeeding(freed, Snapshot(30, "h3"), START + 3 * DAY, DAY).watermark == 15

    def test_it_never_passes_an_entry_that_is_younger_than_the_retention(self) -> None:
        manifest = succeeding(Manifest("log"), Snapshot(10, "h1"), START, DAY)
        assert succeeding(manifest, Snapshot(20, "h2"), START + DAY - HOUR, DAY).watermark == 0
        assert succeeding(manifest, Snapshot(20, "h2"), START + DAY, DAY).watermark == 10

    def test_a_segment_is_kept_for_a_day_after_it_was_last_named(self) -> None:
        manifest = succeeding(Manifest("log"), Snapshot(10, "h1", [TenantAt("acme")]), START, DAY)
        manifest = succeeding(manifest, Snapshot(20, "h2"), START + HOUR, DAY)
        assert manifest.retired == {"h1": START + HOUR}
        assert "h1" in succeeding(manifest, Snapshot(30, "h3"), START + DAY, DAY).retired
        assert "h1" not in succeeding(manifest, Snapshot(30, "h3"), START + 2 * DAY, DAY).retired


class TestFailing:
    """A store that is away, or answers in vain."""

    async def test_what_was_read_is_kept_and_it_asks_ever_more_seldom(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world, stopped = World(5), asyncio.Event()
        compactor = Compactor(world.tape, world.objects, "s00", Tiny, Rhythm(entries=1, poll_seconds=5))
        await world.write(6)
        await compactor.compact()
        await world.write(6)
        read, get, pauses, loaded = world.tape.read, world.objects.get, list[float](), list[str]()

        async def fail(after: int, most: int = 1000) -> list[tuple[int, bytes]]:
            raise StoreUnavailable("the bucket", "503 Slow Down")

        async def watched(key: str) -> bytes | None:
            if "/seg/" in key:
                loaded.append(key)
            return await get(key)

        async def wait(stopped: asyncio.Event, seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 6:
                monkeypatch.setattr(world.tape, "read", read)
            if len(pauses) == 7:
                stopped.set()

        monkeypatch.setattr(world.tape, "read", fail)
        monkeypatch.setattr(world.objects, "get", watched)
        monkeypatch.setattr(compacting, "_wait", wait)
        await compactor.run(stopped)
        assert pauses[:6] == [10, 20, 40, 60, 60, 60]
        assert loaded == []
        found = await Snapshots(world.objects, "s00").manifest()
        assert found is not None
        assert found[0].number == 12
        await world.check()

    async def test_after_a_publication_without_an_answer_it_begins_with_what_is_there(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = World(6)
        compactor = Compactor(world.tape, world.objects, "s00", Tiny, RHYTHM)
        await world.write(6)
        replace = world.objects.replace

        async def without_an_answer(key: str, data: bytes, version: str | None) -> str | None:
            await replace(key, data, version)
            raise OutcomeUnknown("the bucket", "a manifest", "500")

        with monkeypatch.context() as failing:
            failing.setattr(world.objects, "replace", without_an_answer)
            with pytest.raises(OutcomeUnknown):
                await compactor.compact()
        assert await compactor.compact() == Compacted(6)
        await world.write(6)
        assert await compactor.compact() == Compacted(12, wrote=True)
        await world.check()


class TestOnAFolder:
    """With real files and real processes."""

    async def test_who_opens_it_later_has_everything_back(self, tmp_path: Path) -> None:
        url = f"file://{tmp_path}/log"
        queue = connect(url)
        first = [await queue.enqueue("email.send", {"n": n}) for n in range(6)]
        [leased] = await queue.lease(worker="w1")
        assert (await compact_once(url, "s00")).wrote
        await queue.ack(leased, {"sent": True})
        await queue.close()
        again = connect(url)
        try:
            assert [job.id for job in (await again.find()).jobs] == [one.id for one in reversed(first)]
            assert (await again.get(leased.id)).status is Status.SUCCEEDED
            assert [one.id for one in await again.lease(worker="w1", limit=10)] == [
                one.id for one in first[1:]
            ]
        finally:
            await again.close()
        assert not (await compact_once(url, "s00", Rhythm(retention=DAY))).watermark

    async def test_a_log_that_begins_behind_its_snapshot_is_told(self, tmp_path: Path) -> None:
        url, manifest = f"file://{tmp_path}/log", tmp_path / "log/s00/manifest"
        async with connect(url) as queue:
            await queue.enqueue("email.send")
            await compact_once(url, "s00")
            older = manifest.read_bytes()
            await queue.enqueue("email.send")
        assert (await compact_once(url, "s00", Rhythm(retention=timedelta(0)))).watermark == 2
        manifest.write_bytes(older)
        with pytest.raises(LogGap, match="has no entry 2"):
            await compact_once(url, "s00")

    async def test_the_command_says_what_it_did(self, tmp_path: Path) -> None:
        url = f"file://{tmp_path}/log"
        queue = connect(url)
        await queue.enqueue("email.send")
        await queue.close()
        done = await asyncio.to_thread(CliRunner().invoke, main, ["compact", url, "--output", "json"])
        assert done.exit_code == 0, done.output
        assert msgspec.json.decode(done.stdout) == [
            {"log": "s00", "number": 1, "wrote": True, "watermark": 0, "deleted": 0}
        ]
        refused = await asyncio.to_thread(CliRunner().invoke, main, ["compact", "memory://"])
        assert refused.exit_code == 2
        assert "memory://" in refused.stderr

    async def test_the_command_says_of_a_place_without_a_log_that_there_is_none(self, tmp_path: Path) -> None:
        url = f"file://{tmp_path}/lgo"
        done = await asyncio.to_thread(CliRunner().invoke, main, ["compact", f"{url}?poll=1s"])
        assert (done.exit_code, done.stdout) == (3, "")
        assert (
            done.stderr == f"penstock: there is no log in {tmp_path}/lgo yet; look at its name (not_found)\n"
        )

    async def test_the_command_compacts_every_log_of_a_place(self, tmp_path: Path) -> None:
        url = f"file://{tmp_path}/logs"
        queue = connect(f"{url}?shards=3")
        for name in ("q0", "q1"):  # in two of them
            await queue.enqueue("email.send", queue=name)
        await queue.close()
        done = await asyncio.to_thread(CliRunner().invoke, main, ["compact", f"{url}?shards=3", "-o", "json"])
        assert done.exit_code == 0, done.output
        told = msgspec.json.decode(done.stdout)
        assert [one["log"] for one in told] == ["s00", "s01", "s02"]
        assert sorted(one["number"] for one in told) == [0, 1, 1]
        again = await asyncio.to_thread(CliRunner().invoke, main, ["compact", url, "-o", "table"])
        assert "s01: nothing new since entry 1;" in again.stdout
        refused = await asyncio.to_thread(CliRunner().invoke, main, ["compact", f"{url}?shards=2"])
        assert "made with shards=3" in refused.stderr

    async def test_its_process_compacts_and_ends_when_told(self, tmp_path: Path) -> None:
        url = f"file://{tmp_path}/log"
        queue = connect(url)
        await queue.enqueue("email.send")
        process = await CompactorProcess.start(url, "s00", Rhythm(entries=1, poll_seconds=0.02))
        backing = open_backing(url)
        async with asyncio.timeout(60):
            while await Snapshots(backing.objects, "s00").manifest() is None:  # noqa: ASYNC110 — in another process
                await asyncio.sleep(0.02)
            assert await process.stop() == 0
        await backing.close()
        await queue.close()

    async def test_its_process_is_not_waited_for_for_ever(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compacting, "ENDS_WITHIN_SECONDS", 0.1)
        process = await CompactorProcess.start(f"file://{tmp_path}/log", "s00")
        os.kill(process.pid, signal.SIGSTOP)
        async with asyncio.timeout(60):
            assert await process.stop() == -signal.SIGKILL

    async def test_ctrl_c_is_for_whoever_started_its_process(self, tmp_path: Path) -> None:
        process = await CompactorProcess.start(f"file://{tmp_path}/log", "s00")
        try:
            assert os.getpgid(process.pid) != os.getpgid(0)
        finally:
            await process.stop()

    async def test_who_sweeps_again_and_again_keeps_it_going(self, tmp_path: Path) -> None:
        tended = Tended(f"file://{tmp_path}/log", "s00")
        await tended.keep_going()
        none = tended.process  # a single sweep may be anybody's
        await tended.keep_going()
        first = tended.process
        await tended.keep_going()
        same = tended.process
        assert none is None
        assert first is not None
        assert same is first
        async with asyncio.timeout(60):
            await first.stop()
            await tended.keep_going()
            second = tended.process
            await tended.close()
        assert second is not None
        assert second is not first
        assert not second.is_running

    async def test_a_sweep_goes_on_without_one_that_cannot_be_started(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        url = f"file://{tmp_path}/log"
        tended = Tended(url, "s00")
        queue = Queue(LogStore.at(open_backing(url), compactor=tended))
        await queue.enqueue("email.send", expires_in=timedelta(milliseconds=1))
        swept = []
        with monkeypatch.context() as missing:
            missing.setattr(sys, "executable", str(tmp_path / "no-python"))
            for _ in range(4):
                swept.append(await queue.sweep(limit=10))
                await asyncio.sleep(0.01)
        assert sum(one.expired for one in swept) == 1
        [told] = [one for one in caplog.messages if "could not be started" in one]
        assert "no-python" in told
        await queue.sweep(limit=10)
        assert tended.process is not None
        await queue.close()

    async def test_who_leads_has_snapshots_made_and_leaves_nothing_running(self, tmp_path: Path) -> None:
        url = f"file://{tmp_path}/log"
        tended = Tended(url, "s00", Rhythm(entries=1, poll_seconds=0.02))
        backing = open_backing(url)
        queue = Queue(LogStore.at(open_backing(url), compactor=tended))
        await queue.enqueue("email.send")
        scheduler = Scheduler(queue, sweep_seconds=0.02)
        leading = asyncio.create_task(scheduler.run())
        async with asyncio.timeout(60):
            while await Snapshots(backing.objects, "s00").manifest() is None:  # noqa: ASYNC110 — in another process
                await asyncio.sleep(0.02)
            process = tended.process
            scheduler.stop()
            await leading
            await queue.close()
        await backing.close()
        assert process is not None
        assert not exists(process.pid)

    async def test_its_process_ends_with_a_parent_that_is_killed(self, tmp_path: Path) -> None:
        parent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PARENT, f"file://{tmp_path}/log", stdout=asyncio.subprocess.PIPE
        )
        assert parent.stdout is not None
        async with asyncio.timeout(60):
            assert int(await parent.stdout.readline()) > 0
            parent.kill()
            await parent.wait()
            assert await parent.stdout.read() == b""  # the child has it too, and closes it by ending


PARENT = """
import asyncio, sys
from penstock.stores.log.compacting import CompactorProcess

async def main():
    process = await CompactorProcess.start(sys.argv[1], "s00")
    print(process.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_entries_are_kept_for_as_long_as_every_program_relies_on(tmp_path: Path) -> None:
    """One that was at rest for an hour believes the end it saw: what it then writes must not be taken for deleted."""
    result = CliRunner().invoke(main, ["compact", f"file://{tmp_path}/jobs", "--retention-hours", "23"])
    assert result.exit_code == 2
    assert "23.0 is not in the range x>=24" in result.output
