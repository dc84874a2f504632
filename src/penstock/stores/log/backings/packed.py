"""An entry as an object: who wrote it, and what they knew of those before it.

Each says up to where its writer knew all numbers to be taken, and the checksum of the last of these, and one of the last few
together: not every entry is the last that somebody knew. So a number that is absent now and was taken then has been removed,
and is no hole that a writer left; and an entry that stands where another stood is not taken for it.
"""

from __future__ import annotations

import struct
import zlib
from itertools import takewhile
from typing import NamedTuple

from penstock.stores.log.errors import LogCorrupt, LogTooNew

FORMAT = 2
"""1 said nothing of those before it. It was given up before anything was released."""
NOBODY = bytes(8)
_HEAD = struct.Struct(
    "<3sB8sQQIII"
)  # magic, format, writer, counter, known, marks of the last and the last few, checksum
_MAGIC = b"PSE"
_FORMAT_AT = len(_MAGIC)
REMEMBERED = 4_096
FEW = 8
_COUNT_SHIFT = 28
"""The mark of the last few begins with how many they are."""


class Marks(NamedTuple):
    """What a writer knew of the entries up to `known`."""

    known: int = 0
    """Up to here all numbers were taken."""
    last: int = 0
    """The checksum of that one; 0 if the writer had not read it."""
    few: int = 0
    """One of the checksums of the last few, and how many these are; 0 if there is none."""


class Packed(NamedTuple):
    """An entry as it was read."""

    writer: bytes
    behind: Marks
    checksum: int
    data: bytes


def pack(writer: bytes, count: int, data: bytes, behind: Marks = Marks()) -> bytes:  # noqa: B008 (it is a value)
    """No two entries that were written are alike, so that each writer knows its own."""
    checksum = _checksum(writer, count, behind, data)
    return _HEAD.pack(_MAGIC, FORMAT, writer, count, *behind, checksum) + data


def filler(number: int) -> bytes:
    """What takes a number that nobody came for. It is the same whoever writes it, and not empty: damage could be."""
    return pack(NOBODY, number, b"")


def unpack(packed: bytes, log: str, key: str) -> Packed:
    if packed[:_FORMAT_AT] != _MAGIC and packed:
        raise LogCorrupt(log, key, f"it begins with {packed[:_FORMAT_AT]!r}, as no entry does")
    format = packed[_FORMAT_AT] if len(packed) > _FORMAT_AT else FORMAT
    if format > FORMAT:
        raise LogTooNew(f"{log}, at {key},", format, FORMAT)
    if format < FORMAT:
        raise LogCorrupt(log, key, f"it is in format {format}, which no released version wrote or reads")
    if len(packed) < _HEAD.size:
        raise LogCorrupt(log, key, f"it has {len(packed)} bytes, fewer than any entry")
    _, _, writer, count, *behind, expected = _HEAD.unpack_from(packed)
    data, marks = packed[_HEAD.size :], Marks(*behind)
    if _checksum(writer, count, marks, data) != expected:
        raise LogCorrupt(log, key, "its checksum does not fit: it was cut short or changed")
    return Packed(writer, marks, expected, data)


def _checksum(writer: bytes, count: int, behind: Marks, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(_HEAD.pack(_MAGIC, FORMAT, writer, count, *behind, 0)))


class Evidence:
    """What the entries seen so far say of others."""

    def __init__(self) -> None:
        self.taken = 0
        """Somebody knew all numbers up to this one to be taken,"""
        self.told_by = 0
        """which the entry (or the snapshot) of this number tells."""
        self._marks: dict[int, int] = {}

    def marks(self, known: int) -> Marks:
        """What was seen of the entries up to this one."""
        return Marks(known, self._marks.get(known, 0), self._few(known, FEW))

    def _few(self, known: int, most: int) -> int:
        """The checksums of so many entries up to this one as one, or of as many as were seen one after the other."""
        seen = list(takewhile(bool, (self._marks.get(known - back, 0) for back in range(most))))
        together = zlib.crc32(struct.pack(f"<{len(seen)}I", *seen)) & ((1 << _COUNT_SHIFT) - 1)
        return len(seen) << _COUNT_SHIFT | together if seen else 0

    def note(self, number: int, checksum: int) -> None:
        self._marks[number] = checksum
        if len(self._marks) > REMEMBERED:
            del self._marks[next(iter(self._marks))]

    def told(self, number: int, known: int) -> None:
        """Note up to where all were taken, by what stands at a number."""
        if known > self.taken:
            self.taken, self.told_by = known, number

    def contradicts(self, entry: Packed) -> bool:
        """Whether what we saw where an entry was written behind is not what its writer saw there."""
        known, last, few = entry.behind
        ours = self._marks.get(known, 0)
        if ours and last and ours != last:
            return True
        count = few >> _COUNT_SHIFT
        same = self._few(known, count)
        return same >> _COUNT_SHIFT == count and same != few
