"""Rule 4: a job has at most one live lease; two workers never hold the same live token."""

from __future__ import annotations

import asyncio

from penstock.core.job import Status
from penstock.core.ports import Store
from penstock.queue import Queue
from penstock.testing import FakeClock


class TestOneHolder:
    async def test_a_leased_job_is_not_leased_to_anyone_else(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        await queue.lease(worker="w1")
        assert await queue.lease(worker="w2") == []

    async def test_not_even_to_the_same_worker(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        await queue.lease(worker="w1")
        assert await queue.lease(worker="w1") == []

    async def test_not_until_the_very_end_of_the_lease(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send")
        await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(seconds=29.999999)
        assert await queue.lease(worker="w2") == []

    async def test_workers_that_lease_at_once_get_different_jobs(self, queue: Queue, store: Store) -> None:
        await queue.enqueue_many([queue.new("email.send") for _ in range(60)])
        answers = await asyncio.gather(
            *(Queue(store).lease(worker=f"w{number}", limit=5) for number in range(12))
        )
        ids = [leased.id for answer in answers for leased in answer]
        assert len(ids) == len(set(ids)) == 60

    async def test_of_many_workers_that_want_one_job_one_gets_it(self, queue: Queue, store: Store) -> None:
        await queue.enqueue("email.send")
        answers = await asyncio.gather(*(Queue(store).lease(worker=f"w{number}") for number in range(10)))
        assert sorted(len(answer) for answer in answers) == [0] * 9 + [1]

    async def test_of_many_workers_that_want_a_lost_job_one_gets_it(
        self, queue: Queue, store: Store, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send")
        await queue.lease(worker="w0")
        clock.advance(minutes=5)
        answers = await asyncio.gather(*(Queue(store).lease(worker=f"w{number}") for number in range(10)))
        assert sum(len(answer) for answer in answers) == 1

    async def test_the_jobs_of_one_batch_have_a_token_each(self, queue: Queue) -> None:
        await queue.enqueue_many([queue.new("email.send") for _ in range(10)])
        assert len({leased.token for leased in await queue.lease(worker="w1", limit=10)}) == 10

    async def test_each_lease_of_a_job_has_a_token_of_its_own(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send", max_attempts=10)
        tokens = set()
        for _ in range(5):
            [leased] = await queue.lease(worker="w1", lease_seconds=30)
            tokens.add(leased.token)
            clock.advance(seconds=30)
        assert len(tokens) == 5

    async def test_the_token_in_hand_is_the_one_the_job_is_held_with(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        assert leased.job.lease is not None
        assert leased.job.lease.token == leased.token

    async def test_the_job_in_hand_is_the_job_as_it_stands(self, queue: Queue) -> None:
        await queue.enqueue("email.send", {"to": "ada"})
        [leased] = await queue.lease(worker="w1")
        assert leased.job == await queue.get(leased.id)

    async def test_a_job_that_does_not_run_has_no_lease(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.ack(leased)
        assert (await queue.get(leased.id)).lease is None

    async def test_of_a_heartbeat_and_a_lease_at_the_moment_of_expiry_the_job_has_one_holder(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send")
        [first] = await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(seconds=30)
        answers = await asyncio.gather(
            queue.heartbeat(first), queue.lease(worker="w2"), return_exceptions=True
        )
        assert sum(isinstance(answer, Exception) or answer == [] for answer in answers) == 1
        assert (await queue.get(first.id)).status is Status.RUNNING
