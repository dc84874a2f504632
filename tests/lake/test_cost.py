"""What a run reads: the days that changed, however long the history is. And in how many steps it makes what of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

pytestmark = pytest.mark.spark
pytest.importorskip("pyspark")

from penstock.lake import demo, parts, pipeline  # noqa: E402
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


class Spent(Struct):
    """What Spark has done so far, or from one moment to another."""

    jobs: int
    stages: int
    rows: int
    """Read from files."""
    compiled: int
    """How often it has compiled code for a query."""

    def since(self, before: Spent) -> Spent:
        return Spent(
            self.jobs - before.jobs,
            self.stages - before.stages,
            self.rows - before.rows,
            self.compiled - before.compiled,
        )


def spent(spark: Any) -> Spent:
    sc = spark.sparkContext
    sc._jsc.sc().listenerBus().waitUntilEmpty()
    store, nothing = sc._jsc.sc().statusStore(), sc._jvm.java.util.ArrayList()
    stages = store.stageList(None, False, False, sc._gateway.new_array(sc._jvm.double, 0), nothing)
    every = [stages.apply(n) for n in range(stages.size())]
    run = [stage for stage in every if stage.status().toString() != "SKIPPED"]
    compiled = sc._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME().getCount()
    return Spent(
        store.jobsList(None).size(), len(run), sum(stage.inputRecords() for stage in every), compiled
    )


def taken_in(spark: Any, lake: Lake, jobs: int, end: datetime) -> tuple[int, Spent]:
    """Take in a day's jobs and make what there is to make; how many events there were, and what making took."""
    run = Run(spark, lake, Alone(), lambda step: None)
    run.begin({"feed": "test", "system": "none"}, lambda: {"xid": 0, "floor": 0})
    events = spark.createDataFrame(
        [row for batch in demo.events(jobs, 1, run.manifest.batch + 1, end) for row in batch.to_pylist()],
        ddl(EVENTS),
    )
    run.take_in(events, {"xid": run.manifest.batch, "floor": 0}, END)
    before = spent(spark)
    run.make()
    return run.report.events, spent(spark).since(before)


@pytest.mark.long
def test_a_small_run_is_one_job_of_one_stage_for_each_table(spark: Any, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    taken_in(spark, lake, 400, END - timedelta(days=1))
    _, second = taken_in(spark, lake, 400, END)
    more = 1  # whether any job has a parent of another day
    assert (second.jobs, second.stages) == (len(recipes()) + more, len(recipes()) + more)


@pytest.mark.long
def test_a_run_after_another_compiles_nothing(spark: Any, tmp_path: Path) -> None:
    """The code of its queries is to the letter that of the last run's."""
    lake = Lake(tmp_path / "lake")
    both = [one for one in (spark, parts._single(spark)) if one is not None]
    for one in both:
        one.conf.set("spark.sql.codegen.wholeStage", "true")
    try:
        for _ in range(2):
            taken_in(spark, lake, 400, END)
        _, third = taken_in(spark, lake, 400, END)
    finally:
        for one in both:
            one.conf.set("spark.sql.codegen.wholeStage", "false")
    assert third.jobs > 10
    assert third.compiled == 0


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
    assert long.rows - 2 * short.rows < before / 4
