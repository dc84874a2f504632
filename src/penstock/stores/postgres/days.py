"""History comes and goes by the day: tables for the days ahead are made, those that no job needs any more are dropped."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from penstock.stores.postgres.exported import Exported
from penstock.stores.postgres.rules import sql

AHEAD = timedelta(days=7)
"""How long before a day its tables are made: as long may no sweep pass without harm."""

LOCK_MILLISECONDS = 100
"""Everybody waits behind one who waits to change the tables: this long for each at most, then a later sweep tries again."""

MOST_DEFAULT_BYTES = 256 * 1024 * 1024
"""PostgreSQL reads all of the default partitions for each day that is made, and everybody waits meanwhile."""

_NOT_NOW = (
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.QueryCanceledError,
    asyncpg.InsufficientPrivilegeError,
)

EVERY_ID = (UUID(int=0), UUID(int=2**128 - 1))
_DAY = timedelta(days=1)
_RECENT = 2 * _DAY

logger = logging.getLogger("penstock.postgres")


def first_id(day: date) -> UUID:
    """The lowest id of a day: a UUIDv7 begins with the milliseconds since 1970."""
    return UUID(int=(day - date(1970, 1, 1)) // timedelta(milliseconds=1) << 80)


class Window:
    """The ids among which a lease looks up what was asked: of the last days, or all in a queue where others were met.

    With thirty days a lease over all of them takes a tenth longer, and most jobs are leased soon after they were made.
    """

    def __init__(self) -> None:
        self._today: date | None = None
        self._all: set[tuple[str, str]] = set()

    def of(self, queue: tuple[str, str]) -> tuple[UUID, UUID]:
        return EVERY_ID if self._today is None or queue in self._all else self._recent(self._today)

    def saw(self, queue: tuple[str, str], now: datetime, ids: Sequence[UUID], some_outside: bool) -> None:
        """Learn from the jobs that a lease has taken."""
        self._today = now.astimezone(UTC).date()
        if some_outside:
            self._all.add(queue)
        elif queue in self._all:
            lowest, beyond = self._recent(self._today)
            if all(lowest <= one < beyond for one in ids):
                self._all.discard(queue)

    @staticmethod
    def _recent(today: date) -> tuple[UUID, UUID]:
        return first_id(today - _RECENT), first_id(today + _DAY)


async def tend(connection: Any, now: datetime, has: Exported) -> None:
    """Make the tables of today and the days ahead, and drop those of past days that lakes have and no job is left of.

    What cannot be done now waits for the next time: rows of a day without tables go to the default partitions, and a
    day too many costs room and nothing else.
    """
    today = now.astimezone(UTC).date()
    known = {row["day"]: row["is_over"] for row in await connection.fetch(sql("days"), today)}
    wanted = [today + timedelta(days=ahead) for ahead in range(AHEAD.days + 1)]
    try:
        await _add(connection, [day for day in wanted if day not in known])
        await _drop(
            connection, [day for day, is_over in known.items() if is_over and has.covers_day(day)], has.below
        )
    except _NOT_NOW as error:
        logger.warning("the days of the history stay as they are until a later sweep: %s", error)


async def _add(connection: Any, days: list[date]) -> None:
    if not days:
        return
    size = await connection.fetchval(
        "SELECT sum(pg_relation_size(name)) FROM unnest('{penstock.job_default, penstock.attempt_default, penstock.change_default}'::regclass[]) AS name"
    )
    if size > MOST_DEFAULT_BYTES:
        logger.warning(
            "the default partitions hold %d MB: making the tables of a day would hold everybody up while PostgreSQL "
            "reads them; do it at a quiet time: SELECT penstock.add_day('%s')", size // 2**20, days[0],
        )  # fmt: skip
        return
    for day in days:
        if await _alone(connection, "SELECT penstock.add_day($1)", day) is False:
            logger.warning("the day %s gets no tables: too many of its rows are in the default ones", day)


async def _drop(connection: Any, days: list[date], below: int | None) -> None:
    for day in days:
        if below is not None and await _is_above(connection, day, below):
            continue
        if await _alone(connection, "SELECT penstock.drop_day($1)", day):
            logger.info("dropped the history of %s", day)


async def _is_above(connection: Any, day: date, below: int) -> bool:
    """Whether a day's tables have anything that some lake has not.

    Looked at before they are locked: whatever comes in after is about a job that is there, and keeps its day.
    """
    async with connection.transaction():
        await connection.execute("SET LOCAL enable_bitmapscan = on")  # BRIN is read by bitmap scans alone
        rows = " UNION ALL ".join(
            f"(SELECT xid FROM penstock.{table}_{day:%Y%m%d} WHERE xid >= $1 LIMIT 1)"
            for table in ("job", "attempt", "change")
        )
        return await connection.fetchval(rows, below) is not None


async def _alone(connection: Any, statement: str, day: date) -> bool | None:
    """What the statement says; None, and nothing is done, while another process is at it."""
    # Read committed, whatever the role's default: what was done before the lock was had must be seen.
    async with connection.transaction(isolation="read_committed"):
        await connection.execute(f"SET LOCAL lock_timeout = {LOCK_MILLISECONDS}")
        if not await connection.fetchval(
            "SELECT pg_try_advisory_xact_lock(hashtextextended('penstock days', 0))"
        ):
            return None
        done: bool = await connection.fetchval(statement, day)
        return done
