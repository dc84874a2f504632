"""A folder of this machine: objects as files, tapes as files of frames."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path

from penstock.stores.log.backings import Backing, Found, Objects, Tape, checked_key, checked_tape
from penstock.stores.log.backings.clocks import MachineClock
from penstock.stores.log.backings.counting import CountedTape, new_count
from penstock.stores.log.backings.filetape import FileTape
from penstock.stores.log.backings.folders import make_folder, refusal, sync_folder
from penstock.stores.log.backings.threads import Answer, Threads
from penstock.stores.log.errors import StorageGone

THREADS = 4
LOCK = ".lock"
LEFT_BEHIND_SECONDS = 24 * 3600.0
"""A file that is being written is younger. One that a kill left behind is not, some day."""


class FolderObjects(Objects):
    """Each object is a file that gets its name when it is whole and synced, or not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = str(folder)
        self._threads = Threads(self._name, THREADS)
        self._clock = MachineClock(self._name)
        self._made = False

    async def create(self, key: str, data: bytes) -> bool:
        return await self._run(self._create, self._path(key), data)

    async def get(self, key: str) -> bytes | None:
        return await self._run(_bytes, self._path(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self._run(_range, self._path(key), start, length)

    async def head(self, key: str) -> Found | None:
        return await self._run(_found, key, self._path(key))

    async def read(self, key: str) -> tuple[bytes, str] | None:
        data = await self.get(key)
        return None if data is None else (data, _version(data))

    async def replace(self, key: str, data: bytes, version: str | None) -> str | None:
        return await self._run(self._replace, self._path(key), data, version)

    async def list(self, prefix: str, *, after: str = "", most: int | None = None) -> list[Found]:
        return await self._run(_list, self._folder, prefix.strip("/"), after, most)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._run(_delete, [self._path(key) for key in keys])

    async def now(self) -> datetime:
        return self._clock.now()

    async def close(self) -> None:
        self._threads.close()

    def _path(self, key: str) -> Path:
        return self._folder / checked_key(key)

    async def _run(self, function: Callable[..., Answer], *args: object) -> Answer:
        try:
            return await self._threads.run(function, *args)
        except OSError as error:
            raise refusal(self._name, error) from None

    def _create(self, path: Path, data: bytes) -> bool:
        self._make(path.parent)
        won = not path.exists() and _link_new(path, data)
        # Also when lost: whoever won may be killed before this, and we tell that it is there.
        sync_folder(path.parent)
        return won or _bytes(path) == data

    def _replace(self, path: Path, data: bytes, version: str | None) -> str | None:
        self._make(path.parent)
        with self._locked():
            held = _bytes(path)
            if (None if held is None else _version(held)) != version:
                return None
            # Always the same: what a kill leaves behind is overwritten.
            new = path.with_name(f".{path.name}.new")
            try:
                with new.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                new.rename(path)
            except BaseException:
                new.unlink(missing_ok=True)
                raise
            sync_folder(path.parent)
            return _version(data)

    def _make(self, folder: Path) -> None:
        if self._made and not self._folder.is_dir():
            raise StorageGone(self._name, "the folder has been removed")
        make_folder(folder)
        self._made = True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One replacer at a time, in whatever process. The lock is let go when its file is closed."""
        fd = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


class FileBacking(Backing):
    """A folder. It is made by the first write, never by a read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._objects = FolderObjects(folder)
        self._tapes: dict[str, Tape] = {}
        self._requests = new_count()

    @property
    def requests(self) -> Counter[str]:
        return self._requests

    @property
    def name(self) -> str:
        return str(self._folder)

    @property
    def objects(self) -> Objects:
        return self._objects

    def tape(self, name: str) -> Tape:
        if name not in self._tapes:
            tape = FileTape(self._folder / checked_tape(name) / "log")
            self._tapes[name] = CountedTape(tape, self._requests)
        return self._tapes[name]

    async def ready(self) -> None:
        """The kernel keeps its promises, on a local disk."""

    async def close(self) -> None:
        for tape in self._tapes.values():
            await tape.close()
        await self._objects.close()


def _link_new(path: Path, data: bytes) -> bool:
    """Give a file its name when it is whole and synced; False if there is one of that name."""
    folder_fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fd, name = _nameless(path)
        try:
            with os.fdopen(os.dup(fd), "wb") as file:
                file.write(data)
            os.fdatasync(fd)
            # Without src_dir_fd Python calls link(), which takes this for a name in another file system.
            os.link(name or f"/proc/self/fd/{fd}", path, src_dir_fd=folder_fd, follow_symlinks=True)
        except FileExistsError:
            return False
        finally:
            os.close(fd)
            if name is not None:
                os.unlink(name)
        return True
    finally:
        os.close(folder_fd)


def _nameless(path: Path) -> tuple[int, str | None]:
    """A file without a name, which a crash leaves no trace of; where the file system has none, one with a name."""
    if hasattr(os, "O_TMPFILE"):
        try:
            return os.open(path.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o644), None
        except OSError as error:
            if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL}:
                raise
    name = str(path.with_name(f".{path.name}.{secrets.token_hex(8)}.new"))
    return os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o644), name


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None


def _range(path: Path, start: int, length: int) -> bytes:
    try:
        with path.open("rb") as file:
            return os.pread(file.fileno(), length, start)
    except FileNotFoundError:
        raise KeyError(path.name) from None


def _found(key: str, path: Path) -> Found | None:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Found(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))


def _list(folder: Path, prefix: str, after: str, most: int | None) -> list[Found]:
    names = _walk(folder / prefix if prefix else folder)
    keys = sorted(key for name in names if (key := f"{prefix}/{name}" if prefix else name) > after)
    found: list[Found] = []
    for key in keys:
        if len(found) == most:
            break
        if one := _found(key, folder / key):
            found.append(one)
    return found


def _walk(top: Path, below: str = "") -> Iterator[str]:
    """Names of files below a folder. What begins with a dot is ours alone."""
    try:
        entries = list(os.scandir(top))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), f"{below}{entry.name}/")
        else:
            yield below + entry.name


def _delete(paths: Sequence[Path]) -> None:
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()
    for folder in {path.parent for path in paths}:
        with suppress(FileNotFoundError, NotADirectoryError):
            _delete_left_behind(folder)
            sync_folder(folder)


def _delete_left_behind(folder: Path) -> None:
    """Delete what got no name of its own because its writer was killed; no listing shows it to the compactor."""
    for path in folder.glob(".*.new"):
        with suppress(FileNotFoundError):  # it has its name by now, or another was faster
            if time.time() - path.stat().st_mtime > LEFT_BEHIND_SECONDS:
                path.unlink()


def _version(data: bytes) -> str:
    """Of the bytes themselves: whoever has read these may replace them, however they came back."""
    return blake2b(data, digest_size=16).hexdigest()
