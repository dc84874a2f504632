"""Jobs that went on: a run makes them anew, and leaves all others of their day where they are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.spark
duckdb = pytest.importorskip("duckdb")
pytest.importorskip("pyspark")

from penstock.lake import making, parts, pipeline  # noqa: E402
from penstock.lake.leading import Alone  # noqa: E402
from penstock.lake.manifest import Lake, tables  # noqa: E402
from penstock.lake.pipeline import Run  # noqa: E402
from penstock.lake.recipes import Recipe, recipes  # noqa: E402
from penstock.lake.tables import EVENTS, JOBS, ddl  # noqa: E402

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DAY = "2026-01-01"
Row = dict[str, Any]


def only_jobs() -> tuple[Recipe, ...]:
    return tuple(recipe for recipe in recipes() if recipe.table == "jobs")


def job_id(number: int) -> str:
    return f"019b7960-0000-7000-8000-{number:012d}"


class Told:
    """A lake of jobs that are told to it in batches."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark, self.lake = spark, Lake(folder / "lake")
        self.xid = 0

    def run(
        self,
        *,
        came: Sequence[int] = (),
        next_day: Sequence[int] = (),
        ended: Sequence[int] = (),
        later: timedelta = timedelta(),
        anew: date | None = None,
    ) -> None:
        """These jobs came in, these a day after, and of these an attempt ended; a day is made anew."""
        run = self._run()
        if anew is not None:
            run.forget(anew, anew)
        rows = [self._came(n) for n in came] + [self._came(n, NOON + timedelta(days=1)) for n in next_day]
        rows += [self._ended(n, NOON + later) for n in ended]
        run.take_in(
            self.spark.createDataFrame(rows, ddl(EVENTS)), {"xid": run.manifest.batch + 1, "floor": 0}, NOON
        )
        run.make()

    def rebuild(self) -> None:
        run = self._run()
        run.forget(None, None)
        run.make()

    def folders(self) -> tuple[str, ...]:
        return tuple(self.lake.manifest().tables["jobs"][DAY])

    def jobs(self) -> list[tuple[Any, ...]]:
        return sorted(
            duckdb.read_parquet(tables(self.lake.place)["jobs"]).project(", ".join(JOBS)).fetchall()
        )

    def attempts(self) -> dict[int, tuple[int, str]]:
        read = duckdb.read_parquet(tables(self.lake.place)["jobs"]).project("job_id, attempts, status")
        rows = read.fetchall()
        assert len({row[0] for row in rows}) == len(rows), "a job has one row"
        return {int(job_id[-12:]): (attempts, status) for job_id, attempts, status in rows}

    def _run(self) -> Run:
        run = Run(self.spark, self.lake, Alone(), lambda step: None)
        run.begin({"feed": "test", "system": "none"}, lambda: {"xid": 0, "floor": 0})
        return run

    def _came(self, number: int, at: datetime = NOON) -> Row:
        return self._event(number, "job", at) | {"created_at": at, "scheduled_at": at, "priority": 0}

    def _ended(self, number: int, at: datetime) -> Row:
        times = {"ready_at": NOON, "started_at": at, "ended_at": at + timedelta(seconds=1)}
        event = self._event(number, "attempt", at + timedelta(seconds=1))
        return event | times | {"attempt": 1, "outcome": "succeeded", "status": "succeeded"}

    def _event(self, number: int, kind: str, at: datetime) -> Row:
        self.xid += 1
        known = {
            "tenant": "default", "xid": self.xid, "seq": 0, "kind": kind, "occurred_at": at, "job_id": job_id(number),
            "queue": "mail", "type": "send", "created_at": NOON, "day": str(at.date()),
        }  # fmt: skip
        return dict.fromkeys(EVENTS) | known


@pytest.fixture(params=["in one place", "on many"])
def told(request: Any, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    monkeypatch.setattr(pipeline, "recipes", only_jobs)
    if request.param == "on many":
        monkeypatch.setattr(parts, "MOST_BYTES_IN_ONE_PLACE", -1)
    return Told(spark, tmp_path)


ACTIVE, DONE = (0, "active"), (1, "succeeded")


def test_only_the_folders_of_jobs_that_went_on_are_written_again(told: Told) -> None:
    told.run(came=range(1, 5))
    (first,) = told.folders()
    told.run(came=range(5, 9), ended=[6])
    assert told.folders()[0] == first, "none of its jobs went on"
    _, second = told.folders()
    told.run(came=[9], ended=[2, 4])
    assert told.folders()[0] == second
    assert first not in told.folders()
    assert told.attempts() == {n: DONE if n in (2, 4, 6) else ACTIVE for n in range(1, 10)}
    told.run(ended=[1, 8, 9])
    assert len(told.folders()) == 1
    assert told.attempts() == {n: DONE if n in (1, 2, 4, 6, 8, 9) else ACTIVE for n in range(1, 10)}
    by_and_by = told.jobs()
    told.rebuild()
    assert told.jobs() == by_and_by


def test_a_job_that_went_on_another_day_is_written_again_on_its_own(told: Told) -> None:
    told.run(came=range(1, 4))
    told.run(came=range(4, 6))
    _, second = told.folders()
    told.run(ended=[1, 3], later=timedelta(days=2))
    assert told.folders()[0] == second
    assert told.attempts() == {1: DONE, 2: ACTIVE, 3: DONE, 4: ACTIVE, 5: ACTIVE}
    assert list(told.lake.manifest().tables["jobs"]) == [DAY]


def test_events_that_are_new_to_one_day_and_told_to_another_make_no_job_twice(told: Told) -> None:
    """In one part of bronze are events of jobs of several days; what is made anew for one is not for the others."""
    a_day = timedelta(days=1)
    told.run(came=[1, 2])
    told.run(next_day=[11], ended=[1], later=a_day)
    told.run(ended=[2], later=a_day + timedelta(hours=1), anew=NOON.date())
    assert told.attempts() == {1: DONE, 2: DONE, 11: ACTIVE}


def test_nor_do_those_of_a_day_that_was_put_together(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "MOST_FOLDERS", 2)
    a_day = timedelta(days=1)
    told.run(came=[1, 2])
    told.run(next_day=[11], ended=[1], later=a_day)
    told.run(next_day=[12])
    told.run(next_day=[13])
    told.run(ended=[2], later=a_day + timedelta(hours=1))
    assert told.attempts() == {1: DONE, 2: DONE, 11: ACTIVE, 12: ACTIVE, 13: ACTIVE}


def test_jobs_of_a_day_that_came_in_many_batches_are_made_into_one_folder(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "MOST_FOLDERS", 2)
    told.run(came=[1])
    told.run(came=[2])
    assert len(told.folders()) == 2
    told.run(came=[3], ended=[2])
    (whole,) = told.folders()
    assert told.attempts() == {1: ACTIVE, 2: DONE, 3: ACTIVE}
    told.run(came=[4])
    assert told.folders()[0] == whole, "and then it goes on"
