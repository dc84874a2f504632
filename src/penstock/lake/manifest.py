"""What is in a lake: Parquet in folders that are never changed, and one small file that says which of them count.

A run writes new folders and then replaces the manifest. Before that it has done nothing, after it everything: what a run
that died left behind is in no manifest, so nobody sees it, and `vacuum` takes it away. Needs no Spark.

    import duckdb
    from penstock.lake.manifest import tables
    duckdb.read_parquet(tables(".penstock/lake")["hourly"], hive_partitioning=False)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock import __version__
from penstock.lake.errors import (
    LakeBroken,
    LakeEdited,
    LakeMissing,
    LakeMoved,
    LakeNewer,
    LakeOfAnother,
    LakeUnwritten,
    StoreAhead,
    StoreBehind,
)
from penstock.lake.folders import PART as PART
from penstock.lake.folders import by_folder, is_data
from penstock.lake.storage import Storage, open_storage
from penstock.lake.targets import Target
from penstock.stores.log.layout import shard_name

FORMAT = 1
"""Raised when an older version could no longer read, or would spoil, what a newer one writes."""
NAME = "manifest.json"
WHOLE = "all"
"""What stands for the day where a table is not kept by the day."""
LAYERS = ("bronze", "silver", "gold")
GRACE = timedelta(days=1)
"""How long what no manifest names is left alone: it may be a run at work, or be read by somebody who began before."""

Parts = Mapping[str, tuple[str, ...]]
"""Day (or WHOLE) → the folders that hold it."""


# ── The manifest ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Manifest(Struct, frozen=True, kw_only=True):
    """Which folders count, and how far they have come."""

    format: int = FORMAT
    written_by: str = __version__
    lake: str
    """Which lake this is, wherever it is moved."""
    source: Mapping[str, str]
    """Whose history: the feed, and the system identifier of its database. Empty for one that no store has."""
    batch: int = 0
    """How often something was committed; who commits says from which batch it comes."""
    offset: Mapping[str, Any]
    """Up to where the store's history is in the lake: the store's own words."""
    run: int = 0
    """The last run of which anything is in the lake, as the store counts them (`penstock.lake.keeping`)."""
    read_at: datetime | None = None
    """Everything that had been committed in the store at this moment is in bronze."""
    data_as_of: datetime | None = None
    """Everything that had been committed in the store at this moment is in every table."""
    committed_at: datetime | None = None
    tables: Mapping[str, Parts] = {}
    born: Parts = {}
    """Day → the parts of bronze with events of jobs that were created on it."""
    strays: Parts = {}
    """Day → the days, far off, on which jobs were created whose ids say that day."""
    told: Mapping[str, int] = {}
    """Day → how many of its parts of bronze, the first ones, are in those tables of silver that have a row per fact."""
    lived: Mapping[str, int] = {}
    """Day → how many of its parts in `born`, the first ones, are in `jobs`."""
    counts: Mapping[str, Mapping[str, int]] = {}
    """Day → kind → how many events of it bronze has."""
    targets: tuple[Target, ...] = ()
    """What the tables of promises and plans were made by, where it is not the usual."""
    made_of: Mapping[str, str] = {}
    """Table that is kept as a whole → a digest of what it was made from, by which it is seen to be still right."""
    retired: Mapping[str, datetime] = {}
    """Folder → since when it no longer counts. Somebody may still be reading it."""
    stale: tuple[str, ...] = ()
    """Days whose silver and gold do not have all that bronze has; the tables kept as a whole then do not have it either."""
    unchecked: tuple[str, ...] = ()
    """Days whose counts have not been found to agree with the store's since they last grew."""
    doubts: tuple[str, ...] = ()
    """Those of them whose counts were compared and did not agree."""
    sought: str | None = None
    """The store was asked what it has of all days before this one: also of days that the lake knows nothing of."""

    @property
    def days(self) -> list[str]:
        """The days that anything is known of."""
        return sorted(self.counts)

    def folders(self, table: str, days: Iterable[str] | None = None) -> list[str]:
        """The folders that hold a table, or some days of it."""
        parts = self.tables.get(table, {})
        return [folder for day in sorted(parts if days is None else days) for folder in parts.get(day, ())]


def new_manifest(source: Mapping[str, str], offset: Mapping[str, Any]) -> Manifest:
    """An empty lake of this store's history."""
    return Manifest(lake=uuid4().hex, source=source, offset=offset)


def source_of(offset: Mapping[str, Any]) -> dict[str, str]:
    """Whose history an offset is about."""
    return {"feed": str(offset["feed"]), "system": str(offset["system"])}


def by_log(offset: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The offset of each log of a store that is several; of any other, the offset itself."""
    return list(offset.get("logs") or [offset])


def with_parts(manifest: Manifest, table: str, parts: Parts, gone: Iterable[str] = ()) -> Manifest:
    """With these days of a table instead of what it had for them, and without those `gone`."""
    kept = {day: folders for day, folders in manifest.tables.get(table, {}).items() if day not in set(gone)}
    return replace(manifest, tables={**manifest.tables, table: {**kept, **parts}})


def with_more(
    manifest: Manifest, table: str, parts: Parts, gone: Iterable[str] = (), again: Iterable[str] = ()
) -> Manifest:
    """With these days of a table beside what it has for them, but for days that are `gone` and folders written `again`."""
    without, left = {*gone}, {*again}
    made = {
        day: tuple(folder for folder in folders if folder not in left)
        for day, folders in manifest.tables.get(table, {}).items()
        if day not in without
    }
    for day, folders in parts.items():
        made[day] = (*made.get(day, ()), *folders)
    have = {day: folders for day, folders in made.items() if folders}
    return replace(manifest, tables={**manifest.tables, table: have})


# ── In a file ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Envelope(Struct, frozen=True):
    """The manifest as it was written, to the letter, and what that adds up to."""

    checksum: str
    manifest: msgspec.Raw


class _Head(Struct, frozen=True):
    """What every version will be able to read of every other's."""

    format: int
    written_by: str = "?"


def encode(manifest: Manifest) -> bytes:
    body = msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=1)
    return msgspec.json.encode(_Envelope(_checksum(body), msgspec.Raw(body))) + b"\n"


def decode(text: bytes, place: str) -> Manifest:
    """Read a manifest, or refuse it. `place` says where it lies."""
    try:
        envelope = msgspec.json.decode(text, type=_Envelope)
        head = msgspec.json.decode(envelope.manifest, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LakeEdited(place, f"it is no manifest ({error})") from None
    # First: a newer version may add up otherwise.
    if head.format > FORMAT:
        raise LakeNewer(place, head.format, head.written_by, FORMAT)
    found = _checksum(bytes(envelope.manifest))
    if envelope.checksum != found:
        raise LakeEdited(place, f"it says {envelope.checksum} of itself and adds up to {found}")
    try:
        return msgspec.json.decode(envelope.manifest, type=Manifest)
    except msgspec.DecodeError as error:
        raise LakeEdited(place, f"it adds up, but is no manifest ({error})") from None


def _checksum(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


class Lake:
    """A lake in its place: look at its manifest, and replace it."""

    def __init__(self, place: str | Path | Storage) -> None:
        self.storage = open_storage(place) if isinstance(place, str | Path) else place
        self.place = self.storage.path("").rstrip("/")

    def find(self) -> Manifest | None:
        """The manifest as it is now; None where there is no lake yet. A lake that this version must not touch is refused."""
        text = self.storage.read(NAME)
        if text is not None:
            return decode(text, self.place)
        # A lake begins with its manifest. Where there is data without one it was lost, and a new one would make rubbish of it.
        left = [layer for layer in LAYERS if self.storage.folders(layer)]
        if left:
            raise LakeEdited(self.place, f"it is gone, and there is data under {', '.join(left)}")
        return None

    def others(self) -> list[str]:
        """What lies in the place and is nothing of a lake's, nor of the disk's or somebody's desktop."""
        ours = {*LAYERS, "lost+found"}
        return [
            name for name in self.storage.entries() if name not in ours and not name.startswith((".", NAME))
        ]

    def version(self) -> object:
        """Another one when the manifest was replaced; costs less than to read it."""
        return self.storage.version(NAME)

    def manifest(self) -> Manifest:
        found = self.find()
        if found is None:
            raise LakeMissing(self.place)
        return found

    def commit(self, manifest: Manifest, *, now: datetime | None = None) -> Manifest:
        """Make this the manifest, if nobody has committed since it was looked at. Returns it as it was written."""
        now = now or datetime.now(UTC)
        made = replace(
            manifest, batch=manifest.batch + 1, format=FORMAT, written_by=__version__, committed_at=now
        )

        def change(text: bytes | None) -> bytes:
            nonlocal made
            found = None if text is None else decode(text, self.place)
            at = 0 if found is None else found.batch
            if at != manifest.batch:
                raise LakeMoved(self.place, f"it was at batch {manifest.batch} and is at {at}")
            if found is not None and found.lake != manifest.lake:
                raise LakeMoved(self.place, f"it was {manifest.lake} and is {found.lake}")
            # Whoever cleaned up may have taken it for what a dead run left; or Spark wrote it where nobody else looks.
            new = _all_folders(made) - (set() if found is None else _all_folders(found))
            if gone := new - self.storage.filled(new):
                raise LakeUnwritten(self.place, f"there is nothing in {_some(gone)}")
            made = replace(made, retired=self._retired(found, made, now))
            return encode(made)

        self.storage.swap(NAME, change)
        return made

    def _retired(self, old: Manifest | None, new: Manifest, now: datetime) -> dict[str, datetime]:
        """What no longer counts with the new manifest, less what has been taken away since."""
        if old is None:
            return {}
        kept = _all_folders(new)
        # To look whether each is still there would cost ever more: those that vacuum leaves alone mostly are.
        outlived = {folder for folder, since in old.retired.items() if since <= now - GRACE}
        gone = outlived - self.storage.filled(outlived)
        left = {folder: since for folder, since in old.retired.items() if folder not in gone | kept}
        return left | dict.fromkeys(_all_folders(old) - kept, now)

    def check_source(self, manifest: Manifest, horizon: Mapping[str, Any]) -> None:
        """Refuse a store whose history, known up to this place, the lake cannot go on with. Of several logs each must do."""
        source = source_of(horizon)
        if dict(manifest.source) != source:
            raise LakeOfAnother(self.place, manifest.source, source)
        logs = by_log(horizon)
        for number, (had, there) in enumerate(zip(by_log(manifest.offset), logs, strict=True)):
            log = f"log {shard_name(number)}" if len(logs) > 1 else None
            at, since = int(had.get("xid", 0)), int(had.get("floor", 0))
            xid, floor = int(there["xid"]), int(there["floor"])
            # One that is, or was, empty has no name.
            if log is not None and had["feed"] and there["feed"] and had["feed"] != there["feed"]:
                raise LakeOfAnother(self.place, source_of(had), source_of(there), log)
            if at > max(xid, floor):
                raise StoreBehind(self.place, at, xid, log)
            if floor > max(at, since):
                raise StoreAhead(self.place, at, floor, log)

    def unnamed(self, grace: timedelta = GRACE, *, now: datetime | None = None) -> list[str]:
        """Folders that do not count, and have not for a while: replaced ones, and those of runs that came to no end."""
        there = list(self._parts())
        manifest = self.manifest()  # after the look: what a run has committed meanwhile counts
        counting, before = _all_folders(manifest), (now or datetime.now(UTC)) - grace
        return [
            folder
            for folder, written_at in there
            if folder not in counting and manifest.retired.get(folder, written_at) <= before
        ]

    def vacuum(self, grace: timedelta = GRACE, *, now: datetime | None = None) -> list[str]:
        """Remove what no longer is, or never was, part of the lake. Returns the folders that went."""
        gone = self.unnamed(grace, now=now)
        for folder in gone:
            self.storage.remove(folder)
        self.tidy(self.manifest(), now=now)
        return gone

    def tidy(self, manifest: Manifest, *, now: datetime | None = None) -> None:
        """Let go of what this machine has fetched of the lake, or sent to it, and nobody needs any more."""
        self.storage.tidy(_all_folders(manifest) | {*manifest.retired}, (now or datetime.now(UTC)) - GRACE)

    def _parts(self) -> Iterator[tuple[str, datetime]]:
        """Every folder that a manifest could name, and when it was last written to."""
        for layer in LAYERS:
            for table in self.storage.folders(layer):
                yield from sorted(by_folder(self.storage.beneath(f"{layer}/{table}")).items())


def tables(lake: str | Path) -> dict[str, list[str]]:
    """Every table of a lake as the Parquet files that hold it now, for DuckDB, Polars or whatever reads Parquet."""
    opened = Lake(lake)
    manifest = opened.manifest()
    return {
        table: [
            opened.storage.path(file)
            for folder in manifest.folders(table)
            for file in opened.storage.files(folder)
        ]
        for table in sorted(manifest.tables)
    }


def here(lake: Lake, folders: Sequence[str]) -> list[str]:
    """The data files of some folders, as this machine reads them; those of a bucket are fetched.

    A folder that counts has files, also where its table has no rows: one without any is refused.
    """
    found = {
        folder: [str(file) for file in Path(path).glob("*.parquet") if is_data(file.name)]
        for folder, path in zip(folders, lake.storage.fetched(folders), strict=True)
    }
    if gone := [folder for folder, files in found.items() if not files]:
        raise LakeBroken(lake.place, gone)
    return sorted(file for files in found.values() for file in files)


def lacking(lake: Lake, manifest: Manifest) -> list[str]:
    """Folders that the manifest names and that hold nothing: somebody has removed them."""
    named = _all_folders(manifest)
    return sorted(named - lake.storage.filled(named))


def whole(lake: Lake) -> Manifest:
    """The manifest of a lake that has all it names. Without its files a table would look empty, and be told as that."""
    manifest = lake.manifest()
    if gone := lacking(lake, manifest):
        raise LakeBroken(lake.place, gone)
    return manifest


def _some(folders: Iterable[str]) -> str:
    first, *more = sorted(folders)
    return f"{first} and {len(more)} more" if more else first


def _all_folders(manifest: Manifest) -> set[str]:
    return {folder for parts in manifest.tables.values() for folders in parts.values() for folder in folders}
