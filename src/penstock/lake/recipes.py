"""Which table of the lake is made from which, and how much of them has to be made anew when a day has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec
from msgspec import Struct
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from penstock import __version__
from penstock.lake import transforms
from penstock.lake.manifest import WHOLE, Manifest
from penstock.lake.tables import BRONZE, EVENTS, GOLD, SILVER, Table
from penstock.lake.targets import Target
from penstock.lake.transforms.anomalies import WEEKS
from penstock.lake.transforms.failures import FAILURE_DAYS, FAILURE_HOURS
from penstock.lake.transforms.figures import QUEUE_HOURS
from penstock.lake.transforms.flows import FLOW_JOBS, strangers
from penstock.lake.transforms.schedules import ABOUT_SCHEDULES
from penstock.lake.transforms.slo import WINDOWS

FLOW_DAYS = 35
"""How far back flows are looked for: whose flow a job is in, only all jobs can tell."""

SLO_DAYS = max(WINDOWS.values()) // 24 + 1
ANOMALY_DAYS = WEEKS * 7 + 1
"""How far back these look anyway; one more, because they begin within a day."""
PLAN_DAYS = 8 * 7
"""How far back the busiest hours are looked for: what was long ago, such as one bad week, sizes no queue for ever."""
REMEMBERED_DAYS = 90
"""How far back failures are told of: a run of an old lake is not to cost more than that of a young one."""
PUNCTUAL_DAYS = REMEMBERED_DAYS + 5 * 7
"""How far back fires are read, to tell of as many days: what is usual at a time of the week is seen in the weeks before."""


Folders = Mapping[str, Sequence[str]]
"""Table → folders of it."""


class By(StrEnum):
    """What a table needs to be made, or made anew for some days."""

    FACT = "fact"
    """What is new of its tables alone: a row is about one fact, or some, and comes beside those that are there."""
    SUM = "sum"
    """What is new of its tables, and what it says itself of these days: its figures are sums, and are added up."""
    DAY = "day"
    """What its tables have of these days."""
    BORN = "born"
    """What is new of the jobs that were created on these days, whenever it happened; and of those it tells of, all there is."""
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
    rarely: Mapping[str, Callable[[DataFrame], DataFrame]] = {}
    """A large table that it reads → what says, of the first it reads, which rows are wanted of that. Mostly there are none."""

    @property
    def reads(self) -> tuple[str, ...]:
        return transforms.inputs(self.make)

    def __call__(
        self, tables: Mapping[str, DataFrame], as_of: datetime, targets: Sequence[Target] = ()
    ) -> DataFrame:
        told = transforms.told(self.make, as_of=as_of, targets=targets)
        made = self.make(*(tables[one] for one in self.reads), **told)
        return transforms.merge([tables[self.table], made]) if self.table in tables else made

    def takes(self, manifest: Manifest, days: Sequence[str], as_of: datetime, before: Manifest) -> Folders:
        """Where that is which the table, or these days of it, are made from; `before` has nothing new but events."""
        if self.by is By.BORN:
            unseen = {day: manifest.born.get(day, ())[manifest.lived.get(day, 0) :] for day in days}
            grown = [day for day in days if unseen[day] and manifest.lived.get(day)]
            known = manifest.folders(self.table, grown)
            events = sorted({folder for some in unseen.values() for folder in some})
            return {"events": events, self.table: known} if known else {"events": events}
        if self.by in (By.FACT, By.SUM):
            new = {table: _new(manifest, before, table, days) for table in self.reads}
            touched = [
                day for day in days if manifest.told.get(day) and any(some[day] for some in new.values())
            ]
            own = manifest.folders(self.table, touched) if self.by is By.SUM else []
            found = {table: [folder for day in days for folder in some[day]] for table, some in new.items()}
            return {**found, self.table: own} if own else found
        wanted = days if self.by is By.DAY else _latest(manifest, as_of, self.last_days)
        return {table: manifest.folders(table, _of(manifest, table, wanted)) for table in self.reads}

    def is_kept(self, manifest: Manifest, folders: Folders, as_of: datetime) -> bool:
        """Whether the table would say what it says, or nothing is to be added to it."""
        if self.by in (By.FACT, By.SUM, By.BORN):
            return not any(folders.values())
        if self.by is not By.WHOLE or self.table not in manifest.tables:
            return False
        # Of what is wanted rarely nothing was wanted by the same others, and so would not be now.
        known = {self.digest(some, as_of, manifest.targets) for some in (folders, self.without_rare(folders))}
        return manifest.made_of.get(self.table) in known

    def without_rare(self, folders: Folders) -> Folders:
        return {name: some for name, some in folders.items() if name not in self.rarely}

    def digest(self, folders: Folders, as_of: datetime, targets: Sequence[Target]) -> str:
        """What a table made as a whole was made from: of the same, the same would come again.

        Folders are never written twice. Times are told to the hour.
        """
        told = transforms.told(self.make, as_of=as_of.timestamp() // 3600, targets=targets)
        made_of = msgspec.json.encode([__version__, folders, told], order="sorted")
        return hashlib.sha256(made_of).hexdigest()


def _new(
    manifest: Manifest, before: Manifest, table: str, days: Sequence[str]
) -> Mapping[str, Sequence[str]]:
    """By day what was told nowhere yet of a table: of events as the manifest says, of others what a run has just made."""
    parts, had = manifest.tables.get(table, {}), set(before.folders(table, days))
    if table == "events":
        return {day: parts.get(day, ())[manifest.told.get(day, 0) :] for day in days}
    return {day: [folder for folder in parts.get(day, ()) if folder not in had] for day in days}


def _of(manifest: Manifest, table: str, days: Sequence[str] | None) -> Sequence[str] | None:
    """The days of a table that are wanted; all of one that is kept as a whole."""
    return None if WHOLE in manifest.tables.get(table, {}) else days


def _latest(manifest: Manifest, as_of: datetime, count: int | None) -> list[str] | None:
    """The days that are no longer ago than so many; None for all there is."""
    if count is None:
        return None
    first = str(as_of.date() - timedelta(days=count))
    return [day for day in manifest.days if day >= first]


def fires(events: DataFrame) -> DataFrame:
    """The events of schedules and their jobs: all that `schedules` looks at, so that a run need not read the rest again."""
    return events.where(ABOUT_SCHEDULES)


def schedules(fires: DataFrame, *, as_of: datetime) -> DataFrame:
    told = transforms.GOLD["schedules"](fires, as_of=as_of)
    return told.where(f.col("day") >= f.lit(as_of.date() - timedelta(days=REMEMBERED_DAYS)))


SCHEMAS: Mapping[str, Table] = {
    **SILVER,
    **GOLD,
    **BRONZE,
    "failure_hours": FAILURE_HOURS,
    "failure_days": FAILURE_DAYS,
    "queue_hours": QUEUE_HOURS,
    "flow_jobs": FLOW_JOBS,
    "fires": EVENTS,
    "events_before": EVENTS,
}
"""What can be read, by the name it goes by where it is an ingredient."""


def recipes() -> tuple[Recipe, ...]:
    """In an order in which each comes after those it reads. A function, because columns need a session."""
    silver, by_day, gold = transforms.SILVER, transforms.BY_DAY, transforms.GOLD
    day, hour = f.col("day"), f.to_date("hour")
    return (
        Recipe("silver", "attempts", silver["attempts"], By.FACT, day=day),
        Recipe("silver", "jobs", silver["jobs"], By.BORN, day=day),
        Recipe("silver", "fires", fires, By.FACT, day=day),
        Recipe("silver", "flow_jobs", by_day["flow_jobs"], day=day),
        Recipe("silver", "failure_hours", by_day["failure_hours"], By.FACT, day=hour),
        Recipe("silver", "failure_days", by_day["failure_days"], day=day),
        Recipe("gold", "hourly", gold["hourly"], By.SUM, day=hour),
        Recipe("silver", "queue_hours", by_day["queue_hours"], day=hour),
        Recipe("gold", "daily", gold["daily"], day=day),
        Recipe("gold", "usage", gold["usage"], day=day),
        Recipe("gold", "failures", gold["failures"], By.WHOLE, last_days=REMEMBERED_DAYS),
        Recipe("gold", "capacity", gold["capacity"], By.WHOLE, last_days=PLAN_DAYS),
        Recipe("gold", "capacity_plan", gold["capacity_plan"], By.WHOLE, last_days=PLAN_DAYS),
        Recipe("gold", "slo", gold["slo"], By.WHOLE, last_days=SLO_DAYS),
        Recipe("gold", "anomalies", gold["anomalies"], By.WHOLE, last_days=ANOMALY_DAYS),
        Recipe("gold", "flows", gold["flows"], By.WHOLE, last_days=FLOW_DAYS, rarely={"jobs": strangers}),
        Recipe("gold", "schedules", schedules, By.WHOLE, last_days=PUNCTUAL_DAYS),
    )
