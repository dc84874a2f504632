"""What the PostgreSQL store does per second, what it writes, and what a lease costs in front of a deep backlog.

    python benchmarks/postgres_store.py [--url URL] [--jobs 20000] [--deep 300000] [--json FILE]

Without a URL it runs on an embedded server in a temporary folder, with synchronous_commit on. One connection,
batches of 500, a payload of about 170 bytes. Compare figures of one run with each other, not with another machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import asyncpg

from penstock import Queue
from penstock.stores.postgres.embedded import start
from penstock.stores.postgres.migrate import migrate
from penstock.stores.postgres.store import PostgresStore

BATCH = 500


async def wal_bytes(database: Any, since: Any = None) -> Any:
    """Where the log stands, or how much was written since."""
    if since is None:
        return await database.fetchval("SELECT pg_current_wal_insert_lsn()")
    return float(await database.fetchval("SELECT pg_current_wal_insert_lsn() - $1::pg_lsn", since))


async def lives(queue: Queue, database: Any, jobs: int) -> dict[str, float]:
    """Enqueue, lease and ack so many jobs: per second, and bytes of log per job."""
    body = {"to": "ada@example.com", "subject": "hello", "body": "x" * 100}
    asked = [queue.new("email.send", {**body, "number": number}, queue="bench") for number in range(jobs)]
    figures: dict[str, float] = {}
    leased: list[Any] = []

    async def enqueue(start: int) -> None:
        await queue.enqueue_many(asked[start : start + BATCH])

    async def lease(start: int) -> None:
        leased.append(await queue.lease("bench", worker="bench", limit=BATCH))

    async def ack(start: int) -> None:
        await queue.settle_many([queue.acked(one) for one in leased[start // BATCH]])

    for step in (enqueue, lease, ack):
        log, started = await wal_bytes(database), time.perf_counter()
        for start_at in range(0, jobs, BATCH):
            await step(start_at)
        figures[f"{step.__name__}_per_second"] = jobs / (time.perf_counter() - started)
        figures[f"{step.__name__}_wal_bytes"] = await wal_bytes(database, log) / jobs
        print(
            f"{step.__name__:>8}: {figures[f'{step.__name__}_per_second']:>9,.0f} jobs/s  {figures[f'{step.__name__}_wal_bytes']:>6,.0f} bytes of WAL per job"
        )
    figures["wal_bytes_per_life"] = sum(figures[f"{step}_wal_bytes"] for step in ("enqueue", "lease", "ack"))
    print(f"   whole life of a job: {figures['wal_bytes_per_life']:,.0f} bytes of WAL")
    return figures


async def deep(queue: Queue, database: Any, depth: int) -> dict[str, float]:
    """Lease 100 at a time with so many jobs due and as many for later."""
    await queue.enqueue("seed", queue="deep")
    for offset in ("-1 hour", "1 day"):
        await database.execute(
            f"""WITH asked AS (
                    INSERT INTO penstock.job (tenant, id, queue, type, payload, priority, created_at, scheduled_at)
                    SELECT 'default', gen_random_uuid(), 'deep', 'x', '{{}}', 0, now(),
                           now() + interval '{offset}' + n * interval '1 microsecond'
                    FROM generate_series(1, $1::integer) AS n RETURNING *)
                INSERT INTO penstock.ready (tenant, id, queue, priority, run_at, scheduled_at)
                SELECT tenant, id, queue, priority, scheduled_at, scheduled_at FROM asked""",
            depth,
        )
    await database.execute("VACUUM ANALYZE penstock.ready")
    times = []
    for _ in range(50):
        started = time.perf_counter()
        await queue.lease("deep", worker="bench", limit=100)
        times.append((time.perf_counter() - started) * 1000)
    figures = {"lease_100_median_ms": statistics.median(times), "lease_100_worst_ms": max(times)}
    print(
        f"lease of 100 before {depth:,} due and {depth:,} scheduled: median {figures['lease_100_median_ms']:.1f} ms, worst {figures['lease_100_worst_ms']:.1f} ms (as the caller sees it)"
    )
    return figures


async def measure(url: str, jobs: int, depth: int) -> dict[str, float]:
    await migrate(url)
    store = PostgresStore(url, connections=1)
    database = await asyncpg.connect(url)
    print(await database.fetchval("SELECT 'PostgreSQL ' || current_setting('server_version')"))
    try:
        queue = Queue(store)
        return {**await lives(queue, database, jobs), **await deep(queue, database, depth)}
    finally:
        await database.close()
        await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", help="an empty database to use instead of an embedded one")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--deep", type=int, default=300_000)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    if arguments.url:
        figures = asyncio.run(measure(arguments.url, arguments.jobs, arguments.deep))
    else:
        with tempfile.TemporaryDirectory() as folder, start(Path(folder) / "data") as server:
            figures = asyncio.run(measure(server.url, arguments.jobs, arguments.deep))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
