"""A database that has moved: the same history on another server, as pg_upgrade and a dump leave it.

Nothing can tell by itself a database that has moved from a copy of one that goes on, so a person has to say it. What can be
told is held to: it is the same feed, nothing in it is ahead of its server (a dump that is gets stamped anew, which makes
another feed of it), it has come as far as the lake has, and it knows of the lake's last run. What the lake has not read yet
then lies between where it has come to and what the new server counts to.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from penstock.lake import keeping
from penstock.lake.errors import LakeOfAnother
from penstock.lake.leading import Leading
from penstock.lake.manifest import Lake, source_of
from penstock.lake.source import open_reader


class Moved(Struct, frozen=True):
    """From which server's database the lake goes on to which."""

    feed: str
    before: str
    now: str


def adopt(url: str, lake: Lake, *, dry_run: bool = False) -> Moved | None:
    """Let the lake go on with its database on another server; None if that is where it is already."""
    manifest = lake.manifest()  # first: where there is none, the store is not even opened, which may make one
    there = open_reader(url).horizon()
    ours, its = dict(manifest.source), source_of(there)
    if ours == its:
        return None
    if ours["feed"] != its["feed"]:
        raise LakeOfAnother(lake.place, ours, its)
    moved = replace(manifest, source=its, offset={**manifest.offset, "system": its["system"]})
    lake.check_source(moved, there)
    keeping.hold_to_runs(url, lake, manifest)
    if not dry_run:
        with Leading(url) as office:
            office.check()
            keeping.tell(url, lake, lake.commit(moved))  # or the store would take its promise for another's
    return Moved(its["feed"], ours["system"], its["system"])
