"""A Spark session as the lake wants it."""

from __future__ import annotations

import logging
import os
import sys
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING

from penstock.lake.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("penstock.lake")

CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.enabled": "true",
    # Many parts to begin with, which large shuffles need; small ones are put together again, into few files.
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "16",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "128m",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.python.filterPushdown.enabled": "true",
    # Spark would read `day=2026-01-31` back as a date; the tables say it is text.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}
"""For every session, our own or somebody's."""

OWN = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "3g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""For a Spark that starts in this process; one behind Spark Connect has its own."""

LOCAL = "local[*]"


def session(
    master: str | None = None, remote: str | None = None, *, app_name: str = "penstock", **conf: str
) -> SparkSession:
    """A session on `master` (this machine by default), or on the Spark Connect server `remote`.

    `conf` adds to what the lake sets, or overrides it: `**{"spark.driver.memory": "1g"}`.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    settings = dict(CONF)
    if remote is None or remote.startswith("local"):
        java = find_java()
        os.environ["JAVA_HOME"] = java.home
        logger.info("Spark runs on %s", java)
        # Executors on this machine must find the packages that the driver has.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if remote is None:
        settings |= OWN
        if not (master or LOCAL).startswith("local"):
            # Executors elsewhere could not call back to the loopback address.
            del settings["spark.driver.host"], settings["spark.driver.bindAddress"]
        builder = builder.master(master or LOCAL)
    else:
        builder = builder.remote(remote)
    for name, value in {**settings, **conf}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def end(spark: SparkSession, seconds: float = 30.0) -> None:
    """Stop a session, and see the JVM behind it to its end: `stop` alone leaves it to whenever this process ends."""
    from pyspark import SparkContext

    spark.stop()
    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return  # another machine's
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    process.stdin.close()  # by which it is told to leave
    try:
        process.wait(seconds)
    except TimeoutExpired:
        process.kill()
        process.wait()
