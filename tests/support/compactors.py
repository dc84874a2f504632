"""The compactors that workers have, seen from outside: their processes, and what they leave in a folder."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.stores.log.snapshots import Manifest

MODULE = b"penstock.stores.log.compacting"


def compactors(of: int) -> list[int]:
    """The compactors that a process has as its children."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and is_compactor(int(entry.name)):
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == of:
                    found.append(int(entry.name))
    return found


def is_compactor(pid: int) -> bool:
    """Whether this is one now, no zombie."""
    try:
        return MODULE in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


class Shard:
    """A log in a folder, by its files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def manifest(self) -> Manifest:
        """What is published; an empty one before the first."""
        try:
            return msgspec.json.decode((self._folder / "manifest").read_bytes(), type=Manifest)
        except FileNotFoundError:
            return Manifest("")

    def unnamed(self) -> set[str]:
        """What was written and is named by no manifest: of a round that is under way, or that died."""
        written = {name for kind in ("seg", "hist") for name in self._names(kind)}
        manifest = self.manifest  # later than the names: what is published meanwhile counts as named
        return written - manifest.names() - manifest.retired.keys()

    def _names(self, kind: str) -> list[str]:
        try:
            return os.listdir(self._folder / kind)
        except FileNotFoundError:
            return []
