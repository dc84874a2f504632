"""What is written: an entry is some calls of the port, as they were asked, and when.

    [format, rules, writer, batch, ts, [[verb, tenant, rows], …]] as MessagePack, and the CRC-32 of that

A row is a command as an array of its fields in their order. Fields may be added at the end of a command, with a default:
older entries lack them, and older readers never see them, because that is a change of RULES. Nothing else may change.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from inspect import isclass
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Raw, Struct
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
from penstock.core.errors import InvalidInput
from penstock.core.job import NewJob
from penstock.core.registry import Insight, PutEntry, Spend
from penstock.core.settings import QueueSettings
from penstock.stores.log.errors import LogCorrupt, LogTooNew

FORMAT = 1
"""How an entry is written."""
RULES = 1
"""What is made of it: any change of core.machine that gives another answer to the same calls is a new number here."""

_CRC_BYTES = 4
_ARRAY = struct.Struct(">BI")
_encode = msgspec.msgpack.Encoder().encode


class Op(Struct, frozen=True):
    """A call of the port: the verb, whose jobs, and the rest of what was given with it."""

    verb: str
    tenant: str
    given: Sequence[Any]


class Written(Struct, frozen=True):
    """A call and its bytes."""

    op: Op
    data: bytes


class LogEntry(Struct, frozen=True):
    """An entry as it was read."""

    writer: bytes
    batch: int
    ts: datetime
    ops: Sequence[Op]


# ── Rows ──────────────────────────────────────────────────────────────────────────────────────────


def twin(of: type[Struct], **options: Any) -> Any:
    """A struct with the same fields, whose numbers stay as they were written.

    Whoever asked applies the call as it was asked, and others as they read it: 10 must not become 10.0 on the way, or
    the fingerprints that they make of it differ.
    """
    given: list[Any] = []
    nested = []
    for place, field in enumerate(fields(of)):
        kept = _kept(field.type)
        if any(isclass(one) and issubclass(one, Struct) for one in (field.type, *get_args(field.type))):
            nested.append(place)
        if field.default_factory is not msgspec.NODEFAULT:
            given.append((field.name, kept, msgspec.field(default_factory=field.default_factory)))
        elif field.default is not msgspec.NODEFAULT:
            given.append((field.name, kept, field.default))
        else:
            given.append((field.name, kept))
    made = msgspec.defstruct(f"{of.__name__}Row", given, frozen=True, gc=False, **options)
    _ORIGINALS[made] = of, tuple(nested)
    return made


_ORIGINALS: dict[type[Struct], tuple[type[Struct], tuple[int, ...]]] = {}
"""By twin: what it stands for, and which of its fields may be twins themselves."""
_Moment = Annotated[datetime, Meta(tz=True)]


def _kept(type: Any) -> Any:
    """A type that takes what a field's type takes, and leaves numbers alone."""
    origin, args = get_origin(type), get_args(type)
    if type is datetime:
        return _Moment
    if type is float or (origin is Annotated and args[0] is float):
        return int | float
    if origin in (Union, UnionType):
        return Union[tuple(_kept(arg) for arg in args)]  # noqa: UP007
    return twin(type) if isclass(type) and issubclass(type, Struct) else type


def original(row: Any) -> Any:
    """The command behind a row."""
    found = _ORIGINALS.get(type(row))
    if found is None:
        return row
    of, nested = found
    if not nested:
        return of(*astuple(row))
    values = list(astuple(row))
    for place in nested:
        values[place] = original(values[place])
    return of(*values)


class _Rows(NamedTuple):
    """How the commands of a verb are written and read."""

    code: int
    pack: Callable[[Sequence[Any]], Any]
    decode: Callable[[bytes | Raw], Any]
    """Whether they can be read shows here."""
    unpack: Callable[[Any], Sequence[Any]]
    """From what was decoded to commands."""


def _commands(code: int, of: type[Struct]) -> _Rows:
    decode = msgspec.msgpack.Decoder(list[twin(of, array_like=True)]).decode  # type: ignore[misc]
    return _Rows(
        code, lambda given: [astuple(one) for one in given], decode, lambda rows: [*map(original, rows)]
    )


def _plain(code: int, type: Any) -> _Rows:
    """What needs no rows of its own."""
    return _Rows(code, lambda given: given, msgspec.msgpack.Decoder(type).decode, lambda given: given)


_SETTLES: dict[str, type[Struct]] = {"a": Ack, "n": Nack, "r": Release, "s": Snooze, "d": Discard}
_SETTLE_TAGS = {of: tag for tag, of in _SETTLES.items()}


def _settles(code: int) -> _Rows:
    rows = tuple(twin(of, array_like=True, tag=tag) for tag, of in _SETTLES.items())
    decode = msgspec.msgpack.Decoder(list[Union[rows]]).decode  # type: ignore[valid-type]  # noqa: UP007
    return _Rows(
        code,
        lambda given: [(_SETTLE_TAGS[type(one)], *astuple(one)) for one in given],
        decode,
        lambda rows: [*map(original, rows)],
    )


_SETTINGS = {field.name: msgspec.msgpack.Decoder(_kept(field.type)).decode for field in fields(QueueSettings)}


class _ConfigureRow(Struct, array_like=True, frozen=True):
    queue: str
    changes: list[tuple[str, Raw]]
    """In the order given: it shows in the audit trail."""
    actor: str
    reason: str | None = None


def _configures(code: int) -> _Rows:
    rows = msgspec.msgpack.Decoder(list[_ConfigureRow]).decode
    return _Rows(
        code,
        lambda given: [(one.queue, list(one.changes.items()), one.actor, one.reason) for one in given],
        lambda raw: [
            ConfigureQueue(row.queue, _changes(row.changes), row.actor, row.reason) for row in rows(raw)
        ],
        lambda given: given,
    )


def _changes(given: Iterable[tuple[str, Raw]]) -> Mapping[str, Any]:
    return {name: original(_SETTINGS[name](value)) for name, value in given}


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
    "lead": _plain(14, tuple[str, str, int | float]),
    "sweep": _plain(15, tuple[int, datetime | None]),
    "tick": _plain(16, tuple[()]),
    "next_at": _plain(17, list[str]),
    "pass_on": _commands(18, Fire),
    "deliver": _commands(19, NewJob),
}
_BY_CODE = {rows.code: (verb, rows) for verb, rows in ROWS.items()}


# ── Entries ───────────────────────────────────────────────────────────────────────────────────────


def write(verb: str, tenant: str, given: Sequence[Any]) -> Written:
    """A call and its bytes; it is encoded this once.

    What nobody could read back is refused: in the log it would stop everyone, for ever. The look costs 0.6 µs.
    """
    rows = ROWS[verb]
    try:
        packed = _encode(rows.pack(given))
        rows.decode(packed)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, KeyError) as error:
        raise InvalidInput(
            f"what is given to {verb}", f"be of the types it takes ({error})", given
        ) from error
    return Written(Op(verb, tenant, given), _encode((rows.code, tenant, Raw(packed))))


def entry(writer: bytes, batch: int, ts: datetime, ops: Iterable[bytes]) -> bytes:
    ops = list(ops)
    # By hand, because what has been encoded is not to be copied one by one: an array of six, of which the last is one too.
    head = _encode((FORMAT, RULES, writer, batch, ts))
    body = b"".join((b"\x96", head[1:], _ARRAY.pack(0xDD, len(ops)), *ops))
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


def read(log: str, number: int, data: bytes) -> LogEntry | None:
    """The entry behind the bytes at a number; None for a filler, which stands where a writer gave up."""
    if not data:
        return None
    where = f"entry {number:,}"
    body, crc = memoryview(data)[:-_CRC_BYTES], data[-_CRC_BYTES:]
    if len(data) <= _CRC_BYTES or zlib.crc32(body) != int.from_bytes(crc, "big"):
        raise LogCorrupt(log, where, f"its {len(data):,} bytes do not have the checksum that they end with")
    try:
        head = _head(body)
        if head.format > FORMAT:
            raise LogTooNew(f"{where} of {log}", head.format, FORMAT)
        if head.rules > RULES:
            raise LogTooNew(f"{where} of {log}", f"{head.format} with rules {head.rules}", f"rules {RULES}")
        found = _body(body)
        ops = [_op(*op) for op in found.ops]
    except (msgspec.DecodeError, ValueError, KeyError) as error:
        raise LogCorrupt(log, where, f"{type(error).__name__}: {error}") from error
    return LogEntry(found.writer, found.batch, found.ts, ops)


def _op(code: int, tenant: str, rows: Raw) -> Op:
    verb, how = _BY_CODE[code]
    return Op(verb, tenant, how.unpack(how.decode(rows)))
