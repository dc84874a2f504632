"""The folders of a lake as they lie in its place: layer/table/run/part=day, or layer/table/run of what is kept as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

PART = "part="
"""How the folder of one day begins. Not `day=`, because the column is in the files too: each can be read by itself."""


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def table_of(folder: str) -> str:
    """The folder of the table that a folder is of: layer/table."""
    return "/".join(folder.split("/")[:2])


def is_data(path: str) -> bool:
    """Whether this is a file of a table, not one of those that Spark leaves beside them."""
    name = path.rpartition("/")[2]
    return name.endswith(".parquet") and not name.startswith((".", "_"))


def beneath(root: Path, name: str) -> Iterator[tuple[str, datetime]]:
    """Everything within a folder of a disk, by its path from the root, and when it was last written."""
    for place, folders, files in os.walk(root / name):
        for path in (Path(place, one) for one in (*folders, *files)):
            with suppress(FileNotFoundError):  # whoever else cleans up was quicker
                yield path.relative_to(root).as_posix(), datetime.fromtimestamp(path.lstat().st_mtime, UTC)


def by_folder(found: Iterable[tuple[str, datetime]]) -> dict[str, datetime]:
    """Of what lies within tables the folders that a manifest could name, and when something in each was last written."""
    written: dict[str, datetime] = {}
    for path, when in found:
        steps = path.split("/")
        if len(steps) > 2:
            is_part = len(steps) > 3 and steps[3].startswith(PART)
            folder = "/".join(steps[: 4 if is_part else 3])
            written[folder] = max(when, written.get(folder, when))
    # Beside the parts of a run lies what Spark says of it; that goes with the last of them.
    in_parts = {parent(folder) for folder in written if folder.count("/") == 3}
    return {folder: when for folder, when in written.items() if folder not in in_parts}
