"""What code declares reaches the store when a worker starts, and schedules fire from there."""

from __future__ import annotations

import pytest

from penstock import InvalidInput, Penstock
from support.working import LONG, Work, until


class TestCron:
    async def test_a_declared_schedule_is_there_when_a_worker_runs(self, app: Penstock, work: Work) -> None:
        @app.cron("* * * * *", tz="Europe/Paris", args={"kind": "daily"})
        @app.job(name="report", queue="reports", priority=3)
        async def report(kind: str) -> None: ...

        async with work():
            [schedule] = await app.queue.schedules()
            assert (schedule.name, schedule.cron, schedule.tz) == ("report", "* * * * *", "Europe/Paris")
            assert (schedule.job.queue, schedule.job.priority, schedule.job.payload) == (
                "reports", 3, '{"kind":"daily"}',
            )  # fmt: skip
            assert schedule.declared_by == "test"

    async def test_arguments_that_do_not_fit_are_refused_at_once(self, app: Penstock) -> None:
        with pytest.raises(InvalidInput, match="missing a required argument: 'kind'"):

            @app.cron("* * * * *")
            @app.job(name="report")
            async def report(kind: str) -> None: ...

    async def test_a_declaration_that_is_gone_from_the_code_is_dropped(
        self, app: Penstock, work: Work
    ) -> None:
        app.cron("0 9 * * 1-5", name="weekdays")(app.job(name="a")(_nothing))
        async with work():
            assert [schedule.name for schedule in await app.queue.schedules()] == ["weekdays"]
        app.schedules.clear()
        async with work():
            assert await app.queue.schedules() == []


class TestTheSchedulerInTheWorker:
    async def test_a_lost_lease_is_found_without_anybody_asking(self, app: Penstock, work: Work) -> None:
        handle = await app.enqueue("a", queue="elsewhere", max_attempts=1)
        await app.lease("elsewhere", lease_seconds=1)
        async with work():
            job = await handle.wait(timeout=LONG)
        assert job.error is not None

    async def test_it_can_be_left_out(self, app: Penstock, work: Work) -> None:
        async with work(scheduler=False):
            assert await app.queue.store.lead("scheduler", "me", 1)

    async def test_its_office_is_free_at_once_when_the_worker_ends(self, app: Penstock, work: Work) -> None:
        async def is_taken() -> bool:
            return not await app.queue.store.lead("scheduler", "me", 0.001)

        async with work():
            await until(is_taken)
        assert await app.queue.store.lead("scheduler", "me", 1)


async def _nothing() -> None: ...
