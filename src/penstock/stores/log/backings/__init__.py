"""What a log is kept in: numbered entries on a tape, and named objects beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from penstock.core.errors import InvalidInput, UnknownStore
from penstock.stores.log.options import NAMES, read_options

BUCKETS = {"s3", "gs", "az"}
KNOWN = "file:///path, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix and memory+log://name"


class Found(msgspec.Struct, frozen=True):
    """An object as a listing tells of it; `modified` is by the store's clock."""

    key: str
    size: int
    modified: datetime


class Objects(Protocol):
    """A bucket or a folder. Keys are /-separated; no part begins with a dot."""

    async def create(self, key: str, data: bytes) -> bool:
        """Put if absent: of several writers of one key exactly one succeeds.

        True: these very bytes are there now (one's own lost replies are resolved by reading back). False:
        somebody else's are. OutcomeUnknown: neither could be learned before the deadline.
        """
        ...

    async def get(self, key: str) -> bytes | None: ...

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Part of an object; less than `length` at its end. KeyError if it is not there."""
        ...

    async def head(self, key: str) -> Found | None: ...

    async def read(self, key: str) -> tuple[bytes, str] | None:
        """The bytes, and the version that `replace` asks for."""
        ...

    async def replace(self, key: str, data: bytes, version: str | None) -> str | None:
        """Put if unchanged since `version` (None: if absent). The new version, or None: another was first.

        After a lost reply None may also mean that ours was there and has been replaced since: read again.
        """
        ...

    async def list(self, prefix: str, *, after: str = "", most: int | None = None) -> list[Found]:
        """What is below a folder, sorted by key; only keys greater than `after`, and the first `most` of them."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Absent ones are fine."""
        ...

    async def now(self) -> datetime:
        """The store's clock, estimated."""
        ...

    async def close(self) -> None: ...


class Tape(Protocol):
    """One log: immutable entries numbered 1, 2, 3, … without gaps. An entry of b"" is a filler that means nothing."""

    async def append(self, data: bytes) -> int:
        """Durable at the number answered, and all numbers below are taken.

        Failure is never reported while the outcome is open; after a deadline it is OutcomeUnknown.
        """
        ...

    async def read(self, after: int, most: int = 1000) -> list[tuple[int, bytes]]:
        """What follows a number, in order, without gaps; [] only at the end. Truncated if it was deleted."""
        ...

    def ended(self, number: int, since: float) -> bool:
        """Whether a read has asked, after a time (by `time.monotonic`), what follows a number, and nothing did."""
        return False

    async def last(self) -> int:
        """The highest number up to which all are known to be taken (0: none). It may ask the store."""
        ...

    async def truncate(self, until: int) -> None:
        """Numbers up to this one may be deleted. For the compactor alone, after it has published the watermark."""
        ...

    async def close(self) -> None: ...


class Backing(Protocol):
    """One place for logs. What it opened is closed with it."""

    @property
    def name(self) -> str:
        """As errors and logs may show it: without credentials."""
        ...

    @property
    def objects(self) -> Objects: ...

    @property
    def requests(self) -> Counter[str]:
        """How often it was asked since it was opened, by kind: put, get, list, delete."""
        ...

    def tape(self, name: str) -> Tape:
        """The log of this name; the same one each time."""
        ...

    async def ready(self) -> None:
        """Check, once in a store's life, that it keeps what it promises; StoreNotConditional if not."""
        ...

    async def close(self) -> None: ...


def open_backing(url: str) -> Backing:
    """The backing a URL names, whatever it says of its use. Nothing is touched before that."""
    _check_credentials(url)
    url, _ = read_options(url)
    parts = urlsplit(url)
    if parts.query and parts.scheme in {"file", "memory+log"}:
        raise InvalidInput("url", f"have no options but {', '.join(NAMES)}", parts.query.partition("=")[0])
    match parts.scheme:
        case "memory+log":
            from penstock.stores.log.backings.memory import shared

            return shared(parts.netloc + parts.path)
        case "file":
            from penstock.stores.log.backings.files import FileBacking

            if parts.netloc not in {"", "localhost"}:
                raise InvalidInput("url", "be file:///absolute/path or file:./relative", "file://…")
            # Absolute from here on: a program may go to another folder, and an error names this one.
            return FileBacking(Path(unquote(parts.path)).absolute())
        case "s3" | "gs" | "az":
            try:
                from penstock.stores.log.backings.objects import bucket
            except ModuleNotFoundError as error:
                raise UnknownStore(
                    url, f'{KNOWN}; buckets need pip install "penstock[object]" ({error})'
                ) from None
            return bucket(url)
        case _:
            raise UnknownStore(url, KNOWN)


def _check_credentials(url: str) -> None:
    """Refuse a URL whose credentials are cut in two by a character in them: what is left of them would be shown as a name."""
    try:
        parts = urlsplit(url)
        is_cut = parts.scheme in BUCKETS and (
            ":" in parts.netloc.rpartition("@")[2]
            or ":" in parts.path.rpartition("@")[0]
            or "@" in unquote(parts.query)
        )
        if parts.fragment:  # it may be a part of a password, and what is before it the name of another place
            raise InvalidInput("url", "have no #; write %23", "…#…")
    except ValueError:  # its message would repeat them, too
        is_cut = True
    if is_cut:
        raise InvalidInput(
            "url",
            "name a bucket, which has no colon, and have no @ behind it; leave credentials to the environment, or write"
            " %2F, %3F and %5B for /, ? and [ in them",
            url.partition(":")[0] + "://…",
        )


def checked_key(key: str) -> str:
    """A key that means the same in a folder and in a bucket."""
    if not key or any(
        not part or part.startswith(".") or "\\" in part or "\0" in part for part in key.split("/")
    ):
        raise InvalidInput("key", "be parts joined by /, none empty or beginning with a dot", key)
    return key


def checked_tape(name: str) -> str:
    """The name of a tape: one part of a key."""
    if "/" in checked_key(name):
        raise InvalidInput("tape", "be one part of a key", name)
    return name
