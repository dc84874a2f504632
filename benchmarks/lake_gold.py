"""Gold by the pipeline in a warm session, beside DuckDB's time for the same tables from the same files.

    python -m benchmarks.lake_gold [--events 5000000] [--days 30] [--runs 3] [--cores 2] [--folder FOLDER]

Spark makes what a run makes when every day is stale, files and their fsyncs included: silver, all that is kept by day, and
gold. DuckDB makes silver, figures and gold as tables in memory, by the queries that the tests hold Spark to; fetching them
is not counted. Spark's runs are of one session with 3 GB; the first, with a cold JVM, is shown apart. Wanted: at most eight
times DuckDB's time, and the same answers.

Above ten million events DuckDB's tables would not fit, and the question is another: whether it takes at most twelve times as
long as a tenth of them does, in the same session. Results go to benchmarks/results/lake_gold.json, by number of events.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from benchmarks.lake_history import add_history, count
from lake.oracle import Oracle, Rows

END = datetime(2026, 11, 2, tzinfo=UTC)
MOST_TIMES_DUCKDB = 8.0
MOST_TIMES_A_TENTH = 12.0
MOST_BESIDE = 10_000_000
RESULTS = Path(__file__).parent / "results" / "lake_gold.json"


class Timed(Oracle):
    """The tests' oracle, with the time that DuckDB itself takes for each answer."""

    def __init__(self, bronze: str, cores: int) -> None:
        began = time.perf_counter()
        super().__init__(f"read_parquet('{bronze}', hive_partitioning = false)", as_of=END, threads=cores)
        self.seconds = {"silver and figures": time.perf_counter() - began}
        self._name = ""

    def table(self, name: str) -> Rows:
        self._name = name
        return super().table(name)

    def _rows(self, query: str, **given: Any) -> Rows:
        began = time.perf_counter()
        made = f"CREATE OR REPLACE TEMP TABLE answer AS {query}"
        self.duckdb.execute(made, given) if given else self.duckdb.execute(made)
        self.seconds[self._name] = self.seconds.get(self._name, 0.0) + time.perf_counter() - began
        return super()._rows("SELECT * FROM answer")


def new_lake(place: Path, events: int, days: int, cores: int) -> Any:
    """A lake with so many events in bronze; one that is there already is taken as it is."""
    from penstock.lake.manifest import Lake, new_manifest

    lake = Lake(place)
    if lake.find() is None:
        began = time.perf_counter()
        manifest = lake.commit(new_manifest({"feed": "benchmark", "system": "none"}, {"xid": 1, "floor": 0}))
        manifest = add_history(lake, manifest, events, days, END, cores)
        print(f"made up {count(manifest):,} events in {time.perf_counter() - began:.0f} s")
    return lake


def by_spark(spark: Any, lake: Any, title: str) -> float:
    """Make everything anew; how long that took."""
    from penstock.lake.leading import Alone
    from penstock.lake.pipeline import Run

    ends: dict[str, float] = {}
    began = time.perf_counter()

    def note(step: str) -> None:
        if step.endswith(" written"):
            ends[step.removesuffix(" written")] = time.perf_counter() - began

    run = Run(spark, lake, Alone(), note)
    run.begin({}, dict)
    run.forget(None, None)
    run.make()
    seconds = time.perf_counter() - began
    lake.vacuum(timedelta(0), now=datetime.now(UTC) + timedelta(seconds=1))
    print(
        f"{title}: {seconds:.1f} s; each was there after "
        + ", ".join(f"{name} {end:.1f}" for name, end in ends.items())
    )
    return seconds


def by_duckdb(lake: Any, cores: int, title: str) -> tuple[float, Timed]:
    from penstock.lake.tables import GOLD

    oracle = Timed(lake.storage.path("bronze/events/*/*/*.parquet"), cores)
    for name in GOLD:
        oracle.table(name)
    print(
        f"{title}: {sum(oracle.seconds.values()):.1f} s; "
        + ", ".join(f"{name} {took:.1f}" for name, took in oracle.seconds.items())
    )
    return sum(oracle.seconds.values()), oracle


def compare(lake: Any, oracle: Timed) -> None:
    """Every table of gold, row by row; raises where the two differ."""
    import duckdb

    from lake.test_gold import KEYS, assert_same
    from penstock.lake.manifest import tables
    from penstock.lake.tables import GOLD

    with duckdb.connect() as reader:
        reader.execute("SET TimeZone = 'UTC'")
        files = tables(lake.place)
        for name in GOLD:
            found = reader.read_parquet(files[name], hive_partitioning=False)
            rows = [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]
            assert_same(rows, oracle.table(name), KEYS[name])


def beside_duckdb(spark: Any, place: Path, asked: argparse.Namespace) -> dict[str, float]:
    lake = new_lake(place / f"lake-{asked.events}", asked.events, asked.days, asked.cores)
    cold = by_spark(spark, lake, "Spark, cold")
    ours, theirs = [], []
    for run in range(1, asked.runs + 1):
        seconds, oracle = by_duckdb(lake, asked.cores, f"DuckDB, run {run}")
        theirs.append(seconds)
        ours.append(by_spark(spark, lake, f"Spark, run {run}"))
    compare(lake, oracle)
    print("the answers are the same")
    return {
        "spark_cold_seconds": cold,
        "spark_seconds": min(ours),
        "duckdb_seconds": min(theirs),
        "times_duckdb": min(ours) / min(theirs),
    }


def beside_a_tenth(spark: Any, place: Path, asked: argparse.Namespace) -> dict[str, float]:
    tenth = new_lake(place / f"lake-{asked.events // 10}", asked.events // 10, asked.days, asked.cores)
    lake = new_lake(place / f"lake-{asked.events}", asked.events, asked.days, asked.cores)
    by_spark(spark, tenth, "a tenth, cold")
    small = min(by_spark(spark, tenth, f"a tenth, run {run}") for run in range(1, asked.runs + 1))
    large = by_spark(spark, lake, "all of them")
    return {"tenth_seconds": small, "seconds": large, "times_a_tenth": large / small}


def keep(events: int, figures: dict[str, float]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps({**kept, str(events): figures}, indent=2) + "\n")


@contextmanager
def spark_session(cores: int) -> Any:
    from penstock.lake.session import session

    spark = session(f"local[{cores}]", app_name="benchmark")
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument(
        "--folder", type=Path, help="where lakes are, or are to be; a temporary one otherwise"
    )
    asked = parser.parse_args()
    measure: Callable[..., dict[str, float]]
    measure, what, most = (
        (beside_duckdb, "times_duckdb", MOST_TIMES_DUCKDB)
        if asked.events <= MOST_BESIDE
        else (beside_a_tenth, "times_a_tenth", MOST_TIMES_A_TENTH)
    )
    temporary = nullcontext(asked.folder) if asked.folder else tempfile.TemporaryDirectory()
    with temporary as folder, spark_session(asked.cores) as spark:
        figures = measure(spark, Path(folder), asked)
    keep(asked.events, figures)
    print(f"{what.replace('_', ' ')}: {figures[what]:.1f} (wanted: at most {most:g})")
    return 0 if figures[what] <= most else 1


if __name__ == "__main__":
    sys.exit(main())
