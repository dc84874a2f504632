"""The hot statements have one sensible plan, whatever the statistics say: no table is read from end to end."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from penstock.stores.postgres import days
from penstock.stores.postgres.rules import sql
from support.postgres import TABLES, emptied, other_url, server_url

JOBS = 20_000
HOT = {"job", "ready", "lease", "parked", "done", "attempt"}


@pytest.fixture
async def database() -> AsyncIterator[Any]:
    """Twenty thousand jobs due and as many for later, in two priorities, with statistics or with none."""
    connection = await asyncpg.connect(server_url())
    await connection.execute("; ".join(f"DELETE FROM penstock.{table}" for table in TABLES))
    # What earlier tests left behind is not this one's to read, and what was known of it not the planner's to believe.
    await connection.execute("VACUUM ANALYZE penstock.ready")
    await connection.execute(
        "ANALYZE penstock.job, penstock.lane, penstock.lease, penstock.parked, penstock.done"
    )
    await connection.execute(
        "INSERT INTO penstock.lane (tenant, queue, priority) VALUES ('t', 'deep', 0), ('t', 'deep', 5)"
    )
    await connection.execute("INSERT INTO penstock.queue (tenant, name, settings) VALUES ('t', 'deep', '{}')")
    for offset in ("-1 hour", "1 day"):
        await connection.execute(
            f"""WITH asked AS (
                    INSERT INTO penstock.job (tenant, id, queue, type, payload, priority, created_at, scheduled_at)
                    SELECT 't', gen_random_uuid(), 'deep', 'x', '{{}}', CASE WHEN n % 10 = 0 THEN 5 ELSE 0 END, now(),
                           now() + interval '{offset}' + n * interval '1 microsecond'
                    FROM generate_series(1, {JOBS}) AS n RETURNING *)
                INSERT INTO penstock.ready (tenant, id, queue, priority, run_at, scheduled_at)
                SELECT tenant, id, queue, priority, scheduled_at, scheduled_at FROM asked"""
        )
    yield connection
    await connection.close()


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", []):
        yield from nodes(below)


async def explained(database: Any, name: str, values: list[str]) -> dict[str, Any]:
    """Run a statement, roll it back, and tell how it went."""
    statement = re.sub(r"\$(\d+)", lambda found: values[int(found[1]) - 1], sql(name))
    transaction = database.transaction()
    await transaction.start()
    text = await database.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {statement}")
    await transaction.rollback()
    return json.loads(text)[0]["Plan"]  # type: ignore[no-any-return]


def read_whole(plan: dict[str, Any]) -> list[str]:
    """Hot tables with rows in them that were read from end to end."""
    return [
        node["Relation Name"]
        for node in nodes(plan)
        if node["Node Type"] == "Seq Scan"
        and node["Relation Name"] in HOT
        and node["Actual Rows"] + node.get("Rows Removed by Filter", 0) > 100
    ]


LEASE = [
    "'t'", "'deep'", "NULL::timestamptz", "100", "(SELECT array_agg('token-' || n) FROM generate_series(1, 100) AS n)", "'w'",
    "NULL::float8",
    "'-infinity'::timestamptz",
    "'00000000-0000-0000-0000-000000000000'::uuid",
    "'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid",
]  # fmt: skip


@pytest.mark.parametrize("analysed", [True, False])
class TestPlans:
    async def test_a_lease_reads_what_it_takes_and_little_more(self, database: Any, analysed: bool) -> None:
        await self._statistics(database, analysed)
        plan = await explained(database, "lease", LEASE)
        assert plan["Actual Rows"] == 100
        assert read_whole(plan) == []
        claims = [node for node in nodes(plan) if node.get("Index Name") == "ready_next"]
        assert claims, [node.get("Index Name", node["Node Type"]) for node in nodes(plan)]
        # A hundred entries are next to each other in the index, each row is looked up once: no more than that.
        assert all(node["Shared Hit Blocks"] + node["Shared Read Blocks"] <= 200 for node in claims)

    async def test_an_ack_finds_its_leases_one_by_one(self, database: Any, analysed: bool) -> None:
        await self._statistics(database, analysed)
        statement = re.sub(r"\$(\d+)", lambda found: LEASE[int(found[1]) - 1], sql("lease"))
        leased = await database.fetch(statement)
        ids = ", ".join(f"'{row['id']}'" for row in leased)
        tokens = ", ".join(f"'{row['token']}'" for row in leased)
        values = [
            "'t'",
            "NULL::timestamptz",
            f"ARRAY[{ids}]",
            f"ARRAY[{tokens}]",
            "array_fill('null'::text, ARRAY[100])",
            "array_fill(NULL::text, ARRAY[100])",
        ]
        plan = await explained(database, "ack", values)
        assert plan["Actual Rows"] == 100
        assert read_whole(plan) == []

    async def test_looking_for_what_is_overdue_reads_no_table(self, database: Any, analysed: bool) -> None:
        await self._statistics(database, analysed)
        plan = await explained(database, "overdue", ["'t'", "now()"])
        assert read_whole(plan) == []

    async def test_looking_for_whom_to_sweep_reads_no_table(self, database: Any, analysed: bool) -> None:
        await self._statistics(database, analysed)
        plan = await explained(database, "restless", ["ARRAY['t']", "ARRAY['deep']", "ARRAY[now()]", "now()"])
        assert plan["Actual Rows"] == 0
        assert read_whole(plan) == []
        looked_at = [node for node in nodes(plan) if node.get("Relation Name") in HOT]
        assert all(node["Actual Rows"] <= 1 for node in looked_at)

    async def test_a_job_is_loaded_by_its_id(self, database: Any, analysed: bool) -> None:
        await self._statistics(database, analysed)
        job_id = await database.fetchval("SELECT id FROM penstock.job LIMIT 1")
        plan = await explained(database, "load", ["'t'", f"ARRAY['{job_id}']"])
        assert plan["Actual Rows"] == 1
        assert read_whole(plan) == []

    @staticmethod
    async def _statistics(database: Any, analysed: bool) -> None:
        if analysed:
            await database.execute(
                "ANALYZE penstock.job, penstock.ready, penstock.lease, penstock.parked, penstock.done"
            )


SETTLED = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "plan_cache_mode": "force_generic_plan",
}
"""What the store sets, and the plan that a statement has after a while: for any values."""

ENTRIES = 20_000


class Prepared:
    """A session whose plans were made when the tables were empty, and how they fare now that they are full."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def prepare(self, name: str, *values: str) -> None:
        await self.connection.execute(f"PREPARE {name} AS {sql(name)}")
        await self.connection.execute(f"EXECUTE {name} ({', '.join(values)})")

    async def put(self, name: str) -> None:
        """Put an entry; the plans are inside a function."""
        columns = [["token"], [name], ["1"], *[[None]] * 8]
        await self.connection.fetch(sql("put_entries"), "t2", None, *columns)

    async def scans(self, name: str, *values: str) -> list[dict[str, Any]]:
        """How a statement reads its table."""
        text = await self.connection.fetchval(
            f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE {name} ({', '.join(values)})"
        )
        plan = json.loads(text)[0]["Plan"]
        return [node for node in nodes(plan) if "Relation Name" in node and node["Actual Loops"]]


@pytest.fixture
async def prepared() -> AsyncIterator[Prepared]:
    await emptied()
    connection = await asyncpg.connect(server_url(), server_settings=SETTLED)
    await connection.execute("VACUUM ANALYZE penstock.entry, penstock.allowance, penstock.change")
    session = Prepared(connection)
    await session.prepare("entries", "NULL", "'token'", "NULL")
    await session.prepare("entries_named", "NULL", "'token'", "NULL", "'{a}'")
    await session.prepare("audit", "'t'", "NULL", "50")
    await session.put("x")
    await connection.execute(
        f"""INSERT INTO penstock.entry (tenant, kind, name, version, body, changed_at, expires_at)
            SELECT 't' || n % 100, CASE WHEN n % 2 = 0 THEN 'token' ELSE 'worker' END, 'n' || n, 1, '{{}}', now(),
                   CASE WHEN n % 3 = 0 THEN now() + interval '1 hour' END
            FROM generate_series(1, {ENTRIES}) AS n"""
    )
    await connection.execute(
        f"""INSERT INTO penstock.change (tenant, kind, name, at, verb, actor)
            SELECT 't', 'queue', 'q', now(), 'configure', CASE WHEN n % 10 = 0 THEN 'ada' ELSE 'rule:x' END
            FROM generate_series(1, {ENTRIES}) AS n"""
    )
    yield session
    await connection.close()
    await emptied()


def blocks(scan: dict[str, Any]) -> int:
    return scan["Shared Hit Blocks"] + scan["Shared Read Blocks"]  # type: ignore[no-any-return]


class TestRegistry:
    async def test_a_token_is_looked_up_by_its_key(self, prepared: Prepared) -> None:
        [scan] = await prepared.scans("entries_named", "NULL", "'token'", "NULL", "'{n2, n4, n5, x}'")
        assert scan["Index Name"] == "entry_pkey"
        assert scan["Actual Loops"] == 4
        assert blocks(scan) <= 4 * 5

    async def test_a_tenants_entries_are_listed_without_reading_anothers(self, prepared: Prepared) -> None:
        [scan] = await prepared.scans("entries", "'t2'", "'token'", "NULL")
        assert scan["Index Name"] == "entry_of_kind"
        assert scan["Actual Rows"] == ENTRIES / 100 + 1  # and x
        assert scan.get("Rows Removed by Filter", 0) == 0

    async def test_an_entry_is_put_by_its_key(self, prepared: Prepared) -> None:
        async with prepared.connection.transaction():
            await prepared.put("n2")
            before = await self._read(prepared)
            await prepared.put("n2")
            assert await self._read(prepared) - before <= 4

    async def test_the_audit_log_reads_a_page_of_what_people_did(self, prepared: Prepared) -> None:
        scans = await prepared.scans("audit", "'t'", "NULL", "50")
        assert all("_tenant_seq_idx" in scan["Index Name"] for scan in scans)
        assert sum(scan["Actual Rows"] for scan in scans) == 50
        assert all(scan.get("Rows Removed by Filter", 0) == 0 for scan in scans)

    @staticmethod
    async def _read(prepared: Prepared) -> int:
        """How many entries of indexes on `entry` this transaction has read."""
        return await prepared.connection.fetchval(  # type: ignore[no-any-return]
            """SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid)) FROM pg_index
               WHERE indrelid = 'penstock.entry'::regclass"""
        )


DAYS = 30


class Thirty:
    """A database with thirty days and a job leased on each, and how a statement fares there."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.today = datetime.now(UTC).date()
        self.days = [self.today - timedelta(days=number) for number in range(DAYS)]
        self.ids = [UUID(int=days.first_id(day).int + 7) for day in self.days]

    async def fill(self) -> None:
        await self.connection.execute("; ".join(f"DELETE FROM penstock.{table}" for table in TABLES))
        for day in self.days:
            assert await self.connection.fetchval("SELECT penstock.add_day($1)", day)
        await self.connection.execute(
            """INSERT INTO penstock.job (tenant, id, queue, type, payload, priority, created_at, scheduled_at)
               SELECT 't', id, 'q', 'x', '{}', 0, now(), now() FROM unnest($1::uuid[]) AS id""",
            self.ids,
        )
        await self.connection.execute(
            """INSERT INTO penstock.lease (tenant, id, queue, priority, run_at, scheduled_at, attempts, leases, token, worker,
                                           taken_at, until, seconds)
               SELECT 't', id, 'q', 0, now(), now(), 1, 1, 'token', 'w', now(), now() + interval '1 hour', 3600
               FROM unnest($1::uuid[]) AS id""",
            self.ids,
        )
        await self.connection.execute(
            """INSERT INTO penstock.queue (tenant, name, settings) VALUES ('t', 'q', '{}');
               INSERT INTO penstock.lane (tenant, queue, priority) VALUES ('t', 'q', 0)"""
        )

    async def line_up(self, *ids: UUID) -> None:
        await self.connection.execute("DELETE FROM penstock.lease WHERE id = ANY ($1::uuid[])", ids)
        await self.connection.execute(
            """INSERT INTO penstock.ready (tenant, id, queue, priority, run_at, scheduled_at)
               SELECT 't', id, 'q', 0, now(), now() FROM unnest($1::uuid[]) AS id""",
            ids,
        )

    async def touched(self, name: str, *values: str) -> tuple[set[str], set[str]]:
        """The partitions that a statement opened, and those that it looked into, under the plan for any values."""
        await self.connection.execute(f"DEALLOCATE ALL; PREPARE hot AS {sql(name)}")
        transaction = self.connection.transaction()
        await transaction.start()
        text = await self.connection.fetchval(
            f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE hot ({', '.join(values)})"
        )
        await transaction.rollback()
        scans = [
            node
            for node in nodes(json.loads(text)[0]["Plan"])
            if re.fullmatch(r"(job|attempt|change)_(\d{8}|default)", node.get("Relation Name", ""))
        ]
        opened = {node["Relation Name"] for node in scans}
        return opened, {node["Relation Name"] for node in scans if node["Actual Loops"]}

    def names(self, *tables: str, day: int) -> set[str]:
        return {f"{table}_{self.days[day]:%Y%m%d}" for table in tables}


@pytest.fixture
async def thirty() -> AsyncIterator[Thirty]:
    connection = await asyncpg.connect(
        other_url(),
        statement_cache_size=0,
        server_settings=SETTLED,
    )
    filled = Thirty(connection)
    await filled.fill()
    yield filled
    await connection.close()


class TestDays:
    """With thirty days present, a statement looks into those of its jobs only."""

    async def test_an_enqueue_reads_none(self, thirty: Thirty) -> None:
        new = UUID(int=thirty.ids[0].int + 1)
        values = (
            "'t'", "NULL", f"'{{{new}}}'", "'{q}'", "'{x}'", "ARRAY['{}'::json]", "'{0}'", "'{NULL}'", "'{NULL}'", "'{NULL}'",
            "'{NULL}'",
        )  # fmt: skip
        assert await thirty.touched("enqueue", *values) == (set(), set())

    async def test_an_ack_reads_none(self, thirty: Thirty) -> None:
        values = ("'t'", "NULL", f"'{{{thirty.ids[9]}}}'", "'{token}'", "'{null}'", "'{NULL}'")
        assert await thirty.touched("ack", *values) == (set(), set())

    async def test_a_heartbeat_reads_none(self, thirty: Thirty) -> None:
        values = ("'t'", "NULL", f"'{{{thirty.ids[9]}}}'", "'{token}'", "'{NULL}'", "'{NULL}'")
        assert await thirty.touched("heartbeat", *values) == (set(), set())

    async def test_whether_a_job_is_known_reads_none(self, thirty: Thirty) -> None:
        assert await thirty.touched("known", "'t'", f"'{{{thirty.ids[9]}}}'") == (set(), set())

    async def test_a_lease_of_recent_jobs_opens_only_the_last_days(self, thirty: Thirty) -> None:
        await thirty.line_up(thirty.ids[0], thirty.ids[1])
        window = days.Window()
        window.saw(("t", "q"), datetime.now(UTC), [], some_outside=False)
        opened, read = await thirty.touched(
            "lease", *LEASE_OF_Q, *(f"'{id}'" for id in window.of(("t", "q")))
        )
        assert len(opened) == 3
        assert read == thirty.names("job", day=0) | thirty.names("job", day=1)

    async def test_a_lease_of_any_job_reads_only_its_day(self, thirty: Thirty) -> None:
        await thirty.line_up(thirty.ids[20])
        _, read = await thirty.touched("lease", *LEASE_OF_Q, *(f"'{id}'" for id in days.EVERY_ID))
        assert read == thirty.names("job", day=20)

    @pytest.mark.parametrize(
        ("name", "tables"), [("load", ["job", "attempt"]), ("asked", ["job"]), ("attempts", ["attempt"])]
    )
    async def test_looking_jobs_up_reads_only_their_days(
        self, thirty: Thirty, name: str, tables: list[str]
    ) -> None:
        _, read = await thirty.touched(name, "'t'", f"'{{{thirty.ids[3]}, {thirty.ids[20]}}}'")
        assert read == thirty.names(*tables, day=3) | thirty.names(*tables, day=20)

    async def test_the_changes_to_a_job_are_read_in_its_day_only(self, thirty: Thirty) -> None:
        _, read = await thirty.touched("changes", "'t'", "'{job}'", f"'{{{thirty.ids[3]}}}'")
        assert read == thirty.names("change", day=3)

    async def test_whether_a_lake_has_a_job_that_goes_is_read_in_its_day_only(self, thirty: Thirty) -> None:
        await thirty.connection.execute(
            """INSERT INTO penstock.done (tenant, id, queue, status, run_at, attempts, leases, ended_at)
               SELECT 't', $1, 'q', 'succeeded', now(), 1, 1, now() - interval '1 hour'""",
            thirty.ids[3],
        )
        values = ("'t'", "'{q}'", "ARRAY[now()]", "10")
        its_own = thirty.names("job", "attempt", "change", day=3)
        _, read = await thirty.touched("prune", *values, str(2**62))
        assert read - {"job_default", "attempt_default", "change_default"} == its_own
        _, read = await thirty.touched("prune", *values, "NULL")
        assert read <= {"job_default", "attempt_default", "change_default"}


LEASE_OF_Q = ["'t'", "'q'", "NULL", "2", "'{a, b}'", "'w'", "NULL", "'-infinity'"]
