"""Run by test_source_spark.py in a process of its own: write, read and filter in a Spark that is not this process."""

from __future__ import annotations

import json
import sys

from penstock.lake.session import session

SMALL = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1", "spark.executor.memory": "512m"}


def main(kind: str, url: str) -> None:
    spark = session(remote="local[1]") if kind == "connect" else session("local-cluster[2,1,1024]", **SMALL)
    try:
        rows = spark.range(0, 50, 1, 2).selectExpr(
            "id AS n", "'t' AS type", "CAST(id % 5 AS int) AS priority"
        )
        rows.write.format("penstock").options(url=url, keyColumns="n", queue="far").mode("append").save()
        jobs = spark.read.format("penstock").options(url=url, pushdown="true").load("jobs")
        events = spark.read.format("penstock").options(url=url).load()
        found = {
            "jobs": jobs.count(),
            "filtered": jobs.where("priority = 3").count(),
            "events": events.count(),
        }
    finally:
        spark.stop()
    print(json.dumps(found))


main(*sys.argv[1:])
