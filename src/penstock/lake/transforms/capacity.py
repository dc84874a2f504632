"""How much each queue has to do when, and how many workers, what lease and what heartbeat that asks for."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.lake.histogram import percentile_spark
from penstock.lake.tables import CAPACITY, CAPACITY_PLAN
from penstock.lake.targets import Target
from penstock.lake.transforms.figures import gather_histogram
from penstock.lake.transforms.targets import aimed
from penstock.lake.transforms.times import hour_of_week

SHORTEST_LEASE, LONGEST_LEASE = 10, 3600
_QUEUE = ("tenant", "queue")


def capacity(queue_hours: DataFrame) -> DataFrame:
    """One row per (tenant, queue, hour of the week) in which anything happened.

    Arrivals are those of the busiest week at that hour. What a job takes is the queue's mean, all its attempts
    together: jobs that come in one hour may run in the next, so hours have no mean of their own. It is known where any has
    ended; those that still wait have no part in it, or a backlog would make a queue look quick.
    """
    peaks = queue_hours.groupBy(*_QUEUE, hour_of_week("hour").alias("hour_of_week")).agg(
        F.max("arrivals").cast("double").alias("arrivals_per_hour")
    )
    costs = queue_hours.groupBy(*_QUEUE).agg(
        F.try_divide(F.sum("busy_ms"), F.sum("ended")).alias("service_ms")
    )
    load = F.col("arrivals_per_hour") * F.col("service_ms") / 3_600_000
    return peaks.join(costs, list(_QUEUE)).withColumn("offered_load", load).select(*CAPACITY)


def capacity_plan(capacity: DataFrame, daily: DataFrame, *, targets: Sequence[Target] = ()) -> DataFrame:
    """One row per (tenant, queue of which it is known what a job takes): what to set it to, so that it keeps its promise.

    Promises are `targets`, as `slo` takes them. Concurrency by Erlang's formula at the busiest hour of the week
    (`penstock.lake.queueing` is the same in Python). The lease is half as long again as 99 % of runs, from ten seconds to an
    hour; a heartbeat comes three times in it.
    """
    measured = capacity.where("service_ms IS NOT NULL")
    busiest = measured.groupBy(*_QUEUE).agg(
        F.max(
            F.struct(
                "offered_load", (-F.col("hour_of_week")).alias("earlier"), "arrivals_per_hour", "service_ms"
            )
        ).alias("peak")
    )
    runs = gather_histogram(daily, _QUEUE, "run_hist").select(
        *_QUEUE, F.expr(percentile_spark("run_hist", 0.99)).alias("p99_ms")
    )
    known = busiest.join(runs, list(_QUEUE), "left").select(
        *_QUEUE,
        F.col("peak.offered_load").alias("load"),
        F.col("peak.service_ms").alias("service_ms"),
        F.col("peak.arrivals_per_hour").alias("arrivals"),
        (-F.col("peak.earlier")).alias("peak_hour_of_week"),
        F.coalesce("p99_ms", F.lit(0.0)).alias("p99_ms"),
    )
    sized = aimed(known, targets).withColumn("size", F.expr(_size()))
    lease = F.greatest(
        F.lit(SHORTEST_LEASE), F.least(F.lit(LONGEST_LEASE), F.ceil(F.col("p99_ms") * 1.5 / 1000))
    ).cast("double")
    made = {
        "concurrency": F.col("size.servers"),
        "lease_seconds": lease,
        "heartbeat_seconds": lease / 3,
        "expected_wait_ms": F.col("size.wait_ms"),
        "utilisation": F.col("load") / F.col("size.servers"),
        "why": F.expr(_WHY),
    }
    return sized.select(*(made.get(column, F.col(column)).alias(column) for column in CAPACITY_PLAN))


def _size() -> str:
    """The fewest servers that keep the promise, and the mean wait then, as one fold over their number."""
    busy = "at.blocked * load / (n + at.blocked * load)"  # Erlang B of n, from that of n − 1
    waits = f"({busy}) / (1 - load / n * (1 - ({busy})))"  # Erlang C of n
    late = f"{waits} * exp(-(n - load) * target_wait_ms / service_ms)"
    # Waits fall off so fast with the square root of the load that more are never needed.
    most = "CAST(ceil(load + 10 * sqrt(load) + 20) AS INT)"
    begin = "named_struct('blocked', 1D, 'servers', CAST(NULL AS INT), 'wait_ms', CAST(NULL AS DOUBLE))"
    step = (
        f"IF(at.servers IS NOT NULL, at, IF(n > load AND {late} <= 1 - objective,"
        f" named_struct('blocked', 0D, 'servers', n, 'wait_ms', {waits} * service_ms / (n - load)),"
        f" named_struct('blocked', {busy}, 'servers', CAST(NULL AS INT), 'wait_ms', CAST(NULL AS DOUBLE))))"
    )
    return (
        "IF(load <= 0, named_struct('blocked', 0D, 'servers', 1, 'wait_ms', 0D),"
        f" aggregate(sequence(1, {most}), {begin}, (at, n) -> {step}))"
    )


def _plain(number: str) -> str:
    """A number as people write it: 60 rather than 60.0."""
    return f"regexp_replace(CAST(round({number}, 3) AS STRING), '[.]0$', '')"


_WHY = (
    "concat(elt(CAST(peak_hour_of_week DIV 24 AS INT) + 1, 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday',"
    " 'Sunday'), ' ', lpad(CAST(peak_hour_of_week % 24 AS STRING), 2, '0'), ':00 UTC: ',"
    " CAST(CAST(round(arrivals) AS BIGINT) AS STRING), ' jobs/h × ', CAST(CAST(round(service_ms) AS BIGINT) AS STRING),"
    " ' ms = ', CAST(CAST(load AS DECIMAL(18, 2)) AS STRING), ' busy; ', CAST(size.servers AS STRING), ' at a time keep ',"
    f" {_plain('objective * 100')}, ' % of waits within ', {_plain('target_wait_ms / 1000')}, ' s')"
)
