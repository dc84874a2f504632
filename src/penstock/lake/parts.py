"""Spark's side of a lake's folders: tables read from the parts that count, and new parts written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.lake.manifest import PART, WHOLE, Lake, Manifest, Parts
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


class Files:
    """Reads and writes the folders of one lake. Nothing it writes counts until a manifest names it."""

    def __init__(self, spark: SparkSession, lake: Lake, run: str, schemas: Mapping[str, Table]) -> None:
        for name, value in NEEDED.items():
            spark.conf.set(name, value)
        self._spark, self._lake, self._run = spark, lake, run
        self._schemas = schemas

    def read(self, manifest: Manifest, table: str, days: Iterable[str] | None = None) -> DataFrame:
        """A table, or some days of it."""
        return self.folders(table, manifest.folders(table, days))

    def folders(self, table: str, folders: Sequence[str]) -> DataFrame:
        schema = ddl(self._schemas[table])
        if not folders:
            return self._spark.createDataFrame([], schema)
        # With the schema at hand no file is opened to find it, and one that lacks a newer column has nulls there.
        return self._spark.read.schema(schema).parquet(*map(self._lake.storage.path, folders))

    def write(self, frame: DataFrame, layer: str, table: str, batch: int, day: Column | None) -> Parts:
        """Write a table's rows into a folder of their own, by day if told which, and make them last."""
        folder = f"{layer}/{table}/{batch:06d}-{self._run}"
        path = self._lake.storage.path(folder)
        if day is None:
            frame.coalesce(1).write.parquet(path)  # small: the last step as one task, not another after it
            parts = {WHOLE: (folder,)}
        else:
            # As a date the name is the same, and rows are sorted by a number where texts would be compared.
            frame = frame.withColumn(PART.rstrip("="), day.cast("date"))
            if layer == "gold":
                frame = frame.repartition(PART.rstrip("="))  # small: one file a day
            frame.write.partitionBy(PART.rstrip("=")).parquet(path)
            found = [name for name in self._lake.storage.folders(folder) if name.startswith(PART)]
            parts = {name.removeprefix(PART): (f"{folder}/{name}",) for name in found}
        self._lake.storage.sync(folder)
        return parts


def born() -> Column:
    """On which day the job was created that an event is about; for one that nobody knows more of, the day of the event."""
    from pyspark.sql import functions as f

    from penstock.lake.transforms.times import day_of

    return f.when(f.col("job_id").isNotNull(), f.coalesce(day_of("created_at"), f.col("day")))
