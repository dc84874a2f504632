"""What was promised for each queue: which share of its jobs waits no longer than how long."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from penstock.lake.targets import OBJECTIVE, USUAL_SECONDS, Target

_SCHEMA = "tenant string, queue string, target_wait_ms bigint, objective double"


def aimed(frame: DataFrame, targets: Sequence[Target]) -> DataFrame:
    """Rows of queues with `target_wait_ms` and `objective`: as `targets` says, and as usual for those it does not name."""
    usual = {
        "target_wait_ms": F.lit(round(USUAL_SECONDS * 1000)).cast("bigint"),
        "objective": F.lit(OBJECTIVE),
    }
    if not targets:
        return frame.withColumns(usual)
    rows = [(one.tenant, one.queue, round(one.seconds * 1000), one.objective) for one in targets]
    own = F.broadcast(frame.sparkSession.createDataFrame(rows, _SCHEMA))
    together = frame.join(own, ["tenant", "queue"], "left")
    return together.withColumns({name: F.coalesce(name, value) for name, value in usual.items()})
