"""Rule 3: highest priority first, then the oldest run_at, then the lowest id; nothing before its run_at."""

from __future__ import annotations

from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest

from penstock.core.job import JobId, Status
from penstock.queue import Queue, new_id
from penstock.testing import START, FakeClock

HOUR_AGO = START - timedelta(hours=1)


class TestOrder:
    async def test_the_job_that_came_first_goes_first(self, queue: Queue, clock: FakeClock) -> None:
        first = await queue.enqueue("email.send")
        clock.advance(seconds=1)
        second = await queue.enqueue("email.send")
        assert [job.id for job in await queue.lease(worker="w1", limit=2)] == [first.id, second.id]

    async def test_a_higher_priority_goes_before_an_older_job(self, queue: Queue, clock: FakeClock) -> None:
        normal = await queue.enqueue("email.send")
        clock.advance(hours=1)
        urgent = await queue.enqueue("email.send", priority=1)
        assert [job.id for job in await queue.lease(worker="w1", limit=2)] == [urgent.id, normal.id]

    async def test_a_negative_priority_goes_after_the_default(self, queue: Queue) -> None:
        idle = await queue.enqueue("email.send", priority=-1)
        normal = await queue.enqueue("email.send")
        assert [job.id for job in await queue.lease(worker="w1", limit=2)] == [normal.id, idle.id]

    async def test_the_extremes_of_priority_are_in_order(self, queue: Queue) -> None:
        lowest = await queue.enqueue("email.send", priority=-32_768)
        highest = await queue.enqueue("email.send", priority=32_767)
        assert [job.id for job in await queue.lease(worker="w1", limit=2)] == [highest.id, lowest.id]

    async def test_within_one_priority_the_oldest_run_at_goes_first(self, queue: Queue) -> None:
        younger = await queue.enqueue("email.send")
        older = await queue.enqueue("email.send", run_at=HOUR_AGO)
        assert [job.id for job in await queue.lease(worker="w1", limit=2)] == [older.id, younger.id]

    async def test_run_at_is_compared_to_the_microsecond(self, queue: Queue) -> None:
        later = await queue.enqueue("email.send", run_at=HOUR_AGO + timedelta(microseconds=1))
        sooner = await queue.enqueue("email.send", run_at=HOUR_AGO)
        assert [job.id for job in await queue.lease(worker="w1", limit=2)] == [sooner.id, later.id]

    async def test_within_one_run_at_the_lowest_id_goes_first(self, queue: Queue) -> None:
        low, high = queue.new("email.send", run_at=HOUR_AGO), queue.new("email.send", run_at=HOUR_AGO)
        await queue.enqueue_many([high, low])
        assert [job.id for job in await queue.lease(worker="w1", limit=2)] == [low.id, high.id]

    async def test_priority_run_at_and_id_decide_in_that_order(self, queue: Queue) -> None:
        jobs = [
            queue.new("email.send", priority=priority, run_at=HOUR_AGO + timedelta(minutes=minutes))
            for priority in (0, 5, -5)
            for minutes in (2, 1, 1)
        ]
        await queue.enqueue_many(reversed(jobs))
        expected = sorted(jobs, key=lambda job: (-job.priority, job.run_at, job.id))
        leased = await queue.lease(worker="w1", limit=9)
        assert [job.id for job in leased] == [job.id for job in expected]

    async def test_the_order_is_the_same_one_by_one_as_in_a_batch(self, queue: Queue) -> None:
        jobs = [queue.new("email.send", priority=number % 4) for number in range(12)]
        await queue.enqueue_many(jobs)
        one_by_one = [(await queue.lease(worker="w1"))[0].id for _ in jobs]
        assert one_by_one == [job.id for job in sorted(jobs, key=lambda job: (-job.priority, job.id))]

    async def test_a_job_is_not_leased_before_its_run_at(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send", run_at=START + timedelta(minutes=1))
        clock.set(START + timedelta(minutes=1, microseconds=-1))
        assert await queue.lease(worker="w1") == []

    async def test_a_job_is_leased_at_its_run_at_exactly(self, queue: Queue, clock: FakeClock) -> None:
        job = await queue.enqueue("email.send", run_at=START + timedelta(minutes=1))
        clock.advance(minutes=1)
        assert [leased.id for leased in await queue.lease(worker="w1")] == [job.id]

    async def test_an_urgent_job_of_the_future_does_not_keep_others_waiting(self, queue: Queue) -> None:
        await queue.enqueue("email.send", priority=100, delay=60)
        due = await queue.enqueue("email.send")
        assert [leased.id for leased in await queue.lease(worker="w1", limit=2)] == [due.id]

    async def test_a_job_that_became_due_takes_the_place_of_its_run_at(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        delayed = await queue.enqueue("email.send", delay=60)
        clock.advance(seconds=61)
        late = await queue.enqueue("email.send")
        assert [leased.id for leased in await queue.lease(worker="w1", limit=2)] == [delayed.id, late.id]

    async def test_a_time_zone_does_not_change_the_moment(self, queue: Queue, clock: FakeClock) -> None:
        job = await queue.enqueue("email.send", run_at=START.astimezone(ZoneInfo("Asia/Tokyo")))
        assert (await queue.get(job.id)).run_at == clock.now()
        assert len(await queue.lease(worker="w1")) == 1

    async def test_a_queue_gives_out_its_own_jobs_only(self, queue: Queue) -> None:
        await queue.enqueue("email.send", queue="emails", priority=9)
        report = await queue.enqueue("report.build", queue="reports")
        assert [leased.id for leased in await queue.lease("reports", worker="w1", limit=10)] == [report.id]

    async def test_no_more_than_the_limit_is_leased(self, queue: Queue) -> None:
        await queue.enqueue_many([queue.new("email.send") for _ in range(5)])
        assert len(await queue.lease(worker="w1", limit=3)) == 3

    async def test_fewer_are_leased_when_fewer_are_there(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        assert len(await queue.lease(worker="w1", limit=1_000)) == 1

    async def test_a_queue_nobody_used_has_nothing_to_lease(self, queue: Queue) -> None:
        assert await queue.lease("unheard-of", worker="w1") == []

    async def test_a_leased_job_is_running_in_its_workers_name(self, queue: Queue) -> None:
        job = await queue.enqueue("email.send")
        await queue.lease(worker="w1")
        running = await queue.get(job.id)
        assert running.status is Status.RUNNING
        assert running.lease is not None
        assert running.lease.worker == "w1"

    async def test_a_retried_job_goes_behind_those_that_became_due_before_it(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        retried = await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        waiting = await queue.enqueue("email.send")
        await queue.nack(leased, "boom", retry_in=10)
        clock.advance(seconds=10)
        assert [job.id for job in await queue.lease(worker="w1", limit=2)] == [waiting.id, retried.id]

    async def test_a_cancelled_job_is_not_leased(self, queue: Queue) -> None:
        first, second = await queue.enqueue("email.send"), await queue.enqueue("email.send")
        await queue.cancel(first.id)
        assert [job.id for job in await queue.lease(worker="w1", limit=2)] == [second.id]


class TestAnIdUsedAnew:
    """A job has left, and its id is another's, who asked for the same moment: nothing of the first may speak for it."""

    @pytest.fixture
    async def reused(self, queue: Queue, clock: FakeClock) -> JobId:
        await queue.configure("a", retention_seconds=0, max_concurrency_per_key=2)
        reused, due = new_id(), clock.now()
        await queue.enqueue("t", id=reused, queue="a", run_at=due, key="k", ordering_key="o", priority=5)
        await queue.enqueue("t", queue="a", run_at=due, key="k", ordering_key="o")
        await queue.cancel(reused)
        clock.advance(seconds=1)
        await queue.sweep(limit=10)
        return reused

    @pytest.mark.parametrize("ordering_key", [None, "o", "another"])
    async def test_in_another_queue_it_is_leased_there(
        self, queue: Queue, clock: FakeClock, reused: JobId, ordering_key: str | None
    ) -> None:
        due = clock.now() - timedelta(seconds=1)
        await queue.enqueue("t", id=reused, queue="b", run_at=due, ordering_key=ordering_key)
        assert reused not in [one.id for one in await queue.lease("a", worker="w", limit=10)]
        assert [one.id for one in await queue.lease("b", worker="w", limit=10)] == [reused]

    async def test_with_another_priority_it_has_its_new_place(
        self, queue: Queue, clock: FakeClock, reused: JobId
    ) -> None:
        due = clock.now() - timedelta(seconds=1)
        await queue.enqueue("t", id=reused, queue="a", run_at=due, key="k", priority=-5)
        assert [one.job.priority for one in await queue.lease("a", worker="w", limit=10)] == [0, -5]

    async def test_with_another_key_that_keys_limit_counts(
        self, queue: Queue, clock: FakeClock, reused: JobId
    ) -> None:
        due = clock.now() - timedelta(seconds=1)
        for _ in range(2):
            await queue.enqueue("t", queue="a", run_at=due, key="other", priority=9)
        await queue.enqueue("t", id=reused, queue="a", run_at=due, key="other", priority=5)
        leased = await queue.lease("a", worker="w", limit=10)
        assert [one.job.asked.key for one in leased] == ["other", "other", "k"]
