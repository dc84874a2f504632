"""Objects in a folder: what a race, a crash and a removed folder leave behind."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from penstock.stores.log.backings.files import FolderObjects
from penstock.stores.log.errors import StorageFull, StorageGone


@pytest.fixture
async def objects(tmp_path: Path) -> AsyncIterator[FolderObjects]:
    objects = FolderObjects(tmp_path / "queue")
    yield objects
    await objects.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


class TestCreate:
    async def test_loses_to_one_who_came_between_looking_and_writing(
        self, objects: FolderObjects, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await objects.create("a", b"first")
        monkeypatch.setattr(Path, "exists", lambda self: False)
        assert not await objects.create("a", b"second")
        assert await objects.get("a") == b"first"

    async def test_works_where_files_must_have_names(
        self, objects: FolderObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(os, "O_TMPFILE")
        monkeypatch.setattr(Path, "exists", lambda self: False)
        assert await objects.create("a", b"first")
        assert not await objects.create("a", b"second")
        assert names(tmp_path) == ["a"]

    async def test_syncs_the_file_and_its_folder_before_it_answers(
        self, objects: FolderObjects, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[str] = []

        def noting(call: Callable[[int], None]) -> Callable[[int], None]:
            def sync(fd: int) -> None:
                synced.append(os.readlink(f"/proc/self/fd/{fd}"))
                call(fd)

            return sync

        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, noting(getattr(os, name)))
        await objects.create("deep/a", b"data")
        assert any("deleted" in path or "#" in path for path in synced), synced
        assert synced[-1].endswith("/deep")

    async def test_on_a_full_disk_leaves_nothing(
        self, objects: FolderObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(fd: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        version = await objects.replace("b", b"old", None)
        for call in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, call, full)
        for attempt in (objects.create("a", b"data"), objects.replace("b", b"new", version)):
            with pytest.raises(StorageFull, match="make room"):
                await attempt
        assert names(tmp_path) == [".lock", "b"]
        assert await objects.get("b") == b"old"


async def test_a_folder_that_was_removed_is_not_made_anew(objects: FolderObjects, tmp_path: Path) -> None:
    await objects.create("a", b"data")
    shutil.rmtree(tmp_path / "queue")
    for attempt in (objects.create("b", b"data"), objects.replace("b", b"data", None)):
        with pytest.raises(StorageGone, match="has been removed"):
            await attempt
