"""Rule 16: each fire time of a schedule enqueues exactly one job, however many schedulers run."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.core.commands import Due, Duplicate, Enqueued, Fire, Fired
from penstock.core.errors import InvalidInput, ScheduleNotFound
from penstock.core.job import Status
from penstock.core.ports import Store
from penstock.core.schedule import Missed
from penstock.queue import Queue
from penstock.testing import START, FakeClock

REPORT = {"type": "report.build", "queue": "reports"}


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


async def fire_times(queue: Queue, name: str = "daily") -> list[datetime]:
    """The fire times that have a job, in order."""
    return sorted([job.scheduled_at async for job in queue.find_all(schedule=name)])


class TestSchedulesFireOnce:
    # ── Once ──────────────────────────────────────────────────────────────────────────────────────

    async def test_nothing_fires_before_its_time(self, queue: Queue, clock: FakeClock) -> None:
        await queue.put_schedule("daily", "1 12 * * *", REPORT)
        clock.advance(seconds=59.999999)
        assert await queue.fire_due() == []

    async def test_a_schedule_fires_at_its_time_exactly(self, queue: Queue, clock: FakeClock) -> None:
        await queue.put_schedule("daily", "1 12 * * *", REPORT)
        clock.advance(minutes=1)
        await queue.fire_due()
        assert await fire_times(queue) == [clock.now()]

    async def test_the_answer_names_the_job_that_was_made(self, queue: Queue, clock: FakeClock) -> None:
        await queue.put_schedule("daily", "1 12 * * *", REPORT)
        clock.advance(minutes=1)
        fired = await queue.fire_due()
        [job] = (await queue.find()).jobs
        assert fired == [Fired("daily", (Enqueued(job.id),))]

    async def test_the_job_is_what_the_schedule_says(self, queue: Queue, clock: FakeClock) -> None:
        job = {**REPORT, "payload": {"kind": "sales"}, "priority": 3, "key": "acme", "max_attempts": 2}
        await queue.put_schedule("daily", "1 12 * * *", job)
        clock.advance(minutes=1)
        await queue.fire_due()
        [leased] = await queue.lease("reports", worker="w1")
        asked = leased.job.asked
        assert (asked.type, asked.payload, asked.priority, asked.key, asked.max_attempts) == (
            "report.build",
            '{"kind":"sales"}',
            3,
            "acme",
            2,
        )

    async def test_the_job_names_its_schedule_and_its_fire_time(self, queue: Queue, clock: FakeClock) -> None:
        await queue.put_schedule("daily", "1 12 * * *", REPORT)
        clock.advance(minutes=1, seconds=20)
        await queue.fire_due()
        [job] = (await queue.find()).jobs
        assert (job.asked.schedule, job.asked.run_at, job.created_at) == (
            "daily",
            START + timedelta(minutes=1),
            clock.now(),
        )

    async def test_a_fire_time_fires_once_though_asked_twice(self, queue: Queue, clock: FakeClock) -> None:
        await queue.put_schedule("daily", "1 12 * * *", REPORT)
        clock.advance(minutes=1)
        await queue.fire_due()
        assert await queue.fire_due() == []
        assert len(await fire_times(queue)) == 1

    async def test_of_many_schedulers_one_fires(self, queue: Queue, store: Store, clock: FakeClock) -> None:
        await queue.put_schedule("daily", "1 12 * * *", REPORT)
        clock.advance(minutes=1)
        answers = await asyncio.gather(*(Queue(store).fire_due() for _ in range(10)))
        assert sum(len(fired.jobs) for answer in answers for fired in answer) == 1
        assert len(await fire_times(queue)) == 1

    async def test_schedulers_that_worked_out_the_same_fire_make_one_job(
        self, queue: Queue, store: Store, clock: FakeClock
    ) -> None:
        await queue.put_schedule("daily", "1 12 * * *", REPORT)
        due_at = clock.advance(minutes=1)
        fire = Fire("daily", due_at, (due_at,), due_at + timedelta(days=1))
        answers = [await store.fire(queue.tenant, [fire]) for _ in range(3)]
        assert [len(fired.jobs) for [fired] in answers if isinstance(fired, Fired)] == [1, 0, 0]

    async def test_two_fires_of_one_schedule_in_a_batch_make_one_job(
        self, queue: Queue, store: Store, clock: FakeClock
    ) -> None:
        await queue.put_schedule("daily", "1 12 * * *", REPORT)
        due_at = clock.advance(minutes=1)
        fire = Fire("daily", due_at, (due_at,), due_at + timedelta(days=1))
        await store.fire(queue.tenant, [fire, fire])
        assert len(await fire_times(queue)) == 1

    async def test_a_scheduler_that_was_asleep_since_the_schedule_was_changed_fires_nothing(
        self, queue: Queue, store: Store, clock: FakeClock
    ) -> None:
        await queue.put_schedule("daily", "1 12 * * *", REPORT)
        stale = Fire("daily", START + timedelta(minutes=1), (START + timedelta(minutes=1),), None)
        await queue.put_schedule("daily", "0 18 * * *", REPORT)
        clock.advance(minutes=1)
        assert await store.fire(queue.tenant, [stale]) == [Fired("daily")]
        assert (await queue.schedule("daily")).next_fire_at == utc("2026-01-01 18:00")

    @pytest.mark.only("memory", "postgres", "sql", "remote")  # the clock of a log is never set back
    async def test_the_identity_of_a_fire_time_is_its_schedule_and_its_time(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.put_schedule("daily", "1 12 * * *", REPORT)
        clock.advance(minutes=1)
        [first] = await queue.fire_due()
        await queue.drop_schedule("daily")
        clock.set(START)
        await queue.put_schedule("daily", "1 12 * * *", {**REPORT, "payload": "changed"})
        clock.advance(minutes=1)
        assert await queue.fire_due() == [Fired("daily", (Enqueued(first.jobs[0].id, Duplicate.ID),))]
        assert len(await fire_times(queue)) == 1

    async def test_two_schedules_with_one_fire_time_make_a_job_each(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.put_schedule("sales", "1 12 * * *", REPORT)
        await queue.put_schedule("stock", "1 12 * * *", REPORT)
        clock.advance(minutes=1)
        await queue.fire_due()
        [one, other] = (await queue.find()).jobs
        assert one.id != other.id

    async def test_two_tenants_with_one_schedule_name_have_a_job_each(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        acme = queue.for_tenant("acme")
        for tenant in (queue, acme):
            await tenant.put_schedule("daily", "1 12 * * *", REPORT)
        clock.advance(minutes=1)
        [ours] = await queue.fire_due()
        [theirs] = await acme.fire_due()
        assert ours.jobs[0].id != theirs.jobs[0].id

    async def test_a_schedule_goes_on_to_its_next_time(self, queue: Queue, clock: FakeClock) -> None:
        await queue.put_schedule("daily", "0 13 * * *", REPORT)
        clock.advance(hours=1)
        await queue.fire_due()
        schedule = await queue.schedule("daily")
        assert (schedule.last_fire_at, schedule.next_fire_at) == (
            utc("2026-01-01 13:00"),
            utc("2026-01-02 13:00"),
        )

    async def test_a_schedule_fires_at_each_of_its_times(self, queue: Queue, clock: FakeClock) -> None:
        await queue.put_schedule("daily", "*/15 * * * *", REPORT)
        for _ in range(8):
            clock.advance(minutes=7, seconds=30)
            await queue.fire_due()
        assert await fire_times(queue) == [START + timedelta(minutes=m) for m in (15, 30, 45, 60)]

    async def test_the_moment_a_schedule_is_made_is_not_one_of_its_fire_times(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        schedule = await queue.put_schedule("daily", "0 12 * * *", REPORT)
        assert schedule.next_fire_at == clock.now() + timedelta(days=1)

    async def test_a_sixth_field_counts_seconds(self, queue: Queue, clock: FakeClock) -> None:
        await queue.put_schedule("daily", "*/20 * * * * *", REPORT, missed="all")
        clock.advance(minutes=1)
        await queue.fire_due()
        assert await fire_times(queue) == [START + timedelta(seconds=s) for s in (20, 40, 60)]

    async def test_fire_times_whose_job_has_a_unique_key_do_not_pile_up(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.put_schedule("daily", "* * * * *", {**REPORT, "unique_key": "one at a time"})
        for _ in range(3):
            clock.advance(minutes=1)
            await queue.fire_due()
        assert len(await fire_times(queue)) == 1

    # ── Missed times ──────────────────────────────────────────────────────────────────────────────

    async def test_of_missed_times_the_latest_fires_by_default(self, queue: Queue, clock: FakeClock) -> None:
        schedule = await queue.put_schedule("daily", "0 * * * *", REPORT)
        clock.advance(hours=5, minutes=30)
        await queue.fire_due()
        assert schedule.missed is Missed.ONE
        assert await fire_times(queue) == [START + timedelta(hours=5)]

    async def test_all_missed_times_fire_if_the_schedule_says_so(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.put_schedule("daily", "0 * * * *", REPORT, missed="all")
        clock.advance(hours=3, minutes=30)
        await queue.fire_due()
        assert await fire_times(queue) == [START + timedelta(hours=hour) for hour in (1, 2, 3)]

    async def test_no_missed_time_fires_if_the_schedule_says_so(self, queue: Queue, clock: FakeClock) -> None:
        await queue.put_schedule("daily", "0 * * * *", REPORT, missed="skip")
        clock.advance(hours=3, minutes=30)
        await queue.fire_due()
        assert await fire_times(queue) == []

    async def test_a_schedule_that_skips_goes_on_to_its_next_time(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.put_schedule("daily", "0 * * * *", REPORT, missed="skip")
        clock.advance(hours=3, minutes=30)
        await queue.fire_due()
        assert (await queue.schedule("daily")).next_fire_at == START + timedelta(hours=4)

    async def test_a_schedule_that_skips_fires_when_noticed_in_time(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.put_schedule("daily", "0 * * * *", REPORT, missed="skip")
        clock.advance(hours=1, seconds=30)
        await queue.fire_due()
        assert await fire_times(queue) == [START + timedelta(hours=1)]

    async def test_a_schedule_that_skips_fires_the_latest_time_if_that_is_not_missed(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.put_schedule("daily", "0 * * * *", REPORT, missed="skip")
        clock.advance(hours=3, seconds=10)
        await queue.fire_due()
        assert await fire_times(queue) == [START + timedelta(hours=3)]

    @pytest.mark.parametrize("missed", Missed)
    async def test_catching_up_happens_once(self, queue: Queue, clock: FakeClock, missed: Missed) -> None:
        await queue.put_schedule("daily", "0 * * * *", REPORT, missed=missed)
        clock.advance(hours=3, seconds=10)
        await queue.fire_due()
        before = await fire_times(queue)
        await queue.fire_due()
        assert await fire_times(queue) == before

    @pytest.mark.parametrize("missed", Missed)
    async def test_a_schedule_that_was_on_time_fires_alike_whatever_it_says_of_missed_times(
        self, queue: Queue, clock: FakeClock, missed: Missed
    ) -> None:
        await queue.put_schedule("daily", "0 * * * *", REPORT, missed=missed)
        for _ in range(3):
            clock.advance(hours=1)
            await queue.fire_due()
        assert await fire_times(queue) == [START + timedelta(hours=hour) for hour in (1, 2, 3)]

    async def test_a_long_time_missed_is_caught_up_in_full(self, queue: Queue, clock: FakeClock) -> None:
        await queue.put_schedule("daily", "* * * * *", REPORT, missed="all")
        clock.advance(minutes=1_500)
        while await queue.fire_due():
            pass
        times = await fire_times(queue)
        assert times == [START + timedelta(minutes=minute) for minute in range(1, 1_501)]

    # ── Changing schedules ────────────────────────────────────────────────────────────────────────

    async def test_a_paused_schedule_does_not_fire(self, queue: Queue, clock: FakeClock) -> None:
        await queue.put_schedule("daily", "0 * * * *", REPORT)
        paused = await queue.pause_schedule("daily")
        clock.advance(hours=5)
        await queue.fire_due()
        assert (paused.paused, paused.next_fire_at) == (True, None)
        assert await fire_times(queue) == []

    @pytest.mark.parametrize("missed", Missed)
    async def test_a_resumed_schedule_does_not_catch_up(
        self, queue: Queue, clock: FakeClock, missed: Missed
    ) -> None:
        await queue.put_schedule("daily", "0 * * * *", REPORT, missed=missed)
        await queue.pause_schedule("daily")
        clock.advance(hours=5, minutes=30)
        await queue.resume_schedule("daily")
        await queue.fire_due()
        assert await fire_times(queue) == []

    async def test_a_resumed_schedule_fires_at_its_next_time(self, queue: Queue, clock: FakeClock) -> None:
        await queue.put_schedule("daily", "0 * * * *", REPORT)
        await queue.pause_schedule("daily")
        clock.advance(hours=5, minutes=30)
        resumed = await queue.resume_schedule("daily")
        assert resumed.next_fire_at == START + timedelta(hours=6)
        clock.advance(minutes=30)
        await queue.fire_due()
        assert await fire_times(queue) == [START + timedelta(hours=6)]

    async def test_a_schedule_may_be_made_paused(self, queue: Queue, clock: FakeClock) -> None:
        await queue.put_schedule("daily", "0 * * * *", REPORT, paused=True)
        clock.advance(hours=1)
        assert await queue.fire_due() == []

    async def test_a_dropped_schedule_does_not_fire(self, queue: Queue, clock: FakeClock) -> None:
        await queue.put_schedule("daily", "0 * * * *", REPORT)
        await queue.drop_schedule("daily")
        clock.advance(hours=1)
        assert await queue.fire_due() == []
        assert await queue.schedules() == []

    async def test_dropping_answers_with_what_was_dropped(self, queue: Queue) -> None:
        schedule = await queue.put_schedule("daily", "0 * * * *", REPORT)
        assert await queue.drop_schedule("daily") == schedule

    async def test_jobs_of_a_dropped_schedule_stay(self, queue: Queue, clock: FakeClock) -> None:
        await queue.put_schedule("daily", "0 * * * *", REPORT)
        clock.advance(hours=1)
        await queue.fire_due()
        await queue.drop_schedule("daily")
        [job] = (await queue.find(schedule="daily")).jobs
        assert job.status is Status.QUEUED

    async def test_declaring_a_schedule_again_unchanged_keeps_its_next_fire_time(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        first = await queue.put_schedule("daily", "0 * * * *", REPORT)
        clock.advance(hours=2, minutes=30)  # the program is down while it is deployed
        again = await queue.put_schedule("daily", "0 * * * *", REPORT)
        assert again == first

    async def test_a_time_missed_while_a_program_was_deployed_fires(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.put_schedule("daily", "0 * * * *", REPORT)
        clock.advance(hours=1, minutes=5)
        await queue.put_schedule("daily", "0 * * * *", REPORT)
        await queue.fire_due()
        assert await fire_times(queue) == [START + timedelta(hours=1)]

    async def test_a_changed_expression_counts_from_now(self, queue: Queue, clock: FakeClock) -> None:
        await queue.put_schedule("daily", "0 * * * *", REPORT)
        clock.advance(hours=2, minutes=30)
        changed = await queue.put_schedule("daily", "45 * * * *", REPORT)
        assert changed.next_fire_at == START + timedelta(hours=2, minutes=45)

    async def test_a_changed_time_zone_counts_from_now(self, queue: Queue) -> None:
        await queue.put_schedule("daily", "0 18 * * *", REPORT)
        changed = await queue.put_schedule("daily", "0 18 * * *", REPORT, tz="Europe/Paris")
        assert changed.next_fire_at == utc("2026-01-01 17:00")

    async def test_a_changed_job_is_what_the_next_time_makes(self, queue: Queue, clock: FakeClock) -> None:
        await queue.put_schedule("daily", "0 * * * *", REPORT)
        await queue.put_schedule("daily", "0 * * * *", {**REPORT, "payload": "new"})
        clock.advance(hours=1)
        await queue.fire_due()
        [job] = (await queue.find()).jobs
        assert job.payload == '"new"'

    async def test_a_replaced_schedule_remembers_when_it_last_fired(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.put_schedule("daily", "0 * * * *", REPORT)
        clock.advance(hours=1)
        await queue.fire_due()
        changed = await queue.put_schedule("daily", "30 * * * *", REPORT)
        assert changed.last_fire_at == START + timedelta(hours=1)

    async def test_a_person_s_edit_keeps_the_marks_of_the_program_that_declares_it(
        self, queue: Queue
    ) -> None:
        await queue.put_schedule("daily", "0 * * * *", REPORT, declared_by="reports", declared_as="f1")
        edited = await queue.put_schedule("daily", "30 * * * *", REPORT)
        assert (edited.cron, edited.declared_by, edited.declared_as) == ("30 * * * *", "reports", "f1")
        assert await queue.schedule("daily") == edited

    async def test_a_pause_keeps_the_marks_of_the_program_that_declares_it(self, queue: Queue) -> None:
        await queue.put_schedule("daily", "0 * * * *", REPORT, declared_by="reports", declared_as="f1")
        paused = await queue.pause_schedule("daily")
        assert (paused.declared_by, paused.declared_as) == ("reports", "f1")

    async def test_a_program_may_mark_a_schedule_anew(self, queue: Queue) -> None:
        await queue.put_schedule("daily", "0 * * * *", REPORT, declared_by="reports", declared_as="f1")
        marked = await queue.put_schedule(
            "daily", "0 * * * *", REPORT, declared_by="reports", declared_as="f2"
        )
        assert marked.declared_as == "f2"

    # ── Knowing when to fire ──────────────────────────────────────────────────────────────────────

    async def test_without_schedules_nothing_is_due(self, store: Store, clock: FakeClock) -> None:
        assert await store.due_schedules() == Due(clock.now(), (), None)

    async def test_who_has_schedules_that_are_due_and_when_there_will_be_more(
        self, queue: Queue, store: Store, clock: FakeClock
    ) -> None:
        for tenant, cron in (("zoe", "0 * * * *"), ("acme", "0 * * * *"), ("later", "0 18 * * *")):
            await queue.for_tenant(tenant).put_schedule("daily", cron, REPORT)
        await queue.for_tenant("acme").put_schedule("other", "30 13 * * *", REPORT)
        await queue.for_tenant("later").put_schedule("off", "0 * * * *", REPORT, paused=True)
        now = clock.set(utc("2026-01-01 13:00"))
        assert await store.due_schedules() == Due(now, ("acme", "zoe"), utc("2026-01-01 13:30"))
        assert await store.due_schedules("zoe") == Due(now, ("zoe",), None)
        assert await store.due_schedules("later") == Due(now, (), utc("2026-01-01 18:00"))

    async def test_a_schedule_that_was_fired_is_due_no_more(
        self, queue: Queue, store: Store, clock: FakeClock
    ) -> None:
        await queue.put_schedule("daily", "0 * * * *", REPORT)
        now = clock.advance(hours=1)
        await queue.fire_due()
        assert await store.due_schedules() == Due(now, (), now + timedelta(hours=1))

    # ── Leading ───────────────────────────────────────────────────────────────────────────────────

    async def test_an_office_has_one_holder_until_it_lapses(self, store: Store, clock: FakeClock) -> None:
        assert await store.lead("scheduler", "ada", 5)
        assert not await store.lead("scheduler", "eve", 5)
        assert await store.lead("another", "eve", 5)
        clock.advance(seconds=4)
        assert await store.lead("scheduler", "ada", 5), "kept for five seconds more"
        clock.advance(seconds=4)
        assert not await store.lead("scheduler", "eve", 5)
        clock.advance(seconds=1)
        assert await store.lead("scheduler", "eve", 5)

    async def test_an_office_that_was_given_up_is_anyone_s(self, store: Store) -> None:
        await store.lead("scheduler", "ada", 5)
        await store.lead("scheduler", "ada", 0)
        assert await store.lead("scheduler", "eve", 5)

    async def test_nobody_can_give_up_another_s_office(self, store: Store) -> None:
        await store.lead("scheduler", "ada", 5)
        assert not await store.lead("scheduler", "eve", 0)
        assert not await store.lead("scheduler", "eve", 5)

    async def test_schedules_are_listed_by_name(self, queue: Queue) -> None:
        for name in ("weekly", "daily", "monthly"):
            await queue.put_schedule(name, "0 0 * * *", REPORT)
        assert [schedule.name for schedule in await queue.schedules()] == ["daily", "monthly", "weekly"]

    async def test_a_schedule_is_as_it_was_put(self, queue: Queue) -> None:
        put = await queue.put_schedule(
            "daily", "0 9 * * 1-5", {**REPORT, "payload": [1]}, tz="Europe/Paris", missed="all"
        )
        assert await queue.schedule("daily") == put
        assert (put.cron, put.tz, put.missed, put.job.payload) == (
            "0 9 * * 1-5",
            "Europe/Paris",
            Missed.ALL,
            "[1]",
        )

    @pytest.mark.parametrize("verb", ["pause_schedule", "resume_schedule", "drop_schedule", "schedule"])
    async def test_an_unknown_schedule_is_not_found(self, queue: Queue, verb: str) -> None:
        with pytest.raises(ScheduleNotFound):
            await getattr(queue, verb)("yearly")

    # ── Time zones ────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize(
        ("cron", "tz", "now", "expected"),
        [
            pytest.param("0 9 * * *", "UTC", "2026-01-10 12:00", "2026-01-11 09:00", id="utc"),
            pytest.param("0 9 * * *", "Europe/Paris", "2026-01-10 12:00", "2026-01-11 08:00", id="winter"),
            pytest.param("0 9 * * *", "Europe/Paris", "2026-07-10 12:00", "2026-07-11 07:00", id="summer"),
            pytest.param("0 9 * * 1-5", "Europe/Paris", "2026-01-09 12:00", "2026-01-12 08:00", id="weekend"),
            pytest.param("30 5 * * *", "Asia/Kolkata", "2026-01-10 12:00", "2026-01-11 00:00", id="half hour"),
            pytest.param("0 0 29 2 *", "UTC", "2026-01-10 12:00", "2028-02-29 00:00", id="leap day"),
            pytest.param(
                "30 2 * * *", "Europe/Paris", "2027-03-27 12:00", "2027-03-28 01:00",
                id="a time the clock skips in spring fires right after the gap",
            ),
            pytest.param(
                "30 2 * * *", "Europe/Paris", "2027-03-28 02:00", "2027-03-29 00:30",
                id="the day after the gap it fires by the wall clock again",
            ),
            pytest.param(
                "30 2 * * *", "Europe/Paris", "2026-10-24 12:00", "2026-10-25 00:30",
                id="a time that comes twice in autumn fires the first time",
            ),
            pytest.param(
                "30 2 * * *", "Europe/Paris", "2026-10-25 00:30", "2026-10-26 01:30",
                id="a time that comes twice in autumn does not fire the second time",
            ),
            pytest.param(
                "30 2 * * *", "Europe/Paris", "2026-10-25 01:10", "2026-10-26 01:30",
                id="not even when the schedule is made in the hour that comes twice",
            ),
        ],
    )  # fmt: skip
    async def test_fires_by_the_wall_clock_of_its_time_zone(
        self, queue: Queue, clock: FakeClock, cron: str, tz: str, now: str, expected: str
    ) -> None:
        clock.set(utc(now))
        schedule = await queue.put_schedule("daily", cron, REPORT, tz=tz)
        assert schedule.next_fire_at == utc(expected)

    @pytest.mark.parametrize(
        ("midnight", "hours"),
        [
            pytest.param("2027-03-27 23:00", 23, id="spring"),
            pytest.param("2026-10-24 22:00", 25, id="autumn"),
            pytest.param("2026-06-30 22:00", 24, id="any other day"),
        ],
    )
    async def test_every_hour_stays_every_hour_when_the_clocks_change(
        self, queue: Queue, clock: FakeClock, midnight: str, hours: int
    ) -> None:
        start = clock.set(utc(midnight))
        await queue.put_schedule("daily", "0 * * * *", REPORT, tz="Europe/Paris", missed="all")
        clock.advance(hours=hours)
        await queue.fire_due()
        assert await fire_times(queue) == [start + timedelta(hours=hour + 1) for hour in range(hours)]

    @pytest.mark.parametrize("missed", Missed)
    @pytest.mark.parametrize("midnight", ["2027-03-27 23:00", "2026-10-24 22:00"], ids=["spring", "autumn"])
    async def test_a_daily_time_fires_once_on_the_day_the_clocks_change(
        self, queue: Queue, clock: FakeClock, midnight: str, missed: Missed
    ) -> None:
        clock.set(utc(midnight))
        await queue.put_schedule("daily", "30 2 * * *", REPORT, tz="Europe/Paris", missed=missed)
        for _ in range(23 * 4):
            clock.advance(minutes=15)
            await queue.fire_due()
        assert len(await fire_times(queue)) == 1

    # ── Refused ───────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize(
        "cron",
        ["", "* * * *", "61 * * * *", "1-100000000 * * * *", "*/0 * * * *", "@daily", "0 0 30 2 *", "x" * 300, None, 5],
        ids=lambda cron: repr(cron)[:24],
    )  # fmt: skip
    async def test_a_bad_expression_is_refused(self, queue: Queue, cron: str) -> None:
        with pytest.raises(InvalidInput) as caught:
            await queue.put_schedule("daily", cron, REPORT)
        assert caught.value.facts["field"] == "cron"
        assert await queue.schedules() == []

    @pytest.mark.parametrize("tz", ["Mars/Phobos", "", "../../etc/passwd", "/etc/localtime", "a\0b", 5])
    async def test_an_unknown_time_zone_is_refused(self, queue: Queue, tz: object) -> None:
        with pytest.raises(InvalidInput) as caught:
            await queue.put_schedule("daily", "0 9 * * *", REPORT, tz=tz)
        assert caught.value.facts["field"] == "tz"
        assert await queue.schedules() == []

    @pytest.mark.parametrize(
        "options", [{"missed": "some"}, {"paused": "yes"}, {"colour": "red"}], ids=lambda options: next(iter(options))
    )  # fmt: skip
    async def test_a_bad_option_is_refused(self, queue: Queue, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput):
            await queue.put_schedule("daily", "0 9 * * *", REPORT, **options)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("id", "01890000-0000-7000-8000-000000000000"),
            ("run_at", START),
            ("delay", 5),
            ("expires_at", START),
            ("idempotency_key", "k"),
            ("parents", ["01890000-0000-7000-8000-000000000000"]),
        ],
    )
    async def test_what_each_fire_time_decides_for_itself_is_refused(
        self, queue: Queue, field: str, value: object
    ) -> None:
        with pytest.raises(InvalidInput) as caught:
            await queue.put_schedule("daily", "0 9 * * *", {**REPORT, field: value})
        assert caught.value.facts["field"] == field

    async def test_a_job_without_a_type_is_refused(self, queue: Queue) -> None:
        with pytest.raises(InvalidInput):
            await queue.put_schedule("daily", "0 9 * * *", {"queue": "reports"})

    async def test_a_bad_change_leaves_the_schedule_as_it_was(self, queue: Queue) -> None:
        before = await queue.put_schedule("daily", "0 9 * * *", REPORT)
        with pytest.raises(InvalidInput):
            await queue.put_schedule("daily", "0 99 * * *", REPORT)
        assert await queue.schedules() == [before]
