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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest

from penstock import JobHandle, Penstock, Status
from penstock.core.commands import Beat, Heartbeat
from penstock.core.errors import PenstockError
from penstock.core.job import JobId, Outcome
from penstock.queue import Queue
from penstock.stores.log.backings.memory import MemoryTape
from penstock.stores.log.store import LogStore
from penstock.worker.worker import Worker
from support.gcs import running_gcs
from support.s3 import running_s3
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
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PENSTOCK_URL": url, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


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
TOKEN = "pst_" + "x" * 40
SERVE = ("serve", "--port", "0", "--token", TOKEN)


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
        with running(url, *SERVE) as serving:
            job_id = await submit(await address(serving), 1)
            with running(url, *WORKER):
                await until(lambda: _has_succeeded(app, job_id))


@pytest.fixture(params=["folder", "s3", "gcs", "azurite", "sharded folder"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if "folder" in request.param:
        yield f"file://{tmp_path}/jobs" + ("?shards=3" if request.param == "sharded folder" else "")
        return
    if request.param == "azurite":
        yield urlunsplit(urlsplit(request.getfixturevalue("azurite"))._replace(path=f"/{uuid4()}"))
        return
    with running_s3() if request.param == "s3" else running_gcs() as bucket:
        yield bucket.url()


class TestSeveralMachines:
    """Two services and two workers, with nothing between them but the place."""

    async def test_all_jobs_are_done_once_though_one_of_each_is_killed_midway(self, place: str) -> None:
        with ExitStack() as stack:
            serving = [stack.enter_context(running(place, *SERVE)) for _ in range(2)]
            working = [
                stack.enter_context(running(place, *WORKER, "--concurrency", "2", "--lease", "2"))
                for _ in range(2)
            ]
            first, second = [await address(service) for service in serving]
            async with Penstock(place, name="test") as app:
                ids = [await submit(where, n) for n in range(6) for where in (first, second)]
                await until(lambda: _some_succeeded(app, 2))
                serving[0].kill()
                working[0].kill()
                ids += [await submit(second, n) for n in range(6)]
                await until(lambda: _some_succeeded(app, len(ids)))
                histories = [await app.queue.history(job_id) for job_id in ids]
        ends = [[attempt.outcome for attempt in history.attempts] for history in histories]
        assert {outcomes[-1] for outcomes in ends} == {Outcome.SUCCEEDED}
        assert {outcome for outcomes in ends for outcome in outcomes[:-1]} <= {Outcome.LOST}


async def _some_succeeded(app: Penstock, many: int) -> bool:
    return len((await app.queue.find(statuses=[Status.SUCCEEDED])).jobs) >= many


async def address(serving: subprocess.Popen[bytes]) -> str:
    """Where a service says that it can be reached."""
    assert serving.stdout is not None
    while True:
        line = await asyncio.to_thread(serving.stdout.readline)
        assert line, "it ended"
        if (where := re.search(rb"http://[0-9.]+:\d+", line)) is not None:
            return where[0].decode()


async def submit(where: str, n: int) -> str:
    request = Request(
        f"{where}/v1/jobs",
        data=json.dumps({"type": "quick", "payload": {"n": n}}).encode(),
        headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
    )
    answer = json.loads(await asyncio.to_thread(lambda: urlopen(request).read()))
    return str(answer["id"])


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
