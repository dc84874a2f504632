"""Failures by what they are: how many, since when, whether they grow, and whom to ask."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.lake.fingerprint import fingerprint_spark, frame_spark, text_spark, type_spark
from penstock.lake.tables import FAILURES
from penstock.lake.transforms.times import full_hour, hour_of, hours

SAMPLES = 5
_WHAT = ("tenant", "fingerprint", "error_type", "top_frame", "text")

FAILURE_HOURS: Mapping[str, str] = {
    "tenant": "string",
    "fingerprint": "string",
    "error_type": "string",
    "top_frame": "string",
    "text": "string",
    "hour": "timestamp",
    "first_seen": "timestamp",
    "last_seen": "timestamp",
    "count": "bigint",
    "queues": "array<string>",
    "types": "array<string>",
    "sample_jobs": "array<struct<last_seen:timestamp,job_id:string>>",
}
FAILURE_DAYS: Mapping[str, str] = {
    **{column: kind for column, kind in FAILURE_HOURS.items() if column not in ("hour", "sample_jobs")},
    "sample_jobs": FAILURE_HOURS["sample_jobs"],
    "hours": "array<struct<hour:timestamp,count:bigint>>",
    "day": "date",
}

# As text: PySpark numbers the variables of its lambdas on and on, see `figures.total`.
_LATEST_EACH_ONCE = f"""aggregate(sample_jobs, CAST(array() AS {FAILURE_HOURS["sample_jobs"]}), (kept, one) ->
    IF(size(kept) < {SAMPLES} AND NOT exists(kept, other -> other.job_id = one.job_id), array_append(kept, one), kept))"""
_COUNT_SINCE = "aggregate(hours, 0L, (n, one) -> n + IF(one.hour >= since, one.count, 0L))"


def failure_hours(attempts: DataFrame) -> DataFrame:
    """One row per (tenant, fingerprint, hour): the part of `failures` that needs the attempts of its own day only."""
    failed = attempts.where("outcome IN ('failed', 'lost') AND error IS NOT NULL").select(
        "tenant", "job_id", "queue", "type", "ended_at",
        hour_of("ended_at").alias("hour"),
        F.expr(frame_spark("error")).alias("top_frame"),
        F.expr(text_spark("error")).alias("text"),
    )  # fmt: skip
    known = failed.withColumn("error_type", F.expr(type_spark("text"))).withColumn(
        "fingerprint", F.expr(fingerprint_spark("error_type", "top_frame", "text"))
    )
    # By job first: one that fails again and again is one sample.
    jobs = known.groupBy(*_WHAT, "hour", "queue", "type", "job_id").agg(
        F.count("*").alias("count"),
        F.min("ended_at").alias("first_seen"),
        F.max("ended_at").alias("last_seen"),
    )
    sample = F.struct("last_seen", "job_id")
    return jobs.groupBy(*_WHAT, "hour").agg(
        F.min("first_seen").alias("first_seen"),
        F.max("last_seen").alias("last_seen"),
        F.sum("count").alias("count"),
        F.sort_array(F.collect_set("queue")).alias("queues"),
        F.sort_array(F.collect_set("type")).alias("types"),
        F.max_by(sample, sample, SAMPLES).alias("sample_jobs"),
    )


def failure_days(failure_hours: DataFrame) -> DataFrame:
    """One row per (tenant, fingerprint, day), however many runs have told of the day: all that `failures` reads of it."""
    # By hour first: a day that two runs have told of says then what it would if one had.
    by_hour = _added_up(failure_hours, "hour").withColumn("day", F.to_date("hour"))
    counts = F.sort_array(F.collect_list(F.struct("hour", "count")))
    return _added_up(by_hour, "day", counts.alias("hours")).select(*FAILURE_DAYS)


def failures(failure_days: DataFrame, *, as_of: datetime) -> DataFrame:
    """One row per (tenant, fingerprint). The last 24 hours begin with a full hour: they are up to 25.

    The trend is how many there were in them, against the daily mean from when it was first seen until then; null where
    there is no before. Of what the days given do not tell it knows nothing: what was last seen before them is new again.
    """
    yesterday = full_hour(as_of) - hours(24)
    lately = failure_days.withColumn("since", yesterday).withColumn("count_24h", F.expr(_COUNT_SINCE))
    found = _added_up(lately, None, F.sum("count_24h").alias("count_24h"))
    days_before = F.greatest(
        F.lit(1.0), (F.unix_micros(yesterday) - F.unix_micros("first_seen")) / F.lit(86_400e6)
    )
    before = F.col("count") - F.col("count_24h")
    made = {
        "trend": F.when(before > 0, F.col("count_24h") / (before / days_before)),
        "is_new": F.col("first_seen") >= yesterday,
        "sample_jobs": F.col("sample_jobs.job_id"),
    }
    return found.select(*(made.get(column, F.col(column)).alias(column) for column in FAILURES))


def _added_up(rows: DataFrame, by: str | None, *more: Column) -> DataFrame:
    """What is known of each failure, or of each in an hour or on a day, from rows that each know a part."""
    keys = (*_WHAT, by) if by else _WHAT
    found = rows.groupBy(*keys).agg(
        F.min("first_seen").alias("first_seen"),
        F.max("last_seen").alias("last_seen"),
        F.sum("count").alias("count"),
        F.sort_array(F.array_distinct(F.flatten(F.collect_list("queues")))).alias("queues"),
        F.sort_array(F.array_distinct(F.flatten(F.collect_list("types")))).alias("types"),
        F.sort_array(F.flatten(F.collect_list("sample_jobs")), asc=False).alias("sample_jobs"),
        *more,
    )
    return found.withColumn("sample_jobs", F.expr(_LATEST_EACH_ONCE))
