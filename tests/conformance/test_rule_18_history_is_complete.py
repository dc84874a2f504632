"""Rule 18: every attempt and every change can be read back, in order, with who and why."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.core.codec import JsonText, decode
from penstock.core.errors import JobNotFound
from penstock.core.job import Attempt, JobId, Outcome, Status
from penstock.core.limits import Rate
from penstock.core.ports import Store
from penstock.core.promises import LAKE, Promise, encode
from penstock.core.registry import ALL_TENANTS, Entry, PutEntry
from penstock.core.retry import Retry
from penstock.queue import Queue
from penstock.testing import START, FakeClock

WEEK = timedelta(days=7)


async def succeed(queue: Queue, /, **options: object) -> JobId:
    """A job that has succeeded."""
    job = await queue.enqueue("email.send", **options)
    [leased] = await queue.lease(str(options.get("queue", "default")), worker="w1")
    await queue.ack(leased)
    return job.id


async def promise(store: Store, lake: str = "a lake", tenant: str = ALL_TENANTS, **promised: Any) -> None:
    """Say how far a lake has the store's history."""
    made = Promise(place="here", run=1, since=START, **promised)
    [put] = await store.put_entries(tenant, [PutEntry(LAKE, lake, encode(made))])
    assert isinstance(put, Entry)


class TestHistoryIsComplete:
    # ── Jobs ──────────────────────────────────────────────────────────────────────────────────────

    async def test_an_attempt_says_who_made_it_when_and_how_it_ended(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        job = await queue.enqueue("email.send")
        started_at = clock.advance(seconds=1)
        [leased] = await queue.lease(worker="w7")
        ended_at = clock.advance(seconds=2)
        await queue.nack(leased, "boom", retry_in=10)
        assert (await queue.history(job.id)).records == (
            Attempt(
                job_id=job.id,
                number=1,
                worker="w7",
                token=leased.token,
                started_at=started_at,
                ended_at=ended_at,
                outcome=Outcome.FAILED,
                status=Status.QUEUED,
                run_at=ended_at + timedelta(seconds=10),
                error="boom",
                result=None,
            ),
        )

    async def test_a_successful_attempt_keeps_its_result(self, queue: Queue) -> None:
        job = await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.ack(leased, {"sent": 1})
        [attempt] = (await queue.history(job.id)).attempts
        assert (attempt.outcome, attempt.status, attempt.result, attempt.error) == (
            Outcome.SUCCEEDED,
            Status.SUCCEEDED,
            '{"sent":1}',
            None,
        )

    async def test_attempts_are_numbered_from_one_whatever_became_of_them(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        job = await queue.enqueue("email.send", max_attempts=9)
        [leased] = await queue.lease(worker="w1")
        await queue.release(leased)
        [leased] = await queue.lease(worker="w2")
        await queue.snooze(leased, 0)
        [leased] = await queue.lease(worker="w3")
        await queue.nack(leased, "boom", retry_in=0)
        await queue.lease(worker="w4")
        clock.advance(minutes=5)
        [leased] = await queue.lease(worker="w5")
        await queue.ack(leased)
        attempts = (await queue.history(job.id)).attempts
        assert [(attempt.number, attempt.worker, attempt.outcome) for attempt in attempts] == [
            (1, "w1", Outcome.RELEASED),
            (2, "w2", Outcome.SNOOZED),
            (3, "w3", Outcome.FAILED),
            (4, "w4", Outcome.LOST),
            (5, "w5", Outcome.SUCCEEDED),
        ]

    async def test_each_attempt_keeps_its_own_error(self, queue: Queue) -> None:
        job = await queue.enqueue("email.send")
        for error in ("first", "second", "third"):
            [leased] = await queue.lease(worker="w1")
            await queue.nack(leased, error, retry_in=0)
        attempts = (await queue.history(job.id)).attempts
        assert [attempt.error for attempt in attempts] == ["first", "second", "third"]

    async def test_attempts_and_changes_are_in_the_order_in_which_they_took_effect(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        job = await queue.enqueue("email.send", max_attempts=1)
        [leased] = await queue.lease(worker="w1")
        clock.advance(seconds=1)
        await queue.nack(leased, "boom")
        await queue.redrive(job.id)
        clock.advance(seconds=1)
        [leased] = await queue.lease(worker="w1")
        await queue.cancel(job.id)
        await queue.discard(leased)
        records = (await queue.history(job.id)).records
        assert [
            record.outcome if isinstance(record, Attempt) else record.verb for record in records
        ] == ["failed", "redrive", "cancel", "cancelled"]  # fmt: skip

    async def test_a_change_says_what_the_job_became(self, queue: Queue) -> None:
        job = await queue.enqueue("email.send")
        await queue.cancel(job.id)
        await queue.redrive(job.id)
        changes = (await queue.history(job.id)).changes
        assert [change.status for change in changes] == [Status.CANCELLED, Status.QUEUED]

    async def test_each_change_names_the_one_who_made_it(self, queue: Queue, store: Store) -> None:
        job = await queue.enqueue("email.send")
        await Queue(store, actor="bob").cancel(job.id, "mistake")
        await Queue(store, actor="eve").redrive(job.id, "no, it was not")
        changes = (await queue.history(job.id)).changes
        assert [(change.actor, change.reason) for change in changes] == [
            ("bob", "mistake"),
            ("eve", "no, it was not"),
        ]

    async def test_a_change_without_a_reason_has_none(self, queue: Queue) -> None:
        job = await queue.enqueue("email.send")
        await queue.cancel(job.id)
        [change] = (await queue.history(job.id)).changes
        assert change.reason is None

    async def test_what_a_rule_did_is_signed_by_the_rule(self, queue: Queue, clock: FakeClock) -> None:
        parent = await queue.enqueue("report.collect")
        child = await queue.enqueue("report.build", parents=[parent.id], expires_in=60)
        [leased] = await queue.lease(worker="w1")
        await queue.ack(leased)
        clock.advance(seconds=60)
        changes = (await queue.history(child.id)).changes
        assert [(change.actor, change.status) for change in changes] == [
            ("rule:flow", Status.QUEUED),
            ("rule:expiry", Status.CANCELLED),
        ]

    async def test_what_a_rule_did_has_a_reason(self, queue: Queue, clock: FakeClock) -> None:
        job = await queue.enqueue("email.send", expires_in=60)
        clock.advance(seconds=60)
        [change] = (await queue.history(job.id)).changes
        assert change.reason

    async def test_descendants_brought_back_with_a_job_name_the_person_who_did_it(self, queue: Queue) -> None:
        parent = await queue.enqueue("report.collect")
        child = await queue.enqueue("report.build", parents=[parent.id])
        await queue.cancel(parent.id)
        await queue.redrive(parent.id)
        last = (await queue.history(child.id)).changes[-1]
        assert (last.verb, last.actor) == ("redrive", "ada")

    async def test_a_new_job_has_no_attempts(self, queue: Queue) -> None:
        job = await queue.enqueue("email.send")
        assert (await queue.history(job.id)).attempts == ()

    async def test_an_attempt_that_has_not_ended_is_not_in_the_history(self, queue: Queue) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.heartbeat(leased)
        assert (await queue.history(leased.id)).attempts == ()

    async def test_the_history_of_an_unknown_job_is_not_found(self, queue: Queue) -> None:
        with pytest.raises(JobNotFound):
            await queue.history("01890000-0000-7000-8000-000000000000")

    # ── Queues and schedules ──────────────────────────────────────────────────────────────────────

    async def test_every_change_to_a_queue_says_what_was_set_by_whom_when_and_why(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.configure("emails", max_concurrency=5, fair=True, reason="new server")
        [change] = (await queue.history("emails", "queue")).changes
        assert change.detail is not None
        assert decode(change.detail) == {"max_concurrency": 5, "fair": True}
        assert (change.actor, change.at, change.reason) == ("ada", clock.now(), "new server")

    async def test_changes_to_a_queue_are_in_order(self, queue: Queue) -> None:
        for limit in (1, 2, 3):
            await queue.configure("emails", max_concurrency=limit)
        details = [change.detail for change in (await queue.history("emails", "queue")).changes]
        assert [decode(detail) for detail in details if detail is not None] == [
            {"max_concurrency": 1},
            {"max_concurrency": 2},
            {"max_concurrency": 3},
        ]

    async def test_a_rate_and_a_retry_policy_can_be_read_back(self, queue: Queue) -> None:
        await queue.configure("emails", rate=Rate(5, per=60), retry=Retry.fixed(9))
        [change] = (await queue.history("emails", "queue")).changes
        assert change.detail is not None
        detail = decode(change.detail)
        assert (detail["rate"]["limit"], detail["rate"]["per"]) == (5, 60)
        assert (detail["retry"]["kind"], detail["retry"]["base"]) == ("fixed", 9)

    async def test_setting_what_is_set_already_is_not_a_change(self, queue: Queue) -> None:
        await queue.configure("emails", max_concurrency=5)
        await queue.configure("emails", max_concurrency=5)
        assert len((await queue.history("emails", "queue")).records) == 1

    async def test_a_queue_nobody_changed_has_no_history(self, queue: Queue) -> None:
        await queue.enqueue("email.send", queue="emails")
        assert (await queue.history("emails", "queue")).records == ()

    async def test_who_changed_a_schedule_when_and_why_can_be_read_back(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.put_schedule("daily", "0 9 * * *", {"type": "report.build"}, reason="asked for by sales")
        later = clock.advance(hours=1)
        await queue.pause_schedule("daily", "holidays")
        await queue.drop_schedule("daily", "nobody reads it")
        changes = (await queue.history("daily", "schedule")).changes
        assert [(change.actor, change.at, change.reason) for change in changes] == [
            ("ada", START, "asked for by sales"),
            ("ada", later, "holidays"),
            ("ada", later, "nobody reads it"),
        ]

    async def test_the_history_of_a_schedule_says_what_was_set(self, queue: Queue) -> None:
        await queue.put_schedule("daily", "0 9 * * *", {"type": "report.build"}, tz="Europe/Paris")
        [change] = (await queue.history("daily", "schedule")).changes
        assert change.detail is not None
        detail = decode(change.detail)
        assert (detail["cron"], detail["tz"]) == ("0 9 * * *", "Europe/Paris")

    async def test_the_history_of_a_schedule_tells_a_pause_from_a_resume(self, queue: Queue) -> None:
        await queue.put_schedule("daily", "0 9 * * *", {"type": "report.build"})
        await queue.pause_schedule("daily")
        await queue.resume_schedule("daily")
        _, paused, resumed = (await queue.history("daily", "schedule")).changes
        assert (paused.verb, paused.detail) != (resumed.verb, resumed.detail)

    async def test_declaring_a_schedule_again_unchanged_is_not_a_change(self, queue: Queue) -> None:
        for _ in range(3):
            await queue.put_schedule("daily", "0 9 * * *", {"type": "report.build"})
        assert len((await queue.history("daily", "schedule")).records) == 1

    async def test_the_history_of_a_queue_is_not_that_of_a_schedule_of_its_name(self, queue: Queue) -> None:
        await queue.pause("daily")
        assert (await queue.history("daily", "schedule")).records == ()

    # ── Retention ─────────────────────────────────────────────────────────────────────────────────

    async def test_an_ended_job_stays_for_its_queues_retention(self, queue: Queue, clock: FakeClock) -> None:
        job_id = await succeed(queue)
        clock.set(START + WEEK - timedelta(microseconds=1))
        await queue.sweep()
        assert (await queue.get(job_id)).status is Status.SUCCEEDED

    async def test_an_ended_job_leaves_when_its_retention_has_passed(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        job_id = await succeed(queue)
        clock.set(START + WEEK)
        assert (await queue.sweep()).pruned == 1
        with pytest.raises(JobNotFound):
            await queue.get(job_id)

    async def test_the_history_of_a_job_leaves_with_it(self, queue: Queue, clock: FakeClock) -> None:
        job_id = await succeed(queue)
        clock.set(START + WEEK)
        await queue.sweep()
        with pytest.raises(JobNotFound):
            await queue.history(job_id)

    async def test_a_job_that_left_is_neither_found_nor_counted(self, queue: Queue, clock: FakeClock) -> None:
        await succeed(queue)
        clock.set(START + WEEK)
        await queue.sweep()
        assert (await queue.find()).jobs == ()
        assert (await queue.queue("default")).counts.get(Status.SUCCEEDED, 0) == 0

    async def test_nothing_leaves_without_a_sweep(self, queue: Queue, clock: FakeClock) -> None:
        job_id = await succeed(queue)
        clock.advance(days=365)
        assert (await queue.get(job_id)).status is Status.SUCCEEDED

    async def test_a_cancelled_job_leaves_when_its_retention_has_passed(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        job = await queue.enqueue("email.send")
        await queue.cancel(job.id)
        clock.set(START + WEEK)
        await queue.sweep()
        assert (await queue.find()).jobs == ()

    @pytest.mark.parametrize("on_exhausted", ["dead", "hold"])
    async def test_a_job_that_needs_a_person_stays_until_one_decides(
        self, queue: Queue, clock: FakeClock, on_exhausted: str
    ) -> None:
        job = await queue.enqueue("email.send", on_exhausted=on_exhausted)
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "boom", retry=False)
        clock.advance(days=3_650)
        await queue.sweep()
        assert len((await queue.history(job.id)).attempts) == 1

    async def test_a_job_that_has_not_ended_stays(self, queue: Queue, clock: FakeClock) -> None:
        job = await queue.enqueue("email.send")
        clock.advance(days=3_650)
        await queue.sweep()
        assert (await queue.get(job.id)).status is Status.QUEUED

    async def test_a_job_that_was_brought_back_stays(self, queue: Queue, clock: FakeClock) -> None:
        job = await queue.enqueue("email.send")
        await queue.cancel(job.id)
        clock.advance(days=6)
        await queue.redrive(job.id)
        clock.advance(days=6)
        await queue.sweep()
        assert (await queue.get(job.id)).status is Status.QUEUED

    async def test_retention_counts_from_the_last_end(self, queue: Queue, clock: FakeClock) -> None:
        job = await queue.enqueue("email.send")
        await queue.cancel(job.id)
        clock.advance(days=6)
        await queue.redrive(job.id)
        await queue.cancel(job.id)
        clock.advance(days=6)
        await queue.sweep()
        assert (await queue.get(job.id)).status is Status.CANCELLED

    async def test_each_queue_has_its_own_retention(self, queue: Queue, clock: FakeClock) -> None:
        await queue.configure("emails", retention_seconds=60)
        await succeed(queue, queue="emails")
        report = await succeed(queue, queue="reports")
        clock.advance(seconds=60)
        await queue.sweep()
        assert [job.id for job in (await queue.find()).jobs] == [report]

    async def test_a_changed_retention_holds_for_jobs_that_have_ended_already(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await succeed(queue)
        clock.advance(hours=1)
        await queue.configure("default", retention_seconds=60)
        await queue.sweep()
        assert (await queue.find()).jobs == ()

    async def test_a_sweep_does_no_more_than_it_was_asked_for(self, queue: Queue, clock: FakeClock) -> None:
        for _ in range(5):
            await succeed(queue)
        clock.set(START + WEEK)
        pruned = [(await queue.sweep(limit=2)).pruned for _ in range(4)]
        assert pruned == [2, 2, 1, 0]

    async def test_a_sweep_is_for_all_tenants(self, queue: Queue, clock: FakeClock) -> None:
        acme = queue.for_tenant("acme")
        await succeed(queue)
        await succeed(acme)
        clock.set(START + WEEK)
        assert (await queue.sweep()).pruned == 2

    async def test_nothing_leaves_before_the_lake_has_it(
        self, queue: Queue, store: Store, clock: FakeClock
    ) -> None:
        job_id = await succeed(queue)
        clock.set(START + WEEK)
        swept = await store.sweep(limit=100, exported_until=START - timedelta(microseconds=1))
        assert swept.pruned == 0
        assert len((await queue.history(job_id)).attempts) == 1

    async def test_what_the_lake_has_may_leave(self, queue: Queue, store: Store, clock: FakeClock) -> None:
        await succeed(queue)
        clock.advance(hours=1)
        later = await succeed(queue)
        clock.set(START + 2 * WEEK)
        await store.sweep(limit=100, exported_until=START + timedelta(minutes=30))
        assert [job.id for job in (await queue.find()).jobs] == [later]

    async def test_what_the_lake_has_stays_for_its_retention_all_the_same(
        self, queue: Queue, store: Store, clock: FakeClock
    ) -> None:
        job_id = await succeed(queue)
        clock.advance(days=1)
        await store.sweep(limit=100, exported_until=clock.now())
        assert (await queue.get(job_id)).status is Status.SUCCEEDED

    async def test_what_a_lake_has_promised_to_have_may_leave_and_no_more(
        self, queue: Queue, store: Store, clock: FakeClock
    ) -> None:
        await succeed(queue)
        clock.advance(hours=1)
        later = await succeed(queue)
        await promise(store, exported_until=START + timedelta(minutes=30))
        clock.set(START + 2 * WEEK)
        assert (await queue.sweep()).pruned == 1
        assert [job.id for job in (await queue.find()).jobs] == [later]
        await promise(store, exported_until=START + timedelta(hours=1))
        assert (await queue.sweep()).pruned == 1

    async def test_nothing_leaves_while_a_lake_has_not_come_to_the_end_of_its_first_run(
        self, queue: Queue, store: Store, clock: FakeClock
    ) -> None:
        await succeed(queue)
        await promise(store)
        clock.set(START + WEEK)
        assert (await queue.sweep()).pruned == 0

    async def test_of_several_lakes_all_have_it(self, queue: Queue, store: Store, clock: FakeClock) -> None:
        await succeed(queue)
        await promise(store, "ahead", exported_until=START + WEEK)
        await promise(store, "behind", exported_until=START - timedelta(microseconds=1))
        clock.set(START + WEEK)
        assert (await queue.sweep()).pruned == 0
        await promise(store, "behind", lifted=True)
        assert (await queue.sweep()).pruned == 1

    async def test_a_promise_is_for_all_tenants_and_made_by_none(
        self, queue: Queue, store: Store, clock: FakeClock
    ) -> None:
        await succeed(queue.for_tenant("acme"))
        await promise(store, tenant="acme")
        clock.set(START + WEEK)
        await promise(store)
        assert (await queue.sweep()).pruned == 0
        await promise(store, lifted=True)
        assert (await queue.sweep()).pruned == 1

    async def test_a_promise_that_cannot_be_read_holds_everything(
        self, queue: Queue, store: Store, clock: FakeClock
    ) -> None:
        await succeed(queue)
        await store.put_entries(ALL_TENANTS, [PutEntry(LAKE, "odd", JsonText('{"place": 7}'))])
        clock.set(START + WEEK)
        assert (await queue.sweep()).pruned == 0

    async def test_the_history_of_a_queue_outlives_its_jobs(self, queue: Queue, clock: FakeClock) -> None:
        await queue.pause("default", "spring cleaning")
        clock.advance(days=365)
        await queue.sweep()
        [change] = (await queue.history("default", "queue")).changes
        assert change.reason == "spring cleaning"
