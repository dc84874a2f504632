"""Rule 2: every write takes many items and answers per item; one bad item never fails its neighbours."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.commands import (
    Ack,
    Beat,
    CancelJob,
    Changed,
    ConfigureQueue,
    DropSchedule,
    Enqueued,
    Fire,
    Fired,
    Heartbeat,
    LeaseJobs,
    Nack,
    PutSchedule,
    RedriveJob,
    Settled,
)
from penstock.core.errors import (
    IdConflict,
    IdempotencyConflict,
    InvalidInput,
    JobNotFound,
    LeaseLost,
    NotAllowed,
    ParentNotFound,
    PenstockError,
    ScheduleNotFound,
)
from penstock.core.job import Job, JobId, LeaseToken, Status
from penstock.core.ports import Store
from penstock.core.requests import new_schedule
from penstock.core.settings import QueueSettings
from penstock.queue import Queue
from penstock.testing import FakeClock

NOBODY = JobId("01890000-0000-7000-8000-000000000000")

BAD_ITEMS: dict[str, tuple[Any, type[PenstockError]]] = {
    "bad name": ({"type": "no spaces, please"}, InvalidInput),
    "no type": ({"payload": {}}, InvalidInput),
    "unknown field": ({"type": "email.send", "colour": "red"}, InvalidInput),
    "payload that is not JSON": ({"type": "email.send", "payload": {1, 2}}, InvalidInput),
    "unknown parent": ({"type": "email.send", "parents": [NOBODY]}, ParentNotFound),
    "not an object": ("email.send", InvalidInput),
    "nothing": (None, InvalidInput),
}


class TestBatchFirst:
    @pytest.mark.parametrize(("bad", "error"), BAD_ITEMS.values(), ids=BAD_ITEMS)
    async def test_a_bad_item_gets_its_own_error_in_its_own_place(
        self, queue: Queue, bad: Any, error: type[PenstockError]
    ) -> None:
        first, last = queue.new("email.send"), queue.new("email.send")
        answers = await queue.enqueue_many([first, bad, last])
        assert answers[0] == Enqueued(first.id)
        assert isinstance(answers[1], error)
        assert answers[2] == Enqueued(last.id)

    @pytest.mark.parametrize("bad", [bad for bad, _ in BAD_ITEMS.values()], ids=BAD_ITEMS)
    async def test_the_neighbours_of_a_bad_item_are_enqueued(self, queue: Queue, bad: Any) -> None:
        first, last = queue.new("email.send"), queue.new("email.send")
        await queue.enqueue_many([first, bad, last])
        assert [leased.id for leased in await queue.lease(worker="w1", limit=10)] == [first.id, last.id]

    async def test_answers_come_in_the_order_of_the_items(self, queue: Queue) -> None:
        jobs = [queue.new("email.send", priority=number % 3) for number in range(20)]
        assert await queue.enqueue_many(jobs) == [Enqueued(job.id) for job in jobs]

    async def test_a_batch_of_bad_items_alone_is_answered_too(self, queue: Queue) -> None:
        answers = await queue.enqueue_many([{"type": ""}, {"type": "a b"}])
        assert [type(answer) for answer in answers] == [InvalidInput, InvalidInput]

    async def test_an_empty_batch_has_no_answers(self, queue: Queue) -> None:
        assert await queue.enqueue_many([]) == []

    async def test_items_may_be_plain_objects(self, queue: Queue) -> None:
        [answer] = await queue.enqueue_many([{"type": "email.send", "payload": {"to": "ada"}}])
        assert isinstance(answer, Enqueued)
        assert (await queue.get(answer.id)).payload == '{"to":"ada"}'

    async def test_items_take_effect_in_the_order_given(self, queue: Queue) -> None:
        parent = queue.new("report.collect")
        child = queue.new("report.build", parents=[parent.id])
        answers = await queue.enqueue_many([child, parent, child])
        assert isinstance(answers[0], ParentNotFound)
        assert answers[1:] == [Enqueued(parent.id), Enqueued(child.id)]

    async def test_conflicts_within_a_batch_are_the_later_items_own(self, queue: Queue) -> None:
        first = queue.new("email.send", 1, idempotency_key="k")
        same_id = queue.new("email.send", 2, id=first.id)
        same_key = queue.new("email.send", 2, idempotency_key="k")
        last = queue.new("email.send")
        answers = await queue.enqueue_many([first, same_id, same_key, last])
        assert [type(answer) for answer in answers] == [Enqueued, IdConflict, IdempotencyConflict, Enqueued]

    async def test_a_thousand_jobs_go_in_with_one_call(self, queue: Queue) -> None:
        jobs = [queue.new("email.send") for _ in range(1_000)]
        await queue.enqueue_many(jobs)
        assert (await queue.queue("default")).counts[Status.QUEUED] == 1_000

    async def test_a_stale_settle_leaves_the_others_of_its_batch_alone(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send")
        [stale] = await queue.lease(worker="w1")
        clock.advance(minutes=5)
        await queue.enqueue("email.send")
        retaken, good = await queue.lease(worker="w2", limit=2)
        answers = await queue.settle_many([queue.acked(stale), queue.acked(good), queue.nacked(retaken, "x")])
        assert isinstance(answers[0], LeaseLost)
        assert answers[1] == Settled(good.id, Status.SUCCEEDED, None)
        assert isinstance(answers[2], Settled)

    async def test_a_settle_of_an_unknown_job_leaves_the_others_of_its_batch_alone(
        self, queue: Queue
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        answers = await queue.settle_many([Ack(NOBODY, LeaseToken("none")), queue.acked(leased)])
        assert isinstance(answers[0], JobNotFound)
        assert answers[1] == Settled(leased.id, Status.SUCCEEDED, None)

    async def test_one_batch_may_settle_in_every_way(self, queue: Queue) -> None:
        await queue.enqueue_many([queue.new("email.send") for _ in range(5)])
        a, b, c, d, e = await queue.lease(worker="w1", limit=5)
        answers = await queue.settle_many(
            [
                queue.acked(a),
                queue.nacked(b, "boom", retry=False),
                queue.released(c),
                queue.snoozed(d, 60),
                queue.discarded(e),
            ]
        )
        assert [answer.status for answer in answers if isinstance(answer, Settled)] == [
            Status.SUCCEEDED,
            Status.DEAD,
            Status.QUEUED,
            Status.QUEUED,
            Status.CANCELLED,
        ]

    async def test_of_two_settles_of_one_lease_in_a_batch_the_first_wins(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        answers = await queue.settle_many([queue.acked(leased), Nack(leased.id, leased.token, "boom")])
        assert answers[0] == Settled(leased.id, Status.SUCCEEDED, None)
        assert isinstance(answers[1], LeaseLost)

    async def test_an_empty_batch_of_settles_has_no_answers(self, queue: Queue) -> None:
        assert await queue.settle_many([]) == []

    async def test_a_stale_heartbeat_leaves_the_others_of_its_batch_alone(
        self, queue: Queue, store: Store, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        answers = await store.heartbeat(
            queue.tenant,
            [
                Heartbeat(leased.id, LeaseToken("stale")),
                Heartbeat(NOBODY, leased.token),
                Heartbeat(leased.id, leased.token, 90),
            ],
        )
        assert isinstance(answers[0], LeaseLost)
        assert isinstance(answers[1], JobNotFound)
        assert answers[2] == Beat(clock.advance(seconds=90), cancel_requested=False)

    async def test_several_queues_are_leased_from_with_one_call(self, queue: Queue, store: Store) -> None:
        email = await queue.enqueue("email.send", queue="emails")
        report = await queue.enqueue("report.build", queue="reports")
        requests = [LeaseJobs("reports", "w1", 5), LeaseJobs("nothing", "w1"), LeaseJobs("emails", "w1", 5)]
        answers = await store.lease(queue.tenant, requests)
        ids = [[leased.id for leased in answer] for answer in answers if isinstance(answer, list)]
        assert ids == [[report.id], [], [email.id]]

    async def test_two_requests_for_one_queue_in_one_call_get_different_jobs(
        self, queue: Queue, store: Store
    ) -> None:
        jobs = [queue.new("email.send") for _ in range(3)]
        await queue.enqueue_many(jobs)
        answers = await store.lease(
            queue.tenant, [LeaseJobs("default", "w1", 2), LeaseJobs("default", "w2", 2)]
        )
        ids = [[leased.id for leased in answer] for answer in answers if isinstance(answer, list)]
        assert ids == [[jobs[0].id, jobs[1].id], [jobs[2].id]]

    async def test_a_refused_cancel_leaves_the_others_of_its_batch_alone(
        self, queue: Queue, store: Store
    ) -> None:
        await queue.enqueue("email.send")
        [done] = await queue.lease(worker="w1")
        await queue.ack(done)
        job = await queue.enqueue("email.send")
        answers = await store.cancel(
            queue.tenant, [CancelJob(NOBODY, "ada"), CancelJob(done.id, "ada"), CancelJob(job.id, "ada")]
        )
        assert isinstance(answers[0], JobNotFound)
        assert isinstance(answers[1], NotAllowed)
        assert answers[2] == Changed(job.id, Status.CANCELLED)

    async def test_a_refused_redrive_leaves_the_others_of_its_batch_alone(
        self, queue: Queue, store: Store
    ) -> None:
        queued, cancelled = await queue.enqueue("email.send"), await queue.enqueue("email.send")
        await queue.cancel(cancelled.id)
        answers = await store.redrive(
            queue.tenant,
            [RedriveJob(NOBODY, "ada"), RedriveJob(queued.id, "ada"), RedriveJob(cancelled.id, "ada")],
        )
        assert isinstance(answers[0], JobNotFound)
        assert isinstance(answers[1], NotAllowed)
        assert answers[2] == Changed(cancelled.id, Status.QUEUED)

    async def test_several_queues_are_set_with_one_call(self, queue: Queue, store: Store) -> None:
        answers = await store.configure(
            queue.tenant,
            [
                ConfigureQueue("emails", {"max_concurrency": 2}, "ada"),
                ConfigureQueue("reports", {"paused": True}, "ada"),
                ConfigureQueue("emails", {"fair": True}, "ada"),
            ],
        )
        assert answers == [
            QueueSettings(max_concurrency=2),
            QueueSettings(paused=True),
            QueueSettings(max_concurrency=2, fair=True),
        ]

    async def test_dropping_an_unknown_schedule_leaves_the_others_of_its_batch_alone(
        self, queue: Queue, store: Store
    ) -> None:
        schedules = [
            new_schedule(name, "0 9 * * *", {"type": "report.build"}) for name in ("daily", "nightly")
        ]
        await store.put_schedules(queue.tenant, [PutSchedule(schedule, "ada") for schedule in schedules])
        answers = await store.drop_schedules(
            queue.tenant,
            [DropSchedule("daily", "ada"), DropSchedule("yearly", "ada"), DropSchedule("nightly", "ada")],
        )
        assert isinstance(answers[1], ScheduleNotFound)
        assert await queue.schedules() == []

    async def test_firing_an_unknown_schedule_leaves_the_others_of_its_batch_alone(
        self, queue: Queue, store: Store, clock: FakeClock
    ) -> None:
        schedule = await queue.put_schedule("minutely", "* * * * *", {"type": "report.build"})
        due_at = clock.advance(minutes=1)
        assert schedule.next_fire_at == due_at
        answers = await store.fire(
            queue.tenant,
            [Fire("gone", due_at, (due_at,), None), Fire("minutely", due_at, (due_at,), None)],
        )
        assert isinstance(answers[0], ScheduleNotFound)
        assert isinstance(answers[1], Fired)
        assert len(answers[1].jobs) == 1

    async def test_an_unknown_id_leaves_the_others_of_a_read_alone(self, queue: Queue, store: Store) -> None:
        job = await queue.enqueue("email.send")
        answers = await store.get(queue.tenant, [NOBODY, job.id])
        assert isinstance(answers[0], JobNotFound)
        assert isinstance(answers[1], Job)

    async def test_an_unknown_id_leaves_the_others_of_a_read_of_histories_alone(
        self, queue: Queue, store: Store
    ) -> None:
        job = await queue.enqueue("email.send")
        answers = await store.history(queue.tenant, [("job", NOBODY), ("job", job.id)])
        assert isinstance(answers[0], JobNotFound)
        assert not isinstance(answers[1], PenstockError)
