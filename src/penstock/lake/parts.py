"""Spark's side of a lake's folders: tables read from the parts that count, and new parts written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.lake.manifest import NAME, PART, WHOLE, Lake, LakeError, Manifest, Parts
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


LACKS = ("No FileSystem for scheme", "FileSystem not found")
"""What a Hadoop says that knows no such places, or has heard of them and was not given the jar."""


class LakeUnreachable(LakeError):
    """The cluster's Spark knows no such bucket. Give it the file system's jar; or run on this machine, which needs none."""

    code = "lake_unreachable"

    def __init__(self, place: str) -> None:
        super().__init__(
            f"the cluster's Spark has no file system for {place}, and its machines do not see this one's files; start it "
            "with the jar for such places (for s3:// hadoop-aws), or run with --master 'local[*]', which needs none",
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

    def read(self, manifest: Manifest, table: str, days: Iterable[str] | None = None) -> DataFrame:
        """A table, or some days of it."""
        return self.folders(table, manifest.folders(table, days))

    def folders(self, table: str, folders: Sequence[str]) -> DataFrame:
        schema = ddl(self._schemas[table])
        if not folders:
            return self._spark.createDataFrame([], schema)
        # With the schema at hand no file is opened to find it, and one that lacks a newer column has nulls there.
        return self._spark.read.schema(schema).parquet(*self._readable(folders))

    def write(self, frame: DataFrame, layer: str, table: str, batch: int, day: Column | None) -> Parts:
        """Write a table's rows into a folder of their own, by day if told which, and make them last."""
        folder = f"{layer}/{table}/{batch:06d}-{self._run}"
        path = self._lake.storage.draft(folder) if self._root is None else f"{self._root}/{folder}"
        if day is None:
            frame.coalesce(1).write.parquet(path)  # small: the last step as one task, not another after it
        else:
            # As a date the name is the same, and rows are sorted by a number where texts would be compared.
            frame = frame.withColumn(PART.rstrip("="), day.cast("date"))
            if layer == "gold":
                frame = frame.repartition(PART.rstrip("="))  # small: one file a day
            frame.write.partitionBy(PART.rstrip("=")).parquet(path)
        if self._root is None:
            self._lake.storage.sync(folder)
        if day is not None:
            found = [name for name in self._lake.storage.folders(folder) if name.startswith(PART)]
            return {name.removeprefix(PART): (f"{folder}/{name}",) for name in found}
        return {WHOLE: (folder,)}

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
        raise LakeUnreachable(lake.place)
    return None


def _is_here(spark: SparkSession) -> bool:
    """Whether all of Spark runs on this machine."""
    client = (
        getattr(spark, "client", None) if type(spark).__module__.startswith("pyspark.sql.connect") else None
    )
    if client is not None and client.host not in ("localhost", "127.0.0.1"):
        return False
    return bool(spark.conf.get("spark.master", "").startswith("local"))


def born() -> Column:
    """On which day the job was created that an event is about; for one that nobody knows more of, the day of the event."""
    from pyspark.sql import functions as f

    from penstock.lake.transforms.times import day_of

    return f.when(f.col("job_id").isNotNull(), f.coalesce(day_of("created_at"), f.col("day")))
