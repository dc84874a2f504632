"""Whatever comes, in whatever batches, and wherever runs are killed: the tables of silver are those of a rebuild.

Two tenants share ids, events come late, jobs are brought back, days are put together and made anew. A seed replays its run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytestmark = pytest.mark.spark
duckdb = pytest.importorskip("duckdb")
pytest.importorskip("pyspark")

from penstock.lake import making, parts, pipeline  # noqa: E402
from penstock.lake.leading import Alone  # noqa: E402
from penstock.lake.manifest import Lake, tables  # noqa: E402
from penstock.lake.pipeline import Run  # noqa: E402
from penstock.lake.recipes import recipes  # noqa: E402
from penstock.lake.tables import EVENTS, ddl  # noqa: E402

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KEPT = ("attempts", "jobs", "hourly")
"""Each way in which a table is carried over from run to run: by what is new, by whom it is about, and as a sum."""
Row = dict[str, Any]


class Killed(BaseException):
    """Ends a run as a kill would: nothing catches it."""


class Chance:
    """A lake to which anything may happen."""

    def __init__(self, spark: Any, folder: Path, chance: Random) -> None:
        self.spark, self.lake, self.chance = spark, Lake(folder / "lake"), chance
        self.now, self.xid = NOON, 0
        self.jobs: list[Row] = []

    def step(self) -> None:
        """Something happens, a run takes it in, or dies on the way and is followed by one that may die no more."""
        rows = [*self._come(), *self._go_on()]
        deadly = self.chance.choice((None, None, None, self.chance.randrange(1, 9)))
        try:
            self._run(rows, deadly, forgets=self.chance.random() < 0.3)
        except Killed:
            had = {xid for (xid,) in self._read("events", "xid")}
            self._run([row for row in rows if row["xid"] not in had], makes=self.chance.random() < 0.7)
        self.now += timedelta(hours=self.chance.choice((0, 1, 13, 30)))

    def finish(self) -> dict[str, list[str]]:
        self._run([])
        return self._tables()

    def rebuilt(self) -> dict[str, list[str]]:
        run = self._begun()
        run.forget(None, None)
        run.make()
        return self._tables()

    def _come(self) -> list[Row]:
        rows = []
        for _ in range(self.chance.choice((0, 0, 1, 2))):
            job_id = f"019b7960-0000-7000-8000-{len(self.jobs):012d}"
            for tenant in self.chance.choice((["a"], ["a"], ["b"], ["b"], ["a", "b"])):
                theirs = [job["job_id"] for job in self.jobs if job["tenant"] == tenant]
                parents = self.chance.sample(theirs, 1) if theirs and self.chance.random() < 0.5 else []
                job = {"tenant": tenant, "job_id": job_id, "created_at": self.now}
                self.jobs.append(job)
                rows.append(
                    self._event(
                        job, "job", self.now, scheduled_at=self.now, priority=0,
                        schedule=self.chance.choice((None, "s")),
                        options=json.dumps({"parents": parents}) if parents else None,
                    )
                )  # fmt: skip
        return rows

    def _go_on(self) -> list[Row]:
        rows = []
        for _ in range(self.chance.choice((0, 1, 2, 3)) if self.jobs else 0):
            job = self.chance.choice(self.jobs)
            late = timedelta(days=self.chance.choice((0, 0, 0, 1, 2)))
            at = max(job["created_at"], self.now - late) + timedelta(seconds=self.chance.randrange(1000))
            if self.chance.random() < 0.7:
                status = self.chance.choice(("succeeded", "dead", "queued"))
                did = status == "succeeded"
                rows.append(
                    self._event(
                        job, "attempt", at, attempt=1, ready_at=job["created_at"], started_at=at - timedelta(seconds=1),
                        ended_at=at, outcome="succeeded" if did else "failed", status=status,
                        error=None if did else f"E{self.chance.randrange(3)}: x",
                    )
                )  # fmt: skip
            else:
                status = self.chance.choice(("queued", "cancelled"))
                rows.append(self._event(job, "change", at, verb="redrive", status=status))
        return rows

    def _event(self, job: Row, kind: str, at: datetime, **more: Any) -> Row:
        self.xid += 1
        known = {"xid": self.xid, "seq": 0, "kind": kind, "occurred_at": at, "day": str(at.date())}
        return dict.fromkeys(EVENTS) | {"queue": "mail", "type": "send"} | job | known | more

    def _run(
        self, rows: list[Row], deadly: int | None = None, *, forgets: bool = False, makes: bool = True
    ) -> None:
        run = self._begun(deadly)
        if forgets and run.manifest.days:
            day = date.fromisoformat(self.chance.choice(run.manifest.days))
            run.forget(day, day)
        if rows:
            events = self.spark.createDataFrame(rows, ddl(EVENTS))
            run.take_in(events, {"xid": run.manifest.batch + 1, "floor": 0}, self.now)
        if makes:
            run.make()

    def _begun(self, deadly: int | None = None) -> Run:
        left = deadly

        def step(name: str) -> None:
            nonlocal left
            if left is not None and (left := left - 1) == 0:
                raise Killed(name)

        run = Run(self.spark, self.lake, Alone(), step)
        run.begin({"feed": "test", "system": "none"}, lambda: {"xid": 0, "floor": 0})
        return run

    def _tables(self) -> dict[str, list[str]]:
        return {table: sorted(map(repr, self._read(table, "*"))) for table in self.lake.manifest().tables}

    def _read(self, table: str, columns: str) -> list[tuple[Any, ...]]:
        files = tables(self.lake.place).get(table) if self.lake.find() else None
        if not files:
            return []
        rows: list[tuple[Any, ...]] = (
            duckdb.read_parquet(files, hive_partitioning=False).project(columns).fetchall()
        )
        return rows


@pytest.mark.parametrize(
    ("seed", "steps", "kept"),
    [
        (5, 11, ("jobs",)),  # one that once came to jobs with two rows
        *(pytest.param(seed, 30, KEPT, marks=pytest.mark.long) for seed in range(4)),
    ],
)
def test_run_by_run_comes_to_the_same_as_a_rebuild(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, steps: int, kept: Sequence[str]
) -> None:
    print(f"seed {seed}")
    chance = Random(seed)
    monkeypatch.setattr(
        pipeline, "recipes", lambda: tuple(recipe for recipe in recipes() if recipe.table in kept)
    )
    monkeypatch.setattr(making, "MOST_FOLDERS", 2)
    monkeypatch.setattr(pipeline, "DAYS_AT_ONCE", chance.choice((1, 2, 35)))
    if chance.random() < 0.5:
        monkeypatch.setattr(parts, "MOST_BYTES_IN_ONE_PLACE", -1)
    told = Chance(spark, tmp_path, chance)
    for _ in range(steps):
        told.step()
    found = told.finish()
    assert found == told.rebuilt()
    assert len(found["jobs"]) == len(told.jobs)
