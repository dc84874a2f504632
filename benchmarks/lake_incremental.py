"""What a run costs that has 100,000 new events to take in, beside one that has none, in a lake with a month of history.

    python -m benchmarks.lake_incremental [--history 5000000] [--events 100000] [--rounds 3] [--cores 2]

The new events are of today: jobs that came into an embedded PostgreSQL, were leased and settled there. Runs are of one warm
session. Wanted: at most five seconds more than a run with nothing to do, and no more of it for a longer history, which is
also told by how many rows Spark reads. Results go to benchmarks/results/lake_incremental.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.lake_gold import spark_session
from benchmarks.lake_history import add_history, count
from benchmarks.server import fresh_server

BATCH = 1000
MOST_SECONDS = 5.0
RESULTS = Path(__file__).parent / "results" / "lake_incremental.json"


async def work(url: str, jobs: int) -> None:
    """Jobs come in, run and succeed: two events each."""
    from penstock import Queue
    from penstock.stores.postgres.store import PostgresStore
    from penstock.stores.wakeups.polling import NoWakeups

    async with Queue(PostgresStore(url, wakeups=NoWakeups()), actor="benchmark") as queue:
        for _ in range(0, jobs, BATCH):
            await queue.enqueue_many([
                queue.new("mail.send", {"n": n}, queue=f"queue-{n % 10}") for n in range(BATCH)
            ])  # fmt: skip
            for name in range(10):
                held = await queue.lease(f"queue-{name}", worker="benchmark", limit=BATCH)
                await queue.settle_many([queue.acked(one) for one in held])


def rows_read(spark: Any) -> int:
    """How many rows this session has read from files so far."""
    sc = spark.sparkContext
    none = sc._gateway.new_array(sc._jvm.double, 0)
    stages = sc._jsc.sc().statusStore().stageList(None, False, False, none, sc._jvm.java.util.ArrayList())
    return sum(stages.apply(n).inputRecords() for n in range(stages.size()))


def measure(spark: Any, url: str, place: Path, asked: argparse.Namespace) -> dict[str, float]:
    from penstock.lake.manifest import Lake
    from penstock.lake.pipeline import run_once

    def run(title: str) -> tuple[float, int]:
        before, began = rows_read(spark), time.perf_counter()
        report = run_once(spark, url, lake)
        seconds, rows = time.perf_counter() - began, rows_read(spark) - before
        print(
            f"{title}: {seconds:.2f} s, {report.events:,} events, {len(report.days)} days, {rows:,} rows read"
        )
        return seconds, rows

    lake = Lake(place)
    run("the first, of an empty store")
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    manifest = add_history(lake, lake.manifest(), asked.history, asked.days, midnight, asked.cores)
    print(f"a history of {count(manifest):,} events")
    run("the history")
    found = []
    for round_ in range(asked.rounds + 1):
        asyncio.run(work(url, asked.events // 2))
        new, rows = run("warming up" if round_ == 0 else f"run {round_}")
        nothing, _ = run("nothing new")
        found.append((new, nothing, rows))
    new, nothing = (statistics.median(one[place] for one in found[1:]) for place in (0, 1))
    return {
        "history": count(manifest),
        "seconds": new,
        "seconds_of_nothing": nothing,
        "more_seconds": new - nothing,
        "times_nothing": new / nothing,
        "rows_read": found[-1][2],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--history", type=int, default=5_000_000, help="how many events there were before")
    parser.add_argument("--days", type=int, default=30, help="on how many days")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    asked = parser.parse_args()
    from penstock.stores.postgres.migrate import migrate

    with fresh_server() as url, tempfile.TemporaryDirectory() as folder, spark_session(asked.cores) as spark:
        asyncio.run(migrate(url))
        figures = measure(spark, url, Path(folder) / "lake", asked)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")
    print(
        f"{asked.events:,} events: {figures['more_seconds']:.1f} s beyond a run with nothing to do "
        f"(wanted: at most {MOST_SECONDS:g}), {figures['times_nothing']:.0f} times as long"
    )
    return 0 if figures["more_seconds"] <= MOST_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
