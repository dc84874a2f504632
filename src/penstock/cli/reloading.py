"""Which files make up a program under development, and whether one of them was saved."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"}
MOST_FILES = 5_000


def python_files(folder: Path) -> Iterator[Path]:
    """Every .py file below a folder, but for what is hidden or not written by hand."""
    for place, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in SKIPPED
            and not (Path(place) / name / "pyvenv.cfg").exists()
        ]
        for name in names:
            if name.endswith(".py"):
                yield Path(place) / name


class Saved:
    """Tells whether files were saved, added or removed since it was last asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._look()

    def any(self) -> bool:
        now = self._look()
        changed = now != self._seen
        self._seen = now
        return changed

    def _look(self) -> dict[Path, int]:
        seen: dict[Path, int] = {}
        for path in python_files(self._folder):
            try:
                seen[path] = path.stat().st_mtime_ns
            except OSError:  # removed in between
                continue
            if len(seen) >= MOST_FILES:
                break
        return seen
