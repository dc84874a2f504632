"""How punctual schedules are: when a job came in, against when it was due."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from penstock.lake.histogram import bucket_sql, percentile_spark
from penstock.lake.tables import SCHEDULES
from penstock.lake.transforms.times import full_hour

LEAST_SEEN = 3
WEEK = 7
_SCHEDULE = ("tenant", "schedule")

ABOUT_SCHEDULES = "schedule IS NOT NULL AND (kind = 'job' OR (kind = 'change' AND job_id IS NULL))"
"""Which events these are: jobs that schedules made, and what was changed in schedules."""


def schedules(events: DataFrame, *, as_of: datetime) -> DataFrame:
    """One row per (tenant, schedule, day on which it was due and fired).

    `missed` is told from the fires there were: after one at this time of the week the next usually comes so much later,
    as three of its own weeks say, or until then, the longest gap of the week before; a gap twice as long has missed one.
    It counts on the day of the fire before the gap. A gap is over when the schedule is put otherwise, paused, let go on or
    dropped, and the last one, with the full hour; what is usual is learned from gaps between two fires of one timetable.
    In its first week nothing is said of a timetable: that it does not fire at night or at weekends is not known yet. So
    give it some weeks of events, whatever day you ask about.
    """
    spaced = _spaced(events, as_of)
    # Each fire beside what is usual: by windows, since a join would read all that is above once for each side.
    timetable = Window.partitionBy(*_SCHEDULE, "timetable")
    time_of_week = Window.partitionBy(*_SCHEDULE, "timetable", "time_of_week")
    # A day more than a week, for clocks may have been changed. By whole days: Spark looks again where the edges have moved.
    lately = timetable.orderBy("number").rangeBetween(-WEEK - 1, -1)
    known = spaced.withColumns(
        {
            "first": F.min("number").over(timetable),
            "longest": F.max("gap").over(lately),
            "own": F.median("gap").over(time_of_week),
            "seen": F.count("gap").over(time_of_week),
        }
    )
    is_known = F.col("first") <= F.col("number") - WEEK
    usual = F.when(F.col("seen") >= LEAST_SEEN, F.col("own")).when(is_known, F.col("longest"))
    missed = F.greatest(F.lit(0), F.floor(F.col("silence") / usual + 0.5) - 1)
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


def _spaced(events: DataFrame, as_of: datetime) -> DataFrame:
    """One row per fire: by which timetable, how late, `gap` to the next, and `silence` until that or whatever ended it."""
    is_fire = F.col("kind") == "job"
    due = F.coalesce("run_at", "scheduled_at", "created_at")
    cron, tz, paused = (F.get_json_object("detail", f"$.{name}") for name in ("cron", "tz", "paused"))
    facts = events.where(ABOUT_SCHEDULES).select(
        *_SCHEDULE, "job_id", "created_at", "xid", "seq", is_fire.alias("is_fire"),
        F.when(is_fire, due).otherwise(F.col("occurred_at")).alias("due"),
        F.when(~is_fire, F.concat_ws(" ", cron, tz)).alias("timetable"),
        F.when(~is_fire, F.concat_ws(" ", cron, tz, paused)).alias("set_to"),
    )  # fmt: skip
    in_order = Window.partitionBy(*_SCHEDULE).orderBy("due", "job_id", "xid", "seq")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    known = facts.withColumns(
        {
            "timetable": F.last("timetable", ignorenulls=True).over(in_order),
            "was_set_to": F.last("set_to", ignorenulls=True).over(before),
        }
    )
    # Put again with another payload, or by the next deployment, a schedule fires as before.
    turns = known.where("is_fire OR NOT set_to <=> was_set_to")
    following = turns.withColumns(
        {"next": F.lead("due").over(in_order), "is_next_fire": F.lead("is_fire").over(in_order)}
    ).where("is_fire")
    late = F.greatest(F.lit(0), F.floor((F.unix_micros("created_at") - F.unix_micros("due")) / 1000))
    gap = F.unix_micros("next") - F.unix_micros("due")
    silence = F.unix_micros(F.coalesce("next", full_hour(as_of))) - F.unix_micros("due")
    return following.withColumns(
        {
            "late_ms": late.cast("bigint"),
            "gap": F.when((gap > 0) & F.col("is_next_fire"), gap).cast("double"),
            "silence": F.when(silence > 0, silence).cast("double"),
            "number": F.unix_date(F.to_date("due")),
            # Seconds since Monday; 1970 began on a Thursday.
            "time_of_week": F.pmod(F.unix_seconds("due") + 3 * 86_400, F.lit(WEEK * 86_400)),
        }
    )
