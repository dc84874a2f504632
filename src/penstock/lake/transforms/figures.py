"""How many, how long: by tenant, queue and type, for each hour and each day. All else that counts is made from these.

Figures are additive. Those of an hour need the facts of its own day only; those of two sets of facts merge into those
of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.lake.histogram import bucket_sql, percentile_spark
from penstock.lake.tables import DAILY, HOURLY, USAGE
from penstock.lake.transforms.nearby import nearby
from penstock.lake.transforms.silver import ENDED
from penstock.lake.transforms.times import hour_of

COUNTS = (
    "arrivals", "succeeded", "failed", "lost", "dead", "held", "cancelled", "ended", "retried", "busy_ms",
)  # fmt: skip
CELL = ("tenant", "queue", "type")
HISTOGRAMS = ("wait_hist", "run_hist")

QUEUE_HOURS: Mapping[str, str] = {
    "tenant": "string",
    "queue": "string",
    "hour": "timestamp",
    "arrivals": "bigint",
    "bad": "bigint",
    "busy_ms": "bigint",
    "ended": "bigint",
    "attempts": "bigint",
    "wait_hist": "map<int,bigint>",
    "wait_p95": "double",
}

_NEITHER = 3
"""In the two lowest bits of a code: which histogram a row counts in, or none. The others are its bucket."""


def hourly(events: DataFrame, attempts: DataFrame) -> DataFrame:
    """One row per (tenant, queue, type, hour): what came in, what ended and how, how long it waited and ran.

    Jobs count when they came, attempts when they ended. `dead`, `held` and `cancelled` are jobs, ended so by an attempt or,
    for `cancelled`, by a person or a rule; `ended` are all jobs that an attempt ended, and no others; `retried` are attempts
    that failed or were lost and left the job queued. Every attempt is in both histograms, however it ended.
    """
    cell = [*CELL, "hour"]
    # Brought together by cell before they are counted by bucket: few attempts of an hour are in one bucket, so counting
    # first would send as many rows, and once more for the histograms.
    rows = nearby(_from_events(events).unionByName(_from_attempts(attempts)), *cell)
    attempt = F.array(F.shiftleft("wait", 2), F.shiftleft("run", 2).bitwiseOR(F.lit(1)))
    codes = F.when(F.col("wait").isNull(), F.array(F.lit(_NEITHER))).otherwise(attempt)
    coded = rows.select(*cell, *COUNTS, F.explode(codes).alias("code"))
    # Each attempt makes two rows; it counts in the first.
    told = coded.select(
        *cell,
        "code",
        F.lit(1).cast("bigint").alias("n"),
        *(F.when(F.col("code").bitwiseAND(F.lit(3)) != 1, F.col(count)).otherwise(0).alias(count) for count in COUNTS),
    )  # fmt: skip
    return _gather(told, cell, COUNTS, HISTOGRAMS).select(*HOURLY)


def daily(hourly: DataFrame) -> DataFrame:
    """One row per (tenant, queue, type, day)."""
    days = hourly.withColumn("day", F.to_date("hour"))
    return _merged(days, [*CELL, "day"], COUNTS, HISTOGRAMS).select(*DAILY)


def queue_hours(hourly: DataFrame) -> DataFrame:
    """One row per (tenant, queue, hour): the part of what is said of queues that needs the figures of its own day only."""
    hours = hourly.withColumn("bad", F.col("failed") + F.col("lost"))
    counts = ("arrivals", "bad", "busy_ms", "ended")
    made = _merged(hours, ["tenant", "queue", "hour"], counts, ("wait_hist",))
    return made.withColumns(
        {"attempts": total("wait_hist"), "wait_p95": F.expr(percentile_spark("wait_hist", 0.95))}
    ).select(*QUEUE_HOURS)


def merge(parts: Sequence[DataFrame]) -> DataFrame:
    """Hourly figures of several sets of facts, as those of all of them."""
    rows = reduce(DataFrame.unionByName, parts)
    return _merged(rows, [*CELL, "hour"], COUNTS, HISTOGRAMS).select(*HOURLY)


def usage(daily: DataFrame) -> DataFrame:
    """One row per (tenant, day, queue, type): what there is to pay for."""
    made = {"jobs": F.col("arrivals"), "attempts": total("run_hist")}
    return daily.select(*(made.get(column, F.col(column)).alias(column) for column in USAGE))


def total(histogram: str) -> Column:
    """How many a histogram has counted."""
    # As text, here and below: PySpark numbers the variables of its lambdas on and on, so that to Spark no two runs would
    # have the same code, and each would compile its own (half a second, and more until that code is fast).
    return F.expr(f"aggregate(map_values({histogram}), 0L, (seen, n) -> seen + n)")


def gather_histogram(rows: DataFrame, keys: Sequence[str], histogram: str) -> DataFrame:
    """One histogram for each set of keys, from rows that have one each."""
    return _merged(rows, keys, (), (histogram,))


def _from_events(events: DataFrame) -> DataFrame:
    came = (F.col("kind") == "job").cast("bigint")
    told = events.where("kind = 'job' OR (kind = 'change' AND job_id IS NOT NULL AND status = 'cancelled')")
    hours = told.select(*CELL, hour_of("occurred_at").alias("hour"), came.alias("came"))
    counts = {"arrivals": F.sum("came"), "cancelled": F.sum(1 - F.col("came"))}
    nothing = F.lit(None).cast("int")
    return (
        hours.groupBy(*CELL, "hour")
        .agg(*(count.alias(name) for name, count in counts.items()))
        .select(
            *CELL,
            "hour",
            nothing.alias("wait"),
            nothing.alias("run"),
            *((F.col(name) if name in counts else F.lit(0).cast("bigint")).alias(name) for name in COUNTS),
        )
    )


def _from_attempts(attempts: DataFrame) -> DataFrame:
    counts = {
        "arrivals": F.lit(0),
        "succeeded": F.col("outcome") == "succeeded",
        "failed": F.col("outcome") == "failed",
        "lost": F.col("outcome") == "lost",
        "dead": F.col("status") == "dead",
        "held": F.col("status") == "held",
        "cancelled": F.col("status") == "cancelled",
        "ended": F.col("status").isin(*ENDED),
        "retried": F.col("outcome").isin("failed", "lost") & (F.col("status") == "queued"),
        "busy_ms": F.col("run_ms"),
    }
    return attempts.select(
        *CELL,
        hour_of("ended_at").alias("hour"),
        F.expr(bucket_sql("wait_ms")).alias("wait"),
        F.expr(bucket_sql("run_ms")).alias("run"),
        *(F.coalesce(count.cast("bigint"), F.lit(0)).alias(name) for name, count in counts.items()),
    )


def _merged(
    rows: DataFrame, keys: Sequence[str], counts: Sequence[str], histograms: Sequence[str]
) -> DataFrame:
    """Figures added up by key."""
    # Rows with whole histograms travel better than a row for each bucket.
    near = nearby(rows.select(*keys, *counts, *histograms), *keys)
    return _gather(_spread(near, keys, counts, histograms), keys, counts, histograms)


def _spread(
    rows: DataFrame, keys: Sequence[str], counts: Sequence[str], histograms: Sequence[str]
) -> DataFrame:
    """Figures as rows again: one for each bucket of their histograms, and one with their counts."""

    def entries(histogram: str, place: int) -> Column:
        coded = f"named_struct('code', shiftleft(entry.key, 2) | {place}, 'n', entry.value)"
        return F.expr(f"transform(map_entries({histogram}), entry -> {coded})")

    own = F.array(F.struct(F.lit(_NEITHER).alias("code"), F.lit(0).cast("bigint").alias("n")))
    spread = rows.select(
        *keys,
        *counts,
        F.inline(F.concat(*(entries(histogram, place) for place, histogram in enumerate(histograms)), own)),
    )
    return spread.select(
        *keys, "code", "n",
        *(F.when(F.col("code") == _NEITHER, F.col(count)).otherwise(0).alias(count) for count in counts),
    )  # fmt: skip


def _gather(
    rows: DataFrame, keys: Sequence[str], counts: Sequence[str], histograms: Sequence[str]
) -> DataFrame:
    """Add up by bucket, then put the buckets of each key into its histograms."""

    def histogram(place: int) -> Column:
        entry = F.struct(F.shiftright("code", 2).alias("bucket"), "n")
        own = F.when(F.col("code").bitwiseAND(F.lit(3)) == place, entry)
        return F.map_from_entries(F.sort_array(F.collect_list(own)))

    counted = rows.groupBy(*keys, "code").agg(
        F.sum("n").alias("n"), *(F.sum(count).alias(count) for count in counts)
    )
    return counted.groupBy(*keys).agg(
        *(F.sum(count).alias(count) for count in counts),
        *(histogram(place).alias(name) for place, name in enumerate(histograms)),
    )
