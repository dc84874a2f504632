"""How punctual schedules are: when a job came in, against when it was due."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from penstock.lake.histogram import bucket_sql, percentile_spark
from penstock.lake.tables import SCHEDULES

LEAST_SEEN = 3
WEEK = 7
_SCHEDULE = ("tenant", "schedule")


def schedules(events: DataFrame) -> DataFrame:
    """One row per (tenant, schedule, day on which it was due).

    `missed` is told from the fires there were: after one at this time of the week the next usually comes so much later,
    as three of its own weeks say, or until then, the longest gap of the week before; a gap twice as long has missed one.
    It counts on the day of the fire before the gap. In its first week nothing is said of a schedule: that it does not fire
    at night or at weekends is not known yet. So give it some weeks of events, whatever day you ask about.
    """
    due = F.coalesce("run_at", "scheduled_at", "created_at")
    late = F.greatest(F.lit(0), F.floor((F.unix_micros("created_at") - F.unix_micros("due")) / 1000))
    fires = (
        events.where("kind = 'job' AND schedule IS NOT NULL")
        .select(*_SCHEDULE, "job_id", "created_at", due.alias("due"))
        .withColumn("late_ms", late.cast("bigint"))
    )
    following = F.lead("due").over(Window.partitionBy(*_SCHEDULE).orderBy("due", "job_id"))
    gap = F.unix_micros("next") - F.unix_micros("due")
    spaced = fires.withColumn("next", following).withColumns(
        {
            "gap": F.when(gap > 0, gap).cast("double"),
            "number": F.unix_date(F.to_date("due")),
            # Seconds since Monday; 1970 began on a Thursday.
            "at": F.pmod(F.unix_seconds("due") + 3 * 86_400, F.lit(WEEK * 86_400)),
        }
    )
    # Each fire beside what is usual: by windows, since a join would read all that is above once for each side.
    schedule, time_of_week = Window.partitionBy(*_SCHEDULE), Window.partitionBy(*_SCHEDULE, "at")
    # A day more than a week, for clocks may have been changed. By whole days: Spark looks again where the edges have moved.
    lately = schedule.orderBy("number").rangeBetween(-WEEK - 1, -1)
    known = spaced.withColumns(
        {
            "first": F.min("number").over(schedule),
            "longest": F.max("gap").over(lately),
            "own": F.median("gap").over(time_of_week),
            "seen": F.count("gap").over(time_of_week),
        }
    )
    is_known = F.col("first") <= F.col("number") - WEEK
    usual = F.when(F.col("seen") >= LEAST_SEEN, F.col("own")).when(is_known, F.col("longest"))
    missed = F.greatest(F.lit(0), F.floor(F.col("gap") / usual + 0.5) - 1)
    counted = (
        known.select(
            *_SCHEDULE,
            F.to_date("due").alias("day"),
            "late_ms",
            F.expr(bucket_sql("late_ms")).alias("bucket"),
            F.coalesce(missed, F.lit(0)).cast("bigint").alias("missed"),
        )
        .groupBy(*_SCHEDULE, "day", "bucket")
        .agg(F.count("*").alias("n"), F.max("late_ms").alias("max_ms"), F.sum("missed").alias("missed"))
    )
    days = counted.groupBy(*_SCHEDULE, "day").agg(
        F.sum("n").alias("fires"),
        F.map_from_entries(F.sort_array(F.collect_list(F.struct("bucket", "n")))).alias("late_hist"),
        F.max("max_ms").cast("double").alias("max_ms"),
        F.sum("missed").alias("missed"),
    )
    return days.withColumns(
        {
            "p50_ms": F.expr(percentile_spark("late_hist", 0.5)),
            "p99_ms": F.expr(percentile_spark("late_hist", 0.99)),
        }
    ).select(*SCHEDULES)
