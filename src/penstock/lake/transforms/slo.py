"""Whether queues keep their promises: how many waited no longer than they should, and how fast the slack is used up."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.lake.histogram import bucket_sql
from penstock.lake.tables import SLO
from penstock.lake.targets import Target
from penstock.lake.transforms.targets import aimed
from penstock.lake.transforms.times import full_hour, hours

WINDOWS = {"1h": 1, "6h": 6, "24h": 24, "7d": 168, "30d": 720}


def slo(queue_hours: DataFrame, *, as_of: datetime, targets: Sequence[Target] = ()) -> DataFrame:
    """One row per (tenant, queue, window) in which anything ran.

    Queues that `targets` does not name have 99 % within 60 s. A window begins with a full hour, and the target is met to the
    end of its bucket: up to 2 % more than it says. A burn rate of 1 uses up just the slack that the objective leaves; above, it will be missed.
    """
    waits = queue_hours.where(F.col("hour") >= full_hour(as_of) - hours(max(WINDOWS.values())))
    aimed_at = aimed(waits, targets)
    queue = ("tenant", "queue", "target_wait_ms", "objective")
    counted = (
        aimed_at.select(*queue, "hour", F.explode("wait_hist").alias("bucket", "n"))
        .groupBy(*queue, "hour")
        .agg(
            F.sum(F.when(F.col("bucket") <= F.expr(bucket_sql("target_wait_ms")), F.col("n")).otherwise(0)).alias("good"),
            F.sum("n").alias("total"),
        )
    )  # fmt: skip
    windows = F.array(
        *(F.struct(F.lit(name).alias("window"), (full_hour(as_of) - hours(count)).alias("since")) for name, count in WINDOWS.items())
    )  # fmt: skip
    seen = (
        counted.withColumn("in", F.explode(windows))
        .where("hour >= `in`.since")
        .groupBy(*queue, F.col("in.window").alias("window"))
        .agg(F.sum("good").alias("good"), F.sum("total").alias("total"))
        .withColumn("attainment", F.col("good") / F.col("total"))
    )
    burn = F.try_divide(1 - F.col("attainment"), 1 - F.col("objective"))
    return seen.withColumn("burn_rate", burn).select(*SLO)
