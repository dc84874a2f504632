"""Jobs from the rows of a DataFrame, without Spark: each once, by the rules of enqueue, and no row dropped without a word."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from math import inf, nan
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from penstock import Queue
from penstock.core.errors import InvalidInput
from penstock.core.job import Job, Status
from support.postgres import EmptyPostgresStore, server_url
from support.spark import WITHOUT

pytest.importorskip("pyspark", reason=WITHOUT)

import pyarrow as pa

from penstock.lake.source import bulk, quick, writing
from penstock.lake.source.rows import shape
from penstock.lake.source.writing import BadRows, Writer, Wrote, writer

TIMES = pa.timestamp("us", tz="UTC")
AT = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)


class Schema:
    """As much of Spark's as the writer looks at."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)


@pytest.fixture
async def queue() -> AsyncIterator[Queue]:
    async with Queue(EmptyPostgresStore(None)) as queue:
        await queue.queues()
        yield queue


@pytest.fixture
def report(tmp_path: Path) -> dict[str, str]:
    return {"onBadRows": "report", "rejectedPath": str(tmp_path / "rejected")}


def writes(table: pa.Table, **options: str) -> Writer:
    return writer(server_url(), {"type": "t", **options}, Schema(*table.column_names), False)


def write(table: pa.Table, **options: str) -> Wrote:
    return writes(table, **options).write(iter(table.to_batches()))


async def jobs(queue: Queue) -> list[Job]:
    return list((await queue.find(limit=1_000)).jobs)


def numbers(n: int, **more: Any) -> pa.Table:
    return pa.table({"n": list(range(n)), "payload": [f'{{"n":{i}}}' for i in range(n)], **more})


class TestOnce:
    async def test_rows_written_once_more_make_no_new_jobs(self, queue: Queue) -> None:
        rows = numbers(20)
        assert write(rows, keyColumns="n") == Wrote(made=20)
        assert write(rows, keyColumns="n") == Wrote(known=20)
        assert sorted(json.loads(job.payload)["n"] for job in await jobs(queue)) == list(range(20))

    async def test_keys_are_told_apart_by_type_and_queue(self, queue: Queue) -> None:
        write(numbers(2), keyColumns="n", queue="a")
        assert write(numbers(2), keyColumns="n", queue="b").made == 2
        assert write(numbers(2), keyColumns="n", queue="b", type="u").made == 2

    async def test_a_key_twice_in_one_slice_is_one_job(self, queue: Queue) -> None:
        rows = pa.table({"n": [1, 1, 2]})
        assert write(rows, keyColumns="n") == Wrote(made=2, known=1)

    async def test_rows_that_were_there_among_new_ones_are_known(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writing, "ROWS_A_SLICE", 10)
        copied, ways = bulk._copied, []

        def noted(*given: Any) -> bool:
            ways.append(copied(*given))
            return ways[-1]

        monkeypatch.setattr(bulk, "_copied", noted)
        write(numbers(40).slice(15, 1), keyColumns="n")
        assert write(numbers(40), keyColumns="n") == Wrote(made=39, known=1)
        # The second slice meets one and is then staged, as is the next; that has none, and the last goes straight again.
        assert ways == [True, True, False, True]
        assert sorted(json.loads(job.payload)["n"] for job in await jobs(queue)) == list(range(40))
        assert (await queue.queue("default")).counts[Status.QUEUED] == 40

    async def test_two_that_write_the_same_rows_at_once_make_each_job_once(self, queue: Queue) -> None:
        """As a task that was given up for dead and its second try do."""
        rows, done = numbers(500), []
        threads = [
            threading.Thread(target=lambda: done.append(write(rows, keyColumns="n"))) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(one.made for one in done) == 500
        assert sum(one.known for one in done) == 1_000
        [view] = await queue.queues()
        assert view.counts[Status.QUEUED] == 500

    async def test_a_slice_that_fails_leaves_nothing(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writing, "ROWS_A_SLICE", 10)
        taken = bulk.take_in
        calls = []

        def breaks(*given: Any, **options: Any) -> Any:
            answer = taken(*given, **options)
            calls.append(answer)
            if len(calls) == 2:
                raise OSError("the executor is gone")
            return answer

        monkeypatch.setattr(writing, "take_in", breaks)
        with pytest.raises(OSError, match="gone"):
            write(numbers(30), keyColumns="n")
        assert len(await jobs(queue)) == 10
        assert write(numbers(30), keyColumns="n") == Wrote(made=20, known=10)

    @pytest.mark.parametrize("keys", [{"keyColumns": "n"}, {}], ids=["keyColumns", "idempotency_key"])
    async def test_nothing_is_left_of_a_slice_with_a_row_that_is_refused_by_itself(
        self, queue: Queue, keys: dict[str, str]
    ) -> None:
        """Nine that concern nobody, or that come with a key that others may have, and one with a parent that is not there."""
        rows = pa.table(
            {
                "n" if keys else "idempotency_key": [str(n) for n in range(10)],
                "parents": pa.array([None] * 9 + [[queue.new("t").id]], pa.list_(pa.string())),
            }
        )
        with pytest.raises(BadRows, match=r"nothing of the slice .* which does not exist"):
            write(rows, **keys)
        assert await jobs(queue) == []
        assert write(rows.slice(0, 9), **keys) == Wrote(made=9)

    async def test_rows_that_lock_keys_end_a_slice_when_they_are_many(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writing, "MOST_LOCKED", 3)
        asked = ["a", None, "b", None, "c", None, "d", "e"]
        missing = pa.array([None] * 7 + [[queue.new("t").id]], pa.list_(pa.string()))
        rows = pa.table({"n": list(range(8)), "unique_key": asked, "parents": missing})
        with pytest.raises(BadRows, match="nothing of the slice that holds them"):
            write(rows, keyColumns="n")
        assert sorted(job.asked.unique_key or "" for job in await jobs(queue)) == ["", "", "", "a", "b", "c"]

    async def test_a_row_may_have_parents_in_its_own_slice(self, queue: Queue) -> None:
        root, child = queue.new("t").id, queue.new("t").id
        rows = pa.table({"id": [child, root], "parents": pa.array([[root], None], pa.list_(pa.string()))})
        assert write(rows) == Wrote(made=2)

    async def test_a_key_is_remembered_for_as_long_as_is_said(self, queue: Queue) -> None:
        write(numbers(1), keyColumns="n", keySeconds=str(30 * 86_400))
        [job] = await jobs(queue)
        assert job.asked.idempotency_window == timedelta(days=30)
        connection = await asyncpg.connect(server_url())
        await connection.execute("UPDATE penstock.request SET until = now() - interval '1 second'")
        await connection.close()
        assert write(numbers(1), keyColumns="n").made == 1

    async def test_a_column_of_idempotency_keys_is_that_of_every_producer(self, queue: Queue) -> None:
        first = await queue.enqueue("t", {"n": 0}, idempotency_key="order-0")
        rows = pa.table({"idempotency_key": ["order-0", "order-1"], "payload": ['{"n":0}', '{"n":1}']})
        assert write(rows) == Wrote(made=1, known=1)
        assert write(rows) == Wrote(known=2)
        assert first.id in {job.id for job in await jobs(queue)}

    async def test_a_column_of_ids_names_the_jobs(self, queue: Queue) -> None:
        ids = [queue.new("t").id for _ in range(3)]
        assert write(pa.table({"id": ids})) == Wrote(made=3)
        assert write(pa.table({"id": ids})) == Wrote(known=3)
        assert sorted(job.id for job in await jobs(queue)) == ids
        with pytest.raises(BadRows, match="a different job already has the id"):
            write(pa.table({"id": ids[:1], "priority": [9]}))

    async def test_an_id_twice_in_one_slice_is_one_job_and_another_body_is_refused(
        self, queue: Queue, report: dict[str, str]
    ) -> None:
        ids = [queue.new("t").id for _ in range(2)]
        rows = pa.table({"id": [*ids, *ids], "priority": [1, 2, 1, 3]})
        with pytest.raises(BadRows, match=r"1 rows are no jobs.*a different job already has the id"):
            write(rows)
        wrote = write(rows, **report)
        assert (wrote.made, wrote.known, wrote.rejected) == (2, 1, 1)

    async def test_numbers_that_are_none_are_keys_apart(self, queue: Queue) -> None:
        rows = pa.table({"n": [1.5, inf, -inf, nan], "m": [1, 1, 1, 1]})
        rest = pa.table({"n": pa.array([None], pa.float64()), "m": [1]})
        assert write(rows, keyColumns="n,m") == Wrote(made=4)
        assert write(rows, keyColumns="n,m") == Wrote(known=4)
        assert write(rest, keyColumns="n,m") == Wrote(made=1)

    async def test_without_any_key_a_write_is_refused(self, queue: Queue) -> None:
        with pytest.raises(InvalidInput, match="name the columns that tell one row from another"):
            write(numbers(1).drop_columns("n"))
        assert write(numbers(1).drop_columns("n"), allowDuplicates="true").made == 1

    @pytest.mark.parametrize("keys", [{"keyColumns": "n,m"}, {}], ids=["keyColumns", "idempotency_key"])
    async def test_a_row_that_has_none_is_no_job(
        self, queue: Queue, keys: dict[str, str], report: dict[str, str]
    ) -> None:
        names = (
            {"n": ["a", None, None, None], "m": [None, "b", None, None]}
            if keys
            else {"idempotency_key": ["a", "b", None, None]}
        )
        rows = pa.table({name: pa.array(values, pa.string()) for name, values in names.items()})
        with pytest.raises(BadRows, match=r"2 rows are no jobs.*given in each row, one of them at least"):
            write(rows, **keys)
        assert write(rows, **report, **keys).made == 2
        again = write(rows, **report, **keys)
        assert (again.made, again.known, again.rejected) == (0, 2, 2)
        if not keys:
            assert write(rows, allowDuplicates="true") == Wrote(made=2, known=2)


class TestRules:
    """Both set-based ways must leave what enqueue leaves: rows copied straight to where they belong, and rows staged first."""

    @pytest.fixture(autouse=True, params=["straight", "staged"])
    def way(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        if request.param == "staged":
            monkeypatch.setattr(bulk, "_copied", lambda *given: False)

    async def test_jobs_are_as_enqueue_makes_them(self, queue: Queue) -> None:
        rows = pa.table(
            {
                "n": [1, 2, 3],
                "type": ["a", "b", None],
                "queue": ["q", None, "q"],
                "payload": ['{"x": [1, "é"]}', None, "null"],
                "priority": pa.array([5, None, -7], pa.int32()),
                "key": ["k", None, "k"],
                "run_at": pa.array([AT, None, AT], TIMES),
                "max_attempts": pa.array([3, None, None], pa.int32()),
            }
        )
        _, rest = quick.stage(shape({"keyColumns": "n", "type": "t"}, rows.column_names), rows)
        assert len(rest) == 0  # all of them by set
        assert write(rows, keyColumns="n").made == 3
        found = {job.type: job for job in await jobs(queue)}
        assert {
            name: (job.queue, json.loads(job.payload), job.priority, job.asked.key, job.asked.run_at, job.asked.max_attempts)
            for name, job in found.items()
        } == {
            "a": ("q", {"x": [1, "é"]}, 5, "k", AT, 3),
            "b": ("default", {}, 0, None, None, None),
            "t": ("q", None, -7, "k", AT, None),
        }  # fmt: skip
        assert all(job.asked.idempotency_key for job in found.values())
        assert [(job.status, job.scheduled_at) for job in found.values() if job.asked.run_at] == [
            (Status.QUEUED, AT)
        ] * 2

    async def test_they_can_be_leased_and_counted(self, queue: Queue) -> None:
        write(numbers(5), keyColumns="n", queue="q")
        leased = await queue.lease("q", worker="w", limit=10)
        assert len(leased) == 5
        await queue.ack(leased[0])
        counts = (await queue.queue("q")).counts
        assert (counts[Status.RUNNING], counts[Status.SUCCEEDED]) == (4, 1)

    async def test_late_ones_are_leased_though_the_line_has_moved_on(self, queue: Queue) -> None:
        await queue.enqueue("t", queue="q")
        await queue.lease("q", worker="w")  # claims begin here from now on
        long_ago = datetime(2020, 1, 1, tzinfo=UTC)
        write(pa.table({"n": [1], "run_at": pa.array([long_ago], TIMES)}), keyColumns="n", queue="q")
        assert len(await queue.lease("q", worker="w")) == 1

    async def test_workers_hear_of_them(self, queue: Queue) -> None:
        connection = await asyncpg.connect(server_url())
        heard: list[str] = []
        await connection.add_listener("penstock", lambda *told: heard.append(told[-1]))
        write(numbers(3), keyColumns="n", queue="q")
        await connection.execute("SELECT 1")
        await connection.close()
        assert heard == ["default q"]

    async def test_all_of_enqueues_options_are_columns(self, queue: Queue) -> None:
        parent = (await queue.enqueue("t")).id
        rows = pa.table(
            {
                "n": [1],
                "payload": [{"struct": {"deep": [1]}}],
                "delay": [60.0],
                "expires_in": [3600],
                "ordering_key": ["o"],
                "unique_key": ["u"],
                "parents": [[parent]],
                "on_parent_failure": ["run"],
                "on_exhausted": ["hold"],
                "headers": pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string())),
                "retry": ['{"kind": "fixed", "base": 9}'],
            }
        )
        assert write(rows, keyColumns="n").made == 1
        assert write(rows, keyColumns="n").known == 1
        [job] = [job for job in await jobs(queue) if job.id != parent]
        asked = job.asked
        assert (asked.ordering_key, asked.unique_key, asked.parents, asked.on_exhausted) == (
            "o", "u", (parent,), "hold",
        )  # fmt: skip
        assert (asked.delay, asked.expires_in) == (timedelta(minutes=1), timedelta(hours=1))
        assert json.loads(job.payload) == {"struct": {"deep": [1]}}
        assert asked.headers == '{"a":"b"}'
        assert asked.retry is not None
        assert (asked.retry.base, job.status) == (9, Status.WAITING)

    async def test_both_ways_know_each_others_keys(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(numbers(4), keyColumns="n", keySeconds="1000")
        monkeypatch.setattr(quick, "_COLUMNS", set[str]())  # now row by row
        assert write(numbers(4), keyColumns="n", keySeconds="1000") == Wrote(known=4)

    async def test_tenants_are_apart(self, queue: Queue) -> None:
        write(numbers(2), keyColumns="n")
        assert write(numbers(2), keyColumns="n", tenant="other").made == 2
        assert len(await jobs(queue.for_tenant("other"))) == 2


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a name": ({"type": ["no good"]}, "type must be 1 to 128 letters"),
    "a priority": ({"priority": [40_000]}, "priority must be a whole number"),
    "a key": ({"key": [""]}, "key must be 1 to 512"),
    "JSON": ({"payload": ['{"a":']}, "payload must be JSON"),
    "a number": ({"payload": ["1e999"]}, "payload must be JSON"),
    "half a character": ({"payload": ['"\\ud800"']}, "payload must be JSON"),
    "depth": ({"payload": ["[" * 201 + "]" * 201]}, "nested at most 200 deep"),
    "a depth beyond reading": ({"payload": ["[" * 5000 + "]" * 5000]}, "payload must be JSON"),
    "a moment": ({"run_at": pa.array([datetime(1950, 1, 1, tzinfo=UTC)], TIMES)}, "run_at must lie between"),
    "attempts": ({"max_attempts": [0]}, "max_attempts must be"),
    "a parent": ({"parents": [["x"]]}, "parents must be a UUID"),
}


class TestBadRows:
    @pytest.mark.parametrize("what", BAD)
    async def test_what_enqueue_refuses_is_refused(self, queue: Queue, what: str) -> None:
        columns, said = BAD[what]
        with pytest.raises(BadRows, match=said):
            write(pa.table({"n": [1], **columns}), keyColumns="n")
        assert await jobs(queue) == []

    async def test_good_neighbours_go_through_and_bad_ones_are_written_down(
        self, queue: Queue, tmp_path: Path
    ) -> None:
        rows = pa.table({"n": [1, 2, 3], "payload": ["{}", "oops", "[1]"]})
        one = writes(rows, keyColumns="n", onBadRows="report", rejectedPath=str(tmp_path))
        wrote = one.write(iter(rows.to_batches()))
        assert (wrote.made, wrote.rejected, len(wrote.examples)) == (2, 1, 1)
        [line] = (tmp_path / one.load / "part-00000.jsonl").read_text().splitlines()
        assert json.loads(line)["row"] == {"n": 2, "payload": "oops"}
        assert "payload must be JSON" in json.loads(line)["reason"]

    async def test_what_json_has_no_word_for_is_written_down_too(
        self, queue: Queue, tmp_path: Path, report: dict[str, str]
    ) -> None:
        days = pa.array([[(AT.date(), nan)]], pa.map_(pa.date32(), pa.float64()))
        rows = pa.table({"n": [1.5], "headers": days, "key": pa.array([b"\xff"])})
        assert write(rows, keyColumns="n", **report).rejected == 1
        [file] = (tmp_path / "rejected").glob("*/*.jsonl")
        row = json.loads(file.read_text(), parse_constant=pytest.fail)["row"]
        assert row == {"n": 1.5, "headers": {"2031-05-06": "nan"}, "key": "b'\\xff'"}

    async def test_they_are_told_to_whoever_runs_the_write(
        self, queue: Queue, caplog: pytest.LogCaptureFixture, report: dict[str, str]
    ) -> None:
        rows = pa.table({"n": [1], "payload": ["oops"]})
        one = writes(rows, keyColumns="n", **report)
        one.commit([one.write(iter(rows.to_batches())), None])
        assert f"1 rows are no jobs; all of them are in {report['rejectedPath']}/{one.load}" in caplog.text
        assert "; the first: payload must be JSON" in caplog.text

    async def test_a_key_that_came_with_another_body_is_refused(
        self, queue: Queue, report: dict[str, str]
    ) -> None:
        write(numbers(1), keyColumns="n")
        other = pa.table({"n": [0, 1], "payload": ["[]", "[]"]})
        with pytest.raises(BadRows, match="with a different body"):
            write(other, keyColumns="n")
        assert len(await jobs(queue)) == 1
        wrote = write(other, keyColumns="n", **report)
        assert (wrote.made, wrote.rejected) == (1, 1)

    async def test_a_parent_that_is_not_there_is_refused(self, queue: Queue) -> None:
        rows = pa.table({"n": [0], "parents": [[queue.new("t").id]]})
        with pytest.raises(BadRows, match="which does not exist"):
            write(rows, keyColumns="n")

    @pytest.mark.parametrize(
        ("columns", "options", "said"),
        [
            (["n", "colour"], {"keyColumns": "n"}, "have only columns that enqueue takes"),
            (["n"], {"keyColumns": "m"}, "keyColumns must be columns of the rows"),
            (["n", "id"], {"keyColumns": "n"}, "not be given with a column id"),
            (["n"], {"keyColumns": "n", "onBadRows": "ignore"}, "be fail or report"),
            (["n"], {"keyColumns": "n", "onBadRows": "report"}, "rejectedPath must say where"),
            (["n"], {"keyColumns": "n", "type": ""}, "type must be a column of the rows"),
            (["n"], {"keyColumns": "n", "tenant": "a b"}, "tenant must be"),
        ],
    )
    def test_bad_options_are_refused(self, columns: list[str], options: dict[str, str], said: str) -> None:
        with pytest.raises(InvalidInput, match=said):
            writer(server_url(), {"type": "t", **options}, Schema(*columns), False)

    def test_nothing_is_overwritten(self) -> None:
        with pytest.raises(InvalidInput, match="mode must be append"):
            writer(server_url(), {"type": "t", "keyColumns": "n"}, Schema("n"), True)
