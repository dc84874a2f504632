"""Rule 17: a job waits for its parents, sees their results, and is cancelled (or runs) when one fails for good."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.core.codec import JsonText
from penstock.core.commands import Changed, Leased, Parent
from penstock.core.errors import JobNotFound, ParentFailed, ParentNotFound
from penstock.core.job import Cause, JobId, Status
from penstock.queue import Queue
from penstock.testing import START, FakeClock

NOBODY = JobId("01890000-0000-7000-8000-000000000000")


async def enqueue(queue: Queue, /, *parents: JobId, **options: object) -> JobId:
    return (await queue.enqueue("step", parents=list(parents), **options)).id


async def lease(queue: Queue, job_id: JobId) -> Leased:
    """Lease the one job that may run."""
    [leased] = await queue.lease(worker="w1", limit=100)
    assert leased.id == job_id
    return leased


async def succeed(queue: Queue, job_id: JobId, result: object = None) -> None:
    await queue.ack(await lease(queue, job_id), result)


async def fail(queue: Queue, job_id: JobId) -> None:
    await queue.nack(await lease(queue, job_id), "boom", retry=False)


async def statuses(queue: Queue, *job_ids: JobId) -> list[Status]:
    return [(await queue.get(job_id)).status for job_id in job_ids]


class TestFlows:
    # ── Waiting and running ───────────────────────────────────────────────────────────────────────

    async def test_a_child_waits_for_its_parent(self, queue: Queue) -> None:
        parent = await enqueue(queue)
        child = await enqueue(queue, parent)
        assert await statuses(queue, child) == [Status.WAITING]

    async def test_a_waiting_job_is_not_leased(self, queue: Queue) -> None:
        parent = await enqueue(queue)
        await enqueue(queue, parent, priority=9)
        assert [leased.id for leased in await queue.lease(worker="w1", limit=10)] == [parent]

    async def test_a_child_is_queued_once_its_parent_succeeded(self, queue: Queue) -> None:
        parent = await enqueue(queue)
        child = await enqueue(queue, parent)
        await succeed(queue, parent)
        assert await statuses(queue, child) == [Status.QUEUED]

    async def test_a_child_is_due_from_the_moment_its_parent_succeeded(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        parent = await enqueue(queue)
        child = await enqueue(queue, parent)
        clock.advance(seconds=5)
        await succeed(queue, parent)
        assert (await queue.get(child)).run_at == clock.now()

    async def test_a_child_still_waits_for_the_time_it_asked_for(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        parent = await enqueue(queue)
        child = await enqueue(queue, parent, delay=60)
        await succeed(queue, parent)
        assert await queue.lease(worker="w1") == []
        clock.advance(seconds=60)
        assert (await lease(queue, child)).id == child

    async def test_a_retry_of_the_parent_keeps_the_child_waiting(self, queue: Queue) -> None:
        parent = await enqueue(queue)
        child = await enqueue(queue, parent)
        await queue.nack(await lease(queue, parent), "boom")
        assert await statuses(queue, child) == [Status.WAITING]

    async def test_a_lost_lease_of_the_parent_keeps_the_child_waiting(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        parent = await enqueue(queue)
        child = await enqueue(queue, parent)
        await lease(queue, parent)
        clock.advance(minutes=5)
        assert await statuses(queue, child) == [Status.WAITING]

    async def test_a_chain_runs_link_by_link(self, queue: Queue) -> None:
        first = await enqueue(queue)
        second = await enqueue(queue, first)
        third = await enqueue(queue, second)
        for job_id in (first, second, third):
            await succeed(queue, job_id)
        assert await statuses(queue, first, second, third) == [Status.SUCCEEDED] * 3

    async def test_a_fan_out_lets_all_children_go_at_once(self, queue: Queue) -> None:
        parent = await enqueue(queue)
        children = [await enqueue(queue, parent) for _ in range(5)]
        await succeed(queue, parent)
        assert [leased.id for leased in await queue.lease(worker="w1", limit=10)] == children

    async def test_a_fan_in_waits_for_the_last_parent(self, queue: Queue) -> None:
        parents = [await enqueue(queue) for _ in range(3)]
        child = await enqueue(queue, *parents)
        one, two, three = await queue.lease(worker="w1", limit=3)
        await queue.ack(three)
        await queue.ack(one)
        assert await statuses(queue, child) == [Status.WAITING]
        await queue.ack(two)
        assert await statuses(queue, child) == [Status.QUEUED]

    async def test_parents_that_end_in_one_batch_let_their_child_go(self, queue: Queue) -> None:
        parents = [await enqueue(queue) for _ in range(3)]
        child = await enqueue(queue, *parents)
        held = await queue.lease(worker="w1", limit=3)
        await queue.settle_many([queue.acked(leased) for leased in held])
        assert await statuses(queue, child) == [Status.QUEUED]

    async def test_a_settle_sent_again_does_not_count_as_another_parent(self, queue: Queue) -> None:
        parents = [await enqueue(queue) for _ in range(2)]
        child = await enqueue(queue, *parents)
        one, _ = await queue.lease(worker="w1", limit=2)
        await queue.ack(one)
        await queue.ack(one)
        assert await statuses(queue, child) == [Status.WAITING]

    async def test_a_diamond_runs_its_foot_last_and_once(self, queue: Queue) -> None:
        top = await enqueue(queue)
        left, right = await enqueue(queue, top), await enqueue(queue, top)
        foot = await enqueue(queue, left, right)
        await succeed(queue, top)
        for leased in await queue.lease(worker="w1", limit=10):
            assert await statuses(queue, foot) == [Status.WAITING]
            await queue.ack(leased)
        await succeed(queue, foot)
        assert await queue.lease(worker="w1") == []

    async def test_a_flow_may_cross_queues(self, queue: Queue) -> None:
        parent = await enqueue(queue, queue="reports")
        child = await enqueue(queue, parent, queue="emails")
        [leased] = await queue.lease("reports", worker="w1")
        await queue.ack(leased)
        assert [leased.id for leased in await queue.lease("emails", worker="w1")] == [child]

    async def test_a_flow_may_go_in_with_one_batch(self, queue: Queue) -> None:
        parent = queue.new("step")
        child = queue.new("step", parents=[parent.id])
        grandchild = queue.new("step", parents=[child.id])
        await queue.enqueue_many([parent, child, grandchild])
        await succeed(queue, parent.id)
        await succeed(queue, child.id)
        assert await statuses(queue, grandchild.id) == [Status.QUEUED]

    async def test_a_child_of_a_parent_that_succeeded_already_is_queued_at_once(self, queue: Queue) -> None:
        parent = await enqueue(queue)
        await succeed(queue, parent)
        child = await enqueue(queue, parent)
        assert await statuses(queue, child) == [Status.QUEUED]

    async def test_a_child_waits_only_for_the_parents_that_are_not_done(self, queue: Queue) -> None:
        done = await enqueue(queue)
        await succeed(queue, done)
        pending = await enqueue(queue)
        child = await enqueue(queue, done, pending)
        assert await statuses(queue, child) == [Status.WAITING]
        await succeed(queue, pending)
        assert await statuses(queue, child) == [Status.QUEUED]

    async def test_an_unknown_parent_is_refused(self, queue: Queue) -> None:
        child = queue.new("step", parents=[NOBODY])
        [answer] = await queue.enqueue_many([child])
        assert isinstance(answer, ParentNotFound)
        assert answer.facts == {"job_id": child.id, "parent_id": NOBODY}

    async def test_a_job_with_an_unknown_parent_is_not_there(self, queue: Queue) -> None:
        parent = await enqueue(queue)
        child = queue.new("step", parents=[parent, NOBODY])
        await queue.enqueue_many([child])
        with pytest.raises(JobNotFound):
            await queue.get(child.id)
        await succeed(queue, parent)
        assert await queue.lease(worker="w1") == []

    async def test_a_job_cannot_be_its_own_parent(self, queue: Queue) -> None:
        with pytest.raises(ParentNotFound):
            await queue.enqueue("step", id=NOBODY, parents=[NOBODY])

    # ── Results ───────────────────────────────────────────────────────────────────────────────────

    async def test_a_child_sees_its_parents_results_in_the_order_it_named_them(self, queue: Queue) -> None:
        one, two = await enqueue(queue), await enqueue(queue)
        child = await enqueue(queue, two, one)
        first, second = await queue.lease(worker="w1", limit=2)
        await queue.ack(first, {"rows": 1})
        await queue.ack(second, [2])
        assert (await lease(queue, child)).parents == (
            Parent(two, Status.SUCCEEDED, JsonText("[2]")),
            Parent(one, Status.SUCCEEDED, JsonText('{"rows":1}')),
        )

    async def test_a_parent_without_a_result_has_null(self, queue: Queue) -> None:
        parent = await enqueue(queue)
        child = await enqueue(queue, parent)
        await succeed(queue, parent)
        [seen] = (await lease(queue, child)).parents
        assert seen.result == "null"

    async def test_a_child_sees_the_results_again_at_each_attempt(self, queue: Queue) -> None:
        parent = await enqueue(queue)
        child = await enqueue(queue, parent)
        await succeed(queue, parent, 7)
        await queue.nack(await lease(queue, child), "boom", retry_in=0)
        [seen] = (await lease(queue, child)).parents
        assert seen.result == "7"

    async def test_a_job_without_parents_has_none_to_see(self, queue: Queue) -> None:
        assert (await lease(queue, await enqueue(queue))).parents == ()

    # ── Failure ───────────────────────────────────────────────────────────────────────────────────

    async def test_a_child_is_cancelled_when_its_parent_dies(self, queue: Queue) -> None:
        parent = await enqueue(queue)
        child = await enqueue(queue, parent)
        await fail(queue, parent)
        job = await queue.get(child)
        assert (job.status, job.cause) == (Status.CANCELLED, Cause.PARENT_FAILED)

    async def test_a_child_is_cancelled_when_its_parent_is(self, queue: Queue) -> None:
        parent = await enqueue(queue)
        child = await enqueue(queue, parent)
        assert await queue.cancel(parent) == Changed(parent, Status.CANCELLED, others=(child,))
        assert (await queue.get(child)).cause is Cause.PARENT_FAILED

    async def test_a_child_is_cancelled_when_its_parent_is_discarded(self, queue: Queue) -> None:
        parent = await enqueue(queue)
        child = await enqueue(queue, parent)
        await queue.discard(await lease(queue, parent))
        assert await statuses(queue, child) == [Status.CANCELLED]

    async def test_a_child_is_cancelled_when_its_parent_is_lost_for_good(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        parent = await enqueue(queue, max_attempts=1)
        child = await enqueue(queue, parent)
        await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(days=1)
        job = await queue.get(child)
        assert (job.status, job.ended_at) == (Status.CANCELLED, START + timedelta(seconds=30))

    async def test_one_failed_parent_of_many_is_enough(self, queue: Queue) -> None:
        parents = [await enqueue(queue) for _ in range(3)]
        child = await enqueue(queue, *parents)
        [one, two, _] = await queue.lease(worker="w1", limit=3)
        await queue.ack(one)
        await queue.nack(two, "boom", retry=False)
        assert await statuses(queue, child) == [Status.CANCELLED]

    async def test_the_other_parents_may_end_as_they_like_afterwards(self, queue: Queue) -> None:
        parents = [await enqueue(queue) for _ in range(2)]
        child = await enqueue(queue, *parents)
        one, two = await queue.lease(worker="w1", limit=2)
        await queue.nack(one, "boom", retry=False)
        await queue.ack(two)
        assert await statuses(queue, child) == [Status.CANCELLED]

    async def test_failure_goes_down_to_all_descendants(self, queue: Queue) -> None:
        top = await enqueue(queue)
        child = await enqueue(queue, top)
        grandchild = await enqueue(queue, child)
        great_grandchild = await enqueue(queue, grandchild)
        await fail(queue, top)
        jobs = [await queue.get(job_id) for job_id in (child, grandchild, great_grandchild)]
        assert [(job.status, job.cause) for job in jobs] == [(Status.CANCELLED, Cause.PARENT_FAILED)] * 3

    async def test_the_history_of_a_child_names_the_rule_and_the_parent(self, queue: Queue) -> None:
        parent = await enqueue(queue)
        child = await enqueue(queue, parent)
        await fail(queue, parent)
        [change] = (await queue.history(child)).changes
        assert (change.actor, change.status) == ("rule:flow", Status.CANCELLED)
        assert change.reason is not None
        assert parent in change.reason

    async def test_a_held_parent_keeps_its_child_waiting(self, queue: Queue, clock: FakeClock) -> None:
        parent = await enqueue(queue, on_exhausted="hold")
        child = await enqueue(queue, parent)
        await fail(queue, parent)
        clock.advance(days=30)
        assert await statuses(queue, parent, child) == [Status.HELD, Status.WAITING]

    async def test_a_held_parent_that_is_redriven_and_succeeds_lets_its_child_go(self, queue: Queue) -> None:
        parent = await enqueue(queue, on_exhausted="hold")
        child = await enqueue(queue, parent)
        await fail(queue, parent)
        await queue.redrive(parent)
        await succeed(queue, parent)
        assert await statuses(queue, child) == [Status.QUEUED]

    async def test_a_held_parent_that_is_cancelled_takes_its_child_with_it(self, queue: Queue) -> None:
        parent = await enqueue(queue, on_exhausted="hold")
        child = await enqueue(queue, parent)
        await fail(queue, parent)
        await queue.cancel(parent)
        assert (await queue.get(child)).cause is Cause.PARENT_FAILED

    async def test_a_child_of_a_held_parent_waits_from_the_start(self, queue: Queue) -> None:
        parent = await enqueue(queue, on_exhausted="hold")
        await fail(queue, parent)
        assert await statuses(queue, await enqueue(queue, parent)) == [Status.WAITING]

    async def test_a_child_of_a_parent_that_failed_already_is_born_cancelled(self, queue: Queue) -> None:
        parent = await enqueue(queue)
        await fail(queue, parent)
        job = await queue.get(await enqueue(queue, parent))
        assert (job.status, job.cause) == (Status.CANCELLED, Cause.PARENT_FAILED)

    async def test_the_history_of_a_child_born_cancelled_says_why(self, queue: Queue) -> None:
        parent = await enqueue(queue)
        await queue.cancel(parent)
        child = await enqueue(queue, parent)
        [change] = (await queue.history(child)).changes
        assert change.actor == "rule:flow"

    # ── Running anyway ────────────────────────────────────────────────────────────────────────────

    async def test_a_child_that_says_so_runs_when_its_parent_fails(self, queue: Queue) -> None:
        parent = await enqueue(queue)
        child = await enqueue(queue, parent, on_parent_failure="run")
        await fail(queue, parent)
        assert (await lease(queue, child)).parents == (Parent(parent, Status.DEAD, None),)

    async def test_a_child_that_says_so_waits_for_its_other_parents_all_the_same(self, queue: Queue) -> None:
        parents = [await enqueue(queue) for _ in range(2)]
        child = await enqueue(queue, *parents, on_parent_failure="run")
        one, two = await queue.lease(worker="w1", limit=2)
        await queue.nack(one, "boom", retry=False)
        assert await statuses(queue, child) == [Status.WAITING]
        await queue.ack(two)
        assert await statuses(queue, child) == [Status.QUEUED]

    async def test_a_child_that_says_so_waits_for_a_held_parent(self, queue: Queue) -> None:
        parent = await enqueue(queue, on_exhausted="hold")
        child = await enqueue(queue, parent, on_parent_failure="run")
        await fail(queue, parent)
        assert await statuses(queue, child) == [Status.WAITING]

    async def test_a_child_that_says_so_is_queued_at_once_if_its_parent_failed_already(
        self, queue: Queue
    ) -> None:
        parent = await enqueue(queue)
        await queue.cancel(parent)
        assert await statuses(queue, await enqueue(queue, parent, on_parent_failure="run")) == [Status.QUEUED]

    async def test_failure_stops_at_a_child_that_runs_anyway(self, queue: Queue) -> None:
        top = await enqueue(queue)
        cleanup = await enqueue(queue, top, on_parent_failure="run")
        after = await enqueue(queue, cleanup)
        await fail(queue, top)
        await succeed(queue, cleanup)
        assert await statuses(queue, after) == [Status.QUEUED]

    async def test_a_child_that_still_waits_waits_anew_for_a_parent_brought_back(self, queue: Queue) -> None:
        parents = [await enqueue(queue) for _ in range(2)]
        child = await enqueue(queue, *parents, on_parent_failure="run")
        one, two = await queue.lease(worker="w1", limit=2)
        await queue.nack(one, "boom", retry=False)
        await queue.redrive(one.id)
        await queue.ack(two)
        assert await statuses(queue, child) == [Status.WAITING]
        await succeed(queue, one.id)
        assert await statuses(queue, child) == [Status.QUEUED]

    # ── Bringing a flow back ──────────────────────────────────────────────────────────────────────

    async def test_redriving_a_failed_parent_brings_its_descendants_back(self, queue: Queue) -> None:
        top = await enqueue(queue)
        child = await enqueue(queue, top)
        grandchild = await enqueue(queue, child)
        await fail(queue, top)
        assert await queue.redrive(top) == Changed(top, Status.QUEUED, others=(child, grandchild))
        assert await statuses(queue, child, grandchild) == [Status.WAITING] * 2

    async def test_a_flow_brought_back_runs_to_its_end(self, queue: Queue) -> None:
        top = await enqueue(queue)
        left, right = await enqueue(queue, top), await enqueue(queue, top)
        foot = await enqueue(queue, left, right)
        await fail(queue, top)
        await queue.redrive(top)
        await succeed(queue, top)
        for leased in await queue.lease(worker="w1", limit=10):
            await queue.ack(leased)
        await succeed(queue, foot)
        assert await statuses(queue, top, left, right, foot) == [Status.SUCCEEDED] * 4

    async def test_a_flow_whose_edges_skip_levels_comes_back_whole(self, queue: Queue) -> None:
        top = await enqueue(queue)
        middle = await enqueue(queue, top)
        low = await enqueue(queue, middle)
        foot = await enqueue(queue, top, low)
        await fail(queue, top)
        await queue.redrive(top)
        assert await statuses(queue, middle, low, foot) == [Status.WAITING] * 3

    async def test_a_flow_may_fail_and_come_back_again(self, queue: Queue) -> None:
        parent = await enqueue(queue)
        child = await enqueue(queue, parent)
        for _ in range(2):
            await fail(queue, parent)
            assert await statuses(queue, child) == [Status.CANCELLED]
            await queue.redrive(parent)
        await succeed(queue, parent)
        assert await statuses(queue, child) == [Status.QUEUED]

    async def test_descendants_may_be_left_where_they_are(self, queue: Queue) -> None:
        parent = await enqueue(queue)
        child = await enqueue(queue, parent)
        await fail(queue, parent)
        await queue.redrive(parent, descendants=False)
        assert await statuses(queue, child) == [Status.CANCELLED]

    async def test_a_child_that_somebody_cancelled_is_not_brought_back_by_its_parent(
        self, queue: Queue
    ) -> None:
        parent = await enqueue(queue)
        child = await enqueue(queue, parent)
        await queue.cancel(child)
        await fail(queue, parent)
        await queue.redrive(parent)
        assert (await queue.get(child)).cause is Cause.CANCELLED

    async def test_a_child_with_another_failed_parent_is_not_brought_back(self, queue: Queue) -> None:
        parents = [await enqueue(queue) for _ in range(2)]
        child = await enqueue(queue, *parents)
        for parent in parents:
            await queue.cancel(parent)
        await queue.redrive(parents[0])
        assert await statuses(queue, child) == [Status.CANCELLED]

    async def test_a_child_comes_back_with_the_last_of_its_failed_parents(self, queue: Queue) -> None:
        parents = [await enqueue(queue) for _ in range(2)]
        child = await enqueue(queue, *parents)
        for parent in parents:
            await queue.cancel(parent)
        for parent in parents:
            await queue.redrive(parent)
        assert await statuses(queue, child) == [Status.WAITING]

    async def test_a_child_cannot_come_back_without_its_failed_parent(self, queue: Queue) -> None:
        parent = await enqueue(queue)
        child = await enqueue(queue, parent)
        await fail(queue, parent)
        with pytest.raises(ParentFailed) as caught:
            await queue.redrive(child)
        assert caught.value.facts == {"job_id": child, "parent_id": parent, "status": "dead"}
        assert await statuses(queue, child) == [Status.CANCELLED]

    async def test_a_child_whose_unique_key_is_taken_stays_where_it_is(self, queue: Queue) -> None:
        parent = await enqueue(queue)
        child = await enqueue(queue, parent, unique_key="u")
        await queue.cancel(parent)
        await enqueue(queue, unique_key="u")
        assert await queue.redrive(parent) == Changed(parent, Status.QUEUED)
        assert await statuses(queue, child) == [Status.CANCELLED]

    async def test_a_cancelled_child_of_a_parent_to_come_waits_again_when_redriven(
        self, queue: Queue
    ) -> None:
        parent = await enqueue(queue)
        child = await enqueue(queue, parent)
        await queue.cancel(child)
        assert await queue.redrive(child) == Changed(child, Status.WAITING)
        await succeed(queue, parent)
        assert await statuses(queue, child) == [Status.QUEUED]

    async def test_a_failed_child_of_a_succeeded_parent_comes_back_with_its_results(
        self, queue: Queue
    ) -> None:
        parent = await enqueue(queue)
        child = await enqueue(queue, parent)
        await succeed(queue, parent, "rows")
        await fail(queue, child)
        await queue.redrive(child)
        [seen] = (await lease(queue, child)).parents
        assert seen.result == '"rows"'

    # ── Staying together ──────────────────────────────────────────────────────────────────────────

    async def test_a_parent_stays_in_the_store_as_long_as_its_child_does(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.configure("default", retention_seconds=60)
        parent = await enqueue(queue)
        child = await enqueue(queue, parent)
        await succeed(queue, parent, "rows")
        clock.advance(days=1)
        await queue.sweep()
        [seen] = (await lease(queue, child)).parents
        assert seen.result == '"rows"'

    async def test_a_parent_leaves_once_its_last_child_has_left(self, queue: Queue, clock: FakeClock) -> None:
        await queue.configure("default", retention_seconds=60)
        parent = await enqueue(queue)
        child = await enqueue(queue, parent)
        await succeed(queue, parent)
        await succeed(queue, child)
        clock.advance(days=1)
        for _ in range(2):
            await queue.sweep()
        assert (await queue.find()).jobs == ()

    async def test_a_parent_that_is_leased_with_its_child_is_running_to_it(self, queue: Queue) -> None:
        parent = await enqueue(queue)
        child = await enqueue(queue, parent, on_parent_failure="run", priority=1)
        await fail(queue, parent)
        await queue.redrive(parent)
        first, second = await queue.lease(worker="w1", limit=2)
        assert (first.id, second.id) == (child, parent)
        assert [one.status for one in first.parents] == [Status.RUNNING]
