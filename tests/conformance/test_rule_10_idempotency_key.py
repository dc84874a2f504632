"""Rule 10: a request is not repeated: same key within its window gives the first job's answer."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from penstock.core.commands import Duplicate, Enqueued
from penstock.core.errors import IdempotencyConflict
from penstock.core.job import Status
from penstock.core.ports import Store
from penstock.queue import Queue
from penstock.testing import FakeClock


class TestIdempotencyKey:
    async def test_the_same_key_gives_the_same_job(self, queue: Queue) -> None:
        first = await queue.enqueue("email.send", {"to": "ada"}, idempotency_key="req-1")
        again = await queue.enqueue("email.send", {"to": "ada"}, idempotency_key="req-1")
        assert again == Enqueued(first.id, Duplicate.IDEMPOTENCY_KEY)

    async def test_the_first_answer_says_that_the_job_is_new(self, queue: Queue) -> None:
        assert (await queue.enqueue("email.send", idempotency_key="req-1")).duplicate is None

    async def test_the_same_key_makes_no_second_job(self, queue: Queue) -> None:
        for _ in range(3):
            await queue.enqueue("email.send", idempotency_key="req-1")
        assert len((await queue.find()).jobs) == 1

    async def test_another_key_makes_another_job(self, queue: Queue) -> None:
        first = await queue.enqueue("email.send", idempotency_key="req-1")
        second = await queue.enqueue("email.send", idempotency_key="req-2")
        assert first.id != second.id

    async def test_keys_are_told_apart_by_case_and_space(self, queue: Queue) -> None:
        for key in ("req", "REQ", "req ", "réq"):
            await queue.enqueue("email.send", idempotency_key=key)
        assert len((await queue.find()).jobs) == 4

    async def test_without_a_key_every_request_makes_a_job(self, queue: Queue) -> None:
        await queue.enqueue("email.send", {"to": "ada"})
        await queue.enqueue("email.send", {"to": "ada"})
        assert len((await queue.find()).jobs) == 2

    @pytest.mark.parametrize(
        "other",
        [
            {"payload": {"to": "bob"}},
            {"payload": {"to": "ada", "cc": "bob"}},
            {"type": "email.resend"},
            {"queue": "emails"},
            {"priority": 1},
            {"delay": 60},
            {"max_attempts": 1},
            {"key": "customer-7"},
            {"unique_key": "welcome:42"},
            {"headers": {"trace": "1"}},
        ],
        ids=lambda other: next(iter(other)),
    )
    async def test_the_same_key_with_a_different_body_is_a_conflict(
        self, queue: Queue, other: dict[str, object]
    ) -> None:
        body = {"type": "email.send", "payload": {"to": "ada"}, "idempotency_key": "req-1"}
        await queue.enqueue_many([body])
        [answer] = await queue.enqueue_many([body | other])
        assert isinstance(answer, IdempotencyConflict)

    async def test_a_conflict_names_the_key_and_the_first_job(self, queue: Queue) -> None:
        first = await queue.enqueue("email.send", 1, idempotency_key="req-1")
        with pytest.raises(IdempotencyConflict) as caught:
            await queue.enqueue("email.send", 2, idempotency_key="req-1")
        assert caught.value.facts == {"idempotency_key": "req-1", "job_id": first.id}

    async def test_a_conflict_changes_nothing(self, queue: Queue) -> None:
        first = await queue.enqueue("email.send", 1, idempotency_key="req-1")
        before = await queue.get(first.id)
        with pytest.raises(IdempotencyConflict):
            await queue.enqueue("email.send", 2, idempotency_key="req-1")
        assert (await queue.find()).jobs == (before,)

    async def test_the_order_of_keys_in_the_payload_does_not_matter(self, queue: Queue) -> None:
        first = await queue.enqueue("email.send", {"a": {"x": 1, "y": 2}, "b": 1}, idempotency_key="req-1")
        again = await queue.enqueue("email.send", {"b": 1, "a": {"y": 2, "x": 1}}, idempotency_key="req-1")
        assert again.id == first.id

    async def test_the_order_of_a_list_in_the_payload_matters(self, queue: Queue) -> None:
        await queue.enqueue("email.send", [1, 2], idempotency_key="req-1")
        with pytest.raises(IdempotencyConflict):
            await queue.enqueue("email.send", [2, 1], idempotency_key="req-1")

    async def test_naming_a_default_is_the_same_request(self, queue: Queue) -> None:
        first = await queue.enqueue("email.send", idempotency_key="req-1")
        again = await queue.enqueue(
            "email.send", {}, priority=0, queue="default", delay=None, idempotency_key="req-1"
        )
        assert again.id == first.id

    async def test_the_key_holds_for_a_day_by_default(self, queue: Queue, clock: FakeClock) -> None:
        first = await queue.enqueue("email.send", idempotency_key="req-1")
        clock.advance(hours=24, microseconds=-1)
        assert (await queue.enqueue("email.send", idempotency_key="req-1")).id == first.id

    async def test_a_new_job_is_made_at_the_end_of_the_window_exactly(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        first = await queue.enqueue("email.send", idempotency_key="req-1")
        clock.advance(hours=24)
        again = await queue.enqueue("email.send", idempotency_key="req-1")
        assert again.id != first.id
        assert again.duplicate is None

    async def test_a_different_body_is_welcome_after_the_window(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send", 1, idempotency_key="req-1")
        clock.advance(hours=24)
        assert (await queue.enqueue("email.send", 2, idempotency_key="req-1")).duplicate is None

    async def test_the_window_counts_from_the_first_request(self, queue: Queue, clock: FakeClock) -> None:
        first = await queue.enqueue("email.send", idempotency_key="req-1")
        clock.advance(hours=23)
        await queue.enqueue("email.send", idempotency_key="req-1")
        clock.advance(hours=1)
        assert (await queue.enqueue("email.send", idempotency_key="req-1")).id != first.id

    async def test_a_new_window_opens_with_the_new_job(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send", idempotency_key="req-1")
        clock.advance(hours=24)
        second = await queue.enqueue("email.send", idempotency_key="req-1")
        clock.advance(hours=23)
        assert (await queue.enqueue("email.send", idempotency_key="req-1")).id == second.id

    @pytest.mark.parametrize("window", [60, timedelta(minutes=1)], ids=["seconds", "timedelta"])
    async def test_a_request_may_name_its_own_window(
        self, queue: Queue, clock: FakeClock, window: object
    ) -> None:
        options = {"idempotency_key": "req-1", "idempotency_window": window}
        first = await queue.enqueue("email.send", **options)
        clock.advance(seconds=59)
        assert (await queue.enqueue("email.send", **options)).id == first.id
        clock.advance(seconds=1)
        assert (await queue.enqueue("email.send", **options)).id != first.id

    async def test_a_sweep_does_not_close_the_window(self, queue: Queue, clock: FakeClock) -> None:
        first = await queue.enqueue("email.send", idempotency_key="req-1")
        clock.advance(hours=23)
        await queue.sweep()
        assert (await queue.enqueue("email.send", idempotency_key="req-1")).id == first.id

    async def test_the_first_job_still_answers_after_it_has_ended(self, queue: Queue) -> None:
        first = await queue.enqueue("email.send", idempotency_key="req-1")
        [leased] = await queue.lease(worker="w1")
        await queue.ack(leased)
        again = await queue.enqueue("email.send", idempotency_key="req-1")
        assert again == Enqueued(first.id, Duplicate.IDEMPOTENCY_KEY)

    async def test_a_repeated_request_does_not_run_the_job_again(self, queue: Queue) -> None:
        await queue.enqueue("email.send", idempotency_key="req-1")
        [leased] = await queue.lease(worker="w1")
        await queue.ack(leased)
        await queue.enqueue("email.send", idempotency_key="req-1")
        assert (await queue.get(leased.id)).status is Status.SUCCEEDED
        assert await queue.lease(worker="w1") == []

    async def test_the_first_job_still_answers_after_it_has_left_the_store(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.configure("default", retention_seconds=60)
        first = await queue.enqueue("email.send", idempotency_key="req-1")
        [leased] = await queue.lease(worker="w1")
        await queue.ack(leased)
        clock.advance(hours=1)
        await queue.sweep()
        assert (await queue.enqueue("email.send", idempotency_key="req-1")).id == first.id

    async def test_the_same_key_within_one_batch_makes_one_job(self, queue: Queue) -> None:
        jobs = [queue.new("email.send", idempotency_key="req-1") for _ in range(2)]
        assert await queue.enqueue_many(jobs) == [
            Enqueued(jobs[0].id),
            Enqueued(jobs[0].id, Duplicate.IDEMPOTENCY_KEY),
        ]

    async def test_the_same_key_in_requests_made_at_once_makes_one_job(
        self, queue: Queue, store: Store
    ) -> None:
        callers = [Queue(store) for _ in range(10)]
        answers = await asyncio.gather(
            *(caller.enqueue("email.send", idempotency_key="req-1") for caller in callers)
        )
        assert len({answer.id for answer in answers}) == 1
        assert sum(answer.duplicate is None for answer in answers) == 1

    async def test_the_key_counts_across_queues_of_a_tenant(self, queue: Queue) -> None:
        await queue.enqueue("email.send", queue="emails", idempotency_key="req-1")
        with pytest.raises(IdempotencyConflict):
            await queue.enqueue("email.send", queue="reports", idempotency_key="req-1")

    async def test_each_tenant_has_its_own_keys(self, queue: Queue) -> None:
        first = await queue.enqueue("email.send", 1, idempotency_key="req-1")
        other = await queue.for_tenant("acme").enqueue("email.send", 2, idempotency_key="req-1")
        assert other.duplicate is None
        assert other.id != first.id

    async def test_a_refused_request_does_not_use_up_its_key(self, queue: Queue) -> None:
        nobody = "01890000-0000-7000-8000-000000000000"
        [refused] = await queue.enqueue_many(
            [{"type": "email.send", "parents": [nobody], "idempotency_key": "req-1"}]
        )
        assert not isinstance(refused, Enqueued)
        assert (await queue.enqueue("email.send", idempotency_key="req-1")).duplicate is None
