"""What a folder needs to keep its promises: its own entries synced, and its refusals told apart."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from penstock.core.errors import StoreUnavailable
from penstock.stores.log.errors import StorageFull, StorageGone, StorageRefused

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}


def refusal(store: str, error: OSError) -> StoreUnavailable:
    """What the system said, as an error that says what to do."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return StorageFull(store, reason)
    if error.errno in _REFUSED:
        return StorageRefused(store, reason)
    if error.errno in _GONE:
        return StorageGone(store, reason)
    return StoreUnavailable(store, reason)


def sync_folder(folder: Path) -> None:
    """A new name is durable when its folder is."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_durable: set[Path] = set()
"""Folders whose names this process has synced, or seen that it may not."""


def make_folder(folder: Path) -> None:
    """Make it and the ones above it, each durable in its own."""
    if folder.is_dir():
        # Whoever made it may not have come to the sync yet, and may be killed before it; those above it were synced before.
        if folder not in _durable:
            with suppress(PermissionError):  # of one who made it for us, in a place that is not ours
                sync_folder(folder.parent)
            _durable.add(folder)
        return
    make_folder(folder.parent)
    try:
        folder.mkdir()
    except FileExistsError:
        if not folder.is_dir():
            raise
    sync_folder(folder.parent)
    _durable.add(folder)
