"""What can be looked up: jobs by condition and page by page, queues and their counts, when to look again."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from penstock.core.errors import JobNotFound
from penstock.core.job import Cause, JobId, Status
from penstock.core.limits import Rate
from penstock.core.settings import QueueSettings
from penstock.queue import Queue
from penstock.testing import START, FakeClock


async def found(queue: Queue, /, **conditions: object) -> set[JobId]:
    return {job.id async for job in queue.find_all(**conditions)}


class TestReading:
    async def test_a_job_is_read_as_it_stands(self, queue: Queue, clock: FakeClock) -> None:
        job = await queue.get((await queue.enqueue("email.send", {"to": "ada"}, priority=3)).id)
        assert (job.type, job.queue, job.payload, job.priority) == (
            "email.send",
            "default",
            '{"to":"ada"}',
            3,
        )
        assert (job.status, job.attempts, job.leases, job.lease) == (Status.QUEUED, 0, 0, None)
        assert (job.result, job.error, job.cause, job.ended_at) == (None, None, None, None)

    async def test_an_unknown_job_is_not_found(self, queue: Queue) -> None:
        with pytest.raises(JobNotFound) as caught:
            await queue.get("01890000-0000-7000-8000-000000000000")
        assert caught.value.facts == {"job_id": "01890000-0000-7000-8000-000000000000"}

    # ── Finding ───────────────────────────────────────────────────────────────────────────────────

    async def test_without_conditions_all_jobs_are_found(self, queue: Queue) -> None:
        jobs = [await queue.enqueue("email.send", queue=name) for name in ("emails", "reports")]
        assert await found(queue) == {job.id for job in jobs}

    @pytest.mark.parametrize("status", Status)
    async def test_jobs_are_found_by_status(self, queue: Queue, status: Status) -> None:
        jobs = await one_job_of_each_status(queue)
        assert await found(queue, status=status) == {jobs[status]}

    async def test_jobs_are_found_by_several_statuses(self, queue: Queue) -> None:
        jobs = await one_job_of_each_status(queue)
        assert await found(queue, statuses=["dead", "held"]) == {jobs[Status.DEAD], jobs[Status.HELD]}

    async def test_jobs_are_found_by_queue(self, queue: Queue) -> None:
        email = await queue.enqueue("send", queue="emails")
        await queue.enqueue("send", queue="reports")
        assert await found(queue, queue="emails") == {email.id}

    async def test_jobs_are_found_by_type(self, queue: Queue) -> None:
        email = await queue.enqueue("email.send")
        await queue.enqueue("report.build")
        assert await found(queue, type="email.send") == {email.id}

    async def test_jobs_are_found_by_key(self, queue: Queue) -> None:
        acme = await queue.enqueue("email.send", key="acme")
        await queue.enqueue("email.send", key="zeta")
        await queue.enqueue("email.send")
        assert await found(queue, key="acme") == {acme.id}

    async def test_jobs_are_found_by_schedule(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send")
        await queue.put_schedule("minutely", "* * * * *", {"type": "email.send"})
        clock.advance(minutes=1)
        [fired] = await queue.fire_due()
        assert await found(queue, schedule="minutely") == {fired.jobs[0].id}

    async def test_jobs_are_found_by_cause(self, queue: Queue) -> None:
        cancelled = await queue.enqueue("email.send")
        await queue.cancel(cancelled.id)
        expired = await queue.enqueue("email.send", expires_in=0)
        assert await found(queue, cause=Cause.EXPIRED) == {expired.id}
        assert await found(queue, cause="cancelled") == {cancelled.id}

    async def test_jobs_are_found_by_when_they_were_made(self, queue: Queue, clock: FakeClock) -> None:
        jobs = []
        for _ in range(3):
            jobs.append(await queue.enqueue("email.send"))
            clock.advance(minutes=1)
        span = {"created_from": START + timedelta(minutes=1), "created_before": START + timedelta(minutes=2)}
        assert await found(queue, **span) == {jobs[1].id}

    async def test_jobs_are_found_by_their_parents(self, queue: Queue) -> None:
        first, second, third = [await queue.enqueue("part") for _ in range(3)]
        one = await queue.enqueue("join", parents=[first.id])
        both = await queue.enqueue("join", parents=[first.id, second.id])
        await queue.enqueue("join", parents=[third.id])
        assert await found(queue, parents=[first.id]) == {one.id, both.id}
        assert await found(queue, parents=[second.id, first.id]) == {one.id, both.id}
        assert await found(queue, parents=[one.id]) == set()
        assert await found(queue, parents=[first.id], type="other") == set()

    async def test_children_come_page_by_page(self, queue: Queue) -> None:
        parent = await queue.enqueue("split")
        children = [await queue.enqueue("part", parents=[parent.id]) for _ in range(5)]
        page = await queue.find(parents=[parent.id], limit=2)
        assert [job.id for job in page.jobs] == [children[4].id, children[3].id]
        rest = await queue.find(parents=[parent.id], limit=10, after=page.next)
        assert [job.id for job in rest.jobs] == [child.id for child in children[2::-1]]

    async def test_jobs_that_have_parents_are_found(self, queue: Queue) -> None:
        parent = await queue.enqueue("split")
        child = await queue.enqueue("part", parents=[parent.id])
        assert await found(queue, in_flow=True) == {child.id}

    async def test_all_conditions_must_hold(self, queue: Queue) -> None:
        wanted = await queue.enqueue("email.send", queue="emails", key="acme")
        await queue.enqueue("email.send", queue="emails", key="zeta")
        await queue.enqueue("email.send", queue="other", key="acme")
        assert await found(queue, queue="emails", key="acme", status="queued") == {wanted.id}

    async def test_nothing_matches_nothing(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        page = await queue.find(queue="unheard-of")
        assert (page.jobs, page.next) == ((), None)

    async def test_the_newest_job_comes_first(self, queue: Queue) -> None:
        jobs = [queue.new("email.send") for _ in range(5)]
        await queue.enqueue_many(jobs)
        assert [job.id for job in (await queue.find()).jobs] == [job.id for job in reversed(jobs)]

    async def test_the_newest_id_comes_first_whatever_the_order_of_arrival(self, queue: Queue) -> None:
        jobs = [queue.new("email.send") for _ in range(5)]
        await queue.enqueue_many([jobs[2], jobs[4], jobs[0], jobs[3], jobs[1]])
        assert [job.id for job in (await queue.find()).jobs] == [job.id for job in reversed(jobs)]

    async def test_a_page_has_no_more_jobs_than_asked_for(self, queue: Queue) -> None:
        await queue.enqueue_many([queue.new("email.send") for _ in range(5)])
        assert len((await queue.find(limit=2)).jobs) == 2

    async def test_a_hundred_jobs_make_a_page_by_default(self, queue: Queue) -> None:
        await queue.enqueue_many([queue.new("email.send") for _ in range(101)])
        assert len((await queue.find()).jobs) == 100

    async def test_pages_follow_each_other_without_gap_or_overlap(self, queue: Queue) -> None:
        jobs = [queue.new("email.send", key="even" if number % 2 else "odd") for number in range(25)]
        await queue.enqueue_many(jobs)
        page = await queue.find(limit=3, key="odd")
        seen = [job.id for job in page.jobs]
        while page.next is not None:
            page = await queue.find(limit=3, key="odd", after=page.next)
            seen += [job.id for job in page.jobs]
        assert seen == [job.id for job in reversed(jobs) if job.key == "odd"]

    async def test_a_page_begins_below_the_id_it_goes_on_from(self, queue: Queue) -> None:
        jobs = [queue.new("email.send") for _ in range(3)]
        await queue.enqueue_many(jobs)
        assert [job.id for job in (await queue.find(after=jobs[1].id)).jobs] == [jobs[0].id]

    async def test_a_page_goes_on_from_a_job_that_has_left_the_store(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.configure("default", retention_seconds=0)
        jobs = [queue.new("email.send") for _ in range(3)]
        await queue.enqueue_many(jobs)
        await queue.cancel(jobs[1].id)
        clock.advance(seconds=1)
        await queue.sweep()
        assert [job.id for job in (await queue.find(after=jobs[1].id)).jobs] == [jobs[0].id]

    async def test_jobs_that_come_in_while_pages_are_read_do_not_disturb_them(self, queue: Queue) -> None:
        jobs = [queue.new("email.send") for _ in range(4)]
        await queue.enqueue_many(jobs)
        first = await queue.find(limit=2)
        await queue.enqueue("email.send")
        second = await queue.find(limit=2, after=first.next)
        assert [job.id for job in second.jobs] == [jobs[1].id, jobs[0].id]

    # ── Queues ────────────────────────────────────────────────────────────────────────────────────

    async def test_queues_are_listed_by_name(self, queue: Queue) -> None:
        for name in ("reports", "emails", "archive"):
            await queue.enqueue("a", queue=name)
        assert [view.name for view in await queue.queues()] == ["archive", "emails", "reports"]

    async def test_a_queue_that_was_set_but_has_no_jobs_is_listed(self, queue: Queue) -> None:
        await queue.configure("emails", max_concurrency=1)
        [view] = await queue.queues()
        assert (view.name, view.settings) == ("emails", QueueSettings(max_concurrency=1))

    async def test_a_queue_nobody_has_used_has_defaults_and_no_jobs(self, queue: Queue) -> None:
        view = await queue.queue("unheard-of")
        assert (view.settings, view.oldest_run_at) == (QueueSettings(), None)
        assert not any(view.counts.values())

    async def test_looking_at_a_queue_does_not_make_it(self, queue: Queue) -> None:
        await queue.queue("unheard-of")
        await queue.lease("unheard-of", worker="w1")
        await queue.next_at(["unheard-of"])
        assert await queue.queues() == []

    async def test_a_queue_counts_its_jobs_by_status(self, queue: Queue) -> None:
        await one_job_of_each_status(queue)
        counts = (await queue.queue("default")).counts
        assert {status: counts.get(status, 0) for status in Status} == dict.fromkeys(Status, 1)

    async def test_a_queue_tells_the_oldest_run_at_of_its_queued_jobs(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send", delay=60)
        oldest = await queue.enqueue("email.send", run_at=START - timedelta(hours=1), priority=-5)
        await queue.enqueue("email.send")
        assert (await queue.queue("default")).oldest_run_at == START - timedelta(hours=1)
        await queue.cancel(oldest.id)
        assert (await queue.queue("default")).oldest_run_at == START

    async def test_the_oldest_run_at_lies_in_the_future_if_nothing_is_due(self, queue: Queue) -> None:
        await queue.enqueue("email.send", delay=60)
        assert (await queue.queue("default")).oldest_run_at == START + timedelta(seconds=60)

    async def test_jobs_that_run_or_wait_have_no_part_in_the_oldest_run_at(self, queue: Queue) -> None:
        parent = await queue.enqueue("email.send")
        await queue.enqueue("email.send", parents=[parent.id])
        await queue.lease(worker="w1")
        assert (await queue.queue("default")).oldest_run_at is None

    # ── When to look again ────────────────────────────────────────────────────────────────────────

    async def test_there_is_nothing_to_wait_for_in_an_empty_queue(self, queue: Queue) -> None:
        assert await queue.next_at(["default"]) is None

    async def test_a_due_job_is_a_reason_to_look_now(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send")
        next_at = await queue.next_at(["default"])
        assert next_at is not None
        assert next_at <= clock.now()

    async def test_a_delayed_job_is_a_reason_to_look_at_its_run_at(self, queue: Queue) -> None:
        await queue.enqueue("email.send", delay=60)
        await look_again_by(queue, START + timedelta(seconds=60))

    async def test_the_soonest_of_several_queues_counts(self, queue: Queue) -> None:
        await queue.enqueue("email.send", queue="emails", delay=60)
        await queue.enqueue("email.send", queue="reports", delay=30)
        await look_again_by(queue, START + timedelta(seconds=30), "emails", "reports")

    async def test_a_retry_is_a_reason_to_look_at_its_run_at(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom", retry_in=60)
        await look_again_by(queue, START + timedelta(seconds=60))

    async def test_a_lease_is_a_reason_to_look_when_it_runs_out(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        await queue.lease(worker="w1", lease_seconds=30)
        await look_again_by(queue, START + timedelta(seconds=30))

    async def test_a_lease_of_another_queue_is_a_reason_to_look_if_a_child_waits_for_it(
        self, queue: Queue
    ) -> None:
        parent = await queue.enqueue("report.collect", queue="reports", max_attempts=1)
        await queue.enqueue("report.build", parents=[parent.id], on_parent_failure="run")
        await queue.lease("reports", worker="w1", lease_seconds=30)
        await look_again_by(queue, START + timedelta(seconds=30))

    async def test_a_rate_is_a_reason_to_look_when_it_opens(self, queue: Queue) -> None:
        await queue.configure("default", rate=Rate(1, per=10))
        await queue.enqueue_many([queue.new("email.send") for _ in range(2)])
        await queue.lease(worker="w1", lease_seconds=3_600)
        await look_again_by(queue, START + timedelta(seconds=10))

    async def test_a_rate_per_key_is_a_reason_to_look_when_it_opens(self, queue: Queue) -> None:
        await queue.configure("default", rate_per_key=Rate(1, per=10))
        await queue.enqueue_many([queue.new("email.send", key="acme") for _ in range(2)])
        await queue.lease(worker="w1", lease_seconds=3_600)
        await look_again_by(queue, START + timedelta(seconds=10))

    async def test_a_delayed_job_behind_a_rate_is_a_reason_to_look_in_time(self, queue: Queue) -> None:
        await queue.configure("default", rate=Rate(1, per=10))
        await queue.enqueue("email.send")
        await queue.enqueue("email.send", delay=30)
        await queue.lease(worker="w1", lease_seconds=3_600)
        await look_again_by(queue, START + timedelta(seconds=30))

    async def test_a_deadline_is_a_reason_to_look_if_a_child_is_let_go_by_it(self, queue: Queue) -> None:
        parent = await queue.enqueue("report.collect", delay=3_600, expires_in=60)
        await queue.enqueue("report.build", parents=[parent.id], on_parent_failure="run")
        await look_again_by(queue, START + timedelta(seconds=60))

    async def test_a_deadline_is_a_reason_to_look_if_a_follower_in_order_is_let_go_by_it(
        self, queue: Queue
    ) -> None:
        await queue.configure("default", max_concurrency_per_key=1)
        await queue.enqueue("email.send", key="busy")
        await queue.lease(worker="w1", lease_seconds=3_600)
        await queue.enqueue("email.send", key="busy", ordering_key="cart-1", expires_in=60)
        await queue.enqueue("email.send", ordering_key="cart-1")
        await look_again_by(queue, START + timedelta(seconds=60))

    async def test_whoever_sleeps_until_told_to_look_again_gets_every_job_on_time(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.configure("default", rate=Rate(1, per=7), max_concurrency=2)
        delays = [0, 0, 5, 30, 30, 100]
        await queue.enqueue_many([queue.new("email.send", delay=delay) for delay in delays])
        started = []
        for _ in range(100):
            for leased in await queue.lease(worker="w1", limit=10, lease_seconds=3_600):
                started.append((clock.now() - START).total_seconds())
                await queue.ack(leased)
            next_at = await queue.next_at(["default"])
            if next_at is None:
                break
            clock.set(max(next_at, clock.now()))
        assert started == [0, 7, 14, 30, 37, 100]


async def look_again_by(queue: Queue, truth: datetime, *names: str) -> None:
    """The hint on when to look again may be early; it must never be late."""
    next_at = await queue.next_at(names or ["default"])
    assert next_at is not None
    assert next_at <= truth


async def one_job_of_each_status(queue: Queue) -> dict[Status, JobId]:
    dead = await queue.enqueue("email.send")
    [leased] = await queue.lease(worker="w1")
    await queue.nack(leased, "boom", retry=False)
    held = await queue.enqueue("email.send", on_exhausted="hold")
    [leased] = await queue.lease(worker="w1")
    await queue.nack(leased, "boom", retry=False)
    succeeded = await queue.enqueue("email.send")
    [leased] = await queue.lease(worker="w1")
    await queue.ack(leased)
    running = await queue.enqueue("email.send")
    await queue.lease(worker="w1", lease_seconds=3_600)
    cancelled = await queue.enqueue("email.send")
    await queue.cancel(cancelled.id)
    queued = await queue.enqueue("email.send")
    waiting = await queue.enqueue("email.send", parents=[queued.id])
    return {
        Status.DEAD: dead.id,
        Status.HELD: held.id,
        Status.SUCCEEDED: succeeded.id,
        Status.RUNNING: running.id,
        Status.CANCELLED: cancelled.id,
        Status.QUEUED: queued.id,
        Status.WAITING: waiting.id,
    }
