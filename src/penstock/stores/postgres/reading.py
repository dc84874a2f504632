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
        await self._catch_up(tenant)
        conditions, values = ["tenant = $1"], [tenant]

        def where(condition: str, value: Any) -> None:
            if value is not None:
                values.append(value)
                conditions.append(condition.format(f"${len(values)}"))

        where("id < {}::uuid", after)
        where("status = ANY ({})", list(filter.statuses) or None)
        where("queue = {}", filter.queue)
        where("type = {}", filter.type)
        where("key = {}", filter.key)
        where("schedule = {}", filter.schedule)
        where("cause = {}", filter.cause)
        where("created_at >= {}", filter.created_from)
        where("created_at < {}", filter.created_before)
        # Arrays, so that a few children are looked up and not all jobs gone through.
        where(
            "id = ANY (ARRAY(SELECT child_id FROM penstock.edge WHERE tenant = $1 AND parent_id = ANY ({}::uuid[])))",
            list(filter.parents) or None,
        )
        if filter.in_flow:
            conditions.append(
                "EXISTS (SELECT FROM penstock.edge e WHERE e.tenant = $1 AND e.child_id = job_now.id)"
            )
        statement = f"SELECT * FROM penstock.job_now WHERE {' AND '.join(conditions)} ORDER BY id DESC LIMIT {limit + 1}"
        jobs = tuple(rows.to_job(row) for row in await self._fetch(statement, *values))
        return Page(jobs[:limit], jobs[limit - 1].id if len(jobs) > limit else None)

    async def queues(self, tenant: str) -> list[QueueView]:
        await self._catch_up(tenant)
        sums = ", ".join(f"coalesce(sum(t.{status}), 0)::bigint AS {status}" for status in Status)
        found = await self._fetch(
            f"""SELECT q.name, q.settings, t.*,
                           (SELECT min(r.run_at) FROM penstock.ready r WHERE r.tenant = q.tenant AND r.queue = q.name) AS oldest
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
