"""How far back a run looks: what it reads does not grow with the age of the lake. And what an older version left out."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

pytestmark = pytest.mark.spark
pytest.importorskip("pyspark")

from penstock.lake import recipes as cookbook  # noqa: E402
from penstock.lake import transforms  # noqa: E402
from penstock.lake.leading import Alone  # noqa: E402
from penstock.lake.manifest import WHOLE, Lake, Manifest, Parts, new_manifest  # noqa: E402
from penstock.lake.pipeline import Run  # noqa: E402
from penstock.lake.recipes import By, recipes  # noqa: E402
from penstock.lake.tables import ATTEMPTS, EVENTS, ddl  # noqa: E402

NOW = datetime(2026, 3, 2, 12, 30, tzinfo=UTC)


def test_a_run_of_an_old_lake_reads_no_more_than_that_of_a_young_one(spark: Any) -> None:
    read = [
        {
            recipe.table: sum(map(len, recipe.takes(lake, [], NOW, lake).values()))
            for recipe in recipes()
            if recipe.by is By.WHOLE
        }
        for lake in (aged(400), aged(4_000))
    ]
    assert read[0] == read[1]
    assert read[0]["failures"] == cookbook.REMEMBERED_DAYS + 1, (
        "one folder a day, however many runs there were"
    )


def aged(count: int) -> Manifest:
    days = [str(NOW.date() - timedelta(days=back)) for back in range(count)]
    by_day = {day: (f"folder/{day}",) for day in days}
    whole = {recipe.table for recipe in recipes() if recipe.by is By.WHOLE}
    every = {"events", *(recipe.table for recipe in recipes())}
    tables: dict[str, Parts] = {
        table: {WHOLE: ("folder/all",)} if table in whole else by_day for table in every
    }
    return Manifest(lake="a", source={}, offset={}, counts={day: {} for day in days}, tables=tables)


def test_all_days_of_a_lake_are_made_anew_whose_figures_lack_a_column(spark: Any, tmp_path: Path) -> None:
    """Until figures had `held` and `ended`, failures were not kept by the day: by that such a lake is known."""
    lake, day = Lake(tmp_path / "lake"), "2026-03-01"
    had = (
        "attempts", "jobs", "fires", "flow_jobs", "failure_hours", "hourly", "queue_hours", "daily", "usage", "failures",
        "capacity", "capacity_plan", "slo", "anomalies", "flows", "schedules",
    )  # fmt: skip
    begun = new_manifest({"feed": "f", "system": "none"}, {"xid": 1, "floor": 0})
    tables: dict[str, Parts] = {table: {} for table in ("events", *had)}
    lake.commit(replace(begun, tables=tables, counts={day: {"job": 1}}, told={day: 1}, data_as_of=NOW))
    run = Run(spark, lake, Alone(), lambda step: None)
    run.begin(begun.source, lambda: begun.offset)
    assert (run.manifest.stale, run.manifest.told) == ((day,), {})


def test_failures_of_a_day_are_one_row_however_many_runs_have_told_of_it(spark: Any) -> None:
    def failed(number: int, minutes: int, queue: str = "q") -> dict[str, Any]:
        at = NOW.replace(hour=1) + timedelta(minutes=minutes)
        return {
            **dict.fromkeys(ATTEMPTS), "tenant": "t", "job_id": f"j{number}", "queue": queue, "type": "a", "ended_at": at,
            "outcome": "failed", "error": f"ValueError: row {number}",
        }  # fmt: skip

    def hours(rows: list[dict[str, Any]]) -> Any:
        return transforms.compute(
            "failure_hours", {"attempts": spark.createDataFrame(rows, ddl(ATTEMPTS))}, as_of=NOW
        )

    first = [failed(number, number) for number in range(7)]
    then = [failed(1, 40, "other"), failed(8, 50), failed(9, 12)]
    apart, together = (
        transforms.compute("failure_days", {"failure_hours": told}, as_of=NOW).collect()
        for told in (hours(first).unionByName(hours(then)), hours([*first, *then]))
    )
    assert apart == together
    [day] = together
    assert (day.day, day["count"], day.queues) == (date(2026, 3, 2), 10, ["other", "q"])
    assert [(one.hour.hour, one["count"]) for one in day.hours] == [(1, 8), (2, 2)]
    assert [one.job_id for one in day.sample_jobs] == ["j8", "j1", "j9", "j6", "j5"]


def test_schedules_are_told_of_ninety_days_by_what_was_usual_before(spark: Any) -> None:
    midnight = NOW.replace(hour=0, minute=0)
    fires = [
        {
            **dict.fromkeys(EVENTS), "tenant": "t", "xid": back, "seq": 0, "kind": "job", "job_id": f"j{back}", "schedule": "s",
            "run_at": midnight - timedelta(days=back), "created_at": midnight - timedelta(days=back),
        }
        for back in range(100)
        if back != 90
    ]  # fmt: skip
    days = cookbook.schedules(spark.createDataFrame(fires, ddl(EVENTS)), as_of=NOW).collect()
    assert min(row.day for row in days) == NOW.date() - timedelta(days=89)
    assert len(days) == 90
