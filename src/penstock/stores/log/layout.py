"""How a place for logs is laid out: how many there are, and which of them a queue is in."""

from __future__ import annotations

import logging
import re
from hashlib import blake2b
from uuid import uuid4

import msgspec
from msgspec import Struct

from penstock.core.job import LeaseToken
from penstock.stores.log.backings import Backing, Objects
from penstock.stores.log.errors import LogCorrupt, LogTooNew, NotALog, ShardsDiffer
from penstock.stores.log.options import MOST_SHARDS

logger = logging.getLogger(__name__)

FORMAT_KEY = "FORMAT"
FORMAT = 1
OURS = (FORMAT_KEY, "PROBED", "probe", "clock")
"""What may stand beside the logs before there is a FORMAT."""
_LOG = re.compile("s[0-9]{2}")
MARK_BYTES = 2
"""Of the number of its log a lease token begins with."""


class Format(Struct, frozen=True):
    """What a place for logs is, written once: whoever opens it later goes by it."""

    fmt: int
    id: str
    shards: int


def shard_name(number: int) -> str:
    return f"s{number:02d}"


def shard_of(tenant: str, queue: str, shards: int) -> int:
    """The log of a queue: for ever the same, in every process."""
    partition, _, _ = queue.partition("/")
    digest = blake2b(f"{tenant}\n{partition}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % shards


def shard_of_token(token: LeaseToken, shards: int) -> int:
    """The log that gave a token; the first for one that none can have given."""
    try:
        number = int(token[: 2 * MARK_BYTES], 16)
    except ValueError:
        return 0
    return number if number < shards else 0


async def laid_out(backing: Backing, shards: int | None = None) -> Format:
    """What a place is, which one that is new becomes. Another number of logs than it has is refused."""
    there = await backing.objects.get(FORMAT_KEY) or await _made(backing, shards)
    return _as_asked(backing, _read_format(backing.name, there), shards)


async def found_layout(backing: Backing, shards: int | None = None) -> Format | None:
    """What a place is, for one who only looks; None if nothing is there yet. What is no log, or has lost its FORMAT, is refused."""
    there = await backing.objects.get(FORMAT_KEY)
    if there is None:
        await _check_unused(backing)
        return None
    return _as_asked(backing, _read_format(backing.name, there), shards)


def _as_asked(backing: Backing, found: Format, shards: int | None) -> Format:
    if shards is not None and shards != found.shards:
        raise ShardsDiffer(backing.name, found.shards, shards)
    return found


async def _made(backing: Backing, shards: int | None) -> bytes:
    """The FORMAT of a new place: ours, or that of who was first."""
    await _check_unused(backing)
    await backing.ready()
    new = msgspec.json.encode(Format(FORMAT, uuid4().hex, shards or 1))
    if not await backing.objects.create(FORMAT_KEY, new):
        return await backing.objects.get(FORMAT_KEY) or b""
    logger.info("made a store in %s", backing.name)  # it may be mistyped, and would look like an empty one
    return new


async def _check_unused(backing: Backing) -> None:
    """Refuse a place in which there is anything but a FORMAT."""
    names = [name for name in await _top(backing.objects) if name not in OURS]
    if names and not await backing.objects.get(FORMAT_KEY):  # else somebody made it while we looked
        if not _LOG.fullmatch(names[0]):
            raise NotALog(backing.name, names[0])
        raise LogCorrupt(backing.name, FORMAT_KEY, f"it is missing or empty, and there is a log {names[0]}")


def _read_format(name: str, data: bytes) -> Format:
    class Head(Struct):
        fmt: int

    try:
        if (fmt := msgspec.json.decode(data, type=Head).fmt) > FORMAT:
            raise LogTooNew(f"{name}/{FORMAT_KEY}", fmt, FORMAT)
        found = msgspec.json.decode(data, type=Format)
    except msgspec.DecodeError as error:
        raise LogCorrupt(name, FORMAT_KEY, str(error)) from None
    if not 1 <= found.shards <= MOST_SHARDS:
        raise LogCorrupt(name, FORMAT_KEY, f"it says {found.shards} logs")
    return found


async def _top(objects: Objects) -> list[str]:
    """The first few names in a place."""
    names: list[str] = []
    after = ""
    while len(names) <= len(OURS) + 1 and (found := await objects.list("", after=after, most=1)):
        names.append(found[0].key.partition("/")[0])
        after = f"{names[-1]}/\U0010ffff" if "/" in found[0].key else names[-1]
    return names
