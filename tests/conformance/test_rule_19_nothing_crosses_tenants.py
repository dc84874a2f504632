"""Rule 19: every read and write is within one tenant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.core.commands import Bulk, Settled
from penstock.core.errors import JobNotFound, LeaseLost, ParentNotFound, ScheduleNotFound
from penstock.core.job import JobId, LeaseToken, Status
from penstock.core.limits import Rate
from penstock.queue import Held, Queue
from penstock.testing import FakeClock

Settle = Callable[[Queue, Held], Awaitable[Settled]]


@dataclass(frozen=True)
class Hand:
    """Somebody who says to hold a lease."""

    id: JobId
    token: LeaseToken


@pytest.fixture
def acme(queue: Queue) -> Queue:
    """The same store as another tenant sees it."""
    return queue.for_tenant("acme", actor="eve")


class TestNothingCrossesTenants:
    async def test_another_tenants_job_is_not_found(self, queue: Queue, acme: Queue) -> None:
        job = await queue.enqueue("email.send")
        with pytest.raises(JobNotFound):
            await acme.get(job.id)

    async def test_another_tenants_history_is_not_found(self, queue: Queue, acme: Queue) -> None:
        job = await queue.enqueue("email.send")
        with pytest.raises(JobNotFound):
            await acme.history(job.id)

    @pytest.mark.parametrize("verb", ["cancel", "redrive"])
    async def test_another_tenants_job_cannot_be_changed(self, queue: Queue, acme: Queue, verb: str) -> None:
        job = await queue.enqueue("email.send")
        if verb == "redrive":
            await queue.cancel(job.id)
        before = await queue.get(job.id), await queue.history(job.id)
        with pytest.raises(JobNotFound):
            await getattr(acme, verb)(job.id)
        assert (await queue.get(job.id), await queue.history(job.id)) == before

    async def test_another_tenants_lease_cannot_be_settled(
        self, queue: Queue, acme: Queue, settle: Settle
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        with pytest.raises(JobNotFound):
            await settle(acme, leased)
        assert (await queue.get(leased.id)).status is Status.RUNNING

    async def test_another_tenants_lease_cannot_be_kept(self, queue: Queue, acme: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        before = await queue.get(leased.id)
        with pytest.raises(JobNotFound):
            await acme.heartbeat(leased, lease_seconds=600)
        assert await queue.get(leased.id) == before

    async def test_another_tenants_jobs_are_not_leased(self, queue: Queue, acme: Queue) -> None:
        await queue.enqueue("email.send")
        assert await acme.lease(worker="w1") == []

    async def test_another_tenants_jobs_are_not_listed(self, queue: Queue, acme: Queue) -> None:
        await queue.enqueue("email.send")
        assert (await acme.find()).jobs == ()

    async def test_a_page_can_be_continued_from_an_id_of_another_tenant_and_shows_nothing_of_it(
        self, queue: Queue, acme: Queue
    ) -> None:
        ours = await acme.enqueue("email.send")
        theirs = await queue.enqueue("email.send")
        assert [job.id for job in (await acme.find(after=theirs.id)).jobs] == [ours.id]

    async def test_another_tenants_queues_are_not_listed(self, queue: Queue, acme: Queue) -> None:
        await queue.enqueue("email.send", queue="emails")
        await queue.configure("reports", max_concurrency=1)
        assert await acme.queues() == []

    async def test_another_tenants_jobs_are_not_counted(self, queue: Queue, acme: Queue) -> None:
        await queue.enqueue("email.send")
        await acme.enqueue("email.send")
        assert (await acme.queue("default")).counts[Status.QUEUED] == 1

    async def test_another_tenants_settings_do_not_hold(self, queue: Queue, acme: Queue) -> None:
        await queue.pause("default")
        await acme.enqueue("email.send")
        assert len(await acme.lease(worker="w1")) == 1

    async def test_the_history_of_another_tenants_queue_is_not_seen(self, queue: Queue, acme: Queue) -> None:
        await queue.pause("default")
        assert (await acme.history("default", "queue")).records == ()

    async def test_another_tenants_schedules_are_not_listed(self, queue: Queue, acme: Queue) -> None:
        await queue.put_schedule("daily", "* * * * *", {"type": "report.build"})
        assert await acme.schedules() == []

    @pytest.mark.parametrize("verb", ["pause_schedule", "drop_schedule"])
    async def test_another_tenants_schedule_cannot_be_changed(
        self, queue: Queue, acme: Queue, verb: str
    ) -> None:
        schedule = await queue.put_schedule("daily", "* * * * *", {"type": "report.build"})
        with pytest.raises(ScheduleNotFound):
            await getattr(acme, verb)("daily")
        assert await queue.schedules() == [schedule]

    async def test_another_tenants_schedules_do_not_fire(
        self, queue: Queue, acme: Queue, clock: FakeClock
    ) -> None:
        await queue.put_schedule("daily", "* * * * *", {"type": "report.build"})
        clock.advance(minutes=1)
        assert await acme.fire_due() == []
        assert (await queue.find()).jobs == ()

    async def test_the_history_of_another_tenants_schedule_is_not_seen(
        self, queue: Queue, acme: Queue
    ) -> None:
        await queue.put_schedule("daily", "* * * * *", {"type": "report.build"})
        assert (await acme.history("daily", "schedule")).records == ()

    async def test_two_tenants_may_have_a_schedule_of_one_name(self, queue: Queue, acme: Queue) -> None:
        ours = await queue.put_schedule("daily", "0 9 * * *", {"type": "report.build"})
        theirs = await acme.put_schedule("daily", "0 18 * * *", {"type": "report.build"})
        assert await queue.schedules() == [ours]
        assert await acme.schedules() == [theirs]

    async def test_two_tenants_may_have_a_job_of_one_id(self, queue: Queue, acme: Queue) -> None:
        ours = await queue.enqueue("email.send", 1)
        theirs = await acme.enqueue("email.send", 2, id=ours.id)
        assert theirs.duplicate is None
        assert (await queue.get(ours.id)).payload == "1"
        assert (await acme.get(ours.id)).payload == "2"

    async def test_jobs_of_one_id_live_their_own_lives(self, queue: Queue, acme: Queue) -> None:
        job = await queue.enqueue("email.send")
        await acme.enqueue("email.send", id=job.id)
        await acme.cancel(job.id)
        assert (await queue.get(job.id)).status is Status.QUEUED
        assert (await queue.history(job.id)).records == ()

    async def test_a_token_is_no_good_for_a_job_of_the_same_id_in_another_tenant(
        self, queue: Queue, acme: Queue, settle: Settle
    ) -> None:
        job = await queue.enqueue("email.send")
        await acme.enqueue("email.send", id=job.id)
        [ours] = await queue.lease(worker="w1")
        [theirs] = await acme.lease(worker="w1")
        with pytest.raises(LeaseLost):
            await settle(acme, Hand(theirs.id, ours.token))
        assert (await acme.get(job.id)).status is Status.RUNNING

    async def test_a_settled_token_is_no_good_for_a_job_of_the_same_id_in_another_tenant(
        self, queue: Queue, acme: Queue
    ) -> None:
        job = await queue.enqueue("email.send")
        await acme.enqueue("email.send", id=job.id)
        [ours] = await queue.lease(worker="w1")
        await queue.ack(ours)
        with pytest.raises(LeaseLost):
            await acme.ack(ours)

    async def test_two_tenants_may_use_one_idempotency_key(self, queue: Queue, acme: Queue) -> None:
        await queue.enqueue("email.send", 1, idempotency_key="req-1")
        assert (await acme.enqueue("email.send", 2, idempotency_key="req-1")).duplicate is None

    async def test_two_tenants_may_use_one_unique_key(self, queue: Queue, acme: Queue) -> None:
        await queue.enqueue("email.send", unique_key="welcome:42")
        assert (await acme.enqueue("email.send", unique_key="welcome:42")).duplicate is None

    async def test_another_tenants_job_cannot_be_a_parent(self, queue: Queue, acme: Queue) -> None:
        parent = await queue.enqueue("report.collect")
        with pytest.raises(ParentNotFound):
            await acme.enqueue("report.build", parents=[parent.id])

    async def test_a_parents_end_lets_go_of_its_own_tenants_children_only(
        self, queue: Queue, acme: Queue
    ) -> None:
        parent = await queue.enqueue("report.collect")
        await acme.enqueue("report.collect", id=parent.id)
        child = await acme.enqueue("report.build", parents=[parent.id])
        [leased] = await queue.lease(worker="w1")
        await queue.ack(leased)
        assert (await acme.get(child.id)).status is Status.WAITING

    @pytest.mark.parametrize(
        ("limit", "value"),
        [
            ("max_concurrency", 1),
            ("max_concurrency_per_key", 1),
            ("rate", Rate(1, per=60)),
            ("rate_per_key", Rate(1, per=60)),
        ],
    )
    async def test_a_limit_counts_each_tenants_jobs_on_their_own(
        self, queue: Queue, acme: Queue, limit: str, value: Any
    ) -> None:
        for tenant in (queue, acme):
            await tenant.configure("default", **{limit: value})
            await tenant.enqueue_many([tenant.new("email.send", key="k") for _ in range(2)])
        assert len(await queue.lease(worker="w1", limit=2)) == 1
        assert len(await acme.lease(worker="w1", limit=2)) == 1

    async def test_an_ordering_key_counts_within_its_tenant(self, queue: Queue, acme: Queue) -> None:
        for tenant in (queue, acme):
            await tenant.enqueue("email.send", ordering_key="cart-1")
        assert len(await queue.lease(worker="w1")) == 1
        assert len(await acme.lease(worker="w1")) == 1

    async def test_a_cancel_by_filter_stays_within_its_tenant(self, queue: Queue, acme: Queue) -> None:
        job = await queue.enqueue("email.send")
        assert await acme.cancel_matching() == Bulk(matched=0, changed=0)
        assert (await queue.get(job.id)).status is Status.QUEUED

    async def test_a_redrive_by_filter_stays_within_its_tenant(self, queue: Queue, acme: Queue) -> None:
        job = await queue.enqueue("email.send")
        await queue.cancel(job.id)
        assert await acme.redrive_matching() == Bulk(matched=0, changed=0)
        assert (await queue.get(job.id)).status is Status.CANCELLED

    async def test_when_another_tenants_jobs_are_due_is_not_told(self, queue: Queue, acme: Queue) -> None:
        await queue.enqueue("email.send", delay=60)
        assert await acme.next_at(["default"]) is None

    async def test_a_job_names_its_tenant(self, acme: Queue) -> None:
        job = await acme.enqueue("email.send")
        assert (await acme.get(job.id)).tenant == "acme"
