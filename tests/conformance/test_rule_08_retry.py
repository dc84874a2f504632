"""Rule 8: how long a failed job waits, who may say so, and what does not use up an attempt."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from penstock.core.commands import Settled
from penstock.core.job import Cause, Outcome, Status
from penstock.core.retry import Retry
from penstock.queue import Queue
from penstock.testing import START, FakeClock


async def waits(queue: Queue, clock: FakeClock, failures: int) -> list[float]:
    """The seconds the one job of the queue waits after each of its failures."""
    seconds = []
    for _ in range(failures):
        [leased] = await queue.lease(worker="w1")
        run_at = (await queue.nack(leased, "boom")).run_at
        assert isinstance(run_at, datetime)
        seconds.append((run_at - clock.now()).total_seconds())
        clock.set(run_at)
    return seconds


class TestRetry:
    @pytest.mark.parametrize(
        ("retry", "expected"),
        [
            pytest.param(Retry.fixed(10, jitter=0), [10, 10, 10, 10], id="fixed"),
            pytest.param(Retry.fixed(0, jitter=0), [0, 0, 0, 0], id="fixed at nothing"),
            pytest.param(Retry.fixed(7_200, jitter=0), [7_200] * 4, id="fixed beyond the default cap"),
            pytest.param(Retry.linear(10, jitter=0), [10, 20, 30, 40], id="linear"),
            pytest.param(Retry.linear(10, cap=25, jitter=0), [10, 20, 25, 25], id="linear, capped"),
            pytest.param(Retry.exponential(5, jitter=0), [5, 10, 20, 40], id="exponential"),
            pytest.param(Retry.exponential(1, factor=10, jitter=0), [1, 10, 100, 1_000], id="by ten"),
            pytest.param(Retry.exponential(1, factor=1, jitter=0), [1, 1, 1, 1], id="by one"),
            pytest.param(Retry.exponential(5, cap=15, jitter=0), [5, 10, 15, 15], id="exponential, capped"),
            pytest.param(Retry.exponential(5, cap=0, jitter=0), [0, 0, 0, 0], id="capped at nothing"),
            pytest.param(Retry.exponential(0.5, jitter=0), [0.5, 1, 2, 4], id="parts of a second"),
        ],
    )
    async def test_waits_by_its_policy(
        self, queue: Queue, clock: FakeClock, retry: Retry, expected: list[float]
    ) -> None:
        await queue.enqueue("email.send", retry=retry, max_attempts=10)
        assert await waits(queue, clock, 4) == expected

    @pytest.mark.parametrize(
        ("retry", "expected"),
        [
            pytest.param(Retry.fixed(10), 10.5, id="a tenth by default"),
            pytest.param(Retry.fixed(10, jitter=1), 15, id="up to as much again"),
            pytest.param(Retry.linear(10, cap=5, jitter=0.4), 6, id="on top of the cap"),
        ],
    )
    async def test_jitter_adds_its_share_of_the_wait(
        self, queue: Queue, clock: FakeClock, retry: Retry, expected: float
    ) -> None:
        await queue.enqueue("email.send", retry=retry)
        assert await waits(queue, clock, 1) == [expected]

    async def test_a_patient_job_stays_at_the_cap(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send", retry=Retry.exponential(1, factor=100, jitter=0), max_attempts=100)
        assert (await waits(queue, clock, 90))[-1] == 3_600

    async def test_the_default_is_exponential_from_five_seconds_with_a_tenth_of_jitter(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send")
        assert await waits(queue, clock, 3) == [5.25, 10.5, 21]

    async def test_a_failed_job_is_not_leased_before_its_wait_is_over(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send", retry=Retry.fixed(10, jitter=0))
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom")
        clock.advance(seconds=9.999999)
        assert await queue.lease(worker="w1") == []

    async def test_a_failed_job_is_leased_when_its_wait_is_over(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send", retry=Retry.fixed(10, jitter=0))
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom")
        clock.advance(seconds=10)
        assert len(await queue.lease(worker="w1")) == 1

    async def test_the_answer_says_when_the_job_runs_again(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send", retry=Retry.fixed(10, jitter=0))
        [leased] = await queue.lease(worker="w1")
        settled = await queue.nack(leased, "boom")
        assert settled == Settled(leased.id, Status.QUEUED, clock.now() + timedelta(seconds=10))

    async def test_a_failed_job_shows_its_last_error(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom")
        assert (await queue.get(leased.id)).error == "boom"

    async def test_a_queue_may_set_the_policy_of_its_jobs(self, queue: Queue, clock: FakeClock) -> None:
        await queue.configure("default", retry=Retry.fixed(77, jitter=0))
        await queue.enqueue("email.send")
        assert await waits(queue, clock, 2) == [77, 77]

    async def test_a_queues_policy_holds_for_jobs_that_are_already_in(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send")
        await queue.configure("default", retry=Retry.fixed(77, jitter=0))
        assert await waits(queue, clock, 1) == [77]

    async def test_a_jobs_own_policy_beats_its_queues(self, queue: Queue, clock: FakeClock) -> None:
        await queue.configure("default", retry=Retry.fixed(77, jitter=0))
        await queue.enqueue("email.send", retry=Retry.fixed(3, jitter=0))
        assert await waits(queue, clock, 1) == [3]

    async def test_a_handlers_own_wait_beats_the_policy(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send", retry=Retry.fixed(3, jitter=0))
        [leased] = await queue.lease(worker="w1")
        settled = await queue.nack(leased, "boom", retry_in=123)
        assert settled.run_at == clock.now() + timedelta(seconds=123)

    async def test_a_handlers_own_wait_may_be_nothing(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom", retry_in=0)
        assert len(await queue.lease(worker="w1")) == 1

    async def test_a_handlers_own_wait_is_a_failure_all_the_same(self, queue: Queue) -> None:
        await queue.enqueue("email.send", max_attempts=1)
        [leased] = await queue.lease(worker="w1")
        assert (await queue.nack(leased, "boom", retry_in=5)).status is Status.DEAD

    async def test_a_handler_may_refuse_to_be_retried(self, queue: Queue) -> None:
        await queue.enqueue("email.send", max_attempts=10)
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "no such customer", retry=False)
        job = await queue.get(leased.id)
        assert (job.status, job.cause) == (Status.DEAD, Cause.REFUSED)

    async def test_a_job_whose_handler_refused_is_held_if_it_says_so(self, queue: Queue) -> None:
        await queue.enqueue("email.send", on_exhausted="hold")
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "no such customer", retry=False)
        job = await queue.get(leased.id)
        assert (job.status, job.cause) == (Status.HELD, Cause.REFUSED)

    async def test_a_snooze_does_not_use_up_an_attempt(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.snooze(leased, 60)
        assert (await queue.get(leased.id)).attempts == 0

    async def test_a_snoozed_job_waits_as_long_as_it_said(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        settled = await queue.snooze(leased, timedelta(minutes=1))
        assert settled == Settled(leased.id, Status.QUEUED, clock.now() + timedelta(seconds=60))

    async def test_a_job_may_be_snoozed_for_ever(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send", max_attempts=1)
        for _ in range(10):
            [leased] = await queue.lease(worker="w1")
            await queue.snooze(leased, 60)
            clock.advance(seconds=60)
        assert (await queue.get(leased.id)).status is Status.QUEUED

    async def test_a_release_does_not_use_up_an_attempt(self, queue: Queue) -> None:
        await queue.enqueue("email.send", max_attempts=1)
        [leased] = await queue.lease(worker="w1")
        await queue.release(leased)
        job = await queue.get(leased.id)
        assert (job.status, job.attempts) == (Status.QUEUED, 0)

    async def test_a_released_job_can_be_leased_at_once(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.release(leased)
        assert len(await queue.lease(worker="w2")) == 1

    async def test_a_released_job_keeps_its_place_in_line(self, queue: Queue, clock: FakeClock) -> None:
        first = await queue.enqueue("email.send")
        clock.advance(seconds=1)
        second = await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        clock.advance(seconds=1)
        settled = await queue.release(leased)
        assert settled.run_at == START
        assert [job.id for job in await queue.lease(worker="w2", limit=2)] == [first.id, second.id]

    async def test_a_job_released_with_a_delay_waits_that_long(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.release(leased, delay=60)
        clock.advance(seconds=59)
        assert await queue.lease(worker="w2") == []
        clock.advance(seconds=1)
        assert len(await queue.lease(worker="w2")) == 1

    async def test_a_job_may_be_released_again_and_again(self, queue: Queue) -> None:
        await queue.enqueue("email.send", max_attempts=1)
        for _ in range(5):
            [leased] = await queue.lease(worker="w1")
            await queue.release(leased)
        assert (await queue.get(leased.id)).leases == 5

    async def test_the_wait_counts_failed_attempts_only(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send", retry=Retry.linear(10, jitter=0))
        [leased] = await queue.lease(worker="w1")
        await queue.release(leased)
        [leased] = await queue.lease(worker="w1")
        await queue.snooze(leased, 0)
        assert await waits(queue, clock, 2) == [10, 20]

    async def test_a_lost_attempt_makes_the_next_wait_longer(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send", retry=Retry.linear(10, jitter=0))
        await queue.lease(worker="w1")
        clock.advance(minutes=5)
        assert await waits(queue, clock, 1) == [20]

    async def test_released_and_snoozed_attempts_are_in_the_history(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        job = await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.release(leased)
        [leased] = await queue.lease(worker="w1")
        await queue.snooze(leased, 60)
        attempts = (await queue.history(job.id)).attempts
        assert [attempt.outcome for attempt in attempts] == [Outcome.RELEASED, Outcome.SNOOZED]
