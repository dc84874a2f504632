"""The tools we give to people who test their own jobs, tested."""

from __future__ import annotations

import doctest
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from penstock import Queue, Rate, Retry, Status, testing
from penstock.core.errors import InvalidInput
from penstock.core.job import Outcome
from penstock.testing import (
    START,
    FakeClock,
    assert_enqueued,
    counting_ids,
    counting_tokens,
    make_job,
    memory_queue,
    refute_enqueued,
    run_until_idle,
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def queue(clock: FakeClock) -> Queue:
    return memory_queue(clock)


class TestFakeClock:
    def test_stands_still(self) -> None:
        clock = FakeClock()
        assert clock.now() == clock.now() == START

    def test_begins_where_it_is_told_to(self) -> None:
        start = datetime(2030, 5, 1, tzinfo=UTC)
        assert FakeClock(start).now() == start

    def test_moves_on_by_what_it_is_told_and_says_where_it_is(self) -> None:
        clock = FakeClock()
        assert clock.advance(minutes=5, seconds=1) == clock.now() == START + timedelta(seconds=301)

    def test_can_be_set_and_set_back(self) -> None:
        clock = FakeClock()
        earlier = START - timedelta(days=1)
        assert clock.set(earlier) == clock.now() == earlier

    def test_its_example_is_true(self) -> None:
        assert doctest.testmod(testing).attempted > 0
        assert doctest.testmod(testing).failed == 0


class TestCounting:
    def test_ids_are_uuids_of_version_7_that_grow_and_repeat_in_every_run(self) -> None:
        one, two = counting_ids(), counting_ids()
        made = [one() for _ in range(300)]
        assert made == [two() for _ in range(300)] == sorted(set(made))
        assert {(UUID(job_id).version, UUID(job_id).variant) for job_id in made} == {
            (7, "specified in RFC 4122")
        }

    def test_ids_carry_the_time_they_start_from(self) -> None:
        assert UUID(counting_ids()()).int >> 80 == int(START.timestamp() * 1000)

    def test_tokens_repeat_in_every_run_and_never_within_one(self) -> None:
        one, two = counting_tokens(), counting_tokens()
        given = [next(one) for _ in range(100)]
        assert given == [next(two) for _ in range(100)]
        assert len(set(given)) == 100


class TestMemoryQueue:
    async def test_gives_the_same_ids_tokens_times_and_jitter_in_every_run(self) -> None:
        async def story() -> list[object]:
            queue = memory_queue()
            await queue.enqueue("email.send", {"to": "ada"}, max_attempts=2)
            [leased] = await queue.lease(worker="w1")
            settled = await queue.nack(leased, "boom")
            return [leased, settled, await queue.history(leased.id), await queue.queues()]

        assert await story() == await story()

    async def test_stands_in_the_middle_of_the_jitter(self) -> None:
        queue = memory_queue()
        await queue.enqueue("email.send", retry=Retry.fixed(10, jitter=0.5))
        [leased] = await queue.lease(worker="w1")
        assert (await queue.nack(leased, "boom")).run_at == START + timedelta(seconds=12.5)

    async def test_has_a_clock_that_stands_still_when_none_is_given(self) -> None:
        assert await memory_queue().store.now() == START

    async def test_goes_by_the_clock_it_is_given(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("email.send", delay=60)
        assert await queue.lease(worker="w1") == []
        clock.advance(seconds=60)
        assert len(await queue.lease(worker="w1")) == 1

    async def test_belongs_to_the_tenant_named(self) -> None:
        assert memory_queue(tenant="acme").tenant == "acme"

    async def test_shares_nothing_with_another(self) -> None:
        one, two = memory_queue(), memory_queue()
        await one.enqueue("email.send")
        await refute_enqueued(two, "email.send")


class TestMakeJob:
    def test_needs_nothing(self) -> None:
        job = make_job()
        assert (job.type, job.queue, job.payload) == ("test.job", "default", "{}")

    def test_takes_what_the_test_is_about(self) -> None:
        job = make_job("email.send", payload={"to": "ada"}, priority=5, delay=60)
        assert (job.type, job.payload, job.priority) == ("email.send", '{"to":"ada"}', 5)
        assert job.delay == timedelta(seconds=60)

    def test_makes_a_new_id_each_time(self) -> None:
        made = [make_job().id for _ in range(5)]
        assert made == sorted(set(made))

    def test_takes_an_id_too(self) -> None:
        other = make_job()
        assert make_job(id=other.id).id == other.id

    def test_refuses_what_enqueue_would_refuse(self) -> None:
        with pytest.raises(InvalidInput, match="priority must"):
            make_job(priority="high")

    async def test_makes_what_a_queue_takes(self, queue: Queue) -> None:
        job = make_job("email.send")
        await queue.enqueue_many([job])
        assert (await queue.get(job.id)).asked == job


class TestRunUntilIdle:
    async def test_does_nothing_when_there_is_nothing_to_do(self, queue: Queue) -> None:
        assert await run_until_idle(queue, {}) == []

    async def test_runs_plain_and_async_handlers_on_the_payload(self, queue: Queue) -> None:
        async def shout(payload: dict[str, str]) -> str:
            return payload["word"].upper()

        plain = await queue.enqueue("count", {"word": "hello"})
        other = await queue.enqueue("shout", {"word": "hello"})
        ran = await run_until_idle(queue, {"count": lambda payload: len(payload["word"]), "shout": shout})
        assert [(each.job.id, each.status, each.error) for each in ran] == [
            (plain.id, Status.SUCCEEDED, None),
            (other.id, Status.SUCCEEDED, None),
        ]
        assert [(await queue.get(job.id)).result for job in (plain, other)] == ["5", '"HELLO"']

    async def test_runs_all_queues(self, queue: Queue) -> None:
        for name in ("emails", "reports"):
            await queue.enqueue("work", queue=name)
        ran = await run_until_idle(queue, {"work": lambda _: None})
        assert sorted(each.job.queue for each in ran) == ["emails", "reports"]

    async def test_runs_more_jobs_than_one_lease_holds(self, queue: Queue) -> None:
        await queue.enqueue_many([{"type": "work"}] * 250)
        assert len(await run_until_idle(queue, {"work": lambda _: None})) == 250

    async def test_runs_what_handlers_enqueue(self, queue: Queue) -> None:
        async def first(_: object) -> None:
            await queue.enqueue("second")

        await queue.enqueue("first")
        ran = await run_until_idle(queue, {"first": first, "second": lambda _: None})
        assert [each.job.type for each in ran] == ["first", "second"]

    async def test_runs_children_after_their_parents(self, queue: Queue) -> None:
        parent = queue.new("parent")
        await queue.enqueue_many([parent, queue.new("child", parents=[parent.id])])
        ran = await run_until_idle(queue, {"parent": lambda _: None, "child": lambda _: None})
        assert [each.job.type for each in ran] == ["parent", "child"]

    async def test_with_a_clock_runs_retries_and_jumps_to_each(self, queue: Queue, clock: FakeClock) -> None:
        fails = iter([True, True, False])
        at: list[datetime] = []

        def flaky(_: object) -> None:
            at.append(clock.now())
            if next(fails):
                raise ConnectionError("refused")

        await queue.enqueue("flaky", retry=Retry.exponential(5, jitter=0))
        ran = await run_until_idle(queue, {"flaky": flaky}, clock=clock)
        assert [each.status for each in ran] == [Status.QUEUED, Status.QUEUED, Status.SUCCEEDED]
        assert [type(each.error) for each in ran] == [ConnectionError, ConnectionError, type(None)]
        assert at == [START + timedelta(seconds=seconds) for seconds in (0, 5, 15)]

    async def test_with_a_clock_runs_what_is_delayed(self, queue: Queue, clock: FakeClock) -> None:
        await queue.enqueue("work", delay=timedelta(days=30))
        assert len(await run_until_idle(queue, {"work": lambda _: None}, clock=clock)) == 1
        assert clock.now() == START + timedelta(days=30)

    async def test_with_a_clock_waits_for_a_rate(self, queue: Queue, clock: FakeClock) -> None:
        await queue.configure("default", rate=Rate(1, per=10))
        await queue.enqueue_many([{"type": "work"}] * 3)
        assert len(await run_until_idle(queue, {"work": lambda _: None}, clock=clock)) == 3
        assert clock.now() == START + timedelta(seconds=20)

    async def test_without_a_clock_runs_only_what_is_due_now(self, queue: Queue, clock: FakeClock) -> None:
        def fail(_: object) -> None:
            raise ValueError("no")

        await queue.enqueue("later", delay=1)
        failed = await queue.enqueue("fail")
        ran = await run_until_idle(queue, {"later": lambda _: None, "fail": fail})
        assert [each.job.type for each in ran] == ["fail"]
        assert (await queue.get(failed.id)).status is Status.QUEUED
        assert clock.now() == START

    async def test_ends_although_a_paused_queue_has_jobs(self, queue: Queue, clock: FakeClock) -> None:
        await queue.pause("default")
        await queue.enqueue("work")
        await queue.enqueue("work", delay=60)
        assert await run_until_idle(queue, {"work": lambda _: None}, clock=clock) == []

    async def test_a_raise_fails_the_attempt_and_says_what_was_raised(self, queue: Queue) -> None:
        def fail(_: object) -> None:
            raise ValueError("no such address")

        enqueued = await queue.enqueue("fail", max_attempts=1)
        [ran] = await run_until_idle(queue, {"fail": fail})
        assert ran.status is Status.DEAD
        [attempt] = (await queue.history(enqueued.id)).attempts
        assert (attempt.outcome, attempt.error) == (Outcome.FAILED, "ValueError: no such address")

    async def test_names_the_type_that_has_no_handler_and_those_that_have(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        with pytest.raises(AssertionError, match=r"no handler for 'email\.send'; there are a, b"):
            await run_until_idle(queue, {"b": lambda _: None, "a": lambda _: None})

    async def test_says_so_when_there_are_no_handlers_at_all(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        with pytest.raises(AssertionError, match=r"no handler for 'email\.send'; there are none"):
            await run_until_idle(queue, {})

    async def test_stops_a_job_that_brings_itself_back_for_ever(self, queue: Queue) -> None:
        async def again(_: object) -> None:
            await queue.enqueue("again")

        await queue.enqueue("again")
        with pytest.raises(AssertionError, match=r"20 attempts and still not idle; the last were 20 × again"):
            await run_until_idle(queue, {"again": again}, most=20)

    async def test_stops_a_job_that_fails_for_ever(self, queue: Queue, clock: FakeClock) -> None:
        def fail(_: object) -> None:
            raise ValueError("no")

        await queue.enqueue("fail", max_attempts=1_000)
        with pytest.raises(AssertionError, match="20 attempts and still not idle"):
            await run_until_idle(queue, {"fail": fail}, clock=clock, most=20)

    async def test_does_not_stop_a_job_that_needs_just_as_many_attempts(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        def fail(_: object) -> None:
            raise ValueError("no")

        await queue.enqueue("fail", max_attempts=20)
        assert len(await run_until_idle(queue, {"fail": fail}, clock=clock, most=20)) == 20


class TestAssertEnqueued:
    async def test_returns_the_jobs_newest_first(self, queue: Queue) -> None:
        first = await queue.enqueue("email.send")
        second = await queue.enqueue("email.send")
        await queue.enqueue("other")
        found = await assert_enqueued(queue, "email.send")
        assert [job.id for job in found] == [second.id, first.id]

    async def test_finds_a_job_whatever_became_of_it(self, queue: Queue) -> None:
        enqueued = await queue.enqueue("email.send")
        await queue.cancel(enqueued.id)
        assert [job.id for job in await assert_enqueued(queue, "email.send")] == [enqueued.id]

    async def test_asks_for_part_of_the_payload(self, queue: Queue) -> None:
        ada = await queue.enqueue("email.send", {"to": "ada", "subject": "Hi"})
        await queue.enqueue("email.send", {"to": "bob"})
        await queue.enqueue("email.send", ["no object"])
        assert [job.id for job in await assert_enqueued(queue, "email.send", {"to": "ada"})] == [ada.id]

    async def test_a_payload_without_the_name_is_not_one_with_null(self, queue: Queue) -> None:
        await queue.enqueue("email.send", {"to": "ada"})
        with pytest.raises(AssertionError):
            await assert_enqueued(queue, "email.send", {"cc": None})

    async def test_asks_for_conditions(self, queue: Queue) -> None:
        await queue.enqueue("email.send", key="ada")
        assert len(await assert_enqueued(queue, "email.send", key="ada", status="queued")) == 1
        with pytest.raises(AssertionError):
            await assert_enqueued(queue, "email.send", key="bob")

    async def test_asks_for_the_queue_like_any_other_condition(self, queue: Queue) -> None:
        enqueued = await queue.enqueue("email.send", queue="emails")
        await queue.enqueue("email.send", queue="reports")
        conditions: dict[str, Any] = {"queue": "emails"}
        assert [job.id for job in await assert_enqueued(queue, "email.send", **conditions)] == [enqueued.id]

    async def test_counts(self, queue: Queue) -> None:
        await queue.enqueue_many([{"type": "email.send"}] * 2)
        assert len(await assert_enqueued(queue, "email.send", times=2)) == 2
        with pytest.raises(AssertionError, match=r"expected exactly 3 'email\.send', found 2; the store has"):
            await assert_enqueued(queue, "email.send", times=3)

    async def test_says_what_it_looked_for_and_what_is_there(self, queue: Queue) -> None:
        await queue.enqueue("email.send", {"to": "bob"}, queue="emails")
        with pytest.raises(AssertionError) as failed:
            await assert_enqueued(queue, "email.send", {"to": "ada"}, status="queued")
        assert str(failed.value) == (
            "expected at least one 'email.send' with {'to': 'ada'} status='queued', found 0; "
            'the store has email.send {"to":"bob"} (emails, queued)'
        )

    async def test_says_that_the_store_is_empty(self, queue: Queue) -> None:
        with pytest.raises(AssertionError, match="found 0; the store is empty"):
            await assert_enqueued(queue, "email.send")

    async def test_does_not_list_thousands(self, queue: Queue) -> None:
        await queue.enqueue_many([{"type": "other"}] * 25)
        with pytest.raises(AssertionError, match=r"; and 15 more$"):
            await assert_enqueued(queue, "email.send")


class TestRefuteEnqueued:
    async def test_is_content_when_no_such_job_is_there(self, queue: Queue) -> None:
        await queue.enqueue("email.send", {"to": "bob"}, queue="emails")
        await refute_enqueued(queue, "email.drop")
        await refute_enqueued(queue, "email.send", {"to": "ada"})
        await refute_enqueued(queue, "email.send", status="dead")
        assert len((await queue.find()).jobs) == 1

    async def test_says_what_is_there_against_expectation(self, queue: Queue) -> None:
        await queue.enqueue("email.send", {"to": "ada"})
        with pytest.raises(AssertionError) as failed:
            await refute_enqueued(queue, "email.send", {"to": "ada"})
        assert str(failed.value) == (
            "expected exactly 0 'email.send' with {'to': 'ada'}, found 1; "
            'the store has email.send {"to":"ada"} (default, queued)'
        )
