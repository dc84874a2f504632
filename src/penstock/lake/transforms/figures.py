"""How many, how long: by tenant, queue and type, for each hour and each day. All else that counts is made from these.

Figures are additive. Those of an hour need the facts of its own day only; those of two sets of facts merge into those
of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.lake.histogram import bucket_sql
from penstock.lake.tables import DAILY, HOURLY, USAGE

COUNTS = ("arrivals", "succeeded", "failed", "lost", "dead", "cancelled", "retried", "busy_ms")
CELL = ("tenant", "queue", "type")
_WAIT, _RUN, _NEITHER = range(3)


def hourly(events: DataFrame, attempts: DataFrame) -> DataFrame:
    """One row per (tenant, queue, type, hour): what came in, what ended and how, how long it waited and ran.

    Jobs count when they came, attempts when they ended. `dead` and `cancelled` are jobs, ended so by an attempt or,
    for `cancelled`, by a person or a rule; `retried` are attempts that failed or were lost and left the job queued.
    Every attempt is in both histograms, however it ended.
    """
    return _gather(_from_events(events).unionByName(_from_attempts(attempts)), [*CELL, "hour"]).select(
        *HOURLY
    )


def daily(hourly: DataFrame) -> DataFrame:
    """One row per (tenant, queue, type, day)."""
    days = hourly.withColumn("day", F.to_date("hour"))
    return _gather(_spread(days, [*CELL, "day"]), [*CELL, "day"]).select(*DAILY)


def merge(parts: Sequence[DataFrame]) -> DataFrame:
    """Hourly figures of several sets of facts, as those of all of them."""
    rows = reduce(DataFrame.unionByName, parts)
    return _gather(_spread(rows, [*CELL, "hour"]), [*CELL, "hour"]).select(*HOURLY)


def usage(daily: DataFrame) -> DataFrame:
    """One row per (tenant, day, queue, type): what there is to pay for."""
    made = {"jobs": F.col("arrivals"), "attempts": total("run_hist")}
    return daily.select(*(made.get(column, F.col(column)).alias(column) for column in USAGE))


def total(histogram: str) -> Column:
    """How many a histogram has counted."""
    return F.aggregate(F.map_values(histogram), F.lit(0).cast("bigint"), lambda seen, count: seen + count)


def gather_histogram(rows: DataFrame, keys: Sequence[str], histogram: str) -> DataFrame:
    """One histogram for each set of keys, from rows that have one each."""
    counted = (
        rows.select(*keys, F.explode(histogram).alias("bucket", "n"))
        .groupBy(*keys, "bucket")
        .agg(F.sum("n").alias("n"))
    )
    return counted.groupBy(*keys).agg(
        F.map_from_entries(F.array_sort(F.collect_list(F.struct("bucket", "n")))).alias(histogram)
    )


def _from_events(events: DataFrame) -> DataFrame:
    came = (F.col("kind") == "job").cast("bigint")
    told = events.where("kind = 'job' OR (kind = 'change' AND job_id IS NOT NULL AND status = 'cancelled')")
    counts = {"arrivals": came, "cancelled": 1 - came}
    return told.select(
        *CELL,
        F.date_trunc("hour", "occurred_at").alias("hour"),
        F.lit(_NEITHER).alias("measure"),
        F.lit(0).alias("bucket"),
        F.lit(0).cast("bigint").alias("n"),
        *(counts.get(count, F.lit(0)).cast("bigint").alias(count) for count in COUNTS),
    )


def _from_attempts(attempts: DataFrame) -> DataFrame:
    counts = {
        "arrivals": F.lit(0),
        "succeeded": F.col("outcome") == "succeeded",
        "failed": F.col("outcome") == "failed",
        "lost": F.col("outcome") == "lost",
        "dead": F.col("status") == "dead",
        "cancelled": F.col("status") == "cancelled",
        "retried": F.col("outcome").isin("failed", "lost") & (F.col("status") == "queued"),
        "busy_ms": F.col("run_ms"),
    }
    rows = attempts.select(
        *CELL,
        F.date_trunc("hour", "ended_at").alias("hour"),
        F.explode(
            F.array(
                F.struct(F.lit(_WAIT).alias("measure"), F.expr(bucket_sql("wait_ms")).alias("bucket")),
                F.struct(F.lit(_RUN).alias("measure"), F.expr(bucket_sql("run_ms")).alias("bucket")),
            )
        ).alias("at"),
        *(count.cast("bigint").alias(name) for name, count in counts.items()),
    )
    # Each attempt makes two rows; it counts in the first.
    return rows.select(
        *CELL,
        "hour",
        "at.measure",
        "at.bucket",
        F.lit(1).cast("bigint").alias("n"),
        *(F.when(F.col("at.measure") == _WAIT, F.coalesce(count, F.lit(0))).otherwise(0).alias(count) for count in COUNTS),
    )  # fmt: skip


def _spread(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Figures as rows again: one for each bucket of their histograms, and one with their counts."""

    def entries(histogram: str, measure: int) -> Column:
        return F.transform(
            F.map_entries(histogram),
            lambda entry: F.struct(F.lit(measure).alias("measure"), entry["key"].alias("bucket"), entry["value"].alias("n")),
        )  # fmt: skip

    counts = F.array(
        F.struct(
            F.lit(_NEITHER).alias("measure"), F.lit(0).alias("bucket"), F.lit(0).cast("bigint").alias("n")
        )
    )
    spread = rows.select(
        *keys,
        *COUNTS,
        F.explode(F.concat(entries("wait_hist", _WAIT), entries("run_hist", _RUN), counts)).alias("at"),
    )
    return spread.select(
        *keys, "at.measure", "at.bucket", "at.n",
        *(F.when(F.col("at.measure") == _NEITHER, F.col(count)).otherwise(0).alias(count) for count in COUNTS),
    )  # fmt: skip


def _gather(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Add up by bucket, then put the buckets of each key into its histograms."""

    def histogram(measure: int) -> Column:
        entry = F.when((F.col("measure") == measure), F.struct("bucket", "n"))
        return F.map_from_entries(F.array_sort(F.collect_list(entry)))

    counted = rows.groupBy(*keys, "measure", "bucket").agg(
        F.sum("n").alias("n"), *(F.sum(count).alias(count) for count in COUNTS)
    )
    return counted.groupBy(*keys).agg(
        *(F.sum(count).alias(count) for count in COUNTS),
        histogram(_WAIT).alias("wait_hist"),
        histogram(_RUN).alias("run_hist"),
    )
