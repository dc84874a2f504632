"""Spark's side of reading: which class it is given, and what it asks of a store's reader.

Instances travel to executors, so they hold plain values and open what they need there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.core.errors import InvalidInput
from penstock.lake.source.asking import Ask, Offset, asked, open_reader
from penstock.lake.source.filters import translated
from penstock.lake.source.options import flag, number
from penstock.lake.tables import SOURCE

MOST_SLICES = 8
ROWS_A_BATCH = 500_000


class Reader(DataSourceReader):
    """Reads a table as it stands."""

    def __init__(self, url: str, ask: Ask, most: int) -> None:
        self.url, self.ask, self.most = url, ask, most

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(slice) for slice in open_reader(self.url).slices(self.ask, self.most)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return open_reader(self.url).read(self.ask, partition.value)


class PushdownReader(Reader):
    """The same with filters taken along. A class of its own: where its setting is off, Spark refuses one that can."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802
        conditions, rest = translated(filters, dict(SOURCE[self.ask.table]))
        self.ask = Ask(
            self.ask.table,
            self.ask.columns,
            self.ask.tenant,
            self.ask.first_day,
            self.ask.last_day,
            (*self.ask.conditions, *conditions),
        )
        return rest


class BetweenReader(Reader):
    """Reads what lies between two places of the history: for who keeps account of them by itself."""

    def __init__(self, url: str, ask: Ask, most: int, start: Offset, end: Offset) -> None:
        super().__init__(url, ask, most)
        self.start, self.end = start, end

    def partitions(self) -> list[InputPartition]:
        slices = open_reader(self.url).between(self.start, self.end, self.ask, self.most)
        # Spark takes no list at all for a reader that cannot be cut, and reads it in one go.
        return [InputPartition(slice) for slice in slices] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return iter(()) if partition.value is None else super().read(partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads events as they settle: each of them once, however late its transaction commits."""

    def __init__(self, url: str, ask: Ask, most: int, rows: int) -> None:
        if ask.table != "events":
            raise InvalidInput("table", "be events: only what happened is a stream", ask.table)
        self.url, self.ask, self.most, self.rows = url, ask, most, rows
        self.target: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        return open_reader(self.url).first()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self.rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.target = open_reader(self.url).horizon()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return open_reader(self.url).latest(start, self.ask, most, self.target)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        slices = open_reader(self.url).between(start, end, self.ask, self.most)
        return [InputPartition(slice) for slice in slices]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return open_reader(self.url).read(self.ask, partition.value)

    def commit(self, end: Offset) -> None:
        """Nothing: what may leave the store is for the lake's manifest to say."""

    def stop(self) -> None:
        """Nothing is open."""


def reader(url: str, options: Mapping[str, str], columns: Iterable[str]) -> Reader:
    """What reads a table in one go."""
    ask, most = asked(options, tuple(columns)), number(options, "partitions", MOST_SLICES, 1, 10_000)
    if options.get("endOffset") is not None:
        return BetweenReader(url, ask, most, _place(options, "startOffset"), _place(options, "endOffset"))
    kind = PushdownReader if flag(options, "pushdown") else Reader
    return kind(url, ask, most)


def stream_reader(url: str, options: Mapping[str, str], columns: Iterable[str]) -> StreamReader:
    """What reads events batch by batch."""
    return StreamReader(
        url,
        asked(options, tuple(columns)),
        number(options, "partitions", MOST_SLICES, 1, 10_000),
        number(options, "maxRowsPerBatch", ROWS_A_BATCH, 1, 1_000_000_000),
    )


def _place(options: Mapping[str, str], name: str) -> Offset:
    try:
        return msgspec.json.decode(options.get(name) or "", type=Offset)
    except msgspec.DecodeError:
        raise InvalidInput(name, "be an offset of this source, as JSON", options.get(name)) from None
