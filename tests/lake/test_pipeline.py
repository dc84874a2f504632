"""The pipeline on a real PostgreSQL and a real Spark: whatever happens on the way, the end is that of a rebuild."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from msgspec.structs import replace

from penstock import Queue
from penstock.insights import InsightAnswer, ask
from penstock.lake.manifest import Lake, LakeMoved, LakeOfAnother, Manifest, StoreAhead, StoreBehind
from penstock.lake.tables import GOLD, SILVER, ddl
from penstock.stores.postgres.store import PostgresStore
from penstock.stores.wakeups.polling import NoWakeups
from penstock.testing import FakeClock
from support.postgres import emptied, server_url

pytestmark = pytest.mark.spark
duckdb = pytest.importorskip("duckdb")
pytest.importorskip("pyspark")

from penstock.lake import pipeline  # noqa: E402
from penstock.lake.leading import LakeBusy, Leading  # noqa: E402
from penstock.lake.pipeline import LakeBroken, Report, run_once  # noqa: E402
from penstock.lake.recipes import SCHEMAS, By, Recipe, recipes  # noqa: E402

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ALWAYS = datetime(2026, 1, 9, 12, tzinfo=UTC)
"""As of when all runs of a test speak, so that their tables can be compared."""


def usage(attempts: Any) -> Any:
    """A table as quickly made as can be."""
    counted = attempts.groupBy("tenant", "queue", "type").agg({"run_ms": "sum", "attempt": "count"})
    return counted.selectExpr(
        "tenant", "date '2026-01-01' AS day", "queue", "type", "0L AS jobs", "`count(attempt)` AS attempts",
        "`sum(run_ms)` AS busy_ms",
    )  # fmt: skip


def some() -> tuple[Recipe, ...]:
    """Every way in which a table is made, in few enough tables to be quick."""
    chosen = [recipe for recipe in recipes() if recipe.table in ("attempts", "jobs")]
    return (*chosen, Recipe("gold", "usage", usage, By.WHOLE))


def more() -> tuple[Recipe, ...]:
    """Tables of each layer that are carried over from run to run, and one that is made from all days of another."""
    chosen = ("attempts", "jobs", "failure_hours", "hourly", "failures")
    return tuple(recipe for recipe in recipes() if recipe.table in chosen)


class History:
    """A store whose clock is ours, and a lake that follows it."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark, self.url, self.clock = spark, server_url(), FakeClock(NOON)
        self.lake = Lake(folder / "lake")
        asyncio.run(emptied())

    def ask(self, what: Callable[[Queue], Awaitable[Any]]) -> Any:
        async def within() -> Any:
            async with Queue(PostgresStore(self.url, self.clock, wakeups=NoWakeups()), actor="test") as queue:
                return await what(queue)

        return asyncio.run(within())

    def happen(self, day: int, number: int = 3, queue: str = "q") -> None:
        """On this day of January jobs come in, some run, every second fails and waits to run again."""
        self.clock.set(NOON + timedelta(days=day - 1))

        async def work(door: Queue) -> None:
            for n in range(number):
                await door.enqueue("mail", {"n": n}, queue=queue, max_attempts=2)
            self.clock.advance(seconds=10)
            for n, held in enumerate(await door.lease(queue, limit=number, worker="w")):
                self.clock.advance(seconds=1)
                if n % 2:
                    await door.nack(held, error=f"ValueError: no {day}", retry_in=0)
                else:
                    await door.ack(held)

        self.ask(work)

    def run(self, **options: Any) -> Report:
        return run_once(self.spark, self.url, self.lake, as_of=ALWAYS, **options)

    def answers(self, name: str) -> InsightAnswer:
        """What the store says when it is asked."""
        answer: InsightAnswer = self.ask(lambda queue: ask(queue.store, queue.tenant, name))
        return answer

    @property
    def manifest(self) -> Manifest:
        return self.lake.manifest()

    def tables(self) -> dict[str, list[str]]:
        """Every table's rows, in an order of their own, as DuckDB reads them from the files."""
        manifest = self.manifest
        found = {}
        for table in manifest.tables:
            files = [
                self.lake.storage.path(file)
                for folder in manifest.folders(table)
                for file in self.lake.storage.files(folder)
            ]
            rows = duckdb.read_parquet(files, hive_partitioning=False).fetchall() if files else []
            found[table] = sorted(map(repr, rows))
        return found

    def in_store(self, statement: str) -> Any:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(statement).fetchone()


@pytest.fixture
def history(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> History:
    monkeypatch.setattr(pipeline, "recipes", some)
    return History(spark, tmp_path)


@pytest.fixture
def bronze_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "recipes", tuple)


class Killed(BaseException):
    """Ends a run as a kill would: nothing catches it."""


def dying_at(deadly: str) -> Callable[[str], None]:
    def die(step: str) -> None:
        if step == deadly:
            raise Killed

    return die


def test_run_by_run_comes_to_the_same_as_all_at_once(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "MOST_FOLDERS", 1)
    monkeypatch.setattr(pipeline, "recipes", more)
    history.happen(1)
    history.happen(2, queue="other")
    first = history.run()
    assert (first.days, first.mismatches) == (["2026-01-01", "2026-01-02"], [])
    before = history.manifest
    assert first.events == history.in_store(
        "SELECT (SELECT count(*) FROM penstock.job) + (SELECT count(*) FROM penstock.attempt)"
        " + (SELECT count(*) FROM penstock.change)"
    )[0]  # fmt: skip
    history.happen(1)
    with pytest.raises(Killed):
        history.run(on_step=dying_at("bronze committed"))
    history.happen(3)
    # Late: a retry of a job of the first day has ended on the third. It changes what is said of both, and of no other.
    second = history.run(most_rows=4)
    assert second.batches > 1
    assert second.days == ["2026-01-01", "2026-01-03"]
    for table in ("attempts", "jobs", "hourly"):
        assert history.manifest.tables[table]["2026-01-02"] == before.tables[table]["2026-01-02"]
    run_by_run = history.tables()
    assert sum(len(folders) for folders in history.manifest.tables["events"].values()) == 3  # compacted

    history.lake = Lake(Path(history.lake.place).with_name("other"))
    history.run()
    assert history.tables() == run_by_run
    assert len(run_by_run["jobs"]) == 12


def test_every_recipe_makes_the_table_that_it_says_it_does(spark: Any) -> None:
    made = ["events"]
    for recipe in recipes():
        assert set(recipe.reads) <= set(made), "it comes before what it reads"
        tables = {table: spark.createDataFrame([], ddl(SCHEMAS[table])) for table in recipe.reads}
        assert dict(recipe(tables, ALWAYS).dtypes) == dict(SCHEMAS[recipe.table])
        made.append(recipe.table)
    assert {*GOLD, *SILVER} <= set(made)


def test_a_run_that_dies_at_any_step_is_followed_by_one_that_makes_it_good(history: History) -> None:
    steps: list[str] = []
    history.happen(1)
    history.run(on_step=steps.append)
    assert len(steps) == len(set(steps)) == 14
    assert steps[-1] == "published"
    for number, deadly in enumerate(steps):
        if deadly.startswith("begun"):
            continue
        history.happen(1 + number % 3, number=1)
        with pytest.raises(Killed):
            history.run(on_step=dying_at(deadly))
    history.run()
    survived = history.tables()
    assert sum(row["attempts"] for row in history.answers("usage").rows) == len(survived["attempts"])
    for table in ("jobs", "attempts"):
        assert len(survived[table]) == history.in_store(f"SELECT count(*) FROM penstock.{table[:-1]}")[0]
    history.run(rebuild=True)
    assert history.tables() == survived
    assert history.manifest.stale == ()
    # What the dead have left is no part of it.
    assert history.lake.vacuum(now=datetime.now(UTC) + timedelta(days=2))
    assert history.tables() == survived


def test_what_was_made_and_not_published_is_published_by_the_next_run_and_then_no_more(
    history: History,
) -> None:
    history.happen(1)
    assert history.run().published == len(GOLD) + 1
    history.happen(1)
    with pytest.raises(Killed):
        history.run(on_step=dying_at("committed"))
    assert history.answers("usage").rows[0]["attempts"] == 3
    assert history.run().published == len(GOLD) + 1
    assert history.answers("usage").rows[0]["attempts"] == 6
    assert history.answers("usage").as_of == ALWAYS
    assert history.run().published == 0
    # A transaction that has come to light since may hold the store's time back; what was known stays known.
    held_back = ALWAYS - timedelta(minutes=1)
    assert run_once(history.spark, history.url, history.lake, as_of=held_back).data_as_of == ALWAYS
    assert history.run(rebuild=True).published == len(GOLD) + 1


@pytest.mark.usefixtures("bronze_only")
@pytest.mark.parametrize("deadly", ["begun about to be committed", "begun"])
def test_one_that_dies_before_it_has_begun(history: History, deadly: str) -> None:
    with pytest.raises(Killed):
        history.run(on_step=dying_at(deadly))
    assert history.run().mismatches == []


@pytest.mark.usefixtures("bronze_only")
def test_going_on_takes_in_what_comes_until_it_is_stopped(history: History) -> None:
    reports: list[Report] = []
    stop = Event()

    def told(report: Report) -> None:
        reports.append(report)
        if len(reports) == 1:
            with pytest.raises(LakeBusy):  # the office is held between runs, too
                history.run()
            history.happen(1)
        else:
            stop.set()

    pipeline.run_continuously(
        history.spark, history.url, history.lake.place, every_seconds=0, stop=stop, on_report=told
    )
    assert [report.batches for report in reports] == [0, 1]
    assert history.run().batches == 0


class TestTwoDrivers:
    def test_the_second_is_refused_while_the_first_is_at_work(self, history: History) -> None:
        with Leading(history.url) as office:
            office.check()
            with pytest.raises(LakeBusy, match="one driver at a time"):
                history.run()
            assert history.lake.find() is None
        assert history.run().mismatches == []

    def test_one_that_lost_its_office_commits_nothing(self, history: History) -> None:
        history.happen(1)

        def lose(step: str) -> None:
            if step == "bronze written":
                history.in_store(
                    "UPDATE penstock.leader SET holder = 'somebody', until = now() + interval '1 hour' RETURNING 1"
                )
                office._until = 0.0

        with Leading(history.url) as office, pytest.raises(LakeBusy, match="was lost"):
            history.run(on_step=lose, office=office)
        assert history.manifest.tables == {}
        history.in_store("DELETE FROM penstock.leader RETURNING 1")

    def test_of_two_who_both_think_they_lead_one_commits(self, history: History) -> None:
        history.happen(1)
        there = Event()

        def overtaken(step: str) -> None:
            if step == "bronze written" and not there.is_set():
                there.set()
                other = Thread(target=lambda: history.run(office=_Anyone()))
                other.start()
                other.join()

        with pytest.raises(LakeMoved, match="nothing of this run counts"):
            history.run(on_step=overtaken, office=_Anyone())
        once = history.tables()
        assert len(once["jobs"]) == 3
        history.run(rebuild=True)
        assert history.tables() == once


class _Anyone:
    def check(self) -> None: ...


@pytest.mark.usefixtures("bronze_only")
class TestReconciling:
    def test_finds_what_is_lost_or_twice_and_says_how_much(self, history: History) -> None:
        history.happen(1)
        history.happen(2, number=2, queue="other")
        history.run()
        manifest = history.manifest
        assert not manifest.unchecked
        assert not manifest.doubts
        # The lake loses a day, in a way that leaves its manifest whole.
        lost = replace(
            manifest,
            tables={**manifest.tables, "events": {"2026-01-01": manifest.tables["events"]["2026-01-01"]}},
        )
        history.lake.commit(lost)
        report = history.run(check_all=True)
        assert [(one.day, one.kind, one.in_store, one.in_lake) for one in report.mismatches] == [
            ("2026-01-02", "attempt", 2, 0),
            ("2026-01-02", "job", 2, 0),
        ]
        assert "2026-01-02 does not reconcile: of 2 jobs in the store the lake lacks 2" in str(
            report.mismatches[1]
        )
        assert list(history.manifest.doubts) == ["2026-01-02"]
        # It is not forgotten by the next run,
        assert history.run().mismatches == report.mismatches
        # and good again when it is.
        history.lake.commit(replace(history.manifest, tables=manifest.tables))
        assert history.run().mismatches == []
        assert not history.manifest.doubts
        # What is there twice is found as well,
        events = {day: folders * 2 for day, folders in manifest.tables["events"].items()}
        history.lake.commit(replace(history.manifest, tables={"events": events}))
        doubled = history.run(check_all=True).mismatches
        assert [(one.day[-2:], one.kind, one.twice) for one in doubled] == [
            ("01", "attempt", 3), ("01", "job", 3), ("02", "attempt", 2), ("02", "job", 2),
        ]  # fmt: skip
        assert "3 are in it twice" in str(doubled[0])
        # and what has left the store is not missed.
        history.lake.commit(replace(history.manifest, tables=manifest.tables))
        history.in_store("WITH gone AS (DELETE FROM penstock.attempt RETURNING 1) SELECT count(*) FROM gone")
        assert history.run(check_all=True).mismatches == []

    def test_a_day_that_is_not_over_is_checked_when_it_is(self, history: History) -> None:
        history.happen(9)
        assert history.run().checked == []
        assert list(history.manifest.unchecked) == ["2026-01-09"]
        report = run_once(history.spark, history.url, history.lake, as_of=ALWAYS + timedelta(days=1))
        assert report.checked == ["2026-01-09"]
        assert not history.manifest.unchecked


@pytest.mark.usefixtures("bronze_only")
class TestRefusals:
    def test_a_lake_of_another_database(self, history: History) -> None:
        history.run()
        moved = history.lake.commit(replace(history.manifest, source={"feed": "f", "system": "7"}))
        with pytest.raises(LakeOfAnother):
            history.run()
        assert history.manifest == moved

    def test_a_store_restored_from_a_backup(self, history: History) -> None:
        history.run()
        manifest = history.manifest
        ahead = {**manifest.offset, "xid": int(manifest.offset["xid"]) + 1_000_000}
        moved = history.lake.commit(replace(manifest, offset=ahead))
        with pytest.raises(StoreBehind):
            history.run(rebuild=True)
        assert history.manifest == moved

    def test_history_that_left_unread(self, history: History) -> None:
        history.run()
        history.happen(1)
        asyncio.run(emptied())
        with pytest.raises(StoreAhead):
            history.run()

    def test_files_that_somebody_removed(self, history: History) -> None:
        history.happen(1)
        history.run()
        [folder] = history.manifest.folders("events")
        history.lake.storage.remove(folder)
        with pytest.raises(LakeBroken, match=f"lacks what its manifest names: {folder}"):
            history.run()


@pytest.mark.usefixtures("bronze_only")
class TestThePromise:
    def test_what_is_in_the_lake_and_was_found_right_may_leave_and_nothing_else(
        self, history: History
    ) -> None:
        history.happen(1, number=1)
        history.happen(9, number=1, queue="today")
        self.keep_nothing(history)
        history.clock.advance(days=30)
        with pytest.raises(Killed):
            history.run(on_step=dying_at("checked in"))
        assert history.ask(sweep) == 0  # from the moment a run begins
        with pytest.raises(Killed):
            history.run(on_step=dying_at("about to tell the store"))
        assert history.ask(sweep) == 0
        history.run()
        assert history.ask(sweep) == 1  # that of today is not checked yet
        history.run()
        assert history.ask(sweep) == 0
        run_once(history.spark, history.url, history.lake, as_of=ALWAYS + timedelta(days=1))
        assert history.ask(sweep) == 1

    def keep_nothing(self, history: History) -> None:
        async def configure(door: Queue) -> None:
            for queue in ("q", "today"):
                await door.configure(queue, retention_seconds=0)

        history.ask(configure)


async def sweep(queue: Queue) -> int:
    """How many jobs leave."""
    return (await queue.sweep()).pruned
