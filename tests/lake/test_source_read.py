"""What the data source reads, without Spark: equal to what the store says, cut into slices, under conditions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import Queue
from penstock.core.errors import InvalidInput, UnknownStore
from penstock.core.job import Attempt
from penstock.lake.tables import SOURCE
from support.postgres import EmptyPostgresStore, server_url
from support.spark import WITHOUT

pytest.importorskip("pyspark", reason=WITHOUT)

from pyspark.sql import datasource as spark_filters

from penstock.lake.source import postgres
from penstock.lake.source.asking import asked, open_reader
from penstock.lake.source.filters import Condition, translated
from penstock.lake.source.reading import PushdownReader, Reader, reader
from penstock.lake.source.writing import writer

Rows = list[dict[str, Any]]


@pytest.fixture
async def queue() -> AsyncIterator[Queue]:
    async with Queue(EmptyPostgresStore(None), actor="ada") as queue:
        yield queue


def read(
    table: str = "events", columns: list[str] | None = None, options: dict[str, str] | None = None
) -> Rows:
    """A table as the source reads it."""
    one = reader(server_url(), {"table": table, **(options or {})}, columns or list(SOURCE[table]))
    return [row for part in one.partitions() for batch in one.read(part) for row in batch.to_pylist()]


async def lived(queue: Queue) -> dict[str, str]:
    """Some jobs and what became of them, by what that was."""
    await queue.configure("mail", max_concurrency=5)
    ids: dict[str, str] = {}
    for name in ("well", "ill", "left"):
        options: dict[str, Any] = {"max_attempts": 1} if name == "ill" else {"priority": -3}
        ids[name] = (await queue.enqueue("mail.send", {"to": name}, queue="mail", key="k", **options)).id
    ids["child"] = (await queue.enqueue("mail.after", queue="mail", parents=[ids["well"], ids["left"]])).id
    for leased in await queue.lease("mail", worker="w1", limit=2):
        if leased.id == ids["ill"]:
            await queue.nack(leased, "no such host\nat smtp")
        else:
            await queue.ack(leased, {"sent": True})
    await queue.cancel(ids["left"], reason="not wanted")
    return ids


class TestTables:
    async def test_events_are_what_the_store_tells_of_jobs_attempts_and_changes(self, queue: Queue) -> None:
        ids = await lived(queue)
        rows = read()
        assert sorted(row["job_id"] for row in rows if row["kind"] == "job") == sorted(ids.values())
        told = [(row["job_id"], row["attempt"]) for row in rows if row["kind"] == "attempt"]
        assert sorted(told) == sorted([(ids["well"], 1), (ids["ill"], 1)])
        changes = {(row["name"], row["verb"], row["queue"]) for row in rows if row["kind"] == "change"}
        assert changes >= {("mail", "configure", "mail"), (ids["left"], "cancel", "mail")}
        assert len(
            {(row["tenant"], row["kind"], row["xid"], row["seq"], row["job_id"]) for row in rows}
        ) == len(rows)
        assert all(row["day"] == row["occurred_at"].strftime("%Y-%m-%d") for row in rows)

    async def test_an_attempt_carries_its_job(self, queue: Queue) -> None:
        ids = await lived(queue)
        [row] = [row for row in read() if row["kind"] == "attempt" and row["job_id"] == ids["ill"]]
        job = await queue.get(ids["ill"])
        [attempt] = [one for one in (await queue.history(ids["ill"])).records if isinstance(one, Attempt)]
        said = {
            name: row[name] for name in ("queue", "type", "key", "priority", "created_at", "scheduled_at")
        }
        assert said == {
            "queue": job.queue, "type": job.type, "key": "k", "priority": 0,
            "created_at": job.created_at, "scheduled_at": job.scheduled_at,
        }  # fmt: skip
        assert (row["started_at"], row["ended_at"]) == (attempt.started_at, attempt.ended_at)
        assert (row["outcome"], row["status"], row["error"]) == ("failed", "dead", "no such host\nat smtp")
        assert row["ready_at"] == job.scheduled_at

    async def test_what_was_asked_beyond_the_columns_is_json(self, queue: Queue) -> None:
        ids = await lived(queue)
        options = {row["job_id"]: row["options"] for row in read() if row["kind"] == "job"}
        assert json.loads(options[ids["ill"]]) == {"max_attempts": 1}
        assert json.loads(options[ids["child"]])["parents"] == [ids["well"], ids["left"]]

    async def test_a_second_attempt_was_ready_when_the_first_said_so(self, queue: Queue) -> None:
        await queue.enqueue("t")
        [first] = await queue.lease(worker="w")
        settled = await queue.nack(first, "again", retry_in=0)
        [second] = await queue.lease(worker="w")
        await queue.ack(second)
        ready = {row["attempt"]: row["ready_at"] for row in read("attempts")}
        assert ready == {1: first.job.scheduled_at, 2: settled.run_at}

    async def test_after_a_redrive_an_attempt_was_ready_when_the_job_came_back(self, queue: Queue) -> None:
        await queue.enqueue("t", max_attempts=1)
        [first] = await queue.lease(worker="w")
        await queue.nack(first, "dead")
        await queue.redrive(first.id)
        [back] = [row["occurred_at"] for row in read() if row["verb"] == "redrive"]
        [second] = await queue.lease(worker="w")
        await queue.ack(second)
        assert [row["ready_at"] for row in read("attempts") if row["attempt"] == 2] == [back]

    async def test_a_child_was_ready_when_its_last_parent_had_ended(self, queue: Queue) -> None:
        parents = [(await queue.enqueue("p")).id for _ in range(2)]
        child = await queue.enqueue("c", parents=parents, queue="later")
        ended = []
        for _ in parents:
            [held] = await queue.lease(worker="w")
            await queue.ack(held)
            ended.append((await queue.get(held.id)).ended_at)
        [first] = await queue.lease("later", worker="w")
        settled = await queue.nack(first, "again", retry_in=0)
        [second] = await queue.lease("later", worker="w")
        await queue.ack(second)
        ready = {row["attempt"]: row["ready_at"] for row in read("attempts") if row["job_id"] == child.id}
        assert ready == {1: ended[1], 2: settled.run_at}
        assert ended[1] is not None
        assert first.job.scheduled_at < ended[1]
        told = {
            row["attempt"]: row["ready_at"] for row in read() if row["job_id"] == child.id and row["attempt"]
        }
        assert told == ready

    async def test_jobs_are_as_they_stand(self, queue: Queue) -> None:
        ids = await lived(queue)
        rows = {row["job_id"]: row for row in read("jobs")}
        for job_id in ids.values():
            job, row = await queue.get(job_id), rows[job_id]
            assert (row["status"], row["payload"], row["attempts"], row["error"], row["result"]) == (
                job.status, job.payload, job.attempts, job.error, job.result,
            )  # fmt: skip
            assert (row["created_at"], row["ended_at"], row["cause"]) == (
                job.created_at,
                job.ended_at,
                job.cause,
            )

    async def test_queues_and_schedules_are_as_they_stand(self, queue: Queue) -> None:
        await lived(queue)
        await queue.put_schedule("nightly", "0 3 * * *", {"type": "report"})
        [row] = [row for row in read("queues") if row["queue"] == "mail"]
        [view] = [view for view in await queue.queues() if view.name == "mail"]
        assert {Status: row[Status] for Status in view.counts} == view.counts
        [row] = read("schedules")
        assert (row["schedule"], json.loads(row["body"])["cron"]) == ("nightly", "0 3 * * *")


class TestAsking:
    async def test_only_the_tenant_asked_for(self, queue: Queue) -> None:
        await queue.enqueue("t")
        await queue.for_tenant("other").enqueue("t")
        assert [row["tenant"] for row in read(options={"tenant": "other"})] == ["other"]
        assert len([row for row in read() if row["kind"] == "job"]) == 2

    async def test_only_the_days_asked_for(self, queue: Queue) -> None:
        await queue.enqueue("t")
        today = datetime.now(UTC).date()
        yesterday, tomorrow = str(today - timedelta(days=1)), str(today + timedelta(days=1))
        assert len(read(options={"from": yesterday, "to": tomorrow})) == 1
        assert read(options={"to": yesterday}) == [] == read(options={"from": tomorrow})
        assert len(read(options={"from": "0001-01-01", "to": "9999-12-31"})) == 1

    async def test_only_the_columns_asked_for(self, queue: Queue) -> None:
        await queue.enqueue("t", priority=7)
        assert read("jobs", ["priority", "type"]) == [{"priority": 7, "type": "t"}]

    @pytest.mark.parametrize("table", ["events", "attempts", "jobs"])
    async def test_slices_hold_every_row_once(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch, table: str
    ) -> None:
        monkeypatch.setattr(postgres, "ROWS_A_SLICE", 1)
        for n in range(20):
            await queue.enqueue("t", {"n": n})
        for leased in await queue.lease(worker="w", limit=20):
            await queue.ack(leased)
        one = reader(server_url(), {"table": table, "partitions": "4"}, ["job_id"])
        parts = [
            [row["job_id"] for batch in one.read(part) for row in batch.to_pylist()]
            for part in one.partitions()
        ]
        assert len(parts) == 4
        assert all(parts)
        assert sorted(job_id for part in parts for job_id in part) == sorted(
            row["job_id"] for row in read(table, ["job_id"])
        )

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"table": "nothing"}, "table must be one of events"),
            ({"from": "soon"}, "from must be a day"),
            ({"from": "2031-01-02", "to": "2031-01-01"}, "to must not be before from, which is 2031-01-02"),
            ({"table": "queues", "from": "2031-01-01"}, "from must be given for events, jobs, attempts"),
            (
                {"table": "schedules", "to": "2031-01-01"},
                "to must be given for .*: schedules are as they stand",
            ),
            ({"partitions": "0"}, "partitions must be a whole number"),
        ],
    )
    def test_bad_options_are_refused(self, options: dict[str, str], said: str) -> None:
        with pytest.raises(InvalidInput, match=said):
            reader(server_url(), options, [])

    def test_an_unknown_column_is_refused(self) -> None:
        with pytest.raises(InvalidInput, match="have only columns of jobs"):
            reader(server_url(), {"table": "jobs"}, ["jobid"])

    def test_a_store_without_a_reader_is_refused(self) -> None:
        with pytest.raises(UnknownStore, match="memory://"):
            open_reader("memory://")


class TestPushdown:
    def pushed(self, *filters: Any, table: str = "jobs") -> tuple[Rows, list[Any]]:
        one = reader(server_url(), {"table": table, "pushdown": "true"}, list(SOURCE[table]))
        assert isinstance(one, PushdownReader)
        rest = list(one.pushFilters(list(filters)))
        return [
            row for part in one.partitions() for batch in one.read(part) for row in batch.to_pylist()
        ], rest

    def test_without_the_option_spark_is_given_no_pushdown(self) -> None:
        assert type(reader(server_url(), {}, [])) is Reader

    async def test_conditions_are_evaluated_by_the_store(self, queue: Queue) -> None:
        for n in range(6):
            await queue.enqueue(f"t{n}", priority=n, key=f"it's\\{n}" if n else None)
        now = await queue.store.now()
        for filter, left in [
            (spark_filters.EqualTo(("type",), "t3"), {3}),
            (spark_filters.EqualTo(("key",), "it's\\2"), {2}),
            (spark_filters.GreaterThan(("priority",), 3), {4, 5}),
            (spark_filters.LessThanOrEqual(("priority",), 1), {0, 1}),
            (spark_filters.In(("priority",), (1, 5, 9)), {1, 5}),
            (spark_filters.IsNull(("key",)), {0}),
            (spark_filters.IsNotNull(("key",)), {1, 2, 3, 4, 5}),
            (spark_filters.GreaterThan(("created_at",), now), set()),
            (spark_filters.LessThan(("created_at",), now), {0, 1, 2, 3, 4, 5}),
            (spark_filters.EqualTo(("cancel_requested",), True), set()),
        ]:
            rows, rest = self.pushed(filter)
            assert ({row["priority"] for row in rows}, rest) == (left, []), filter

    async def test_texts_are_compared_by_bytes_as_spark_does(self, queue: Queue) -> None:
        for key in ("Z", "a", "é"):
            await queue.enqueue("t", key=key)
        rows, _ = self.pushed(spark_filters.GreaterThan(("key",), "Z"))
        assert {row["key"] for row in rows} == {"a", "é"}
        # The server of these tests sorts so by itself; others do not.
        assert Condition("key", ">", ("Z",)).sql({"key": "string"}) == """"key" COLLATE "C" > E'Z'"""

    def test_what_does_not_translate_exactly_is_left_to_spark(self) -> None:
        kinds = dict(SOURCE["jobs"])
        for filter in (
            spark_filters.Not(spark_filters.EqualTo(("type",), "t")),
            spark_filters.StringContains(("type",), "t"),
            spark_filters.EqualTo(("type",), "a\0b"),
            spark_filters.EqualTo(("created_at",), datetime(2026, 1, 1)),  # noqa: DTZ001
            spark_filters.EqualTo(("priority",), "1"),
            spark_filters.EqualTo(("nothing",), 1),
            spark_filters.In(("priority",), (1, None)),
            spark_filters.EqualNullSafe(("priority",), None),
        ):
            assert translated([filter], kinds) == ([], [filter])

    async def test_a_condition_on_events_holds_for_every_kind(self, queue: Queue) -> None:
        await lived(queue)
        rows, _ = self.pushed(spark_filters.EqualTo(("queue",), "mail"), table="events")
        assert {row["kind"] for row in rows} == {"job", "attempt", "change"}
        assert rows == [row for row in read() if row["queue"] == "mail"]


async def test_the_url_may_carry_what_only_penstock_knows(queue: Queue) -> None:
    await queue.enqueue("t")
    url = server_url()
    theirs = f"{url}{'&' if '?' in url else '?'}pooled=true&options=-c%20statement_timeout%3D5s"
    ask = asked({"table": "jobs"})
    found = open_reader(theirs)
    assert sum(batch.num_rows for one in found.slices(ask, 1) for batch in found.read(ask, one)) == 1


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("postgresql:///penstock?host=/run/db", "postgresql:///penstock?host=/run/db"),
        ("postgresql:///penstock?pooled=true&host=/run/db", "postgresql:///penstock?host=/run/db"),
        ("postgres://u:a%20b@h/d?application_name=My%20App&pooled=true", "postgres://u:a%20b@h/d?application_name=My%20App"),
        ("postgresql://h/d?pooled=true", "postgresql://h/d"),
    ],
)  # fmt: skip
def test_the_rest_of_the_url_stays_to_the_letter(url: str, plain: str) -> None:
    assert postgres.plain_url(url) == plain


@pytest.mark.parametrize(
    "url", ["postgresql://u:hunter%2@h/d", "postgresql://u:h@h/d?pass%2Fword=hunter&x%=1"]
)
def test_a_url_that_postgresql_cannot_read_is_refused_by_the_driver_and_not_repeated(url: str) -> None:
    schema = SimpleNamespace(names=["n"])
    for opens in (open_reader, lambda url: writer(url, {"type": "t", "keyColumns": "n"}, schema, False)):
        with pytest.raises(InvalidInput, match="url must be one that PostgreSQL's library reads") as refused:
            opens(url)
        assert "hunter" not in repr(refused.value.facts)
        assert refused.value.__context__ is None, "which would be shown with it"
