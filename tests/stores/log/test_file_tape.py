"""A tape in a folder: several processes, crashes in mid-write, full disks, damage."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import struct
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.core.errors import StoreUnavailable
from penstock.stores.log.backings import frames, open_backing
from penstock.stores.log.backings.filetape import FileTape
from penstock.stores.log.backings.folders import make_folder
from penstock.stores.log.errors import (
    LogCorrupt,
    LogGap,
    LogTooNew,
    OpenedElsewhere,
    OutcomeUnknown,
    StorageFull,
    StorageGone,
    StorageRefused,
    Truncated,
)
from support.killing import check_nothing_is_lost, confirmed_until_killed

FIRST = "00000000000000000001.log"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "s00" / "log"


@pytest.fixture
async def tape(folder: Path) -> AsyncIterator[FileTape]:
    tape = FileTape(folder)
    yield tape
    await tape.close()


@pytest.fixture
async def other(folder: Path) -> AsyncIterator[FileTape]:
    """The same log, as another process has it."""
    tape = FileTape(folder)
    yield tape
    await tape.close()


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


async def fill(tape: FileTape, number: int) -> None:
    for n in range(number):
        await tape.append(b"entry %d" % n)


class SlowOnceScanned:
    """A lock that the thread of a tape, when it has read what others wrote, takes only after the event loop has looked."""

    def __init__(self, coming: Callable[[], object], looked: threading.Event) -> None:
        self._lock, self._coming, self._looked = threading.Lock(), coming, looked
        self._event_loops = threading.get_ident()

    def __enter__(self) -> None:
        frame = sys._getframe(1)
        if threading.get_ident() != self._event_loops and frame.f_code.co_name == "_to_end":
            self._coming()
            self._looked.wait(10)
        self._lock.acquire()

    def __exit__(self, *args: object) -> None:
        self._lock.release()


class TestSeveralOnOneLog:
    async def test_see_each_others_entries_in_one_order(self, tape: FileTape, other: FileTape) -> None:
        assert await tape.read(0) == []
        assert await other.append(b"a") == 1
        assert await tape.read(0) == [(1, b"a")]
        assert await tape.append(b"b") == 2
        assert await other.append(b"c") == 3
        assert await read_all(tape, 1) == await read_all(other, 1) == [(2, b"b"), (3, b"c")]
        assert await tape.last() == await other.last() == 3

    async def test_looking_when_nothing_changed_takes_no_lock_and_no_thread(
        self, tape: FileTape, other: FileTape, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await fill(tape, 3)
        with monkeypatch.context() as patched:
            patched.setattr(tape, "_soon", None)
            assert await tape.read(3) == []
            assert await tape.last() == 3
            assert len(await tape.read(0)) == 3
        await other.append(b"new")
        assert await tape.read(3) == [(4, b"new")]

    async def test_what_is_read_while_the_thread_comes_by_new_entries_is_theirs(
        self, tape: FileTape, other: FileTape, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Older entries under their numbers would be skipped as repeated, and this process would lease jobs twice."""
        await fill(tape, 3)
        told = [(await other.append(b"other %d" % n), b"other %d" % n) for n in range(2)]
        coming, looked = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(
            tape, "_mutex", SlowOnceScanned(lambda: loop.call_soon_threadsafe(coming.set), looked)
        )
        appending = asyncio.create_task(tape.append(b"ours"))
        await coming.wait()
        reading = asyncio.create_task(tape.read(3))
        await asyncio.sleep(0)
        looked.set()
        assert (await reading)[:2] == told
        assert await appending == 6

    async def test_go_on_in_the_next_file_together(self, folder: Path) -> None:
        tapes = [FileTape(folder, roll_bytes=200) for _ in range(2)]
        for n in range(30):
            assert await tapes[n % 2].append(b"%d" % n) == n + 1
        assert len(files_in(folder)) > 3
        late = FileTape(folder)
        for tape in (*tapes, late):
            assert await read_all(tape, 0) == [(n + 1, b"%d" % n) for n in range(30)]
        await tapes[0].truncate(20)
        with pytest.raises(Truncated) as raised:
            await late.read(0)
        assert 2 <= raised.value.first <= 21
        assert (await read_all(late, 20))[-1] == (30, b"29")
        for tape in (*tapes, late):
            await tape.close()

    async def test_one_that_slept_through_a_truncation_is_told(self, folder: Path) -> None:
        tape, other = FileTape(folder, roll_bytes=100), FileTape(folder, roll_bytes=100)
        await tape.append(b"1")
        await fill(other, 20)
        await other.truncate(15)
        with pytest.raises(Truncated):
            await tape.read(1)
        assert await tape.append(b"22") == 22
        await tape.close()
        await other.close()

    async def test_one_that_reads_slowly_is_told_when_what_follows_was_deleted(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("penstock.stores.log.backings.recent.REMEMBERED_BYTES", 50)
        tape = FileTape(folder, roll_bytes=100)
        await fill(tape, 30)
        slow = FileTape(folder)
        assert [number for number, _ in await slow.read(0, most=2)] == [1, 2]
        await tape.truncate(25)
        with pytest.raises(Truncated):
            await read_all(slow, 2, most=2)
        await slow.close()
        await tape.close()

    async def test_more_than_is_remembered_is_read_from_the_files(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("penstock.stores.log.backings.recent.REMEMBERED_BYTES", 50)
        tape = FileTape(folder, roll_bytes=300)
        await fill(tape, 60)
        assert await read_all(tape, 0, most=7) == [(n + 1, b"entry %d" % n) for n in range(60)]
        assert (await tape.read(41, most=1)) == [(42, b"entry 41")]
        await tape.close()


async def read_all(tape: FileTape, after: int, most: int = 1000) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while more := await tape.read(after, most):
        found += more
        after = more[-1][0]
    return found


class TestTornTail:
    @pytest.mark.parametrize("kept", [1, 5, 27, 28, 30])
    async def test_is_cut_by_the_next_append_and_never_read(
        self, tape: FileTape, other: FileTape, folder: Path, kept: int
    ) -> None:
        await fill(tape, 2)
        size = (folder / FIRST).stat().st_size
        await tear(folder, frames.frame(3, size, b"never confirmed")[:kept])
        assert await other.read(0) == await tape.read(0)
        assert await other.read(2) == []
        assert await tape.append(b"three") == 3
        assert await other.read(2) == [(3, b"three")]
        assert await other.append(b"four") == 4

    async def test_of_zeros_is_cut_too(self, tape: FileTape, folder: Path) -> None:
        await fill(tape, 2)
        whole = (folder / FIRST).stat().st_size
        await tear(folder, bytes(5000))
        assert await tape.append(b"three") == 3
        assert (folder / FIRST).stat().st_size == whole + frames.HEADER_BYTES + len(b"three")

    async def test_a_batch_torn_in_its_middle_is_cut_as_one(self, tape: FileTape, folder: Path) -> None:
        await fill(tape, 1)
        base = (folder / FIRST).stat().st_size
        batch = bytearray(b"".join(frames.frame(n, base, b"x" * 50) for n in (2, 3, 4)))
        batch[60:70] = bytes(10)  # a page that never reached the disk, though the next one did
        await tear(folder, bytes(batch))
        assert await tape.append(b"again") == 2

    async def test_a_file_that_says_to_go_on_before_there_is_another_is_gone_on_from(
        self, tape: FileTape, folder: Path
    ) -> None:
        await fill(tape, 2)
        await tear(folder, frames.marker(3, (folder / FIRST).stat().st_size))
        late = FileTape(folder)
        assert len(await late.read(0)) == 2
        assert await late.read(2) == []
        assert await late.append(b"three") == 3
        assert await tape.read(2) == [(3, b"three")]
        await late.close()

    async def test_that_a_reader_has_come_to_keeps_nobody_from_what_follows_once_it_was_cut(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("penstock.stores.log.backings.recent.REMEMBERED_BYTES", 50)
        tape = FileTape(folder, roll_bytes=600)
        await fill(tape, 10)
        await tear(folder, b"PSf1torn")
        reader = FileTape(folder)
        assert len(await reader.read(0)) == 10  # from the file: it is more than is remembered
        assert await reader.read(10) == []
        told = [(await tape.append(b"later %d" % n), b"later %d" % n) for n in range(9)]
        assert len(files_in(folder)) > 1
        assert await read_all(reader, 10) == told
        for one in (tape, reader):
            await one.close()

    async def test_in_a_file_that_another_follows_is_damage(self, folder: Path) -> None:
        tape = FileTape(folder, roll_bytes=200)
        await fill(tape, 9)
        whole = files_in(folder)[0].stat().st_size
        os.truncate(
            files_in(folder)[0], whole - frames.HEADER_BYTES - 1
        )  # the marker, and a byte of the last entry
        late = FileTape(folder)
        with pytest.raises(LogCorrupt, match="it breaks off before entry"):
            await read_all(late, 0)
        for one in (tape, late):
            await one.close()


async def tear(folder: Path, data: bytes) -> None:
    with (folder / FIRST).open("ab") as file:
        file.write(data)


class TestDamage:
    @pytest.mark.parametrize("place", [0, 10, 20, 24, 30])
    async def test_before_a_whole_entry_is_refused_and_nothing_is_cut(
        self, tape: FileTape, folder: Path, place: int
    ) -> None:
        await fill(tape, 3)
        whole = bytearray((folder / FIRST).read_bytes())
        whole[len(frames.OPENING) + place] ^= 0x40
        (folder / FIRST).write_bytes(whole)
        late = FileTape(folder)
        for attempt in (late.read(0), late.append(b"four")):
            with pytest.raises(LogCorrupt, match="damaged at byte 8"):
                await attempt
        assert (folder / FIRST).read_bytes() == whole
        await late.close()

    async def test_a_file_cut_short_behind_our_back_is_refused(self, tape: FileTape, folder: Path) -> None:
        await fill(tape, 3)
        os.truncate(folder / FIRST, 50)
        with pytest.raises(LogCorrupt, match="it ends there, though it reached to"):
            await tape.append(b"four")

    async def test_a_file_that_is_none_of_ours_is_refused(self, folder: Path) -> None:
        make_folder(folder)
        (folder / FIRST).write_bytes(b"hello world")
        (folder / ".lock").touch()
        tape = FileTape(folder)
        with pytest.raises(LogCorrupt, match="as no file of a log does"):
            await tape.read(0)
        await tape.close()

    async def test_a_file_of_a_newer_version_is_refused(self, tape: FileTape, folder: Path) -> None:
        await fill(tape, 1)
        data = (folder / FIRST).read_bytes()
        (folder / FIRST).write_bytes(b"penslog\x02" + data[8:])
        late = FileTape(folder)
        with pytest.raises(LogTooNew, match="format 2, and this version of Penstock reads up to 1"):
            await late.append(b"two")
        await late.close()

    async def test_a_missing_file_is_a_gap(self, folder: Path) -> None:
        tape = FileTape(folder, roll_bytes=100)
        await fill(tape, 20)
        files = files_in(folder)
        files[1].unlink()
        late = FileTape(folder)
        with pytest.raises(LogGap, match="restore what was removed"):
            await read_all(late, 0)
        for one in (tape, late):
            await one.close()


class TestBadWeather:
    async def test_a_full_disk_is_told_and_the_log_goes_on_when_there_is_room(
        self, tape: FileTape, other: FileTape, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await fill(tape, 2)
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", half_then(errno.ENOSPC))
            with pytest.raises(StorageFull, match="No space left on device; nothing was changed"):
                await tape.append(b"too much")
        assert await other.read(0) == await tape.read(0)
        assert await other.append(b"three") == 3
        assert await tape.append(b"four") == 4

    async def test_a_sync_that_fails_takes_the_entry_back(
        self, tape: FileTape, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await fill(tape, 1)
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", written_and_not_synced())
            with pytest.raises(StoreUnavailable, match="Input/output error"):
                await tape.append(b"lost")
        assert await tape.append(b"two") == 2
        assert await tape.read(1) == [(2, b"two")]

    async def test_an_entry_that_cannot_be_taken_back_is_neither_confirmed_nor_denied(
        self, tape: FileTape, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await fill(tape, 1)

        def failing(fd: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", written_and_not_synced())
            patched.setattr(os, "fdatasync", failing)
            with pytest.raises(OutcomeUnknown, match="may have taken effect or not"):
                await tape.append(b"perhaps")
        assert await tape.append(b"after") in {2, 3}

    async def test_a_folder_that_may_only_be_read_can_be_read(
        self, tape: FileTape, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await fill(tape, 2)
        late = FileTape(folder)
        with monkeypatch.context() as patched:  # modes would not do: root may write anything
            patched.setattr(os, "open", only_reading())
            assert len(await late.read(0)) == 2
            with pytest.raises(StorageRefused, match="Permission denied; check permissions"):
                await late.append(b"three")
            assert len(await late.read(0)) == 2
        assert await late.append(b"three") == 3
        await late.close()

    async def test_a_lost_permission_is_told(self, tape: FileTape, monkeypatch: pytest.MonkeyPatch) -> None:
        await fill(tape, 1)
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", half_then(errno.EACCES))
            with pytest.raises(StorageRefused, match="Permission denied; check permissions"):
                await tape.append(b"two")
        assert await tape.append(b"two") == 2

    async def test_a_log_that_was_removed_is_not_begun_anew(self, tape: FileTape, folder: Path) -> None:
        await fill(tape, 2)
        for file in (*files_in(folder), folder / ".lock"):
            file.unlink()
        for attempt in (tape.append(b"three"), tape.read(2)):
            with pytest.raises(StorageGone):
                await attempt

    async def test_a_copy_without_the_hidden_files_is_read(self, tape: FileTape, folder: Path) -> None:
        await fill(tape, 2)
        for hidden in (".lock", ".turn"):
            os.unlink(folder / hidden)
        late = FileTape(folder)
        assert await late.last() == 2
        assert len(await late.read(0)) == 2
        assert await late.append(b"three") == 3
        await late.close()

    async def test_a_folder_in_the_place_of_another_is_left_alone(self, folder: Path, tmp_path: Path) -> None:
        """As when a copy is put back under a program that runs: what it holds open is in the folder that was moved away."""
        tape = FileTape(folder, roll_bytes=200)
        await fill(tape, 3)
        shutil.copytree(folder, tmp_path / "copy")
        os.rename(folder, tmp_path / "away")
        os.rename(tmp_path / "copy", folder)
        other = FileTape(folder, roll_bytes=200)
        told = [(await other.append(b"other %d" % n), b"other %d" % n) for n in range(9)]
        for attempt in (tape.read(3), tape.append(b"ours"), tape.last()):
            with pytest.raises(StorageGone, match="another folder is in its place"):
                await attempt
        assert await read_all(other, 3) == told
        for one in (tape, other):
            await one.close()

    async def test_a_lock_held_for_ever_is_told(self, tape: FileTape, folder: Path) -> None:
        await fill(tape, 1)
        holder = await asyncio.create_subprocess_exec(
            "flock", str(folder / ".lock"), "sh", "-c", "echo held; read x", stdin=-1, stdout=-1
        )
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert await holder.stdout.readline() == b"held\n"
        impatient = FileTape(folder, deadline_seconds=0.05)
        with pytest.raises(OutcomeUnknown, match="waited"):
            await impatient.append(b"two")
        with pytest.raises(StoreUnavailable, match="another process has held its lock"):
            await impatient.read(0)
        holder.stdin.close()
        await holder.wait()
        assert await tape.append(b"two or three") in {2, 3}
        await impatient.close()

    async def test_is_closed_once_and_then_says_so(self, tape: FileTape) -> None:
        await fill(tape, 1)
        await tape.close()
        await tape.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await tape.append(b"two")

    async def test_does_not_hang_in_a_forked_child(self, tape: FileTape) -> None:
        await fill(tape, 1)
        child = os.fork()
        if child == 0:
            code = 1
            with suppress(BaseException):
                try:
                    tape.append(b"two").send(None)
                except OpenedElsewhere:
                    code = 0
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222 it ends at once


def only_reading() -> Callable[..., int]:
    """An open that lets nobody write."""
    opened = os.open

    def refusing(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(path, flags, mode)

    return refusing


def half_then(number: int) -> Callable[[int, memoryview, int], int]:
    """A pwrite that writes half of what it is given, and then fails."""
    write = os.pwrite
    begun: list[int] = []

    def failing(fd: int, data: memoryview, offset: int) -> int:
        if begun:
            raise OSError(number, os.strerror(number))
        begun.append(offset)
        return write(fd, data[: len(data) // 2], offset)

    return failing


def written_and_not_synced() -> Callable[[int, memoryview, int], int]:
    """A pwrite that writes all of it, which is then not to be synced."""
    write = os.pwrite

    def failing(fd: int, data: memoryview, offset: int) -> int:
        write(fd, data, offset)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    return failing


class TestKilled:
    async def test_there_is_no_moment_between_a_write_and_its_sync(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever is killed there leaves what the next writer takes for durable; if it is not, its `base` tells a lie."""
        write, synced = os.pwrite, list[bool]()

        def noting(fd: int, data: memoryview, offset: int) -> int:
            if offset:  # the opening has no name yet
                synced.append(bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DSYNC))
            return write(fd, data, offset)

        monkeypatch.setattr(os, "pwrite", noting)
        tapes = [FileTape(folder, roll_bytes=100) for _ in range(2)]
        for n in range(12):  # by the one that began a file, the one that found it, and across files
            await tapes[n % 2].append(b"entry")
        assert len(files_in(folder)) > 2
        assert len(synced) > 12
        assert all(synced)
        for tape in tapes:
            await tape.close()

    async def test_processes_lose_nothing_that_was_confirmed(self, tmp_path: Path) -> None:
        url = f"file://{tmp_path}"
        told = await confirmed_until_killed(url, kills=6, entries=200)
        backing = open_backing(url)
        await check_nothing_is_lost(backing.tape("s00"), told)
        await backing.close()


def test_a_frame_is_as_it_is_written_down() -> None:
    written = frames.frame(7, 8, b"abc")
    assert written[:28] == struct.pack("<4sQQI", b"PSf1", 7, 8, 3) + written[24:28]
    assert written[28:] == b"abc"
