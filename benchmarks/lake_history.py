"""A lake with a made-up history in its bronze, and nothing made of it yet: written by several processes, without Spark."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from multiprocessing import get_context
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct
from msgspec.structs import replace

from penstock.lake import demo
from penstock.lake.manifest import PART, Lake, Manifest

JOBS_A_FLEET = 2_450_000
"""About five million events. More come as further fleets of the same names: simulating one takes memory."""
EVENTS_A_JOB = 2.033


class Written(Struct):
    """What one fleet has left in bronze."""

    parts: dict[str, str] = {}
    """Day → folder."""
    born: dict[str, set[str]] = {}
    """Day → folders with events of jobs that were created on it."""
    counts: dict[str, Counter[str]] = {}


def add_history(
    lake: Lake, manifest: Manifest, events: int, days: int, end: datetime, processes: int
) -> Manifest:
    """Put so many events, about, of the days before `end` into a lake. They are committed, and their days stale."""
    jobs = max(1, round(events / EVENTS_A_JOB))
    fleets = -(-jobs // JOBS_A_FLEET)
    tables = {day: list(folders) for day, folders in manifest.tables.get("events", {}).items()}
    born = {day: set(folders) for day, folders in manifest.born.items()}
    counts = {day: Counter(kinds) for day, kinds in manifest.counts.items()}
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        asked = [
            pool.submit(_fleet, lake.storage.path(""), jobs // fleets, days, seed, end)
            for seed in range(1, fleets + 1)
        ]
        for one in asked:
            written = one.result()
            for day, folder in written.parts.items():
                tables.setdefault(day, []).append(folder)
                counts.setdefault(day, Counter()).update(written.counts[day])
            for day, folders in written.born.items():
                born.setdefault(day, set()).update(folders)
    return lake.commit(
        replace(
            manifest,
            tables={
                **manifest.tables,
                "events": {day: tuple(folders) for day, folders in sorted(tables.items())},
            },
            born={day: tuple(sorted(folders)) for day, folders in born.items()},
            counts={day: dict(kinds) for day, kinds in counts.items()},
            stale=tuple(sorted({*manifest.stale, *tables, *born})),
            read_at=manifest.read_at or end,
        )
    )


def count(manifest: Manifest) -> int:
    """How many events a lake has."""
    return sum(sum(kinds.values()) for kinds in manifest.counts.values())


def _fleet(place: str, jobs: int, days: int, seed: int, end: datetime) -> Written:
    written = Written()
    files: dict[str, pq.ParquetWriter] = {}
    for batch in demo.events(jobs, days, seed, end):
        day = batch.column("day")[0].as_py()
        folder = f"bronze/events/000001-fleet{seed}/{PART}{day}"
        if day not in files:
            path = Path(place, folder)
            path.mkdir(parents=True)
            files[day] = pq.ParquetWriter(path / "part-0.parquet", demo.SCHEMA, compression="zstd")
            written.parts[day] = folder
            written.counts[day] = Counter()
        files[day].write_batch(batch)
        written.counts[day][batch.column("kind")[0].as_py()] += batch.num_rows
        for created in pc.unique(pc.cast(batch.column("created_at"), "date32")).to_pylist():
            written.born.setdefault(day if created is None else str(created), set()).add(folder)
    for file in files.values():
        file.close()
    return written
