"""Run in a process of its own: a Spark that is not this process, one that is killed, or one on another Java."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from penstock.lake.session import session

SMALL = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1", "spark.executor.memory": "512m"}


def wrote_and_read(spark: Any, url: str) -> None:
    rows = spark.range(0, 50, 1, 2).selectExpr("id AS n", "'t' AS type", "CAST(id % 5 AS int) AS priority")
    rows.write.format("penstock").options(url=url, keyColumns="n", queue="far").mode("append").save()
    jobs = spark.read.format("penstock").options(url=url, pushdown="true").load("jobs")
    events = spark.read.format("penstock").options(url=url).load()
    found = {"jobs": jobs.count(), "filtered": jobs.where("priority = 3").count(), "events": events.count()}
    print(json.dumps({**found, "streamed": followed(spark, url), "rejected": rejected(spark, url)}))


def followed(spark: Any, url: str) -> int:
    stream = spark.readStream.format("penstock").options(url=url, maxRowsPerBatch="30").load()
    query = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
    query.awaitTermination()
    return int(spark.table("seen").count())


def rejected(spark: Any, url: str) -> list[int]:
    """The numbers of the rows that were written down, which two tasks did."""
    rows = spark.range(0, 20, 1, 2).selectExpr("id AS n", "if(id % 5 = 0, 'oops', '{}') AS payload")
    place = Path("rejected").absolute()
    where = {"onBadRows": "report", "rejectedPath": place.as_uri()}
    writing = rows.write.format("penstock").options(url=url, keyColumns="n", type="t", queue="ill", **where)
    writing.mode("append").save()
    files = list(place.glob("*/part-*.jsonl"))
    assert len(files) == 2
    return sorted(json.loads(line)["row"]["n"] for file in files for line in file.read_text().splitlines())


def streamed(spark: Any, url: str, folder: Path) -> None:
    """A file for each batch; the first to come to the second batch dies there, with its file half written."""

    def take(frame: Any, batch: int) -> None:
        rows = [row.job_id for row in frame.select("job_id").collect()]
        file = folder / f"batch-{batch}.json"
        if batch == 1 and not (folder / "killed").exists():
            (folder / "killed").touch()
            file.write_text(json.dumps(rows)[:20])
            os._exit(9)
        file.write_text(json.dumps(rows))

    stream = spark.readStream.format("penstock").options(url=url, maxRowsPerBatch="12").load()
    writing = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(folder / "checkpoint"))
    writing.trigger(availableNow=True).start().awaitTermination()


def counted(spark: Any) -> None:
    """To ten, and on which Java."""
    version = spark.sparkContext._jvm.System.getProperty("java.version")
    print(json.dumps([version, *(row.n for row in spark.range(1, 11).selectExpr("id AS n").collect())]))


def options(spark: Any) -> None:
    """What the JVM was started with."""
    runtime = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
    print(json.dumps(list(runtime.getInputArguments())))


def main(kind: str, url: str = "") -> None:
    if kind == "connect":
        spark = session(remote="local[1]")
    else:
        spark = session(
            "local-cluster[2,1,1024]" if kind == "cluster" else "local[1]",
            **({} if kind == "options" else SMALL),
        )
    try:
        if kind == "stream":
            streamed(spark, url, Path.cwd())
        elif kind == "count":
            counted(spark)
        elif kind == "options":
            options(spark)
        else:
            wrote_and_read(spark, url)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
