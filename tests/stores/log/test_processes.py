"""Real processes on one folder: workers, the service and the command line, with nothing else between them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from penstock import JobHandle, Penstock, Status
from penstock.core.commands import Beat, Heartbeat
from penstock.core.errors import PenstockError
from penstock.core.job import JobId
from penstock.queue import Queue
from penstock.stores.log.backings.memory import MemoryTape
from penstock.stores.log.store import LogStore
from penstock.worker.worker import Worker
from support.working import until

LONG = 60.0
TESTS = Path(__file__).parents[2]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/jobs"


@pytest.fixture
async def app(url: str) -> AsyncIterator[Penstock]:
    async with Penstock(url, name="test") as app:
        yield app


def _env(url: str) -> dict[str, str]:
    return {**os.environ, "PENSTOCK_URL": url, "PYTHONPATH": str(TESTS), "PYTHONUNBUFFERED": "1"}


@contextmanager
def running(url: str, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        [sys.executable, "-m", "penstock", *command],
        env=_env(url),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


def said(url: str, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *command], env=_env(url), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


async def _has_begun(handle: JobHandle) -> bool:
    return (await handle.job()).progress is not None


WORKER = ("worker", "support.worker_app:app")


class TestWorkers:
    async def test_several_share_the_work_and_the_dead_ones_is_done_by_another(
        self, app: Penstock, url: str
    ) -> None:
        sleeping = await app.enqueue("sleep", {"seconds": 1.5})
        with running(url, *WORKER, "--concurrency", "1", "--lease", "2") as first:
            await until(lambda: _has_begun(sleeping))
            with running(url, *WORKER, "--concurrency", "2", "--lease", "2") as second:
                handles = [await app.enqueue("pid", {}) for _ in range(20)]
                first.send_signal(signal.SIGKILL)
                pids = {await handle.result(timeout=LONG) for handle in handles}
                assert pids == {second.pid}
                assert await sleeping.result(timeout=LONG) == "slept"
                second.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(second.wait, LONG) == 0
        history = await app.queue.history(sleeping.id)
        assert [attempt.outcome for attempt in history.attempts] == ["lost", "succeeded"]

    async def test_a_blocked_event_loop_loses_no_lease(self, app: Penstock, url: str) -> None:
        handle = await app.enqueue("block", {"seconds": 4})
        with running(url, *WORKER, "--lease", "2"):
            assert await handle.result(timeout=LONG) == "blocked"
        assert (await handle.job()).attempts == 1


class TestTheRest:
    async def test_the_command_line_reads_and_writes_it(self, app: Penstock, url: str) -> None:
        job_id = said(url, "enqueue", "mail", '{"to": "ada"}').strip()
        assert (await app.queue.get(job_id)).status is Status.QUEUED
        await asyncio.to_thread(said, url, "jobs", "cancel", job_id)
        assert (await app.queue.get(job_id)).status is Status.CANCELLED
        assert job_id in await asyncio.to_thread(said, url, "jobs", "list")

    async def test_the_service_serves_it(self, app: Penstock, url: str) -> None:
        with running(url, "serve", "--port", "0", "--token", "pst_" + "x" * 40) as serving:
            assert serving.stdout is not None
            where = None
            while where is None:
                line = await asyncio.to_thread(serving.stdout.readline)
                assert line, "it ended"
                where = re.search(rb"http://[0-9.]+:\d+", line)
            request = Request(
                where[0].decode() + "/v1/jobs",
                data=json.dumps({"type": "quick", "payload": {"n": 1}}).encode(),
                headers={"Authorization": "Bearer pst_" + "x" * 40, "Content-Type": "application/json"},
            )
            answer = json.loads(await asyncio.to_thread(lambda: urlopen(request).read()))
            with running(url, *WORKER):
                await until(lambda: _has_succeeded(app, answer["id"]))


async def _has_succeeded(app: Penstock, job_id: str) -> bool:
    return (await app.queue.get(job_id)).status is Status.SUCCEEDED


async def test_a_worker_holds_all_jobs_once() -> None:
    """Leases are renewed through the store it has, as long as its event loop goes on."""
    tape, opened = MemoryTape(), list[LogStore]()
    app, beaten = Penstock("memory://"), asyncio.Event()

    @app.job(name="long")
    async def long() -> None:
        await beaten.wait()

    class Store(LogStore):
        async def heartbeat(self, tenant: str, beats: Sequence[Heartbeat]) -> list[Beat | PenstockError]:
            answers = await super().heartbeat(tenant, beats)
            beaten.set()
            return answers

    def connect() -> Queue:
        opened.append(LogStore.on(tape))
        return Queue(opened[-1])

    queue = Queue(Store.on(tape))
    enqueued = await queue.enqueue("long")
    worker = Worker(queue, app.handlers, connect=connect, lease_seconds=1)
    task = asyncio.create_task(worker.run())
    await until(lambda: _is_done(queue, enqueued.id))
    worker.stop()
    await task
    assert [store._log.is_open for store in opened] == [False]
    await queue.close()


async def _is_done(queue: Queue, job_id: JobId) -> bool:
    return (await queue.get(job_id)).status is Status.SUCCEEDED
