"""The hot statements have one sensible plan, whatever the statistics say: no table is read from end to end."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from penstock.stores.postgres.rules import sql
from support.postgres import TABLES, server_url

JOBS = 20_000
HOT = {"job", "ready", "lease", "parked", "done", "attempt"}


@pytest.fixture
async def database() -> AsyncIterator[Any]:
    """Twenty thousand jobs due and as many for later, in two priorities, with statistics or with none."""
    connection = await asyncpg.connect(server_url())
    await connection.execute("; ".join(f"DELETE FROM penstock.{table}" for table in TABLES))
    await connection.execute(
        "VACUUM penstock.ready"
    )  # what earlier tests left behind is not this one's to read
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
]  # fmt: skip


@pytest.mark.parametrize("analysed", [True, False])
class TestPlans:
    async def test_a_lease_reads_what_it_takes_and_little_more(self, database: Any, analysed: bool) -> None:
        await self._statistics(database, analysed)
        plan = await explained(database, "lease", LEASE)
        assert plan["Actual Rows"] == 100
        assert read_whole(plan) == []
        claims = [node for node in nodes(plan) if node.get("Index Name") == "ready_next"]
        assert claims
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
