"""What time asks for: schedules and who fires them, sweeps, and the days of the history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

import msgspec

from penstock.core.commands import DropSchedule, Due, Fire, Fired, PutSchedule, Swept
from penstock.core.errors import PenstockError
from penstock.core.machine import each
from penstock.core.schedule import Schedule, fire_job
from penstock.core.settings import QueueSettings
from penstock.core.wakeups import EVERYONE, SCHEDULES
from penstock.stores.postgres import days
from penstock.stores.postgres.exported import Exported, exported
from penstock.stores.postgres.feed import Feed
from penstock.stores.postgres.rules import Session, sql

Answers = list[Any]

_TEND_SECONDS = 600
"""How often a process that sweeps looks after the days of the history."""
_TIDY_SECONDS = 60
"""How often it removes entries and allowances: nobody sees those that are over, so there is no hurry."""


class Timely(Feed):
    """The part of the store that has to do with time."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._tend_at = 0.0
        self._tidy_at = 0.0

    # ── Schedules ─────────────────────────────────────────────────────────────────────────────────

    async def put_schedules(
        self, tenant: str, commands: Sequence[PutSchedule]
    ) -> list[Schedule | PenstockError]:
        async def run(session: Session) -> Answers:
            await self._load_schedules(session)
            answers = each(session.rules.put_schedule, commands, session.now)
            await self._save_schedules(session, [command.schedule.name for command in commands])
            return answers

        answers = await self._by_rules(tenant, run)
        self.wakeups.wake(EVERYONE, [SCHEDULES])
        return answers

    async def drop_schedules(
        self, tenant: str, commands: Sequence[DropSchedule]
    ) -> list[Schedule | PenstockError]:
        async def run(session: Session) -> Answers:
            await self._load_schedules(session)
            answers = each(session.rules.drop_schedule, commands, session.now)
            await self._save_schedules(session, [command.name for command in commands])
            return answers

        answers = await self._by_rules(tenant, run, repeatable=False)
        self.wakeups.wake(EVERYONE, [SCHEDULES])
        return answers

    async def fire(self, tenant: str, fires: Sequence[Fire]) -> list[Fired | PenstockError]:
        async def run(session: Session) -> Answers:
            await self._load_schedules(session)
            schedules = {schedule.name: schedule for schedule in session.rules.schedules()}
            jobs = [
                fire_job(tenant, schedules[fire.name], at)
                for fire in fires
                if fire.name in schedules
                for at in fire.at
            ]
            await session.load_keys(jobs)
            await session.lock_orders(jobs)
            holders = session.rules.ledger.keys
            await session.load(
                [*(job.id for job in jobs), *(holder for job in jobs if (holder := holders.holder(job)))]
            )
            await session.load_settings({job.queue for job in jobs})
            session.rules.advance(session.now)
            answers = each(session.rules.fire, fires, session.now)
            await self._save_schedules(session, [fire.name for fire in fires])
            return answers

        return await self._by_rules(tenant, run)

    async def due_schedules(self, tenant: str | None = None) -> Due:
        [row] = await self._fetch(sql("due"), tenant, self._given_now())
        return Due(row["now"], tuple(row["tenants"]), row["next_fire_at"])

    async def _load_schedules(self, session: Session) -> None:
        await session.lock_names(["schedules"])
        session.rules.restore_schedules(await self._schedules(session.connection, session.tenant))

    async def _save_schedules(self, session: Session, names: Iterable[str]) -> None:
        touched = sorted(set(names))
        await session.connection.execute(
            "DELETE FROM penstock.schedule WHERE tenant = $1 AND name = ANY ($2)", session.tenant, touched
        )
        await session.connection.executemany(
            "INSERT INTO penstock.schedule VALUES ($1, $2, $3, $4, $5)",
            [
                (session.tenant, one.name, msgspec.json.encode(one).decode(), one.next_fire_at, one.last_fire_at)
                for one in session.rules.schedules() if one.name in touched
            ],
        )  # fmt: skip

    # ── Time ──────────────────────────────────────────────────────────────────────────────────────

    async def tenants(self) -> list[str]:
        found = await self._fetch(
            "SELECT DISTINCT tenant FROM penstock.queue UNION SELECT tenant FROM penstock.schedule ORDER BY 1"
        )
        return [row["tenant"] for row in found]

    async def lead(self, office: str, holder: str, seconds: float) -> bool:
        return bool(await self._fetch(sql("lead"), office, holder, seconds, self._given_now()))

    async def sweep(self, *, limit: int, exported_until: datetime | None = None) -> Swept:
        swept = Swept()
        tenants, has = await self._restless(exported_until)
        for tenant in tenants:
            one = await self._sweep(tenant, limit - swept.pruned, has)
            swept = Swept(swept.lost + one.lost, swept.expired + one.expired, swept.pruned + one.pruned)
        if monotonic() >= self._tidy_at:
            self._tidy_at = monotonic() + _TIDY_SECONDS
            await self._tidy(limit)
        if monotonic() >= self._tend_at:
            self._tend_at = monotonic() + _TEND_SECONDS
            await self.tend()
        return swept

    async def tend(self) -> None:
        """Make the tables of the days ahead, drop those that no job needs and all lakes have; the sweep does it by itself."""

        async def work(connection: Any) -> None:
            has = exported(await connection.fetchrow(sql("promises")))
            await days.tend(connection, await self._now(connection), has)

        await self._reach(work)

    async def _restless(self, exported_until: datetime | None) -> tuple[list[str], Exported]:
        """The tenants for whom a sweep has something to do, so that the many who rest cost nothing; and what lakes have."""
        queues = await self._fetch(
            "SELECT q.tenant, q.name, q.settings, coalesce($1, now()) AS now, p.*"
            f" FROM penstock.queue q CROSS JOIN ({sql('promises')}) p", self._given_now(),
        )  # fmt: skip
        if not queues:
            return [], Exported(exported_until)
        has = exported(queues[0], exported_until)
        now = queues[0]["now"]
        found = await self._fetch(
            sql("restless"), [row["tenant"] for row in queues], [row["name"] for row in queues],
            [_kept_until(row["settings"], now, has.until) for row in queues], now,
        )  # fmt: skip
        return [row["tenant"] for row in found], has

    async def _sweep(self, tenant: str, limit: int, has: Exported) -> Swept:
        swept = caught = await self._catch_up(tenant)
        while caught.lost or caught.expired:  # when a fleet dies there is more than one look sees
            caught = await self._catch_up(tenant)
            swept = Swept(swept.lost + caught.lost, swept.expired + caught.expired)

        async def prune(session: Session) -> int:
            pruned = 0
            while (gone := await self._prune(session, limit - pruned, has)) > 0:
                pruned += gone
            await session.connection.execute(
                "DELETE FROM penstock.request WHERE tenant = $1 AND until <= $2", tenant, session.now
            )
            await session.connection.execute(sql("fold"), tenant)
            await session.connection.execute(sql("settle_floors"), tenant)
            return pruned

        return Swept(swept.lost, swept.expired, await self._by_rules(tenant, prune))

    async def _prune(self, session: Session, limit: int, has: Exported) -> int:
        tenant, connection = session.tenant, session.connection
        queues = await connection.fetch("SELECT name, settings FROM penstock.queue WHERE tenant = $1", tenant)
        untils = [_kept_until(row["settings"], session.now, has.until) for row in queues]
        names = [row["name"] for row in queues]
        found = await connection.fetch(sql("prune"), tenant, names, untils, limit, has.below)
        return len(found)


def _kept_until(settings: str, now: datetime, exported_until: datetime | None) -> datetime:
    """Jobs of a queue with these settings that ended until then may go."""
    retention = msgspec.json.decode(settings, type=QueueSettings).retention_seconds
    until = now - timedelta(seconds=retention)
    return until if exported_until is None else min(until, exported_until)
