"""What may be wrong with a lake.

LakeError                   the lake cannot be used as it was asked; nothing in it was changed
├── LakeMissing
├── LakeNewer               a newer Penstock writes it
├── LakeEdited              its manifest is not as it was written
├── LakeBroken              files that its manifest names are gone
├── LakeUnwritten           files that a run has written are not there
├── LakeOfAnother           it holds the history of another store
├── StoreBehind             the store was restored from a backup: by how far it has come
├── StoreRestored           the same, by which runs it knows of
└── StoreAhead              history left the store that the lake never read
Conflict
└── LakeMoved               somebody else has written to it meanwhile
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock import __version__
from penstock.core.errors import Conflict, PenstockError


class LakeError(PenstockError):
    """The lake cannot be used as it was asked. Nothing in it was changed."""

    code = "lake"


class LakeMissing(LakeError):
    """There is no lake. `penstock lake run` makes one; or name another with --lake or PENSTOCK_LAKE."""

    code = "lake_missing"

    def __init__(self, place: str) -> None:
        super().__init__(
            f"there is no lake in {place}; penstock lake run makes one, and --lake or PENSTOCK_LAKE names another",
            place=place,
        )


class LakeOccupied(LakeError):
    """Something else is kept in this folder. Name an empty one, or one that is to be made."""

    code = "lake_occupied"

    def __init__(self, place: str, found: Sequence[str]) -> None:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        super().__init__(
            f"there is no lake in {place}, but {', '.join(found[:3])}{more}; name a folder that is empty, or that is not there yet",
            place=place,
            found=list(found[:3]),
        )


class LakeNewer(LakeError):
    """A newer version of Penstock writes this lake. Use that version, or a lake of your own."""

    code = "lake_newer"

    def __init__(self, place: str, found: object, written_by: object, known: int) -> None:
        super().__init__(
            f"the lake in {place} has format {found}, written by Penstock {written_by}, and this is {__version__}, which "
            f"knows formats up to {known}; upgrade this one, or name another lake",
            place=place,
            found=found,
        )


class LakeEdited(LakeError):
    """The manifest is not what Penstock wrote. Put the original back; or move the lake aside and build it anew."""

    code = "lake_edited"

    def __init__(self, place: str, found: str) -> None:
        super().__init__(
            f"{place}/manifest.json is not as Penstock wrote it: {found}; put the original back from a copy, or move the lake "
            "aside and run again, which builds it anew from what the store still has",
            place=place,
            found=found,
        )


class LakeOfAnother(LakeError):
    """The lake holds the history of another database. Name that database, or another lake."""

    code = "lake_of_another"

    def __init__(
        self, place: str, lakes: Mapping[str, Any], stores: Mapping[str, Any], log: str | None = None
    ) -> None:
        here = "the store" if log is None else f"{log} of the store"
        if str(stores.get("system", "")).startswith("log"):
            hint = "A log that was begun anew in the same place is another one"
        elif lakes.get("feed") == stores.get("feed"):
            hint = "If it is that database and has moved to another server (pg_upgrade): penstock lake adopt"
        else:
            hint = "A database that was dumped, loaded and stamped anew is another one"
        super().__init__(
            f"the lake in {place} holds the history of {_said(lakes)}, and {here} is {_said(stores)}; name the "
            f"store that the lake was made from, or another lake. {hint}",
            place=place,
            lake=dict(lakes),
            store=dict(stores),
        )


class StoreBehind(LakeError):
    """The store knows less than the lake: it was restored from a backup. Restore the lake too, or begin a new one."""

    code = "lake_store_behind"

    def __init__(self, place: str, lakes: object, stores: object, log: str | None = None) -> None:
        super().__init__(
            f"the lake in {place} has read {_up_to(lakes, log)}, and {log or 'the store'} has only come to {stores}: it was "
            "restored from a backup. Put back the lake of that time, or begin a new one; what the lake holds beyond the "
            "backup did happen, and stays in it",
            place=place,
            lake=lakes,
            store=stores,
        )


class StoreRestored(LakeError):
    """The store does not know of runs that the lake has made: it was restored from a backup, or is another's copy."""

    code = "lake_store_restored"

    def __init__(self, place: str, lakes: int, stores: int, log: str | None = None) -> None:
        super().__init__(
            f"the lake in {place} has made {lakes} runs over this store, and {log or 'the store'} knows of {stores}: it was "
            "restored from a backup. Put back the lake of that time, or begin a new one; what the lake holds beyond the backup did "
            "happen, and stays in it",
            place=place,
            lake=lakes,
            store=stores,
        )


class StoreAhead(LakeError):
    """History has left the store that the lake never read. Begin a new lake; the old one stays as it is."""

    code = "lake_too_old"

    def __init__(self, place: str, lakes: object, stores: object, log: str | None = None) -> None:
        super().__init__(
            f"the lake in {place} has read {_up_to(lakes, log)}, and {log or 'the store'} has kept everything only from "
            f"{stores} on: some history left it unread. Begin a new lake with what there is; this one stays as it is",
            place=place,
            lake=lakes,
            store=stores,
        )


class LakeBroken(LakeError):
    """Files that the manifest names are gone. Put them back from a copy; if they are none of bronze, a rebuild makes them."""

    code = "lake_broken"

    def __init__(self, place: str, folders: Sequence[str]) -> None:
        gone = ", ".join(folders[:3]) + (f" and {len(folders) - 3} more" if len(folders) > 3 else "")
        otherwise = (
            "move the lake aside and run again, which builds it anew from what the store still has"
            if any(folder.startswith("bronze/") for folder in folders)
            else "make it anew with penstock lake run --rebuild"
        )
        super().__init__(
            f"the lake in {place} lacks what its manifest names: {gone}; put it back from a copy, or {otherwise}",
            place=place,
            folders=list(folders),
        )


class LakeUnwritten(LakeError):
    """What the run has written is not there, or not all of it. Nothing of this run counts; what it read is read again."""

    code = "lake_unwritten"

    def __init__(self, place: str, found: str) -> None:
        super().__init__(
            f"the run has written into the lake in {place}, and {found}: somebody has removed it, or some of Spark's machines "
            "have a folder of their own in this place. Nothing of this run counts; keep the lake where all of Spark's "
            "machines see it, and run again",
            place=place,
            found=found,
        )


class LakeMoved(Conflict):
    """Somebody else has committed to the lake meanwhile. Nothing of this run counts; run again."""

    code = "lake_moved"

    def __init__(self, place: str, found: str) -> None:
        super().__init__(
            f"the lake in {place} is not as this run found it: {found}. Somebody else has written to it; nothing of this "
            "run counts, run again",
            place=place,
            found=found,
        )


def _up_to(at: object, log: str | None) -> str:
    return f"up to transaction {at}" if log is None else f"{log} up to entry {at}"


def _said(source: Mapping[str, Any]) -> str:
    return " ".join(f"{name} {value}" for name, value in sorted(source.items())) or "no store"
