"""Spark's side of a lake's folders: tables read from the parts that count, and new parts written."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4
from weakref import WeakKeyDictionary

from penstock.lake.errors import LakeError, LakeUnwritten
from penstock.lake.folders import PART
from penstock.lake.manifest import NAME, WHOLE, Lake, Manifest, Parts, here
from penstock.lake.tables import Table, ddl

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NEEDED = {
    "spark.sql.session.timeZone": "UTC",
    # What every reader of Parquet knows; Spark's own default is older than the format's timestamps.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    # Histograms are put together by hash; after 128 cells, Spark's default, it would begin to sort them.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "20000",
}
"""Whatever session we are given, the files are the same, and made in the same way."""

IN_ONE_PLACE = {
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # One part each, and nothing is moved between tasks: no stage, and no job, but the one that writes the table.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    # Above 32 folders Spark would look into them by a job of its own.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    # What Spark does for its own developers, and for a page that nobody looks at.
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.maxPlanStringLength": "1000",
    # It finds conditions to be pushed into large reads, and takes longer than these take.
    "spark.sql.constraintPropagation.enabled": "false",
}
"""For what is small: there a query is mostly planning and starting tasks, and each stage of it costs more than its rows."""
MOST_BYTES_IN_ONE_PLACE = 16 * 1024 * 1024
"""What is larger, as its files go, is worth the work of more than one task: some 300,000 events, or more that are alike."""


LACKS = ("No FileSystem for scheme", "FileSystem not found")
"""What a Hadoop says that knows no such places, or has heard of them and was not given the jar."""


_BESIDE: WeakKeyDictionary[SparkSession, SparkSession] = WeakKeyDictionary()
"""Session → the one beside it, the same for all runs."""


TOLD_WITHIN_SECONDS = 300.0
"""Spark says at once how many rows it has written, if it does."""
PROBES = 16
"""So many tasks that hardly any machine of a cluster has none of them. Of one that has, each table's rows tell."""


class LakeUnreachable(LakeError):
    """The cluster's Spark does not get at the place. Name one that all its machines see; or run on this machine alone."""

    code = "lake_unreachable"

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(
            f"the cluster's Spark does not get at the lake in {place}: {reason}, or run with --master 'local[*]', which needs "
            "nothing of it",
            place=place,
        )


class Files:
    """Reads and writes the folders of one lake. Nothing it writes counts until a manifest names it."""

    def __init__(self, spark: SparkSession, lake: Lake, run: str, schemas: Mapping[str, Table]) -> None:
        for name, value in NEEDED.items():
            spark.conf.set(name, value)
        self._spark, self._lake, self._run = spark, lake, run
        self._schemas = schemas
        self._root = _reached(spark, lake)
        self._is_spread = self._root is None and _is_spread(spark)
        if self._is_spread and not lake.storage.roots:
            _probe(spark, lake)
        self._single = _single(spark) if self._root is None else None

    def read(self, manifest: Manifest, table: str, days: Iterable[str] | None = None) -> DataFrame:
        """A table, or some days of it."""
        return self.folders(table, manifest.folders(table, days))

    def folders(self, table: str, folders: Sequence[str]) -> DataFrame:
        return self._frame(self._spark, table, self._readable(folders))

    def ingredients(self, folders: Mapping[str, Sequence[str]]) -> dict[str, DataFrame]:
        """What another table is made from. The only place that knows of size: what is small is all in one place."""
        paths = {table: self._readable(some) for table, some in folders.items()}
        if self._single is None or _bytes(paths.values()) > MOST_BYTES_IN_ONE_PLACE:
            return {table: self._frame(self._spark, table, some) for table, some in paths.items()}
        return {table: self._frame(self._single, table, some).coalesce(1) for table, some in paths.items()}

    def _frame(self, spark: SparkSession, table: str, paths: Sequence[str]) -> DataFrame:
        columns = self._schemas[table]
        if not paths:
            # Not `createDataFrame`: of this, Spark sees that it is empty, and leaves out what would be done with it.
            nothing = ", ".join(f"CAST(NULL AS {kind}) AS `{column}`" for column, kind in columns.items())
            return spark.sql(f"SELECT {nothing} WHERE false")
        # With the schema at hand no file is opened to find it, and one that lacks a newer column has nulls there.
        return spark.read.schema(ddl(columns)).parquet(*paths)

    def write(self, frame: DataFrame, layer: str, table: str, batch: int, day: Column | None) -> Parts:
        """Write a table's rows into a folder of their own, by day if told which, and make them last."""
        from penstock.lake.transforms.nearby import nearby

        rows = None
        if self._is_spread:
            frame, rows = counted(frame)
        folder = f"{layer}/{table}/{batch:06d}-{self._run}"
        path = self._lake.storage.draft(folder) if self._root is None else f"{self._root}/{folder}"
        if day is None:
            frame.coalesce(1).write.parquet(path)  # small: the last step as one task, not another after it
        else:
            # As a date the name is the same, and rows are sorted by a number where texts would be compared.
            frame = frame.withColumn(PART.rstrip("="), day.cast("date"))
            if layer == "gold":
                frame = nearby(frame, PART.rstrip("="))  # small: one file a day
            frame.write.partitionBy(PART.rstrip("=")).parquet(path)
        if self._root is None:
            self._lake.storage.sync(folder)
        parts: Parts = {WHOLE: (folder,)}
        if day is not None:
            found = [name for name in self._lake.storage.folders(folder) if name.startswith(PART)]
            parts = {name.removeprefix(PART): (f"{folder}/{name}",) for name in found}
        if rows is not None:
            folders = [one for some in parts.values() for one in some]
            self.hold_to(table, rows(), _rows_in(self._lake, folders))
        return parts

    def hold_to(self, table: str, written: int, found: int) -> None:
        """Refuse to go on with a table of which there is less, or more, than was written."""
        if written != found:
            raise LakeUnwritten(self._lake.place, f"of {written:,} rows of {table} there are {found:,} in it")

    def _readable(self, folders: Sequence[str]) -> list[str]:
        if self._root is None:
            return self._lake.storage.fetched(folders)
        return [f"{self._root}/{folder}" for folder in folders]


def _reached(spark: SparkSession, lake: Lake) -> str | None:
    """How Spark itself calls the lake's bucket; None if files go by way of this machine."""
    for root in lake.storage.roots:
        try:
            # It looks whether there is such a file, and for that at what kind of place it is.
            spark.read.text(f"{root}/{NAME}")
        except Exception as error:
            if any(sign in str(error) for sign in LACKS):
                continue
            if "PATH_NOT_FOUND" not in str(error):
                raise
        return root
    if lake.storage.roots and not _is_here(spark):
        raise LakeUnreachable(
            lake.place,
            "it has no file system for such a bucket, and its machines do not see this one's files; start it with the jar "
            "for such places (for s3:// hadoop-aws)",
        )
    return None


def _probe(spark: SparkSession, lake: Lake) -> None:
    """Refuse a folder that some machine of a cluster does not see. Spark would say that all is well, and its rows be nowhere."""
    name = f"probe-{uuid4().hex[:8]}"
    try:
        spark.range(0, PROBES, 1, PROBES).write.parquet(lake.storage.draft(name))
        found = len(lake.storage.files(name))
    finally:
        lake.storage.remove(name)
    if found < PROBES:
        raise LakeUnreachable(
            lake.place,
            f"of {PROBES} files that its tasks have written there, this machine sees {found}; keep the lake in a folder that "
            "all of its machines have at the same place, or in a bucket",
        )


def counted(frame: DataFrame) -> tuple[DataFrame, Callable[[], int]]:
    """The same rows, and what says how many there were, once they are written."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    seen = Observation()

    def rows() -> int:
        # In a thread that nobody waits for to the end: Spark says it to those who listen, and drops what it has no room for.
        told: list[int] = []
        asking = threading.Thread(target=lambda: told.append(int(seen.get["rows"])), daemon=True)
        asking.start()
        asking.join(TOLD_WITHIN_SECONDS)
        if not told:
            raise TimeoutError(
                f"Spark has not said within {TOLD_WITHIN_SECONDS:g} s how many rows it wrote; run again"
            )
        return told[0]

    return frame.observe(seen, f.count(f.lit(1)).alias("rows")), rows


def _rows_in(lake: Lake, folders: Sequence[str]) -> int:
    """How many rows some folders have, by what their files say of themselves."""
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(file).num_rows for file in here(lake, folders))


def _single(spark: SparkSession) -> SparkSession | None:
    """A session beside this one, where what is read from one machine's files stays in one place."""
    if _is_connect(spark):
        return None  # some have no second session
    if spark in _BESIDE:
        return _BESIDE[spark]
    from pyspark import RDD

    # The newest session would be the one that all `rdd.toDF()` of this process go by.
    kept = RDD.toDF
    beside = _BESIDE[spark] = spark.newSession()
    RDD.toDF = kept
    for name, value in {**NEEDED, **IN_ONE_PLACE}.items():
        beside.conf.set(name, value)
    return beside


def _bytes(folders: Iterable[Sequence[str]]) -> int:
    total = 0
    for folder in (one for some in folders for one in some):
        with os.scandir(folder) as files:
            for file in files:
                with suppress(
                    FileNotFoundError
                ):  # another driver has just fetched it, under its draft's name
                    total += file.stat().st_size
    return total


def _is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _is_here(spark: SparkSession) -> bool:
    """Whether all of Spark runs on this machine."""
    client = getattr(spark, "client", None) if _is_connect(spark) else None
    if client is not None and client.host not in ("localhost", "127.0.0.1"):
        return False
    return bool(spark.conf.get("spark.master", "").startswith("local"))


def _is_spread(spark: SparkSession) -> bool:
    """Whether Spark works in other processes than its driver, for all we know on other machines, with disks of their own."""
    return not _is_here(spark) or spark.conf.get("spark.master", "").startswith("local-cluster")


def born() -> Column:
    """On which day the job was created that an event is about; for one that nobody knows more of, the day of the event."""
    from pyspark.sql import functions as f

    from penstock.lake.transforms.times import day_of

    return f.when(f.col("job_id").isNotNull(), f.coalesce(day_of("created_at"), f.col("day")))
