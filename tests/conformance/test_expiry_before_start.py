"""A job may say by when it must have started: past that it is cancelled as expired, at that moment."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.core.errors import InvalidInput
from penstock.core.job import Cause, Status
from penstock.queue import Queue
from penstock.testing import START, FakeClock


class TestExpiryBeforeStart:
    @pytest.mark.parametrize(
        "options",
        [
            {"expires_at": START + timedelta(seconds=60)},
            {"expires_in": 60},
            {"expires_in": timedelta(minutes=1)},
        ],
        ids=["expires_at", "expires_in seconds", "expires_in timedelta"],
    )
    async def test_a_job_that_has_not_started_in_time_is_cancelled_at_that_moment(
        self, queue: Queue, clock: FakeClock, options: dict[str, object]
    ) -> None:
        job = await queue.enqueue("email.send", **options)
        clock.advance(seconds=60)
        expired = await queue.get(job.id)
        assert (expired.status, expired.cause, expired.ended_at) == (
            Status.CANCELLED,
            Cause.EXPIRED,
            START + timedelta(seconds=60),
        )

    async def test_a_job_can_start_until_the_last_moment(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send", expires_in=60)
        clock.advance(seconds=59.999999)
        assert len(await queue.lease(worker="w1")) == 1

    async def test_a_job_cannot_start_at_its_deadline(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send", expires_in=60)
        clock.advance(seconds=60)
        assert await queue.lease(worker="w1") == []

    async def test_a_job_expired_at_its_deadline_however_late_that_is_noticed(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        job = await queue.enqueue("email.send", expires_in=60)
        clock.advance(days=1)
        assert (await queue.get(job.id)).ended_at == START + timedelta(seconds=60)

    async def test_a_job_that_has_started_does_not_expire(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send", expires_in=60)
        [leased] = await queue.lease(worker="w1", lease_seconds=300)
        clock.advance(seconds=120)
        assert (await queue.ack(leased)).status is Status.SUCCEEDED

    async def test_a_retry_does_not_expire(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send", expires_in=60)
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom", retry_in=120)
        clock.advance(seconds=120)
        assert len(await queue.lease(worker="w1")) == 1

    async def test_a_job_that_was_given_back_does_not_expire(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send", expires_in=60)
        [leased] = await queue.lease(worker="w1")
        await queue.release(leased)
        clock.advance(seconds=120)
        assert len(await queue.lease(worker="w1")) == 1

    async def test_a_job_that_has_started_once_does_not_expire_when_others_do(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        other = await queue.enqueue("email.send", queue="others", expires_in=30)
        job = await queue.enqueue("email.send", expires_in=60)
        [leased] = await queue.lease(worker="w1")
        await queue.release(leased)
        clock.advance(seconds=120)
        assert (await queue.get(other.id)).cause is Cause.EXPIRED
        assert (await queue.get(job.id)).status is Status.QUEUED

    async def test_a_lost_job_does_not_expire(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send", expires_in=60)
        await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(seconds=120)
        assert len(await queue.lease(worker="w1")) == 1

    async def test_a_job_that_waits_for_a_parent_expires_too(self, queue: Queue, clock: FakeClock) -> None:
        parent = await queue.enqueue("report.collect")
        child = await queue.enqueue("report.build", parents=[parent.id], expires_in=60)
        clock.advance(seconds=60)
        assert (await queue.get(child.id)).cause is Cause.EXPIRED

    async def test_an_expired_child_stays_cancelled_when_its_parent_succeeds(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        parent = await queue.enqueue("report.collect")
        child = await queue.enqueue("report.build", parents=[parent.id], expires_in=60)
        clock.advance(seconds=60)
        [leased] = await queue.lease(worker="w1")
        assert leased.id == parent.id
        await queue.ack(leased)
        assert (await queue.get(child.id)).cause is Cause.EXPIRED

    async def test_the_children_of_an_expired_job_are_cancelled_at_that_moment(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        parent = await queue.enqueue("report.collect", expires_in=60)
        child = await queue.enqueue("report.build", parents=[parent.id])
        grandchild = await queue.enqueue("report.send", parents=[child.id])
        clock.advance(days=1)
        for job_id in (child.id, grandchild.id):
            job = await queue.get(job_id)
            assert (job.cause, job.ended_at) == (Cause.PARENT_FAILED, START + timedelta(seconds=60))

    async def test_a_child_that_runs_anyway_is_let_go_at_that_moment(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        parent = await queue.enqueue("report.collect", delay=3_600, expires_in=60)
        child = await queue.enqueue("report.build", parents=[parent.id], on_parent_failure="run")
        clock.advance(seconds=60)
        assert [leased.id for leased in await queue.lease(worker="w1")] == [child.id]

    @pytest.mark.parametrize(
        "options",
        [{"expires_at": START}, {"expires_at": START - timedelta(days=1)}, {"expires_in": 0}],
        ids=["now", "long past", "in no time"],
    )
    async def test_a_job_whose_deadline_has_passed_is_born_cancelled(
        self, queue: Queue, options: dict[str, object]
    ) -> None:
        job = await queue.get((await queue.enqueue("email.send", **options)).id)
        assert (job.status, job.cause, job.ended_at) == (Status.CANCELLED, Cause.EXPIRED, START)

    async def test_a_job_born_cancelled_says_why(self, queue: Queue) -> None:
        job = await queue.enqueue("email.send", expires_in=0)
        [change] = (await queue.history(job.id)).changes
        assert (change.actor, change.status) == ("rule:expiry", Status.CANCELLED)
        assert change.reason

    async def test_a_job_that_may_not_run_before_its_deadline_expires(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send", delay=120, expires_in=60)
        clock.advance(seconds=120)
        assert await queue.lease(worker="w1") == []

    async def test_a_job_kept_waiting_by_a_pause_expires(self, queue: Queue, clock: FakeClock) -> None:
        await queue.pause("default")
        await queue.enqueue("email.send", expires_in=60)
        clock.advance(seconds=60)
        await queue.resume("default")
        assert await queue.lease(worker="w1") == []

    async def test_the_history_names_the_rule_and_the_moment(self, queue: Queue, clock: FakeClock) -> None:
        job = await queue.enqueue("email.send", expires_in=60)
        clock.advance(days=1)
        [change] = (await queue.history(job.id)).changes
        assert (change.verb, change.actor, change.at) == (
            "expire",
            "rule:expiry",
            START + timedelta(seconds=60),
        )

    async def test_a_redriven_job_has_no_deadline_to_start(self, queue: Queue, clock: FakeClock) -> None:
        job = await queue.enqueue("email.send", expires_in=60)
        clock.advance(seconds=60)
        await queue.redrive(job.id)
        clock.advance(days=1)
        redriven = await queue.get(job.id)
        assert (redriven.status, redriven.expires_at) == (Status.QUEUED, None)

    async def test_a_job_cancelled_before_its_deadline_stays_as_it_is(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        job = await queue.enqueue("email.send", expires_in=60)
        await queue.cancel(job.id)
        clock.advance(seconds=60)
        cancelled = await queue.get(job.id)
        assert (cancelled.cause, cancelled.ended_at) == (Cause.CANCELLED, START)

    async def test_a_deadline_is_given_in_one_way_only(self, queue: Queue) -> None:
        with pytest.raises(InvalidInput) as caught:
            await queue.enqueue("email.send", expires_in=60, expires_at=START + timedelta(days=1))
        assert caught.value.facts["field"] == "expires_in"

    async def test_a_sweep_tells_how_many_jobs_it_found_expired(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue_many([queue.new("email.send", expires_in=60) for _ in range(3)])
        clock.advance(seconds=60)
        assert (await queue.sweep()).expired == 3
