"""Whether the lake has what the store has: each job and each attempt of a closed day, once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from penstock.core.errors import PenstockError
from penstock.lake.manifest import by_log
from penstock.lake.source import open_reader
from penstock.lake.source.logs import LogReader
from penstock.lake.source.postgres import plain_url
from penstock.lake.source.several import LogsReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DAY_MS = 86_400_000

# By the day in the job's id as well: such days leave the store as a whole, and what has left it is not compared.
_IN_STORE = f"""
SELECT kind, day, id_day, count(*) FROM (
    SELECT 'job' AS kind, to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS day,
           ('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint / {_DAY_MS} AS id_day
    FROM penstock.job WHERE xid < %(until)s AND created_at >= %(first)s AND created_at < %(beyond)s
    UNION ALL
    SELECT 'attempt', to_char(ended_at AT TIME ZONE 'UTC', 'YYYY-MM-DD'),
           ('x' || left(replace(job_id::text, '-', ''), 12))::bit(48)::bigint / {_DAY_MS}
    FROM penstock.attempt WHERE xid < %(until)s AND ended_at >= %(first)s AND ended_at < %(beyond)s
) facts
WHERE day = ANY(%(days)s)
GROUP BY kind, day, id_day"""

# A transaction that still runs holds the feed up: what the lake then has is as of its beginning.
_TIME = """
SELECT least(now(), (SELECT min(xact_start) FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()))"""


class Mismatch(Struct, frozen=True):
    """A day of which the lake has too little or something twice."""

    day: str
    kind: str
    in_store: int
    in_lake: int
    """Each fact counted once."""
    twice: int
    """Facts that are there more than once."""

    def __str__(self) -> str:
        lacks = f"the lake lacks {self.in_store - self.in_lake:,}" if self.in_store > self.in_lake else ""
        doubled = f"{self.twice:,} are in it twice" if self.twice else ""
        return (
            f"{self.day} does not reconcile: of {self.in_store:,} {self.kind}s in the store "
            + " and ".join(part for part in (lacks, doubled) if part)
        )


class NotReconciled(PenstockError):
    """The lake does not have what the store has. Nothing may leave the store until it does."""

    code = "lake_not_reconciled"

    def __init__(self, found: Sequence[Mismatch]) -> None:
        days = len({one.day for one in found})
        super().__init__(
            f"{days} {'days' if days > 1 else 'day'} of the lake do not have what the store has ({found[0]}); nothing may "
            "leave the store until they do. Look whether files were changed, then move the lake aside and run again",
            days=days,
        )


def store_time(url: str) -> datetime:
    """A time of the store's up to which its feed is told, or soon will be."""
    reader = open_reader(url)
    if isinstance(reader, LogReader | LogsReader):
        return reader.time()
    with _connected(url) as connection:
        moment: datetime = connection.execute(_TIME).fetchone()[0]
    return moment.astimezone(UTC)


def unknown_days(offset: Mapping[str, Any], known: Iterable[str], since: str | None, today: str) -> list[str]:
    """Closed days that the lake knows nothing of: from one day on, or all, as far as the store can say what it had to take in."""
    if since is None:
        is_log = str(offset["system"]).startswith("log")
        if is_log and any(int(one["floor"]) for one in by_log(offset)):
            return []  # a log still has jobs that came in before what it tells of, and so before the lake began
        since = "1970-01-01"
    first = date.fromisoformat(since)
    every = {
        str(first + timedelta(days=number)) for number in range((date.fromisoformat(today) - first).days)
    }
    return sorted(every.difference(known))


def mismatches(events: DataFrame, url: str, until: Mapping[str, Any], days: Sequence[str]) -> list[Mismatch]:
    """Where bronze and store differ on these days, as far as what happened before the offset `until` goes.

    The lake may have more than the store, from which history leaves; less it may not have, nor anything twice.
    """
    in_store = _in_store(url, until, days)
    in_lake = _in_lake(events)
    lacking: dict[tuple[str, str], int] = {}
    stored: dict[tuple[str, str], int] = {}
    twice: dict[tuple[str, str], int] = {}
    for (kind, day, id_day), number in in_store.items():
        rows, distinct = in_lake.get((kind, day, id_day), (0, 0))
        stored[day, kind] = stored.get((day, kind), 0) + number
        lacking[day, kind] = lacking.get((day, kind), 0) + max(0, number - distinct)
    for (kind, day, _), (rows, distinct) in in_lake.items():
        twice[day, kind] = twice.get((day, kind), 0) + rows - distinct
    return [
        Mismatch(day, kind, number, number - lacking.get((day, kind), 0), twice.get((day, kind), 0))
        for day, kind in sorted({*lacking, *twice})
        for number in [stored.get((day, kind), 0)]
        if lacking.get((day, kind)) or twice.get((day, kind))
    ]


def _in_store(url: str, until: Mapping[str, Any], days: Sequence[str]) -> dict[tuple[str, str, int], int]:
    reader = open_reader(url)
    if isinstance(reader, LogReader | LogsReader):
        return reader.counted(until, days)
    asked = {
        "until": int(until["xid"]),
        "days": list(days),
        "first": _midnight(min(days)),
        "beyond": _midnight(max(days)) + timedelta(days=1),
    }
    with _connected(url) as connection:
        found = connection.execute(_IN_STORE, asked).fetchall()
    return {(kind, day, id_day): number for kind, day, id_day, number in found}


def _in_lake(events: DataFrame) -> dict[tuple[str, str, int], tuple[int, int]]:
    from pyspark.sql import functions as f

    id_day = f.expr(f"cast(conv(substr(replace(job_id, '-', ''), 1, 12), 16, 10) AS bigint) div {_DAY_MS}")
    facts = events.where("kind IN ('job', 'attempt')")
    rows = (
        facts.groupBy("kind", "day", id_day.alias("id_day"), "tenant", "xid", "seq", "job_id")
        .count()
        .groupBy("kind", "day", "id_day")
        .agg(f.sum("count").alias("rows"), f.count("*").alias("once"))
        .collect()
    )
    return {(row["kind"], row["day"], row["id_day"]): (row["rows"], row["once"]) for row in rows}


def _midnight(day: str) -> datetime:
    return datetime.combine(date.fromisoformat(day), datetime.min.time(), UTC)


def _connected(url: str) -> Any:
    import psycopg

    return psycopg.connect(plain_url(url), autocommit=True, prepare_threshold=None)
