"""What the facts add up to: one row per attempt, one row per job. Each takes events of any days, in any order."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.lake.tables import ATTEMPTS, JOBS
from penstock.lake.transforms.nearby import nearby
from penstock.lake.transforms.times import day_of

ENDED = ("succeeded", "dead", "held", "cancelled")
FACT = ("tenant", "kind", "xid", "seq", "job_id")
"""What a fact is known by, wherever it is read again."""


def once(events: DataFrame) -> DataFrame:
    """Events with each fact once, for a reader that may have come by some of them twice."""
    return events.dropDuplicates(list(FACT))


def attempts(events: DataFrame) -> DataFrame:
    """One row per (job, attempt) that ended: when it ran, how long it had waited, how it ended."""
    ready = F.coalesce("ready_at", F.greatest("scheduled_at", "created_at"), "started_at")
    return events.where("kind = 'attempt'").select(
        *(
            {
                "wait_ms": _ms(ready, F.col("started_at")),
                "run_ms": _ms(F.col("started_at"), F.col("ended_at")),
                "day": day_of("ended_at"),
            }.get(column, F.col(column)).alias(column)
            for column in ATTEMPTS
        )
    )


def jobs(events: DataFrame) -> DataFrame:
    """One row per job: its whole life, as far as these events tell it.

    What it has become is what the latest of them says. While that is queued, waiting or running it is `active`: these
    are no facts but the want of one.
    """
    is_attempt = F.col("kind") == "attempt"
    ran = F.when(is_attempt, F.lit(1))
    ready = F.coalesce("ready_at", F.greatest("scheduled_at", "created_at"), "started_at")
    place = F.struct("occurred_at", "xid", "seq")
    says = F.when(F.col("kind") == "job", F.lit("queued")).otherwise(F.col("status"))
    # Texts are put together by sorting. So the facts are brought together first, to be sorted once and not on both sides;
    # and by a number first, which tells almost all jobs apart where tenants and the beginnings of ids do not.
    facts = nearby(events.where("job_id IS NOT NULL").withColumn("hash", F.xxhash64("job_id")), "job_id")
    lives = facts.groupBy("hash", "job_id", "tenant").agg(
        *(F.max(column).alias(column) for column in ("queue", "type", "key", "schedule", "priority")),
        F.coalesce(F.min("created_at"), F.min("occurred_at")).alias("created_at"),
        F.min("scheduled_at").alias("scheduled_at"),
        F.min(F.when(is_attempt, F.col("started_at"))).alias("first_started_at"),
        F.max(F.when(says.isNotNull(), F.struct("occurred_at", "xid", "seq", says.alias("says")))).alias("last"),
        F.count(ran).cast("int").alias("attempts"),
        F.count(F.when(is_attempt & (F.col("outcome") == "failed"), 1)).cast("int").alias("failures"),
        F.count(F.when(is_attempt & (F.col("outcome") == "lost"), 1)).cast("int").alias("lost"),
        F.coalesce(F.sum(F.when(is_attempt, _ms(ready, F.col("started_at")))), F.lit(0)).alias("wait_ms"),
        F.coalesce(F.sum(F.when(is_attempt, _ms(F.col("started_at"), F.col("ended_at")))), F.lit(0)).alias("run_ms"),
        F.max_by("error", F.when(is_attempt & F.col("error").isNotNull(), place)).alias("last_error"),
        F.max(F.when(F.col("kind") == "job", F.col("options"))).alias("options"),
    )  # fmt: skip
    ended = F.col("last.says").isin(*ENDED)
    asked = F.from_json("options", "parents array<string>")
    made = {
        "ended_at": F.when(ended, F.col("last.occurred_at")),
        "status": F.when(ended, F.col("last.says")).otherwise("active"),
        # Most jobs have none: the text is looked at before it is read.
        "parents": F.coalesce(
            F.when(F.col("options").contains('"parents"'), asked["parents"]), F.array().cast("array<string>")
        ),
        "day": day_of("created_at"),
    }
    return lives.select(*(made.get(column, F.col(column)).alias(column) for column in JOBS))


def _ms(begin: Column, end: Column) -> Column:
    """Whole milliseconds from one time to another; none if it is before: clocks of two machines differ."""
    return F.greatest(F.lit(0), F.floor((F.unix_micros(end) - F.unix_micros(begin)) / 1000)).cast("bigint")
