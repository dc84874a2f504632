"""Every reason for which a job does not run is told, in words and in facts, whatever the store."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from penstock.core.errors import JobNotFound
from penstock.core.job import JobId, Status
from penstock.core.limits import Rate
from penstock.core.ports import Store
from penstock.core.retry import Retry
from penstock.explain import Explanation, Reason, explain, obstacles
from penstock.explain.telling import span
from penstock.presence import Presence, show
from penstock.queue import Queue
from penstock.testing import START, FakeClock, counting_ids
from support.stores import STORES


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "postgres"])
async def store(request: pytest.FixtureRequest, clock: FakeClock) -> AsyncIterator[Store]:
    store = STORES[request.param](clock)
    yield store
    await store.close()


@pytest.fixture
async def queue(store: Store) -> Queue:
    return Queue(store, actor="ada", ids=counting_ids(), entropy=lambda: 0.0)


async def worker(queue: Queue, name: str = "w1", queues: str = "default", **how: Any) -> None:
    """A worker shows itself."""
    figures = {"slots": 10, "running": 0, "reserved": 0, **how}
    shown = Presence(
        name, name, queue.tenant, {queues: 1.0}, pid=1, host="h", version="1", started_at=START, **figures
    )
    await show(queue.store, queue.tenant, shown, 3_600)


async def enqueue(queue: Queue, /, **options: Any) -> JobId:
    return (await queue.enqueue("email.send", **options)).id


async def told(queue: Queue, job_id: str, *codes: str) -> list[Reason]:
    """The reasons, which are of these codes; the summary is the first of them, and all facts are JSON."""
    explained = await explain(queue, job_id)
    assert [reason.code for reason in explained.reasons] == list(codes)
    assert explained.summary == f"The job is {explained.status}: {explained.reasons[0].message}."
    assert (explained.job_id, explained.status) == (job_id, (await queue.get(job_id)).status)
    for reason in explained.reasons:
        json.dumps(reason.facts)
    return list(explained.reasons)


class TestRunning:
    async def test_who_runs_it_since_when_and_until_when(self, queue: Queue, clock: FakeClock) -> None:
        job = await enqueue(queue)
        await worker(queue)
        await queue.lease(worker="w1", lease_seconds=30)
        clock.advance(seconds=10)
        [running] = await told(queue, job, "running")
        assert running.message == (
            "worker w1 has run attempt 1 since 2026-01-01 12:00:00 UTC (10 s ago); "
            "its lease lasts until 2026-01-01 12:00:30 UTC (in 20 s), unless it is renewed"
        )
        assert running.facts == {
            "worker": "w1", "attempt": 1, "since": "2026-01-01T12:00:00+00:00",
            "lease_until": "2026-01-01T12:00:30+00:00", "cancel_requested": False,
        }  # fmt: skip

    async def test_who_asked_it_to_stop_and_why(self, queue: Queue, clock: FakeClock) -> None:
        job = await enqueue(queue)
        await worker(queue)
        await queue.lease(worker="w1")
        clock.advance(seconds=5)
        await queue.cancel(job, "sent twice")
        cancelled, running = await told(queue, job, "cancel_requested", "running")
        assert "by ada at 2026-01-01 12:00:05 UTC (0 s ago) (sent twice)" in cancelled.message
        assert cancelled.facts["by"] == "ada"
        assert running.facts["cancel_requested"] is True

    async def test_that_its_worker_is_not_seen(self, queue: Queue) -> None:
        job = await enqueue(queue)
        await worker(queue, "another")
        await queue.lease(worker="w1")
        _, unseen = await told(queue, job, "running", "worker_not_seen")
        assert unseen.facts["worker"] == "w1"


class TestEnded:
    async def test_succeeded(self, queue: Queue, clock: FakeClock) -> None:
        job = await enqueue(queue)
        [leased] = await queue.lease(worker="w1")
        await queue.ack(leased)
        clock.advance(minutes=3)
        [reason] = await told(queue, job, "succeeded")
        assert reason.message == "it ended well in attempt 1 at 2026-01-01 12:00:00 UTC (3 min ago)"

    @pytest.mark.parametrize(
        ("on_exhausted", "status", "advice"),
        [
            ("dead", Status.DEAD, "redrive it to try again"),
            (
                "hold", Status.HELD,
                "somebody has to redrive or cancel it, and the jobs behind its ordering key wait for that",
            ),
        ],
    )  # fmt: skip
    async def test_its_attempts_were_used_up(
        self, queue: Queue, on_exhausted: str, status: Status, advice: str
    ) -> None:
        job = await enqueue(queue, max_attempts=2, on_exhausted=on_exhausted, ordering_key="k")
        for _ in range(2):
            [leased] = await queue.lease(worker="w1")
            await queue.nack(leased, "smtp\n  says no", retry_in=0)
        [reason] = await told(queue, job, "exhausted")
        assert reason.message == (
            f"its 2 attempts were used up at 2026-01-01 12:00:00 UTC (0 s ago); the last error was: smtp says no; {advice}"
        )
        assert reason.facts["error"] == "smtp\n  says no"
        assert (await queue.get(job)).status is status

    async def test_where_it_was_raised_is_left_to_who_looks_at_the_job(self, queue: Queue) -> None:
        job = await enqueue(queue, max_attempts=1)
        [leased] = await queue.lease(worker="w1")
        error = (
            'ValueError: no\n\nTraceback (most recent call last):\n  File "shop.py", line 1\nValueError: no'
        )
        await queue.nack(leased, error)
        [reason] = await told(queue, job, "exhausted")
        assert "the last error was: ValueError: no; redrive it" in reason.message
        assert reason.facts["error"] == error

    async def test_its_handler_refused(self, queue: Queue) -> None:
        job = await enqueue(queue)
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "x" * 1_000, retry=False)
        [reason] = await told(queue, job, "refused")
        assert "trying again is pointless" in reason.message
        assert len(reason.message) < 400

    async def test_somebody_cancelled_it(self, queue: Queue) -> None:
        job = await enqueue(queue)
        await queue.cancel(job, "wrong address")
        [reason] = await told(queue, job, "cancelled")
        assert reason.message == (
            "it was cancelled by ada at 2026-01-01 12:00:00 UTC (0 s ago) (wrong address); redrive it to run it after all"
        )
        assert (reason.facts["by"], reason.facts["why"]) == ("ada", "wrong address")

    async def test_its_handler_discarded_it(self, queue: Queue) -> None:
        job = await enqueue(queue)
        [leased] = await queue.lease(worker="w1")
        await queue.discard(leased, "unsubscribed")
        [reason] = await told(queue, job, "discarded")
        assert reason.message.endswith(": unsubscribed")

    async def test_it_expired(self, queue: Queue, clock: FakeClock) -> None:
        job = await enqueue(queue, expires_in=60)
        clock.advance(hours=3)
        [reason] = await told(queue, job, "expired")
        assert "by its expires_at, 2026-01-01 12:01:00 UTC (3 h ago)" in reason.message

    async def test_a_parent_failed(self, queue: Queue) -> None:
        good, bad = await enqueue(queue), await enqueue(queue)
        child = await enqueue(queue, parents=[good, bad])
        await queue.cancel(bad)
        [reason] = await told(queue, child, "parent_failed")
        assert reason.facts["parents"] == [{"id": bad, "status": "cancelled"}]
        assert f"{bad} (cancelled); redrive that one" in reason.message


class TestWaiting:
    async def test_for_which_parents(self, queue: Queue) -> None:
        parents = [await enqueue(queue) for _ in range(9)]
        child = await enqueue(queue, parents=parents, expires_in=60)
        for leased in await queue.lease(worker="w1", limit=2):
            await queue.ack(leased)
        reason, expires = await told(queue, child, "waiting_for_parents", "expires")
        assert reason.message == (
            "it waits for 7 of its 9 parents: "
            + ", ".join(f"{parent} (queued)" for parent in parents[2:7])
            + " and 2 more"
        )
        assert (reason.facts["more"], reason.facts["all"]) == (2, 9)
        assert expires.facts == {"expires_at": "2026-01-01T12:01:00+00:00"}

    async def test_for_one_that_somebody_has_to_decide_about(self, queue: Queue) -> None:
        parent = await enqueue(queue, max_attempts=1, on_exhausted="hold")
        child = await enqueue(queue, parents=[parent])
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom")
        [reason] = await told(queue, child, "waiting_for_parents")
        assert reason.message == (
            f"it waits for 1 of its 1 parent: {parent} (held); somebody has to redrive or cancel {parent}"
        )

    async def test_one_that_runs_anyway_waits_only_for_those_that_have_not_ended(self, queue: Queue) -> None:
        failed, left = await enqueue(queue), await enqueue(queue)
        child = await enqueue(queue, parents=[failed, left], on_parent_failure="run")
        await queue.cancel(failed)
        [reason] = await told(queue, child, "waiting_for_parents")
        assert reason.facts["parents"] == [{"id": left, "status": "queued"}]


class TestNotDue:
    async def test_it_was_asked_for_later(self, queue: Queue) -> None:
        await worker(queue)
        job = await enqueue(queue, delay=7_200, expires_in=86_400)
        reason, _ = await told(queue, job, "not_due", "expires")
        assert reason.message == "it is due at 2026-01-01 14:00:00 UTC (in 2 h), as was asked for"
        assert (reason.facts["because"], reason.facts["in_seconds"]) == ("scheduled", 7_200)

    async def test_it_is_tried_again_later(self, queue: Queue) -> None:
        await worker(queue)
        job = await enqueue(queue, retry=Retry.fixed(90), expires_in=60)  # which it need not fear any more
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "smtp says no")
        [reason] = await told(queue, job, "not_due")
        assert reason.message == (
            "it is due at 2026-01-01 12:01:30 UTC (in 90 s), to try again after attempt 1 failed: smtp says no"
        )
        assert (reason.facts["because"], reason.facts["error"]) == ("retry", "smtp says no")

    async def test_its_handler_put_it_off(self, queue: Queue) -> None:
        await worker(queue)
        job = await enqueue(queue)
        [leased] = await queue.lease(worker="w1")
        await queue.snooze(leased, 60)
        [reason] = await told(queue, job, "not_due")
        assert reason.facts["because"] == "snoozed"

    async def test_a_worker_without_a_handler_gave_it_back(self, queue: Queue) -> None:
        await worker(queue)
        job = await enqueue(queue)
        [leased] = await queue.lease(worker="w1")
        await queue.release(leased, delay=30)
        [reason] = await told(queue, job, "not_due")
        assert reason.facts["because"] == "given_back"
        assert "worker w1 gave it back, as one does that has no handler for email.send" in reason.message

    async def test_no_limit_is_told_of_that_may_be_over_by_then(self, queue: Queue) -> None:
        await worker(queue)
        await queue.configure("default", max_concurrency=1)
        await enqueue(queue)
        await queue.lease(worker="w1")
        await told(queue, await enqueue(queue, delay=3_600), "not_due")


class TestPaused:
    async def test_by_whom_when_and_why(self, queue: Queue, clock: FakeClock) -> None:
        await worker(queue)
        job = await enqueue(queue)
        await queue.pause("default", "an earlier time")
        await queue.resume("default")
        clock.advance(minutes=1)
        await queue.for_tenant("default", actor="grace").pause("default", "the mail server moves")
        clock.advance(minutes=30)
        await queue.configure("default", max_attempts=3)
        await queue.configure("default", paused=True, lease_seconds=60)
        [reason] = await told(queue, job, "paused")
        assert reason.message == (
            "its queue default is paused by grace at 2026-01-01 12:01:00 UTC (30 min ago) (the mail server moves); "
            "resume the queue to let it out"
        )
        assert reason.facts == {
            "queue": "default", "by": "grace", "at": "2026-01-01T12:01:00+00:00", "why": "the mail server moves",
        }  # fmt: skip

    async def test_it_comes_first_whatever_else_there_is(self, queue: Queue) -> None:
        job = await enqueue(queue, delay=60)
        await queue.pause("default")
        await told(queue, job, "paused", "not_due", "no_worker")


class TestConcurrency:
    async def test_the_queue_runs_as_many_as_it_may(self, queue: Queue) -> None:
        await worker(queue)
        await queue.configure("default", max_concurrency=7)
        running = [await enqueue(queue) for _ in range(7)]
        job = await enqueue(queue)
        await queue.lease(worker="w1", limit=7)
        [reason] = await told(queue, job, "concurrency_limit")
        assert reason.message == (
            "its queue default runs 7 jobs at once and no more: "
            + ", ".join(f"{one} (w1)" for one in running[:1:-1])
            + " and 2 more"
        )
        assert reason.facts["limit"] == 7
        assert len(reason.facts["running"]) == 5

    async def test_its_key_runs_as_many_as_it_may(self, queue: Queue) -> None:
        await worker(queue)
        await queue.configure("default", max_concurrency_per_key=1)
        other = await enqueue(queue, key="shop-1")
        await enqueue(queue, key="shop-2")
        job, free = await enqueue(queue, key="shop-1"), await enqueue(queue, key="shop-3")
        await queue.lease(worker="w1", limit=2)
        [reason, *_] = await told(queue, job, "key_concurrency_limit")
        assert reason.message == f"its key 'shop-1' runs 1 job at once and no more: {other} (w1)"
        assert reason.facts == {
            "queue": "default", "key": "shop-1", "limit": 1, "certain": True,
            "running": [{"id": other, "status": "running", "worker": "w1", "since": "2026-01-01T12:00:00+00:00"}],
        }  # fmt: skip
        await told(queue, free, "behind")

    async def test_with_room_it_is_not_the_limit(self, queue: Queue) -> None:
        await worker(queue)
        await queue.configure("default", max_concurrency=2, max_concurrency_per_key=2)
        await enqueue(queue, key="k")
        await queue.lease(worker="w1")
        await told(queue, await enqueue(queue, key="k"), "next")


class TestRates:
    async def test_the_queues_is_used_up_until(self, queue: Queue, clock: FakeClock) -> None:
        await worker(queue)
        await queue.configure("default", rate=Rate(6, per=60))
        await enqueue(queue)
        job = await enqueue(queue)
        assert len(await queue.lease(worker="w1", limit=2)) == 1
        clock.advance(seconds=4)
        [reason] = await told(queue, job, "rate_limit")
        assert reason.message == (
            "the rate of its queue default, 6 in 60 s, is used up; it is not let out before 2026-01-01 12:00:10 UTC (in 6 s)"
        )
        assert reason.facts == {
            "limit": 6, "per_seconds": 60, "certain": True, "not_before": "2026-01-01T12:00:10+00:00",
        }  # fmt: skip
        clock.advance(seconds=6)
        await told(queue, job, "next")

    async def test_that_of_its_key_may_be_used_up(self, queue: Queue) -> None:
        await worker(queue)
        await queue.configure("default", rate_per_key=Rate(1, per=600))
        await enqueue(queue, key="shop-1")
        job = await enqueue(queue, key="shop-1")
        assert len(await queue.lease(worker="w1", limit=2)) == 1
        [reason] = await told(queue, job, "key_rate_limit")
        assert reason.message.startswith("the rate of its key 'shop-1', 1 in 10 min, ")

    async def test_of_two_either_may_be(self, queue: Queue) -> None:
        await worker(queue)
        await queue.configure("default", rate=Rate(1, per=60), rate_per_key=Rate(1, per=60))
        await enqueue(queue, key="shop-1")
        job = await enqueue(queue, key="shop-1")
        await queue.lease(worker="w1")
        reasons = await told(queue, job, "rate_limit", "key_rate_limit")
        assert [reason.facts["certain"] for reason in reasons] == [False, False]


class TestOrderingKey:
    async def test_another_runs(self, queue: Queue) -> None:
        await worker(queue)
        first = await enqueue(queue, ordering_key="account-7")
        job = await enqueue(queue, ordering_key="account-7")
        await enqueue(queue, ordering_key="account-8")
        await queue.lease(worker="w1")
        [reason, *_] = await told(queue, job, "ordering_key")
        assert (
            reason.message == f"job {first} goes before it, by the ordering key 'account-7', and is running"
        )
        assert reason.facts["jobs"] == [
            {"id": first, "status": "running", "worker": "w1", "since": "2026-01-01T12:00:00+00:00"}
        ]

    async def test_another_runs_that_would_have_come_later(self, queue: Queue, clock: FakeClock) -> None:
        await worker(queue)
        first = await enqueue(queue, ordering_key="k")
        await queue.lease(worker="w1")
        job = await enqueue(queue, ordering_key="k", run_at=START - timedelta(hours=1))
        [reason] = await told(queue, job, "ordering_key")
        assert reason.facts["jobs"][0]["id"] == first

    async def test_no_rate_is_blamed_for_it(self, queue: Queue, clock: FakeClock) -> None:
        await worker(queue)
        await queue.configure("default", rate=Rate(1_000))
        await enqueue(queue, ordering_key="k")
        job = await enqueue(queue, ordering_key="k")
        await queue.lease(worker="w1")
        clock.advance(seconds=1)
        await told(queue, job, "ordering_key")

    async def test_another_is_held(self, queue: Queue) -> None:
        await worker(queue)
        first = await enqueue(queue, ordering_key="k", max_attempts=1, on_exhausted="hold")
        job = await enqueue(queue, ordering_key="k")
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom")
        [reason] = await told(queue, job, "ordering_key")
        assert reason.message == (
            f"job {first} goes before it, by the ordering key 'k', and is held; somebody has to redrive or cancel that one"
        )

    async def test_another_is_queued_and_was_to_run_earlier_whatever_its_age(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await worker(queue)
        job = await enqueue(queue, ordering_key="k", delay=60)
        newer = await enqueue(queue, ordering_key="k", delay=30)
        clock.advance(seconds=90)
        [reason, _] = await told(queue, job, "ordering_key", "behind")
        assert reason.facts["jobs"] == [{"id": newer, "status": "queued"}]
        await told(queue, newer, "next")

    async def test_it_says_so_when_there_are_too_many_to_be_certain(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(obstacles, "MOST_READ", 3)
        await worker(queue)
        await enqueue(queue, ordering_key="k")
        for _ in range(4):
            await enqueue(queue)
        job = await enqueue(queue, ordering_key="k")
        reason, behind = await told(queue, job, "ordering_key", "behind")
        assert reason.facts == {"ordering_key": "k", "certain": False}
        assert "may go before it" in reason.message
        assert (behind.facts["ahead_at_least"], behind.facts["ahead_at_most"]) == (2, 5)
        assert behind.message == "up to 5 jobs of its queue may go first, by priority or age"


class TestWorkers:
    async def test_none_is_seen(self, queue: Queue) -> None:
        [reason] = await told(queue, await enqueue(queue), "no_worker")
        assert reason.message == (
            "no worker that shows itself takes jobs of the queue default: none is seen at all"
        )

    async def test_none_takes_this_queue(self, queue: Queue) -> None:
        await worker(queue, "w1", "emails")
        await worker(queue, "w2", "report*")
        await worker(queue, "w3", stopping=True)
        await worker(queue.for_tenant("other"), "w4")
        await enqueue(queue)
        await queue.lease(worker="by hand")
        [reason] = await told(queue, await enqueue(queue), "no_worker")
        assert reason.message == (
            "no worker that shows itself takes jobs of the queue default: "
            "3 workers of this tenant take other queues, or are stopping; what runs of it, 1 job, was leased by others"
        )
        assert reason.facts == {"queue": "default", "workers": 3, "running": 1}

    async def test_a_pattern_takes_it(self, queue: Queue) -> None:
        await worker(queue, "w1", "report*")
        [reason] = await told(queue, await enqueue(queue, queue="reports.daily"), "next")
        assert reason.message == "nothing keeps it: w1 may take it at any moment"

    async def test_all_are_busy(self, queue: Queue) -> None:
        await worker(queue, "w1", slots=3, running=3)
        await worker(queue, "w2", slots=2, running=2)
        await worker(queue, "idle", "emails")
        [reason] = await told(queue, await enqueue(queue), "workers_busy")
        assert (
            reason.message == "all 5 slots of w1, w2 were taken when last seen; start more workers, or wait"
        )

    async def test_one_is_not(self, queue: Queue) -> None:
        await worker(queue, "w1", slots=3, running=3)
        await worker(queue, "w2", slots=2, running=1)
        [reason] = await told(queue, await enqueue(queue), "next")
        assert reason.facts == {"workers": ["w1", "w2"]}


class TestBehind:
    async def test_those_of_higher_priority_and_those_that_are_older(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await worker(queue)
        await enqueue(queue)
        clock.advance(seconds=1)
        job = await enqueue(queue)
        clock.advance(seconds=1)
        for options in ({}, {"priority": -1}, {"priority": 5}, {"priority": 9, "delay": 60}):
            await enqueue(queue, **options)
        await enqueue(queue, queue="other", priority=9)
        [reason] = await told(queue, job, "behind")
        assert reason.message == "2 jobs of its queue go first, by priority or age"
        assert reason.facts == {
            "queued": 6, "ahead_at_least": 2, "ahead_at_most": 2, "fair": False,
            "oldest_run_at": "2026-01-01T12:00:00+00:00",
        }  # fmt: skip

    async def test_in_a_fair_queue_keys_take_turns(self, queue: Queue) -> None:
        await worker(queue)
        await queue.configure("default", fair=True)
        await enqueue(queue, key="a")
        [reason] = await told(queue, await enqueue(queue, key="b"), "behind")
        assert reason.message.endswith("; keys take turns in it, so that it may come sooner")


class TestAskingThePort:
    async def test_a_job_of_another_tenant_is_not_there(self, queue: Queue) -> None:
        job = await enqueue(queue)
        with pytest.raises(JobNotFound):
            await explain(queue.for_tenant("other"), job)

    async def test_it_asks_a_bounded_number_of_times(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Everything at once: limits, rates, an ordering key, and more jobs than are read."""
        settings: dict[str, Any] = {
            "max_concurrency": 1,
            "max_concurrency_per_key": 1,
            "rate": Rate(1),
            "rate_per_key": Rate(1),
        }
        await queue.configure("default", **settings)
        jobs = [{"type": "a", "key": "k", "ordering_key": f"o{number % 7}"} for number in range(150)]
        *_, last = await queue.enqueue_many(jobs)
        await queue.lease(worker="w1")
        rows = calls = 0
        find = queue.store.find

        async def counted(*given: Any, **options: Any) -> Any:
            nonlocal rows, calls
            page = await find(*given, **options)
            calls, rows = calls + 1, rows + len(page.jobs)
            return page

        monkeypatch.setattr(queue.store, "find", counted)
        explained = await explain(queue, last.id)  # type: ignore[union-attr]
        assert isinstance(explained, Explanation)
        assert calls <= 10
        assert rows <= 500


def test_spans_are_said_in_the_unit_that_fits() -> None:
    spans = [0.25, 9, 59, 119, 120, 7_199, 7_200, 172_799, 172_800]
    assert [span(timedelta(seconds=seconds)) for seconds in spans] == [
        "0.25 s", "9 s", "59 s", "119 s", "2 min", "120 min", "2 h", "48 h", "2 days",
    ]  # fmt: skip
