"""The data source in a real Spark: found by name, read, written and streamed, with tasks that fail and a driver that is killed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from lake.elsewhere import streamed
from penstock import Queue
from penstock.connecting import connect
from penstock.core.job import Status
from penstock.lake.session import COLLECTOR, JVM, SparkAway, _java_options, session
from penstock.lake.tables import SOURCE, ddl
from support.postgres import EmptyPostgresStore, server_url
from support.spark import QUICK, need_spark

pytestmark = pytest.mark.spark

HERE = Path(__file__).parent


@pytest.fixture
async def queue() -> AsyncIterator[Queue]:
    async with Queue(EmptyPostgresStore(None)) as queue:
        await queue.queues()
        yield queue


def source(spark: Any, table: str = "events", **options: str) -> Any:
    return spark.read.format("penstock").options(url=server_url(), **options).load(table)


async def test_tables_are_read_by_name_alone(spark: Any, queue: Queue) -> None:
    await queue.enqueue_many([{"type": "t", "priority": n} for n in range(10)])
    [leased] = await queue.lease(worker="w")
    await queue.nack(leased, "é\n")
    from pyspark.sql.types import StructType

    for table, columns in SOURCE.items():
        found = source(spark, table)
        assert found.schema.simpleString() == StructType.fromDDL(ddl(columns)).simpleString()
    assert source(spark, "jobs").count() == 10
    assert sorted(row.kind for row in source(spark).collect()) == ["attempt", *["job"] * 10]
    [row] = source(spark, "attempts").collect()
    assert (row.job_id, row.error, row.outcome) == (leased.id, "é\n", "failed")
    assert row.started_at.astimezone() == leased.job.lease.taken_at  # type: ignore[union-attr]


async def test_filters_go_down_and_columns_are_pruned_by_the_schema(spark: Any, queue: Queue) -> None:
    await queue.enqueue_many([{"type": "t", "priority": n} for n in range(10)])
    found = spark.read.format("penstock").schema("priority int, job_id string")
    found = found.options(url=server_url(), table="jobs", pushdown="true").load()
    few = found.where("priority in (3, 5) and job_id is not null")
    plan = few._jdf.queryExecution().executedPlan().toString()
    assert "Filter [" not in plan
    assert "Filter (" not in plan
    assert sorted(row.priority for row in few.collect()) == [3, 5]
    odd = found.where("priority % 2 = 1 and priority > 4")
    assert sorted(row.priority for row in odd.collect()) == [5, 7, 9]


async def test_time_filters_mean_the_same_to_both(spark: Any, queue: Queue) -> None:
    await queue.enqueue("t")
    now = await queue.store.now()
    await queue.enqueue("t")
    found = source(spark, "jobs", pushdown="true")
    from pyspark.sql.functions import lit

    assert found.where(found.created_at < lit(now)).count() == 1


@pytest.mark.parametrize("store", ["database", "folder"])
async def test_a_write_is_exact_though_tasks_fail_before_and_after_their_commit(
    spark: Any, queue: Queue, tmp_path: Path, store: str
) -> None:
    """Each task fails once: the even ones with rows in hand and none written, the odd ones with all written."""
    from pyspark import TaskContext

    from penstock.lake.source.writing import DoorWriter, PostgresWriter, writer
    from pyspark_penstock import DefaultSource

    base: Any = PostgresWriter if store == "database" else DoorWriter
    url = server_url() if store == "database" else f"file:{tmp_path}/queue"
    told = tmp_path / "told"
    told.mkdir()

    class Failing(base):
        def write(self, iterator: Any) -> Any:
            context = TaskContext.get()
            assert context is not None
            number = context.partitionId()
            if context.attemptNumber() > 0:
                return super().write(iterator)
            wrote = super().write(self.breaking(iterator) if number % 2 == 0 else iterator)
            (told / f"after-{number}").write_text(str(wrote.made))
            raise OSError("planted: after the commit")

        @staticmethod
        def breaking(iterator: Any) -> Any:
            yield from iterator
            raise OSError("planted: before the commit")

    class Planted(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "planted"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            found = writer(self.options["url"], self.options, schema, overwrite)
            found.__class__ = Failing
            return found

    spark.dataSource.register(Planted)
    rows = spark.range(0, 400, 1, 4).selectExpr("id AS n", "'t' AS type", "to_json(struct(id)) AS payload")
    for name in ("planted", "penstock"):
        again = rows.write.format(name).options(url=url, keyColumns="n", queue="bulk")
        again.mode("append").save()
    assert {name: (told / name).read_text() for name in os.listdir(told)} == {
        "after-1": "100",
        "after-3": "100",
    }
    async with connect(url) as door:
        assert (await door.queue("bulk")).counts[Status.QUEUED] == 400
    found = spark.read.format("penstock").options(url=url).load("jobs").select("payload").collect()
    assert sorted(json.loads(row.payload)["id"] for row in found) == list(range(400))


async def test_bad_rows_fail_the_write_and_say_which(spark: Any, queue: Queue) -> None:
    frame = spark.range(0, 2, 1, 1).selectExpr("id AS n", "if(id = 0, '{}', 'oops') AS payload")
    writer = frame.write.format("penstock").options(url=server_url(), keyColumns="n", type="t")
    with pytest.raises(Exception, match="payload must be JSON"):
        writer.mode("append").save()


async def test_a_stream_killed_in_mid_batch_skips_nothing_and_tells_nothing_twice(
    spark: Any, queue: Queue, tmp_path: Path
) -> None:
    made = [(await queue.enqueue("t", {"n": n})).id for n in range(30)]
    late = await asyncpg.connect(server_url())
    await late.execute("BEGIN")
    job = queue.new("t")
    await queue.store.enqueue_in(late, queue.tenant, [job])  # type: ignore[attr-defined]
    made += [job.id, *[(await queue.enqueue("t")).id for _ in range(5)]]

    def take(frame: Any, batch: int) -> None:
        rows = [row.job_id for row in frame.select("job_id").collect()]
        (tmp_path / f"batch-{batch}.json").write_text(json.dumps(rows))
        if batch == 1 and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            raise OSError("planted: the driver is gone in mid-batch")

    def run() -> None:
        stream = spark.readStream.format("penstock").options(url=server_url(), maxRowsPerBatch="12").load()
        query = (
            stream.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with pytest.raises(Exception, match="planted"):
        run()
    run()
    await late.execute("COMMIT")
    await late.close()
    run()
    files = [name for name in os.listdir(tmp_path) if name.startswith("batch-")]
    batches = [json.loads((tmp_path / name).read_text()) for name in files]
    seen = [job_id for rows in batches for job_id in rows]
    assert len(batches) >= 4
    assert sorted(seen) == sorted(made)


def elsewhere(kind: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HERE / "elsewhere.py"), kind, server_url()],
        cwd=folder, capture_output=True, text=True, timeout=900, check=False, env={**os.environ, **QUICK, **variables},
    )  # fmt: skip


@pytest.mark.long
def test_what_people_set_for_their_java_stays_and_comes_after_ours(tmp_path: Path) -> None:
    theirs = "-Dtheirs=yes -XX:Tier4BackEdgeThreshold=50000 -XX:+UseG1GC"  # beside any other collector Java would not start
    (tmp_path / "spark-defaults.conf").write_text(f"spark.driver.extraJavaOptions {theirs}\n")
    done = elsewhere("options", tmp_path, SPARK_CONF_DIR=str(tmp_path), JDK_JAVA_OPTIONS="")
    assert done.returncode == 0, done.stderr[-3000:]
    given = json.loads(done.stdout.splitlines()[-1])
    at = [given.index(one) for one in (*JVM.split(), *theirs.split())]
    assert at == sorted(at)
    assert " WARN " not in done.stderr, "what asks nothing of anybody is not said"


def test_a_collector_is_named_only_where_people_have_named_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name, value in os.environ.items() if "GC" in value]:
        monkeypatch.delenv(name)
    assert COLLECTOR in _java_options({})
    assert COLLECTOR not in _java_options({"spark.driver.extraJavaOptions": "-Xss4m -XX:+UseZGC"})
    with monkeypatch.context() as patched:
        patched.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseSerialGC")
        assert COLLECTOR not in _java_options({})
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert COLLECTOR in _java_options({})
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.defaultJavaOptions -XX:+UseG1GC\n")
    assert COLLECTOR not in _java_options({})


def test_a_connect_server_that_is_not_there_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(SparkAway, match=f"no Spark Connect server answers at localhost:{port}"):
        session(remote=f"sc://localhost:{port}")


@pytest.mark.long
def test_spark_logs_as_people_have_said(tmp_path: Path) -> None:
    (tmp_path / "log4j2.properties").write_text(
        "rootLogger.level = info\nrootLogger.appenderRef.a.ref = a\nappender.a.type = Console\nappender.a.name = a\n"
        "appender.a.target = SYSTEM_ERR\nappender.a.layout.type = PatternLayout\nappender.a.layout.pattern = theirs: %m%n\n"
    )
    done = elsewhere("options", tmp_path, SPARK_CONF_DIR=str(tmp_path))
    assert "theirs: Unable to load native-hadoop library" in done.stderr, "which ours leaves out"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["connect", "cluster"])
async def test_it_works_elsewhere(kind: str, queue: Queue, tmp_path: Path) -> None:
    """Over Spark Connect, and with executors that are processes of their own."""
    need_spark()
    done = elsewhere(kind, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "jobs": 50, "filtered": 10, "events": 50, "streamed": 50, "rejected": [0, 5, 10, 15],
    }  # fmt: skip
    assert (await queue.queue("far")).counts[Status.QUEUED] == 50
    assert (await queue.queue("ill")).counts[Status.QUEUED] == 16


@pytest.mark.long
async def test_a_stream_whose_driver_dies_goes_on_where_it_was(
    spark: Any, queue: Queue, tmp_path: Path
) -> None:
    made = [(await queue.enqueue("t", {"n": n})).id for n in range(30)]
    assert elsewhere("stream", tmp_path).returncode == 9
    streamed(spark, server_url(), tmp_path)
    files = [name for name in os.listdir(tmp_path) if name.startswith("batch-")]
    seen = [job_id for name in files for job_id in json.loads((tmp_path / name).read_text())]
    assert sorted(seen) == sorted(made)
