"""How entries lie in a file, and how a tail that was torn is told from damage.

A file begins with eight bytes that say what it is. A frame is a header and its data. The header says from where on the
file was not yet known to be durable when the frame was written (`base`), so a broken frame with nothing behind it
that relied on it was never confirmed to anybody, and may be cut; any other is damage.
"""

from __future__ import annotations

import os
import struct
import zlib
from enum import Enum, auto

from penstock.stores.log.errors import LogCorrupt, LogTooNew

FORMAT = 1
OPENING = b"penslog" + bytes([FORMAT])
MAGIC = b"PSf1"
_HEAD = struct.Struct("<4sQQI")  # magic, number, base, length
_SUM = struct.Struct("<I")
HEADER_BYTES = _HEAD.size + _SUM.size
ROLLED = 0xFFFF_FFFF
"""The length of a frame that says: go on in the next file. It carries the number that comes next."""
MOST_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 20


class Ending(Enum):
    """Why a scan stopped."""

    END = auto()
    MORE = auto()
    ROLLED = auto()
    TORN = auto()


def frame(number: int, base: int, data: bytes) -> bytes:
    head = _HEAD.pack(MAGIC, number, base, len(data))
    return b"".join((head, _SUM.pack(zlib.crc32(data, zlib.crc32(head))), data))


def marker(number: int, base: int) -> bytes:
    """The last frame of a file; the next one begins with this number."""
    head = _HEAD.pack(MAGIC, number, base, ROLLED)
    return head + _SUM.pack(zlib.crc32(head))


def check_opening(fd: int, name: str) -> None:
    opening = os.pread(fd, len(OPENING), 0)
    if opening[:-1] != OPENING[:-1] or len(opening) < len(OPENING):
        raise LogCorrupt(name, "byte 0", f"it begins with {opening!r}, as no file of a log does")
    if opening[-1] > FORMAT:
        raise LogTooNew(name, opening[-1], FORMAT)


def scan(
    fd: int, name: str, offset: int, number: int, most: int, most_bytes: int, size: int | None = None
) -> tuple[list[bytes], int, Ending]:
    """Entries from `offset` on, the first of them `number`; where the next frame begins; why it stopped there."""
    if size is None:
        size = os.fstat(fd).st_size
    if size < offset:
        raise LogCorrupt(name, f"byte {size:,}", f"it ends there, though it reached to {offset:,} before")
    found: list[bytes] = []
    chunk, start, taken = b"", offset, 0
    while offset < size:
        if len(found) >= most or taken >= most_bytes:
            return found, offset, Ending.MORE
        at = offset - start
        if len(chunk) - at < HEADER_BYTES:
            chunk, start, at = os.pread(fd, _CHUNK_BYTES, offset), offset, 0
        need = _needed(chunk, at)
        if len(chunk) - at < need <= size - offset:
            chunk, start, at = os.pread(fd, max(need, _CHUNK_BYTES), offset), offset, 0
        read = _frame_at(chunk, at)
        if read is None:
            _refuse_damage(fd, name, offset, size)
            return found, offset, Ending.TORN
        if read[0] != number:
            raise LogCorrupt(name, f"byte {offset:,}", f"entry {read[0]:,} stands where {number:,} must")
        if read[2] is None:
            return found, offset + HEADER_BYTES, Ending.ROLLED
        found.append(read[2])
        taken += len(read[2])
        number += 1
        offset += need
    return found, offset, Ending.END


def _needed(chunk: bytes, at: int) -> int:
    """How many bytes the frame here says it has; a header's worth if it says nothing believable."""
    if len(chunk) - at < HEADER_BYTES:
        return HEADER_BYTES
    magic, _, _, length = _HEAD.unpack_from(chunk, at)
    return HEADER_BYTES + (length if magic == MAGIC and length <= MOST_BYTES else 0)


def _frame_at(chunk: bytes, at: int) -> tuple[int, int, bytes | None] | None:
    """Number, base and data of a whole frame (no data: a marker), or None if it is not one."""
    if len(chunk) - at < HEADER_BYTES:
        return None
    magic, number, base, length = _HEAD.unpack_from(chunk, at)
    (expected,) = _SUM.unpack_from(chunk, at + _HEAD.size)
    if magic != MAGIC:
        return None
    checksum = zlib.crc32(memoryview(chunk)[at : at + _HEAD.size])
    if length == ROLLED:
        return (number, base, None) if checksum == expected else None
    data = chunk[at + HEADER_BYTES : at + HEADER_BYTES + length]
    if len(data) < length or zlib.crc32(data, checksum) != expected:
        return None
    return number, base, data


def _refuse_damage(fd: int, name: str, broken: int, size: int) -> None:
    """Raise if a frame behind the broken one was written when the broken one was durable already."""
    rest = os.pread(fd, size - broken, broken)
    at = rest.find(MAGIC, 1)
    while at >= 0:
        read = _frame_at(rest, at)
        if read is not None and read[1] > broken:
            raise LogCorrupt(
                name,
                f"byte {broken:,}",
                f"a frame whose checksum does not fit, before entry {read[0]:,}, which is whole",
            )
        at = rest.find(MAGIC, at + 1)
