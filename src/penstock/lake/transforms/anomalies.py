"""Hours that are not as they usually are at that time of the week."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from penstock.lake.tables import ANOMALIES
from penstock.lake.transforms.times import full_hour, hour_of_week, hours

WEEKS = 8
LEAST_WEEKS = 3
SCORE = 4.0
_QUEUE = ("tenant", "queue")

# What counts as one step off, at the least: small numbers vary by themselves.
_LEAST_STEP = """CASE metric
    WHEN 'arrivals' THEN greatest(1D, sqrt(expected))
    WHEN 'failure_share' THEN 0.02D + 0.5D / sqrt(weight)
    ELSE 1000 + 0.25D * expected END"""


def anomalies(
    queue_hours: DataFrame, *, as_of: datetime, weeks: int = WEEKS, score: float = SCORE
) -> DataFrame:
    """One row per (tenant, queue, hour, metric) that is off its median at that hour of the week.

    The score is how many usual steps off it is: of the median absolute deviation, times 1.4826 as for a normal spread,
    or of the least step that matters, whichever is more. Hours without arrivals count as such, from a queue's first
    hour to the last full one; hours of the week seen less than three times have no usual.
    """
    now = full_hour(as_of)
    recent = queue_hours.where((F.col("hour") >= now - hours(weeks * 168)) & (F.col("hour") < now)).drop(
        "wait_hist"
    )
    every = recent.groupBy(*_QUEUE).agg(F.min("hour").alias("first")).select(
        *_QUEUE, F.explode(F.sequence("first", now - hours(1), hours(1))).alias("hour")
    )  # fmt: skip
    cells = every.join(recent, [*_QUEUE, "hour"], "left")
    weight = F.coalesce("attempts", F.lit(0)).cast("double")
    metrics = F.array(
        F.struct(
            F.lit("arrivals").alias("metric"), F.coalesce("arrivals", F.lit(0)).cast("double").alias("value")
        ),
        F.struct(F.lit("failure_share").alias("metric"), F.try_divide("bad", "attempts").alias("value")),
        F.struct(F.lit("wait_p95").alias("metric"), F.col("wait_p95").alias("value")),
    )
    values = (
        cells.select(*_QUEUE, "hour", hour_of_week("hour").alias("at"), weight.alias("weight"), F.inline(metrics))
        .where("value IS NOT NULL")
    )  # fmt: skip
    slot = Window.partitionBy(*_QUEUE, "metric", "at")
    usual = values.withColumns({"expected": F.median("value").over(slot), "seen": F.count("*").over(slot)})
    off = F.abs(F.col("value") - F.col("expected"))
    against = usual.where(F.col("seen") >= LEAST_WEEKS).withColumn("spread", F.median(off).over(slot))
    step = F.greatest(1.4826 * F.col("spread"), F.expr(_LEAST_STEP))
    return (
        against.withColumn("score", (F.col("value") - F.col("expected")) / step)
        .where(F.abs("score") >= score)
        .withColumn("direction", F.when(F.col("score") > 0, "high").otherwise("low"))
        .select(*ANOMALIES)
    )
