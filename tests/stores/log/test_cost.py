"""What a log asks of its storage is counted, told, and priced."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.doctor import doctor
from penstock.connecting import connect
from penstock.queue import Queue
from penstock.server.metrics import ServiceMetrics
from penstock.stores.log.backings.memory import MemoryBacking
from penstock.stores.log.backings.probe import REMEMBERED
from penstock.stores.log.cost import S3_STANDARD, Usage, at_rest, looks_an_hour, resting, usage
from penstock.stores.log.entry import LogEntry, Op
from penstock.stores.log.shards import ShardedLogStore
from penstock.testing import START
from penstock.worker.worker import Worker
from support.s3 import S3, running_s3


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with running_s3() as server:
        server.objects[f"jobs/{REMEMBERED}"] = (b"{}", datetime.now(UTC))
        yield server


def entry_of(writer: str, minute: float, verb: str) -> LogEntry:
    return LogEntry(writer.encode(), 1, START + timedelta(minutes=minute), [Op(verb, "default", [None])])


async def work(queue: Queue, jobs: int) -> None:
    for _ in range(jobs):
        await queue.enqueue("a")
        [leased] = await queue.lease(worker="w")
        await queue.ack(leased)


class TestCounting:
    async def test_every_request_that_a_bucket_gets_is_counted(self, s3: S3) -> None:
        async with connect(s3.url()) as queue:
            s3.requests.clear()
            await work(queue, 5)
            await queue.find()
            counted = dict(queue.store.requests)  # type: ignore[attr-defined]
        got = s3.requests
        assert counted == {
            "put": got["PUT"],
            "get": got["GET"] + got["HEAD"],
            "list": got["LIST"],
            "delete": got["DELETE"] + got["POST"],
        }
        assert got["PUT"] >= 15

    async def test_worker_and_service_tell_of_it(self, tmp_path: Path) -> None:
        async with connect(f"file://{tmp_path}/jobs") as queue:
            await queue.enqueue("a")
            worker = Worker(queue, {})
            assert 'penstock_store_requests_total{kind="put"} 1' in worker.metrics.text()
            assert b'penstock_store_requests_total{kind="put"} 1' in await ServiceMetrics().render(
                queue.store
            )


class TestUsage:
    async def test_is_what_the_newest_entries_were_about(self) -> None:
        store = ShardedLogStore(MemoryBacking())
        await work(Queue(store), 4)
        await Queue(store).enqueue_many([{"type": "a"} for _ in range(6)])
        await store.lead("office", "me", 60)
        used = await store.usage()
        assert (used.entries, used.at_rest, used.jobs, used.writers) == (14, 1, 10, 1)
        assert used.puts_per_job == 1.3

    def test_costs_what_its_requests_cost(self) -> None:
        used = Usage(entries=310, at_rest=10, jobs=100, writers=3, hours=2.0)
        assert (used.puts_per_job, used.gets_per_job) == (3.0, 6.0)
        assert used.per_million_jobs(S3_STANDARD) == pytest.approx(3 * 5 + 6 * 0.4)
        assert used.idle_hour == resting(5, 3, 5)
        assert used.idle_month(S3_STANDARD) == pytest.approx(730 * used.idle_hour.cost(S3_STANDARD))
        assert looks_an_hour(5) == 0.75 * 3600 / 6.25 + 270

    def test_at_rest_is_what_the_page_says(self) -> None:
        """Three workers that wait write so many entries an hour; the doctor, who sees these, says the same."""
        used = Usage(entries=1355, at_rest=1355, writers=3, hours=10.0)
        assert used.idle_month(S3_STANDARD) == pytest.approx(at_rest(3).cost(S3_STANDARD))

    def test_of_nothing_is_nothing(self) -> None:
        assert Usage().per_million_jobs(S3_STANDARD) == Usage().idle_month(S3_STANDARD) == 0.0
        assert usage([]) == Usage()

    def test_counts_those_who_stay_and_not_those_who_come_and_go(self) -> None:
        """Two workers show themselves all day long, a third follows the second; every minute somebody types a command."""
        minutes = range(0, 601, 2)
        staying = [entry_of("w1", minute, "put_entries") for minute in minutes]
        staying += [entry_of("w2" if minute < 300 else "w3", minute, "put_entries") for minute in minutes]
        assert usage(staying).writers == 2
        typed = [entry_of(f"cli {minute}", minute + 0.5, "enqueue") for minute in range(600)]
        assert usage(staying + typed).writers == 2
        alone = usage(typed)
        assert (alone.writers, alone.jobs, alone.gets_per_job) == (0, 600, 0.0)
        assert alone.per_million_jobs(S3_STANDARD) == pytest.approx(5.0)
        assert not alone.tells_of_rest

    def test_tells_of_rest_only_when_there_was_an_hour_of_it(self) -> None:
        for minutes, told in ((0.01, False), (59, False), (61, True)):
            found = usage([entry_of("w", 0, "lead"), entry_of("w", minutes, "lead")])
            assert found.tells_of_rest is told
            assert (found.idle_hour.puts > 0) is told


class TestDoctor:
    async def _worked(self, url: str) -> None:
        async with connect(url) as queue:
            await work(queue, 3)

    @pytest.mark.parametrize("where", ["folder", "bucket"])
    async def test_prints_requests_per_job_and_at_rest(self, where: str, s3: S3, tmp_path: Path) -> None:
        url = f"file://{tmp_path}/jobs" if where == "folder" else s3.url("looked-into")
        await self._worked(url)
        result = await asyncio.to_thread(CliRunner().invoke, doctor, ["--url", url, "-o", "json"])
        assert result.exit_code == 0, result.output
        assert "1 at work at once) made 3 jobs" in result.output
        assert "3.00 writes and 0.00 reads per job, which is $15.00 per million jobs" in result.output
        hour = at_rest(1, hours=1)
        assert (
            "at rest it cannot be measured yet (less than an hour of entries); reckoned for one worker,"
            f" {hour.puts:,.0f} writes and {hour.gets:,.0f} reads an hour" in result.output
        )
        assert f"${at_rest(1).cost(S3_STANDARD):.2f} a month in a bucket (list prices of S3" in result.output
        assert "each process looks every 5 to 7.5 s when nothing happens" in result.output

    async def test_says_what_an_idle_hour_was_when_there_was_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url = f"file://{tmp_path}/jobs"
        await self._worked(url)
        seen = Usage(entries=1355, at_rest=1355, writers=3, hours=10.0)

        async def measured(*_: object) -> Usage:
            return seen

        monkeypatch.setattr(ShardedLogStore, "usage", measured)
        result = await asyncio.to_thread(CliRunner().invoke, doctor, ["--url", url, "-o", "json"])
        assert f"at rest, as measured, {seen.idle_hour.puts:,.0f} writes" in result.output
        assert f"${at_rest(3).cost(S3_STANDARD):.2f} a month" in result.output
