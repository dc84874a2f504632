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


def hour_of(at: str) -> Column:
    """The hour that a time of the table is in. By arithmetic: `date_trunc` asks the calendar, row by row."""
    micros = F.unix_micros(at)
    return F.timestamp_micros(micros - F.pmod(micros, F.lit(3_600_000_000)))


def day_of(moment: str) -> Column:
    """The day of a moment or a date, as the lake writes it. A cast: `date_format` goes through the calendar too."""
    return F.to_date(moment).cast("string")
