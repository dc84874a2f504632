"""What all segments of a snapshot have in common: what repeats is said once, how records are told, and the seal."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import fields, replace

from penstock.core.codec import EMPTY_OBJECT, JsonText
from penstock.core.job import Attempt, Change, Job, JobId, LeaseToken, NewJob, Outcome, Record, Status
from penstock.core.schedule import NO_ID
from penstock.stores.log import entry as entries
from penstock.stores.log.entry import original
from penstock.stores.log.errors import LogCorrupt, LogTooNew

FORMAT = 1
BYTES_PER_SEGMENT = 8 * 1_048_576
"""With so many it is closed: a request is broken off after some seconds, so what is too large is never written at all."""
_CRC_BYTES = 4
NOTHING = -1
"""Stands for no time at all, and for the name None."""

Row = TypeVar("Row", bound=Struct)


# ── What repeats ──────────────────────────────────────────────────────────────────────────────────


class Pool:
    """Names, times and requests of one segment, each written once and known by its place; and how much that comes to."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.times: dict[datetime, int] = {}
        self.asked: list[Raw] = []
        self._asked: dict[bytes, int] = {}
        self._size = 0
        """Without names and times: they are short, and there are at most a few for each row."""

    @property
    def is_full(self) -> bool:
        return self._size >= BYTES_PER_SEGMENT

    def row(self, row: Any) -> Raw:
        """A row as it is written."""
        data = encode(row)
        self._size += len(data)
        return Raw(data)

    def name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def time(self, at: datetime | None) -> int:
        return NOTHING if at is None else self.times.setdefault(at, len(self.times))

    def of(self, asked: NewJob) -> int:
        """What was asked for besides what tells one job from the next."""
        common = replace(asked, id=NO_ID, type="", queue="", payload=EMPTY_OBJECT)
        key = encode(common)  # not itself: who asked for 5 and who asked for 5.0 would be the same
        place = self._asked.get(key)
        if place is None:
            place = self._asked[key] = len(self.asked)
            self.asked.append(self.row(_sparse(common)))
        return place


class Known:
    """The same on the way back: everyone who had the same name or time shares one object again."""

    def __init__(self, names: list[str], times: list[datetime], asked: Iterable[Any] = ()) -> None:
        self.names = names
        self.times: list[Any] = [*times, None]  # so that NOTHING finds None
        self._asked = list(asked)

    def asked(self, place: int) -> NewJob:
        # When it is needed: all at once would be a pause, where each job has headers of its own.
        asked: NewJob
        asked = self._asked[place] = original(self._asked[place])
        return asked


# ── Records ───────────────────────────────────────────────────────────────────────────────────────


class AttemptRow(Struct, array_like=True, tag="a", gc=False):
    number: int
    worker: int
    token: str
    started: int
    ended: int
    outcome: Outcome
    status: Status
    run: int
    error: bool | str | None
    """True: the job's own; so is `result`."""
    result: bool | str | None
    logs: str | None


class ChangeRow(Struct, array_like=True, tag="c", gc=False):
    at: int
    verb: int
    actor: int
    reason: str | None
    status: Status | None
    detail: str | None


RecordRow = AttemptRow | ChangeRow


def record_row(record: Record, pool: Pool, job: Job | None = None) -> RecordRow:
    if isinstance(record, Change):
        return ChangeRow(
            pool.time(record.at), pool.name(record.verb), pool.name(record.actor), record.reason, record.status, record.detail
        )  # fmt: skip
    error: bool | str | None = record.error
    result: bool | str | None = record.result
    if job is not None and error is not None and error == job.error:
        error = True
    if job is not None and result is not None and result == job.result:
        result = True
    return AttemptRow(
        record.number, pool.name(record.worker), record.token, pool.time(record.started_at), pool.time(record.ended_at),
        record.outcome, record.status, pool.time(record.run_at), error, result, record.logs,
    )  # fmt: skip


def record_of(row: RecordRow, job_id: JobId, known: Known, job: Job | None = None) -> Record:
    times = known.times
    if isinstance(row, ChangeRow):
        detail = None if row.detail is None else JsonText(row.detail)
        names = known.names
        return Change(times[row.at], names[row.verb], names[row.actor], row.reason, row.status, detail)
    error: Any = row.error if row.error is not True or job is None else job.error
    result: Any = row.result if row.result is not True or job is None else job.result
    return Attempt(
        job_id, row.number, known.names[row.worker], LeaseToken(row.token), times[row.started], times[row.ended],
        row.outcome, row.status, times[row.run], error, result, row.logs,
    )  # fmt: skip


def _sparse(value: Struct) -> dict[str, Any]:
    """A value without what is as it is by default."""
    given = ((one.name, getattr(value, one.name), one.default) for one in _fields(type(value)))
    return {name: value for name, value, default in given if value != default}


@cache
def _fields(of: type[Struct]) -> tuple[Any, ...]:
    return fields(of)


# ── Bytes ─────────────────────────────────────────────────────────────────────────────────────────

encode = msgspec.msgpack.Encoder().encode


class _Sealed(Struct, array_like=True):
    format: int
    body: Raw
    rules: int = 1
    """By which it was made, as entries say it: in a snapshot nothing else tells of them."""


_seal = msgspec.msgpack.Decoder(_Sealed).decode


def sealed(body: Any) -> bytes:
    data = encode((FORMAT, Raw(encode(body)), entries.RULES))
    return data + zlib.crc32(data).to_bytes(_CRC_BYTES, "big")


def opened(data: bytes, of: type[Row]) -> Row:
    body = memoryview(data)[:-_CRC_BYTES]
    if len(data) <= _CRC_BYTES or zlib.crc32(body) != int.from_bytes(data[-_CRC_BYTES:], "big"):
        raise LogCorrupt(
            "a snapshot", f"a segment of {len(data):,} bytes", "it does not have the checksum it ends with"
        )
    sealed = _seal(body)
    if sealed.format > FORMAT:
        raise LogTooNew("a snapshot", sealed.format, FORMAT)
    check_rules("a snapshot", sealed.format, sealed.rules)
    return _decoder(of).decode(sealed.body)  # type: ignore[no-any-return]


@cache
def _decoder(of: type[Struct]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(of)


def check_rules(what: str, format: int, rules: int) -> None:
    """Refuse what was made by rules that we do not know: going on with it by ours would be another state."""
    if rules > entries.RULES:
        raise LogTooNew(what, f"{format} with rules {rules}", f"rules {entries.RULES}")
