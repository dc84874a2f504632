"""What can be read: jobs, their trails, queues and schedules, as of now."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from penstock.core.commands import Filter, History, Page, QueueView
from penstock.core.errors import JobNotFound, PenstockError
from penstock.core.job import Job, JobId, Record, Status
from penstock.core.schedule import Schedule
from penstock.core.settings import QueueSettings
from penstock.stores.postgres import rows
from penstock.stores.postgres.connected import Connected
from penstock.stores.postgres.health import Health, health
from penstock.stores.postgres.rules import sql

MOST_EXAMINED = 10_000
_BEYOND = "ffffffff-ffff-ffff-ffff-ffffffffffff"

_NARROW = {
    Status.QUEUED: "penstock.ready WHERE",
    Status.RUNNING: "penstock.lease WHERE",
    **{
        one: f"penstock.parked WHERE status = '{one}' AND"
        for one in (Status.WAITING, Status.DEAD, Status.HELD)
    },
    **{one: f"penstock.done WHERE status = '{one}' AND" for one in (Status.SUCCEEDED, Status.CANCELLED)},
}
"""Where jobs in a state are, and how to tell them there."""


def _among(filter: Filter, values: list[Any], most: int) -> str:
    """The newest jobs below $2 among which all that match are: few, if anything asked for is rare and known to be."""
    before = f"ORDER BY id DESC LIMIT {most}"
    if filter.parents:
        values.append(list(filter.parents))
        return f"""SELECT DISTINCT child_id AS id FROM penstock.edge
                   WHERE tenant = $1 AND parent_id = ANY (${len(values)}::uuid[]) AND child_id < $2::uuid {before}"""
    if filter.in_flow:
        return f"SELECT DISTINCT child_id AS id FROM penstock.edge WHERE tenant = $1 AND child_id < $2::uuid {before}"
    if filter.schedule is not None:
        values.append(filter.schedule)
        return f"SELECT id FROM penstock.job WHERE tenant = $1 AND schedule = ${len(values)} AND id < $2::uuid {before}"
    each = [
        f"(SELECT id FROM {_NARROW[status]} tenant = $1 AND id < $2::uuid {before})"
        for status in filter.statuses or Status
    ]
    return f"SELECT id FROM ({' UNION ALL '.join(each)}) c {before}"


class Reading(Connected):
    """The reading half of the store."""

    async def get(self, tenant: str, ids: Sequence[JobId]) -> list[Job | PenstockError]:
        await self._catch_up(tenant)
        found = {str(row["id"]): rows.to_job(row) for row in await self._fetch(sql("load"), tenant, ids)}
        return [found.get(job_id) or JobNotFound(job_id) for job_id in ids]

    async def history(
        self, tenant: str, subjects: Sequence[tuple[str, str]]
    ) -> list[History | PenstockError]:
        await self._catch_up(tenant)
        ids = [name for kind, name in subjects if kind == "job"]
        known = await self._known(tenant, ids)
        attempts = await self._fetch(sql("attempts"), tenant, ids)
        changes = await self._fetch(
            sql("changes"), tenant, [kind for kind, _ in subjects], [name for _, name in subjects]
        )
        lines: dict[tuple[str, str], list[tuple[int, Record]]] = {}
        for row in attempts:
            lines.setdefault(("job", str(row["job_id"])), []).append((row["seq"], rows.to_attempt(row)))
        for row in changes:
            lines.setdefault((row["kind"], row["name"]), []).append((row["seq"], rows.to_change(row)))
        answers: list[History | PenstockError] = []
        for kind, name in subjects:
            if kind == "job" and name not in known:
                answers.append(JobNotFound(name))
            else:
                told = sorted(lines.get((kind, name), []), key=lambda line: line[0])
                answers.append(History(tuple(record for _, record in told)))
        return answers

    async def find(self, tenant: str, filter: Filter, *, after: JobId | None, limit: int) -> Page:
        """So many jobs are looked at for a page, and no more: a rare match makes a short one with a `next`."""
        await self._catch_up(tenant)
        conditions: list[str] = []
        values: list[Any] = [tenant, after or _BEYOND]

        def where(condition: str, value: Any) -> None:
            if value is not None:
                values.append(value)
                conditions.append(condition.format(f"${len(values)}"))

        where("j.queue = {}", filter.queue)
        where("j.type = {}", filter.type)
        where("j.key = {}", filter.key)
        where("j.cause = {}", filter.cause)
        where("j.created_at >= {}", filter.created_from)
        where("j.created_at < {}", filter.created_before)
        if filter.parents or filter.in_flow or filter.schedule is not None:  # rarer than any state
            where("j.status = ANY ({})", list(filter.statuses) or None)
        if filter.parents or filter.in_flow:
            where("j.schedule = {}", filter.schedule)
        # With nothing more to meet, each one looked at is one found.
        most = MOST_EXAMINED if conditions else limit + 1
        among = _among(filter, values, most)
        found = await self._fetch(
            f"""WITH looked AS MATERIALIZED ({among}),
                     last AS (SELECT id AS last, (SELECT count(*) FROM looked) AS examined FROM looked ORDER BY id LIMIT 1),
                     found AS (SELECT n.* FROM looked s CROSS JOIN LATERAL (
                                   SELECT * FROM penstock.job_now j WHERE {" AND ".join(["j.tenant = $1", "j.id = s.id", *conditions])}
                                   LIMIT 1) n
                               ORDER BY s.id DESC LIMIT {limit + 1})
                SELECT last.last, last.examined, found.* FROM last LEFT JOIN found ON true ORDER BY found.id DESC""",
            *values,
        )
        jobs = tuple(rows.to_job(row) for row in found if row["id"] is not None)
        if len(jobs) > limit:
            return Page(jobs[:limit], jobs[limit - 1].id)
        is_all = not found or found[0]["examined"] < most
        return Page(jobs, None if is_all else JobId(str(found[0]["last"])))

    async def queues(self, tenant: str) -> list[QueueView]:
        await self._catch_up(tenant)
        sums = ", ".join(f"coalesce(sum(t.{status}), 0)::bigint AS {status}" for status in Status)
        found = await self._fetch(
            f"""SELECT q.name, q.settings, t.*,
                           least(
                               -- The first of each priority, and of those that stand behind others: not a look at all of them.
                               (SELECT min(f.run_at) FROM penstock.lane l CROSS JOIN LATERAL (
                                    SELECT r.run_at FROM penstock.ready r
                                    WHERE r.tenant = l.tenant AND r.queue = l.queue AND r.priority = l.priority AND NOT r.blocked
                                    ORDER BY r.run_at LIMIT 1) f
                                WHERE l.tenant = q.tenant AND l.queue = q.name),
                               (SELECT r.run_at FROM penstock.ready r
                                WHERE r.tenant = q.tenant AND r.queue = q.name AND r.blocked ORDER BY r.run_at LIMIT 1)
                           ) AS oldest
                    FROM penstock.queue q
                    CROSS JOIN LATERAL (SELECT {sums} FROM penstock.tally t WHERE t.tenant = q.tenant AND t.queue = q.name) t
                    WHERE q.tenant = $1 ORDER BY q.name""",
            tenant,
        )
        return [
            QueueView(
                row["name"], msgspec.json.decode(row["settings"], type=QueueSettings),
                {status: row[status] for status in Status}, row["oldest"],
            )
            for row in found
        ]  # fmt: skip

    async def schedules(self, tenant: str) -> list[Schedule]:
        return await self._reach(lambda connection: self._schedules(connection, tenant))

    async def health(self) -> Health:
        """How the database is, for those who look after it."""
        return await self._reach(health)

    async def next_at(self, tenant: str, queues: Sequence[str]) -> datetime | None:
        found = await self._fetch(sql("next_at"), tenant, queues, self._given_now())
        moments = [_opens_at(row) for row in found if row["run_at"] is not None]
        return min(moments, default=None)

    async def _known(self, tenant: str, ids: Sequence[str]) -> set[str]:
        if not ids:
            return set()
        return {str(row["id"]) for row in await self._fetch(sql("known"), tenant, ids)}

    async def _schedules(self, connection: Any, tenant: str) -> list[Schedule]:
        found = await connection.fetch(
            "SELECT body FROM penstock.schedule WHERE tenant = $1 ORDER BY name", tenant
        )
        return [msgspec.json.decode(row["body"], type=Schedule) for row in found]


def _opens_at(row: rows.Row) -> datetime:
    """When the earliest job of a queue may be leased, as far as time and the queue's rate are concerned."""
    moment: datetime = max(row["now"], row["run_at"])
    if row["full_until"] is None:
        return moment
    rate = msgspec.json.decode(row["settings"], type=QueueSettings).rate
    return moment if rate is None else max(moment, rate.opens_at(row["full_until"]))
