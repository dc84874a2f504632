"""What code declares against what the store has."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import timedelta

import pytest

from penstock.core.errors import InvalidInput
from penstock.core.job import Change
from penstock.queue import Queue
from penstock.scheduler import Declaration, Reconciled, reconcile
from penstock.testing import START, FakeClock

NIGHTLY = Declaration("nightly", "0 3 * * *", {"type": "report.build", "queue": "reports"}, tz="Europe/Paris")
HOURLY = Declaration("hourly", "0 * * * *", {"type": "mail.fetch", "payload": {"box": 1}}, missed="all")


class TestMade:
    async def test_what_is_not_there_is_made(self, queue: Queue) -> None:
        answer = await reconcile(queue, [NIGHTLY, HOURLY], "reports")
        assert answer == Reconciled(made=("nightly", "hourly"))
        made = await queue.schedule("nightly")
        assert (made.cron, made.tz, made.job.type, made.declared_by) == (
            "0 3 * * *", "Europe/Paris", "report.build", "reports",
        )  # fmt: skip

    async def test_the_audit_trail_says_who_declared_it(self, queue: Queue) -> None:
        await reconcile(queue, [NIGHTLY], "reports")
        [change] = (await queue.history("nightly", "schedule")).changes
        assert (change.actor, change.reason) == ("ada", "declared by reports")

    async def test_many_processes_that_start_at_once_make_it_once(self, queue: Queue) -> None:
        await asyncio.gather(*(reconcile(queue, [NIGHTLY, HOURLY], "reports") for _ in range(10)))
        assert [schedule.name for schedule in await queue.schedules()] == ["hourly", "nightly"]
        assert len((await queue.history("nightly", "schedule")).changes) == 1

    async def test_a_bad_declaration_changes_nothing(self, queue: Queue) -> None:
        with pytest.raises(InvalidInput, match="cron"):
            await reconcile(queue, [NIGHTLY, replace(HOURLY, cron="now and then")], "reports")
        assert await queue.schedules() == []

    async def test_a_name_declared_twice_is_refused(self, queue: Queue) -> None:
        with pytest.raises(InvalidInput, match="once"):
            await reconcile(queue, [NIGHTLY, replace(HOURLY, name="nightly")], "reports")


class TestKept:
    async def test_declared_again_it_is_left_alone(self, queue: Queue, clock: FakeClock) -> None:
        await reconcile(queue, [NIGHTLY], "reports")
        before = await queue.schedule("nightly")
        clock.advance(days=2)
        assert await reconcile(queue, [NIGHTLY], "reports") == Reconciled(kept=("nightly",))
        assert await queue.schedule("nightly") == before

    async def test_an_edit_made_at_run_time_stays(self, queue: Queue) -> None:
        await reconcile(queue, [NIGHTLY], "reports")
        edited = await queue.put_schedule("nightly", "0 5 * * *", {"type": "report.build", "priority": 9})
        assert await reconcile(queue, [NIGHTLY], "reports") == Reconciled(kept=("nightly",))
        assert await queue.schedule("nightly") == edited

    async def test_a_pause_stays(self, queue: Queue) -> None:
        await reconcile(queue, [NIGHTLY], "reports")
        await queue.pause_schedule("nightly")
        assert await reconcile(queue, [NIGHTLY], "reports") == Reconciled(kept=("nightly",))
        assert (await queue.schedule("nightly")).paused

    async def test_one_dropped_by_people_comes_back(self, queue: Queue) -> None:
        await reconcile(queue, [NIGHTLY], "reports")
        await queue.drop_schedule("nightly")
        assert await reconcile(queue, [NIGHTLY], "reports") == Reconciled(made=("nightly",))


class TestChanged:
    @pytest.mark.parametrize(
        "changed",
        [
            pytest.param(replace(NIGHTLY, cron="0 4 * * *"), id="cron"),
            pytest.param(replace(NIGHTLY, tz="UTC"), id="tz"),
            pytest.param(replace(NIGHTLY, missed="skip"), id="missed"),
            pytest.param(replace(NIGHTLY, paused=True), id="paused"),
            pytest.param(replace(NIGHTLY, job={**NIGHTLY.job, "priority": 1}), id="job"),
            pytest.param(replace(NIGHTLY, job={**NIGHTLY.job, "payload": {"a": 1}}), id="payload"),
        ],
    )
    async def test_what_the_code_changed_is_changed(self, queue: Queue, changed: Declaration) -> None:
        await reconcile(queue, [NIGHTLY], "reports")
        before = await queue.schedule("nightly")
        assert await reconcile(queue, [changed], "reports") == Reconciled(changed=("nightly",))
        assert await queue.schedule("nightly") != before
        assert await reconcile(queue, [changed], "reports") == Reconciled(kept=("nightly",))

    async def test_a_default_spelled_out_is_no_change(self, queue: Queue) -> None:
        await reconcile(queue, [NIGHTLY], "reports")
        spelled = replace(NIGHTLY, missed="one", job={**NIGHTLY.job, "priority": 0, "payload": {}})
        assert await reconcile(queue, [spelled], "reports") == Reconciled(kept=("nightly",))

    async def test_the_code_s_change_goes_over_an_edit(self, queue: Queue) -> None:
        await reconcile(queue, [NIGHTLY], "reports")
        await queue.put_schedule("nightly", "0 5 * * *", NIGHTLY.job)
        await reconcile(queue, [replace(NIGHTLY, cron="0 4 * * *")], "reports")
        assert (await queue.schedule("nightly")).cron == "0 4 * * *"

    async def test_a_pause_set_by_people_stays_though_the_code_changed(self, queue: Queue) -> None:
        await reconcile(queue, [NIGHTLY], "reports")
        await queue.pause_schedule("nightly")
        await reconcile(queue, [replace(NIGHTLY, cron="0 4 * * *")], "reports")
        after = await queue.schedule("nightly")
        assert (after.cron, after.paused) == ("0 4 * * *", True)

    async def test_one_resumed_by_people_stays_so_though_the_code_changed(self, queue: Queue) -> None:
        await reconcile(queue, [replace(NIGHTLY, paused=True)], "reports")
        await queue.resume_schedule("nightly")
        await reconcile(queue, [replace(NIGHTLY, paused=True, cron="0 4 * * *")], "reports")
        assert not (await queue.schedule("nightly")).paused

    @pytest.mark.parametrize("paused", [True, False])
    async def test_a_pause_that_the_code_changed_is_the_code_s(self, queue: Queue, paused: bool) -> None:
        await reconcile(queue, [replace(NIGHTLY, paused=not paused)], "reports")
        await reconcile(queue, [replace(NIGHTLY, paused=paused)], "reports")
        assert (await queue.schedule("nightly")).paused is paused

    async def test_a_changed_job_keeps_what_was_missed_while_it_was_deployed(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await reconcile(queue, [HOURLY], "mail")
        clock.advance(hours=1, minutes=5)
        await reconcile(queue, [replace(HOURLY, job={**HOURLY.job, "priority": 1})], "mail")
        await queue.fire_due()
        [job] = (await queue.find(schedule="hourly")).jobs
        assert (job.scheduled_at, job.priority) == (START + timedelta(hours=1), 1)


class TestDropped:
    async def test_what_is_no_longer_declared_is_dropped_and_the_trail_says_why(self, queue: Queue) -> None:
        await reconcile(queue, [NIGHTLY, HOURLY], "reports")
        answer = await reconcile(queue, [HOURLY], "reports")
        assert answer == Reconciled(dropped=("nightly",), kept=("hourly",))
        assert [schedule.name for schedule in await queue.schedules()] == ["hourly"]
        dropped = (await queue.history("nightly", "schedule")).records[-1]
        assert isinstance(dropped, Change)
        assert (dropped.verb, dropped.reason) == ("drop", "no longer declared by reports")

    async def test_also_if_people_have_edited_it(self, queue: Queue) -> None:
        await reconcile(queue, [NIGHTLY], "reports")
        await queue.put_schedule("nightly", "0 5 * * *", NIGHTLY.job)
        assert await reconcile(queue, [], "reports") == Reconciled(dropped=("nightly",))

    async def test_many_processes_may_drop_it_at_once(self, queue: Queue) -> None:
        await reconcile(queue, [NIGHTLY], "reports")
        await asyncio.gather(*(reconcile(queue, [], "reports") for _ in range(5)))
        assert await queue.schedules() == []

    async def test_schedules_of_people_and_of_other_programs_stay(self, queue: Queue) -> None:
        await queue.put_schedule("by-hand", "0 5 * * *", NIGHTLY.job)
        await reconcile(queue, [HOURLY], "mail")
        assert await reconcile(queue, [NIGHTLY], "reports") == Reconciled(made=("nightly",))
        assert len(await queue.schedules()) == 3


class TestRefused:
    async def test_a_schedule_made_by_people_is_left_alone_with_a_warning(
        self, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        theirs = await queue.put_schedule("nightly", "0 5 * * *", {"type": "other"})
        with caplog.at_level(logging.WARNING, "penstock.scheduler"):
            answer = await reconcile(queue, [NIGHTLY, HOURLY], "reports")
        assert (answer.made, list(answer.refused)) == (("hourly",), ["nightly"])
        assert "people made" in answer.refused["nightly"]
        assert "'nightly', declared by 'reports', was left alone" in caplog.text
        assert await queue.schedule("nightly") == theirs

    async def test_a_schedule_of_another_program_is_left_alone(self, queue: Queue) -> None:
        await reconcile(queue, [HOURLY], "mail")
        theirs = await queue.schedule("hourly")
        answer = await reconcile(queue, [replace(HOURLY, cron="1 * * * *")], "reports")
        assert "'mail'" in answer.refused["hourly"]
        assert await queue.schedule("hourly") == theirs
