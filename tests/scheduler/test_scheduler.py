"""What happens because time passed, and that it happens whoever dies."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from penstock.core.commands import Fire, LeaseJobs
from penstock.core.cron import plan
from penstock.core.errors import InvalidInput, StoreUnavailable
from penstock.core.job import Outcome, Status
from penstock.core.schedule import Schedule
from penstock.queue import Queue
from penstock.scheduler import Scheduler
from penstock.testing import START, FakeClock

from .conftest import LONG, nudge, quiet, running, until, until_stored, weather

REPORT = {"type": "report.build", "queue": "reports"}
EVERY_SECOND = "* * * * * *"


def leaders(*schedulers: Scheduler) -> list[Scheduler]:
    return [scheduler for scheduler in schedulers if scheduler.status().leading]


async def fire_times(queue: Queue, name: str = "s") -> list[datetime]:
    return sorted([job.scheduled_at async for job in queue.find_all(schedule=name)])


async def look_again(queue: Queue, scheduler: Scheduler) -> None:
    """Let the leader make a pass over the schedules after the clock was moved."""
    before = scheduler._firing.last_pass_at
    nudge(queue)
    await until(lambda: scheduler._firing.last_pass_at != before)


class TestLeading:
    async def test_of_many_one_leads(self, live: Queue) -> None:
        many = [quiet(live) for _ in range(3)]
        async with running(*many):
            await until(lambda: all(scheduler.status().last_pass_at for scheduler in many))
            assert len(leaders(*many)) == 1

    async def test_another_takes_over_from_one_that_is_cut_off(self, live: Queue) -> None:
        between, cut_off = weather(live)
        first, second = quiet(cut_off, lead_seconds=0.3), quiet(live, lead_seconds=0.3)
        async with running(first):
            await until(lambda: first.status().leading)
            async with running(second):
                with between.storming():
                    await until(lambda: second.status().leading)
                    await until(lambda: not first.status().leading)

    async def test_one_that_is_cut_off_knows_that_it_no_longer_leads(self, live: Queue) -> None:
        """Though no answer ever tells it."""
        between, cut_off = weather(live)
        scheduler = quiet(cut_off, lead_seconds=0.3)
        async with running(scheduler):
            await until(lambda: scheduler.status().leading)
            between.hung.add("lead")
            await until(lambda: not scheduler.status().leading)

    async def test_one_that_stops_hands_over_at_once(self, live: Queue) -> None:
        first, second = quiet(live), quiet(live)  # the office would lapse, and be asked for, in an hour
        async with running(first) as [run]:
            await until(lambda: first.status().leading)
            async with running(second):
                await until(lambda: second.status().last_pass_at)
                first.stop()
                await run
                await until(lambda: second.status().leading)
                assert not first.status().leading

    async def test_one_that_is_cancelled_hands_over_at_once(self, live: Queue) -> None:
        first, second = quiet(live), quiet(live)
        async with running(first) as [run]:
            await until(lambda: first.status().leading)
            async with running(second):
                await until(lambda: second.status().last_pass_at)
                run.cancel()
                await until(lambda: second.status().leading)

    async def test_one_that_does_not_lead_takes_nothing_with_it(self, live: Queue) -> None:
        first, second = quiet(live), quiet(live)
        async with running(first):
            await until(lambda: first.status().leading)
            async with running(second):
                await until(lambda: second.status().last_pass_at)
            assert await live.store.lead("scheduler", "somebody else", 1) is False

    async def test_stopped_before_it_ran_it_does_not_run(self, live: Queue) -> None:
        scheduler = quiet(live)
        scheduler.stop()
        async with asyncio.timeout(LONG):
            await scheduler.run()

    async def test_two_of_one_name_are_two(self, live: Queue) -> None:
        one, other = quiet(live, name="eve"), quiet(live, name="eve")
        assert one.status().holder != other.status().holder
        assert one.status().holder.startswith("eve-")

    async def test_seconds_out_of_bounds_are_refused(self, live: Queue) -> None:
        with pytest.raises(InvalidInput, match="lead_seconds"):
            Scheduler(live, lead_seconds=0)


class TestFiring:
    async def test_a_schedule_made_while_the_leader_sleeps_fires_in_time(self, live: Queue) -> None:
        scheduler = quiet(live)
        async with running(scheduler), live.store.wakeups.listen("default", ["reports"]) as bell:
            await until(lambda: scheduler._firing.last_pass_at)
            await live.put_schedule("s", EVERY_SECOND, REPORT)
            assert await bell.wait(LONG) == {"reports"}

    async def test_of_another_tenant_too(self, live: Queue) -> None:
        scheduler = quiet(live)
        async with running(scheduler), live.store.wakeups.listen("acme", ["reports"]) as bell:
            await until(lambda: scheduler._firing.last_pass_at)
            await live.for_tenant("acme").put_schedule("s", EVERY_SECOND, REPORT)
            assert await bell.wait(LONG) == {"reports"}

    async def test_a_resumed_schedule_fires_in_time(self, live: Queue) -> None:
        await live.put_schedule("s", EVERY_SECOND, REPORT, paused=True)
        scheduler = quiet(live)
        async with running(scheduler), live.store.wakeups.listen("default", ["reports"]) as bell:
            await until(lambda: scheduler._firing.last_pass_at)
            await live.resume_schedule("s")
            assert await bell.wait(LONG) == {"reports"}

    async def test_without_wake_ups_a_look_finds_it(self, queue: Queue, clock: FakeClock) -> None:
        scheduler = quiet(queue, look_seconds=0.02)
        async with running(scheduler):
            await until(lambda: scheduler._firing.last_pass_at)
            await queue.put_schedule("s", "0 * * * *", REPORT)
            clock.advance(hours=1)  # and nobody says so
            await until_stored(lambda: fire_times(queue))

    async def test_each_time_fires_once_however_many_run(self, live: Queue) -> None:
        """Also while the office changes hands: the leader stops again and again."""
        await live.put_schedule("s", EVERY_SECOND, REPORT, missed="all")
        many = [quiet(live) for _ in range(3)]
        async with running(*many):
            for stops in range(1, 3):
                await until_stored(lambda stops=stops: _as_many(live, stops))  # type: ignore[misc]
                for leader in leaders(*many):
                    leader.stop()
            await until_stored(lambda: _as_many(live, 4))
        times = await fire_times(live)
        assert times == [times[0] + timedelta(seconds=n) for n in range(len(times))]

    async def test_all_that_fire_at_once_make_one_job(self, queue: Queue, clock: FakeClock) -> None:
        """As when a leader sleeps through the end of its office and wakes beside its successor."""
        await queue.put_schedule("s", "0 * * * *", REPORT)
        clock.advance(hours=1)
        many = [quiet(queue) for _ in range(3)]
        await asyncio.gather(*(scheduler._fire() for scheduler in many))
        assert len(await fire_times(queue)) == 1

    @pytest.mark.parametrize(
        ("missed", "hours"),
        [("skip", []), ("one", [3]), ("all", [1, 2, 3])],
    )
    async def test_what_was_missed_fires_as_the_schedule_says(
        self, queue: Queue, clock: FakeClock, missed: str, hours: list[int]
    ) -> None:
        await queue.put_schedule("s", "0 * * * *", REPORT, missed=missed)
        clock.advance(hours=3, minutes=30)  # while no scheduler ran
        scheduler = quiet(queue)
        async with running(scheduler):
            await until(lambda: scheduler._firing.last_pass_at)
        assert await fire_times(queue) == [START + timedelta(hours=hour) for hour in hours]

    async def test_more_than_one_step_of_missed_times_is_caught_up_without_a_wait(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.put_schedule("s", "* * * * *", REPORT, missed="all")
        clock.advance(minutes=1_200)
        scheduler = quiet(queue)
        async with running(scheduler):
            await until_stored(lambda: _as_many(queue, 1_200))

    async def test_it_fires_by_the_wall_clock_when_daylight_saving_begins(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        clock.set(datetime(2026, 3, 28, 12, tzinfo=UTC))
        await queue.put_schedule("s", "30 2 * * *", REPORT, tz="Europe/Paris")
        scheduler = quiet(queue)
        async with running(scheduler):
            await until(lambda: scheduler._firing.last_pass_at)
            for _ in range(96):
                clock.advance(minutes=30)
                await look_again(queue, scheduler)
        # There is no 02:30 on the 29th; on the 30th it is an hour earlier by UTC than it was.
        assert await fire_times(queue) == [
            datetime(2026, 3, 29, 1, 0, tzinfo=UTC),
            datetime(2026, 3, 30, 0, 30, tzinfo=UTC),
        ]

    async def test_it_sleeps_by_the_clock_of_the_store(self, queue: Queue, clock: FakeClock) -> None:
        """Whatever year this machine believes it is."""
        await queue.put_schedule("s", "0 * * * *", REPORT)
        clock.set(START + timedelta(hours=1, seconds=-3))
        assert await quiet(queue)._fire() == 3.0

    async def test_of_its_own_tenant_only_if_so_told(self, queue: Queue, clock: FakeClock) -> None:
        for tenant in (queue, queue.for_tenant("acme")):
            await tenant.put_schedule("s", "0 * * * *", REPORT)
        clock.advance(hours=1)
        own, other = quiet(queue, tenants="own"), quiet(queue.for_tenant("umbra"), tenants="own")
        async with running(own, other):  # each leads for its own
            await until(lambda: own._firing.last_pass_at and other._firing.last_pass_at)
            await until_stored(lambda: fire_times(queue))
        assert await fire_times(queue.for_tenant("acme")) == []

    async def test_a_schedule_that_cannot_fire_holds_up_no_other(
        self, queue: Queue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(schedule: Schedule, now: datetime) -> Fire | None:
            if schedule.name == "bad":
                raise LookupError("no such time zone any more")
            return plan(schedule, now)

        monkeypatch.setattr("penstock.queue.plan", broken)
        for tenant, name in ((queue, "bad"), (queue, "s"), (queue.for_tenant("zoe"), "s")):
            await tenant.put_schedule(name, "0 * * * *", REPORT)
        scheduler = quiet(queue)
        async with running(scheduler):
            for hour in (1, 2):
                clock.set(START + timedelta(hours=hour))
                nudge(queue)
                await until_stored(lambda hour=hour: _as_many(queue, hour))  # type: ignore[misc]
                await until_stored(lambda hour=hour: _as_many(queue.for_tenant("zoe"), hour))  # type: ignore[misc]
        assert await fire_times(queue, "bad") == []

    async def test_what_cannot_fire_is_tried_again_at_ever_longer_intervals(
        self, queue: Queue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await queue.put_schedule("s", "0 * * * *", REPORT)
        clock.advance(hours=1)
        between, stuck = weather(queue)
        scheduler = quiet(stuck)

        async def refuse(*_: object) -> list[object]:
            raise RuntimeError("no")

        monkeypatch.setattr(between, "fire", refuse, raising=False)
        waits = [await scheduler._firing.once() for _ in range(12)]
        assert all(wait > 0 for wait in waits)
        assert waits[-1] >= 15
        assert scheduler._firing.error == "tenant default: RuntimeError: no"


async def _as_many(queue: Queue, least: int) -> bool:
    return len(await fire_times(queue)) >= least


class TestSweeping:
    async def test_a_lost_lease_is_rescued_though_no_worker_calls(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        job = await queue.enqueue("a")
        await queue.lease(worker="w", lease_seconds=30)
        scheduler = quiet(queue, sweep_seconds=0.02)
        async with queue.store.wakeups.listen("default", ["default"]) as bell, running(scheduler):
            await until(lambda: scheduler._sweeping.last_pass_at)
            assert await bell.wait(0) == frozenset(), "its lease has not run out"
            clock.advance(seconds=31)
            assert await bell.wait(LONG) == {"default"}
        [attempt] = (await queue.history(job.id)).attempts
        assert attempt.outcome is Outcome.LOST

    async def test_what_has_not_started_in_time_is_cancelled_and_its_children_with_it(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        parent = await queue.enqueue("a", expires_in=60)
        await queue.enqueue("b", parents=[parent.id], on_parent_failure="run")
        clock.advance(seconds=61)
        async with queue.store.wakeups.listen("default", ["default"]) as bell, running(quiet(queue)):
            assert await bell.wait(LONG) == {"default"}, "the child was let go"
        assert (await queue.get(parent.id)).status is Status.CANCELLED

    async def test_jobs_leave_when_their_retention_has_passed(self, queue: Queue, clock: FakeClock) -> None:
        await queue.configure("default", retention_seconds=60)
        for tenant in (queue, queue.for_tenant("acme")):
            await tenant.configure("default", retention_seconds=60)
            await tenant.enqueue("a")
            [leased] = await tenant.lease(worker="w")
            await tenant.ack(leased)
        clock.advance(seconds=61)
        async with running(quiet(queue)):
            for tenant in (queue, queue.for_tenant("acme")):
                await until_stored(lambda tenant=tenant: _is_empty(tenant))  # type: ignore[misc]

    async def test_what_one_sweep_leaves_the_next_takes_without_a_wait(
        self, queue: Queue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("penstock.scheduler.scheduler.SWEPT_AT_ONCE", 2)
        await queue.configure("default", retention_seconds=60)
        await queue.enqueue_many([{"type": "a"}] * 5)
        for leased in await queue.lease(worker="w", limit=5):
            await queue.ack(leased)
        clock.advance(seconds=61)
        async with running(quiet(queue)):
            await until_stored(lambda: _is_empty(queue))

    async def test_more_lost_leases_than_one_look_sees_are_rescued_in_one_sweep(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        await queue.enqueue_many([{"type": "a"}] * 1_200)
        for _ in range(2):
            await queue.store.lease("default", [LeaseJobs("default", "w", 1_000, 30)])
        clock.advance(seconds=31)
        assert (await queue.sweep()).lost == 1_200


async def _is_empty(queue: Queue) -> bool:
    return not (await queue.find()).jobs


class TestBadWeather:
    async def test_a_storm_is_survived_and_told(self, queue: Queue, clock: FakeClock) -> None:
        between, stormy = weather(queue)
        await queue.put_schedule("s", "0 * * * *", REPORT)
        clock.advance(hours=1)
        scheduler = quiet(stormy)
        with between.storming():
            async with running(scheduler):
                await until(lambda: scheduler.status().last_error)
                assert "could not be reached" in (scheduler.status().last_error or "")
                assert scheduler.status().last_pass_at is None
                between.storm = False
                await until_stored(lambda: fire_times(queue))
                await until(lambda: scheduler.status().last_error is None)

    async def test_a_store_that_is_away_is_told_in_a_line_and_anything_else_with_where_it_was(
        self, queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def broken(*_: object) -> float:
            raise ValueError("no such thing")

        between, stormy = weather(queue)
        scheduler = quiet(stormy)
        with between.storming():
            async with running(scheduler):
                await until(lambda: scheduler.status().last_error)
        monkeypatch.setattr(scheduler._sweeping, "_work", broken)
        await scheduler._sweeping.once()
        scheduler._firing.failed_in_part("tenant a", StoreUnavailable("the store", "a storm"))
        *away, wrong, in_part = caplog.records
        assert away
        assert all(record.exc_info is None for record in [*away, in_part])
        assert "StoreUnavailable: the store could not be reached: a storm" in away[0].getMessage()
        assert wrong.exc_info is not None

    async def test_a_storm_in_the_middle_of_its_reign(self, queue: Queue, clock: FakeClock) -> None:
        between, stormy = weather(queue)
        await queue.put_schedule("s", "0 * * * *", REPORT)
        scheduler = quiet(stormy, look_seconds=0.02, sweep_seconds=0.02)
        async with running(scheduler):
            await until(lambda: scheduler._sweeping.last_pass_at and scheduler._firing.last_pass_at)
            between.storm = True
            await until(lambda: scheduler._sweeping.error and scheduler._firing.error)
            clock.advance(hours=1)
            between.storm = False
            await until_stored(lambda: fire_times(queue))
            await until(lambda: scheduler._sweeping.error is None)

    async def test_a_pass_that_hangs_is_given_up(self, queue: Queue, clock: FakeClock) -> None:
        between, hung = weather(queue)
        await queue.put_schedule("s", "0 * * * *", REPORT)
        clock.advance(hours=1)
        between.hung.add("due_schedules")
        scheduler = quiet(hung, deadline_seconds=0.1)
        async with running(scheduler):
            await until(lambda: (scheduler.status().last_error or "").startswith("TimeoutError"))
            between.hung.clear()
            await until_stored(lambda: fire_times(queue))

    async def test_a_cancellation_that_nobody_asked_for_is_a_failure_like_any_other(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scheduler = quiet(queue)

        async def leak(*_: object) -> float:
            raise asyncio.CancelledError

        monkeypatch.setattr(scheduler._sweeping, "_work", leak)
        async with running(scheduler) as [run]:
            await until(lambda: scheduler.status().last_error == "CancelledError: no answer in time")
            assert not run.done()

    async def test_a_loop_that_ends_ends_the_scheduler_loudly(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object) -> object:
            raise RuntimeError("no bells")

        monkeypatch.setattr(queue.store.wakeups, "listen", broken)
        with pytest.raises(RuntimeError, match="no bells"):
            await quiet(queue).run()

    async def test_an_office_that_cannot_be_given_up_does_not_keep_it_from_stopping(
        self, queue: Queue
    ) -> None:
        between, stormy = weather(queue)
        scheduler = quiet(stormy)
        async with running(scheduler) as [run]:
            await until(lambda: scheduler.status().leading)
            between.storm = True
            scheduler.stop()
            async with asyncio.timeout(LONG):
                await run
