"""From a store's history to the lake's tables, step by step.

A loop of our own over the source's offsets, not a stream with a checkpoint: how far a lake has come is then said in one
place, its manifest, and changes in the same instant as what it holds. A checkpoint beside it could say otherwise (lost,
copied, or one batch ahead), and the function that a stream calls for each batch would run on the server under Spark
Connect, away from the lake and its lease.

A run has three parts. *Taking in* reads new events into bronze, batch by batch, and each commit marks the days it touched
as stale. *Making* works stale days off: their silver and gold anew from bronze, then what is kept as a whole. *Publishing*
puts the answers into the store. Whatever dies in between, the manifest says what is left to do, and the store which answers
it has; folders of the dead are named nowhere, and a run never writes into a folder that exists.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.core.errors import InvalidInput, PenstockError
from penstock.lake import keeping
from penstock.lake.errors import LakeBroken, LakeOccupied
from penstock.lake.leading import Alone, Leading
from penstock.lake.making import Maker, untold
from penstock.lake.manifest import (
    GRACE,
    Lake,
    Manifest,
    Parts,
    lacking,
    new_manifest,
    source_of,
    with_more,
)
from penstock.lake.parts import Files, born, counted
from penstock.lake.publish import publish_lake
from penstock.lake.recipes import SCHEMAS, By, recipes
from penstock.lake.reconcile import Mismatch, mismatches, store_time, unknown_days
from penstock.lake.source import Ask, open_reader
from penstock.lake.tables import EVENTS
from penstock.lake.targets import Target, read_targets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("penstock.lake")

ROWS_A_BATCH = 2_000_000
DAYS_AT_ONCE = 35
"""How many days are made anew before something is committed: a rebuild of years is not lost at its end."""
VACUUM_EVERY = timedelta(hours=1)
"""So long may wait what vacuum would take away: a look at all that is there, at every run, would cost more than it."""
PATTERNS = frozenset("*?[]{}\\")
"""Where Spark meets one of these in a path it looks for what is like it: it would find no lake, or read that beside it too."""
ALL_EVENTS = Ask("events", tuple(EVENTS))

MADE_UP = "demo of "
"""How the name of a made-up history begins."""

Step = Callable[[str], None]


class Office(Protocol):
    def check(self) -> None:
        """Refuse to go on if somebody else writes to the lake."""
        ...


class Report(Struct):
    """What a run did."""

    batches: int = 0
    events: int = 0
    days: list[str] = []
    """Made anew."""
    checked: list[str] = []
    """Closed days whose counts were compared with the store's."""
    mismatches: list[Mismatch] = []
    """What the lake lacks, or has twice."""
    seconds: float = 0.0
    data_as_of: datetime | None = None
    published: int = 0
    """Answers put into the store; none where it has them already."""


def run_once(
    spark: SparkSession,
    url: str,
    lake: str | Path | Lake,
    *,
    rebuild: bool = False,
    first_day: date | None = None,
    last_day: date | None = None,
    check_all: bool = False,
    as_of: datetime | None = None,
    most_rows: int = ROWS_A_BATCH,
    on_step: Step = lambda name: None,
    office: Office | None = None,
) -> Report:
    """Take in all that has happened in the store, make of it what can be made, and publish that.

    `rebuild` makes silver and gold of all days anew from bronze, or with `first_day` and `last_day` of those days.
    Each closed day that has grown is compared with the store, with `check_all` every one; also days that the store alone has.
    """
    if office is None:
        with Leading(url) as held:
            return run_once(
                spark, url, lake, rebuild=rebuild, first_day=first_day, last_day=last_day, check_all=check_all,
                as_of=as_of, most_rows=most_rows, on_step=on_step, office=held,
            )  # fmt: skip
    began = time.monotonic()
    lake = lake if isinstance(lake, Lake) else Lake(lake)
    reader = open_reader(url)
    # The time first: what was committed by then is below the horizon, as far as nothing holds that up.
    read_at = as_of or store_time(url)
    target = reader.horizon()
    run = Run(spark, lake, office, on_step)
    run.begin(source_of(target), reader.first, remakes=rebuild and not first_day and not last_day)
    lake.check_source(run.manifest, target)
    run.check_in(url)
    if rebuild or first_day or last_day:
        run.forget(first_day, last_day)
    while (start := dict(run.manifest.offset))["xid"] < target["xid"]:
        end = reader.latest(start, ALL_EVENTS, most_rows, target)
        if not reader.between(start, end, ALL_EVENTS, 1):
            run.pass_over(end)
            continue
        frame = (
            spark.read.format("penstock")
            .option("url", url)
            .option("table", "events")
            .option("startOffset", msgspec.json.encode(start).decode())
            .option("endOffset", msgspec.json.encode(end).decode())
            .load()
        )
        run.take_in(frame, end, read_at if end["xid"] == target["xid"] else None)
    run.note(read_at)
    run.check(url, check_all)
    run.aim(read_targets(reader))
    run.make()
    run.tell(url)
    run.publish(url)
    run.clean_up()
    run.report.seconds = time.monotonic() - began
    return run.report


def run_frame(
    spark: SparkSession,
    events: DataFrame,
    lake: str | Path,
    *,
    name: str,
    as_of: datetime,
    on_step: Step = lambda name: None,
) -> Report:
    """Make a lake of events that no store has, such as a made-up history. It is taken in once, by its name.

    What was made up by `made_up_name` is not kept for its own sake: another such history takes its place.
    """
    began = time.monotonic()
    run = Run(spark, Lake(lake), Alone(), on_step)
    source = {"feed": name, "system": "none"}
    run.begin(source, lambda: {"xid": 0, "floor": 0})
    if run.manifest.source != source and is_made_up(source) and is_made_up(run.manifest.source):
        run.begin_anew(source, {"xid": 0, "floor": 0})
    run.lake.check_source(run.manifest, {**source, "xid": 1, "floor": 0})
    if run.manifest.offset["xid"] == 0:
        run.take_in(events, {"xid": 1, "floor": 0}, as_of)
    run.manifest = replace(run.manifest, unchecked=())  # there is nothing to compare it with
    run.make()
    run.clean_up()
    run.report.seconds = time.monotonic() - began
    return run.report


def made_up_name(jobs: int, days: int, last_day: date, seed: int) -> str:
    """What a made-up history is called: the same name is the same history."""
    return f"{MADE_UP}{jobs} jobs in {days} days to {last_day}, seed {seed}"


def is_made_up(source: Mapping[str, str]) -> bool:
    return source.get("system") == "none" and source.get("feed", "").startswith(MADE_UP)


class Run:
    """One driver at work on one lake. `manifest` is the last one committed, with what was found out since."""

    manifest: Manifest

    def __init__(self, spark: SparkSession, lake: Lake, office: Office, on_step: Step) -> None:
        self.lake, self.report = lake, Report()
        self._office, self._on_step = office, on_step
        self._files = Files(spark, lake, uuid4().hex[:8], SCHEMAS)
        self._maker = Maker(self._files, on_step)

    def begin(
        self, source: Mapping[str, str], first: Callable[[], Mapping[str, Any]], *, remakes: bool = False
    ) -> None:
        """Look at the lake, or make an empty one. What will be made anew may be gone."""
        if PATTERNS & set(self.lake.place):
            raise InvalidInput(
                "lake", f"have none of {' '.join(sorted(PATTERNS))} in its path", self.lake.place
            )
        found = self.lake.find()
        if found is None:
            if others := self.lake.others():
                raise LakeOccupied(self.lake.place, others)
            self._commit(new_manifest(source, first()), "begun")
        else:
            self.manifest = found
            if gone := [one for one in lacking(self.lake, found) if is_bronze(one) or not remakes]:
                raise LakeBroken(self.lake.place, gone)
            if found.data_as_of is not None and any(one.table not in found.tables for one in recipes()):
                self._afresh(found.days)  # an older version did not know all tables

    def begin_anew(self, source: Mapping[str, str], offset: Mapping[str, Any]) -> None:
        """Have the lake hold nothing but what is to come. Its folders are left to those who read them, and then to vacuum."""
        empty = new_manifest(source, offset)
        self._commit(replace(empty, lake=self.manifest.lake, batch=self.manifest.batch), "begun anew")

    def forget(self, first_day: date | None, last_day: date | None) -> None:
        """Have these days made anew."""
        if first_day and last_day and first_day > last_day:
            raise InvalidInput("--from", f"not be after --to, {last_day}", str(first_day))
        first, last = str(first_day or date.min), str(last_day or date.max)
        self._afresh(day for day in self.manifest.days if first <= day <= last)

    def check_in(self, url: str) -> None:
        """Hold the store to be no older than the lake; from here on nothing leaves it that the lake has not."""
        number = keeping.check_in(url, self.lake, self.manifest)
        self.manifest = replace(self.manifest, run=number)
        self._on_step("checked in")

    def tell(self, url: str) -> None:
        """Let the store let go of what the lake has."""
        self._on_step("about to tell the store")
        self._office.check()
        keeping.tell(url, self.lake, self.manifest)

    # ── Taking in ─────────────────────────────────────────────────────────────────────────────────

    def take_in(self, events: DataFrame, end: Mapping[str, Any], read_at: datetime | None) -> None:
        """Add a batch of events to bronze; `end` is where the next one begins. What is lost on the way is not passed over."""
        manifest, before = self.manifest, self.report.events
        given, rows = counted(events.select(*EVENTS))
        parts = self._files.write(given, "bronze", "events", manifest.batch + 1, _column("day"))
        self._on_step("bronze written")
        counts = {day: dict(kinds) for day, kinds in manifest.counts.items()}
        strays = {day: set(others) for day, others in manifest.strays.items()}
        touched: dict[str, set[str]] = {}
        for day, kind, born_on, id_day, number in self._counted(parts):
            counts.setdefault(day, {})
            counts[day][kind] = counts[day].get(kind, 0) + number
            self.report.events += number
            if born_on is not None:
                touched.setdefault(born_on, set()).update(parts[day])
            if id_day is not None:
                strays.setdefault(str(id_day), set()).add(day)
        self._files.hold_to("events", rows(), self.report.events - before)
        self.report.batches += bool(parts)
        self.manifest = replace(
            with_more(manifest, "events", parts),
            offset=end,
            read_at=_later(manifest.read_at, read_at),
            counts=counts,
            born={
                **manifest.born,
                **{day: (*manifest.born.get(day, ()), *sorted(folders)) for day, folders in touched.items()},
            },
            strays={day: tuple(sorted(others)) for day, others in strays.items()},
            unchecked=tuple(sorted({*manifest.unchecked, *parts})),
        )
        # A job that began on another day is told of there.
        self._stale([*parts, *touched])
        self._commit(self.manifest, "bronze committed")

    def pass_over(self, end: Mapping[str, Any]) -> None:
        """Remember that nothing happened up to here."""
        self.manifest = replace(self.manifest, offset=end)

    def _counted(self, parts: Parts) -> Iterable[tuple[str, str, str | None, date | None, int]]:
        """How many events there are by day, kind, the day on which their job was created, and that in its id if far off."""
        folders = [folder for some in parts.values() for folder in some]
        written = self._files.ingredients({"events": folders})["events"]
        numbers = written.groupBy("day", "kind", born().alias("born_on"), _far_off().alias("id_day")).count()
        return [
            (row["day"], row["kind"], row["born_on"], row["id_day"], row["count"])
            for row in numbers.collect()
        ]

    def _afresh(self, days: Iterable[str]) -> None:
        """Have all of these days made anew, also what bronze had of them before."""
        self._stale(days := set(days))
        self.manifest = untold(self.manifest, days, days)

    def _stale(self, days: Iterable[str]) -> None:
        self.manifest = replace(self.manifest, stale=tuple(sorted({*self.manifest.stale, *days})))

    def note(self, read_at: datetime) -> None:
        """Remember that there was nothing more at this time."""
        self.manifest = replace(self.manifest, read_at=_later(self.manifest.read_at, read_at))

    # ── Checking ──────────────────────────────────────────────────────────────────────────────────

    def check(self, url: str, everything: bool = False) -> None:
        """Compare what closed days have in the store and in bronze; each once also if the lake knows nothing of it."""
        manifest = self.manifest
        today = str((manifest.read_at or datetime.now(UTC)).astimezone(UTC).date())
        known = {*manifest.days, *manifest.unchecked}
        closed = sorted(day for day in (known if everything else manifest.unchecked) if day < today)
        others = unknown_days(manifest.offset, known, None if everything else manifest.sought, today)
        if not closed and not others:
            return
        events = self._files.read(manifest, "events", closed)
        found = mismatches(events, url, manifest.offset, [*closed, *others])
        self._on_step("checked")
        wrong = {one.day for one in found}
        self.report.checked, self.report.mismatches = sorted({*closed, *wrong}), found
        for one in found:
            logger.error("%s", one)
        self.manifest = replace(
            manifest,
            unchecked=tuple(sorted({*manifest.unchecked, *wrong} - ({*closed} - wrong))),
            doubts=tuple(sorted({*manifest.doubts, *wrong} - ({*closed} - wrong))),
            sought=max(today, manifest.sought or today),
        )

    def aim(self, targets: tuple[Target, ...]) -> None:
        """Remember what queues promise by now."""
        self.manifest = replace(self.manifest, targets=targets)

    # ── Making ────────────────────────────────────────────────────────────────────────────────────

    def make(self) -> None:
        """Work off the stale days, and commit what is new: nothing of it, or all.

        With no day stale there may be something to say all the same: of the hours that have passed, or of a promise changed.
        """
        cookbook = recipes()
        while True:
            days, rest = self.manifest.stale[:DAYS_AT_ONCE], self.manifest.stale[DAYS_AT_ONCE:]
            made = self._maker.compacted(self.manifest, days)
            made = self._maker.made(
                made, [one for one in cookbook if (not rest if one.by is By.WHOLE else days)], days
            )
            told = {**made.told, **{day: len(made.folders("events", [day])) for day in days}}
            lived = {**made.lived, **{day: len(made.born.get(day, ())) for day in days}}
            as_of = made.data_as_of if rest else made.read_at
            made = replace(made, stale=rest, told=told, lived=lived, data_as_of=as_of)
            if made != self.lake.find():
                self._commit(made, "committed")
            self.report.days += days
            if not rest:
                break
        self.report.data_as_of = self.manifest.data_as_of

    # ── Publishing ────────────────────────────────────────────────────────────────────────────────

    def publish(self, url: str) -> None:
        """Put the answers into the store, unless it has them: also those of a run that came no further."""
        self._office.check()
        self.report.published = publish_lake(url, self.lake, self.manifest)
        if self.report.published:
            self._on_step("published")

    def clean_up(self) -> None:
        """Take away what has been of no use for long. A run that cannot has done its work all the same."""
        before = datetime.now(UTC) - GRACE - VACUUM_EVERY
        if not any(since <= before for since in self.manifest.retired.values()):
            return
        try:
            self._office.check()
            self.lake.vacuum()
        except (OSError, PenstockError) as error:
            logger.warning("folders that are of no use could not be removed: %s", error)
        self._on_step("cleaned up")

    def _commit(self, manifest: Manifest, step: str) -> None:
        self._on_step(f"{step.removesuffix('committed').strip() or 'tables'} about to be committed")
        self._office.check()
        self.manifest = self.lake.commit(manifest)
        self._on_step(step)


def is_bronze(folder: str) -> bool:
    """Whether it holds what happened, and not what was made of that."""
    return folder.startswith("bronze/")


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    """What was there stays there, though a transaction that has come to light since holds the store's time back."""
    return max((moment for moment in (one, other) if moment is not None), default=None)


def _column(name: str) -> Any:
    from pyspark.sql import functions as f

    return f.col(name)


def _far_off() -> Any:
    """The day in the id of a job that came in more than a day after it, or before; null for almost all.

    More than a year ahead it is no time at all.
    """
    from pyspark.sql import functions as f

    millis = f.expr("CAST(conv(concat(substr(job_id, 1, 8), substr(job_id, 10, 4)), 16, 10) AS BIGINT)")
    id_day = f.to_date(f.timestamp_millis(millis))
    days = f.datediff(f.col("day").cast("date"), id_day)
    is_far = ~days.between(-1, 1) & (days > -366)
    return f.when((f.col("kind") == "job") & (f.substring("job_id", 15, 1) == "7") & is_far, id_day)
