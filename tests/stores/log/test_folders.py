"""A folder that others work in, too: names that they have not synced yet, and files that they were killed at."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from penstock.stores.log.backings import Backing, open_backing
from penstock.stores.log.backings.files import LEFT_BEHIND_SECONDS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "queue"


@pytest.fixture
async def backing(folder: Path) -> AsyncIterator[Backing]:
    backing = open_backing(f"file://{folder}")
    yield backing
    await backing.close()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that are synced, in order."""
    paths: list[Path] = []
    sync = os.fsync

    def noting(fd: int) -> None:
        paths.append(Path(os.readlink(f"/proc/self/fd/{fd}")))
        sync(fd)

    monkeypatch.setattr(os, "fsync", noting)
    return paths


class TestNames:
    """Another process has made the folders just now, and may be killed before it syncs their names."""

    async def test_of_the_folder_of_a_log_are_synced_by_whoever_writes_to_it(
        self, folder: Path, backing: Backing, synced: list[Path]
    ) -> None:
        (folder / "s00" / "log").mkdir(parents=True)
        await backing.tape("s00").append(b"one")
        assert folder / "s00" in synced

    async def test_of_the_folder_of_an_object_are_too_and_once(
        self, folder: Path, backing: Backing, synced: list[Path]
    ) -> None:
        (folder / "s00" / "seg").mkdir(parents=True)
        await backing.objects.create("s00/seg/one", b"")
        assert folder / "s00" in synced
        synced.clear()
        await backing.objects.create("s00/seg/two", b"")
        assert synced == [folder / "s00" / "seg"]

    async def test_above_which_nothing_may_be_read_are_left_to_whoever_made_them(
        self, folder: Path, backing: Backing, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (folder / "s00").mkdir(parents=True)
        opened = os.open

        def refusing(path: str | Path, flags: int, *mode: int) -> int:
            if path == folder:  # modes would not do: root may read anything
                raise PermissionError
            return opened(path, flags, *mode)

        monkeypatch.setattr(os, "open", refusing)
        assert await backing.objects.create("s00/one", b"")


class Killed(BaseException):
    pass


async def killed_in(attempt: Awaitable[object]) -> None:
    """Have its process killed when the file is to get its name: then nobody tidies up either."""

    def killed(*args: object, **more: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patched:
        for name in ("link", "rename", "unlink"):
            patched.setattr(os, name, killed)
        with pytest.raises(Killed):
            await attempt


def hidden(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.startswith("."))


class TestLeftBehind:
    async def test_by_a_replacement_is_overwritten_by_the_next(self, folder: Path, backing: Backing) -> None:
        for _ in range(3):
            await killed_in(backing.objects.replace("s00/manifest", b"longer than the next", None))
        assert len(hidden(folder / "s00")) == 1
        assert await backing.objects.replace("s00/manifest", b"next", None) is not None
        assert await backing.objects.get("s00/manifest") == b"next"
        assert hidden(folder / "s00") == []

    async def test_where_files_must_have_names_goes_with_what_is_deleted_beside_it(
        self, folder: Path, backing: Backing, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(os, "O_TMPFILE")
        for key in ("s00/seg/old", "s00/seg/young"):
            await killed_in(backing.objects.create(key, b""))
        [old, young] = hidden(folder / "s00" / "seg")
        long_ago = time.time() - LEFT_BEHIND_SECONDS - 60
        os.utime(old, (long_ago, long_ago))
        await backing.objects.create("s00/seg/unnamed", b"")
        await backing.objects.delete(["s00/seg/unnamed"])
        assert hidden(folder / "s00" / "seg") == [young]
