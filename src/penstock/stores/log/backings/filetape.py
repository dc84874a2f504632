"""A tape in a folder: frames appended under a lock, synced before it is let go. Local disks only, never NFS.

Files are named for the first number in them. A file that has grown long enough ends with a marker, and the next one
takes over, so that truncation can delete whole files. Readers take the lock too, shared: nobody sees an entry before
it was synced. To write is to sync here (O_DSYNC): a writer that is killed in it lets go of the lock when that is done, so
whoever appends next may say in `base` that all it found is durable.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from penstock.core.errors import InvalidInput, StoreUnavailable
from penstock.stores.log.backings import Tape
from penstock.stores.log.backings.folders import make_folder, refusal, sync_folder
from penstock.stores.log.backings.frames import (
    MOST_BYTES,
    OPENING,
    Ending,
    check_opening,
    frame,
    marker,
    scan,
)
from penstock.stores.log.backings.recent import Recent
from penstock.stores.log.backings.threads import Answer, Threads, tell
from penstock.stores.log.errors import LogCorrupt, LogGap, OutcomeUnknown, StorageGone, Truncated

logger = logging.getLogger(__name__)

ROLL_BYTES = 16 << 20
BATCH_BYTES = 8 << 20
READ_BYTES = 16 << 20
LOCK = ".lock"
TURN = ".turn"
_WAITING = tuple[bytes, "asyncio.Future[int]", asyncio.AbstractEventLoop]


class _Place:
    """Where in a file the frame of `number` begins, or will."""

    def __init__(self, folder: Path, first: int, *, writable: bool) -> None:
        self.first = self.number = first
        self.writable = writable
        self.name = str(folder / _file(first))
        self.fd = os.open(self.name, (os.O_RDWR | os.O_DSYNC if writable else os.O_RDONLY) | os.O_CLOEXEC)
        self.offset = len(OPENING)
        self.ending = Ending.MORE
        try:
            self.status = os.fstat(self.fd)
            check_opening(self.fd, self.name)
        except BaseException:
            self.close()
            raise

    def ahead(self, most: int, most_bytes: int, size: int | None = None) -> tuple[list[bytes], int, Ending]:
        """The entries from here on, where the next frame begins, and why it stopped there. Nothing moves."""
        return scan(self.fd, self.name, self.offset, self.number, most, most_bytes, size)

    def move(self, found: list[bytes], offset: int, ending: Ending) -> list[bytes]:
        self.number, self.offset, self.ending = self.number + len(found), offset, ending
        return found

    def advance(self, most: int, most_bytes: int) -> list[bytes]:
        return self.move(*self.ahead(most, most_bytes))

    def close(self) -> None:
        os.close(self.fd)


class FileTape(Tape):
    """Entries in files of a folder, appended by any number of processes of this machine."""

    def __init__(self, folder: Path, *, deadline_seconds: float = 30, roll_bytes: int = ROLL_BYTES) -> None:
        self._folder, self._deadline, self._roll_bytes = folder, deadline_seconds, roll_bytes
        self._name, self._lock_name = str(folder), str(folder / LOCK)
        self._thread = Threads(self._name)
        self._mutex = threading.Lock()
        """Over everything the event loop and the thread both look at: what waits, what is remembered, the end."""
        self._waiting: deque[_WAITING] = deque()
        self._recent = Recent()
        self._end: _Place | None = None
        self._cursor: _Place | None = None
        self._lock_fd: int | None = None
        self._lock_status: os.stat_result | None = None
        self._turn_fd: int | None = None

    async def append(self, data: bytes) -> int:
        if len(data) > MOST_BYTES:
            raise InvalidInput("entry", f"have at most {MOST_BYTES:,} bytes", f"{len(data):,} bytes")
        self._thread.check_process()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        with self._mutex:
            self._waiting.append((data, future, loop))
            alone = len(self._waiting) == 1
        if alone:
            try:
                self._thread.call(self._flush)
            except StoreUnavailable:  # closed
                with self._mutex:
                    self._waiting.clear()
                raise
        try:
            async with asyncio.timeout(self._deadline):
                return await future
        except TimeoutError:
            raise OutcomeUnknown(self._name, "an entry", f"waited {self._deadline:g} s") from None

    async def read(self, after: int, most: int = 1000) -> list[tuple[int, bytes]]:
        self._thread.check_process()
        with self._mutex:
            if recent := self._remembered(after, most):
                return recent
            if self._nothing_new(after):
                return []
        return await self._soon(self._read, after, most)

    async def last(self) -> int:
        self._thread.check_process()
        with self._mutex:
            if self._end is not None and self._nothing_new(self._end.number - 1):
                return self._end.number - 1
        return await self._soon(self._last)

    async def truncate(self, until: int) -> None:
        await self._soon(self._truncate, until)

    async def close(self) -> None:
        with suppress(StoreUnavailable):  # closed before, or stuck behind another's lock
            await self._soon(self._close)
        self._thread.close()

    async def _soon(self, function: Callable[..., Answer], *args: object) -> Answer:
        try:
            async with asyncio.timeout(self._deadline):
                return await self._thread.run(function, *args)
        except TimeoutError:
            raise StoreUnavailable(
                self._name, f"another process has held its lock for {self._deadline:g} s"
            ) from None

    # What the event loop looks at, without a system call that could block.

    def _remembered(self, after: int, most: int) -> list[tuple[int, bytes]]:
        return [] if self._end is None else self._recent.following(after, most, self._end.number - 1)

    def _nothing_new(self, after: int) -> bool:
        """Whether the file is there and ends where it did. Its size is known before the lock is: looking costs a microsecond."""
        end = self._end
        if end is None or after != end.number - 1 or end.ending is not Ending.END:
            return False
        try:
            status = os.stat(end.name)
        except OSError:
            return False
        return status.st_size == end.offset and os.path.samestat(status, end.status)

    # What follows runs in the thread.

    def _flush(self) -> None:
        batch: list[_WAITING] = []
        size = 0
        with self._mutex:
            while self._waiting and size < BATCH_BYTES:
                one = self._waiting.popleft()
                if not one[1].cancelled():
                    batch.append(one)
                    size += len(one[0])
            more = bool(self._waiting)
        answers: list[int | BaseException]
        try:
            answers = [*self._write([data for data, _, _ in batch])] if batch else []
        except BaseException as error:
            answers = [error] * len(batch)
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[int], int | BaseException]]] = {}
        for (_, future, loop), answer in zip(batch, answers, strict=True):
            by_loop.setdefault(loop, []).append((future, answer))
        for loop, told in by_loop.items():
            tell(loop, told)
        if more:
            try:
                self._thread.call(self._flush)  # behind reads that wait
            except StoreUnavailable:  # closing
                self._flush()

    def _write(self, entries: list[bytes]) -> range:
        with self._locked(fcntl.LOCK_EX):
            end = self._writable_end()
            first, base = end.number, end.offset
            self._put(end, b"".join(frame(first + n, base, data) for n, data in enumerate(entries)))
            with self._mutex:
                end.number += len(entries)
                self._recent.add(entries)
            return range(first, first + len(entries))

    def _put(self, end: _Place, data: bytes) -> None:
        """Write and sync, or leave the file as it was."""
        base = end.offset
        try:
            _write_all(end.fd, data, base)
        except OSError as error:
            try:
                os.ftruncate(end.fd, base)
                os.fdatasync(end.fd)
            except OSError:
                raise OutcomeUnknown(self._name, "an entry", error.strerror or str(error)) from None
            raise refusal(self._name, error) from None
        with self._mutex:
            end.offset += len(data)

    def _writable_end(self) -> _Place:
        end = self._to_end() or self._begin(1)
        if not end.writable:
            os.close(os.open(end.name, os.O_RDWR | os.O_CLOEXEC))  # says why not; or we may, by now
            self._forget_end()
            return self._writable_end()
        if end.ending is Ending.TORN:
            cut = os.fstat(end.fd).st_size - end.offset
            os.ftruncate(end.fd, end.offset)
            end.ending = Ending.END
            logger.warning(
                "cut %s bytes off the end of %s: an entry that was not finished", f"{cut:,}", end.name
            )
        if end.ending is Ending.END and end.offset >= self._roll_bytes:
            self._roll(end)
        if end.ending is Ending.ROLLED:
            end = self._begin(end.number)
        return end

    def _roll(self, end: _Place) -> None:
        self._put(end, marker(end.number, end.offset))
        end.ending = Ending.ROLLED

    def _begin(self, first: int) -> _Place:
        """The file that begins with this number, made whole before it has its name."""
        new, name = self._folder / ".new", self._folder / _file(first)
        try:
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            try:
                _write_all(fd, OPENING, 0)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(new, name)
            sync_folder(self._folder)
        except OSError as error:
            raise refusal(self._name, error) from None
        place = self._open(first, writable=True)
        place.ending = Ending.END
        return self._ends_at(place)

    def _to_end(self) -> _Place | None:
        """Go on to where the log ends now, remembering what comes by. None: it has no file yet."""
        # Whatever is asked of the system here is asked under the lock, and with the event loop at work in this process each
        # answer waits for the interpreter: others wait for all of them.
        end, size = self._end, None
        if end is not None:
            status = os.fstat(end.fd)
            end, size = (end, status.st_size) if status.st_nlink else (None, None)
        if end is None:
            files = self._files()
            if not files and self._end is not None:
                raise StorageGone(self._name, "its files have been removed")
            if not files:
                return None
            end = self._ends_at(self._open(files[-1], writable=True))
        while True:
            if end.ending is not Ending.ROLLED:
                ahead = end.ahead(10_000, READ_BYTES, size)
                with self._mutex:  # one moves with the other, or the event loop takes older entries for these
                    self._recent.add(end.move(*ahead))
            if end.ending is Ending.MORE:
                continue
            if end.ending is not Ending.ROLLED:
                return end
            if not (self._folder / _file(end.number)).exists():
                later = [first for first in self._files() if first > end.number]
                if not later:
                    return end
                end, size = self._ends_at(self._open(later[-1], writable=True)), None
                continue
            end, size = self._ends_at(self._open(end.number, writable=True)), None

    def _ends_at(self, place: _Place) -> _Place:
        with self._mutex:
            old, self._end = self._end, place
            if old is None or old.number != place.number:
                self._recent.clear()
            if old is not None:
                old.close()
        return place

    def _forget_end(self) -> None:
        with self._mutex:
            if self._end is not None:
                self._end.close()
            self._end = None

    def _read(self, after: int, most: int) -> list[tuple[int, bytes]]:
        with self._locked(fcntl.LOCK_SH) as there:
            end = self._to_end() if there else None
            if end is None or after >= end.number:
                if after > (end.number - 1 if end else 0):
                    raise LogCorrupt(
                        self._name,
                        "its end",
                        f"it ends at {end.number - 1 if end else 0:,}, though {after:,} was read before",
                    )
                return []
            with self._mutex:
                if recent := self._remembered(after, most):
                    return recent
            if after == end.number - 1:
                return []
            return self._read_old(after, most)

    def _read_old(self, after: int, most: int) -> list[tuple[int, bytes]]:
        """From the files, where the last such read left off or where the number must be."""
        cursor = self._cursor
        if cursor is None or cursor.number != after + 1:
            files = self._files()
            if files[0] > after + 1:
                raise Truncated(self._name, after, files[0])
            cursor = self._move(max(first for first in files if first <= after + 1))
            while cursor.number <= after and cursor.ending is Ending.MORE:
                cursor.advance(after + 1 - cursor.number, READ_BYTES)
        found: list[bytes] = []
        while not found:
            if cursor.ending is not Ending.ROLLED:  # what was torn may have been cut since, and gone on from
                found = cursor.advance(most, READ_BYTES)
            if found:
                break
            files = self._files()
            if files[0] > cursor.number:
                raise Truncated(self._name, after, files[0])
            later = [first for first in files if first >= cursor.number and first != cursor.first]
            if not later:
                return []
            if cursor.ending is not Ending.ROLLED:
                raise LogCorrupt(
                    cursor.name, f"byte {cursor.offset:,}", f"it breaks off before entry {cursor.number:,}"
                )
            if later[0] != cursor.number:
                raise LogGap(self._name, cursor.number, later[0])
            cursor = self._move(later[0])
        return list(enumerate(found, after + 1))

    def _move(self, first: int) -> _Place:
        place = self._open(first, writable=False)
        if self._cursor is not None:
            self._cursor.close()
        self._cursor = place
        return place

    def _last(self) -> int:
        with self._locked(fcntl.LOCK_SH) as there:
            end = self._to_end() if there else None
            return end.number - 1 if end else 0

    def _truncate(self, until: int) -> None:
        with self._locked(fcntl.LOCK_EX):
            end = self._to_end()
            if end is None:
                return
            if end.number - 1 <= until and end.number > end.first:
                if self._writable_end() is end:
                    self._roll(end)
                end = self._writable_end()
            with self._mutex:
                self._recent.forget(until, end.number - 1)
            files = self._files()
            try:
                for first, following in pairwise(files):
                    if following - 1 <= until:
                        os.unlink(self._folder / _file(first))
                sync_folder(self._folder)
            except OSError as error:
                raise refusal(self._name, error) from None

    def _close(self) -> None:
        with self._mutex:
            for place in (self._end, self._cursor):
                if place is not None:
                    place.close()
            for fd in (self._lock_fd, self._turn_fd):
                if fd is not None:
                    os.close(fd)
            self._end = self._cursor = self._lock_fd = self._turn_fd = None
            self._recent.clear()

    def _open(self, first: int, *, writable: bool) -> _Place:
        try:
            return _Place(self._folder, first, writable=writable)
        except OSError as error:
            if writable:  # what may only be read can be read
                with suppress(OSError):
                    return _Place(self._folder, first, writable=False)
            raise refusal(self._name, error) from None

    def _files(self) -> list[int]:
        """The first number of each file, in order."""
        try:
            names = os.listdir(self._folder)
        except OSError as error:
            raise refusal(self._name, error) from None
        return sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdigit())

    @contextmanager
    def _locked(self, how: int) -> Iterator[bool]:
        """Hold the lock; False for a reader when there is no such log yet, because reading makes none."""
        if self._lock_fd is None and not self._open_lock(create=how == fcntl.LOCK_EX):
            yield False
            return
        assert self._lock_fd is not None
        self._take_lock(self._lock_fd, how)
        try:
            self._check_place()
            yield True
        except OSError as error:
            raise refusal(self._name, error) from None
        finally:
            fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    def _check_place(self) -> None:
        """A folder put in the place of ours, from a copy say, is another log: ours would overwrite files of it by name."""
        try:
            there = os.stat(self._lock_name)
        except FileNotFoundError:
            raise StorageGone(self._name, "its lock file has been removed") from None
        if self._lock_status is None or not os.path.samestat(there, self._lock_status):
            raise StorageGone(
                self._name, "another folder is in its place; start this program again to use that"
            )

    def _take_lock(self, lock_fd: int, how: int) -> None:
        """Writers queue at a second lock: whoever has just let go of the first cannot take it before one who waits."""
        if how == fcntl.LOCK_SH:
            fcntl.flock(lock_fd, how)
            return
        if self._turn_fd is None:
            try:
                self._turn_fd = os.open(self._folder / TURN, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise refusal(self._name, error) from None
        fcntl.flock(self._turn_fd, fcntl.LOCK_EX)
        try:
            fcntl.flock(lock_fd, how)
        finally:
            fcntl.flock(self._turn_fd, fcntl.LOCK_UN)

    def _open_lock(self, *, create: bool) -> bool:
        path = self._folder / LOCK
        try:
            if create:
                make_folder(self._folder)
                self._lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                sync_folder(self._folder)
            else:
                self._lock_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            # A copy may lack it; what is there would be taken for nothing.
            return any(self._folder.glob("*.log")) and self._open_lock(create=True)
        except OSError as error:
            raise refusal(self._name, error) from None
        self._lock_status = os.fstat(self._lock_fd)
        return True


def _file(first: int) -> str:
    return f"{first:020d}.log"


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
