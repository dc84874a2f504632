"""Rule 5: whoever changes a running job needs its live token; a stale one gets LeaseLost and changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from penstock.core.commands import Ack, Settled
from penstock.core.errors import JobNotFound, LeaseLost
from penstock.core.job import JobId, LeaseToken, Status
from penstock.queue import Held, Queue
from penstock.testing import FakeClock

Settle = Callable[[Queue, Held], Awaitable[Settled]]


@dataclass(frozen=True)
class Hand:
    """Somebody who says to hold a lease."""

    id: JobId
    token: LeaseToken


async def everything(queue: Queue, *job_ids: JobId) -> list[object]:
    """All there is to know of some jobs."""
    return [(await queue.get(job_id), await queue.history(job_id)) for job_id in job_ids]


class TestFencing:
    async def test_refuses_the_token_of_an_earlier_lease(
        self, queue: Queue, clock: FakeClock, settle: Settle
    ) -> None:
        await queue.enqueue("email.send")
        [first] = await queue.lease(worker="w1")
        clock.advance(minutes=5)  # the lease runs out
        [second] = await queue.lease(worker="w2")  # someone else takes the job
        before = await everything(queue, second.id)
        with pytest.raises(LeaseLost):
            await settle(queue, first)
        assert await everything(queue, second.id) == before

    async def test_refuses_the_token_of_a_lease_that_ran_out_though_nobody_took_the_job(
        self, queue: Queue, clock: FakeClock, settle: Settle
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(seconds=30)
        before = await everything(queue, leased.id)
        with pytest.raises(LeaseLost):
            await settle(queue, leased)
        assert await everything(queue, leased.id) == before

    async def test_takes_the_token_until_the_last_moment(
        self, queue: Queue, clock: FakeClock, settle: Settle
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(seconds=29.999999)
        assert (await settle(queue, leased)).job_id == leased.id

    async def test_refuses_the_token_of_another_job(self, queue: Queue, settle: Settle) -> None:
        await queue.enqueue_many([queue.new("email.send"), queue.new("email.send")])
        one, other = await queue.lease(worker="w1", limit=2)
        before = await everything(queue, one.id, other.id)
        with pytest.raises(LeaseLost):
            await settle(queue, Hand(one.id, other.token))
        assert await everything(queue, one.id, other.id) == before

    async def test_refuses_a_token_nobody_was_given(self, queue: Queue, settle: Settle) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        before = await everything(queue, leased.id)
        with pytest.raises(LeaseLost):
            await settle(queue, Hand(leased.id, LeaseToken("made-up")))
        assert await everything(queue, leased.id) == before

    async def test_refuses_an_empty_token(self, queue: Queue, settle: Settle) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        with pytest.raises(LeaseLost):
            await settle(queue, Hand(leased.id, LeaseToken("")))

    async def test_refuses_to_settle_a_job_that_was_never_leased(self, queue: Queue) -> None:
        job = await queue.enqueue("email.send")
        before = await everything(queue, job.id)
        [answer] = await queue.settle_many([Ack(job.id, LeaseToken("made-up"))])
        assert isinstance(answer, LeaseLost)
        assert await everything(queue, job.id) == before

    async def test_refuses_a_job_that_does_not_exist(self, queue: Queue, settle: Settle) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        with pytest.raises(JobNotFound):
            await settle(queue, Hand(JobId("01890000-0000-7000-8000-000000000000"), leased.token))

    async def test_a_stale_heartbeat_is_refused(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send")
        [first] = await queue.lease(worker="w1")
        clock.advance(minutes=5)
        [second] = await queue.lease(worker="w2")
        before = await everything(queue, second.id)
        with pytest.raises(LeaseLost):
            await queue.heartbeat(first, lease_seconds=600, progress={"done": 1})
        assert await everything(queue, second.id) == before

    async def test_a_heartbeat_after_a_settle_is_refused(self, queue: Queue, settle: Settle) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await settle(queue, leased)
        before = await everything(queue, leased.id)
        with pytest.raises(LeaseLost):
            await queue.heartbeat(leased)
        assert await everything(queue, leased.id) == before

    async def test_a_heartbeat_with_the_token_of_another_job_is_refused(self, queue: Queue) -> None:
        await queue.enqueue_many([queue.new("email.send"), queue.new("email.send")])
        one, other = await queue.lease(worker="w1", limit=2)
        before = await everything(queue, one.id, other.id)
        with pytest.raises(LeaseLost):
            await queue.heartbeat(Hand(one.id, other.token), lease_seconds=600)
        assert await everything(queue, one.id, other.id) == before

    async def test_a_heartbeat_for_a_job_that_was_never_leased_is_refused(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.release(leased)
        with pytest.raises(LeaseLost):
            await queue.heartbeat(leased)

    async def test_the_error_names_the_job(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        clock.advance(minutes=5)
        with pytest.raises(LeaseLost) as caught:
            await queue.ack(leased)
        assert caught.value.facts == {"job_id": leased.id}

    async def test_a_token_from_before_a_redrive_is_refused(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [first] = await queue.lease(worker="w1")
        await queue.nack(first, "boom", retry=False)
        await queue.redrive(first.id)
        [second] = await queue.lease(worker="w2")
        with pytest.raises(LeaseLost):
            await queue.ack(first)
        assert (await queue.get(second.id)).status is Status.RUNNING

    async def test_the_number_of_leases_only_grows_so_it_can_fence_writes_elsewhere(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send", max_attempts=2)
        seen = []
        for end in ("release", "snooze", "lose", "refuse", "keep"):
            [leased] = await queue.lease(worker="w1", lease_seconds=30)
            seen.append(leased.job.leases)
            match end:
                case "release":
                    await queue.release(leased)
                case "snooze":
                    await queue.snooze(leased, 0)
                case "lose":
                    clock.advance(seconds=30)
                case "refuse":
                    await queue.nack(leased, "boom", retry=False)
                    await queue.redrive(leased.id)
        assert seen == [1, 2, 3, 4, 5]
