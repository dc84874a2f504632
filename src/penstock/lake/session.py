"""A Spark session as the lake wants it."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.core.errors import PenstockError
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
    # Where in the code each column was made: asked of Python and of the JVM for each, which takes longer than making it.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
}
"""For every session, our own or somebody's."""

OWN = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "3g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The code of a run's queries is the same as that of the last run's: with Spark's 100 nothing of it would be left by then.
    "spark.sql.codegen.cache.maxEntries": "2000",
}
"""For a Spark that starts in this process; one behind Spark Connect has its own."""

# Small runs are over before what planned them is worth compiling well; the loops of large ones still are, a moment later.
JVM = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000"
    " -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""For the JVM that starts in this process. What people have set for theirs comes after it, and so goes before."""
COLLECTOR = "-XX:+UseParallelGC"
"""Nobody waits for a pause here: small runs take some 5 % less. Of two collectors a JVM takes none, and does not start."""

SAYS = Path(__file__).with_name("log4j2.properties")
"""What it logs, unless people have a file of their own for that where Spark looks for one."""

LOCAL = "local[*]"
CONNECT_PORT = 15_002
KNOCK_SECONDS = 10.0


class SparkAway(PenstockError):
    """Nobody answers where the Spark Connect server is said to be. Start it, or name another."""

    code = "spark_away"

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"no Spark Connect server answers at {place}: {reason}", place=place, reason=reason)


def session(
    master: str | None = None, remote: str | None = None, *, app_name: str = "penstock", **conf: str
) -> SparkSession:
    """A session on `master` (this machine by default), or on the Spark Connect server `remote`.

    `conf` adds to what the lake sets, or overrides it: `**{"spark.driver.memory": "1g"}`.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    settings = dict(CONF)
    if remote is not None and remote.startswith("sc://"):
        _knock(remote)
    is_here = (master or LOCAL if remote is None else remote).startswith("local")
    if remote is None or is_here:
        java = find_java()
        os.environ["JAVA_HOME"] = java.home
        logger.info("Spark runs on %s", java)
        # Executors on this machine must find the packages that the driver has.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if remote is None:
        settings |= OWN
        if not is_here:
            # Executors elsewhere could not call back to the loopback address.
            del settings["spark.driver.host"], settings["spark.driver.bindAddress"]
        builder = builder.master(master or LOCAL)
    else:
        builder = builder.remote(remote)
    for name, value in {**settings, **conf}.items():
        builder = builder.config(name, value)
    with _environment(is_here, _java_options(conf)):
        return builder.getOrCreate()


def _java_options(conf: Mapping[str, str]) -> str:
    """What we would have of a JVM, as far as people have not said otherwise."""
    options = [JVM]
    said = [
        *conf.values(),
        *os.environ.values(),
        *(file.read_text(errors="replace") for file in _in_conf("spark-defaults.conf")),
    ]
    if not any(re.search(r"-XX:[+-]Use\w+GC\b", one) for one in said):
        options.append(COLLECTOR)
    if not any(_in_conf(f"log4j2.{kind}") for kind in ("properties", "xml", "json", "yaml")):
        options.append(f"-Dlog4j2.configurationFile={SAYS.as_uri()}")
    return " ".join(options)


def _in_conf(name: str) -> list[Path]:
    """Where people have a file of this name for Spark."""
    home = os.environ.get("SPARK_HOME")
    places = (os.environ.get("SPARK_CONF_DIR"), home and f"{home}/conf")
    return [file for place in places if place and (file := Path(place, name)).is_file()]


@contextmanager
def _environment(is_here: bool, options: str) -> Iterator[None]:
    """Ours, for a JVM that starts meanwhile. Not `spark.driver.extraJavaOptions`: that would take the place of people's own."""
    theirs = dict(os.environ)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{options} {theirs.get('SPARK_SUBMIT_OPTS', '')}".rstrip()
    if is_here:  # else it looks for an address by the machine's name, and warns that others cannot reach that
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    try:
        yield
    finally:
        for name in ("SPARK_SUBMIT_OPTS", "SPARK_LOCAL_IP"):
            os.environ.pop(name, None)
            if name in theirs:
                os.environ[name] = theirs[name]


def _knock(remote: str) -> None:
    """Refuse a Spark Connect server that is not there: its client would try for a quarter of an hour, and say nothing."""
    there = urlsplit(remote)
    place = (there.hostname or "", there.port or CONNECT_PORT)
    try:
        socket.create_connection(place, KNOCK_SECONDS).close()
    except OSError as error:
        raise SparkAway(f"{place[0]}:{place[1]}", str(error)) from None


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
