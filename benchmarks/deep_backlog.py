"""A lease of 100 in front of a deep backlog: the server's own time, and the buffers it touches.

    python -m benchmarks.deep_backlog [--url URL] [--deep 1000000 5000000]

The rows are loaded by SQL. The statement is the store's own, run under EXPLAIN ANALYZE twenty times with the
store's settings; each takes its hundred jobs for good. Buffers are counted apart for finding (every index scan
but the look-ups of the jobs themselves) and for all of it, rows moved included; and for comparison the same
is measured first with next to nothing in the line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg

from benchmarks.server import fresh_server
from penstock import Queue
from penstock.stores.postgres.days import Window
from penstock.stores.postgres.migrate import migrate
from penstock.stores.postgres.rules import sql
from penstock.stores.postgres.store import PostgresStore

LEASED = 100
TIMES = 20
HOUR = 3600.0  # longer than loading takes: no lease may run out in between
# As the store sets them on its own connections.
SETTINGS = {"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_sort": "off"}


async def load(database: asyncpg.Connection, number: int, offset: str, first_id: int) -> None:
    """So many jobs of one queue, due from the offset on, a microsecond apart; their ids grow, as UUIDv7 do."""
    step = 500_000
    for begin in range(0, number, step):
        await database.execute(
            f"""WITH asked AS (
                    INSERT INTO penstock.job (tenant, id, queue, type, payload, priority, created_at, scheduled_at)
                    SELECT 'default', (left(replace(penstock.first_id(current_date)::text, '-', ''), 12) || lpad(to_hex($3::bigint + n), 20, '0'))::uuid, 'deep', 'x',
                           '{{"to": "ada@example.com"}}', 0, now(), now() + interval '{offset}' + n * interval '1 microsecond'
                    FROM generate_series($1::integer, $2::integer) AS n
                    RETURNING tenant, id, queue, priority, scheduled_at)
                INSERT INTO penstock.ready (tenant, id, queue, priority, run_at, scheduled_at)
                SELECT tenant, id, queue, priority, scheduled_at, scheduled_at FROM asked""",
            begin + 1, min(begin + step, number), first_id, timeout=600,
        )  # fmt: skip
    await database.execute("VACUUM ANALYZE penstock.ready", timeout=600)
    await database.execute("ANALYZE penstock.job", timeout=600)


def recent() -> tuple[UUID, UUID]:
    """The ids that the store looks up first."""
    window = Window()
    window.saw(("default", "deep"), datetime.now(UTC), [], some_outside=False)
    return window.of(("default", "deep"))


async def explain(database: asyncpg.Connection) -> dict[str, Any]:
    """Lease a hundred for good, and say how that went."""
    values = [
        "default",
        "deep",
        None,
        LEASED,
        [f"token {n}" for n in range(LEASED)],
        "bench",
        HOUR,
        datetime.now(UTC),
        *recent(),
    ]
    plan = json.loads(
        await database.fetchval(
            f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {sql('lease')}", *values
        )
    )[0]
    return {
        "ms": plan["Execution Time"],
        "planning_ms": plan["Planning Time"],
        "buffers": _buffers(plan["Plan"]),
        "finding": sum(
            _buffers(node)
            for node in _nodes(plan["Plan"])
            if node["Node Type"].startswith("Index") and not node["Relation Name"].startswith("job")
        ),
    }


def _buffers(node: dict[str, Any]) -> int:
    return int(node["Shared Hit Blocks"] + node["Shared Read Blocks"])


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for below in node.get("Plans", []):
        yield from _nodes(below)


async def leases(database: asyncpg.Connection) -> list[dict[str, Any]]:
    await explain(database)  # the first one fills the caches
    return [await explain(database) for _ in range(TIMES)]


async def measure(url: str, ready: int, scheduled: int) -> dict[str, float]:
    await migrate(url)
    queue = Queue(PostgresStore(url, connections=1))
    await queue.enqueue("seed", queue="deep")
    database = await asyncpg.connect(url, server_settings=SETTINGS)
    try:
        await load(database, LEASED * (TIMES + 1), "-2 hours", 0)
        shallow = await leases(database)
        began = time.perf_counter()
        await load(database, ready, "-1 hour", 10**9)
        await load(database, scheduled, "1 day", 2 * 10**9)
        loaded = time.perf_counter() - began
        print(f"  loaded {ready:,} ready and {scheduled:,} scheduled jobs in {loaded:.0f} s", flush=True)
        deep = await leases(database)
        seen = []
        for _ in range(TIMES):
            began = time.perf_counter()
            leased = await queue.lease("deep", worker="bench", limit=LEASED, lease_seconds=HOUR)
            seen.append((time.perf_counter() - began) * 1000)
            assert len(leased) == LEASED
    finally:
        await database.close()
        await queue.close()
    return {
        "ready": ready,
        "scheduled": scheduled,
        "load_seconds": loaded,
        "lease_ms": statistics.median(run["ms"] for run in deep),
        "lease_ms_worst": max(run["ms"] for run in deep),
        "lease_ms_shallow": statistics.median(run["ms"] for run in shallow),
        "planning_ms": statistics.median(run["planning_ms"] for run in deep),
        "finding_buffers": statistics.median(run["finding"] for run in deep),
        "buffers": statistics.median(run["buffers"] for run in deep),
        "buffers_shallow": statistics.median(run["buffers"] for run in shallow),
        "as_the_caller_sees_it_ms": statistics.median(seen),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", help="an empty database to use instead of an embedded one")
    parser.add_argument(
        "--deep", type=int, nargs=2, metavar=("READY", "SCHEDULED"), default=(1_000_000, 5_000_000)
    )
    given = parser.parse_args()
    if given.url:
        figures = asyncio.run(measure(given.url, *given.deep))
    else:
        with fresh_server() as url:
            figures = asyncio.run(measure(url, *given.deep))
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
