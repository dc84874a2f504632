"""What a worker and its child processes tell each other: msgpack, each message behind its length."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from penstock.core import bounds
from penstock.core.codec import JsonText
from penstock.core.commands import Leased
from penstock.worker.execution import Ending

HEAD = 4
"""Bytes of length before each message, big-endian."""
LONGEST = bounds.RESULT_BYTES + 8 * (bounds.LOG_CHARS + bounds.ERROR_CHARS) + 65_536
"""The most bytes a child may say at once; one that announces more is not one of ours any more."""

# ── To the child ──────────────────────────────────────────────────────────────────────────────────


class Prepare(Struct, frozen=True, tag=True):
    """What a child must know before its first job. Its sys.path comes even before this, see `children.BOOT`."""

    argv: list[str]
    main_name: str | None
    main_path: str | None
    levels: dict[str, int]
    """The levels of the worker's loggers, so that the child makes the records the worker would make."""
    disabled: int
    memory_mb: int | None


class Run(Struct, frozen=True, tag=True):
    """Run this job with the handler of that name."""

    module: str
    qualname: str
    leased: Leased


# ── From the child ────────────────────────────────────────────────────────────────────────────────


class Begun(Struct, frozen=True, tag=True):
    """The job has been taken up: from here on it may have done something."""


class Progress(Struct, frozen=True, tag=True):
    value: JsonText


class Logged(Struct, frozen=True, tag=True):
    """A log record, with its message and traceback as text."""

    logger: str
    level: int
    text: str
    at: float
    path: str
    line: int
    function: str


class Ended(Struct, frozen=True, tag=True):
    ending: Ending
    fit: bool = True
    """Whether the child can be trusted with another job."""


ToChild = Prepare | Run
FromChild = Begun | Progress | Logged | Ended

to_child: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild)
from_child: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild)

_Message = TypeVar("_Message")


def framed(message: ToChild | FromChild) -> bytes:
    return behind_length(msgspec.msgpack.encode(message))


def behind_length(body: bytes) -> bytes:
    return len(body).to_bytes(HEAD, "big") + body


class Noise(Exception):
    """What came is not a message, and what comes after it cannot be told from noise. Hang up."""


class Unframed(Generic[_Message]):
    """Makes messages out of bytes as they come."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[_Message], longest: int | None = None) -> None:
        self._decoder = decoder
        self._longest = longest
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[_Message]:
        """The messages that are whole with this. Raises Noise."""
        self._bytes += data
        messages: list[_Message] = []
        start = 0
        while len(self._bytes) - start >= HEAD:
            size = int.from_bytes(self._bytes[start : start + HEAD], "big")
            if self._longest is not None and size > self._longest:
                raise Noise(f"a message of {size:,} bytes")
            if len(self._bytes) - start - HEAD < size:
                break
            body = bytes(self._bytes[start + HEAD : start + HEAD + size])
            try:
                messages.append(self._decoder.decode(body))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise Noise(str(error)) from None
            start += HEAD + size
        del self._bytes[:start]
        return messages
