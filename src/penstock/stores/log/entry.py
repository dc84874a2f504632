"""What is written: an entry is some calls of the port, as they were asked, and when.

    [format, rules, writer, batch, ts, [[verb, tenant, rows], …]] as MessagePack, and the CRC-32 of that

A row is a command as an array of its fields in their order. Fields may be added at the end of a command, with a default:
older entries lack them, and older readers never see them, because that is a change of RULES. Nothing else may change.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import astuple, fields

from penstock.core.commands import (
    Ack,
    CancelJob,
    ConfigureQueue,
    Discard,
    DropSchedule,
    Fire,
    Heartbeat,
    LeaseJobs,
    Nack,
    PutSchedule,
    RedriveJob,
    Release,
    Snooze,
)
from penstock.core.job import NewJob
from penstock.core.registry import Insight, PutEntry, Spend
from penstock.core.settings import QueueSettings
from penstock.stores.log.errors import LogCorrupt, LogTooNew

FORMAT = 1
"""How an entry is written."""
RULES = 1
"""What is made of it: any change of core.machine that gives another answer to the same calls is a new number here."""

_CRC_BYTES = 4
_encode = msgspec.msgpack.Encoder().encode


class Op(NamedTuple):
    """A call of the port: the verb, whose jobs, and the rest of what was given with it."""

    verb: str
    tenant: str
    given: Sequence[Any]


class Written(NamedTuple):
    """A call and its bytes."""

    op: Op
    data: bytes


class LogEntry(NamedTuple):
    """An entry as it was read."""

    writer: bytes
    batch: int
    ts: datetime
    ops: Sequence[Op]


# ── Rows ──────────────────────────────────────────────────────────────────────────────────────────


def _row(of: type[Struct], **options: Any) -> Any:
    """The same fields as an array, which may end early."""
    given: list[Any] = []
    for field in fields(of):
        if field.default_factory is not msgspec.NODEFAULT:
            given.append((field.name, field.type, msgspec.field(default_factory=field.default_factory)))
        elif field.default is not msgspec.NODEFAULT:
            given.append((field.name, field.type, field.default))
        else:
            given.append((field.name, field.type))
    return msgspec.defstruct(f"{of.__name__}Row", given, array_like=True, frozen=True, gc=False, **options)


class _Rows(NamedTuple):
    """How the commands of a verb are written and read."""

    code: int
    pack: Callable[[Sequence[Any]], Any]
    unpack: Callable[[Raw], Sequence[Any]]


def _commands(code: int, of: type[Struct]) -> _Rows:
    decode = msgspec.msgpack.Decoder(list[_row(of)]).decode  # type: ignore[misc]
    return _Rows(
        code,
        lambda given: [astuple(one) for one in given],
        lambda raw: [of(*astuple(one)) for one in decode(raw)],
    )


def _plain(code: int, type: Any) -> _Rows:
    """What needs no rows of its own."""
    decode = msgspec.msgpack.Decoder(type).decode
    return _Rows(code, lambda given: given, lambda raw: decode(raw))


_SETTLES: dict[str, type[Struct]] = {"a": Ack, "n": Nack, "r": Release, "s": Snooze, "d": Discard}
_SETTLE_TAGS = {of: tag for tag, of in _SETTLES.items()}
_SETTLE_ROWS = {_row(of, tag=tag): of for tag, of in _SETTLES.items()}


def _settles(code: int) -> _Rows:
    rows = tuple(_SETTLE_ROWS)
    union: Any = rows[0]
    for row in rows[1:]:
        union = union | row
    decode = msgspec.msgpack.Decoder(list[union]).decode
    return _Rows(
        code,
        lambda given: [(_SETTLE_TAGS[type(one)], *astuple(one)) for one in given],
        lambda raw: [_SETTLE_ROWS[type(one)](*astuple(one)) for one in decode(raw)],
    )


_SETTINGS = {field.name: msgspec.msgpack.Decoder(field.type).decode for field in fields(QueueSettings)}


class _ConfigureRow(Struct, array_like=True, frozen=True):
    queue: str
    changes: list[tuple[str, Raw]]
    """In the order given: it shows in the audit trail."""
    actor: str
    reason: str | None = None


def _configures(code: int) -> _Rows:
    decode = msgspec.msgpack.Decoder(list[_ConfigureRow]).decode

    def unpack(raw: Raw) -> Sequence[ConfigureQueue]:
        return [
            ConfigureQueue(row.queue, _changes(row.changes), row.actor, row.reason) for row in decode(raw)
        ]

    return _Rows(
        code,
        lambda given: [(one.queue, list(one.changes.items()), one.actor, one.reason) for one in given],
        unpack,
    )


def _changes(given: Iterable[tuple[str, Raw]]) -> Mapping[str, Any]:
    return {name: _SETTINGS[name](value) for name, value in given}


ROWS: dict[str, _Rows] = {
    "enqueue": _commands(1, NewJob),
    "lease": _commands(2, LeaseJobs),
    "heartbeat": _commands(3, Heartbeat),
    "settle": _settles(4),
    "cancel": _commands(5, CancelJob),
    "redrive": _commands(6, RedriveJob),
    "configure": _configures(7),
    "put_schedules": _commands(8, PutSchedule),
    "drop_schedules": _commands(9, DropSchedule),
    "fire": _commands(10, Fire),
    "put_entries": _commands(11, PutEntry),
    "spend": _commands(12, Spend),
    "put_insights": _commands(13, Insight),
    "lead": _plain(14, tuple[str, str, float]),
    "sweep": _plain(15, tuple[int, datetime | None]),
    "tick": _plain(16, tuple[()]),
    "next_at": _plain(17, list[str]),
}
_BY_CODE = {rows.code: (verb, rows.unpack) for verb, rows in ROWS.items()}


# ── Entries ───────────────────────────────────────────────────────────────────────────────────────


def write(verb: str, tenant: str, given: Sequence[Any]) -> Written:
    """A call and its bytes; it is encoded this once."""
    rows = ROWS[verb]
    return Written(Op(verb, tenant, given), _encode((rows.code, tenant, rows.pack(given))))


def entry(writer: bytes, batch: int, ts: datetime, ops: Iterable[bytes]) -> bytes:
    body = _encode((FORMAT, RULES, writer, batch, ts, [Raw(op) for op in ops]))
    return body + zlib.crc32(body).to_bytes(_CRC_BYTES, "big")


class _Head(Struct, array_like=True, frozen=True):
    """What every entry of every version begins with."""

    format: int
    rules: int


class _Body(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    format: int
    rules: int
    writer: bytes
    batch: int
    ts: datetime
    ops: list[tuple[int, str, Raw]]


_head = msgspec.msgpack.Decoder(_Head).decode
_body = msgspec.msgpack.Decoder(_Body).decode


def read(number: int, data: bytes) -> LogEntry:
    """The entry behind the bytes at a number."""
    body, crc = memoryview(data)[:-_CRC_BYTES], data[-_CRC_BYTES:]
    if len(data) <= _CRC_BYTES or zlib.crc32(body) != int.from_bytes(crc, "big"):
        raise LogCorrupt(number, f"its {len(data):,} bytes do not have the checksum that they end with")
    try:
        head = _head(body)
        if head.format > FORMAT:
            raise LogTooNew(number, "format", head.format, FORMAT)
        if head.rules > RULES:
            raise LogTooNew(number, "rules", head.rules, RULES)
        found = _body(body)
        ops = [_op(number, *op) for op in found.ops]
    except (msgspec.DecodeError, ValueError, KeyError) as error:
        raise LogCorrupt(number, f"{type(error).__name__}: {error}") from error
    return LogEntry(found.writer, found.batch, found.ts, ops)


def _op(number: int, code: int, tenant: str, rows: Raw) -> Op:
    known = _BY_CODE.get(code)
    if known is None:
        raise LogCorrupt(number, f"it holds a call {code}, which no version with its rules has")
    verb, unpack = known
    return Op(verb, tenant, unpack(rows))
