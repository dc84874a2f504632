"""The pipeline as a job: a real worker with a real Spark in a process of its own, and how each of its runs ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from penstock import GiveUp, JobContext, JobHandle, Penstock, Snooze, Status
from penstock.cli import lake as command
from penstock.cli.main import main
from penstock.core.errors import InvalidInput, UnknownStore
from penstock.core.job import Outcome
from penstock.insights import ask
from penstock.lake import job
from penstock.lake.leading import Leading, OfficeLost
from penstock.lake.manifest import Lake
from penstock.lake.reconcile import NotReconciled
from support.postgres import emptied, server_url
from support.processes import leased
from support.spark import SMALL, WITHOUT, need_spark

TESTS = Path(__file__).parents[1]
LONG = 300.0
"""Spark is started and makes every table, on however busy a machine."""


@pytest.fixture
async def app() -> AsyncIterator[Penstock]:
    await emptied()
    async with Penstock(server_url(), name="test") as app:
        yield app


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake of which jobs in this process are told."""
    monkeypatch.setenv("PENSTOCK_LAKE_JOB", "")
    job.run_itself(Penstock(server_url(), name="test"), tmp_path / "lake")
    return Lake(tmp_path / "lake")


@contextmanager
def worker(folder: Path, *options: str) -> Iterator[None]:
    """A worker of a lake, in a process of its own."""
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in SMALL.items()))
    env = {
        **os.environ, "PENSTOCK_URL": server_url(), "PYTHONPATH": str(TESTS), "SPARK_CONF_DIR": str(folder),
        "PENSTOCK_SPARK_MASTER": "local[1]",
    }  # fmt: skip
    program = [sys.executable, "-m", "penstock", "worker", "support.worker_app:app", *options]
    child = subprocess.Popen([*program, "--lake", str(folder / "lake"), "--lake-every", "hourly"], env=env)
    try:
        yield
    finally:
        child.terminate()
        child.wait(LONG)


def at_work(folder: Path) -> list[str]:
    """The programs that were started with this folder as Spark's, but for the worker itself."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            environment, line = ((process / name).read_bytes() for name in ("environ", "cmdline"))
        except OSError:
            continue
        if f"SPARK_CONF_DIR={folder}".encode() in environment.split(b"\0") and b"worker_app" not in line:
            found.append(line.replace(b"\0", b" ").decode(errors="replace"))
    return found


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LONG):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def all_gone(folder: Path) -> bool:
    return not at_work(folder)


async def jvm_runs(folder: Path) -> bool:
    return any("SparkSubmit" in line for line in at_work(folder))


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_a_worker_brings_the_lake_up_to_date_and_a_cancel_leaves_nothing_behind(
    app: Penstock, tmp_path: Path
) -> None:
    need_spark()
    with worker(tmp_path, "--queues", "default"):
        done = await app.enqueue("quick", {"n": 1})
        assert await done.result(timeout=LONG) == 1
        [schedule] = await app.queue.schedules()
        assert (schedule.name, schedule.cron, schedule.declared_by) == (
            job.NAME, job.EVERY["hourly"], "penstock-lake",
        )  # fmt: skip
        first = await app.enqueue(job.TYPE, queue=job.NAME)
        result = await first.result(timeout=LONG)
        assert result["events"] >= 3  # two jobs, and an attempt that has ended
        assert result["published"] > 0
        answer = await ask(app.queue.store, "default", "usage")
        assert ("quick", 1) in [(row["type"], row["attempts"]) for row in answer.rows]
        await until(lambda: all_gone(tmp_path))

        second = await app.enqueue(job.TYPE, {"rebuild": True}, queue=job.NAME)
        await until(lambda: jvm_runs(tmp_path))
        await until(lambda: tells_progress(second))
        await app.queue.cancel(second.id)
        await until(lambda: is_cancelled(second))
        await until(lambda: all_gone(tmp_path))

        # Whoever is killed resigns from no office: it is waited for.
        third = await app.enqueue(job.TYPE, queue=job.NAME)
        await until(lambda: was_put_off(app, third))
        assert (await third.job()).status is Status.QUEUED


async def is_cancelled(handle: JobHandle) -> bool:
    return (await handle.job()).status is Status.CANCELLED


async def tells_progress(handle: JobHandle) -> bool:
    return "step" in str((await handle.job()).progress)


async def was_put_off(app: Penstock, handle: JobHandle) -> bool:
    attempts = (await app.queue.history(handle.id)).attempts
    return [attempt.outcome for attempt in attempts] == [Outcome.SNOOZED]


class TestHowItEnds:
    """In this process: with our own Spark, and few tables."""

    @pytest.fixture
    def steps(self, spark: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        from penstock.lake import pipeline

        @contextmanager
        def ours() -> Iterator[Any]:
            yield spark

        monkeypatch.setattr(job, "_spark", ours)
        monkeypatch.setattr(pipeline, "recipes", tuple)
        asyncio.run(emptied())
        return []

    @pytest.mark.spark
    def test_a_run_that_does_not_reconcile_fails_with_that_sentence(
        self, told: Lake, steps: list[Any]
    ) -> None:
        put_yesterday()
        result = job.run(JobContext(leased({}), steps.append))
        assert (result["events"], result["checked"]) == (1, 1)
        assert [step["step"] for step in steps][:2] == ["Spark is started", "begun about to be committed"]
        told.commit(replace(told.manifest(), tables={}))
        with pytest.raises(NotReconciled, match=r"1 day of the lake .* the lake lacks 1.* nothing may leave"):
            job.run(JobContext(leased({})), check_all=True)

    @pytest.mark.spark
    @pytest.mark.usefixtures("steps")
    def test_a_lake_that_no_run_could_go_on_with_is_given_up(self, told: Lake) -> None:
        job.run(JobContext(leased({})))
        told.commit(replace(told.manifest(), source={"feed": "f", "system": "7"}))
        with pytest.raises(GiveUp, match="name the store that the lake was made from"):
            job.run(JobContext(leased({})))

    @pytest.mark.usefixtures("told")
    def test_one_at_a_time_and_the_other_is_put_off_ever_longer(self) -> None:
        with Leading(server_url()):
            for fence, seconds in ((1, 60), (3, 240), (90, 3600)):
                held = leased({})
                held = replace(held, job=replace(held.job, leases=fence))
                with pytest.raises(Snooze) as put_off:
                    job.run(JobContext(held))
                assert put_off.value.seconds == seconds

    @pytest.mark.usefixtures("told")
    def test_one_that_lost_its_office_is_put_off_as_well(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As when the store was away for a while: no fault of the run's, and it costs none of its attempts."""
        pytest.importorskip("pyspark", reason=WITHOUT)

        def lost(*_: object, **__: object) -> None:
            raise OfficeLost

        monkeypatch.setattr(job, "_spark", nullcontext)
        monkeypatch.setattr("penstock.lake.pipeline.run_once", lost)
        with pytest.raises(Snooze):
            job.run(JobContext(leased({})))

    def test_a_worker_without_a_lake_gives_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("PENSTOCK_LAKE_JOB", raising=False)
        with pytest.raises(GiveUp, match="start it with --lake"):
            job.run(JobContext(leased({})))


def put_yesterday() -> None:
    from penstock import Queue
    from penstock.stores.postgres.store import PostgresStore
    from penstock.stores.wakeups.polling import NoWakeups
    from penstock.testing import FakeClock

    async def put() -> None:
        async with Queue(PostgresStore(server_url(), FakeClock(), wakeups=NoWakeups())) as queue:
            await queue.enqueue("mail")

    asyncio.run(put())


@pytest.mark.usefixtures("told")
async def test_workers_without_the_lake_leave_its_schedule_alone(app: Penstock, tmp_path: Path) -> None:
    with_lake, without = Penstock(server_url(), name="test"), Penstock(server_url(), name="test")
    job.run_itself(with_lake, tmp_path / "lake")
    for one in (with_lake, without):
        async with one, one.worker():
            pass
    [schedule] = await app.queue.schedules()
    assert (schedule.cron, schedule.job.queue, schedule.job.unique_key) == (
        job.EVERY["nightly"], job.NAME, job.TYPE,
    )  # fmt: skip
    assert (await app.queue.queue(job.NAME)).settings.max_concurrency == 1
    [handler] = with_lake.handlers.values()
    assert handler.timeout_seconds == timedelta(hours=12).total_seconds()


def test_what_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="nightly, hourly"):
        job.run_itself(Penstock(), tmp_path, every="now and then")
    with pytest.raises(UnknownStore, match="az:// as a source of the lake"):
        job.run_itself(Penstock("https://there"), tmp_path)
    monkeypatch.setattr(command, "NEEDS", ("spark_that_is_not_there",))
    monkeypatch.syspath_prepend(TESTS)
    refused = CliRunner().invoke(main, ["worker", "support.worker_app:app", "--lake", str(tmp_path)])
    assert refused.exit_code == 2
    assert 'spark_that_is_not_there is not installed: pip install "penstock[lake]"' in refused.output
