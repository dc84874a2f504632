"""A tape of objects: entry n is the object n, written only if absent, so that of all who try one wins.

What it needs of a store is `create`, `get` and `list`. Four things make it more than a loop:

- Writers who see each other take turns by number modulo how many they are, so that none starves; the number of one
  who did not come is filled by the next.
- An answer waits until all numbers below are taken. So an entry that stands above a hole was never confirmed.
- An absent number is a hole only if nobody knew it to be taken, which each entry says of those before it (`packed`).
  One that was is a gap: it is not filled, nothing beyond it is answered, and LogGap says which it is.
- Old entries are deleted below a watermark, which stands in the manifest before anything is deleted. Whoever has not
  seen the end of the log for long, by any clock, asks the manifest before it believes what it sees: a number that is
  absent may have been deleted, and one that was won may have been another's before.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence, Set
from contextlib import suppress
from itertools import accumulate
from random import Random

import msgspec

from penstock.core.errors import InvalidInput, StoreUnavailable
from penstock.stores.log.backings import Objects, Tape
from penstock.stores.log.backings.clocks import Clocks, is_within, machine_clocks
from penstock.stores.log.backings.packed import FEW, NOBODY, Evidence, Packed, filler, pack, unpack
from penstock.stores.log.backings.recent import REMEMBERED_BYTES, Recent
from penstock.stores.log.backings.turns import Turns, now
from penstock.stores.log.errors import LogCorrupt, LogGap, OutcomeUnknown, StorageGone, Truncated

RETENTION_SECONDS = 24 * 3600.0
"""No entry younger than this is deleted, by the store's own date of it. The compactor and every tape must agree on it."""
AT_ONCE = 32
FETCH_BYTES = 16 << 20
"""No more than this is fetched for one read, unless one entry alone has more: a thousand of them may have gigabytes."""
SINGLE_STEPS = 4
"""So many numbers are asked for one by one; whoever is further behind lists the rest."""
PATIENCE_ROUND_TRIPS = 1.5
"""So long a hole is left to the one who may be writing it."""

LOOK_ABOVE_SECONDS = 600.0
"""A look finds the next number absent, and one in so long asks whether anything stands above it all the same."""


class _Manifest(msgspec.Struct):
    """What a tape needs to know of it."""

    watermark: int = 0
    snapshot: _Snapshot | None = None

    @property
    def number(self) -> int:
        return self.snapshot.number if self.snapshot else 0

    @property
    def covers(self) -> int:
        """Up to here nobody needs an entry: it may be gone, or the snapshot has it."""
        return max(self.watermark, self.number)


class _Snapshot(msgspec.Struct):
    number: int = 0


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
        clocks: Callable[[], Clocks] = machine_clocks,
        choices: Random | None = None,
    ) -> None:
        self._objects, self._folder, self._name = objects, f"{name}/log", f"{store} {name}"
        self._manifest_key = f"{name}/manifest"
        self._ready = ready
        self._clocks, self._doubts_after = clocks, retention_seconds / 24
        choices = choices or Random(os.urandom(16))
        self._writer = choices.randbytes(8)
        self._turns = Turns(self._writer, choices)
        self._count = 0
        self._opening = asyncio.Lock()
        self._appending = asyncio.Lock()
        self._open = False
        self._head = 0
        """Up to here all numbers are known to be taken."""
        self._highest = 0
        """The highest number known to be taken; holes may be below."""
        self._ahead: dict[int, bytes] = {}
        self._recent = Recent()
        self._confirmed: Clocks | None = None
        """When a number that is not beyond the one after the head was certainly absent: all that follow are younger."""
        self._looked_above: Clocks | None = None
        self._ended_at = float("-inf")
        self._evidence = Evidence()

    async def append(self, data: bytes) -> int:
        async with self._appending:
            await self._opened()
            clocks = self._clocks()
            if (
                not self._is_fresh()
                or not is_within(self._turns.sure_for, clocks, self._confirmed)
                or not is_within(LOOK_ABOVE_SECONDS, clocks, self._looked_above)
            ):
                await self._catch_up()
            self._count += 1
            lost = 0
            while True:
                number = self._turns.slot(self._highest, lost)
                packed = pack(self._writer, self._count, data, self._evidence.marks(self._head))
                before, started = self._clocks(), now()
                won = await self._objects.create(self._key(number), packed)
                try:
                    await self._check_ours(number, won=won)
                    if won:
                        self._turns.learn(now() - started)
                        self._take(number, self._noted(number, packed).data)
                        await self._fill_below(number)
                        self._confirm(before)
                        return number
                except OutcomeUnknown:
                    raise
                except (StoreUnavailable, LogCorrupt, LogGap) as error:
                    raise OutcomeUnknown(self._name, f"entry {number:,}", error.message) from error
                lost += 1
                self._highest = max(self._highest, number)
                await self._catch_up()

    async def read(self, after: int, most: int = 1000) -> list[tuple[int, bytes]]:
        await self._opened()
        try:
            while self._head <= after and await self._follow(most):
                pass
        except Truncated:
            self._open = False
            raise
        if self._head <= after:
            return []
        # What followed may have been more than is kept at hand; it must not be taken for nothing.
        return self._recent.following(after, most, self._head) or await self._read_old(after, most)

    def ended(self, number: int, since: float) -> bool:
        return self._head == number and self._ended_at >= since

    async def last(self) -> int:
        await self._opened()
        await self._catch_up()
        return self._head

    async def truncate(self, until: int) -> None:
        if until > (await self._manifest()).watermark:
            raise InvalidInput("until", "be at most the watermark in the manifest; publish that first", until)
        await self._opened()
        # The newest stays: it tells of those before it, if the manifest is ever lost or an older one is put in its place.
        until = min(until, self._head - 1)
        while keys := [
            found.key
            for found in await self._objects.list(self._folder, most=1000)
            if _number(found.key) <= until
        ]:
            await self._objects.delete(keys)
        self._recent.forget(until, self._head)

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
        base = manifest.covers
        before = self._clocks()
        listed = await self._objects.list(self._folder, after=self._key(base))
        if (await self._manifest()).watermark > base:
            return False
        numbers = {_number(found.key) for found in listed}
        self._check_left(numbers, base)
        head = max(base, self._head)
        while head + 1 in numbers:
            head += 1
        if head != self._head:
            self._recent.clear()
            self._ahead.clear()
        self._head, self._highest = head, max(head, *numbers, 0)
        try:
            await self._check_above(numbers)
        except Truncated:
            return False
        # Whoever writes behind them says what they are, though a snapshot had them and nobody here will read them.
        last = range(max(manifest.watermark, head - FEW) + 1, head + 1)
        for number, entry in zip(last, await self._fetch(last), strict=True):
            if entry is not None:
                self._noted(number, entry)
        self._confirmed = self._looked_above = before
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
        room = REMEMBERED_BYTES  # with more the first of them would not be at hand any more, and be fetched again
        for _ in range(min(most, SINGLE_STEPS)):
            number, before, asked_at = self._head + 1, self._clocks(), time.monotonic()
            found = await self._objects.get(self._key(number))
            if found is None:
                await self._check_kept(number, before)
                await self._check_end()
                self._ended_at = asked_at
                return self._head - start
            await self._check_kept(number, None)
            self._take(number, self._unpacked(number, found))
            room -= len(found)
        if most > SINGLE_STEPS and room > 0:
            await self._follow_listed(most - SINGLE_STEPS, room)
        return self._head - start

    async def _follow_listed(self, most: int, most_bytes: int) -> None:
        head = self._head
        numbers = await self._listed(head, most, most_bytes)
        entries = await self._fetch(numbers)
        await self._check_kept(head + 1, None)
        for number, found in zip(numbers, entries, strict=True):
            if found is not None:
                self._take(number, self._unpacked(number, found))
        await self._check_not_removed(self._head + 1)

    async def _read_old(self, after: int, most: int) -> list[tuple[int, bytes]]:
        """What is below the head and no longer at hand."""
        listed = await self._listed(after, min(most, self._head - after), FETCH_BYTES)
        numbers = range(after + 1, max(listed, default=after + 1) + 1)
        entries = await self._fetch(numbers)
        manifest = await self._manifest()
        if manifest.watermark > after:
            raise Truncated(self._name, after, manifest.watermark + 1)
        found: list[tuple[int, bytes]] = []
        for number, entry in zip(numbers, entries, strict=True):
            if entry is None and number <= manifest.covers:
                raise Truncated(self._name, after, manifest.covers + 1)
            if entry is None:
                raise LogGap(self._name, number, self._head)
            found.append((number, self._unpacked(number, entry)))
        return found

    async def _listed(self, after: int, most: int, most_bytes: int) -> list[int]:
        """The numbers that are there above one, so many that their entries have no more bytes; at least one of them."""
        listed = await self._objects.list(self._folder, after=self._key(after), most=most)
        sizes = accumulate(found.size for found in listed)
        return [
            _number(found.key)
            for place, (found, size) in enumerate(zip(listed, sizes, strict=True))
            if size <= most_bytes or not place
        ]

    async def _fetch(self, numbers: Sequence[int]) -> list[bytes | None]:
        entries: list[bytes | None] = []
        for start in range(0, len(numbers), AT_ONCE):
            keys = [self._key(number) for number in numbers[start : start + AT_ONCE]]
            entries += await asyncio.gather(*map(self._objects.get, keys))
        return entries

    # Whether what was seen can be believed.

    def _is_fresh(self) -> bool:
        """Whether the end was seen so recently, by every clock, that nothing behind it can have been deleted."""
        return is_within(self._doubts_after, self._clocks(), self._confirmed)

    async def _check_end(self) -> None:
        """Raise if a number was removed that was just found absent. What stands around it is looked for now and then."""
        if is_within(LOOK_ABOVE_SECONDS, self._clocks(), self._looked_above):
            return await self._check_not_removed(self._head + 1)
        before = self._clocks()
        listed = await self._objects.list(self._folder, after=self._key(max(self._head - FEW, 0)), most=1000)
        numbers = {_number(found.key) for found in listed}
        if self._is_emptied(numbers, 0):
            self._check_left(numbers, (await self._manifest()).covers)
        await self._check_above(numbers)
        self._looked_above = before

    def _is_emptied(self, numbers: Set[int], covered: int) -> bool:
        """Whether none of the last few entries is left, of those that no snapshot covers."""
        last = range(max(covered, self._head - FEW) + 1, self._head + 1)
        return bool(last) and numbers.isdisjoint(last)

    def _check_left(self, numbers: Set[int], covered: int) -> None:
        """Raise if the place was emptied: what is written behind the entries that were there nobody could read."""
        if self._is_emptied(numbers, covered):
            self._open = False
            raise StorageGone(self._name, f"its entries up to {self._head:,} have been removed")

    async def _check_above(self, numbers: Set[int]) -> None:
        """Ask the last few above the number that follows the head, if there are any, whether it was taken."""
        above = sorted(number for number in numbers if number > self._head + 1)[-AT_ONCE:]
        for number, entry in zip(above, await self._fetch(above), strict=True):
            if entry is not None:
                self._noted(number, entry)
        await self._check_not_removed(self._head + 1)

    async def _check_not_removed(self, number: int) -> None:
        """Raise if a number is absent that was taken: LogGap, or Truncated if that was due or a snapshot has it."""
        if number > self._evidence.taken or await self._objects.get(self._key(number)) is not None:
            return
        if (covered := (await self._manifest()).covers) >= number:
            raise Truncated(self._name, number - 1, covered + 1)
        self._open = False
        raise LogGap(self._name, number, self._evidence.told_by)

    async def _deleted_until(self, number: int, absent_since: Clocks | None) -> int:
        """The watermark if a number is not above it; otherwise 0: an absent one is the end, and one won is ours.

        `absent_since` is a time before the store was asked, when it found the number absent.
        """
        if not self._is_fresh() and (watermark := (await self._manifest()).watermark) >= number:
            return watermark
        if absent_since is not None:
            self._confirm(absent_since)
        return 0

    def _confirm(self, since: Clocks) -> None:
        self._confirmed = since if self._confirmed is None else max(self._confirmed, since)

    async def _check_ours(self, number: int, *, won: bool) -> None:
        """Raise if a number was deleted while it was being written: what is there now was not there before.

        An attempt of ours may have been the entry that was deleted, and is in the snapshot then; or it never was.
        """
        if watermark := await self._deleted_until(number, None):
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
            manifest = msgspec.json.decode(found, type=_Manifest)
        except msgspec.MsgspecError as error:
            raise LogCorrupt(self._name, self._manifest_key, str(error)) from None
        self._evidence.told(manifest.number, manifest.number)
        return manifest

    # What is below it.

    async def _fill_below(self, number: int) -> None:
        """Wait until all numbers below are taken; take those ourselves that nobody seems to be writing."""
        patient_until = now() + PATIENCE_ROUND_TRIPS * self._turns.round_trip
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
            if now() < patient_until:
                await asyncio.sleep(self._turns.round_trip / 3)
                continue
            # What was filled, by us or by another, is read in the next turn.
            left = [hole for hole in holes if hole > self._head and hole not in self._ahead]
            try:
                for hole in left:
                    await self._check_not_removed(hole)
            except Truncated:
                await self._reopen()
                continue
            await asyncio.gather(*(self._objects.create(self._key(hole), filler(hole)) for hole in left))

    def _take(self, number: int, data: bytes) -> None:
        """Note that a number is taken, and by what."""
        self._highest = max(self._highest, number)
        if number <= self._head:
            return
        self._ahead[number] = data
        while (following := self._ahead.pop(self._head + 1, None)) is not None:
            self._head += 1
            self._recent.add([following])

    def _unpacked(self, number: int, packed: bytes) -> bytes:
        entry = self._noted(number, packed)
        if entry.writer not in {self._writer, NOBODY}:
            self._turns.saw(entry.writer)
        return entry.data

    def _noted(self, number: int, packed: bytes) -> Packed:
        """An entry, once what it says of others is noted."""
        entry = unpack(packed, self._name, self._key(number))
        if self._evidence.contradicts(entry):
            where = self._key(entry.behind.known)
            found = f"it, or one right before it, is not what entry {number:,} was written behind"
            raise LogCorrupt(self._name, where, f"{found}: that was removed, and another put in its place")
        self._evidence.told(number, entry.behind.known)
        self._evidence.note(number, entry.checksum)
        return entry

    def _key(self, number: int) -> str:
        return f"{self._folder}/{number:020d}"


def _number(key: str) -> int:
    try:
        return int(key.rpartition("/")[2])
    except ValueError:
        raise LogCorrupt(key.rpartition("/")[0], key, "it is not a number, as every name here is") from None
