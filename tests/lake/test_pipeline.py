"""The pipeline on a real PostgreSQL and a real Spark: whatever happens on the way, the end is that of a rebuild."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from penstock import Queue
from penstock.core.errors import InvalidInput, StoreUnavailable
from penstock.core.job import NewJob
from penstock.insights import InsightAnswer, ask
from penstock.lake.errors import (
    LakeBroken,
    LakeMoved,
    LakeOccupied,
    LakeOfAnother,
    LakeUnwritten,
    StoreAhead,
    StoreBehind,
)
from penstock.lake.manifest import Lake, Manifest, new_manifest, tables
from penstock.lake.storage import LocalStorage
from penstock.lake.tables import EVENTS, GOLD, SILVER, ddl
from penstock.stores.postgres.store import PostgresStore
from penstock.stores.wakeups.polling import NoWakeups
from penstock.testing import FakeClock, counting_ids
from support.postgres import emptied, server_url

pytestmark = pytest.mark.spark
duckdb = pytest.importorskip("duckdb")
pytest.importorskip("pyspark")

from penstock.lake import continuing, making, parts, pipeline  # noqa: E402
from penstock.lake.archive import look_up  # noqa: E402
from penstock.lake.leading import LakeBusy, Leading, OfficeLost  # noqa: E402
from penstock.lake.parts import LakeUnreachable  # noqa: E402
from penstock.lake.pipeline import Report, made_up_name, run_frame, run_once  # noqa: E402
from penstock.lake.recipes import SCHEMAS, By, Recipe, recipes  # noqa: E402
from penstock.lake.source.postgres import PostgresReader  # noqa: E402

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
    chosen = ("attempts", "jobs", "failure_hours", "failure_days", "hourly", "failures")
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
    monkeypatch.setattr(making, "MOST_FOLDERS", 1)
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
    assert len(history.manifest.tables["attempts"]["2026-01-03"]) == 1, "made anew with bronze"
    assert sum(len(folders) for folders in history.manifest.tables["events"].values()) == 3  # compacted

    history.lake = Lake(Path(history.lake.place).with_name("other"))
    monkeypatch.setattr(parts, "MOST_BYTES_IN_ONE_PLACE", -1)  # as if it were large
    few = history.spark.conf.get("spark.sql.shuffle.partitions")
    history.spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        history.run()
    finally:
        history.spark.conf.set("spark.sql.shuffle.partitions", few)
    assert history.tables() == run_by_run
    assert len(run_by_run["jobs"]) == 12


def test_a_job_that_came_in_on_another_day_than_its_id_says_is_looked_up_too(history: History) -> None:
    """The id of a fire is made of its time, also where schedulers were away for days and it is made up for; and there are
    producers whose clock is wrong."""
    history.happen(1)
    ahead = counting_ids(NOON + timedelta(days=20))()
    history.ask(lambda queue: queue.enqueue_many([NewJob(ahead, "mail")]))
    history.ask(lambda queue: queue.put_schedule("daily", "0 9 * * *", {"type": "mail"}, missed="all"))
    history.run()
    history.clock.advance(days=5)
    history.ask(lambda queue: queue.fire_due())
    history.run()
    ids = [job.id for job in history.ask(lambda queue: queue.find(schedule="daily")).jobs]
    assert len(ids) == 5
    found = [look_up(history.lake, history.manifest, "default", job_id) for job_id in ids]
    assert [one and one.job.asked.schedule for one in found] == ["daily"] * 5
    assert {"2026-01-02", "2026-01-03", "2026-01-04"} < set(history.manifest.strays)
    assert look_up(history.lake, history.manifest, "default", ahead)


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


def test_holds_a_queue_to_the_target_that_people_set(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the next run on, though nothing else has happened."""
    chosen = ("attempts", "hourly", "queue_hours", "slo")
    monkeypatch.setattr(
        pipeline, "recipes", lambda: tuple(recipe for recipe in recipes() if recipe.table in chosen)
    )

    def promised(report: Report) -> set[tuple[str, int, int]]:
        assert report.mismatches == []
        paths = tables(history.lake.place)["slo"]
        relation = duckdb.read_parquet(paths, hive_partitioning=False)
        return set(relation.project("queue, target_wait_ms, good").fetchall())

    history.happen(9)
    history.happen(9, queue="other")
    assert promised(history.run()) == {("q", 60_000, 3), ("other", 60_000, 3)}
    history.ask(lambda door: door.configure("q", target_seconds=5))
    assert promised(history.run()) == {("q", 5_000, 0), ("other", 60_000, 3)}
    assert [(one.queue, one.seconds) for one in history.manifest.targets] == [("q", 5.0)]
    folders = history.manifest.tables["slo"]
    history.run()
    assert history.manifest.tables["slo"] == folders, "nothing had changed"


def test_what_is_made_as_a_whole_stays_while_it_would_say_the_same(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "recipes", more)
    monkeypatch.setattr(pipeline, "DAYS_AT_ONCE", 1)
    history.happen(1)
    history.run()
    first = history.manifest.tables["failures"]
    history.happen(2, number=1, queue="other")
    history.run()
    assert history.manifest.tables["failures"] == first  # nothing has failed since
    history.happen(3)
    history.happen(4, number=1, queue="other")
    with pytest.raises(Killed):
        history.run(on_step=dying_at("committed"))  # some days are made, and not yet what is made of all
    assert history.manifest.tables["failures"] == first
    history.run()
    second = history.manifest.tables["failures"]
    assert second != first
    survived = history.tables()
    run_once(history.spark, history.url, history.lake, as_of=ALWAYS + timedelta(hours=1))
    assert history.manifest.tables["failures"] != second  # an hour later the last day is another
    history.run(rebuild=True)
    assert history.tables() == survived


def test_what_has_a_row_per_fact_grows_by_what_is_new(history: History) -> None:
    history.happen(1)
    history.run()
    first = history.manifest.tables["attempts"]["2026-01-01"]
    history.happen(1, queue="other")
    with pytest.raises(Killed):
        history.run(on_step=dying_at("attempts written"))  # what it wrote counts for nothing
    history.happen(2)
    history.run()
    second = history.manifest.tables["attempts"]
    assert second["2026-01-01"][: len(first)] == first
    assert (len(second["2026-01-01"]), len(second["2026-01-02"])) == (2, 1)
    grown = history.tables()
    assert len(grown["attempts"]) == history.in_store("SELECT count(*) FROM penstock.attempt")[0] == 9
    history.run(rebuild=True, last_day=date(2026, 1, 1))
    third = history.manifest.tables["attempts"]
    assert (len(third["2026-01-01"]), third["2026-01-02"]) == (1, second["2026-01-02"])
    assert history.tables() == grown


def test_a_table_that_never_had_a_row_is_no_reason_to_make_all_days_anew(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "recipes", more)
    for day in (1, 2):
        history.clock.set(NOON + timedelta(days=day - 1))
        history.ask(lambda queue: queue.enqueue("mail"))
    assert history.run().days == ["2026-01-01", "2026-01-02"]
    assert history.run().days == []
    assert history.manifest.tables["failure_hours"] == {}
    history.happen(2)
    assert history.run().days == ["2026-01-02"]
    assert len(history.tables()["attempts"]) == 3


def test_a_run_takes_away_what_has_been_of_no_use_for_a_day(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def folder() -> Path:
        [one] = history.manifest.folders("usage")
        return Path(history.lake.storage.path(one))

    history.happen(1)
    history.run()
    first = folder()
    died = first.with_name("000009-dead")
    shutil.copytree(first, died)
    for left in (died, *died.iterdir()):
        os.utime(left, (0, 0))
    history.happen(1, queue="other")
    history.run()
    second = folder()
    assert first.exists(), "somebody may still be reading it"
    assert died.exists(), "there was nothing else to be taken away, so nobody has looked"
    commit, long_ago = Lake.commit, datetime.now(UTC) - timedelta(days=2)
    with monkeypatch.context() as earlier:
        earlier.setattr(Lake, "commit", lambda lake, manifest: commit(lake, manifest, now=long_ago))
        history.happen(1, queue="third")
        history.run()
    assert [one.exists() for one in (first, second, died, folder())] == [True, False, False, True]
    before = history.tables()
    history.run(rebuild=True)
    assert f"gold/usage/{second.name}" not in history.manifest.retired, "nobody needs to remember it"
    assert history.tables() == before


class TestMadeUp:
    """A history that no store has."""

    def events(self, spark: Any, number: int) -> Any:
        known = {
            "tenant": "t", "xid": 1, "seq": 0, "kind": "job", "occurred_at": NOON, "created_at": NOON, "day": "2026-01-01",
            "scheduled_at": NOON, "priority": 0, "queue": "q", "type": "mail",
        }  # fmt: skip
        rows = [dict.fromkeys(EVENTS) | known | {"job_id": str(UUID(int=n))} for n in range(number)]
        return spark.createDataFrame(rows, ddl(EVENTS))

    def name(self, day: int) -> str:
        return made_up_name(3, 1, date(2026, 1, day), seed=1)

    def test_one_of_another_day_takes_its_place(self, history: History) -> None:
        lake = history.lake.place

        def make(day: int, number: int) -> Report:
            return run_frame(
                history.spark, self.events(history.spark, number), lake, name=self.name(day), as_of=ALWAYS
            )

        assert make(1, 2).events == 2
        first = history.manifest
        assert make(1, 2).events == 0, "it is the same"
        assert make(2, 3).events == 3
        assert len(history.tables()["jobs"]) == 3
        assert (history.manifest.lake, history.manifest.source["feed"]) == (first.lake, self.name(2))
        assert {*first.folders("jobs")} <= {*history.manifest.retired}

    @pytest.mark.parametrize(
        ("feed", "system"), [("f", "7/5"), ("demo of 3 jobs", "7/5"), ("a history of mine", "none")]
    )
    def test_it_takes_the_place_of_nothing_else(self, history: History, feed: str, system: str) -> None:
        there = history.lake.commit(new_manifest({"feed": feed, "system": system}, {"xid": 0, "floor": 0}))
        with pytest.raises(LakeOfAnother):
            run_frame(
                history.spark,
                self.events(history.spark, 1),
                history.lake.place,
                name=self.name(1),
                as_of=ALWAYS,
            )
        assert history.manifest == there


def test_flows_stay_as_they_are_while_no_job_has_to_do_with_them(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ("jobs", "flow_jobs", "flows")
    monkeypatch.setattr(
        pipeline, "recipes", lambda: tuple(recipe for recipe in recipes() if recipe.table in chosen)
    )

    def flow(day: int, parent: str | None = None) -> str:
        history.clock.set(NOON + timedelta(days=day - 1))

        async def put(door: Queue) -> str:
            first = parent or (await door.enqueue("first", queue="flow")).id
            await door.enqueue("second", queue="flow", parents=[first])
            return first

        return str(history.ask(put))

    first = flow(1)
    history.run()
    before = history.manifest.tables["flows"]
    history.happen(2)
    history.run()
    assert history.manifest.tables["flows"] == before, "no flow has grown"
    flow(2, first)  # of which only all jobs can tell
    history.run()
    after = history.manifest.tables["flows"]
    assert after != before
    [found] = duckdb.read_parquet(tables(history.lake.place)["flows"]).project("jobs").fetchall()
    assert found == (3,)
    history.happen(3)
    history.run()
    assert history.manifest.tables["flows"] != after, "its first job might have ended since"


def test_a_file_that_goes_while_sizes_are_looked_at_counts_for_nothing(tmp_path: Path) -> None:
    """Another driver on this machine puts what it fetches under a draft's name first."""
    (tmp_path / "there").write_bytes(b"0123456789")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert parts._bytes([[str(tmp_path)], []]) == 10


def test_the_session_beside_is_one_for_all_runs_and_no_one_elses(spark: Any, tmp_path: Path) -> None:
    beside = [parts.Files(spark, Lake(tmp_path), run, SCHEMAS)._single for run in ("a", "b")]
    assert beside[0] is beside[1] is not spark
    assert spark.sparkContext.parallelize([(1,)]).toDF(["n"]).sparkSession is spark


@pytest.mark.parametrize("name", ["lak?", "l*", "[lake]", "{lake}", "lake\\"])
def test_a_path_that_spark_would_take_for_a_pattern_is_refused(history: History, name: str) -> None:
    history.happen(1)
    history.lake = Lake(Path(history.lake.place).with_name(name))
    with pytest.raises(InvalidInput, match=r"lake must have none of \* \? .* in its path"):
        history.run()
    assert not Path(history.lake.place).exists()


def test_a_folder_with_something_else_in_it_is_refused(history: History) -> None:
    place = Path(history.lake.place)
    place.mkdir()
    (place / "shop.py").touch()
    with pytest.raises(
        LakeOccupied, match=r"there is no lake in .*, but shop\.py; name a folder that is empty"
    ):
        history.run()
    assert [one.name for one in place.iterdir()] == ["shop.py"]


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

    continuing.run_continuously(
        history.spark, history.url, history.lake.place, every_seconds=0, stop=stop, on_report=told
    )
    assert [report.batches for report in reports] == [0, 1]
    assert history.run().batches == 0


@pytest.mark.usefixtures("bronze_only")
def test_going_on_waits_for_a_store_that_is_away_and_not_for_what_is_refused(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuing, "SHORTEST_REST_SECONDS", 0.0)
    troubles: list[Exception] = [
        StoreUnavailable("the store", "gone for a while"), OSError("cut off"), OfficeLost(),
    ]  # fmt: skip
    reports: list[Report] = []
    stop, run = Event(), run_once

    def troubled(*arguments: Any, **options: Any) -> Report:
        if troubles:
            raise troubles.pop(0)
        return run(*arguments, **options)

    def told(report: Report) -> None:
        reports.append(report)
        stop.set()

    def go_on() -> Report | None:
        return continuing.run_continuously(
            history.spark, history.url, history.lake.place, every_seconds=0, stop=stop, on_report=told
        )

    monkeypatch.setattr(continuing, "run_once", troubled)
    assert go_on() is reports[0]
    stop.clear()
    troubles[:] = [LakeBusy("somebody else is at work")]
    with pytest.raises(LakeBusy):
        go_on()
    troubles[:] = [OSError("cut off")] * (continuing.MOST_FAILURES + 1)
    with pytest.raises(OSError, match="cut off"):
        go_on()
    assert len(troubles) == 1


class TestLostOnTheWay:
    """What Spark's machines write into folders of their own, nobody else ever sees; and Spark says that all is well."""

    def test_a_batch_that_is_not_all_there_is_not_passed_over(self, history: History) -> None:
        history.happen(1)
        history.happen(2, number=1, queue="other")
        for lost in ("*", "part=2026-01-02"):
            history.lake = Lake(Losing(history.lake.place, f"bronze/events/*/{lost}/*.parquet"))
            with pytest.raises(LakeUnwritten, match=r"of 8 rows of events there are [06] in it"):
                history.run()
            assert history.manifest.offset["xid"] == 0
            assert history.manifest.tables == {}
        history.lake = Lake(history.lake.place)
        assert (history.run().events, history.manifest.doubts) == (8, ())

    def test_nor_is_a_table(self, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of one machine among many that has a folder of its own; as if Spark were spread over several."""
        monkeypatch.setattr(parts, "_is_spread", lambda spark: True)
        history.happen(1)
        history.lake = Lake(Losing(history.lake.place, "silver/jobs/*/*/*.parquet"))
        with pytest.raises(LakeUnwritten, match="of 3 rows of jobs there are 0 in it"):
            history.run()
        assert list(history.manifest.tables) == ["events"]
        assert history.manifest.stale == ("2026-01-01",)
        history.lake = Lake(history.lake.place)
        assert history.run().days == ["2026-01-01"]
        assert len(history.tables()["jobs"]) == 3

    def test_a_folder_that_not_all_machines_see_is_refused_before_anything_is_read(
        self, history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(parts, "_is_spread", lambda spark: True)
        history.lake = Lake(Elsewhere(Path(history.lake.place), tmp_path / "their own"))
        with pytest.raises(LakeUnreachable, match=r"this machine sees 0; keep the lake in a folder that all"):
            history.run()
        assert history.lake.find() is None


class Losing(LocalStorage):
    """Loses some of what was written."""

    def __init__(self, root: str, pattern: str) -> None:
        super().__init__(Path(root))
        self._pattern = pattern

    def sync(self, name: str) -> None:
        for file in self._root.glob(self._pattern):
            file.unlink()
            if not any(file.parent.glob("*.parquet")):
                shutil.rmtree(file.parent)
        super().sync(name)


class Elsewhere(LocalStorage):
    """Of which Spark's machines have another one at the same place."""

    def __init__(self, root: Path, theirs: Path) -> None:
        super().__init__(root)
        self._theirs = theirs

    def draft(self, name: str) -> str:
        return str(self._theirs / name)


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

        with Leading(history.url) as office, pytest.raises(OfficeLost, match="was lost"):
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

    def test_finds_a_day_that_the_lake_knows_nothing_of(
        self, history: History, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        history.happen(1)
        with monkeypatch.context() as broken:
            broken.setattr(PostgresReader, "between", lambda *_: [])  # as if nothing had happened
            assert [one.day for one in history.run().mismatches] == ["2026-01-01"] * 2
        assert history.manifest.days == []
        history.happen(2)
        report = history.run()
        assert report.checked == ["2026-01-01", "2026-01-02"]
        assert [(one.day, one.kind, one.in_store, one.in_lake) for one in report.mismatches] == [
            ("2026-01-01", "attempt", 3, 0),
            ("2026-01-01", "job", 3, 0),
        ]
        assert history.manifest.doubts == history.manifest.unchecked == ("2026-01-01",)
        assert history.in_store(
            "SELECT body->>'exported_until' < '2026-01-01' FROM penstock.entry WHERE kind = 'lake'"
        )[0]
        # Also one that was lost after its time, when all are looked at; each is asked for once otherwise.
        history.lake.commit(replace(history.manifest, doubts=(), unchecked=()))
        assert history.run().mismatches == []
        assert history.run(check_all=True).mismatches == report.mismatches

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
        for rebuild in (False, True):
            with pytest.raises(
                LakeBroken, match=f"what its manifest names: {folder}; .* move the lake aside"
            ):
                history.run(rebuild=rebuild)


def test_files_that_somebody_removed_and_bronze_has_are_made_anew(history: History) -> None:
    history.happen(1)
    history.run()
    before = history.tables()
    gone = [history.manifest.folders(table)[0] for table in ("jobs", "usage")]
    for folder in gone:
        history.lake.storage.remove(folder)
    with pytest.raises(LakeBroken, match="make it anew with penstock lake run --rebuild"):
        history.run()
    with pytest.raises(LakeBroken):
        history.run(rebuild=True, first_day=date(2026, 1, 2))  # which would leave the first day as it is
    history.run(rebuild=True)
    assert history.tables() == before


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


def test_a_plan_goes_by_the_last_eight_weeks(spark: Any) -> None:
    days = [str(date(2026, 1, 1) + timedelta(days=number)) for number in range(200)]
    by_day = {day: (f"folder/{day}",) for day in days}
    manifest = Manifest(
        lake="a", source={}, offset={}, counts={day: {} for day in days},
        tables={"queue_hours": by_day, "daily": by_day, "capacity": {"all": ("folder/all",)}},
    )  # fmt: skip
    as_of = datetime.fromisoformat(f"{days[-1]}T12:00:00+00:00")
    capacity, plan = (
        recipe.takes(manifest, [], as_of, manifest)
        for recipe in recipes()
        if recipe.table in ("capacity", "capacity_plan")
    )
    latest = [f"folder/{day}" for day in days[-57:]]
    assert capacity == {"queue_hours": latest}
    assert plan == {"capacity": ["folder/all"], "daily": latest}
