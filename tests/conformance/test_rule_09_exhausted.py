"""Rule 9: after max_attempts a job is dead, or held for a person; redrive brings it back with its history."""

from __future__ import annotations

import pytest

from penstock.core.commands import Bulk, Changed, Leased
from penstock.core.errors import JobNotFound, NotAllowed, UniqueConflict
from penstock.core.job import Cause, JobId, Outcome, Status
from penstock.queue import Queue
from penstock.testing import FakeClock


async def fail(queue: Queue, /, **options: object) -> JobId:
    """A job that has failed for good, as dead or held as its options say."""
    job = await queue.enqueue("email.send", **options)
    [leased] = await queue.lease(str(options.get("queue", "default")), worker="w1")
    assert leased.id == job.id
    await queue.nack(leased, "boom", retry=False)
    return job.id


class TestExhausted:
    async def test_a_job_has_as_many_attempts_as_it_asks_for(self, queue: Queue) -> None:
        await queue.enqueue("email.send", max_attempts=3)
        seen = []
        for _ in range(3):
            [leased] = await queue.lease(worker="w1")
            seen.append((await queue.nack(leased, "boom", retry_in=0)).status)
        assert seen == [Status.QUEUED, Status.QUEUED, Status.DEAD]

    async def test_a_job_has_five_attempts_by_default(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        for _ in range(5):
            [leased] = await queue.lease(worker="w1")
            settled = await queue.nack(leased, "boom", retry_in=0)
        assert settled.status is Status.DEAD

    async def test_a_queue_may_say_how_many_attempts_its_jobs_have(self, queue: Queue) -> None:
        await queue.configure("default", max_attempts=1)
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        assert (await queue.nack(leased, "boom")).status is Status.DEAD

    async def test_a_jobs_own_number_of_attempts_beats_its_queues(self, queue: Queue) -> None:
        await queue.configure("default", max_attempts=1)
        await queue.enqueue("email.send", max_attempts=2)
        [leased] = await queue.lease(worker="w1")
        assert (await queue.nack(leased, "boom")).status is Status.QUEUED

    async def test_a_dead_job_says_why(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send", max_attempts=1)
        [leased] = await queue.lease(worker="w1")
        clock.advance(seconds=3)
        await queue.nack(leased, "boom")
        job = await queue.get(leased.id)
        assert (job.cause, job.error, job.ended_at) == (Cause.EXHAUSTED, "boom", clock.now())

    async def test_a_dead_job_does_not_run_again(self, queue: Queue, clock: FakeClock) -> None:
        await fail(queue)
        clock.advance(days=30)
        assert await queue.lease(worker="w1") == []

    async def test_a_job_may_ask_to_be_held(self, queue: Queue) -> None:
        await queue.enqueue("email.send", max_attempts=1, on_exhausted="hold")
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom")
        job = await queue.get(leased.id)
        assert (job.status, job.cause) == (Status.HELD, Cause.EXHAUSTED)

    async def test_a_queue_may_hold_its_jobs(self, queue: Queue) -> None:
        await queue.configure("default", on_exhausted="hold")
        assert (await queue.get(await fail(queue))).status is Status.HELD

    async def test_a_jobs_own_choice_beats_its_queues(self, queue: Queue) -> None:
        await queue.configure("default", on_exhausted="hold")
        assert (await queue.get(await fail(queue, on_exhausted="dead"))).status is Status.DEAD

    async def test_a_held_job_does_not_run_until_a_person_decides(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await fail(queue, on_exhausted="hold")
        clock.advance(days=30)
        assert await queue.lease(worker="w1") == []

    async def test_a_held_job_may_be_cancelled(self, queue: Queue, clock: FakeClock) -> None:
        job_id = await fail(queue, on_exhausted="hold")
        clock.advance(hours=1)
        await queue.cancel(job_id)
        job = await queue.get(job_id)
        assert (job.status, job.cause, job.ended_at) == (Status.CANCELLED, Cause.CANCELLED, clock.now())

    @pytest.mark.parametrize("on_exhausted", ["dead", "hold"])
    async def test_redrive_brings_a_failed_job_back(self, queue: Queue, on_exhausted: str) -> None:
        job_id = await fail(queue, on_exhausted=on_exhausted)
        assert await queue.redrive(job_id) == Changed(job_id, Status.QUEUED)
        assert [leased.id for leased in await queue.lease(worker="w2")] == [job_id]

    async def test_redrive_brings_a_cancelled_job_back(self, queue: Queue) -> None:
        job = await queue.enqueue("email.send")
        await queue.cancel(job.id)
        await queue.redrive(job.id)
        assert [leased.id for leased in await queue.lease(worker="w2")] == [job.id]

    async def test_a_redriven_job_is_as_if_it_had_not_ended(self, queue: Queue) -> None:
        job_id = await fail(queue)
        await queue.redrive(job_id)
        job = await queue.get(job_id)
        assert (job.status, job.cause, job.ended_at) == (Status.QUEUED, None, None)

    async def test_a_redriven_job_is_due_now(self, queue: Queue, clock: FakeClock) -> None:
        job = await queue.enqueue("email.send", delay=86_400)
        await queue.cancel(job.id)
        clock.advance(seconds=5)
        await queue.redrive(job.id)
        assert (await queue.get(job.id)).run_at == clock.now()

    async def test_a_redriven_job_has_all_its_attempts_before_it(self, queue: Queue) -> None:
        job = await queue.enqueue("email.send", max_attempts=2)
        for _ in range(2):
            [leased] = await queue.lease(worker="w1")
            await queue.nack(leased, "boom", retry_in=0)
        await queue.redrive(job.id)
        [leased] = await queue.lease(worker="w1")
        assert leased.job.attempts == 1
        assert (await queue.nack(leased, "boom", retry_in=0)).status is Status.QUEUED

    async def test_a_redriven_job_keeps_its_history(self, queue: Queue) -> None:
        job_id = await fail(queue)
        await queue.redrive(job_id, "fixed the mail server")
        [leased] = await queue.lease(worker="w2")
        await queue.ack(leased)
        attempts = (await queue.history(job_id)).attempts
        assert [(attempt.number, attempt.outcome) for attempt in attempts] == [
            (1, Outcome.FAILED),
            (2, Outcome.SUCCEEDED),
        ]

    async def test_a_job_may_be_redriven_again_and_again(self, queue: Queue) -> None:
        job_id = await fail(queue)
        for _ in range(3):
            await queue.redrive(job_id)
            [leased] = await queue.lease(worker="w1")
            await queue.nack(leased, "boom", retry=False)
        assert len((await queue.history(job_id)).attempts) == 4

    async def test_a_queued_job_cannot_be_redriven(self, queue: Queue) -> None:
        job = await queue.enqueue("email.send")
        with pytest.raises(NotAllowed):
            await queue.redrive(job.id)

    async def test_a_running_job_cannot_be_redriven(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        with pytest.raises(NotAllowed):
            await queue.redrive(leased.id)

    async def test_a_succeeded_job_cannot_be_redriven(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.ack(leased)
        with pytest.raises(NotAllowed):
            await queue.redrive(leased.id)

    async def test_a_waiting_job_cannot_be_redriven(self, queue: Queue) -> None:
        parent = await queue.enqueue("email.send")
        child = await queue.enqueue("email.send", parents=[parent.id])
        with pytest.raises(NotAllowed):
            await queue.redrive(child.id)

    async def test_an_unknown_job_cannot_be_redriven(self, queue: Queue) -> None:
        with pytest.raises(JobNotFound):
            await queue.redrive("01890000-0000-7000-8000-000000000000")

    async def test_a_refused_redrive_changes_nothing(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        before = await queue.get(leased.id), await queue.history(leased.id)
        with pytest.raises(NotAllowed) as caught:
            await queue.redrive(leased.id)
        assert caught.value.facts == {"job_id": leased.id, "verb": "redrive", "status": "running"}
        assert (await queue.get(leased.id), await queue.history(leased.id)) == before

    async def test_redrive_by_filter_brings_back_all_that_match(self, queue: Queue) -> None:
        emails = [await fail(queue, queue="emails") for _ in range(3)]
        await fail(queue, queue="reports")
        assert await queue.redrive_matching(queue="emails", status="dead") == Bulk(matched=3, changed=3)
        assert [leased.id for leased in await queue.lease("emails", worker="w2", limit=10)] == emails

    async def test_redrive_by_filter_leaves_the_others_alone(self, queue: Queue) -> None:
        await fail(queue, queue="emails")
        report = await fail(queue, queue="reports")
        await queue.redrive_matching(queue="emails", status="dead")
        assert (await queue.get(report)).status is Status.DEAD

    async def test_a_dry_run_only_counts(self, queue: Queue) -> None:
        job_id = await fail(queue)
        assert await queue.redrive_matching(status="dead", dry_run=True) == Bulk(matched=1, changed=0)
        assert (await queue.get(job_id)).status is Status.DEAD

    async def test_redrive_by_filter_tells_which_jobs_it_could_not_bring_back(self, queue: Queue) -> None:
        job_id = await fail(queue)
        await queue.enqueue("email.send")
        bulk = await queue.redrive_matching()
        assert (bulk.matched, bulk.changed) == (2, 1)
        assert [type(error) for error in bulk.refused] == [NotAllowed]
        assert (await queue.get(job_id)).status is Status.QUEUED

    async def test_of_two_dead_jobs_with_one_unique_key_one_comes_back(self, queue: Queue) -> None:
        await fail(queue, unique_key="welcome:42")
        await fail(queue, unique_key="welcome:42")
        bulk = await queue.redrive_matching(status="dead")
        assert (bulk.matched, bulk.changed) == (2, 1)
        assert [type(error) for error in bulk.refused] == [UniqueConflict]

    async def test_redrive_by_filter_may_choose_by_cause(self, queue: Queue) -> None:
        refused = await fail(queue)
        job = await queue.enqueue("email.send")
        await queue.cancel(job.id)
        await queue.redrive_matching(cause="refused")
        assert (await queue.get(refused)).status is Status.QUEUED
        assert (await queue.get(job.id)).status is Status.CANCELLED

    async def test_redrive_by_filter_goes_through_every_page(self, queue: Queue) -> None:
        await queue.enqueue_many([queue.new("email.send") for _ in range(1_100)])
        leased: list[Leased] = []
        while batch := await queue.lease(worker="w1", limit=1_000):
            leased += batch
        await queue.settle_many([queue.nacked(held, "boom", retry=False) for held in leased])
        assert await queue.redrive_matching(status="dead") == Bulk(matched=1_100, changed=1_100)

    async def test_the_reason_and_the_person_are_in_the_history_of_every_job(self, queue: Queue) -> None:
        ids = [await fail(queue) for _ in range(2)]
        await queue.redrive_matching("mail server is back", status="dead")
        for job_id in ids:
            [change] = (await queue.history(job_id)).changes
            assert (change.verb, change.actor, change.reason) == ("redrive", "ada", "mail server is back")
