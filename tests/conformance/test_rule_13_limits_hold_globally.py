"""Rule 13: limits hold for all workers together; an ordering key runs one job at a time, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from penstock.core.commands import Settled
from penstock.core.job import JobId, Status
from penstock.core.limits import Rate
from penstock.core.ports import Store
from penstock.queue import Held, Queue
from penstock.testing import START, FakeClock

Settle = Callable[[Queue, Held], Awaitable[Settled]]


async def enqueue(queue: Queue, /, count: int, **options: object) -> list[JobId]:
    """Some jobs that are alike; their ids, in order."""
    jobs = [queue.new("email.send", **options) for _ in range(count)]
    await queue.enqueue_many(jobs)
    return [job.id for job in jobs]


async def leased_ids(queue: Queue, limit: int = 10, name: str = "default") -> list[JobId]:
    return [leased.id for leased in await queue.lease(name, worker="w1", limit=limit)]


class TestLimitsHoldGlobally:
    # ── How many run at once ──────────────────────────────────────────────────────────────────────

    async def test_no_more_jobs_run_at_once_than_the_queue_allows(self, queue: Queue) -> None:
        await queue.configure("default", max_concurrency=3)
        await enqueue(queue, 5)
        assert len(await leased_ids(queue)) == 3

    async def test_the_limit_is_one_for_all_workers(self, queue: Queue, store: Store) -> None:
        await queue.configure("default", max_concurrency=3)
        await enqueue(queue, 10)
        answers = await asyncio.gather(
            *(Queue(store).lease(worker=f"w{number}", limit=2) for number in range(5))
        )
        assert sum(len(answer) for answer in answers) == 3

    async def test_each_queue_has_its_own_limit(self, queue: Queue) -> None:
        await queue.configure("emails", max_concurrency=1)
        await enqueue(queue, 2, queue="emails")
        await enqueue(queue, 2, queue="reports")
        assert len(await leased_ids(queue, name="emails")) == 1
        assert len(await leased_ids(queue, name="reports")) == 2

    async def test_a_settle_makes_room_for_the_next_job(self, queue: Queue, settle: Settle) -> None:
        await queue.configure("default", max_concurrency=1)
        await enqueue(queue, 2)
        [leased] = await queue.lease(worker="w1")
        assert await queue.lease(worker="w2") == []
        await settle(queue, leased)
        assert len(await queue.lease(worker="w2")) == 1

    async def test_a_lost_lease_makes_room_for_the_next_job(self, queue: Queue, clock: FakeClock) -> None:
        await queue.configure("default", max_concurrency=1)
        await enqueue(queue, 2)
        await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(seconds=30)
        assert len(await leased_ids(queue)) == 1

    async def test_a_job_asked_to_stop_takes_up_room_until_it_does(self, queue: Queue) -> None:
        await queue.configure("default", max_concurrency=1)
        await enqueue(queue, 2)
        [leased] = await queue.lease(worker="w1")
        await queue.cancel(leased.id)
        assert await queue.lease(worker="w2") == []

    async def test_jobs_that_do_not_run_take_up_no_room(self, queue: Queue) -> None:
        await queue.configure("default", max_concurrency=1)
        [first, second] = await enqueue(queue, 2)
        await queue.cancel(first)
        assert await leased_ids(queue) == [second]

    async def test_raising_the_limit_lets_more_run_at_once(self, queue: Queue) -> None:
        await queue.configure("default", max_concurrency=1)
        await enqueue(queue, 5)
        await leased_ids(queue)
        await queue.configure("default", max_concurrency=3)
        assert len(await leased_ids(queue)) == 2

    async def test_lifting_the_limit_lets_all_run(self, queue: Queue) -> None:
        await queue.configure("default", max_concurrency=1)
        await enqueue(queue, 5)
        await leased_ids(queue)
        await queue.configure("default", max_concurrency=None)
        assert len(await leased_ids(queue)) == 4

    async def test_lowering_the_limit_stops_nobody_but_starts_nobody_either(self, queue: Queue) -> None:
        await enqueue(queue, 5)
        running = await queue.lease(worker="w1", limit=3)
        await queue.configure("default", max_concurrency=2)
        await queue.ack(running[0])
        assert await leased_ids(queue) == []
        await queue.ack(running[1])
        assert len(await leased_ids(queue)) == 1

    # ── How many run at once for each key ─────────────────────────────────────────────────────────

    async def test_no_more_jobs_of_one_key_run_at_once_than_the_queue_allows(self, queue: Queue) -> None:
        await queue.configure("default", max_concurrency_per_key=2)
        acme = await enqueue(queue, 3, key="acme")
        zeta = await enqueue(queue, 3, key="zeta")
        assert await leased_ids(queue) == [*acme[:2], *zeta[:2]]

    async def test_the_limit_per_key_is_one_for_all_workers(self, queue: Queue, store: Store) -> None:
        await queue.configure("default", max_concurrency_per_key=2)
        await enqueue(queue, 10, key="acme")
        answers = await asyncio.gather(*(Queue(store).lease(worker=f"w{number}") for number in range(8)))
        assert sum(len(answer) for answer in answers) == 2

    async def test_jobs_without_a_key_are_not_limited_per_key(self, queue: Queue) -> None:
        await queue.configure("default", max_concurrency_per_key=1)
        await enqueue(queue, 3)
        assert len(await leased_ids(queue)) == 3

    async def test_a_full_key_does_not_keep_others_waiting_whatever_its_priority(self, queue: Queue) -> None:
        await queue.configure("default", max_concurrency_per_key=1)
        await enqueue(queue, 2, key="acme", priority=9)
        [other] = await enqueue(queue, 1, key="zeta")
        assert (await leased_ids(queue))[1:] == [other]

    async def test_a_settle_makes_room_for_the_next_job_of_its_key(
        self, queue: Queue, settle: Settle
    ) -> None:
        await queue.configure("default", max_concurrency_per_key=1)
        await enqueue(queue, 2, key="acme")
        [leased] = await queue.lease(worker="w1")
        await settle(queue, leased)
        assert len(await leased_ids(queue)) == 1

    async def test_a_lost_lease_makes_room_for_the_next_job_of_its_key(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.configure("default", max_concurrency_per_key=1)
        await enqueue(queue, 2, key="acme")
        await queue.lease(worker="w1")
        clock.advance(minutes=5)
        assert len(await leased_ids(queue)) == 1

    async def test_a_key_counts_within_its_queue(self, queue: Queue) -> None:
        for name in ("emails", "reports"):
            await queue.configure(name, max_concurrency_per_key=1)
            await enqueue(queue, 2, queue=name, key="acme")
        assert len(await leased_ids(queue, name="emails")) == 1
        assert len(await leased_ids(queue, name="reports")) == 1

    async def test_raising_the_limit_per_key_lets_more_run_at_once(self, queue: Queue) -> None:
        await queue.configure("default", max_concurrency_per_key=1)
        await enqueue(queue, 5, key="acme")
        await leased_ids(queue)
        await queue.configure("default", max_concurrency_per_key=3)
        assert len(await leased_ids(queue)) == 2

    async def test_a_limit_per_key_set_while_jobs_run_counts_them(self, queue: Queue) -> None:
        await enqueue(queue, 5, key="acme")
        await leased_ids(queue, 2)
        await queue.configure("default", max_concurrency_per_key=2)
        assert await leased_ids(queue) == []

    async def test_both_limits_hold_at_once(self, queue: Queue) -> None:
        await queue.configure("default", max_concurrency=3, max_concurrency_per_key=2)
        acme = await enqueue(queue, 5, key="acme")
        zeta = await enqueue(queue, 5, key="zeta")
        assert await leased_ids(queue) == [*acme[:2], zeta[0]]

    # ── How many start in a span of time ──────────────────────────────────────────────────────────

    async def test_leases_are_spaced_by_the_rate(self, queue: Queue, clock: FakeClock) -> None:
        await queue.configure("default", rate=Rate(2, per=10))
        await enqueue(queue, 10)
        started = []
        for second in range(21):
            started += [second] * len(await leased_ids(queue))
            clock.advance(seconds=1)
        assert started == [0, 5, 10, 15, 20]

    async def test_the_next_lease_is_allowed_at_its_moment_exactly(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.configure("default", rate=Rate(1, per=10))
        await enqueue(queue, 2)
        await leased_ids(queue)
        clock.advance(seconds=9.999999)
        assert await leased_ids(queue) == []
        clock.advance(microseconds=1)
        assert len(await leased_ids(queue)) == 1

    async def test_the_rate_is_one_for_all_workers(self, queue: Queue, store: Store) -> None:
        await queue.configure("default", rate=Rate(1, per=10))
        await enqueue(queue, 10)
        answers = await asyncio.gather(*(Queue(store).lease(worker=f"w{number}") for number in range(8)))
        assert sum(len(answer) for answer in answers) == 1

    async def test_a_burst_lets_that_many_go_at_once(self, queue: Queue) -> None:
        await queue.configure("default", rate=Rate(2, per=10, burst=3))
        await enqueue(queue, 10)
        assert len(await leased_ids(queue)) == 3

    async def test_after_a_burst_leases_are_spaced_again(self, queue: Queue, clock: FakeClock) -> None:
        await queue.configure("default", rate=Rate(2, per=10, burst=3))
        await enqueue(queue, 10)
        started = []
        for second in range(11):
            started += [second] * len(await leased_ids(queue))
            clock.advance(seconds=1)
        assert started == [0, 0, 0, 5, 10]

    async def test_a_burst_comes_back_after_a_rest(self, queue: Queue, clock: FakeClock) -> None:
        await queue.configure("default", rate=Rate(2, per=10, burst=3))
        await enqueue(queue, 10)
        await leased_ids(queue)
        clock.advance(seconds=15)
        assert len(await leased_ids(queue)) == 3

    async def test_time_in_which_nothing_was_leased_is_not_saved_up(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.configure("default", rate=Rate(1, per=10))
        await enqueue(queue, 5)
        clock.advance(hours=1)
        assert len(await leased_ids(queue)) == 1

    async def test_a_settle_does_not_give_its_place_in_the_rate_back(
        self, queue: Queue, settle: Settle
    ) -> None:
        await queue.configure("default", rate=Rate(1, per=60))
        await enqueue(queue, 2)
        [leased] = await queue.lease(worker="w1")
        await settle(queue, leased)
        assert await leased_ids(queue) == []

    async def test_each_queue_has_its_own_rate(self, queue: Queue) -> None:
        for name in ("emails", "reports"):
            await queue.configure(name, rate=Rate(1, per=60))
            await enqueue(queue, 2, queue=name)
        assert len(await leased_ids(queue, name="emails")) == 1
        assert len(await leased_ids(queue, name="reports")) == 1

    async def test_lifting_the_rate_lets_the_rest_go(self, queue: Queue) -> None:
        await queue.configure("default", rate=Rate(1, per=60))
        await enqueue(queue, 5)
        await leased_ids(queue)
        await queue.configure("default", rate=None)
        assert len(await leased_ids(queue)) == 4

    async def test_raising_the_rate_holds_from_the_next_lease_on(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.configure("default", rate=Rate(1, per=3_600))
        await enqueue(queue, 5)
        await leased_ids(queue)
        await queue.configure("default", rate=Rate(1, per=1))
        clock.advance(seconds=1)
        assert len(await leased_ids(queue)) == 1

    async def test_lowering_the_rate_spaces_the_leases_that_follow(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.configure("default", rate=Rate(1, per=1))
        await enqueue(queue, 5)
        await leased_ids(queue)
        await queue.configure("default", rate=Rate(1, per=3_600))
        clock.advance(hours=1)
        await leased_ids(queue)
        clock.advance(minutes=59)
        assert await leased_ids(queue) == []

    # ── How many start in a span of time for each key ─────────────────────────────────────────────

    async def test_leases_of_one_key_are_spaced_by_the_rate_per_key(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.configure("default", rate_per_key=Rate(1, per=10))
        acme = await enqueue(queue, 2, key="acme")
        zeta = await enqueue(queue, 2, key="zeta")
        assert await leased_ids(queue) == [acme[0], zeta[0]]
        clock.advance(seconds=10)
        assert await leased_ids(queue) == [acme[1], zeta[1]]

    async def test_keys_that_started_at_different_times_are_spaced_each_on_its_own(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.configure("default", rate_per_key=Rate(1, per=10))
        acme = await enqueue(queue, 2, key="acme")
        await leased_ids(queue)
        clock.advance(seconds=4)
        zeta = await enqueue(queue, 2, key="zeta")
        await leased_ids(queue)
        clock.advance(seconds=6)
        assert await leased_ids(queue) == [acme[1]]
        clock.advance(seconds=4)
        assert await leased_ids(queue) == [zeta[1]]

    async def test_a_burst_per_key_lets_that_many_of_each_key_go_at_once(self, queue: Queue) -> None:
        await queue.configure("default", rate_per_key=Rate(1, per=10, burst=2))
        acme = await enqueue(queue, 3, key="acme")
        zeta = await enqueue(queue, 3, key="zeta")
        assert await leased_ids(queue) == [*acme[:2], *zeta[:2]]

    async def test_jobs_without_a_key_have_no_rate_per_key(self, queue: Queue) -> None:
        await queue.configure("default", rate_per_key=Rate(1, per=10))
        await enqueue(queue, 3)
        assert len(await leased_ids(queue)) == 3

    async def test_a_key_that_had_no_jobs_for_a_while_has_not_forgotten_its_rate(self, queue: Queue) -> None:
        await queue.configure("default", rate_per_key=Rate(1, per=60))
        await enqueue(queue, 1, key="acme")
        [leased] = await queue.lease(worker="w1")
        await queue.ack(leased)
        await enqueue(queue, 1, key="acme")
        assert await leased_ids(queue) == []

    async def test_a_rate_per_key_and_a_limit_per_key_hold_at_once(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.configure("default", rate_per_key=Rate(1, per=10), max_concurrency_per_key=1)
        await enqueue(queue, 3, key="acme")
        [first] = await queue.lease(worker="w1", lease_seconds=3_600)
        clock.advance(seconds=20)
        assert await leased_ids(queue) == []
        await queue.ack(first)
        assert len(await leased_ids(queue)) == 1

    async def test_a_rate_and_a_rate_per_key_hold_at_once(self, queue: Queue, clock: FakeClock) -> None:
        await queue.configure("default", rate=Rate(1, per=1), rate_per_key=Rate(1, per=10))
        acme = await enqueue(queue, 2, key="acme")
        zeta = await enqueue(queue, 2, key="zeta")
        started: dict[JobId, int] = {}
        for second in range(12):
            started |= dict.fromkeys(await leased_ids(queue), second)
            clock.advance(seconds=1)
        assert started == {acme[0]: 0, zeta[0]: 1, acme[1]: 10, zeta[1]: 11}

    async def test_raising_the_rate_per_key_holds_from_the_next_lease_on(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.configure("default", rate_per_key=Rate(1, per=3_600))
        await enqueue(queue, 5, key="acme")
        await leased_ids(queue)
        await queue.configure("default", rate_per_key=Rate(1, per=1))
        clock.advance(seconds=1)
        assert len(await leased_ids(queue)) == 1

    # ── In order ──────────────────────────────────────────────────────────────────────────────────

    async def test_one_job_of_an_ordering_key_runs_at_a_time(self, queue: Queue) -> None:
        first, _ = await enqueue(queue, 2, ordering_key="cart-1")
        assert await leased_ids(queue) == [first]
        assert await leased_ids(queue) == []

    async def test_a_batch_never_takes_two_jobs_of_one_ordering_key(self, queue: Queue) -> None:
        ones = await enqueue(queue, 10, ordering_key="cart-1")
        twos = await enqueue(queue, 10, ordering_key="cart-2")
        assert await leased_ids(queue, 20) == [ones[0], twos[0]]

    async def test_workers_that_lease_at_once_never_get_two_jobs_of_one_ordering_key(
        self, queue: Queue, store: Store
    ) -> None:
        await enqueue(queue, 10, ordering_key="cart-1")
        answers = await asyncio.gather(
            *(Queue(store).lease(worker=f"w{number}", limit=3) for number in range(5))
        )
        assert sum(len(answer) for answer in answers) == 1

    async def test_the_next_of_an_ordering_key_runs_when_the_one_before_has_succeeded(
        self, queue: Queue
    ) -> None:
        ids = await enqueue(queue, 3, ordering_key="cart-1")
        ran = []
        for _ in ids:
            [leased] = await queue.lease(worker="w1", limit=10)
            ran.append(leased.id)
            await queue.ack(leased)
        assert ran == ids

    async def test_an_ordering_key_goes_by_the_time_asked_for_whatever_the_priority(
        self, queue: Queue
    ) -> None:
        [second] = await enqueue(queue, 1, ordering_key="cart-1", priority=9)
        [first] = await enqueue(
            queue, 1, ordering_key="cart-1", priority=-9, run_at=START - timedelta(hours=1)
        )
        [leased] = await queue.lease(worker="w1", limit=10)
        assert leased.id == first
        await queue.ack(leased)
        assert await leased_ids(queue) == [second]

    async def test_an_ordering_key_goes_by_id_among_jobs_of_one_time(self, queue: Queue) -> None:
        low, high = (queue.new("email.send", ordering_key="cart-1", priority=p) for p in (0, 9))
        await queue.enqueue_many([high, low])
        assert await leased_ids(queue) == [low.id]

    async def test_a_job_of_the_future_does_not_keep_an_ordering_key_waiting(self, queue: Queue) -> None:
        await enqueue(queue, 1, ordering_key="cart-1", delay=60)
        [due] = await enqueue(queue, 1, ordering_key="cart-1")
        assert await leased_ids(queue) == [due]

    async def test_a_failed_job_keeps_its_followers_waiting_until_it_is_run_again(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        first, _ = await enqueue(queue, 2, ordering_key="cart-1")
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom", retry_in=60)
        assert await leased_ids(queue) == []
        clock.advance(seconds=60)
        assert await leased_ids(queue) == [first]

    async def test_a_follower_runs_once_the_failed_job_has_succeeded(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        _, second = await enqueue(queue, 2, ordering_key="cart-1")
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom", retry_in=60)
        clock.advance(seconds=60)
        [leased] = await queue.lease(worker="w1")
        await queue.ack(leased)
        assert await leased_ids(queue) == [second]

    @pytest.mark.parametrize("settle", ["release", "snooze"], indirect=True)
    async def test_a_job_given_back_keeps_its_place_behind_its_ordering_key(
        self, queue: Queue, clock: FakeClock, settle: Settle
    ) -> None:
        first, _ = await enqueue(queue, 2, ordering_key="cart-1")
        [leased] = await queue.lease(worker="w1")
        await settle(queue, leased)
        clock.advance(seconds=10)
        assert await leased_ids(queue) == [first]

    async def test_a_lost_job_keeps_its_place_behind_its_ordering_key(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        first, _ = await enqueue(queue, 2, ordering_key="cart-1")
        await queue.lease(worker="w1")
        clock.advance(minutes=5)
        assert await leased_ids(queue) == [first]

    async def test_a_held_job_keeps_its_followers_waiting(self, queue: Queue, clock: FakeClock) -> None:
        await enqueue(queue, 2, ordering_key="cart-1", on_exhausted="hold")
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom", retry=False)
        clock.advance(days=1)
        assert await leased_ids(queue) == []

    async def test_a_held_job_that_is_redriven_goes_first(self, queue: Queue) -> None:
        first, _ = await enqueue(queue, 2, ordering_key="cart-1", on_exhausted="hold")
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom", retry=False)
        await queue.redrive(first)
        assert await leased_ids(queue) == [first]

    async def test_a_held_job_that_is_cancelled_lets_its_followers_go(self, queue: Queue) -> None:
        first, second = await enqueue(queue, 2, ordering_key="cart-1", on_exhausted="hold")
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom", retry=False)
        await queue.cancel(first)
        assert await leased_ids(queue) == [second]

    async def test_a_dead_job_lets_its_followers_go(self, queue: Queue) -> None:
        _, second = await enqueue(queue, 2, ordering_key="cart-1")
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom", retry=False)
        assert await leased_ids(queue) == [second]

    async def test_a_job_lost_for_good_lets_its_followers_go(self, queue: Queue, clock: FakeClock) -> None:
        _, second = await enqueue(queue, 2, ordering_key="cart-1", max_attempts=1)
        await queue.lease(worker="w1")
        clock.advance(minutes=5)
        assert await leased_ids(queue) == [second]

    async def test_a_cancelled_job_lets_its_followers_go(self, queue: Queue) -> None:
        first, second = await enqueue(queue, 2, ordering_key="cart-1")
        await queue.cancel(first)
        assert await leased_ids(queue) == [second]

    async def test_an_expired_job_lets_its_followers_go(self, queue: Queue, clock: FakeClock) -> None:
        await queue.pause("default")
        await enqueue(queue, 1, ordering_key="cart-1", expires_in=60)
        [second] = await enqueue(queue, 1, ordering_key="cart-1")
        clock.advance(seconds=60)
        await queue.resume("default")
        assert await leased_ids(queue) == [second]

    async def test_a_follower_that_is_cancelled_is_passed_over(self, queue: Queue) -> None:
        _, second, third = await enqueue(queue, 3, ordering_key="cart-1")
        [leased] = await queue.lease(worker="w1")
        await queue.cancel(second)
        await queue.ack(leased)
        assert await leased_ids(queue) == [third]

    async def test_a_dead_job_that_is_redriven_waits_for_the_one_that_runs_and_goes_next(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        first, second, _ = await enqueue(queue, 3, ordering_key="cart-1")
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom", retry=False)
        [leased] = await queue.lease(worker="w1")
        assert leased.id == second
        clock.advance(seconds=10)  # its run_at is now; its place in the order is what it was
        await queue.redrive(first)
        assert await leased_ids(queue) == []
        await queue.ack(leased)
        assert await leased_ids(queue) == [first]

    async def test_two_ordering_keys_do_not_wait_for_each_other(self, queue: Queue) -> None:
        await enqueue(queue, 1, ordering_key="cart-1")
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom", retry_in=3_600)
        [other] = await enqueue(queue, 1, ordering_key="cart-2")
        assert await leased_ids(queue) == [other]

    async def test_jobs_without_an_ordering_key_wait_for_nobody(self, queue: Queue) -> None:
        await enqueue(queue, 1, ordering_key="cart-1")
        free = await enqueue(queue, 3)
        assert (await leased_ids(queue))[1:] == free

    async def test_an_ordering_key_counts_within_its_queue(self, queue: Queue) -> None:
        for name in ("emails", "reports"):
            await enqueue(queue, 1, queue=name, ordering_key="cart-1")
        assert len(await leased_ids(queue, name="emails")) == 1
        assert len(await leased_ids(queue, name="reports")) == 1

    async def test_a_job_that_waits_for_a_parent_does_not_keep_its_ordering_key_waiting(
        self, queue: Queue
    ) -> None:
        parent = await queue.enqueue("report.collect", queue="reports")
        await queue.enqueue("email.send", ordering_key="cart-1", parents=[parent.id])
        [free] = await enqueue(queue, 1, ordering_key="cart-1")
        assert await leased_ids(queue) == [free]

    async def test_a_child_let_go_late_takes_its_place_by_the_time_it_asked_for(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        parent = await queue.enqueue("report.collect", queue="reports")
        child = await queue.enqueue("email.send", ordering_key="cart-1", parents=[parent.id])
        clock.advance(seconds=1)
        await enqueue(queue, 1, ordering_key="cart-1")
        clock.advance(seconds=1)
        [leased] = await queue.lease("reports", worker="w1")
        await queue.ack(leased)
        assert await leased_ids(queue) == [child.id]

    async def test_an_ordering_key_keeps_its_order_through_limits_per_key(self, queue: Queue) -> None:
        await queue.configure("default", max_concurrency_per_key=1)
        first, second = await enqueue(queue, 2, ordering_key="cart-1", key="acme")
        [leased] = await queue.lease(worker="w1", limit=10)
        assert leased.id == first
        await queue.ack(leased)
        assert await leased_ids(queue) == [second]

    async def test_a_job_that_is_kept_waiting_is_queued(self, queue: Queue) -> None:
        await queue.configure("default", max_concurrency=1)
        _, second = await enqueue(queue, 2)
        await leased_ids(queue)
        assert (await queue.get(second)).status is Status.QUEUED
