"""How long the service takes for what each screen of the dashboard asks, with millions of jobs in the store.

    python -m benchmarks.dashboard [--queued 1000000] [--finished 5000000] [--rounds 5]

The rows are loaded by SQL. Every call goes through the whole service in one process, without a network: the time is the
server's. The gate is 300 ms for each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path

import asyncpg
import httpx

from benchmarks.server import fresh_server
from penstock import Queue
from penstock.access import Access
from penstock.server.app import create_app
from penstock.server.service import Service
from penstock.stores.postgres.migrate import migrate
from penstock.stores.postgres.store import PostgresStore

GATE_MS = 300.0
STEP = 500_000
DEAD = 2_000
RESULTS = Path(__file__).parent / "results" / "dashboard.json"

SCREENS = {
    "overview": ["/v1/overview", "/v1/figures?span=1h", "/v1/figures?span=7d", "/v1/markers"],
    "jobs": ["/v1/jobs?limit=50", "/v1/stats", "/v1/types"],
    "jobs, dead": ["/v1/jobs?status=dead&limit=50"],
    "jobs, cancelled": ["/v1/jobs?status=cancelled&limit=50"],
    "jobs, of a rare type": ["/v1/jobs?type=rare&limit=50"],
    "jobs, of a rare queue": ["/v1/jobs?queue=rare&limit=50"],
    "jobs, counted": ["/v1/jobs?status=dead&limit=50&count=true"],
    "job": ["/v1/jobs/{dead}", "/v1/jobs/{dead}/attempts", "/v1/jobs/{dead}/explain", "/v1/jobs/{dead}/flow"],
    "job that waits": ["/v1/jobs/{queued}/explain"],
    "failures": ["/v1/failures"],
    "queues": ["/v1/queues"],
    "queue": ["/v1/queues/deep", "/v1/queues/deep/history", "/v1/figures?queue=deep"],
    "workers": ["/v1/workers"],
    "schedules": ["/v1/schedules", "/v1/jobs?schedule=nightly&limit=12"],
    "flows": ["/v1/flows"],
    "bulk operations": ["/v1/bulk"],
    "audit": ["/v1/audit"],
    "system": ["/v1/system"],
}


async def load(database: asyncpg.Connection, number: int, first_id: int, into: str) -> None:
    """So many jobs of one queue in a state; their ids grow, as UUIDv7 do."""
    for begin in range(0, number, STEP):
        await database.execute(
            f"""WITH asked AS (
                    INSERT INTO penstock.job (tenant, id, queue, type, payload, priority, created_at, scheduled_at)
                    SELECT 'default', (left(replace(penstock.first_id(current_date)::text, '-', ''), 12) || lpad(to_hex($3::bigint + n), 20, '0'))::uuid,
                           'deep', 'x', '{{"to": "ada@example.com"}}', 0, now(), now()
                    FROM generate_series($1::integer, $2::integer) AS n RETURNING tenant, id, queue, priority, scheduled_at)
                {into}""",
            begin + 1, min(begin + STEP, number), first_id, timeout=600,
        )  # fmt: skip


QUEUED = """INSERT INTO penstock.ready (tenant, id, queue, priority, run_at, scheduled_at)
            SELECT tenant, id, queue, priority, scheduled_at, scheduled_at FROM asked"""
FINISHED = """INSERT INTO penstock.done (tenant, id, status, queue, run_at, attempts, leases, ended_at)
              SELECT tenant, id, 'succeeded', queue, scheduled_at, 1, 1, now() FROM asked"""
FAILED = """INSERT INTO penstock.parked (tenant, id, status, queue, run_at, scheduled_at, attempts, leases, error, ended_at)
            SELECT tenant, id, 'dead', queue, scheduled_at, scheduled_at, 1, 1, 'ValueError: no', now() FROM asked"""


async def measure(url: str, queued: int, finished: int, rounds: int) -> dict[str, float]:
    await migrate(url)
    store = PostgresStore(url, connections=4)
    queue = Queue(store)
    rare = await queue.enqueue("rare", queue="rare")
    await queue.enqueue("seed", queue="deep")
    await queue.put_schedule("nightly", "0 3 * * *", {"type": "rare"})
    await queue.run_schedule("nightly")
    await queue.pause("rare")
    database = await asyncpg.connect(url)
    began = time.perf_counter()
    # The rare ones are the oldest: whoever looks for them goes through all the others, or knows better.
    await load(database, DEAD, 10**9, FAILED)
    await load(database, finished, 2 * 10**9, FINISHED)
    await load(database, queued, 10**12, QUEUED)
    for table in ("ready", "done", "parked", "job"):
        await database.execute(f"ANALYZE penstock.{table}", timeout=600)
    print(
        f"{queued:,} queued, {finished:,} finished and {DEAD:,} dead jobs loaded in {time.perf_counter() - began:.0f} s"
    )
    dead = await database.fetchval("SELECT id FROM penstock.parked LIMIT 1")
    await database.close()

    access = Access(store)
    _, secret = await access.create("default", "bench", ["admin"], actor="bench")
    app = create_app(Service(queue, access))
    headers = {"Authorization": f"Bearer {secret}"}
    found: dict[str, float] = {}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://bench", headers=headers, timeout=300
    ) as api:
        for screen, calls in SCREENS.items():
            times = []
            for _ in range(rounds):
                slowest = 0.0
                for call in calls:
                    path = call.format(dead=dead, queued=rare.id)
                    at = time.perf_counter()
                    answer = await api.get(path)
                    slowest = max(slowest, time.perf_counter() - at)
                    assert answer.status_code == 200, (path, answer.text)
                times.append(1000 * slowest)
            found[screen] = round(statistics.median(times), 1)
            print(
                f"{screen:24} {found[screen]:8.1f} ms  {'' if found[screen] <= GATE_MS else 'over the gate'}"
            )
    await store.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queued", type=int, default=1_000_000)
    parser.add_argument("--finished", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with fresh_server() as url:
        found = asyncio.run(measure(url, given.queued, given.finished, given.rounds))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({**vars(given), "slowest_call_ms": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
