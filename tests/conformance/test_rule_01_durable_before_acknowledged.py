"""Rule 1: enqueue returns only when the job would survive a crash."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from penstock.core.commands import Duplicate, Enqueued
from penstock.core.errors import IdConflict, InvalidInput
from penstock.core.job import JobId, Status
from penstock.core.ports import Store
from penstock.core.retry import Retry
from penstock.queue import Queue
from penstock.testing import FakeClock


class TestDurableBeforeAcknowledged:
    async def test_what_was_acknowledged_is_there_for_another_caller(
        self, queue: Queue, store: Store
    ) -> None:
        job = await queue.enqueue("email.send")
        assert (await Queue(store).get(job.id)).status is Status.QUEUED

    async def test_a_whole_batch_is_there_once_it_is_acknowledged(self, queue: Queue, store: Store) -> None:
        jobs = [queue.new("email.send") for _ in range(50)]
        await queue.enqueue_many(jobs)
        found = [job.asked async for job in Queue(store).find_all()]
        assert found == list(reversed(jobs))

    async def test_everything_that_was_asked_for_is_kept(self, queue: Queue) -> None:
        parent = await queue.enqueue("report.collect")
        asked = queue.new(
            "report.build",
            {"text": 'héllo "wörld" 🚰 \x00', "list": [1, 2.5, None, True, {}], "nested": {"a": {"b": []}}},
            queue="reports",
            priority=-7,
            run_at=datetime(2026, 5, 1, 8, 30, 0, 123456, tzinfo=UTC),
            expires_in=86_400 * 365,
            max_attempts=3,
            retry=Retry.linear(7, cap=70, jitter=0.25),
            on_exhausted="hold",
            key="customer-7",
            ordering_key="order ✓",
            unique_key="unique",
            idempotency_key="idempotent",
            idempotency_window=timedelta(hours=1),
            parents=[parent.id],
            on_parent_failure="run",
            headers={"traceparent": "00-1-2-03"},
        )
        await queue.enqueue_many([asked])
        assert (await queue.get(asked.id)).asked == asked

    async def test_a_payload_comes_back_as_it_was_sent(self, queue: Queue) -> None:
        job = await queue.enqueue("email.send", {"b": 1, "a": 1.0, "ü": [None]})
        assert (await queue.get(job.id)).payload == '{"b":1,"a":1.0,"ü":[null]}'

    async def test_a_job_without_a_payload_has_an_empty_object(self, queue: Queue) -> None:
        job = await queue.enqueue("email.send")
        assert (await queue.get(job.id)).payload == "{}"

    async def test_a_payload_may_be_null(self, queue: Queue) -> None:
        job = await queue.enqueue("email.send", None)
        assert (await queue.get(job.id)).payload == "null"

    async def test_an_enqueue_whose_reply_was_lost_can_be_sent_again(self, queue: Queue) -> None:
        job = queue.new("email.send", {"to": "ada"})
        await queue.enqueue_many([job])
        assert await queue.enqueue_many([job]) == [Enqueued(job.id, Duplicate.ID)]

    async def test_an_enqueue_sent_again_makes_no_second_job(self, queue: Queue) -> None:
        job = queue.new("email.send")
        await queue.enqueue_many([job])
        await queue.enqueue_many([job])
        assert len(await queue.lease(worker="w1", limit=10)) == 1

    async def test_an_enqueue_sent_again_after_the_job_ended_does_not_run_it_again(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        job = queue.new("email.send")
        await queue.enqueue_many([job])
        [leased] = await queue.lease(worker="w1")
        await queue.ack(leased)
        clock.advance(hours=1)
        assert await queue.enqueue_many([job]) == [Enqueued(job.id, Duplicate.ID)]
        assert (await queue.get(job.id)).status is Status.SUCCEEDED

    async def test_an_id_that_another_job_has_is_refused(self, queue: Queue) -> None:
        job = queue.new("email.send", {"to": "ada"})
        await queue.enqueue_many([job])
        [answer] = await queue.enqueue_many([queue.new("email.send", {"to": "bob"}, id=job.id)])
        assert isinstance(answer, IdConflict)

    async def test_an_id_that_another_job_has_leaves_that_job_as_it_was(self, queue: Queue) -> None:
        job = queue.new("email.send")
        await queue.enqueue_many([job])
        before = await queue.get(job.id)
        await queue.enqueue_many([queue.new("email.send", id=job.id, priority=5)])
        assert await queue.get(job.id) == before

    async def test_a_caller_may_bring_its_own_id(self, queue: Queue) -> None:
        own = JobId("01890000-0000-7000-8000-00000000abcd")
        assert await queue.enqueue("email.send", id=own) == Enqueued(own)

    async def test_what_was_refused_is_not_there(self, queue: Queue) -> None:
        with pytest.raises(InvalidInput):
            await queue.enqueue("email.send", priority="high")
        assert (await queue.find()).jobs == ()

    async def test_a_result_is_there_for_another_caller_once_the_ack_is_answered(
        self, queue: Queue, store: Store
    ) -> None:
        job = await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.ack(leased, {"sent": 1})
        assert (await Queue(store).get(job.id)).result == '{"sent":1}'
