"""Where a lake's files are: a folder, or a bucket (objects.py); whatever can replace one small object under a condition."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Protocol

from penstock.core.errors import InvalidInput
from penstock.lake.folders import beneath, is_data
from penstock.lake.objects import SCHEMES, ObjectStorage


class Storage(Protocol):
    """Folders that are written once, and one small file that is replaced as a whole.

    Names are relative, with slashes; what is not there is empty.
    """

    roots: Sequence[str]
    """How Spark may call the place, if its Hadoop knows such places; empty where it needs no such help."""

    def swap(self, name: str, change: Callable[[bytes | None], bytes]) -> None:
        """Replace a file by what `change` makes of it, with nobody in between; if `change` raises, nothing is replaced.

        Who reads meanwhile reads the old or the new, never a part; once this has returned the new one survives a power cut.
        """
        ...

    def read(self, name: str) -> bytes | None: ...

    def version(self, name: str) -> object:
        """Something that is another after each swap; None for a file that is not there."""
        ...

    def folders(self, name: str) -> list[str]:
        """The names of the folders directly within one."""
        ...

    def files(self, name: str) -> list[str]:
        """The data files of a folder, by name."""
        ...

    def filled(self, folders: Iterable[str]) -> set[str]:
        """Those of some folders that have data files."""
        ...

    def entries(self) -> list[str]:
        """What lies in the place itself, as far as a look at it is cheap."""
        ...

    def draft(self, name: str) -> str:
        """Where on this machine a new folder is to be written. It is there for all to see once it is synced."""
        ...

    def sync(self, name: str) -> None:
        """Make a folder that was drafted to the end survive a power cut."""
        ...

    def fetched(self, folders: Sequence[str]) -> list[str]:
        """Folders as this machine reads them, with their data files."""
        ...

    def beneath(self, name: str) -> Iterable[tuple[str, datetime]]:
        """Everything within a folder, by its name, and when it was last written."""
        ...

    def remove(self, name: str) -> None:
        """Remove a folder; one that is not there is as good as removed."""
        ...

    def tidy(self, kept: Iterable[str], before: datetime) -> None:
        """Let go of copies that this machine has of other folders than these, and that are older."""
        ...

    def path(self, name: str) -> str:
        """A name as Spark, DuckDB and people say it."""
        ...


def open_storage(lake: str | Path) -> Storage:
    """The storage that a path names, or a URL: file:…, or that of a bucket."""
    text = str(lake)
    scheme, separator, rest = text.partition(":")
    if scheme == "file" and separator:
        return LocalStorage(Path(rest.removeprefix("//")))
    if "://" not in text:
        return LocalStorage(Path(text))
    if scheme not in SCHEMES:
        known = ", ".join(f"{one}://" for one in SCHEMES)
        raise InvalidInput("lake", f"be a path, or a bucket by one of {known}", f"{scheme}://…")
    bucket = rest.removeprefix("//").partition("/")[0]
    if ":" in rest.rpartition("@")[0] or "?" in rest or "#" in rest or (":" in bucket):
        # Not shown: it may be a secret. And it is no use, since Spark and others read the lake by the environment too.
        raise InvalidInput(
            "lake",
            "name a bucket and a path in it, without credentials and options: those are the environment's, AWS_… (AWS_ENDPOINT), "
            "GOOGLE_… or AZURE_…",
            f"{scheme}://…",
        )
    return ObjectStorage(text)


class LocalStorage:
    """A folder of this machine, or one that all machines see at the same place."""

    roots: Sequence[str] = ()

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def swap(self, name: str, change: Callable[[bytes | None], bytes]) -> None:
        target = self._root / name
        with self._refusals():
            target.parent.mkdir(parents=True, exist_ok=True)
        with self._refusals(), _locked(target.with_name(f"{target.name}.lock")):
            made = change(self.read(name))
            draft = target.with_name(f"{target.name}.draft")
            with draft.open("wb") as file:
                file.write(made)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(target)
            _sync(target.parent)

    def read(self, name: str) -> bytes | None:
        with self._refusals():
            try:
                return (self._root / name).read_bytes()
            except FileNotFoundError:
                return None

    def version(self, name: str) -> object:
        with self._refusals():
            try:
                found = (self._root / name).stat()
            except FileNotFoundError:
                return None
        # A swap makes a new file: even two within one tick of the clock differ.
        return found.st_ino, found.st_mtime_ns, found.st_size

    def folders(self, name: str) -> list[str]:
        folder = self._root / name
        return sorted(one.name for one in folder.iterdir() if one.is_dir()) if folder.is_dir() else []

    def files(self, name: str) -> list[str]:
        found = (one.name for one in (self._root / name).glob("*.parquet"))
        return sorted(f"{name}/{one}" for one in found if is_data(one))

    def filled(self, folders: Iterable[str]) -> set[str]:
        return {folder for folder in folders if self.files(folder)}

    def entries(self) -> list[str]:
        with self._refusals(), suppress(FileNotFoundError):
            return sorted(os.listdir(self._root))
        return []

    def draft(self, name: str) -> str:
        return self.path(name)

    def fetched(self, folders: Sequence[str]) -> list[str]:
        return [self.path(folder) for folder in folders]

    def sync(self, name: str) -> None:
        # Spark does not: a manifest that outlives the files it names would be a lake with holes.
        folder = self._root / name
        for place, _, files in os.walk(folder):
            for file in files:
                _sync(Path(place, file))
            _sync(Path(place))
        for parent in folder.relative_to(self._root).parents:
            _sync(self._root / parent)

    def beneath(self, name: str) -> Iterable[tuple[str, datetime]]:
        return beneath(self._root, name)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._root / name)

    def tidy(self, kept: Iterable[str], before: datetime) -> None: ...

    def path(self, name: str) -> str:
        return str(self._root / name)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """What a folder's errors mean, in the words of a log in one: that it is refused, full or gone."""
        try:
            yield
        except OSError as error:
            from penstock.stores.log.backings.folders import refusal

            raise refusal(f"the lake in {self._root}", error) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Be the only one on this file, until the process ends at the latest."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
