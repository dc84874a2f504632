"""A tape of objects: entry n is the object n, written only if absent, so that of all who try one wins.

What it needs of a store is `create`, `get` and `list`. Three things make it more than a loop:

- Writers who see each other take turns by number modulo how many they are, so that none starves; the number of one
  who did not come is filled by the next.
- An answer waits until all numbers below are taken. So an entry that stands above a hole was never confirmed.
- Old entries are deleted below a watermark, which stands in the manifest before anything is deleted. Whoever has not
  seen the end of the log for long, by any clock, asks the manifest before it believes what it sees: a number that is
  absent may have been deleted, and one that was won may have been another's before.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random

import msgspec

from penstock.core.errors import InvalidInput, StoreUnavailable
from penstock.stores.log.backings import Objects, Tape
from penstock.stores.log.errors import LogCorrupt, LogGap, LogTooNew, OutcomeUnknown, Truncated

RETENTION_SECONDS = 24 * 3600.0
"""No entry younger than this is deleted, by the store's own date of it. The compactor and every tape must agree on it."""
REMEMBERED_BYTES = 8 << 20
AT_ONCE = 32
SINGLE_STEPS = 4
"""So many numbers are asked for one by one; whoever is further behind lists the rest."""
HOT_ROUND_TRIPS = 4
PATIENCE_ROUND_TRIPS = 1.5
"""So long a hole is left to the one who may be writing it."""
FIRST_ROUND_TRIP_SECONDS = 0.1

FORMAT = 1
_HEAD = struct.Struct("<3sB8sQI")  # magic, format, writer, counter, checksum
_MAGIC = b"PSE"
_NOBODY = bytes(8)

Clocks = tuple[float, ...]


class _Manifest(msgspec.Struct):
    """What a tape needs to know of it."""

    watermark: int = 0
    snapshot: _Snapshot | None = None


class _Snapshot(msgspec.Struct):
    number: int = 0


def _machine_clocks() -> Clocks:
    """Three, because each of them misses something: a suspended machine, a set clock, a restart."""
    boot = time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
    return (time.monotonic(), boot, time.time())


async def _is_ready() -> None:
    pass


class ObjectTape(Tape):
    """Entries as objects of their own, appended by any number of processes anywhere."""

    def __init__(
        self,
        objects: Objects,
        name: str,
        *,
        store: str = "the store",
        ready: Callable[[], Awaitable[None]] = _is_ready,
        retention_seconds: float = RETENTION_SECONDS,
        clocks: Callable[[], Clocks] = _machine_clocks,
        choices: Random | None = None,
    ) -> None:
        self._objects, self._folder, self._name = objects, f"{name}/log", f"{store} {name}"
        self._manifest_key = f"{name}/manifest"
        self._ready = ready
        self._clocks, self._doubts_after = clocks, retention_seconds / 24
        self._choices = choices or Random(os.urandom(16))
        self._writer = self._choices.randbytes(8)
        self._count = 0
        self._opening = asyncio.Lock()
        self._appending = asyncio.Lock()
        self._open = False
        self._head = 0
        """Up to here all numbers are known to be taken."""
        self._highest = 0
        """The highest number known to be taken; holes may be below."""
        self._ahead: dict[int, bytes] = {}
        self._recent: deque[bytes] = deque()
        self._recent_bytes = 0
        self._confirmed: Clocks | None = None
        """When the number after the head was certainly absent."""
        self._others: dict[bytes, float] = {}
        self._round_trip = FIRST_ROUND_TRIP_SECONDS

    async def append(self, data: bytes) -> int:
        async with self._appending:
            await self._opened()
            if not self._is_fresh():
                await self._catch_up()
            self._count += 1
            packed = pack(self._writer, self._count, data)
            lost = 0
            while True:
                number = self._slot(lost)
                before, started = self._clocks(), self._time()
                won = await self._objects.create(self._key(number), packed)
                try:
                    await self._check_ours(number, before if won else None, won=won)
                    if won:
                        self._learn(self._time() - started)
                        self._take(number, data)
                        await self._fill_below(number)
                        return number
                except StoreUnavailable as error:
                    if isinstance(error, OutcomeUnknown):
                        raise
                    raise OutcomeUnknown(self._name, f"entry {number:,}", error.message) from error
                lost += 1
                self._highest = max(self._highest, number)
                await self._catch_up()

    async def read(self, after: int, most: int = 1000) -> list[tuple[int, bytes]]:
        await self._opened()
        if after < self._head:
            return self._remembered(after, most) or await self._read_old(after, most)
        try:
            while await self._follow(most) and self._head <= after:
                pass
        except Truncated:
            self._open = False
            raise
        return self._remembered(after, most)

    async def last(self) -> int:
        await self._opened()
        await self._catch_up()
        return self._head

    async def truncate(self, until: int) -> None:
        if until > (await self._manifest()).watermark:
            raise InvalidInput("until", "be at most the watermark in the manifest; publish that first", until)
        while keys := [
            found.key
            for found in await self._objects.list(self._folder, most=1000)
            if _number(found.key) <= until
        ]:
            await self._objects.delete(keys)
        while self._recent and self._head - len(self._recent) < until:
            self._recent_bytes -= len(self._recent.popleft())

    async def close(self) -> None:
        """The objects are the backing's to close."""

    # Where the log ends.

    async def _opened(self) -> None:
        if not self._open:
            async with self._opening:
                await self._find_end()

    async def _reopen(self) -> None:
        self._open = False
        await self._opened()

    async def _find_end(self) -> None:
        await self._ready()
        while not self._open:
            self._open = await self._found_end()

    async def _found_end(self) -> bool:
        """Learn the end by a listing; False if entries were deleted meanwhile, which would look like an end."""
        manifest = await self._manifest()
        base = max(manifest.watermark, manifest.snapshot.number if manifest.snapshot else 0)
        before = self._clocks()
        listed = await self._objects.list(self._folder, after=self._key(base))
        if (await self._manifest()).watermark > base:
            return False
        numbers = {_number(found.key) for found in listed}
        head = max(base, self._head)
        while head + 1 in numbers:
            head += 1
        if head != self._head:
            self._recent.clear()
            self._recent_bytes = 0
            self._ahead.clear()
        self._head, self._highest, self._confirmed = head, max(head, *numbers, 0), before
        return True

    async def _catch_up(self) -> None:
        try:
            while await self._follow(1000):
                pass
        except Truncated:
            await self._reopen()

    async def _follow(self, most: int) -> int:
        """Take what follows the head; how many there were. Few are asked for one by one, many are listed."""
        start = self._head
        for _ in range(min(most, SINGLE_STEPS)):
            number, before = self._head + 1, self._clocks()
            found = await self._objects.get(self._key(number))
            if found is None:
                await self._check_kept(number, before)
                return self._head - start
            await self._check_kept(number, None)
            self._take(number, self._unpacked(number, found))
        if most > SINGLE_STEPS:
            await self._follow_listed(most - SINGLE_STEPS)
        return self._head - start

    async def _follow_listed(self, most: int) -> None:
        head = self._head
        listed = await self._objects.list(self._folder, after=self._key(head), most=most)
        numbers = [_number(found.key) for found in listed]
        entries = await self._fetch(numbers)
        await self._check_kept(head + 1, None)
        for number, found in zip(numbers, entries, strict=True):
            if found is not None:
                self._take(number, self._unpacked(number, found))

    async def _read_old(self, after: int, most: int) -> list[tuple[int, bytes]]:
        """What is below the head and no longer at hand."""
        numbers = range(after + 1, min(self._head, after + most) + 1)
        entries = await self._fetch(numbers)
        watermark = (await self._manifest()).watermark
        if watermark > after:
            raise Truncated(self._name, after, watermark + 1)
        found: list[tuple[int, bytes]] = []
        for number, entry in zip(numbers, entries, strict=True):
            if entry is None:
                raise LogGap(self._name, number, self._head)
            found.append((number, self._unpacked(number, entry)))
        return found

    async def _fetch(self, numbers: Sequence[int]) -> list[bytes | None]:
        entries: list[bytes | None] = []
        for start in range(0, len(numbers), AT_ONCE):
            keys = [self._key(number) for number in numbers[start : start + AT_ONCE]]
            entries += await asyncio.gather(*map(self._objects.get, keys))
        return entries

    # Whether what was seen can be believed.

    def _is_fresh(self) -> bool:
        """Whether the end was seen so recently, by every clock, that nothing behind it can have been deleted."""
        confirmed = self._confirmed
        return confirmed is not None and all(
            abs(now - then) <= self._doubts_after for now, then in zip(self._clocks(), confirmed, strict=True)
        )

    async def _deleted_until(self, number: int, absent_since: Clocks | None) -> int:
        """The watermark if a number is not above it; otherwise 0: an absent one is the end, and one won is ours.

        `absent_since` is a time before the store was asked, when it found the number absent.
        """
        if not self._is_fresh() and (watermark := (await self._manifest()).watermark) >= number:
            return watermark
        if absent_since is not None:
            self._confirmed = absent_since
        return 0

    async def _check_ours(self, number: int, absent_since: Clocks | None, *, won: bool) -> None:
        """Raise if a number was deleted while it was being written: what is there now was not there before.

        An attempt of ours may have been the entry that was deleted, and is in the snapshot then; or it never was.
        """
        if watermark := await self._deleted_until(number, absent_since):
            self._open = False
            if won:
                with suppress(StoreUnavailable):
                    await self._objects.delete([self._key(number)])
            raise OutcomeUnknown(
                self._name, f"entry {number:,}", f"it took so long that all up to {watermark:,} were deleted"
            )

    async def _check_kept(self, number: int, absent_since: Clocks | None) -> None:
        if watermark := await self._deleted_until(number, absent_since):
            raise Truncated(self._name, number - 1, watermark + 1)

    async def _manifest(self) -> _Manifest:
        found = await self._objects.get(self._manifest_key)
        if found is None:
            return _Manifest()
        try:
            return msgspec.json.decode(found, type=_Manifest)
        except msgspec.MsgspecError as error:
            raise LogCorrupt(self._name, self._manifest_key, str(error)) from None

    # Which number to try, and what is below it.

    def _learn(self, seconds: float) -> None:
        """How long a write takes, as a running mean that one slow write does not spoil."""
        self._round_trip += (min(seconds, 4 * self._round_trip) - self._round_trip) / 8

    def _slot(self, lost: int) -> int:
        number = self._highest + 1
        oldest = self._time() - HOT_ROUND_TRIPS * self._round_trip
        self._others = {writer: seen for writer, seen in self._others.items() if seen >= oldest}
        if self._others:
            turns = sorted([self._writer, *self._others])
            number += (turns.index(self._writer) - number) % len(turns)
        return number + (self._choices.randrange(2) if lost >= 3 else 0)

    async def _fill_below(self, number: int) -> None:
        """Wait until all numbers below are taken; take those ourselves that nobody seems to be writing."""
        patient_until = self._time() + PATIENCE_ROUND_TRIPS * self._round_trip
        while self._head < number:
            holes = [hole for hole in range(self._head + 1, number) if hole not in self._ahead]
            entries = await self._fetch(holes)
            if await self._deleted_until(self._head + 1, None):
                await self._reopen()
                continue
            for hole, entry in zip(holes, entries, strict=True):
                if entry is not None:
                    self._take(hole, self._unpacked(hole, entry))
            if self._head >= number:
                return
            if self._time() < patient_until:
                await asyncio.sleep(self._round_trip / 3)
                continue
            # What was filled, by us or by another, is read in the next turn.
            left = [hole for hole in holes if hole > self._head and hole not in self._ahead]
            await asyncio.gather(*(self._objects.create(self._key(hole), filler(hole)) for hole in left))

    def _take(self, number: int, data: bytes) -> None:
        """Note that a number is taken, and by what."""
        self._highest = max(self._highest, number)
        if number <= self._head:
            return
        self._ahead[number] = data
        while (following := self._ahead.pop(self._head + 1, None)) is not None:
            self._head += 1
            self._recent.append(following)
            self._recent_bytes += len(following)
        while self._recent_bytes > REMEMBERED_BYTES and len(self._recent) > 1:
            self._recent_bytes -= len(self._recent.popleft())

    def _remembered(self, after: int, most: int) -> list[tuple[int, bytes]]:
        start = after - (self._head - len(self._recent))
        if not 0 <= start < len(self._recent):
            return []
        stop = min(start + most, len(self._recent))
        return [(after + 1 + n, self._recent[start + n]) for n in range(stop - start)]

    def _unpacked(self, number: int, packed: bytes) -> bytes:
        writer, data = unpack(packed, self._name, self._key(number))
        if writer not in {self._writer, _NOBODY}:
            self._others[writer] = self._time()
        return data

    def _key(self, number: int) -> str:
        return f"{self._folder}/{number:020d}"

    def _time(self) -> float:
        return asyncio.get_running_loop().time()


def pack(writer: bytes, count: int, data: bytes) -> bytes:
    """An entry as an object: no two that were written are alike, so that each writer knows its own."""
    head = _HEAD.pack(_MAGIC, FORMAT, writer, count, 0)
    return _HEAD.pack(_MAGIC, FORMAT, writer, count, zlib.crc32(data, zlib.crc32(head))) + data


def filler(number: int) -> bytes:
    """What takes a number that nobody came for. It is the same whoever writes it, and not empty: damage could be."""
    return pack(_NOBODY, number, b"")


def unpack(packed: bytes, log: str, key: str) -> tuple[bytes, bytes]:
    """Who wrote an entry, and what it says."""
    if len(packed) < _HEAD.size:
        raise LogCorrupt(log, key, f"it has {len(packed)} bytes, fewer than any entry")
    magic, format, writer, count, expected = _HEAD.unpack_from(packed)
    if magic != _MAGIC:
        raise LogCorrupt(log, key, f"it begins with {magic!r}, as no entry does")
    if format > FORMAT:
        raise LogTooNew(f"{log}, at {key},", format, FORMAT)
    data = packed[_HEAD.size :]
    head = _HEAD.pack(magic, format, writer, count, 0)
    if zlib.crc32(data, zlib.crc32(head)) != expected:
        raise LogCorrupt(log, key, "its checksum does not fit: it was cut short or changed")
    return writer, data


def _number(key: str) -> int:
    try:
        return int(key.rpartition("/")[2])
    except ValueError:
        raise LogCorrupt(key.rpartition("/")[0], key, "it is not a number, as every name here is") from None
