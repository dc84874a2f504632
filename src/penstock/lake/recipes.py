"""Which table of the lake is made from which, and how much of them has to be made anew when a day has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum

from msgspec import Struct
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from penstock.lake import transforms
from penstock.lake.tables import BRONZE, EVENTS, GOLD, SILVER, Table
from penstock.lake.transforms.anomalies import WEEKS
from penstock.lake.transforms.failures import FAILURE_HOURS
from penstock.lake.transforms.figures import QUEUE_HOURS
from penstock.lake.transforms.flows import FLOW_JOBS
from penstock.lake.transforms.slo import WINDOWS

FLOW_DAYS = 35
"""How far back flows are looked for: whose flow a job is in, only all jobs can tell."""

SLO_DAYS = max(WINDOWS.values()) // 24 + 1
ANOMALY_DAYS = WEEKS * 7 + 1
"""How far back these look anyway; one more, because they begin within a day."""


class By(StrEnum):
    """What a table needs to be made, or made anew for some days."""

    DAY = "day"
    """What its tables have of these days."""
    BORN = "born"
    """All events of the jobs that were created on these days, whenever they happened."""
    WHOLE = "whole"
    """All that its tables have: small ones, or the latest days of a large one."""


class Recipe(Struct, frozen=True):
    """How to make a table of the lake."""

    layer: str
    table: str
    make: Callable[..., DataFrame]
    by: By = By.DAY
    day: Column | None = None
    """Which day a row belongs to; none for a table that is kept as a whole."""
    last_days: int | None = None
    """How far back a table made as a whole looks."""

    @property
    def reads(self) -> tuple[str, ...]:
        return transforms.inputs(self.make)

    def __call__(self, tables: Mapping[str, DataFrame], as_of: datetime) -> DataFrame:
        told = {"as_of": as_of} if transforms.takes_as_of(self.make) else {}
        return self.make(*(tables[one] for one in self.reads), **told)


def fires(events: DataFrame) -> DataFrame:
    """The events of jobs that schedules made: all that `schedules` looks at, so that a run need not read the rest again."""
    return events.where("kind = 'job' AND schedule IS NOT NULL")


def schedules(fires: DataFrame) -> DataFrame:
    return transforms.GOLD["schedules"](fires)


SCHEMAS: Mapping[str, Table] = {
    **SILVER,
    **GOLD,
    **BRONZE,
    "failure_hours": FAILURE_HOURS,
    "queue_hours": QUEUE_HOURS,
    "flow_jobs": FLOW_JOBS,
    "fires": EVENTS,
}


def recipes() -> tuple[Recipe, ...]:
    """In an order in which each comes after those it reads. A function, because columns need a session."""
    silver, by_day, gold = transforms.SILVER, transforms.BY_DAY, transforms.GOLD
    day, hour = f.col("day"), f.to_date("hour")
    return (
        Recipe("silver", "attempts", silver["attempts"], day=day),
        Recipe("silver", "jobs", silver["jobs"], By.BORN, day=day),
        Recipe("silver", "fires", fires, day=day),
        Recipe("silver", "flow_jobs", by_day["flow_jobs"], day=day),
        Recipe("silver", "failure_hours", by_day["failure_hours"], day=hour),
        Recipe("gold", "hourly", gold["hourly"], day=hour),
        Recipe("silver", "queue_hours", by_day["queue_hours"], day=hour),
        Recipe("gold", "daily", gold["daily"], day=day),
        Recipe("gold", "usage", gold["usage"], day=day),
        Recipe("gold", "failures", gold["failures"], By.WHOLE),
        Recipe("gold", "capacity", gold["capacity"], By.WHOLE),
        Recipe("gold", "capacity_plan", gold["capacity_plan"], By.WHOLE),
        Recipe("gold", "slo", gold["slo"], By.WHOLE, last_days=SLO_DAYS),
        Recipe("gold", "anomalies", gold["anomalies"], By.WHOLE, last_days=ANOMALY_DAYS),
        Recipe("gold", "flows", gold["flows"], By.WHOLE, last_days=FLOW_DAYS),
        Recipe("gold", "schedules", schedules, By.WHOLE),
    )
