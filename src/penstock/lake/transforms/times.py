"""Times as the gold tables use them. Sessions are in UTC, so Spark's hours and days are too."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812


def full_hour(at: datetime) -> Column:
    """The beginning of the hour that a time is in."""
    if at.tzinfo is None:
        raise ValueError(f"as_of must have a time zone, got {at.isoformat()}")
    return F.timestamp_seconds(F.lit(int(at.timestamp()) // 3600 * 3600))


def hours(count: int) -> Column:
    return F.make_dt_interval(hours=F.lit(count))


def hour_of_week(at: str) -> Column:
    """0 from Monday 00:00 on, 167 until Sunday midnight."""
    return (F.weekday(at) * 24 + F.hour(at)).cast("int")
