"""What is asked of a store's history, and who answers: the seam between Spark's classes and the stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any, Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from penstock.core.errors import InvalidInput, UnknownStore
from penstock.lake.source.filters import Condition
from penstock.lake.tables import SOURCE

KNOWN = "postgresql://, file:, s3://, gs:// and az://"
SCHEMES = ("postgresql", "postgres", "file", "s3", "gs", "az")

Offset = dict[str, Any]
"""A place in a store's history, as Spark's checkpoint keeps it. Only the store it came from can read it."""

Slice = Any
"""A part of what is asked that one task reads; the store's own, and small, since it travels."""


class Ask(Struct, frozen=True):
    """What Spark wants: which columns of a table, of which tenant (None: everyone's), of which days, under which conditions."""

    table: str
    columns: tuple[str, ...]
    tenant: str | None = None
    first_day: date | None = None
    last_day: date | None = None
    conditions: tuple[Condition, ...] = ()

    def __post_init__(self) -> None:
        if self.table not in SOURCE:
            raise InvalidInput("table", f"be one of {', '.join(SOURCE)}", self.table)
        unknown = [column for column in self.columns if column not in SOURCE[self.table]]
        if unknown:
            raise InvalidInput(
                "schema", f"have only columns of {self.table}: {', '.join(SOURCE[self.table])}", unknown[0]
            )
        for name, day in (("from", self.first_day), ("to", self.last_day)):
            if day is not None and "day" not in SOURCE[self.table]:
                dated = ", ".join(table for table, columns in SOURCE.items() if "day" in columns)
                raise InvalidInput(name, f"be given for {dated}: {self.table} are as they stand", str(day))
        if self.first_day is not None and self.last_day is not None and self.first_day > self.last_day:
            raise InvalidInput("to", f"not be before from, which is {self.first_day}", str(self.last_day))


class Reader(Protocol):
    """A store's history, read in slices that any process can read by itself, again and again."""

    def slices(self, ask: Ask, most: int) -> list[Slice]:
        """Cut all that is asked into at most so many slices of about the same size."""
        ...

    def first(self) -> Offset:
        """Where a stream begins: before everything that is kept."""
        ...

    def latest(self, start: Offset, ask: Ask, most_rows: int | None, target: Offset | None) -> Offset:
        """How far a stream may read from `start`: about `most_rows`, and no further than `target`.

        Nothing can come in below it any more. A place that this history cannot go on from is refused with InvalidInput.
        """
        ...

    def horizon(self) -> Offset:
        """How far a stream may read by now."""
        ...

    def between(self, start: Offset, end: Offset, ask: Ask, most: int) -> list[Slice]:
        """Cut what lies between two offsets into slices; the same rows each time it is asked."""
        ...

    def read(self, ask: Ask, slice: Slice) -> Iterator[Any]:
        """The rows of a slice, as Arrow record batches with the columns asked for."""
        ...


def open_reader(url: str) -> Reader:
    """The reader for the store that a URL names."""
    match urlsplit(url).scheme:
        case "postgresql" | "postgres":
            from penstock.lake.source.postgres import PostgresReader

            return PostgresReader(url)
        case "file" | "s3" | "gs" | "az":
            from penstock.lake.source.several import open_logs

            return open_logs(url)
        case _:
            raise UnknownStore(url, f"{KNOWN} as a source of the lake")


def asked(
    options: Mapping[str, str], columns: Sequence[str] | None = None, conditions: Sequence[Condition] = ()
) -> Ask:
    """What a user's options ask for."""
    table = options.get("table") or options.get("path") or "events"
    if columns is None:
        columns = tuple(SOURCE.get(table, {}))
    return Ask(
        table,
        tuple(columns),
        options.get("tenant"),
        _day(options, "from"),
        _day(options, "to"),
        tuple(conditions),
    )


def _day(options: Mapping[str, str], name: str) -> date | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidInput(name, "be a day like 2030-01-31", text) from None
