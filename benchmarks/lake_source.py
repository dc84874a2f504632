"""What the data source reads and writes per second, beside the bare drivers under it.

    python -m benchmarks.lake_source [--url URL] [--jobs 1000000] [--rounds 3] [--json FILE]

Without a URL it runs on an embedded server in a temporary folder, fsync on. Spark and PostgreSQL share the machine, as do
the bare loops: ADBC that reads what the source reads and throws it away, in as many processes; COPY into the tables that an
enqueue writes (`job`, `ready`, and with keys `request`), on as many connections. Compare figures of one run with each other.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import io
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.server import fresh_server
from penstock.lake.session import session
from penstock.lake.source.asking import asked, open_reader
from penstock.queue import new_id
from penstock.stores.postgres.migrate import migrate

LANES = 2
SLICE = 50_000
READ_GATE = 800_000
WRITE_GATE = 0.6

_COLUMNS = {
    "job": "tenant, id, queue, type, payload, priority, created_at, scheduled_at",
    "ready": "tenant, id, queue, priority, run_at, scheduled_at",
    "request": "tenant, key, job_id, fingerprint, until",
}


def empty(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for table in ("job", "ready", "request", "tally", "lane", "queue"):
            connection.execute(f"TRUNCATE penstock.{table}")
        connection.execute("CHECKPOINT")


def lines(first: int, number: int) -> dict[str, bytes]:
    """Rows as COPY takes them, for the tables that an enqueue writes."""
    texts: dict[str, io.StringIO] = {table: io.StringIO() for table in _COLUMNS}
    now = "2026-01-01 00:00:00+00"
    for n in range(first, first + number):
        id = new_id()
        texts["job"].write(f'default\t{id}\tbulk\tt\t{{"n":{n},"to":"ada@example.com"}}\t0\t{now}\t{now}\n')
        texts["ready"].write(f"default\t{id}\tbulk\t0\t{now}\t{now}\n")
        key = hashlib.sha256(str(n).encode()).hexdigest()  # as keys are: in no order
        texts["request"].write(f"default\trow:{key}\t{id}\t{key}\t{now}\n")
    return {table: text.getvalue().encode() for table, text in texts.items()}


def copied(url: str, jobs: int, *, keyed: bool) -> float:
    """Rows per second of bare COPY, a transaction per slice, on as many connections as Spark has tasks."""
    parts = [lines(first, min(SLICE, jobs - first)) for first in range(0, jobs, SLICE)]
    tables = list(_COLUMNS) if keyed else ["job", "ready"]

    def lane(number: int) -> None:
        with psycopg.connect(url) as connection:
            for part in parts[number::LANES]:
                for table in tables:
                    with connection.cursor().copy(
                        f"COPY penstock.{table} ({_COLUMNS[table]}) FROM STDIN"
                    ) as copy:
                        copy.write(part[table])
                connection.commit()

    def run() -> None:
        with ThreadPoolExecutor(LANES) as lanes:
            list(lanes.map(lane, range(LANES)))

    return jobs / seconds(run)


def written(spark: Any, url: str, jobs: int, *, keyed: bool) -> float:
    """Rows per second of a DataFrame that is enqueued."""
    rows = spark.range(0, jobs, 1, LANES).selectExpr(
        "id AS n",
        "'t' AS type",
        "'bulk' AS queue",
        "to_json(named_struct('n', id, 'to', 'ada@example.com')) AS payload",
    )
    if not keyed:
        rows = rows.drop("n")
    how = {"keyColumns": "n"} if keyed else {"allowDuplicates": "true"}
    return jobs / seconds(lambda: rows.write.format("penstock").options(url=url, **how).mode("append").save())


def read(spark: Any, url: str, jobs: int) -> float:
    found = spark.read.format("penstock").options(url=url, partitions=str(LANES)).load("events")
    return jobs / seconds(lambda: found.write.format("noop").mode("overwrite").save())


def drawn(url: str, jobs: int) -> float:
    """Rows per second of ADBC alone, in as many processes."""
    ask = asked({})
    parts = open_reader(url).slices(ask, LANES)
    with ProcessPoolExecutor(LANES, mp_context=get_context("spawn")) as lanes:
        list(lanes.map(pull, [url] * LANES, [ask] * LANES, [None] * LANES))  # started, and all imported
        return jobs / seconds(lambda: list(lanes.map(pull, [url] * len(parts), [ask] * len(parts), parts)))


def pull(url: str, ask: Any, part: Any) -> int:
    if part is None:
        import adbc_driver_postgresql.dbapi  # noqa: F401
        import pyarrow  # noqa: F401

        return 0
    return sum(batch.num_rows for batch in open_reader(url).read(ask, part))


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def measure(url: str, jobs: int, rounds: int) -> dict[str, float]:
    asyncio.run(migrate(url))
    spark = session(f"local[{LANES}]", app_name="benchmark")
    spark.sparkContext.setLogLevel("ERROR")
    figures: dict[str, list[float]] = {}

    def note(name: str, figure: float) -> None:
        figures.setdefault(name, []).append(figure)
        print(f"{name:>24}: {figure:>11,.0f} rows/s")

    written(spark, url, 1_000, keyed=True)  # Spark is slow at first, whatever it does
    read(spark, url, 1_000)
    for _ in range(rounds):
        for keyed in (True, False):
            kind = "with keys" if keyed else "without keys"
            empty(url)
            note(f"bare COPY {kind}", copied(url, jobs, keyed=keyed))
            empty(url)
            note(f"bulk enqueue {kind}", written(spark, url, jobs, keyed=keyed))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE penstock.job")
        note("bare ADBC read", drawn(url, jobs))
        note("read", read(spark, url, jobs))
    spark.stop()
    return {name: statistics.median(found) for name, found in figures.items()}


def gates(figures: dict[str, float]) -> list[str]:
    keyed = figures["bulk enqueue with keys"] / figures["bare COPY with keys"]
    bare = figures["bulk enqueue without keys"] / figures["bare COPY without keys"]
    return [
        f"bulk enqueue, times bare COPY into the same tables ≥ {WRITE_GATE}: {keyed:.2f} with keys, {bare:.2f} without",
        f"read, rows/s ≥ {READ_GATE:,}: {figures['read']:,.0f} ({figures['read'] / figures['bare ADBC read']:.2f} times bare ADBC)",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.url:
        figures = measure(given.url, given.jobs, given.rounds)
    else:
        with fresh_server() as url:
            figures = measure(url, given.jobs, given.rounds)
    print("", *gates(figures), sep="\n")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
