"""What a log asks of its storage is counted, told, and priced."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.doctor import doctor
from penstock.connecting import connect
from penstock.queue import Queue
from penstock.server.metrics import ServiceMetrics
from penstock.stores.log.backings.memory import MemoryBacking
from penstock.stores.log.backings.probe import REMEMBERED
from penstock.stores.log.cost import S3_STANDARD, Usage, at_rest, looks_an_hour, resting
from penstock.stores.log.shards import ShardedLogStore
from penstock.worker.worker import Worker
from support.s3 import S3, running_s3


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with running_s3() as server:
        server.objects[f"jobs/{REMEMBERED}"] = (b"{}", datetime.now(UTC))
        yield server


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
        assert "3.00 writes and 0.00 reads per job, which is $15.00 per million jobs" in result.output
        assert "a month in a bucket (list prices of S3 Standard" in result.output
        assert "each process looks every 5 to 7.5 s when nothing happens" in result.output
