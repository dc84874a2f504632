"""Real workers, real signals: what becomes of jobs when processes end, stop and go on again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from penstock import JobHandle, Penstock, Status
from penstock.core.job import Outcome
from support.postgres import emptied, server_url
from support.working import until

LONG = 30.0
TESTS = Path(__file__).parents[1]


@pytest.fixture
async def app() -> AsyncIterator[Penstock]:
    await emptied()
    async with Penstock(server_url(), name="test") as app:
        yield app


class Process:
    """A worker process and what it said."""

    def __init__(self, *options: str) -> None:
        env = {**os.environ, "PENSTOCK_URL": server_url(), "PYTHONPATH": str(TESTS), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "penstock", "worker", "support.worker_app:app", *options]
        self._child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.pid = self._child.pid

    def send(self, number: int) -> None:
        self._child.send_signal(number)

    async def ended(self) -> tuple[int, str]:
        """Its exit code and its output."""
        said, _ = await asyncio.to_thread(self._child.communicate, timeout=LONG)
        return self._child.returncode, said.decode()

    def end(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._child.communicate()


@contextmanager
def worker(*options: str) -> Iterator[Process]:
    process = Process(*options)
    try:
        yield process
    finally:
        process.end()


async def begun(*handles: JobHandle) -> None:
    """Wait until their handlers have begun, and said so."""
    for handle in handles:
        await until(lambda handle=handle: _has_begun(handle))  # type: ignore[misc]


async def _has_begun(handle: JobHandle) -> bool:
    return (await handle.job()).progress is not None


async def _outcomes(app: Penstock, handle: JobHandle) -> list[Outcome]:
    return [attempt.outcome for attempt in (await app.queue.history(handle.id)).attempts]


class TestSigterm:
    async def test_handlers_finish_within_their_grace_period(self, app: Penstock) -> None:
        handle = await app.enqueue("sleep", {"seconds": 0.7})
        with worker("--concurrency", "1") as process:
            await begun(handle)
            waiting = await app.enqueue("quick", {"n": 1})
            process.send(signal.SIGTERM)
            code, said = await process.ended()
        assert code == 0, said
        assert await handle.result(timeout=LONG) == "slept"
        assert (await waiting.job()).status is Status.QUEUED

    async def test_then_they_are_cancelled_and_their_jobs_given_back(self, app: Penstock) -> None:
        handle = await app.enqueue("sleep", {"seconds": 600})
        with worker("--grace", "0.1") as process:
            await begun(handle)
            process.send(signal.SIGTERM)
            code, said = await process.ended()
        assert code == 3, said
        job = await handle.job()
        assert (job.status, job.attempts) == (Status.QUEUED, 0)
        assert await _outcomes(app, handle) == [Outcome.RELEASED]

    async def test_a_second_one_hurries(self, app: Penstock) -> None:
        handle = await app.enqueue("sleep", {"seconds": 600})
        with worker() as process:
            await begun(handle)
            process.send(signal.SIGTERM)
            process.send(signal.SIGINT)
            code, said = await process.ended()
        assert code == 4, said
        assert (await handle.job()).status is Status.QUEUED

    async def test_a_thread_that_is_stuck_does_not_keep_the_process(self, app: Penstock) -> None:
        handle = await app.enqueue("stuck", {"seconds": 600})
        with worker("--grace", "0.1") as process:
            await begun(handle)
            process.send(signal.SIGTERM)
            code, said = await process.ended()
        assert code == 3, said
        assert (await handle.job()).status is Status.QUEUED


class TestSigkill:
    async def test_nothing_is_lost(self, app: Penstock) -> None:
        handle = await app.enqueue("sleep", {"seconds": 1.5})
        with worker("--lease", "1") as first:
            await begun(handle)
            first.send(signal.SIGKILL)
            await first.ended()
            with worker("--lease", "1"):
                assert await handle.result(timeout=LONG) == "slept"
        assert await _outcomes(app, handle) == [Outcome.LOST, Outcome.SUCCEEDED]

    async def test_a_job_that_kills_its_worker_cannot_do_so_for_ever(self, app: Penstock) -> None:
        handle = await app.enqueue("die", max_attempts=2)
        with worker("--lease", "1", "--processes", "2"):
            job = await handle.wait(timeout=LONG)
        assert job.status is Status.DEAD
        assert await _outcomes(app, handle) == [Outcome.LOST] * 2


class TestAliveOrNot:
    async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(self, app: Penstock) -> None:
        handle = await app.enqueue("block", {"seconds": 3.5})
        with worker("--lease", "1") as process:
            assert await handle.result(timeout=LONG) == "blocked"
            process.send(signal.SIGTERM)
            code, said = await process.ended()
        assert code == 0, said
        assert await _outcomes(app, handle) == [Outcome.SUCCEEDED]
        assert "the event loop is blocked" in said
        assert "time.sleep(seconds)" in said, "the stack shows the line"

    async def test_a_worker_that_was_stopped_for_long_can_change_nothing(self, app: Penstock) -> None:
        """SIGSTOP for three leases: another worker has the job, and whatever the first one does then is refused."""
        handle = await app.enqueue("sleep", {"seconds": 600})
        with worker("--lease", "1") as first:
            await begun(handle)
            first.send(signal.SIGSTOP)
            with worker("--lease", "1"):
                await until(lambda: _is_leased_again(handle))
                await asyncio.sleep(2)  # so that three leases have passed in all
                first.send(signal.SIGCONT)
                first.send(signal.SIGTERM)
                code, said = await first.ended()
                assert code == 0, said  # its handler was cancelled, and nothing was left to wait for
                job = await handle.job()
        assert "is lost; its handler is cancelled" in said
        assert (job.status, job.leases) == (Status.RUNNING, 2)
        assert await _outcomes(app, handle) == [Outcome.LOST]


async def _is_leased_again(handle: JobHandle) -> bool:
    job = await handle.job()
    return job.leases == 2 and job.status is Status.RUNNING


class TestSeveralProcesses:
    async def test_a_limit_holds_across_them(self, app: Penstock) -> None:
        with worker("--processes", "3", "--concurrency", "10") as process:
            handles = [await app.enqueue("limited", {"seconds": 0.05}, queue="limited") for _ in range(24)]
            for handle in handles:
                await handle.result(timeout=LONG)
            process.send(signal.SIGTERM)
            code, said = await process.ended()
        assert code == 0, said
        spans = []
        workers = set()
        for handle in handles:
            [attempt] = (await app.queue.history(handle.id)).attempts
            spans.append((attempt.started_at, attempt.ended_at))
            workers.add(attempt.worker)
        assert _most_at_once(spans) <= 2
        assert len(workers) > 1, "more than one process had a part in it"

    async def test_a_limit_per_key_and_fair_turns_hold_across_them(self, app: Penstock) -> None:
        """One customer's forty jobs come in first; the others' few do not wait behind them."""
        with worker("--processes", "3", "--concurrency", "10") as process:
            await (await app.enqueue("per.customer", {"seconds": 0}, queue="customers")).result(timeout=LONG)
            keys = ["big"] * 40 + ["small", "tiny"] * 3
            new = [app.new("per.customer", {"seconds": 0.03}, queue="customers", key=key) for key in keys]
            handles = [handle for handle in await app.enqueue_many(new) if isinstance(handle, JobHandle)]
            assert len(handles) == 46
            for handle in handles:
                await handle.result(timeout=LONG)
            process.send(signal.SIGTERM)
            code, said = await process.ended()
        assert code == 0, said
        spans: dict[str, list[tuple[datetime, datetime]]] = {}
        for key, handle in zip(keys, handles, strict=True):
            [attempt] = (await app.queue.history(handle.id)).attempts
            spans.setdefault(key, []).append((attempt.started_at, attempt.ended_at))
        assert {key: _most_at_once(times) for key, times in spans.items()} == {
            "big": 1,
            "small": 1,
            "tiny": 1,
        }
        last = {key: max(end for _, end in times) for key, times in spans.items()}
        assert max(last["small"], last["tiny"]) < sorted(end for _, end in spans["big"])[20]

    async def test_one_that_crashed_is_replaced(self, app: Penstock) -> None:
        with worker("--processes", "2") as process:
            victim = await (await app.enqueue("pid")).result(timeout=LONG)
            os.kill(victim, signal.SIGKILL)
            pids: set[int] = set()
            while len(pids - {victim}) < 2:
                pids.add(await (await app.enqueue("pid")).result(timeout=LONG))
            process.send(signal.SIGTERM)
            code, said = await process.ended()
        assert code == 0, said
        assert f"worker process {victim} ended with -9" in said

    async def test_they_end_with_their_parent(self, app: Penstock) -> None:
        with worker("--processes", "2") as process:
            child = await (await app.enqueue("pid")).result(timeout=LONG)
            process.send(signal.SIGKILL)
            await until(lambda: asyncio.to_thread(_is_gone, child))


def _is_gone(pid: int) -> bool:
    """Whether a process has ended, if perhaps nobody has asked how."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip().startswith("Z") or not shown.stdout.strip()


def _most_at_once(spans: list[tuple[datetime, datetime]]) -> int:
    moments = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    running = most = 0
    for _, change in moments:
        running += change
        most = max(most, running)
    return most
