"""Compactors of real workers, killed while jobs flow: nothing is lost, and whoever leads next goes on with it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.core.job import Job, JobId, Outcome
from stores.log.test_processes import running
from support.compactors import Shard, compactors, is_compactor
from support.processes import gone
from support.working import until

LONG = 60.0
SENDERS = 3
WORKER = ("worker", "support.compacting_app:app", "--concurrency", "4")
Worker = subprocess.Popen[bytes]
Moment = Callable[["World", int], bool]


class World:
    """A queue in a folder, its log, and what the jobs were told to be."""

    def __init__(self, app: Penstock, url: str, folder: Path) -> None:
        self.app, self.url, self.log = app, url, Shard(folder / "s00")
        self.told: dict[JobId, int] = {}
        self.left: set[str] = set()
        """What rounds that died have left behind."""

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        """Jobs come and go while the block runs; at its end all have ended."""
        enough = asyncio.Event()

        async def send(sender: int) -> None:
            n = sender
            while not enough.is_set():
                handle = await self.app.enqueue("quick", {"n": n})
                self.told[handle.id] = n
                assert await handle.result(timeout=LONG) == n
                n += SENDERS

        async with asyncio.TaskGroup() as group:
            for sender in range(SENDERS):
                group.create_task(send(sender))
            yield
            enough.set()

    async def compactor(self, workers: list[Worker]) -> tuple[Worker, int]:
        """The one that is at work now, and whose it is."""
        found: list[tuple[Worker, int]] = []

        async def is_there() -> bool:
            found[:] = [(worker, pid) for worker in workers for pid in compactors(worker.pid)]
            return bool(found)

        await until(is_there)
        return found[0]

    async def stopped(self, pid: int, moment: Moment) -> None:
        """Stop a compactor at such a moment: look while it stands still, and let it go on if this is another."""

        async def is_now() -> bool:
            os.kill(pid, signal.SIGSTOP)
            if moment(self, pid):
                return True
            os.kill(pid, signal.SIGCONT)
            return False

        await until(is_now)

    async def goes_on(self, after: int) -> None:
        """Wait until somebody else has compacted what came later."""
        beyond = self.log.manifest.number

        async def has() -> bool:
            manifest = self.log.manifest
            return manifest.number > beyond and not manifest.made_by.endswith(f"-{after}")

        self.left = self.log.unnamed()
        await until(has)

    async def ended(self) -> list[list[str]]:
        """How the attempts of each job ended; fails if one is not as it was told, here or for whoever comes now."""
        known = await _jobs(self.app)
        async with Penstock(self.url, name="fresh") as fresh:
            assert await _jobs(fresh) == known
            histories = [await fresh.queue.history(job) for job in self.told]
        assert {job: known[job].result for job in known} == {job: str(n) for job, n in self.told.items()}
        return [[attempt.outcome for attempt in history.attempts] for history in histories]


async def _jobs(app: Penstock) -> dict[JobId, Job]:
    found: list[Job] = []
    while (page := await app.queue.find(after=found[-1].id if found else None, limit=1000)).jobs:
        found += page.jobs
    return {job.id: job for job in found}


def begun(world: World, pid: int) -> bool:
    """It is there, and may not even have read the log."""
    return is_compactor(pid)


def between(world: World, pid: int) -> bool:
    """It has written segments, or history, that nothing names yet."""
    return bool(world.log.unnamed() - world.left)


def published(world: World, pid: int) -> bool:
    """It has published a manifest; what that says may go is being deleted, or gone."""
    return world.log.manifest.made_by.endswith(f"-{pid}") and not between(world, pid)


@contextmanager
def ending(pid: int) -> Iterator[None]:
    """Whatever happens, it does not outlive the block: it has the worker's output, whose end is waited for."""
    try:
        yield
    finally:
        if is_compactor(pid):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def working(url: str, *options: str) -> Iterator[Worker]:
    with running(url, *WORKER, *options) as worker, ExitStack() as left:
        try:
            yield worker
        finally:
            for pid in compactors(worker.pid):
                left.enter_context(ending(pid))
            worker.kill()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    url = f"file://{tmp_path}/jobs"
    async with Penstock(url, name="test") as app:
        yield World(app, url, tmp_path / "jobs")


async def test_killed_at_any_moment_it_is_followed_by_another_and_nothing_is_lost(world: World) -> None:
    with working(world.url) as worker:
        async with world.flowing():
            for moment in (begun, between, published, between, published, between):
                _, pid = await world.compactor([worker])
                await world.stopped(pid, moment)
                os.kill(pid, signal.SIGKILL)
                assert await gone(pid)
                await world.goes_on(after=pid)
        _, pid = await world.compactor([worker])
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait, LONG) == 0
        assert not is_compactor(pid)
    assert all(outcomes == [Outcome.SUCCEEDED] for outcomes in await world.ended())
    assert world.log.manifest.watermark > 0


async def test_it_ends_with_a_worker_that_is_killed_and_the_next_leader_has_its_own(world: World) -> None:
    short = ("--lease", "2")  # what the dead held is soon somebody else's
    with (
        working(world.url, *short) as one,
        working(world.url, *short) as two,
        working(world.url, *short) as three,
    ):
        workers = [one, two, three]
        async with world.flowing():
            for moment in (between, published):
                leader, pid = await world.compactor(workers)
                await world.stopped(pid, moment)
                leader.kill()
                os.kill(pid, signal.SIGCONT)
                with ending(pid):
                    assert await gone(pid), "it stayed behind"
                workers.remove(leader)
                await world.goes_on(after=pid)
    ends = await world.ended()
    assert {outcomes[-1] for outcomes in ends} == {Outcome.SUCCEEDED}
    assert {outcome for outcomes in ends for outcome in outcomes[:-1]} <= {Outcome.LOST}
