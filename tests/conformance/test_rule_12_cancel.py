"""Rule 12: before it runs a job is cancelled at once; while it runs its worker learns of it and ends it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from penstock.core.commands import Bulk, Changed, Settled
from penstock.core.errors import JobNotFound, NotAllowed
from penstock.core.job import Cause, Outcome, Status
from penstock.queue import Held, Queue
from penstock.testing import START, FakeClock

Settle = Callable[[Queue, Held], Awaitable[Settled]]


class TestCancel:
    async def test_a_queued_job_is_cancelled_at_once(self, queue: Queue) -> None:
        job = await queue.enqueue("email.send")
        assert await queue.cancel(job.id) == Changed(job.id, Status.CANCELLED)
        assert await queue.lease(worker="w1") == []

    async def test_a_delayed_job_is_cancelled_at_once(self, queue: Queue, clock: FakeClock) -> None:
        job = await queue.enqueue("email.send", delay=60)
        await queue.cancel(job.id)
        clock.advance(seconds=60)
        assert await queue.lease(worker="w1") == []

    async def test_a_waiting_job_is_cancelled_at_once(self, queue: Queue) -> None:
        parent = await queue.enqueue("report.collect")
        child = await queue.enqueue("report.build", parents=[parent.id])
        assert (await queue.cancel(child.id)).status is Status.CANCELLED

    async def test_a_cancelled_child_stays_cancelled_when_its_parent_succeeds(self, queue: Queue) -> None:
        parent = await queue.enqueue("report.collect")
        child = await queue.enqueue("report.build", parents=[parent.id])
        await queue.cancel(child.id)
        [leased] = await queue.lease(worker="w1")
        await queue.ack(leased)
        assert (await queue.get(child.id)).status is Status.CANCELLED

    async def test_a_cancelled_job_says_that_somebody_cancelled_it_and_when(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        job = await queue.enqueue("email.send")
        clock.advance(seconds=5)
        await queue.cancel(job.id)
        cancelled = await queue.get(job.id)
        assert (cancelled.cause, cancelled.ended_at) == (Cause.CANCELLED, clock.now())

    async def test_a_job_that_waits_for_its_retry_is_cancelled_at_once(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom", retry_in=60)
        await queue.cancel(leased.id)
        clock.advance(seconds=60)
        assert await queue.lease(worker="w1") == []

    async def test_a_running_job_goes_on_until_its_worker_learns_of_it(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        changed = await queue.cancel(leased.id)
        assert changed == Changed(leased.id, Status.RUNNING, cancel_requested=True)
        assert (await queue.get(leased.id)).cancel_requested

    async def test_the_worker_learns_of_it_at_its_next_heartbeat(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        assert not (await queue.heartbeat(leased)).cancel_requested
        await queue.cancel(leased.id)
        assert (await queue.heartbeat(leased)).cancel_requested

    async def test_a_heartbeat_keeps_the_lease_of_a_job_that_was_asked_to_stop(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=30)
        await queue.cancel(leased.id)
        clock.advance(seconds=20)
        assert (await queue.heartbeat(leased)).expires_at == clock.now() + timedelta(seconds=30)

    async def test_a_job_that_was_asked_to_stop_is_leased_to_nobody_else(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.cancel(leased.id)
        assert await queue.lease(worker="w2") == []

    @pytest.mark.parametrize("settle", ["nack", "release", "snooze", "discard"], indirect=True)
    async def test_a_job_that_was_asked_to_stop_ends_cancelled(self, queue: Queue, settle: Settle) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.cancel(leased.id)
        assert await settle(queue, leased) == Settled(leased.id, Status.CANCELLED, None)

    @pytest.mark.parametrize("settle", ["nack", "release", "snooze", "discard"], indirect=True)
    async def test_a_job_that_was_asked_to_stop_says_that_somebody_cancelled_it(
        self, queue: Queue, clock: FakeClock, settle: Settle
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.cancel(leased.id)
        clock.advance(seconds=5)
        await settle(queue, leased)
        job = await queue.get(leased.id)
        assert (job.cause, job.ended_at) == (Cause.CANCELLED, clock.now())

    @pytest.mark.parametrize("settle", ["nack", "release", "snooze", "discard"], indirect=True)
    async def test_a_job_that_was_asked_to_stop_is_not_run_again(
        self, queue: Queue, clock: FakeClock, settle: Settle
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.cancel(leased.id)
        await settle(queue, leased)
        clock.advance(days=1)
        assert await queue.lease(worker="w1") == []

    async def test_a_job_that_was_asked_to_stop_but_is_done_succeeds(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.cancel(leased.id)
        await queue.ack(leased, {"sent": 1})
        job = await queue.get(leased.id)
        assert (job.status, job.result, job.cause) == (Status.SUCCEEDED, '{"sent":1}', None)

    async def test_a_job_that_was_asked_to_stop_and_lost_its_worker_ends_cancelled(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=30)
        await queue.cancel(leased.id)
        clock.advance(days=1)
        job = await queue.get(leased.id)
        assert (job.status, job.cause, job.ended_at) == (
            Status.CANCELLED,
            Cause.CANCELLED,
            START + timedelta(seconds=30),
        )

    async def test_a_job_asked_to_stop_on_its_last_attempt_is_cancelled_not_dead(self, queue: Queue) -> None:
        await queue.enqueue("email.send", max_attempts=1)
        [leased] = await queue.lease(worker="w1")
        await queue.cancel(leased.id)
        assert (await queue.nack(leased, "boom", retry=False)).status is Status.CANCELLED

    async def test_a_handler_may_end_its_job_as_cancelled_unasked(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.discard(leased, "the customer has left")
        job = await queue.get(leased.id)
        assert (job.status, job.cause, job.error) == (
            Status.CANCELLED,
            Cause.DISCARDED,
            "the customer has left",
        )

    async def test_a_discarded_attempt_is_in_the_history(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.discard(leased, "the customer has left")
        [attempt] = (await queue.history(leased.id)).attempts
        assert (attempt.outcome, attempt.error) == (Outcome.CANCELLED, "the customer has left")

    async def test_cancelling_a_cancelled_job_is_harmless(self, queue: Queue, clock: FakeClock) -> None:
        job = await queue.enqueue("email.send")
        await queue.cancel(job.id)
        before = await queue.get(job.id), await queue.history(job.id)
        clock.advance(seconds=5)
        assert await queue.cancel(job.id) == Changed(job.id, Status.CANCELLED)
        assert (await queue.get(job.id), await queue.history(job.id)) == before

    async def test_asking_a_job_to_stop_twice_is_harmless(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        first = await queue.cancel(leased.id)
        before = await queue.get(leased.id), await queue.history(leased.id)
        assert await queue.cancel(leased.id) == first
        assert (await queue.get(leased.id), await queue.history(leased.id)) == before

    async def test_cancelling_an_expired_job_keeps_the_reason_it_ended_for(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        job = await queue.enqueue("email.send", expires_in=60)
        clock.advance(seconds=60)
        await queue.cancel(job.id)
        assert (await queue.get(job.id)).cause is Cause.EXPIRED

    async def test_a_succeeded_job_cannot_be_cancelled(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.ack(leased)
        with pytest.raises(NotAllowed):
            await queue.cancel(leased.id)

    async def test_a_dead_job_cannot_be_cancelled(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom", retry=False)
        with pytest.raises(NotAllowed):
            await queue.cancel(leased.id)

    async def test_a_refused_cancel_changes_nothing(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.ack(leased)
        before = await queue.get(leased.id), await queue.history(leased.id)
        with pytest.raises(NotAllowed):
            await queue.cancel(leased.id)
        assert (await queue.get(leased.id), await queue.history(leased.id)) == before

    async def test_an_unknown_job_cannot_be_cancelled(self, queue: Queue) -> None:
        with pytest.raises(JobNotFound):
            await queue.cancel("01890000-0000-7000-8000-000000000000")

    async def test_who_cancelled_a_job_and_why_is_in_its_history(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        job = await queue.enqueue("email.send")
        await queue.cancel(job.id, "sent by hand")
        [change] = (await queue.history(job.id)).changes
        assert (change.verb, change.actor, change.reason, change.at) == (
            "cancel",
            "ada",
            "sent by hand",
            clock.now(),
        )

    async def test_who_asked_a_running_job_to_stop_and_why_is_in_its_history(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.cancel(leased.id, "sent by hand")
        await queue.discard(leased)
        history = await queue.history(leased.id)
        assert [(change.actor, change.reason) for change in history.changes] == [("ada", "sent by hand")]
        assert [attempt.outcome for attempt in history.attempts] == [Outcome.CANCELLED]

    async def test_a_redriven_job_is_not_asked_to_stop(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.cancel(leased.id)
        await queue.discard(leased)
        await queue.redrive(leased.id)
        [again] = await queue.lease(worker="w1")
        assert not (await queue.heartbeat(again)).cancel_requested

    async def test_cancel_by_filter_cancels_all_that_match(self, queue: Queue) -> None:
        await queue.enqueue_many([queue.new("email.send", key="acme") for _ in range(3)])
        other = await queue.enqueue("email.send", key="zeta")
        assert await queue.cancel_matching("closed", key="acme") == Bulk(matched=3, changed=3)
        assert [leased.id for leased in await queue.lease(worker="w1", limit=10)] == [other.id]

    async def test_a_dry_run_of_cancel_by_filter_only_counts(self, queue: Queue) -> None:
        job = await queue.enqueue("email.send")
        assert await queue.cancel_matching(status="queued", dry_run=True) == Bulk(matched=1, changed=0)
        assert (await queue.get(job.id)).status is Status.QUEUED

    async def test_cancel_by_filter_asks_running_jobs_to_stop(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.cancel_matching(queue="default")
        assert (await queue.heartbeat(leased)).cancel_requested
