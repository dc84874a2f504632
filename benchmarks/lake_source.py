"""What the data source reads and writes per second, beside the bare drivers under it.

    python -m benchmarks.lake_source [--url URL] [--jobs 1000000] [--rounds 3] [--jdbc JAR] [--json FILE]

Without a URL it runs on an embedded server in a temporary folder, fsync on. Spark and PostgreSQL share the machine, as do
the bare loops: ADBC that runs the source's statements and throws away what comes, in as many processes; Spark's JDBC reader,
if its driver is at hand; COPY of the very rows that an enqueue leaves (in `job`, `ready`, and with keys `request`), made
beforehand, on as many connections. Compare figures of one run with each other.
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
from penstock.lake.source.queries import Span, statements, union
from penstock.lake.tables import SOURCE
from penstock.queue import new_id
from penstock.stores.postgres.migrate import migrate

LANES = 2
SLICE = 50_000
READ_GATE = 800_000
JDBC_GATE = 0.7
WRITE_GATE = 0.6
START = "start of any write"
"""What Spark takes for a single row: planning, and a process of Python for each step. A large write has it once, too."""

_COLUMNS = {
    "job": "tenant, id, queue, type, payload, priority, options, created_at, scheduled_at",
    "ready": "tenant, id, queue, priority, run_at, scheduled_at",
    "request": "tenant, key, job_id, fingerprint, until",
}


def empty(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for table in ("job", "attempt", "ready", "request", "tally", "lane", "queue"):
            connection.execute(f"TRUNCATE penstock.{table}")
        connection.execute("CHECKPOINT")


def lines(first: int, number: int, *, keyed: bool) -> dict[str, bytes]:
    """Rows as COPY takes them, for the tables that an enqueue writes: the very rows that it leaves there."""
    texts: dict[str, io.StringIO] = {table: io.StringIO() for table in _COLUMNS}
    now = "2026-01-01 00:00:00+00"
    for n in range(first, first + number):
        id, key = new_id(), f"row:{hashlib.sha256(str(n).encode()).hexdigest()}"  # as keys are: in no order
        options = f'{{"idempotency_key":"{key}"}}' if keyed else "\\N"
        payload = f'{{"n":{n},"to":"ada@example.com"}}'
        texts["job"].write(f"default\t{id}\tbulk\tt\t{payload}\t0\t{options}\t{now}\t{now}\n")
        texts["ready"].write(f"default\t{id}\tbulk\t0\t{now}\t{now}\n")
        texts["request"].write(f"default\t{key}\t{id}\t{key[4:]}\t{now}\n")
    return {table: text.getvalue().encode() for table, text in texts.items()}


def copied(url: str, jobs: int, *, keyed: bool) -> float:
    """Rows per second of bare COPY, a transaction per slice, on as many connections as Spark has tasks."""
    parts = [lines(first, min(SLICE, jobs - first), keyed=keyed) for first in range(0, jobs, SLICE)]
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


def lived(url: str) -> None:
    """Every job gets an attempt, as history has it: half of what is read is then joined with the other half."""
    with psycopg.connect(url, autocommit=True) as connection:
        for (xid,) in connection.execute("SELECT DISTINCT xid FROM penstock.job").fetchall():
            connection.execute(
                "INSERT INTO penstock.attempt (tenant, job_id, number, outcome, status, worker, token, started_at, ended_at, run_at) "
                "SELECT tenant, id, 1, 'succeeded', 'succeeded', 'w1', '', scheduled_at, scheduled_at + interval '1 second', "
                "scheduled_at FROM penstock.job WHERE xid = %s",
                [xid],
            )
        connection.execute("VACUUM ANALYZE penstock.job")
        connection.execute("VACUUM ANALYZE penstock.attempt")


def read(spark: Any, url: str, rows: int) -> float:
    found = spark.read.format("penstock").options(url=url, partitions=str(LANES)).load("events")
    return rows / seconds(lambda: found.write.format("noop").mode("overwrite").save())


def by_jdbc(spark: Any, url: str, rows: int) -> float:
    """The same rows by Spark's own reader, from the same slices; the day, which costs the server dear, is made in Spark."""
    from pyspark.sql import functions as f

    ask = asked({}, [column for column in SOURCE["events"] if column != "day"])
    parts = psycopg.conninfo.conninfo_to_dict(url)
    edges = [(part.low, part.high) for part in open_reader(url).slices(asked({}), LANES)]
    where = [f"xid >= {low or 0}" + ("" if high is None else f" AND xid < {high}") for low, high in edges]
    found = spark.read.jdbc(
        f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}",
        f"({union(ask, Span())}) AS e",
        predicates=where,
        properties={
            "user": str(parts["user"]),
            "password": str(parts.get("password", "")),
            "driver": "org.postgresql.Driver",
            "fetchsize": "10000",
        },
    ).withColumn("day", f.date_format("occurred_at", "yyyy-MM-dd"))
    return rows / seconds(lambda: found.write.format("noop").mode("overwrite").save())


def drawn(url: str, rows: int) -> float:
    """Rows per second of ADBC alone, in as many processes."""
    ask = asked({})
    parts = open_reader(url).slices(ask, LANES)
    with ProcessPoolExecutor(LANES, mp_context=get_context("spawn")) as lanes:
        list(lanes.map(pull, [url] * LANES, [ask] * LANES, [None] * LANES))  # started, and all imported
        return rows / seconds(lambda: list(lanes.map(pull, [url] * len(parts), [ask] * len(parts), parts)))


def pull(url: str, ask: Any, part: Any) -> int:
    if part is None:
        import adbc_driver_postgresql.dbapi  # noqa: F401
        import pyarrow  # noqa: F401

        return 0
    import adbc_driver_postgresql.dbapi as adbc

    found = 0
    with adbc.connect(url) as connection, connection.cursor() as cursor:
        for statement in statements(ask, part):
            cursor.execute(statement.sql)
            found += sum(batch.num_rows for batch in cursor.fetch_record_batch())
    return found


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def measure(url: str, jobs: int, rounds: int, jar: Path | None) -> dict[str, float]:
    asyncio.run(migrate(url))
    spark = session(f"local[{LANES}]", app_name="benchmark", **({"spark.jars": str(jar)} if jar else {}))
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
        figures.setdefault(START, []).append(1 / written(spark, url, 1, keyed=True))
        print(f"{START:>24}: {figures[START][-1]:>11.2f} s")
        lived(url)
        note("bare ADBC read", drawn(url, 2 * jobs))
        for _ in range(2):  # Spark compiles as it goes: the first of a kind pays for the others
            if jar:
                note("read by JDBC", by_jdbc(spark, url, 2 * jobs))
            note("read", read(spark, url, 2 * jobs))
    spark.stop()
    return {name: statistics.median(found) for name, found in figures.items()}


def gates(figures: dict[str, float], jobs: int) -> list[str]:
    keyed = figures["bulk enqueue with keys"] / figures["bare COPY with keys"]
    bare = figures["bulk enqueue without keys"] / figures["bare COPY without keys"]
    beyond = [
        jobs
        / max(1e-9, jobs / figures[f"bulk enqueue {kind}"] - figures[START])
        / figures[f"bare COPY {kind}"]
        for kind in ("with keys", "without keys")
    ]
    jdbc = figures.get("read by JDBC")
    beside = (
        "not measured: --jdbc names the driver's jar" if jdbc is None else f"{figures['read'] / jdbc:.2f}"
    )
    return [
        f"bulk enqueue, times bare COPY into the same tables ≥ {WRITE_GATE}: {keyed:.2f} with keys, {bare:.2f} without "
        f"(without the start of a write, {figures[START]:.1f} s: {beyond[0]:.2f} and {beyond[1]:.2f})",
        f"read, times Spark's JDBC reader ≥ {JDBC_GATE}: {beside}; or rows/s ≥ {READ_GATE:,}: {figures['read']:,.0f} "
        f"({figures['read'] / figures['bare ADBC read']:.2f} times bare ADBC)",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--jdbc", type=Path, help="the jar of PostgreSQL's JDBC driver, to compare with Spark's own reader"
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.url:
        figures = measure(given.url, given.jobs, given.rounds, given.jdbc)
    else:
        with fresh_server() as url:
            figures = measure(url, given.jobs, given.rounds, given.jdbc)
    print("", *gates(figures, given.jobs), sep="\n")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
