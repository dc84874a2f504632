"""The data source `penstock`, where Spark looks for it: `spark.read.format("penstock")` finds this package by its name."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

from penstock.lake.source import options
from penstock.lake.source.asking import asked
from penstock.lake.tables import SOURCE, ddl


class DefaultSource(DataSource):
    """Jobs, attempts, queues, schedules and everything that happened; and a door for many new jobs."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> str:
        return ddl(SOURCE[asked(self.options).table])

    def reader(self, schema: Any) -> Any:
        from penstock.lake.source.reading import reader

        return reader(options.url(self.options), self.options, schema.names)

    def streamReader(self, schema: Any) -> Any:  # noqa: N802
        from penstock.lake.source.reading import stream_reader

        return stream_reader(options.url(self.options), self.options, schema.names)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        from penstock.lake.source.writing import writer

        return writer(options.url(self.options), self.options, schema, overwrite)
