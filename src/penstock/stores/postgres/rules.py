"""The rules, applied to rows: load what a command may touch into a machine, let it decide, write down what changed.

Everything but the hottest statements goes this way, so there is one statement of the rules and not two. What is
loaded is locked, so that nobody else decides about it meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import msgspec

from penstock.core.groups import KeyUse
from penstock.core.job import Job, JobId, NewJob, Record, Status
from penstock.core.keys import Keys
from penstock.core.ledger import Ledger
from penstock.core.lifecycle import ACTIVE
from penstock.core.machine import Machine
from penstock.core.ordering import Lane
from penstock.core.settings import QueueSettings
from penstock.stores.postgres import rows

Answer = TypeVar("Answer")
Connection = Any

MARGIN = timedelta(seconds=1)
"""How much later than their own clocks tell transactions may commit without being overlooked until the next sweep."""


@cache
def sql(name: str) -> str:
    """The statement in sql/<name>.sql."""
    return files("penstock.stores.postgres").joinpath("sql", f"{name}.sql").read_text()


class JournalKeys(Keys):
    """Keys that remember which requests were answered anew."""

    def __init__(self) -> None:
        super().__init__()
        self.answered_now: dict[str, tuple[JobId, str, datetime]] = {}

    def forget_holders(self, gone: set[str]) -> None:
        """Drop the holders that have ended since they were read: whoever ends a job does not hold its key's lock."""
        self._holders = {key: job_id for key, job_id in self._holders.items() if job_id not in gone}

    def remember(self, asked: NewJob, job_id: JobId, now: datetime) -> None:
        super().remember(asked, job_id, now)
        if asked.idempotency_key is not None:
            request = self.requests[asked.idempotency_key]
            self.answered_now[asked.idempotency_key] = (request.job_id, request.fingerprint, request.until)


class Journal(Ledger):
    """A ledger that remembers what changed since it was loaded."""

    def __init__(self, tenant: str, lane_class: type[Lane] = Lane) -> None:
        super().__init__(tenant, lane_class)
        self.keys: JournalKeys = JournalKeys()
        self.before: dict[JobId, Job | None] = {}
        self.records: list[tuple[str, str, Record]] = []

    def keep(self, old: Job | None, new: Job, now: datetime) -> None:
        self.before.setdefault(new.id, old)
        super().keep(old, new, now)

    def note(self, name: str, record: Record, kind: str = "job") -> None:
        self.records.append((kind, name, record))
        super().note(name, record, kind)


class Rules(Machine):
    """A machine that holds a part of a tenant's jobs and knows what it changed."""

    ledger_class = Journal
    ledger: Journal


class Moved(Exception):
    """A job changed places, or got a child, between lock and load; look again."""


class Session:
    """One transaction under the rules."""

    def __init__(self, connection: Connection, tenant: str, now: datetime) -> None:
        self.connection = connection
        self.tenant = tenant
        self.now = now
        self.rules = Rules(tenant)
        self.parents: set[JobId] = set()

    async def still_open(self, ids: Sequence[str]) -> list[str]:
        """Those of these queued jobs that may go first in their ordering key, now that nobody else can change that."""
        await self._lock_orders_of(ids)
        found = await self.connection.fetch(
            "SELECT id FROM penstock.ready WHERE tenant = $1 AND id = ANY ($2::uuid[]) AND NOT blocked",
            self.tenant,
            ids,
        )
        return [str(row["id"]) for row in found]

    async def _lock_orders_of(self, ids: Sequence[str]) -> None:
        """Lock the ordering keys of jobs, before the jobs themselves: everyone does it in this order."""
        found = await self.connection.fetch(sql("orders"), self.tenant, ids)
        await self.lock_names({f"order {row['queue']} {row['ordering_key']}" for row in found})

    async def load(self, ids: Iterable[str]) -> None:
        """Lock and load jobs, and everything whose fate may hang on them; what is overdue comes along."""
        connection, tenant = self.connection, self.tenant
        wanted = set(ids)
        wanted.update(str(row["id"]) for row in await connection.fetch(sql("overdue"), tenant, self.now))
        if not wanted:
            return
        found = await connection.fetch(sql("flow"), tenant, sorted(wanted))
        ordered = sorted(wanted.union(str(row["id"]) for row in found))
        await self._lock_orders_of(ordered)
        jobs = await self._lock(ordered)
        # A child that came in while we waited for its parent's lock: its fate hangs on this too, so look again.
        found = await connection.fetch(sql("flow"), tenant, sorted(wanted))
        if not {str(row["id"]) for row in found} <= set(ordered):
            raise Moved
        await self._load_attempts([job.id for job in jobs if job.leases])
        ledger = self.rules.ledger
        ledger.keys.forget_holders(set(ordered) - {job.id for job in jobs if job.status in ACTIVE})
        ledger.restore(jobs, self.now)
        await self.load_settings({job.queue for job in jobs})

    async def load_candidates(self, ids: Sequence[str]) -> None:
        """Lock and load jobs that may be leased, and nothing that may not; of their parents, what they may know."""
        jobs = [job for job in await self._lock(sorted(ids)) if job.status is Status.QUEUED]
        self.rules.ledger.restore(jobs, self.now)
        parents = sorted({parent for job in jobs for parent in job.asked.parents})
        if parents:
            found = await self.connection.fetch(sql("load"), self.tenant, parents)
            for parent in map(rows.to_job, found):
                self.rules.ledger.jobs.setdefault(parent.id, parent)

    async def _lock(self, ids: Sequence[str]) -> list[Job]:
        """Jobs as they stand and, locked as they are, will stand until we are done."""
        for _ in range(100):
            locked = await self.connection.fetch(sql("lock"), self.tenant, ids)
            places = {str(row["id"]): row["place"] for row in locked}
            jobs = [rows.to_job(row) for row in await self.connection.fetch(sql("load"), self.tenant, ids)]
            if all(places.get(job.id) == rows.TABLES[job.status] for job in jobs):
                break
        else:
            raise Moved
        edges = await self.connection.fetch(
            "SELECT DISTINCT parent_id FROM penstock.edge WHERE tenant = $1 AND parent_id = ANY ($2::uuid[])",
            self.tenant, ids,
        )  # fmt: skip
        self.parents.update(JobId(str(row["parent_id"])) for row in edges)
        return jobs

    async def _load_attempts(self, ids: Sequence[str]) -> None:
        """The attempts by which a repeated settle is known."""
        if not ids:
            return
        for row in await self.connection.fetch(sql("attempts"), self.tenant, ids):
            attempt = rows.to_attempt(row)
            self.rules.ledger.trails.setdefault(("job", attempt.job_id), []).append(attempt)

    async def load_settings(self, queues: Iterable[str], *, lock: bool = False) -> None:
        found = await self.connection.fetch(
            f"SELECT * FROM penstock.queue WHERE tenant = $1 AND name = ANY ($2) ORDER BY name {'FOR UPDATE' if lock else ''}",
            self.tenant, sorted(queues),
        )  # fmt: skip
        for row in found:
            lane = self.rules.ledger.lane(row["name"])
            lane.settings = msgspec.json.decode(row["settings"], type=QueueSettings)

    async def load_keys(self, asked: Sequence[NewJob]) -> None:
        """Lock the keys that jobs come with, and load who holds them."""
        ledger = self.rules.ledger
        requests = sorted({job.idempotency_key for job in asked if job.idempotency_key is not None})
        uniques = sorted({(job.queue, job.unique_key) for job in asked if job.unique_key is not None})
        await self.lock_names(
            [*(f"request {key}" for key in requests), *(f"unique {queue} {key}" for queue, key in uniques)]
        )
        for row in await self.connection.fetch(
            "SELECT * FROM penstock.request WHERE tenant = $1 AND key = ANY ($2)", self.tenant, requests
        ):
            ledger.keys.restore_request(
                row["key"], JobId(str(row["job_id"])), row["fingerprint"], row["until"]
            )
        for row in await self.connection.fetch(
            """SELECT h.* FROM penstock.holder h JOIN unnest($2::text[], $3::text[]) AS g (queue, unique_key) USING (queue, unique_key)
               WHERE h.tenant = $1""",
            self.tenant, [queue for queue, _ in uniques], [key for _, key in uniques],
        ):  # fmt: skip
            ledger.keys.restore_holder(row["queue"], row["unique_key"], JobId(str(row["job_id"])))

    async def lock_names(self, names: Iterable[str]) -> None:
        """Make everyone else who locks one of these names wait; always in the same order."""
        ordered = sorted(f"{self.tenant} {name}" for name in names)
        if ordered:
            await self.connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(name, 0)) FROM unnest($1::text[]) WITH ORDINALITY AS n (name, place) ORDER BY place",
                ordered,
            )

    async def lock_orders(self, jobs: Iterable[Job | NewJob]) -> None:
        asked = [job.asked if isinstance(job, Job) else job for job in jobs]
        await self.lock_names(
            {f"order {job.queue} {job.ordering_key}" for job in asked if job.ordering_key is not None}
        )

    async def save(self) -> None:
        """Write down what changed."""
        ledger = self.rules.ledger
        changed = [(old, ledger.jobs[job_id]) for job_id, old in ledger.before.items()]
        new = [job for old, job in changed if old is None]
        await self.lock_orders(job for _, job in changed)
        await self._ask(new)
        await self._link(new)
        await self._move(changed)
        await self._hold(changed)
        await self._tell()
        await self._tally(changed)
        await self.know_queues({(job.queue, job.priority) for _, job in changed})
        ordered = {
            (job.queue, job.asked.ordering_key) for _, job in changed if job.asked.ordering_key is not None
        }
        lined_up = [
            (job.queue, job.priority, job.run_at) for _, job in changed if job.status is Status.QUEUED
        ]
        if ordered:
            let_in = await self.connection.fetch(
                "SELECT * FROM penstock.admit($1, $2, $3)",
                self.tenant,
                [queue for queue, _ in ordered],
                [key for _, key in ordered],
            )
            lined_up += [
                (row["queue"], row["priority"], row["run_at"]) for row in let_in if not row["blocked"]
            ]
        if lined_up:
            await self._lower_floors(lined_up)

    async def _lower_floors(self, lined_up: Sequence[tuple[str, int, datetime]]) -> None:
        """See to it that claims start low enough for these jobs, also one that is about to raise the floor above them."""
        is_late = any(run_at < self.now - MARGIN for _, _, run_at in lined_up)
        await self.connection.execute(
            f"SELECT penstock.{'hold' if is_late else 'lower'}($1, $2, $3, $4)",
            self.tenant, *map(list, zip(*lined_up, strict=True)),
        )  # fmt: skip

    async def _ask(self, new: Sequence[Job]) -> None:
        taken = await self._asked(new)
        if not taken:
            return
        # Either somebody was first, or an earlier job of that id has left and its day is still here. Removed first, then
        # looked at: who holds those rows is alone with the ids, and if somebody was first nothing of this is kept.
        ids = [job.id for job in taken]
        await self.connection.execute(sql("forget"), self.tenant, ids)
        if await self.connection.fetch(sql("known"), self.tenant, ids) or await self._asked(taken):
            raise Moved

    async def _asked(self, new: Sequence[Job]) -> list[Job]:
        """Write down what was asked; gives those whose id is taken."""
        if not new:
            return []
        columns = map(list, zip(*map(rows.asked_row, new), strict=True))
        made = await self.connection.fetch(sql("ask"), self.tenant, self.now, *columns)
        written = {str(row["id"]) for row in made}
        return [job for job in new if job.id not in written]

    async def know_queues(self, lanes: set[tuple[str, int]]) -> None:
        """See to it that queues and priorities that are used for the first time are known to all."""
        if not lanes:
            return
        ordered = sorted(lanes)
        await self.connection.execute(
            "SELECT penstock.know($1, $2, $3)", self.tenant, [queue for queue, _ in ordered], [priority for _, priority in ordered]
        )  # fmt: skip

    async def _link(self, new: Sequence[Job]) -> None:
        edges = [(parent, job.id) for job in new for parent in job.asked.parents]
        if not edges:
            return
        parents = sorted({parent for parent, _ in edges})
        self.parents.update(parents)
        await self.connection.execute(
            "INSERT INTO penstock.edge SELECT $1, * FROM unnest($2::uuid[], $3::uuid[])",
            self.tenant, [parent for parent, _ in edges], [child for _, child in edges],
        )  # fmt: skip
        for table in ("ready", "lease", "parked", "done"):
            await self.connection.execute(
                f"UPDATE penstock.{table} SET is_parent = true WHERE tenant = $1 AND id = ANY ($2::uuid[]) AND NOT is_parent",
                self.tenant, parents,
            )  # fmt: skip

    async def _move(self, changed: Sequence[tuple[Job | None, Job]]) -> None:
        gone: dict[str, list[str]] = defaultdict(list)
        come: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for old, job in changed:
            if old is not None:
                gone[rows.TABLES[old.status]].append(job.id)
            come[rows.TABLES[job.status]].append(rows.state_row(job, job.id in self.parents))
        for table, ids in gone.items():
            await self.connection.execute(
                f"DELETE FROM penstock.{table} WHERE tenant = $1 AND id = ANY ($2::uuid[])", self.tenant, ids
            )
        for table, moved in come.items():
            await self._insert(table, moved)

    async def _hold(self, changed: Sequence[tuple[Job | None, Job]]) -> None:
        keyed = [(old, job) for old, job in changed if job.asked.unique_key is not None]
        freed = [
            job for old, job in keyed if old is not None and old.status in ACTIVE and job.status not in ACTIVE
        ]
        taken = [
            job for old, job in keyed if job.status in ACTIVE and (old is None or old.status not in ACTIVE)
        ]
        if freed:
            await self.connection.execute(
                "DELETE FROM penstock.holder WHERE tenant = $1 AND job_id = ANY ($2::uuid[])",
                self.tenant,
                [job.id for job in freed],
            )
        await self._insert("holder", [
            {"tenant": self.tenant, "queue": job.queue, "unique_key": job.asked.unique_key, "job_id": job.id} for job in taken
        ])  # fmt: skip
        answered = self.rules.ledger.keys.answered_now
        if answered:
            await self.connection.execute(
                "DELETE FROM penstock.request WHERE tenant = $1 AND key = ANY ($2)",
                self.tenant,
                list(answered),
            )
            await self._insert("request", [
                {"tenant": self.tenant, "key": key, "job_id": job_id, "fingerprint": fingerprint, "until": until}
                for key, (job_id, fingerprint, until) in answered.items()
            ])  # fmt: skip

    async def _tell(self) -> None:
        records = self.rules.ledger.records
        if not records:
            return
        numbers = await self.connection.fetch(
            "SELECT nextval('penstock.record_seq') AS seq FROM generate_series(1, $1)", len(records)
        )
        told: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for (kind, name, record), number in zip(records, numbers, strict=True):
            row = rows.record_row(self.tenant, kind, name, record, number["seq"])
            told["change" if "verb" in row else "attempt"].append(row)
        for table, lines in told.items():
            await self._insert(table, lines)

    async def _tally(self, changed: Sequence[tuple[Job | None, Job]]) -> None:
        deltas: dict[str, dict[Status, int]] = defaultdict(lambda: dict.fromkeys(Status, 0))
        for old, job in changed:
            deltas[job.queue][job.status] += 1
            if old is not None:
                deltas[job.queue][old.status] -= 1
        await self._insert("tally", [
            {"tenant": self.tenant, "queue": queue, **{str(status): n for status, n in delta.items()}} for queue, delta in deltas.items() if any(delta.values())
        ])  # fmt: skip

    async def _insert(self, table: str, new: list[dict[str, Any]]) -> None:
        if new:
            await self.connection.execute(
                f"INSERT INTO penstock.{table} SELECT * FROM json_populate_recordset(NULL::penstock.{table}, $1::json)",
                rows.as_json(new),
            )

    async def load_use(
        self, queue: str, *, goes_on: bool = False
    ) -> tuple[datetime | None, int, dict[str | None, KeyUse]]:
        """What a queue and its keys have used up, and what runs; the caller holds the queue's lock.

        `goes_on` lets the session's time go on to now: waiting for the lock may have taken long, and a lease must not seem
        to begin before the one ended whose place it takes.
        """
        # Counted before the clock is read: an ack in between then only costs a place, and no lease seems to overlap it.
        running = await self.connection.fetch(
            "SELECT key, count(*) AS n FROM penstock.lease WHERE tenant = $1 AND queue = $2 GROUP BY key",
            self.tenant,
            queue,
        )
        row = await self.connection.fetchrow(
            "SELECT full_until, turn, clock_timestamp() AS now FROM penstock.queue WHERE tenant = $1 AND name = $2",
            self.tenant,
            queue,
        )
        if goes_on and row is not None:
            self.now = row["now"]
        used = await self.connection.fetch(
            "SELECT key, turn, full_until FROM penstock.key_use WHERE tenant = $1 AND queue = $2",
            self.tenant,
            queue,
        )
        counts = {row["key"]: row["n"] for row in running}
        uses: dict[str | None, KeyUse] = {
            row["key"] or None: KeyUse(0, row["turn"], row["full_until"]) for row in used
        }
        keys = {
            key: KeyUse(counts.get(key, 0), uses.get(key, KeyUse()).turn, uses.get(key, KeyUse()).full_until)
            for key in {*counts, *uses}
        }
        return (None, 0, keys) if row is None else (row["full_until"], row["turn"], keys)

    async def save_use(self, queue: str, before: dict[str | None, KeyUse]) -> None:
        full_until, turn, keys = self.rules.ledger.lane(queue).used()
        await self.connection.execute(
            "UPDATE penstock.queue SET full_until = $3, turn = $4 WHERE tenant = $1 AND name = $2",
            self.tenant, queue, full_until, turn,
        )  # fmt: skip
        changed = [
            (key or "", use.turn, use.full_until) for key, use in keys.items()
            if (use.turn, use.full_until) != (before.get(key, KeyUse()).turn, before.get(key, KeyUse()).full_until)
        ]  # fmt: skip
        if changed:
            await self.connection.execute(
                """INSERT INTO penstock.key_use SELECT $1, $2, * FROM unnest($3::text[], $4::bigint[], $5::timestamptz[])
                   ON CONFLICT (tenant, queue, key) DO UPDATE SET turn = excluded.turn, full_until = excluded.full_until""",
                self.tenant, queue, [key for key, _, _ in changed], [turn for _, turn, _ in changed], [until for _, _, until in changed],
            )  # fmt: skip
