"""Rule 7: an attempt counts from its lease on; a lease that ran out is an attempt that ended lost."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.core.commands import Beat
from penstock.core.errors import LeaseLost
from penstock.core.job import Cause, Outcome, Status
from penstock.queue import Queue
from penstock.testing import START, FakeClock


class TestAttemptsCountAtLease:
    async def test_an_attempt_is_used_up_as_soon_as_the_job_is_leased(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        assert (await queue.get(leased.id)).attempts == 1

    async def test_a_lost_job_can_be_leased_at_the_moment_of_expiry_though_no_sweep_has_passed(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send")
        [first] = await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(seconds=30)
        [second] = await queue.lease(worker="w2")
        assert second.id == first.id

    async def test_a_lost_job_reads_as_queued_at_the_moment_of_expiry_though_no_sweep_has_passed(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(seconds=30)
        assert (await queue.get(leased.id)).status is Status.QUEUED

    async def test_a_lost_job_counts_as_queued_though_no_sweep_has_passed(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send")
        await queue.lease(worker="w1")
        clock.advance(minutes=5)
        counts = (await queue.queue("default")).counts
        assert (counts.get(Status.QUEUED, 0), counts.get(Status.RUNNING, 0)) == (1, 0)

    async def test_a_lost_job_is_found_as_queued_though_no_sweep_has_passed(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        job = await queue.enqueue("email.send")
        await queue.lease(worker="w1")
        clock.advance(minutes=5)
        assert [found.id for found in (await queue.find(status="queued")).jobs] == [job.id]

    async def test_a_lost_lease_uses_up_its_attempt(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send")
        await queue.lease(worker="w1")
        clock.advance(minutes=5)
        [second] = await queue.lease(worker="w2")
        assert second.job.attempts == 2

    async def test_a_lost_attempt_is_in_the_history(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(seconds=30)
        [attempt] = (await queue.history(leased.id)).attempts
        assert (attempt.outcome, attempt.worker, attempt.number) == (Outcome.LOST, "w1", 1)

    async def test_a_lost_attempt_says_what_happened(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        clock.advance(minutes=5)
        error = (await queue.get(leased.id)).error
        assert error is not None
        assert "w1" in error

    async def test_a_lost_attempt_ended_when_its_lease_did_however_late_that_is_noticed(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(days=3)
        [attempt] = (await queue.history(leased.id)).attempts
        assert attempt.ended_at == START + timedelta(seconds=30)

    async def test_a_lost_job_may_run_again_from_the_moment_of_expiry(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(days=3)
        assert (await queue.get(leased.id)).run_at == START + timedelta(seconds=30)

    async def test_lost_jobs_take_their_place_in_line_by_the_moment_of_expiry(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue_many([queue.new("email.send"), queue.new("email.send")])
        [longer] = await queue.lease(worker="w1", lease_seconds=60)
        [shorter] = await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(minutes=5)
        assert [leased.id for leased in await queue.lease(worker="w2", limit=2)] == [shorter.id, longer.id]

    async def test_a_job_lost_on_its_last_attempt_is_dead(self, queue: Queue, clock: FakeClock) -> None:
        job = await queue.enqueue("email.send", max_attempts=1)
        await queue.lease(worker="w1")
        clock.advance(minutes=5)
        dead = await queue.get(job.id)
        assert (dead.status, dead.cause) == (Status.DEAD, Cause.EXHAUSTED)

    async def test_a_job_lost_on_its_last_attempt_died_when_its_lease_ran_out(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        job = await queue.enqueue("email.send", max_attempts=1)
        await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(days=3)
        assert (await queue.get(job.id)).ended_at == START + timedelta(seconds=30)

    async def test_a_job_lost_on_its_last_attempt_is_held_if_it_says_so(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        job = await queue.enqueue("email.send", max_attempts=1, on_exhausted="hold")
        await queue.lease(worker="w1")
        clock.advance(minutes=5)
        held = await queue.get(job.id)
        assert (held.status, held.cause) == (Status.HELD, Cause.EXHAUSTED)

    async def test_a_job_that_kills_its_worker_does_not_loop_for_ever(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send", max_attempts=3)
        leases = 0
        while await queue.lease(worker="w1"):
            leases += 1
            clock.advance(minutes=5)
        assert leases == 3

    async def test_lost_and_failed_attempts_count_together(self, queue: Queue, clock: FakeClock) -> None:
        job = await queue.enqueue("email.send", max_attempts=2)
        await queue.lease(worker="w1")
        clock.advance(minutes=5)
        [second] = await queue.lease(worker="w2")
        await queue.nack(second, "boom")
        assert (await queue.get(job.id)).status is Status.DEAD

    async def test_a_lost_job_waits_for_no_retry_delay(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send")
        for _ in range(3):
            [leased] = await queue.lease(worker="w1", lease_seconds=30)
            clock.advance(seconds=30)
        assert (await queue.get(leased.id)).run_at == clock.now()

    async def test_the_queue_says_how_long_a_lease_is(self, queue: Queue, clock: FakeClock) -> None:
        await queue.configure("default", lease_seconds=120)
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        assert leased.job.lease is not None
        assert leased.job.lease.expires_at == clock.now() + timedelta(seconds=120)

    async def test_the_worker_may_say_how_long_its_lease_is(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=7.5)
        assert leased.job.lease is not None
        assert leased.job.lease.expires_at == clock.now() + timedelta(seconds=7.5)

    async def test_a_heartbeat_keeps_the_lease_for_its_length_from_now_on(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(seconds=20)
        assert await queue.heartbeat(leased) == Beat(clock.now() + timedelta(seconds=30), False)

    async def test_heartbeats_keep_a_job_far_beyond_its_first_lease(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=30)
        for _ in range(10):
            clock.advance(seconds=29)
            await queue.heartbeat(leased)
        assert (await queue.ack(leased)).status is Status.SUCCEEDED

    async def test_a_job_is_lost_when_its_heartbeats_stop(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(seconds=20)
        await queue.heartbeat(leased)
        clock.advance(seconds=30)
        [attempt] = (await queue.history(leased.id)).attempts
        assert (attempt.outcome, attempt.ended_at) == (Outcome.LOST, START + timedelta(seconds=50))

    async def test_a_heartbeat_does_not_start_another_attempt(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        clock.advance(seconds=5)
        await queue.heartbeat(leased)
        assert (await queue.get(leased.id)).attempts == 1

    async def test_a_heartbeat_at_the_moment_of_expiry_is_too_late(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(seconds=30)
        with pytest.raises(LeaseLost):
            await queue.heartbeat(leased)

    async def test_a_heartbeat_may_change_the_length_of_the_lease_for_later_ones_too(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=30)
        await queue.heartbeat(leased, lease_seconds=300)
        clock.advance(seconds=200)
        assert (await queue.heartbeat(leased)).expires_at == clock.now() + timedelta(seconds=300)

    async def test_a_heartbeat_may_shorten_the_lease(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1", lease_seconds=3_600)
        await queue.heartbeat(leased, lease_seconds=10)
        clock.advance(seconds=10)
        assert len(await queue.lease(worker="w2")) == 1

    async def test_a_heartbeat_carries_progress(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.heartbeat(leased, progress={"percent": 40})
        assert (await queue.get(leased.id)).progress == '{"percent":40}'

    async def test_a_heartbeat_without_progress_keeps_what_was_said_before(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.heartbeat(leased, progress={"percent": 40})
        await queue.heartbeat(leased)
        assert (await queue.get(leased.id)).progress == '{"percent":40}'

    async def test_a_new_attempt_starts_without_progress(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send")
        [first] = await queue.lease(worker="w1")
        await queue.heartbeat(first, progress={"percent": 40})
        clock.advance(minutes=5)
        [second] = await queue.lease(worker="w2")
        assert second.job.progress is None

    async def test_a_sweep_tells_how_many_leases_it_found_lost(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue_many([queue.new("email.send") for _ in range(3)])
        await queue.lease(worker="w1", limit=3)
        clock.advance(minutes=5)
        assert (await queue.sweep()).lost == 3

    async def test_a_sweep_finds_what_a_read_would_have_found(self, queue: Queue, clock: FakeClock) -> None:
        job = await queue.enqueue("email.send")
        await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(days=1)
        await queue.sweep()
        assert (await queue.get(job.id)).run_at == START + timedelta(seconds=30)
