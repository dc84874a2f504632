"""The pipeline on several logs, with a real Spark: the lake is that of PostgreSQL, whatever happens on the way."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lake.happening import (
    ALWAYS,
    FIRST,
    LOGS,
    SECOND,
    THIRD,
    Story,
    clock_of_folders,
    compact,
    in_logs,
    in_postgres,
    rows,
    told,
)
from penstock.lake.manifest import Lake
from penstock.lake.source.asking import open_reader
from penstock.testing import FakeClock

pytestmark = pytest.mark.spark


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return clock_of_folders(monkeypatch)


@pytest.fixture
def story(tmp_path: Path, clock: FakeClock) -> Story:
    return in_logs(tmp_path, clock)


class Killed(BaseException):
    """Ends a run as a kill would: nothing catches it."""


def test_the_lake_of_several_logs_is_that_of_postgres_however_often_it_was_killed(
    spark: Any, story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.lake import pipeline
    from penstock.lake.pipeline import run_once
    from penstock.lake.recipes import recipes
    from penstock.lake.reconcile import mismatches

    some = tuple(one for one in recipes() if one.table in ("attempts", "jobs", "hourly"))
    monkeypatch.setattr(pipeline, "recipes", lambda: some)
    ours, theirs = Lake(tmp_path / "ours"), Lake(tmp_path / "theirs")
    days = ((1, FIRST), (2, THIRD, SECOND), (3, SECOND, FIRST))

    def run(lake: Lake = ours, url: str = story.url, **options: Any) -> Any:
        return run_once(spark, url, lake, as_of=ALWAYS, **options)

    def run_until(deadly: str) -> None:
        def die(step: str) -> None:
            if step == deadly:
                raise Killed

        with pytest.raises(Killed):
            run(most_rows=20, on_step=die)

    story.happen(*days[0])  # the others are empty
    assert run().events > 15
    story.happen(*days[1])
    run_until("bronze written")
    compact(story, 1)
    run_until("bronze committed")
    story.happen(*days[2])
    report = run(most_rows=40)
    assert report.batches > 1
    assert report.checked == ["2026-01-02", "2026-01-03"]
    assert report.mismatches == []
    assert report.published
    assert run().events == 0

    other = in_postgres(0)
    for day in days:
        other.happen(*day)
    assert run(theirs, other.url).mismatches == []
    assert rows(ours) == rows(theirs)
    assert [(compact(story, log).exported or 0) > 0 for log in range(LOGS)] == [True] * LOGS  # as promised
    # A day of which one log has more than the lake is found out.
    events = spark.read.parquet(
        *[
            ours.storage.path(file)
            for folder in ours.manifest().folders("events", ["2026-01-02"])
            for file in ours.storage.files(folder)
        ]
    )
    lacking = events.where(f"NOT (kind = 'attempt' AND queue = '{THIRD}')")
    [found] = mismatches(lacking, story.url, ours.manifest().offset, ["2026-01-02"])
    assert (found.kind, found.in_store - found.in_lake) == ("attempt", 6)
    doubled = events.unionAll(events.where(f"kind = 'job' AND queue = '{SECOND}'"))
    [found] = mismatches(doubled, story.url, ours.manifest().offset, ["2026-01-02"])
    assert (found.kind, found.twice) == ("job", 5)


def test_spark_follows_several_logs_as_a_stream(spark: Any, story: Story, tmp_path: Path) -> None:
    story.happen(1, FIRST, SECOND)
    had: list[tuple[Any, ...]] = []

    def follow() -> None:
        stream = spark.readStream.format("penstock").options(url=story.url, maxRowsPerBatch="10").load()
        writing = stream.writeStream.foreachBatch(
            lambda frame, _: had.extend(map(tuple, frame.select("xid", "seq", "job_id").collect()))
        )
        writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()

    follow()
    story.happen(2, THIRD)
    follow()
    everything = [(row["xid"], row["seq"], row["job_id"]) for row in told(open_reader(story.url))]
    assert Counter(had) == Counter(everything)
    read_at_once = spark.read.format("penstock").options(url=story.url, pushdown="true").load("events")
    assert read_at_once.where("kind = 'job'").count() == sum(
        row["kind"] == "job" for row in told(open_reader(story.url))
    )
