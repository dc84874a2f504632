"""Rule 11: a job is not duplicated while it is active: same queue and unique key gives the active job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.core.commands import Duplicate, Enqueued, Settled
from penstock.core.errors import UniqueConflict
from penstock.core.job import Status
from penstock.core.ports import Store
from penstock.queue import Held, Queue
from penstock.testing import FakeClock

Settle = Callable[[Queue, Held], Awaitable[Settled]]


class TestUniqueKey:
    async def test_the_same_key_gives_the_job_that_is_queued(self, queue: Queue) -> None:
        first = await queue.enqueue("email.send", unique_key="welcome:42")
        again = await queue.enqueue("email.send", unique_key="welcome:42")
        assert again == Enqueued(first.id, Duplicate.UNIQUE_KEY)

    async def test_the_same_key_gives_the_job_that_waits_for_its_time(self, queue: Queue) -> None:
        first = await queue.enqueue("email.send", unique_key="welcome:42", delay=3_600)
        assert (await queue.enqueue("email.send", unique_key="welcome:42")).id == first.id

    async def test_the_same_key_gives_the_job_that_waits_for_a_parent(self, queue: Queue) -> None:
        parent = await queue.enqueue("report.collect")
        first = await queue.enqueue("email.send", unique_key="welcome:42", parents=[parent.id])
        assert (await queue.enqueue("email.send", unique_key="welcome:42")).id == first.id

    async def test_the_same_key_gives_the_job_that_runs(self, queue: Queue) -> None:
        first = await queue.enqueue("email.send", unique_key="welcome:42")
        await queue.lease(worker="w1")
        assert (await queue.enqueue("email.send", unique_key="welcome:42")).id == first.id

    async def test_the_same_key_gives_the_job_that_was_asked_to_stop_but_runs_still(
        self, queue: Queue
    ) -> None:
        first = await queue.enqueue("email.send", unique_key="welcome:42")
        await queue.lease(worker="w1")
        await queue.cancel(first.id)
        assert (await queue.enqueue("email.send", unique_key="welcome:42")).id == first.id

    async def test_a_different_body_gives_the_active_job_all_the_same(self, queue: Queue) -> None:
        first = await queue.enqueue("email.send", 1, unique_key="welcome:42")
        again = await queue.enqueue("email.resend", 2, unique_key="welcome:42", priority=9)
        assert again.id == first.id
        assert (await queue.get(first.id)).payload == "1"

    async def test_no_second_job_is_made(self, queue: Queue) -> None:
        for _ in range(3):
            await queue.enqueue("email.send", unique_key="welcome:42")
        assert len((await queue.find()).jobs) == 1

    async def test_a_retry_keeps_the_key(self, queue: Queue) -> None:
        first = await queue.enqueue("email.send", unique_key="welcome:42")
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom")
        assert (await queue.enqueue("email.send", unique_key="welcome:42")).id == first.id

    async def test_a_lost_lease_keeps_the_key(self, queue: Queue, clock: FakeClock) -> None:
        first = await queue.enqueue("email.send", unique_key="welcome:42")
        await queue.lease(worker="w1")
        clock.advance(minutes=5)
        assert (await queue.enqueue("email.send", unique_key="welcome:42")).id == first.id

    @pytest.mark.parametrize("settle", ["release", "snooze"], indirect=True)
    async def test_a_job_given_back_keeps_the_key(self, queue: Queue, settle: Settle) -> None:
        first = await queue.enqueue("email.send", unique_key="welcome:42")
        [leased] = await queue.lease(worker="w1")
        await settle(queue, leased)
        assert (await queue.enqueue("email.send", unique_key="welcome:42")).id == first.id

    async def test_the_key_is_free_once_the_job_succeeded(self, queue: Queue) -> None:
        first = await queue.enqueue("email.send", unique_key="welcome:42")
        [leased] = await queue.lease(worker="w1")
        await queue.ack(leased)
        again = await queue.enqueue("email.send", unique_key="welcome:42")
        assert again.duplicate is None
        assert again.id != first.id

    @pytest.mark.parametrize("on_exhausted", ["dead", "hold"])
    async def test_the_key_is_free_once_the_job_failed_for_good(
        self, queue: Queue, on_exhausted: str
    ) -> None:
        await queue.enqueue("email.send", unique_key="welcome:42", on_exhausted=on_exhausted)
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom", retry=False)
        assert (await queue.enqueue("email.send", unique_key="welcome:42")).duplicate is None

    async def test_the_key_is_free_at_the_moment_the_last_lease_ran_out(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send", unique_key="welcome:42", max_attempts=1)
        await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(seconds=30)
        assert (await queue.enqueue("email.send", unique_key="welcome:42")).duplicate is None

    async def test_the_key_is_free_once_the_job_was_cancelled(self, queue: Queue) -> None:
        first = await queue.enqueue("email.send", unique_key="welcome:42")
        await queue.cancel(first.id)
        assert (await queue.enqueue("email.send", unique_key="welcome:42")).duplicate is None

    async def test_the_key_is_free_once_the_job_was_discarded(self, queue: Queue) -> None:
        await queue.enqueue("email.send", unique_key="welcome:42")
        [leased] = await queue.lease(worker="w1")
        await queue.discard(leased)
        assert (await queue.enqueue("email.send", unique_key="welcome:42")).duplicate is None

    async def test_the_key_is_free_once_the_job_expired(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send", unique_key="welcome:42", expires_in=60)
        clock.advance(seconds=60)
        assert (await queue.enqueue("email.send", unique_key="welcome:42")).duplicate is None

    async def test_the_key_is_free_once_a_parent_failed(self, queue: Queue) -> None:
        parent = await queue.enqueue("report.collect")
        await queue.enqueue("email.send", unique_key="welcome:42", parents=[parent.id])
        await queue.cancel(parent.id)
        assert (await queue.enqueue("email.send", unique_key="welcome:42")).duplicate is None

    async def test_each_queue_has_its_own_keys(self, queue: Queue) -> None:
        await queue.enqueue("email.send", queue="emails", unique_key="welcome:42")
        other = await queue.enqueue("email.send", queue="reports", unique_key="welcome:42")
        assert other.duplicate is None

    async def test_each_tenant_has_its_own_keys(self, queue: Queue) -> None:
        await queue.enqueue("email.send", unique_key="welcome:42")
        other = await queue.for_tenant("acme").enqueue("email.send", unique_key="welcome:42")
        assert other.duplicate is None

    async def test_jobs_without_a_key_are_not_duplicates(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        assert (await queue.enqueue("email.send")).duplicate is None

    async def test_a_unique_key_is_not_an_idempotency_key(self, queue: Queue) -> None:
        await queue.enqueue("email.send", unique_key="k")
        assert (await queue.enqueue("email.send", idempotency_key="k")).duplicate is None

    async def test_the_same_key_within_one_batch_makes_one_job(self, queue: Queue) -> None:
        jobs = [queue.new("email.send", unique_key="welcome:42") for _ in range(2)]
        assert await queue.enqueue_many(jobs) == [
            Enqueued(jobs[0].id),
            Enqueued(jobs[0].id, Duplicate.UNIQUE_KEY),
        ]

    async def test_the_same_key_in_requests_made_at_once_makes_one_job(
        self, queue: Queue, store: Store
    ) -> None:
        callers = [Queue(store) for _ in range(10)]
        answers = await asyncio.gather(*(caller.enqueue("a", unique_key="k") for caller in callers))
        assert len({answer.id for answer in answers}) == 1

    async def test_a_request_answered_by_the_active_job_keeps_that_answer_for_its_idempotency_key(
        self, queue: Queue
    ) -> None:
        first = await queue.enqueue("email.send", unique_key="welcome:42")
        options = {"unique_key": "welcome:42", "idempotency_key": "req-1"}
        await queue.enqueue("email.send", **options)
        [leased] = await queue.lease(worker="w1")
        await queue.ack(leased)
        again = await queue.enqueue("email.send", **options)
        assert again == Enqueued(first.id, Duplicate.IDEMPOTENCY_KEY)

    async def test_a_job_cannot_come_back_while_another_holds_its_key(self, queue: Queue) -> None:
        old = await queue.enqueue("email.send", unique_key="welcome:42")
        await queue.cancel(old.id)
        new = await queue.enqueue("email.send", unique_key="welcome:42")
        with pytest.raises(UniqueConflict) as caught:
            await queue.redrive(old.id)
        assert caught.value.facts == {"job_id": old.id, "unique_key": "welcome:42", "holder_id": new.id}

    async def test_a_job_that_cannot_come_back_stays_as_it_was(self, queue: Queue) -> None:
        old = await queue.enqueue("email.send", unique_key="welcome:42")
        await queue.cancel(old.id)
        await queue.enqueue("email.send", unique_key="welcome:42")
        before = await queue.get(old.id), await queue.history(old.id)
        with pytest.raises(UniqueConflict):
            await queue.redrive(old.id)
        assert (await queue.get(old.id), await queue.history(old.id)) == before

    async def test_a_job_can_come_back_once_the_other_has_ended(self, queue: Queue) -> None:
        old = await queue.enqueue("email.send", unique_key="welcome:42")
        await queue.cancel(old.id)
        new = await queue.enqueue("email.send", unique_key="welcome:42")
        await queue.cancel(new.id)
        assert (await queue.redrive(old.id)).status is Status.QUEUED

    async def test_a_job_that_came_back_holds_its_key_again(self, queue: Queue) -> None:
        old = await queue.enqueue("email.send", unique_key="welcome:42")
        await queue.cancel(old.id)
        await queue.redrive(old.id)
        assert (await queue.enqueue("email.send", unique_key="welcome:42")).id == old.id
