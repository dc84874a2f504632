"""Rule 15: a paused queue accepts jobs and leases none; running jobs finish."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock.core.commands import Settled
from penstock.core.job import Status
from penstock.queue import Held, Queue
from penstock.testing import FakeClock

Settle = Callable[[Queue, Held], Awaitable[Settled]]


class TestPause:
    async def test_a_paused_queue_leases_none(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        await queue.pause("default")
        assert await queue.lease(worker="w1") == []

    async def test_a_paused_queue_accepts_jobs(self, queue: Queue) -> None:
        await queue.pause("default")
        job = await queue.enqueue("email.send")
        assert (await queue.get(job.id)).status is Status.QUEUED

    async def test_a_queue_may_be_paused_before_it_has_jobs(self, queue: Queue) -> None:
        await queue.pause("emails")
        await queue.enqueue("email.send", queue="emails")
        assert await queue.lease("emails", worker="w1") == []

    async def test_a_resumed_queue_leases_again(self, queue: Queue) -> None:
        await queue.pause("default")
        job = await queue.enqueue("email.send")
        await queue.resume("default")
        assert [leased.id for leased in await queue.lease(worker="w1")] == [job.id]

    async def test_a_resumed_queue_leases_in_order(self, queue: Queue) -> None:
        await queue.pause("default")
        normal, urgent = await queue.enqueue("email.send"), await queue.enqueue("email.send", priority=1)
        await queue.resume("default")
        leased = await queue.lease(worker="w1", limit=2)
        assert [job.id for job in leased] == [urgent.id, normal.id]

    async def test_a_running_job_finishes(self, queue: Queue, settle: Settle) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.pause("default")
        assert (await settle(queue, leased)).job_id == leased.id

    async def test_a_running_job_keeps_its_lease_by_heartbeats(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=30)
        await queue.pause("default")
        for _ in range(3):
            clock.advance(seconds=29)
            await queue.heartbeat(leased)
        assert (await queue.ack(leased)).status is Status.SUCCEEDED

    async def test_a_retry_waits_until_the_queue_is_resumed(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.pause("default")
        await queue.nack(leased, "boom", retry_in=5)
        clock.advance(hours=1)
        assert await queue.lease(worker="w1") == []
        await queue.resume("default")
        assert len(await queue.lease(worker="w1")) == 1

    async def test_a_lost_job_waits_until_the_queue_is_resumed(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send")
        await queue.lease(worker="w1")
        await queue.pause("default")
        clock.advance(hours=1)
        assert await queue.lease(worker="w1") == []
        await queue.resume("default")
        assert len(await queue.lease(worker="w1")) == 1

    async def test_other_queues_go_on(self, queue: Queue) -> None:
        await queue.pause("emails")
        await queue.enqueue("report.build", queue="reports")
        assert len(await queue.lease("reports", worker="w1")) == 1

    async def test_a_paused_queue_says_so(self, queue: Queue) -> None:
        await queue.pause("default")
        assert (await queue.queue("default")).settings.paused

    async def test_pausing_keeps_the_other_settings(self, queue: Queue) -> None:
        await queue.configure("default", max_concurrency=3)
        assert (await queue.pause("default")).max_concurrency == 3
        assert (await queue.resume("default")).max_concurrency == 3

    async def test_pausing_twice_is_harmless(self, queue: Queue) -> None:
        first = await queue.pause("default")
        assert await queue.pause("default") == first

    async def test_who_paused_and_resumed_a_queue_and_why_is_in_its_history(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        paused_at = clock.now()
        await queue.pause("default", "the mail server is down")
        resumed_at = clock.advance(minutes=5)
        await queue.resume("default", "it is back")
        changes = (await queue.history("default", "queue")).changes
        assert [(change.at, change.actor, change.reason) for change in changes] == [
            (paused_at, "ada", "the mail server is down"),
            (resumed_at, "ada", "it is back"),
        ]

    async def test_a_queue_paused_by_one_caller_is_paused_for_all(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        await Queue(queue.store).pause("default")
        assert await queue.lease(worker="w1") == []

    async def test_jobs_of_a_paused_queue_can_be_cancelled(self, queue: Queue) -> None:
        await queue.pause("default")
        job = await queue.enqueue("email.send")
        assert (await queue.cancel(job.id)).status is Status.CANCELLED
