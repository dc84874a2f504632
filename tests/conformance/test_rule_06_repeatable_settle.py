"""Rule 6: the same settle with the same token, sent again after it took effect, answers as the first time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from penstock.core import commands
from penstock.core.commands import Settled
from penstock.core.errors import LeaseLost
from penstock.core.job import Status
from penstock.queue import Held, Queue
from penstock.testing import FakeClock

Settle = Callable[[Queue, Held], Awaitable[Settled]]


class TestRepeatableSettle:
    async def test_a_settle_sent_again_gets_its_first_answer(self, queue: Queue, settle: Settle) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        first = await settle(queue, leased)
        assert await settle(queue, leased) == first

    async def test_a_settle_sent_again_much_later_gets_its_first_answer(
        self, queue: Queue, clock: FakeClock, settle: Settle
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        first = await settle(queue, leased)
        clock.advance(hours=5)
        assert await settle(queue, leased) == first

    async def test_a_settle_sent_again_changes_nothing(
        self, queue: Queue, clock: FakeClock, settle: Settle
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await settle(queue, leased)
        before = await queue.get(leased.id), await queue.history(leased.id)
        clock.advance(seconds=1)
        await settle(queue, leased)
        assert (await queue.get(leased.id), await queue.history(leased.id)) == before

    @pytest.mark.parametrize("settle", ["nack", "release", "snooze"], indirect=True)
    async def test_a_settle_sent_again_gets_its_first_answer_though_another_worker_has_the_job(
        self, queue: Queue, clock: FakeClock, settle: Settle
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        first = await settle(queue, leased)
        clock.advance(seconds=10)
        await queue.lease(worker="w2")
        assert await settle(queue, leased) == first

    @pytest.mark.parametrize("settle", ["nack", "release", "snooze"], indirect=True)
    async def test_a_settle_sent_again_does_not_disturb_the_worker_that_has_the_job_now(
        self, queue: Queue, clock: FakeClock, settle: Settle
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await settle(queue, leased)
        clock.advance(seconds=10)
        [second] = await queue.lease(worker="w2")
        await settle(queue, leased)
        assert (await queue.ack(second)).status is Status.SUCCEEDED

    @pytest.mark.parametrize("settle", ["nack", "release", "snooze"], indirect=True)
    async def test_a_settle_sent_again_gets_its_first_answer_though_the_job_has_ended_since(
        self, queue: Queue, clock: FakeClock, settle: Settle
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        first = await settle(queue, leased)
        clock.advance(seconds=10)
        [second] = await queue.lease(worker="w2")
        await queue.ack(second)
        assert await settle(queue, leased) == first

    async def test_a_settle_sent_again_gets_its_first_answer_though_the_job_was_redriven(
        self, queue: Queue
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        first = await queue.nack(leased, "boom", retry=False)
        await queue.redrive(leased.id)
        await queue.lease(worker="w2")
        assert await queue.nack(leased, "boom", retry=False) == first

    async def test_a_settle_that_ended_the_job_by_its_last_attempt_gets_its_first_answer(
        self, queue: Queue
    ) -> None:
        await queue.enqueue("email.send", max_attempts=1)
        [leased] = await queue.lease(worker="w1")
        first = await queue.nack(leased, "boom")
        assert await queue.nack(leased, "boom") == first == Settled(leased.id, Status.DEAD, None)

    async def test_a_settle_of_a_job_that_was_asked_to_stop_gets_its_first_answer(
        self, queue: Queue, settle: Settle
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.cancel(leased.id)
        first = await settle(queue, leased)
        assert await settle(queue, leased) == first

    async def test_a_settle_sent_twice_in_one_batch_gets_one_answer_twice(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        answers = await queue.settle_many([queue.nacked(leased, "boom"), queue.nacked(leased, "boom")])
        assert answers[0] == answers[1]
        assert len((await queue.history(leased.id)).attempts) == 1

    async def test_another_settle_with_a_used_token_is_refused(self, queue: Queue, settle: Settle) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        first = await settle(queue, leased)
        settles: list[commands.Settle] = [
            queue.acked(leased),
            queue.nacked(leased, "boom"),
            queue.released(leased),
            queue.snoozed(leased, 10),
            queue.discarded(leased),
        ]
        answers = await queue.settle_many(settles)
        assert [answer for answer in answers if not isinstance(answer, LeaseLost)] == [first]

    async def test_another_settle_with_a_used_token_changes_nothing(
        self, queue: Queue, settle: Settle
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await settle(queue, leased)
        before = await queue.get(leased.id), await queue.history(leased.id)
        await queue.settle_many([queue.acked(leased), queue.nacked(leased, "x"), queue.discarded(leased)])
        assert (await queue.get(leased.id), await queue.history(leased.id)) == before

    async def test_an_ack_sent_again_with_another_result_does_not_change_the_first(
        self, queue: Queue
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.ack(leased, 1)
        await queue.settle_many([queue.acked(leased, 2)])
        assert (await queue.get(leased.id)).result == "1"

    async def test_a_settle_that_never_took_effect_is_not_repeatable(
        self, queue: Queue, clock: FakeClock, settle: Settle
    ) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        clock.advance(minutes=5)
        for _ in range(2):
            with pytest.raises(LeaseLost):
                await settle(queue, leased)

    async def test_a_heartbeat_may_be_sent_again(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        assert await queue.heartbeat(leased) == await queue.heartbeat(leased)
