"""What a run reads: the days that changed, however long the history is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.spark
pytest.importorskip("pyspark")

from penstock.lake import demo, pipeline  # noqa: E402
from penstock.lake.leading import Alone  # noqa: E402
from penstock.lake.manifest import Lake  # noqa: E402
from penstock.lake.pipeline import Run  # noqa: E402
from penstock.lake.recipes import Recipe, recipes  # noqa: E402
from penstock.lake.tables import EVENTS, ddl  # noqa: E402

END = datetime(2026, 11, 2, tzinfo=UTC)


def those_of_flows_and_queues() -> tuple[Recipe, ...]:
    """Each way from bronze to a table that is made as a whole, the dearest of them."""
    chosen = ("attempts", "jobs", "flow_jobs", "hourly", "queue_hours", "capacity", "flows")
    return tuple(recipe for recipe in recipes() if recipe.table in chosen)


def rows_read(spark: Any) -> int:
    """How many rows Spark has read from files so far."""
    sc = spark.sparkContext
    none = sc._gateway.new_array(sc._jvm.double, 0)
    stages = sc._jsc.sc().statusStore().stageList(None, False, False, none, sc._jvm.java.util.ArrayList())
    return sum(stages.apply(n).inputRecords() for n in range(stages.size()))


def taken_in(spark: Any, lake: Lake, jobs: int, end: datetime) -> tuple[int, int]:
    """Take in a day's jobs and make what there is to make; how many events there were, and how many rows that took."""
    run = Run(spark, lake, Alone(), lambda step: None)
    run.begin({"feed": "test", "system": "none"}, lambda: {"xid": 0, "floor": 0})
    events = spark.createDataFrame(
        [row for batch in demo.events(jobs, 1, run.manifest.batch + 1, end) for row in batch.to_pylist()],
        ddl(EVENTS),
    )
    run.take_in(events, {"xid": run.manifest.batch, "floor": 0}, END)
    before = rows_read(spark)
    run.make()
    return run.report.events, rows_read(spark) - before


@pytest.mark.long
def test_a_run_reads_what_has_changed_and_not_what_was_there(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "recipes", those_of_flows_and_queues)
    lake = Lake(tmp_path / "lake")
    taken_in(spark, lake, 400, END - timedelta(days=1))
    _, short = taken_in(spark, lake, 400, END)
    before, _ = taken_in(spark, lake, 4_000, END - timedelta(days=2))
    _, long = taken_in(spark, lake, 400, END)
    assert len(lake.manifest().tables["jobs"]) == 3
    # The day has grown twice, so some more; had anything that is kept by job been read, it would be some thousands.
    assert before > 8_000
    assert long - 2 * short < before / 4
