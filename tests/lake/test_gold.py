"""The tables of the lake as Spark makes them, against DuckDB's answers from the same files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("duckdb", reason="the lake's packages are not installed")
pytest.importorskip("pyspark")

from lake import story
from lake.oracle import Oracle
from lake.story import Story
from lake.test_fingerprint import AWKWARD
from penstock.lake import demo, tables, transforms
from penstock.lake import fingerprint as f
from penstock.lake.histogram import bucket
from penstock.lake.queueing import servers_for
from penstock.lake.targets import Target
from penstock.lake.transforms.failures import FAILURE_DAYS, FAILURE_HOURS

pytestmark = pytest.mark.spark

END = story.NOW
TARGETS = (Target("story", "patient", 2 * 3_600.0), Target("story", "strict", 5.0, objective=0.9))

SEEDS = (1, 2, 3)

Rows = list[dict[str, Any]]


def plain(value: Any) -> Any:
    """A value as both engines can give it."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value


def rows_of(frame: Any) -> Rows:
    return [{name: plain(value) for name, value in row.asDict().items()} for row in frame.collect()]


def in_order(rows: Rows, keys: list[str]) -> Rows:
    return sorted(rows, key=lambda row: [str(row[key]) for key in keys])


def assert_same(found: Rows, expected: Rows, keys: list[str]) -> None:
    """Whole numbers, texts, times, lists and histograms exactly; fractions to nine digits."""
    expected = [{name: plain(value) for name, value in row.items()} for row in expected]
    assert len(found) == len(expected)
    for one, other in zip(in_order(found, keys), in_order(expected, keys), strict=True):
        for name, value in one.items():
            if name == "why":
                continue
            wanted = other[name]
            if isinstance(value, float) and isinstance(wanted, int | float):
                assert math.isclose(value, wanted, rel_tol=1e-9, abs_tol=1e-12), (name, one, other)
            else:
                assert value == wanted, (name, one, other)


KEYS = {
    "attempts": ["tenant", "job_id", "attempt"],
    "jobs": ["tenant", "job_id"],
    "hourly": ["tenant", "queue", "type", "hour"],
    "daily": ["tenant", "queue", "type", "day"],
    "failures": ["tenant", "fingerprint"],
    "capacity": ["tenant", "queue", "hour_of_week"],
    "capacity_plan": ["tenant", "queue"],
    "slo": ["tenant", "queue", "window"],
    "anomalies": ["tenant", "queue", "hour", "metric"],
    "flows": ["tenant", "root_id"],
    "schedules": ["tenant", "schedule", "day"],
    "usage": ["tenant", "day", "queue", "type"],
}


def backlog(told: Story) -> None:
    """Sixty jobs come in and one has run, and of another queue none, though one was tried: what waits has cost nothing yet."""
    monday = datetime(2026, 10, 5, 9, tzinfo=UTC)
    for n in range(60):
        told.job(f"backlog-{n}", "backlog", monday)
        told.job(f"untried-{n}", "untried", monday)
    told.attempt("backlog-0", "backlog", 1, monday, 0, 600_000)
    told.attempt("untried-0", "untried", 1, monday, 0, 600_000, "failed", "queued", "TypeError: x")
    told.done("quick", "quick", monday, run_ms=0)


def changed_schedules(told: Story) -> None:
    """Schedules whose gaps have a reason; and one that has just stopped."""
    first = datetime(2026, 10, 5, tzinfo=UTC)

    def fires(name: str, begin: datetime, count: int, minutes: int) -> datetime:
        for n in range(count):
            due = begin + n * timedelta(minutes=minutes)
            told.job(f"{name}-{due:%d-%H%M}", "fires", due, run_at=due, schedule=name)
        return begin + count * timedelta(minutes=minutes)

    def put(name: str, at: datetime, cron: str | None, **more: Any) -> None:
        detail = None if cron is None else json.dumps({"cron": cron, "tz": "UTC", "paused": False, **more})
        verb = "drop" if cron is None else "put"
        told._tell("change", at, schedule=name, name=name, verb=verb, actor="ada", detail=detail)

    hourly, soon = "0 * * * *", timedelta(minutes=1)
    put("paused", first, hourly)
    paused_at = fires("paused", first, 24 * 14, 60)
    put("paused", paused_at - soon, hourly, paused=True)
    put("paused", paused_at + timedelta(days=2), hourly)
    put("paused", paused_at + timedelta(days=5), hourly, type="another")  # which changes no time
    dropped_at = fires("paused", paused_at + timedelta(days=2, hours=1), 24 * 7 - 1, 60)
    put("paused", dropped_at - soon, None)

    put("recast", first, "*/30 * * * *")
    recast_at = fires("recast", first, 48 * 10, 30)
    put("recast", recast_at - soon, "0 */4 * * *")
    put("recast", fires("recast", recast_at, 6 * 14, 240), None)

    put("stopped", first, hourly)
    fires("stopped", first, 24 * 21, 60)
    put("ticks", datetime(2026, 10, 15, 5, tzinfo=UTC), None)
    put("office", datetime(2026, 10, 16, 11, tzinfo=UTC), None)


def changed_at_random(soup: Story, chance: Random) -> None:
    for _ in range(30):
        at = END - chance.randrange(25 * 24 * 12) * timedelta(minutes=5)
        set_to = {
            "cron": chance.choice(("0 * * * *", "0 9 * * *")),
            "tz": "UTC",
            "paused": chance.random() < 0.3,
        }
        is_put, name = chance.random() < 0.8, chance.choice("st")
        soup._tell(
            "change", at, schedule=name, name=name, verb="put" if is_put else "drop", actor="ada",
            detail=json.dumps(set_to) if is_put else None,
        )  # fmt: skip


class Made:
    """What Spark made of a month of a small fleet, of the story and of some soups, and what DuckDB says of the same files."""

    def __init__(self, spark: Any, folder: Path) -> None:
        demo.write(folder, 2_000, 30, 11, END)
        whole = story.tell()
        backlog(whole)
        changed_schedules(whole)
        whole.write(folder)
        for seed in SEEDS:
            soup = story.soup(seed, AWKWARD, f"soup-{seed}")
            changed_at_random(soup, Random(seed))
            soup.write(folder)
        self.frames = {"events": spark.read.parquet(str(folder)).cache()}
        self.rows: dict[str, Rows] = {}
        for name in {**transforms.SILVER, **transforms.BY_DAY, **transforms.GOLD}:
            told = {"targets": TARGETS} if name in ("slo", "capacity_plan") else {}
            self.frames[name] = transforms.compute(name, self.frames, as_of=END, **told).cache()
            self.rows[name] = rows_of(self.frames[name])
        self.oracle = Oracle(f"read_parquet('{folder}/*/*.parquet')", as_of=END, targets=TARGETS)

    def told(self, name: str, **about: Any) -> Rows:
        """The story's rows of a table, as far as they are about this."""
        about["tenant"] = story.TENANT
        return [row for row in self.rows[name] if about.items() <= row.items()]

    def one(self, name: str, **about: Any) -> dict[str, Any]:
        [row] = self.told(name, **about)
        return row


@pytest.fixture(scope="module")
def made(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    made = Made(spark, tmp_path_factory.mktemp("bronze"))
    yield made
    for frame in made.frames.values():
        frame.unpersist()


@pytest.mark.parametrize("name", KEYS)
def test_is_what_duckdb_says(made: Made, name: str) -> None:
    rows = made.rows[name]
    assert {row["tenant"] for row in rows} > {story.TENANT}, f"the made-up month says nothing about {name}"
    assert_same(rows, made.oracle.table(name), KEYS[name])


@pytest.mark.parametrize("name", KEYS)
def test_has_the_columns_that_were_agreed_on(made: Made, name: str) -> None:
    agreed = {**tables.SILVER, **tables.GOLD}[name]
    assert {field.name: field.dataType.simpleString() for field in made.frames[name].schema} == dict(agreed)


def test_has_the_columns_of_the_part_that_is_kept(made: Made) -> None:
    for name, columns in (("failure_hours", FAILURE_HOURS), ("failure_days", FAILURE_DAYS)):
        found = {field.name: field.dataType.simpleString() for field in made.frames[name].schema}
        assert found == dict(columns)


def test_adds_up_facts_told_apart(made: Made) -> None:
    events, noon = made.frames["events"], END - timedelta(days=9, minutes=10)
    parts = [
        transforms.compute("hourly", {"events": events.where(half)}, as_of=END)
        for half in (events.occurred_at < noon, events.occurred_at >= noon)
    ]
    assert_same(rows_of(transforms.merge(parts)), made.rows["hourly"], KEYS["hourly"])


def test_says_the_same_of_errors_as_python(made: Made) -> None:
    frame = made.frames["events"].sparkSession.createDataFrame(
        [(n, text) for n, text in enumerate(AWKWARD)], "n int, error string"
    )
    said = frame.selectExpr(
        "n", f"{f.text_spark('error')} AS text", f"{f.frame_spark('error')} AS frame"
    ).selectExpr("n", f"{f.type_spark('text')} AS kind", "frame", "text")
    rows = sorted(
        said.selectExpr(
            "n", f"{f.fingerprint_spark('kind', 'frame', 'text')} AS f", "kind", "frame", "text"
        ).collect()
    )
    assert [f.Failure(*row[1:]) for row in rows] == [f.failure(error) for error in AWKWARD]


class TestAttempts:
    def test_waits_in_whole_milliseconds_and_never_less_than_none(self, made: Made) -> None:
        first, second = sorted(made.told("attempts", job_id="life-1"), key=lambda row: row["attempt"])
        assert (first["wait_ms"], first["run_ms"]) == (2500, 400)
        assert (second["wait_ms"], second["run_ms"]) == (0, 100)


class TestJobs:
    def test_adds_up_a_life(self, made: Made) -> None:
        job = made.one("jobs", job_id="life-1")
        assert (job["status"], job["attempts"], job["failures"], job["lost"]) == ("succeeded", 2, 1, 0)
        assert (job["wait_ms"], job["run_ms"], job["last_error"]) == (2500, 500, "ValueError: 1")
        assert job["first_started_at"] == job["created_at"] + timedelta(microseconds=2_500_700)
        assert (job["key"], job["parents"]) == ("ada", [])

    @pytest.mark.parametrize(
        ("job_id", "status"),
        [("life-2", "active"), ("life-3", "cancelled"), ("life-4", "cancelled"), ("life-5", "active"), ("life-6", "held"), ("life-7", "active")],
    )  # fmt: skip
    def test_is_what_the_latest_fact_says(self, made: Made, job_id: str, status: str) -> None:
        job = made.one("jobs", job_id=job_id)
        assert job["status"] == status
        assert (job["ended_at"] is None) == (status == "active")

    def test_knows_the_parents(self, made: Made) -> None:
        assert made.one("jobs", job_id="flow-c")["parents"] == ["flow-a", "flow-b"]


class TestHourly:
    def test_counts_jobs_when_they_come_and_attempts_when_they_end(self, made: Made) -> None:
        seven, eight = sorted(made.told("hourly", queue="lives"), key=lambda row: row["hour"])
        assert (seven["arrivals"], eight["arrivals"]) == (7, 0)
        assert seven["wait_hist"] == seven["run_hist"] == {}
        assert sum(eight["wait_hist"].values()) == sum(eight["run_hist"].values()) == 6
        assert eight["wait_hist"] == {0: 1, bucket(1000): 4, bucket(2500): 1}

    def test_tells_the_ends_apart(self, made: Made) -> None:
        eight = max(made.told("hourly", queue="lives"), key=lambda row: row["hour"])
        counts = {
            name: eight[name]
            for name in (
                "succeeded",
                "failed",
                "lost",
                "dead",
                "held",
                "cancelled",
                "ended",
                "retried",
                "busy_ms",
            )
        }
        assert counts == {
            "succeeded": 1, "failed": 3, "lost": 1, "dead": 1, "held": 1, "cancelled": 2, "ended": 4, "retried": 2,
            "busy_ms": 400 + 100 + 10 + 5000 + 60_000 + 1,
        }  # fmt: skip

    def test_makes_days_of_hours(self, made: Made) -> None:
        day = made.one("daily", queue="lives")
        assert (day["day"], day["arrivals"], day["cancelled"]) == (date(2026, 11, 2), 7, 2)
        assert sum(day["run_hist"].values()) == 6
        usage = made.one("usage", queue="lives")
        assert (usage["jobs"], usage["attempts"], usage["busy_ms"]) == (7, 6, 65_511)


class TestFailures:
    def test_counts_one_failure_whomever_it_hits(self, made: Made) -> None:
        old = made.one("failures", error_type="OldError")
        assert (old["text"], old["count"], old["count_24h"], old["is_new"]) == (
            "OldError: row <n>",
            11,
            3,
            False,
        )
        assert (old["queues"], old["types"]) == (["bad", "worse"], ["other", "work"])

    def test_shows_the_latest_jobs_each_once(self, made: Made) -> None:
        assert made.one("failures", error_type="OldError")["sample_jobs"] == [
            "old-0",
            "else-1",
            "old-7",
            "old-6",
            "old-5",
        ]

    def test_compares_with_the_days_before(self, made: Made) -> None:
        old = made.one("failures", error_type="OldError")
        days = (END.replace(minute=0) - timedelta(hours=24) - old["first_seen"]) / timedelta(days=1)
        assert old["trend"] == pytest.approx(3 / (8 / days))

    def test_is_new_without_a_trend(self, made: Made) -> None:
        new = made.one("failures", error_type="NewError")
        assert (new["is_new"], new["trend"], new["count_24h"]) == (True, None, 1)

    def test_leaves_out_what_is_no_failure(self, made: Made) -> None:
        assert made.told("failures", error_type="CalmError") == []
        assert {row["error_type"] for row in made.told("failures")} > {"KeyError", "ValueError", ""}


class TestCapacity:
    def test_measures_the_busiest_week_and_all_of_a_jobs_cost(self, made: Made) -> None:
        peak = max(made.told("capacity", queue="busy"), key=lambda row: row["offered_load"])
        assert peak["hour_of_week"] == 9
        assert (peak["arrivals_per_hour"], peak["service_ms"], peak["offered_load"]) == (
            6.0,
            3_600_000.0,
            6.0,
        )

    def test_plans_for_it(self, made: Made) -> None:
        plan = made.one("capacity_plan", queue="busy")
        assert plan["concurrency"] == servers_for(6.0, 3_600_000, 60_000, 0.99) == 13
        assert plan["utilisation"] == pytest.approx(6 / 13)
        assert plan["peak_hour_of_week"] == 9
        assert (plan["lease_seconds"], plan["heartbeat_seconds"]) == (2709.0, pytest.approx(2709 / 3))
        assert (
            plan["why"]
            == "Monday 09:00 UTC: 6 jobs/h × 3600000 ms = 6.00 busy; 13 at a time keep 99 % of waits within 60 s"
        )

    def test_plans_for_its_own_target(self, made: Made) -> None:
        """The same work as `busy`, and two hours to begin with it."""
        plan = made.one("capacity_plan", queue="patient")
        assert plan["concurrency"] == servers_for(6.0, 3_600_000, 7_200_000, 0.99) == 8
        assert plan["why"].endswith("8 at a time keep 99 % of waits within 7200 s")

    def test_what_waits_in_a_backlog_does_not_make_a_queue_look_quick(self, made: Made) -> None:
        plan = made.one("capacity_plan", queue="backlog")
        assert plan["concurrency"] == servers_for(10.0, 600_000, 60_000, 0.99)
        assert "60 jobs/h × 600000 ms = 10.00 busy" in plan["why"]

    def test_has_no_plan_for_a_queue_of_whose_jobs_none_has_ended(self, made: Made) -> None:
        for queue in ("idle", "untried"):
            assert made.told("capacity_plan", queue=queue) == []
            [hour, *_] = made.told("capacity", queue=queue)
            assert (hour["service_ms"], hour["offered_load"]) == (None, None)

    def test_gives_a_queue_that_costs_next_to_nothing_one_worker_and_the_shortest_lease(
        self, made: Made
    ) -> None:
        plan = made.one("capacity_plan", queue="quick")
        assert (plan["concurrency"], plan["lease_seconds"], plan["expected_wait_ms"]) == (1, 10.0, 0.0)


class TestSlo:
    def test_holds_each_queue_to_its_own_target(self, made: Made) -> None:
        strict, usual = (made.one("slo", queue=queue, window="1h") for queue in ("strict", "usual"))
        assert (strict["target_wait_ms"], strict["objective"], strict["good"], strict["total"]) == (
            5_000,
            0.9,
            2,
            4,
        )
        assert (strict["attainment"], strict["burn_rate"]) == (0.5, pytest.approx(5.0))
        assert (usual["target_wait_ms"], usual["objective"], usual["good"]) == (60_000, 0.99, 3)

    def test_looks_back_as_far_as_each_window(self, made: Made) -> None:
        totals = {row["window"]: row["total"] for row in made.told("slo", queue="usual")}
        assert totals == {"1h": 4, "6h": 4, "24h": 4, "7d": 8, "30d": 8}


class TestAnomalies:
    def test_finds_what_is_off_its_own_week(self, made: Made) -> None:
        found = {
            (row["queue"], row["metric"], row["direction"], row["hour"].date().isoformat())
            for row in made.told("anomalies")
            if row["hour"].hour == 14
        }
        assert found == {
            ("odd", "arrivals", "high", "2026-10-21"),
            ("odd", "arrivals", "low", "2026-10-28"),  # nothing came at all
            ("ill", "failure_share", "high", "2026-10-14"),
            ("ill", "wait_p95", "high", "2026-10-07"),
        }  # fmt: skip

    def test_says_what_was_expected(self, made: Made) -> None:
        high = made.one("anomalies", queue="odd", direction="high")
        assert (high["value"], high["expected"]) == (60.0, 20.0)
        assert high["score"] == pytest.approx(40 / 20**0.5)

    def test_does_not_judge_what_it_has_seen_twice_nor_the_hour_that_is_not_over(self, made: Made) -> None:
        assert made.told("anomalies", queue="rare") == []


class TestFlows:
    def test_finds_the_path_that_decided_the_end(self, made: Made) -> None:
        flow = made.one("flows", root_id="flow-a")
        assert (flow["jobs"], flow["status"]) == (4, "succeeded")
        assert flow["critical_path"] == ["flow-b", "flow-d"]
        assert flow["critical_ms"] == 11_100 - 100
        assert flow["ended_at"] - flow["began_at"] == timedelta(milliseconds=11_100)

    def test_has_no_end_while_a_job_waits(self, made: Made) -> None:
        flow = made.one("flows", root_id="flow-m")
        assert (flow["status"], flow["ended_at"], flow["critical_path"]) == ("active", None, ["flow-m"])

    def test_is_as_bad_as_its_worst_job(self, made: Made) -> None:
        flow = made.one("flows", root_id="flow-x")
        assert (flow["jobs"], flow["status"], flow["critical_path"]) == (2, "dead", ["flow-x", "flow-y"])


class TestSchedules:
    def test_measures_how_late_they_are(self, made: Made) -> None:
        day = made.one("schedules", schedule="weekdays", day=date(2026, 10, 6))
        assert (day["fires"], day["max_ms"], day["late_hist"]) == (1, 60_000.0, {bucket(60_000): 1})
        assert day["p50_ms"] == day["p99_ms"] == pytest.approx(60_000, rel=0.01)

    @pytest.mark.parametrize(
        ("schedule", "missed"),
        [
            ("weekdays", {date(2026, 10, 20): 1}),
            ("ticks", {date(2026, 10, 14): 1}),  # what it does in its first week may be what it should
            ("office", {}),
            ("paused", {}),
            ("recast", {}),
            # Its last fire was on a Sunday at eleven, and a week later it is Monday, ten o'clock.
            ("stopped", {date(2026, 10, 25): 7 * 24 + 10}),
        ],
    )
    def test_counts_what_was_missed_but_not_weekends_or_nights(
        self, made: Made, schedule: str, missed: dict[date, int]
    ) -> None:
        rows = made.told("schedules", schedule=schedule)
        assert {row["day"]: row["missed"] for row in rows if row["missed"]} == missed
