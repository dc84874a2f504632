"""Jobs gone on with: those that new events tell of are made anew, and all others of their day stay as they are.

A job's row is made of all its events, and most events of a run are of jobs that came in with it, or a little before. So of
the events that were there only those are read whose jobs went on, which their ids, made in the order of time, say of most
files without opening them; and of the rows that were there only those folders are written again that lose one.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from penstock.lake.manifest import Manifest
from penstock.lake.parts import Files, born
from penstock.lake.recipes import Folders, Recipe
from penstock.lake.transforms.nearby import by_hash

_JOB = ["tenant", "job_id"]


class GoneOn(Struct, frozen=True):
    """Known jobs that new events tell of: which folders have them, and between which ids they are."""

    folders: Sequence[str]
    first: str
    last: str


def lives(
    files: Files, recipe: Recipe, manifest: Manifest, folders: Folders, days: Sequence[str]
) -> tuple[DataFrame, Sequence[str]]:
    """The jobs that new events tell of, and those beside them in the folders that have to be written again, which it names."""
    # A folder that is new to one day may have been told to another: by its events the jobs of that one are there already.
    days = [day for day in days if manifest.born.get(day, ())[manifest.lived.get(day, 0) :]]
    tables = files.ingredients(folders)
    gone_on = _gone_on(tables["jobs"], _of(tables["events"], days)) if "jobs" in tables else None
    if gone_on is None:
        return recipe.make(_of(tables["events"], days)), ()
    before = {folder for day in days for folder in manifest.born.get(day, ())} - {*folders["events"]}
    tables = files.ingredients(
        {"events": folders["events"], "events_before": sorted(before), "jobs": gone_on.folders}
    )
    events = _of(tables["events"], days)
    earlier = tables["events_before"].where(f.col("job_id").between(gone_on.first, gone_on.last))
    told = by_hash(events.select(*_JOB).distinct())
    whole = events.unionByName(_of(earlier, days).join(told, _JOB, "left_semi"))
    beside = tables["jobs"].join(told, _JOB, "left_anti")
    return recipe.make(whole).unionByName(beside), gone_on.folders


def _of(events: DataFrame, days: Sequence[str]) -> DataFrame:
    """Those about jobs that were created on these days."""
    return events.where(born().isin(list(days)))


def _gone_on(jobs: DataFrame, events: DataFrame) -> GoneOn | None:
    told = by_hash(events.select(*_JOB).distinct())
    known = jobs.select(*_JOB, f.input_file_name().alias("file")).join(told, _JOB, "left_semi")
    found = known.groupBy("file").agg(f.min("job_id").alias("first"), f.max("job_id").alias("last")).collect()
    if not found:
        return None
    # Their last parts are those of the lake, wherever it is, or a copy of it: layer, table, run and day.
    folders = {"/".join(row["file"].split("/")[-5:-1]) for row in found}
    return GoneOn(sorted(folders), min(row["first"] for row in found), max(row["last"] for row in found))
