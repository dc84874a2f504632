"""Silver and gold of stale days, made anew from bronze: which tables when, and what the manifest then says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.lake.lives import lives
from penstock.lake.manifest import Manifest, Parts, with_more, with_parts
from penstock.lake.parts import Files
from penstock.lake.recipes import By, Folders, Recipe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLES_AT_ONCE = 3
"""How many tables are made at the same time. Small ones are mostly planning, during which the cores are free for others."""
MOST_FOLDERS = 32
"""How many folders of bronze a day may have before they are written into one."""


class Maker:
    """Makes tables of one lake. What it has made counts when the manifest that it returns is committed."""

    def __init__(self, files: Files, on_step: Callable[[str], None]) -> None:
        self._files, self._on_step = files, on_step

    def made(self, manifest: Manifest, cookbook: Sequence[Recipe], days: Sequence[str]) -> Manifest:
        """With these days of all tables made anew: each as soon as those are there that it reads."""
        before = manifest
        waiting, running = list(cookbook), dict[Future[tuple[Parts, Folders]], Recipe]()
        to_come = {recipe.table for recipe in waiting}
        as_of, unseen = moment_of(manifest), [day for day in days if not manifest.told.get(day)]
        unlived = [day for day in days if not manifest.lived.get(day)]
        made_of = dict(manifest.made_of)
        cooks = ThreadPoolExecutor(TABLES_AT_ONCE, "penstock-lake")
        try:
            while waiting or running:
                for recipe in [one for one in waiting if to_come.isdisjoint(one.reads)]:
                    waiting.remove(recipe)
                    folders = recipe.takes(manifest, days, as_of, before)
                    if recipe.is_kept(manifest, folders, as_of):
                        # Also a table that has never had a row is known from now on: one that is not is made of all days.
                        manifest = with_more(manifest, recipe.table, {})
                        to_come.discard(recipe.table)
                        continue
                    running[cooks.submit(self._parts_of, manifest, recipe, folders, days)] = recipe
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    recipe = running.pop(future)
                    parts, used = future.result()
                    match recipe.by:
                        case By.WHOLE:
                            made_of[recipe.table] = recipe.digest(used, as_of, manifest.targets)
                            manifest = with_parts(manifest, recipe.table, parts)
                        case By.FACT:
                            manifest = with_more(manifest, recipe.table, parts, gone=unseen)
                        case By.SUM:
                            manifest = with_parts(manifest, recipe.table, parts, gone=unseen)
                        case By.BORN:
                            manifest = with_more(manifest, recipe.table, parts, unlived, used[recipe.table])
                        case _:
                            manifest = with_parts(manifest, recipe.table, parts, gone=days)
                    to_come.discard(recipe.table)
                    self._on_step(f"{recipe.table} written")
        finally:
            cooks.shutdown(cancel_futures=True)
        return replace(manifest, made_of=made_of)

    def _parts_of(
        self, manifest: Manifest, recipe: Recipe, folders: Folders, days: Sequence[str]
    ) -> tuple[Parts, Folders]:
        """Make a table, or these days of it, from what others have in these folders.

        And say which of them it took; of those of the table itself, which are over when what was made of them counts.
        """
        if recipe.by is By.BORN:
            made, again = lives(self._files, recipe, manifest, folders, days)
            used: Folders = {recipe.table: again}
        else:
            tables, used = self._ingredients(recipe, folders)
            made = recipe(tables, moment_of(manifest), manifest.targets)
        return self._files.write(made, recipe.layer, recipe.table, manifest.batch + 1, recipe.day), used

    def _ingredients(self, recipe: Recipe, folders: Folders) -> tuple[Mapping[str, DataFrame], Folders]:
        """What a table is made from; of what is read rarely, nothing at all where nothing is wanted of it."""
        if not recipe.rarely:
            return self._files.ingredients(folders), folders
        always = recipe.without_rare(folders)
        tables = self._files.ingredients(always)
        if all(wanted(tables[recipe.reads[0]]).isEmpty() for wanted in recipe.rarely.values()):
            return {**tables, **{name: self._files.folders(name, []) for name in recipe.rarely}}, always
        return self._files.ingredients(folders), folders

    def compacted(self, manifest: Manifest, days: Sequence[str]) -> Manifest:
        """With days that came in very many small batches written into one folder each."""
        have = manifest.tables.get("events", {})
        scattered = [day for day in days if len(have.get(day, ())) > MOST_FOLDERS]
        if not scattered:
            return manifest
        from pyspark.sql import functions as f

        events = self._files.read(manifest, "events", scattered).repartition("day")
        parts = self._files.write(events, "bronze", "events", manifest.batch + 1, f.col("day"))
        self._on_step("bronze compacted")
        now_in = {folder: parts[day][0] for day in scattered for folder in have[day]}
        moved = [day for day, folders in manifest.born.items() if not now_in.keys().isdisjoint(folders)]
        return replace(
            untold(with_parts(manifest, "events", parts), scattered, moved),
            born={
                day: tuple(dict.fromkeys(now_in.get(folder, folder) for folder in folders))
                for day, folders in manifest.born.items()
            },
        )


def untold(manifest: Manifest, days: Iterable[str], born_on: Iterable[str]) -> Manifest:
    """As if nothing were known yet of what happened on these days, and to jobs that were created on those."""
    return replace(
        manifest,
        told={day: count for day, count in manifest.told.items() if day not in {*days}},
        lived={day: count for day, count in manifest.lived.items() if day not in {*born_on}},
    )


def moment_of(manifest: Manifest) -> datetime:
    """As of when the tables of a run speak."""
    return manifest.read_at or datetime.now(UTC)
