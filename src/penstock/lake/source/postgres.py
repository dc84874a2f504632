"""The history of a PostgreSQL store: Arrow batches by ADBC, and offsets that are horizons of transactions.

Rows commit out of order, so no number that grows says what a reader has had. Each row carries the transaction that wrote
it (migrations/0005_feed.sql), and a stream reads only below the oldest one that still runs: nothing more comes in there.
The price: a transaction that writes and stays open, anywhere on the server, holds the stream up for as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from msgspec import Struct

from penstock.core.errors import InvalidInput
from penstock.lake.source.arrow import arrow_schema, days
from penstock.lake.source.asking import Ask, Offset
from penstock.lake.source.queries import Span, Statement, rows_between, statements
from penstock.stores.postgres.loaded import IS_LOADED

ROWS_A_SLICE = 50_000
"""Fewer are not worth a task of their own."""
_SAMPLED = 20_000
_ROW_BYTES = 200
_FIRST_WIDTH = 1_024
_WIDER = 8

_FEED = """
SELECT f.id AS feed,
       -- And the database's own: a copy beside it counts by the same transactions.
       (SELECT s.system_identifier || '/' || d.oid FROM pg_control_system() s, pg_database d WHERE d.datname = current_database()) AS system,
       (SELECT max(xid) FROM penstock.feed_floor) AS floor,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS horizon
FROM penstock.feed f"""
# In one go: a stream that looks often is to ask no more often.
_FEED_AND_LOADED = f"SELECT f.*, ({IS_LOADED}) FROM ({_FEED}) f"

_SAMPLES = {
    "events": ("xid", "bigint", ("job", "attempt", "change")),
    "attempts": ("xid", "bigint", ("attempt",)),
    "jobs": ("id", "uuid", ("job",)),
}


class _Feed(Struct, frozen=True):
    """Whose history this is, from which transaction on it is whole, and up to which it is settled."""

    feed: str
    system: str
    floor: int
    horizon: int

    def offset(self, xid: int, floor: int) -> Offset:
        return {"xid": xid, "floor": floor, "feed": self.feed, "system": self.system}

    def check(self, offset: Offset) -> None:
        """Refuse a place of another history, one from before what is kept, and one that this history has not come to."""
        try:
            feed, system = offset["feed"], offset["system"]
            xid, floor = int(offset["xid"]), int(offset["floor"])
        except (KeyError, TypeError, ValueError):
            raise InvalidInput("the checkpoint", "hold offsets of this source", offset) from None
        if (feed, system) != (self.feed, self.system):
            raise InvalidInput(
                "the checkpoint",
                f"come from this very database (feed {self.feed}, system {self.system}); "
                "begin a new lake, or name the database that this one was made from",
                f"feed {feed}, system {system}",
            )
        if xid > max(self.horizon, self.floor):
            raise InvalidInput(
                "the checkpoint",
                f"not be ahead of the database, which has come to transaction {self.horizon:,}: it was restored from a "
                "backup; begin a new lake, or go back to the lake of that time",
                f"{xid:,}",
            )
        if self.floor > max(xid, floor):
            raise InvalidInput(
                "the checkpoint",
                f"not be older than what is kept, which is whole from transaction {self.floor:,} on: some of what "
                "came after it has left the database unread; begin a new lake",
                f"{xid:,}",
            )

    def check_between(self, start: Offset, end: Offset) -> None:
        """Refuse two places that what lies between is not all there of."""
        self.check(start)
        self.check({**end, "floor": self.floor})
        if int(start["xid"]) == 0:
            # A stream that died in its first batch asks anew where it begins; the end it had planned still says where that was.
            self.check({**start, "floor": end.get("floor")})


class PostgresReader:
    """Reads one database; opens a connection for each call and keeps none."""

    def __init__(self, url: str) -> None:
        self._url = plain_url(url)

    # ── All at once ───────────────────────────────────────────────────────────────────────────────

    def slices(self, ask: Ask, most: int) -> list[Span]:
        if ask.table not in _SAMPLES:
            return [Span()]
        column, kind, tables = _SAMPLES[ask.table]
        with self._connect() as connection:
            parents = ", ".join(f"'penstock.{table}'::regclass" for table in tables)
            [(size,)] = connection.execute(
                f"SELECT sum(pg_relation_size(inhrelid)) FROM pg_inherits WHERE inhparent IN ({parents})"
            )
            rows = max(1, int(size or 0) // _ROW_BYTES)
            number = _slices(rows, most)
            if number == 1:
                return [Span(column)]
            share = min(100.0, 100.0 * _SAMPLED / rows)
            sampled = " UNION ALL ".join(
                f"SELECT {column} FROM penstock.{table} TABLESAMPLE SYSTEM ({share})" for table in tables
            )
            bounds = _cuts(connection, f"SELECT {column} AS cut FROM ({sampled}) s", kind, number)
        return _spans(column, None, bounds, None)

    # ── As a stream ───────────────────────────────────────────────────────────────────────────────

    def first(self) -> Offset:
        with self._connect() as connection:
            feed = _own_feed(connection)
        return feed.offset(0, feed.floor)

    def horizon(self) -> Offset:
        with self._connect() as connection:
            feed = _own_feed(connection)
        return feed.offset(feed.horizon, feed.floor)

    def latest(self, start: Offset, ask: Ask, most_rows: int | None, target: Offset | None) -> Offset:
        with self._connect() as connection:
            feed = _own_feed(connection)
            feed.check(start)
            if target is not None:
                feed.check({**target, "floor": feed.floor})
            low, end = int(start["xid"]), feed.horizon if target is None else int(target["xid"])
            if most_rows is not None and low < end:
                end = _bounded(connection, ask, low, end, most_rows)
        return feed.offset(max(low, end), int(start["floor"]))

    def between(self, start: Offset, end: Offset, ask: Ask, most: int) -> list[Span]:
        low, high = int(start["xid"]), int(end["xid"])
        with self._connect() as connection:
            feed = _feed(connection)
            feed.check_between(start, end)
            if low >= high:
                return []
            rows = rows_between(ask, low, high)
            [(number,)] = connection.execute(f"SELECT count(*) FROM ({rows}) r")
            if number == 0:
                return []
            bounds = _cuts(connection, f"SELECT xid AS cut FROM ({rows}) r", "bigint", _slices(number, most))
        return _spans("xid", str(low), bounds, str(high), since=start)

    # ── On an executor ────────────────────────────────────────────────────────────────────────────

    def read(self, ask: Ask, slice: Span) -> Iterator[Any]:
        import adbc_driver_postgresql.dbapi as adbc

        schema = arrow_schema(ask)
        with adbc.connect(self._url) as connection, connection.cursor() as cursor:
            # One look for all statements: an attempt must not be told of whose job came in between.
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            for statement in statements(ask, slice):
                cursor.execute(statement.sql)
                for batch in cursor.fetch_record_batch():
                    yield _completed(batch, statement, schema)
        if slice.since is not None:
            # A day may have gone between the plan and the look at its tables.
            with self._connect() as checking:
                _feed(checking).check(slice.since)

    def _connect(self) -> Any:
        import psycopg

        return psycopg.connect(self._url, autocommit=True, prepare_threshold=None)


def plain_url(url: str) -> str:
    """A store's URL as libpq takes it: without what only Penstock knows, and else to the letter."""
    # Not urlunsplit and urlencode: those take slashes away, and write a blank as a +, which libpq takes for a plus.
    address, _, query = url.partition("?")
    rest = "&".join(part for part in query.split("&") if part.partition("=")[0] != "pooled")
    plain = f"{address}?{rest}" if rest else address
    if not _is_read(plain):
        raise InvalidInput(
            "url",
            "be one that PostgreSQL's library reads: in a password % is written %25 and @ is %40, and in the query are only "
            "options that it knows",
            "another",
        )
    return plain


def _is_read(url: str) -> bool:
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        conninfo_to_dict(url)
    except ProgrammingError:
        return False  # libpq says what it stumbled over, which may be the password: nobody is to hear of it
    return True


def _completed(batch: Any, statement: Statement, schema: Any) -> Any:
    """The rows of a batch with all the columns asked for."""
    import pyarrow as pa

    if not len(schema):
        return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows))
    given = dict(zip(statement.columns, batch.columns, strict=False))

    def column(field: Any) -> Any:
        if field.name in given:
            return given[field.name].cast(field.type)
        if field.name in statement.same:
            return pa.repeat(pa.scalar(statement.same[field.name], field.type), batch.num_rows)
        return days(given[statement.moment])

    return pa.RecordBatch.from_arrays([column(field) for field in schema], schema=schema)


def _feed(connection: Any) -> _Feed:
    return _Feed(*_only(connection, _FEED))


def _own_feed(connection: Any) -> _Feed:
    """The feed for whoever begins to follow it or goes on; of a database that was loaded from a dump there is none."""
    *feed, loaded = _only(connection, _FEED_AND_LOADED)
    if loaded:
        raise InvalidInput(
            "the database",
            "have no history that is ahead of its server; run penstock migrate, which stamps it anew",
            "one that was loaded from a dump",
        )
    return _Feed(*feed)


def _only(connection: Any, statement: str) -> Any:
    found = connection.execute(statement).fetchone()
    if found is None:
        raise InvalidInput("the database", "have a feed of its own; run penstock migrate", "none")
    return found


def _slices(rows: int, most: int) -> int:
    return max(1, min(most, -(-rows // ROWS_A_SLICE)))


def _cuts(connection: Any, rows: str, kind: str, number: int) -> list[str]:
    """Where to cut rows into so many parts of about the same size."""
    if number <= 1:
        return []
    fractions = ", ".join(str(n / number) for n in range(1, number))
    found = connection.execute(
        f"SELECT (percentile_disc(ARRAY[{fractions}]::float8[]) WITHIN GROUP (ORDER BY cut))::text[] FROM ({rows}) c"
    ).fetchone()
    cuts = [cut for cut in found[0] or [] if cut is not None]
    return sorted(set(cuts), key=int if kind == "bigint" else str)


def _spans(
    by: str, low: str | None, cuts: list[str], high: str | None, since: Offset | None = None
) -> list[Span]:
    edges = [low, *(cut for cut in cuts if cut != low), high]
    return [Span(by, one, other, since) for one, other in pairwise(edges)]


def _bounded(connection: Any, ask: Ask, low: int, horizon: int, most: int) -> int:
    """The transaction below which there are at most so many rows from `low` on; a transaction is never cut in two.

    A few transactions are looked at first, then ever more: who is far behind must not read all that happened since for
    every batch.
    """
    width, seen, begin = _FIRST_WIDTH, 0, low
    if low == 0:  # most of the way from the beginning of time to the first row is empty
        found = connection.execute(f"SELECT min(xid) FROM ({rows_between(ask, 0, horizon)}) r").fetchone()[0]
        begin = horizon if found is None else found
    while begin < horizon:
        end = min(begin + width, horizon)
        rows = rows_between(ask, begin, end)
        [(number,)] = connection.execute(f"SELECT count(*) FROM ({rows}) r")
        if seen + number > most:
            [(cut, first)] = connection.execute(
                f"SELECT (array_agg(xid ORDER BY xid))[{most - seen + 1}], min(xid) FROM ({rows}) r"
            )
            return int(cut) if seen or cut > first else int(cut) + 1
        seen, begin, width = seen + number, end, width * _WIDER
    return horizon
