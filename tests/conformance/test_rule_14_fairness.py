"""Rule 14: within one priority of a fair queue, leases rotate between keys."""

from __future__ import annotations

from penstock.core.job import JobId
from penstock.queue import Queue
from penstock.testing import FakeClock


async def enqueue(queue: Queue, keys: str, /, **options: object) -> list[JobId]:
    """A job for each letter, with that letter as its key; a dot is a job without one."""
    jobs = [queue.new("email.send", key=None if key == "." else key, **options) for key in keys]
    await queue.enqueue_many(jobs)
    return [job.id for job in jobs]


async def turns(queue: Queue, limit: int = 100) -> str:
    """Whose jobs come out, in order."""
    return "".join(leased.job.asked.key or "." for leased in await queue.lease(worker="w1", limit=limit))


class TestFairness:
    async def test_leases_rotate_between_keys(self, queue: Queue) -> None:
        await queue.configure("default", fair=True)
        await enqueue(queue, "aaabbbccc")
        assert await turns(queue) == "abcabcabc"

    async def test_leases_rotate_one_by_one_as_they_do_in_a_batch(self, queue: Queue) -> None:
        await queue.configure("default", fair=True)
        await enqueue(queue, "aaabbbccc")
        assert "".join([await turns(queue, 1) for _ in range(9)]) == "abcabcabc"

    async def test_without_fairness_the_oldest_goes_first_whoever_it_is_for(self, queue: Queue) -> None:
        await enqueue(queue, "aaabbb")
        assert await turns(queue) == "aaabbb"

    async def test_a_key_with_little_to_do_does_not_wait_behind_a_flood(self, queue: Queue) -> None:
        await queue.configure("default", fair=True)
        await enqueue(queue, "a" * 500)
        await turns(queue, 10)
        await enqueue(queue, "b")
        assert await turns(queue, 1) == "b"

    async def test_a_key_that_runs_dry_leaves_the_turns_to_the_others(self, queue: Queue) -> None:
        await queue.configure("default", fair=True)
        await enqueue(queue, "aaaabcc")
        assert await turns(queue) == "abcacaa"

    async def test_a_key_that_comes_back_has_not_saved_up_turns(self, queue: Queue) -> None:
        await queue.configure("default", fair=True)
        await enqueue(queue, "ab")
        await turns(queue)
        await enqueue(queue, "bbbb")
        await turns(queue, 2)
        await enqueue(queue, "aaaa")
        assert await turns(queue) == "ababaa"

    async def test_the_key_that_has_waited_longest_for_a_turn_goes_first(self, queue: Queue) -> None:
        await queue.configure("default", fair=True)
        await enqueue(queue, "abc")
        assert await turns(queue) == "abc"
        await enqueue(queue, "cba")
        assert await turns(queue) == "abc"

    async def test_a_higher_priority_goes_first_whoever_had_a_turn(self, queue: Queue) -> None:
        await queue.configure("default", fair=True)
        await enqueue(queue, "bb")
        await enqueue(queue, "aaa", priority=1)
        assert await turns(queue) == "aaabb"

    async def test_leases_rotate_within_each_priority(self, queue: Queue) -> None:
        await queue.configure("default", fair=True)
        await enqueue(queue, "aabb", priority=0)
        await enqueue(queue, "aabb", priority=1)
        ran = await turns(queue)
        assert sorted((ran[:2], ran[2:4], ran[4:6], ran[6:])) == ["ab"] * 4

    async def test_jobs_without_a_key_take_turns_as_one_key(self, queue: Queue) -> None:
        await queue.configure("default", fair=True)
        await enqueue(queue, "....aa")
        assert await turns(queue) == ".a.a.."

    async def test_jobs_of_one_key_keep_their_order(self, queue: Queue) -> None:
        await queue.configure("default", fair=True)
        ids = await enqueue(queue, "aaabbb")
        ran = [leased.id for leased in await queue.lease(worker="w1", limit=10)]
        assert [job_id for job_id in ran if job_id in ids[:3]] == ids[:3]

    async def test_a_key_whose_jobs_are_not_due_does_not_hold_up_the_rotation(self, queue: Queue) -> None:
        await queue.configure("default", fair=True)
        await enqueue(queue, "bb", delay=60)
        await enqueue(queue, "aacc")
        assert await turns(queue) == "acac"

    async def test_a_key_at_its_limit_does_not_hold_up_the_rotation(self, queue: Queue) -> None:
        await queue.configure("default", fair=True, max_concurrency_per_key=1)
        await enqueue(queue, "aaabbc")
        assert await turns(queue) == "abc"

    async def test_turns_count_while_the_limit_of_the_queue_lets_out_one_at_a_time(
        self, queue: Queue
    ) -> None:
        await queue.configure("default", fair=True, max_concurrency=1)
        await enqueue(queue, "aaabbb")
        ran = ""
        while leased := await queue.lease(worker="w1"):
            ran += leased[0].job.asked.key or "."
            await queue.ack(leased[0])
        assert ran == "ababab"

    async def test_a_queue_may_become_fair_while_it_has_jobs(self, queue: Queue) -> None:
        await enqueue(queue, "aaabbb")
        await queue.configure("default", fair=True)
        assert await turns(queue) == "ababab"

    async def test_a_queue_may_stop_being_fair_while_it_has_jobs(self, queue: Queue) -> None:
        await queue.configure("default", fair=True)
        await enqueue(queue, "aaabbb")
        assert await turns(queue, 2) == "ab"
        await queue.configure("default", fair=False)
        assert await turns(queue) == "aabb"

    async def test_retries_take_their_keys_turn_like_any_job(self, queue: Queue, clock: FakeClock) -> None:
        await queue.configure("default", fair=True)
        await enqueue(queue, "aa")
        for leased in await queue.lease(worker="w1", limit=2):
            await queue.nack(leased, "boom", retry_in=5)
        await enqueue(queue, "bb")
        clock.advance(seconds=5)
        assert await turns(queue) == "baba"

    async def test_each_queue_has_its_own_rotation(self, queue: Queue) -> None:
        await queue.configure("emails", fair=True)
        await enqueue(queue, "aabb", queue="emails")
        await enqueue(queue, "aabb")
        assert await turns(queue) == "aabb"
        emails = await queue.lease("emails", worker="w1", limit=10)
        assert [leased.job.asked.key for leased in emails] == ["a", "b", "a", "b"]
