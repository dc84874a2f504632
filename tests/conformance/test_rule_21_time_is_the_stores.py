"""Rule 21: time is the store's; a worker's clock never decides who holds a lease."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from penstock.core.commands import Beat, Leased
from penstock.core.job import Attempt, Outcome, Status
from penstock.core.ports import Store
from penstock.core.retry import Retry
from penstock.queue import Queue
from penstock.testing import START, FakeClock

LONG_AGO = datetime(1999, 12, 31, 23, 59, tzinfo=UTC)
FAR_AHEAD = datetime(2999, 1, 1, tzinfo=UTC)


class TestTimeIsTheStores:
    async def test_the_store_tells_its_time(self, store: Store, clock: FakeClock) -> None:
        assert await store.now() == clock.now()

    async def test_a_job_was_made_when_the_store_says(self, queue: Queue, clock: FakeClock) -> None:
        clock.set(LONG_AGO)
        job = await queue.get((await queue.enqueue("email.send")).id)
        assert (job.created_at, job.run_at, job.scheduled_at) == (LONG_AGO, LONG_AGO, LONG_AGO)

    async def test_a_delay_counts_on_the_stores_clock(self, queue: Queue, clock: FakeClock) -> None:
        clock.set(LONG_AGO)
        job = await queue.enqueue("email.send", delay=60)
        assert (await queue.get(job.id)).run_at == LONG_AGO + timedelta(seconds=60)
        clock.advance(seconds=60)
        assert len(await queue.lease(worker="w1")) == 1

    async def test_a_deadline_counts_on_the_stores_clock(self, queue: Queue, clock: FakeClock) -> None:
        clock.set(FAR_AHEAD)
        job = await queue.enqueue("email.send", expires_in=60)
        assert (await queue.get(job.id)).expires_at == FAR_AHEAD + timedelta(seconds=60)

    async def test_a_lease_counts_on_the_stores_clock(self, queue: Queue, clock: FakeClock) -> None:
        clock.set(LONG_AGO)
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=30)
        lease = leased.job.lease
        assert lease is not None
        assert (lease.taken_at, lease.expires_at) == (LONG_AGO, LONG_AGO + timedelta(seconds=30))

    async def test_a_heartbeat_counts_on_the_stores_clock(self, queue: Queue, clock: FakeClock) -> None:
        clock.set(FAR_AHEAD)
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=30)
        later = clock.advance(seconds=10)
        assert await queue.heartbeat(leased) == Beat(later + timedelta(seconds=30), False)

    async def test_a_retry_counts_on_the_stores_clock(self, queue: Queue, clock: FakeClock) -> None:
        clock.set(LONG_AGO)
        await queue.enqueue("email.send", retry=Retry.fixed(10, jitter=0))
        [leased] = await queue.lease(worker="w1")
        assert (await queue.nack(leased, "boom")).run_at == LONG_AGO + timedelta(seconds=10)

    async def test_a_schedule_counts_on_the_stores_clock(self, queue: Queue, clock: FakeClock) -> None:
        clock.set(LONG_AGO)
        schedule = await queue.put_schedule("yearly", "0 0 1 1 *", {"type": "report.build"})
        assert schedule.next_fire_at == datetime(2000, 1, 1, tzinfo=UTC)

    async def test_a_schedule_is_due_when_the_stores_clock_says(self, queue: Queue, clock: FakeClock) -> None:
        clock.set(LONG_AGO)
        await queue.put_schedule("yearly", "0 0 1 1 *", {"type": "report.build"})
        assert await queue.fire_due() == []
        clock.advance(minutes=1)
        assert len(await queue.fire_due()) == 1

    async def test_the_history_is_told_on_the_stores_clock(self, queue: Queue, clock: FakeClock) -> None:
        clock.set(FAR_AHEAD)
        job = await queue.enqueue("email.send")
        await queue.cancel(job.id)
        [change] = (await queue.history(job.id)).changes
        assert change.at == FAR_AHEAD

    async def test_times_are_told_in_utc_to_the_microsecond(self, queue: Queue, clock: FakeClock) -> None:
        moment = clock.set(START.replace(microsecond=123_457))
        job = await queue.get((await queue.enqueue("email.send")).id)
        assert job.created_at == moment
        assert job.created_at.utcoffset() == timedelta(0)

    async def test_the_id_of_a_job_says_nothing_about_its_time(self, queue: Queue, clock: FakeClock) -> None:
        clock.set(LONG_AGO)  # the ids of the queue are made of a clock that is decades ahead
        job = await queue.enqueue("email.send")
        assert [leased.id for leased in await queue.lease(worker="w1")] == [job.id]

    async def test_a_job_is_leased_once_though_the_clock_was_set_back_after_it_came_in(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send")
        clock.advance(seconds=-60)
        leased = await queue.lease(worker="w1", lease_seconds=3_600)
        clock.advance(seconds=60)
        leased += await queue.lease(worker="w1", lease_seconds=3_600)
        assert len(leased) == 1

    async def test_no_job_is_lost_or_leased_twice_though_the_clock_is_set_back_again_and_again(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        jobs = [queue.new("email.send", priority=number % 3, delay=number) for number in range(30)]
        await queue.enqueue_many(jobs)
        leased: list[Leased] = []
        for seconds in (10, -5, 15, -20, 12, -1, 30, -40, 60):
            clock.advance(seconds=seconds)
            leased += await queue.lease(worker="w1", limit=3, lease_seconds=3_600)
        leased += await queue.lease(worker="w1", limit=100, lease_seconds=3_600)
        assert sorted(held.id for held in leased) == [job.id for job in jobs]

    async def test_a_lease_is_not_taken_away_though_the_clock_was_set_back(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(hours=-1)
        assert await queue.lease(worker="w2") == []
        assert (await queue.ack(leased)).status is Status.SUCCEEDED

    async def test_a_lease_that_was_lost_stays_lost_though_the_clock_was_set_back(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(seconds=30)
        [attempt] = (await queue.history(leased.id)).attempts
        clock.advance(seconds=-20)
        assert (await queue.history(leased.id)).attempts == (attempt,)
        assert (await queue.get(leased.id)).status is Status.QUEUED

    async def test_a_job_that_expired_stays_cancelled_though_the_clock_was_set_back(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        job = await queue.enqueue("email.send", expires_in=30)
        clock.advance(seconds=30)
        assert (await queue.get(job.id)).status is Status.CANCELLED
        clock.advance(seconds=-20)
        assert (await queue.get(job.id)).status is Status.CANCELLED
        assert await queue.lease(worker="w1") == []

    async def test_a_fire_time_fires_once_though_the_clock_was_set_back(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.put_schedule("minutely", "* * * * *", {"type": "report.build"})
        for seconds in (60, -30, 30):
            clock.advance(seconds=seconds)
            await queue.fire_due()
        assert len((await queue.find()).jobs) == 1

    async def test_what_is_noticed_late_happened_at_its_own_moment_and_in_that_order(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        parent = await queue.enqueue("report.collect", max_attempts=1)
        child = await queue.enqueue("report.build", parents=[parent.id], expires_in=60)
        await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(days=1)  # the parent was lost after 30 seconds, so the child never came to expire
        [change] = (await queue.history(child.id)).changes
        assert (change.actor, change.at) == ("rule:flow", START + timedelta(seconds=30))

    async def test_the_order_of_late_things_is_the_same_the_other_way_round(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        parent = await queue.enqueue("report.collect", max_attempts=1)
        child = await queue.enqueue("report.build", parents=[parent.id], expires_in=20)
        await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(days=1)
        [change] = (await queue.history(child.id)).changes
        assert (change.actor, change.at) == ("rule:expiry", START + timedelta(seconds=20))

    async def test_it_does_not_matter_who_notices_when(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(days=1)
        await queue.sweep()
        clock.advance(days=1)
        [record] = (await queue.history(leased.id)).records
        assert isinstance(record, Attempt)
        assert (record.outcome, record.ended_at) == (Outcome.LOST, START + timedelta(seconds=30))
