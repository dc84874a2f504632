"""A state as bytes and back: jobs in segments by their ids, the feed and the audit log in runs, the rest as a head.

A segment is MessagePack, never changed once written, and says what repeats only once: names, times, and what jobs were
asked for besides their payload. Restored, a state goes on exactly as the one that was saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from penstock.core.groups import KeyUse
from penstock.core.job import (
    Born,
    Cause,
    Change,
    Job,
    JobId,
    Lease,
    LeaseToken,
    NewJob,
    Record,
    Status,
)
from penstock.core.keys import Request
from penstock.core.machine import Machine
from penstock.core.registry import AuditLine, Entry, Insight
from penstock.core.schedule import Schedule
from penstock.core.settings import QueueSettings
from penstock.stores.log.entry import original, twin
from penstock.stores.log.pooled import (
    ChangeRow,
    Known,
    Pool,
    RecordRow,
    opened,
    record_of,
    record_row,
    sealed,
)
from penstock.stores.log.state import Parts
from penstock.stores.memory import MemoryStore
from penstock.stores.memory_registry import Allowance

_AT_ONCE = 500


def held_by(store: MemoryStore, now: datetime, number: int) -> Parts:
    """What a memory store holds: the same objects, not copies, so that what is restored into them is restored there."""
    return Parts(
        now, number, store._machines, store._entries, store._allowances, store._insights, store._leaders,
        store._new_machine,
    )  # fmt: skip


# ── Jobs ──────────────────────────────────────────────────────────────────────────────────────────


class _LeaseRow(Struct, array_like=True, gc=False):
    token: str
    worker: int
    taken: int
    expires: int
    seconds: int | float


class _JobRow(Struct, array_like=True, gc=False):
    id: str
    type: int
    queue: int
    payload: str
    asked: int
    created: int
    scheduled: int
    status: Status
    run: int
    expires: int
    attempts: int
    leases: int
    lease: _LeaseRow | None
    cancel_requested: bool
    result: str | None
    error: str | None
    cause: Cause | None
    ended: int
    progress: str | None
    trail: list[RecordRow] | None


class _RequestRow(Struct, array_like=True, gc=False):
    key: str
    job_id: str
    fingerprint: str
    until: datetime


_AskedRow = twin(NewJob)


class _Jobs(Struct, array_like=True):
    names: list[str]
    times: list[datetime]
    asked: list[_AskedRow]  # type: ignore[valid-type]
    rows: list[Raw]
    """A few hundred at a time, so that whoever reads them can do other things in between."""
    requests: list[_RequestRow]


def jobs_segment(
    machine: Machine, ids: Iterable[JobId], answered: Mapping[JobId, Mapping[str, Request]]
) -> tuple[int, bytes]:
    """Some jobs of a machine with their trails, and the requests they answered; of how many ids, until it was full.

    A job that has left may have requests that are still answered.
    """
    ledger, pool = machine.ledger, Pool()
    rows: list[Raw] = []
    requests: list[Raw] = []
    taken = 0
    for taken, job_id in enumerate(ids, 1):  # noqa: B007
        job = ledger.jobs.get(job_id)
        if job is not None:
            rows.append(pool.row(_job_row(job, ledger.trails.get(("job", job_id), ()), pool)))
        for key, one in answered.get(job_id, {}).items():
            requests.append(pool.row(_RequestRow(key, one.job_id, one.fingerprint, one.until)))
        if pool.is_full:
            break
    few = [rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE)]
    return taken, sealed((list(pool.names), list(pool.times), pool.asked, few, requests))


def restore_jobs(machine: Machine, data: bytes, now: datetime) -> Iterator[list[Job]]:
    """Take back what `jobs_segment` gave, some at a time; `Ledger.count_waiting` wants them when all are here."""
    segment = opened(data, _Jobs)
    known = Known(segment.names, segment.times, segment.asked)
    ledger = machine.ledger
    for few in segment.rows:
        rows = _rows.decode(few)
        jobs = [_job(row, machine.tenant, known) for row in rows]
        for row, job in zip(rows, jobs, strict=True):
            if row.trail is not None:
                ledger.trails["job", job.id] = [record_of(one, job.id, known, job) for one in row.trail]
        ledger.take_back(jobs, now)
        yield jobs
    for request in segment.requests:
        there = ledger.keys.requests.get(request.key)
        # A segment that was not written anew since may still hold what a later one has replaced, or what has lapsed.
        if request.until > now and (there is None or there.until <= request.until):
            ledger.keys.restore_request(
                request.key, JobId(request.job_id), request.fingerprint, request.until
            )


_rows = msgspec.msgpack.Decoder(list[_JobRow])


def _job(row: _JobRow, tenant: str, known: Known) -> Job:
    names, times, lease = known.names, known.times, row.lease
    asked = known.asked(row.asked)
    asked = replace(asked, id=row.id, type=names[row.type], queue=names[row.queue], payload=row.payload)
    return Job(
        asked, tenant, times[row.created], times[row.scheduled], row.status, times[row.run], times[row.expires],
        row.attempts, row.leases, None if lease is None else _lease(lease, known), row.cancel_requested,
        row.result, row.error, row.cause, times[row.ended], row.progress,  # type: ignore[arg-type]
    )  # fmt: skip


def _job_row(job: Job, trail: Sequence[Record], pool: Pool) -> _JobRow:
    asked, lease = job.asked, job.lease
    return _JobRow(
        asked.id, pool.name(asked.type), pool.name(asked.queue), asked.payload, pool.of(asked),
        pool.time(job.created_at), pool.time(job.scheduled_at), job.status, pool.time(job.run_at), pool.time(job.expires_at),
        job.attempts, job.leases, None if lease is None else _lease_row(lease, pool), job.cancel_requested,
        job.result, job.error, job.cause, pool.time(job.ended_at), job.progress,
        [record_row(record, pool, job) for record in trail] or None,
    )  # fmt: skip


def _lease_row(lease: Lease, pool: Pool) -> _LeaseRow:
    taken, expires = pool.time(lease.taken_at), pool.time(lease.expires_at)
    return _LeaseRow(lease.token, pool.name(lease.worker), taken, expires, lease.seconds)


def _lease(row: _LeaseRow, known: Known) -> Lease:
    times = known.times
    token = LeaseToken(row.token)
    return Lease(token, known.names[row.worker], times[row.taken], times[row.expires], row.seconds)


# ── Feed and audit log ────────────────────────────────────────────────────────────────────────────


class _BornRow(Struct, array_like=True, tag="b", gc=False):
    at: int
    queue: int
    what: int


class _Told(Struct, array_like=True, gc=False):
    kind: int
    name: str
    record: RecordRow | _BornRow


class _Feed(Struct, array_like=True):
    names: list[str]
    times: list[datetime]
    told: list[_Told]


def feed_segment(told: Iterable[tuple[str, str, Record | Born]]) -> tuple[int, bytes]:
    """Some of what happened, in its order; how much, until it was full."""
    pool = Pool()
    rows: list[Raw] = []
    for kind, name, one in told:
        record = (
            _BornRow(pool.time(one.at), pool.name(one.queue), pool.name(one.type))
            if isinstance(one, Born)
            else record_row(one, pool)
        )
        rows.append(pool.row(_Told(pool.name(kind), name, record)))
        if pool.is_full:
            break
    return len(rows), sealed((list(pool.names), list(pool.times), rows))


def restore_feed(machine: Machine, data: bytes) -> Iterator[None]:
    """Take back what `feed_segment` gave, some at a time, in the same order; the oldest leave as they always do."""
    segment = opened(data, _Feed)
    known = Known(segment.names, segment.times)
    names, times = known.names, known.times
    for place, one in enumerate(segment.told, 1):
        row = one.record
        told = (
            Born(times[row.at], names[row.queue], names[row.what])
            if isinstance(row, _BornRow)
            else record_of(row, JobId(one.name), known)
        )
        machine.ledger.told.append((names[one.kind], one.name, told))
        if place % _AT_ONCE == 0:
            yield


class _AuditRow(Struct, array_like=True, gc=False):
    number: int
    kind: int
    name: str
    change: ChangeRow


class _Audit(Struct, array_like=True):
    names: list[str]
    times: list[datetime]
    lines: list[_AuditRow]


def audit_segment(audited: Iterable[tuple[int, AuditLine]]) -> tuple[int, bytes]:
    """Some lines of the audit log; how many, until it was full."""
    pool = Pool()
    rows: list[Raw] = []
    for number, line in audited:
        change = record_row(line.change, pool)
        rows.append(pool.row((number, pool.name(line.kind), line.name, change)))
        if pool.is_full:
            break
    return len(rows), sealed((list(pool.names), list(pool.times), rows))


def restore_audit(machine: Machine, data: bytes) -> Iterator[None]:
    segment = opened(data, _Audit)
    known = Known(segment.names, segment.times)
    for place, row in enumerate(segment.lines, 1):
        change = record_of(row.change, JobId(row.name), known)
        assert isinstance(change, Change)
        machine.ledger.audited.append((row.number, AuditLine(known.names[row.kind], row.name, change)))
        if place % _AT_ONCE == 0:
            yield


# ── The rest ──────────────────────────────────────────────────────────────────────────────────────


_SettingsRow, _ScheduleRow, _AllowanceRow = twin(QueueSettings), twin(Schedule), twin(Allowance)


class _LaneRow(Struct, array_like=True):
    name: str
    settings: _SettingsRow  # type: ignore[valid-type]
    full_until: datetime | None
    turn: int
    keys: list[tuple[str | None, int, datetime | None]]


class _TenantRow(Struct, array_like=True):
    name: str
    lanes: list[_LaneRow]
    """In the order in which they were first used: a sweep goes by it."""
    schedules: list[_ScheduleRow]  # type: ignore[valid-type]
    trails: list[tuple[str, str, list[RecordRow]]]
    told_count: int


class _Head(Struct, array_like=True):
    now: datetime
    number: int
    names: list[str]
    times: list[datetime]
    tenants: list[_TenantRow]
    entries: list[Entry]
    allowances: list[tuple[str, str, _AllowanceRow]]  # type: ignore[valid-type]
    insights: list[Insight]
    offices: list[tuple[str, str, datetime]]
    name: str
    writers: list[tuple[bytes, int]]


def head_segment(parts: Parts) -> bytes:
    """All that is neither a job nor told in order."""
    pool = Pool()
    tenants = [_tenant_row(name, machine, pool) for name, machine in parts.machines.items()]
    return sealed(
        (
            parts.now, parts.number, list(pool.names), list(pool.times), tenants,
            [entry for here in parts.entries.values() for entry in here.values()],
            [(tenant, name, one) for (tenant, name), one in parts.allowances.items()],
            list(parts.insights.values()),
            [(office, holder, until) for office, (holder, until) in parts.offices.items()],
            parts.name,
            list(parts.writers.items()),
        )
    )  # fmt: skip


def restore_head(parts: Parts, data: bytes) -> None:
    """Take back what `head_segment` gave, into parts that hold nothing yet."""
    head = opened(data, _Head)
    known = Known(head.names, head.times)
    parts.now, parts.number, parts.name = head.now, head.number, head.name
    parts.writers.update(head.writers)
    for tenant in head.tenants:
        machine = parts.machines[tenant.name] = parts.new_machine(tenant.name)
        ledger = machine.ledger
        for row in tenant.lanes:
            lane = ledger.lane(row.name)
            lane.settings = original(row.settings)
            keys = {key: KeyUse(0, turn, full_until) for key, turn, full_until in row.keys}
            lane.recall(row.full_until, row.turn, keys)
        machine.restore_schedules([*map(original, tenant.schedules)])
        for kind, name, records in tenant.trails:
            ledger.trails[kind, name] = [record_of(one, JobId(name), known) for one in records]
        ledger.told_count = tenant.told_count
    for entry in head.entries:
        parts.entries.setdefault((entry.kind, entry.name), {})[entry.tenant] = entry
    parts.allowances.update({(tenant, name): original(one) for tenant, name, one in head.allowances})
    parts.insights.update({(one.tenant, one.name): one for one in head.insights})
    parts.offices.update({office: (holder, until) for office, holder, until in head.offices})


def _tenant_row(name: str, machine: Machine, pool: Pool) -> _TenantRow:
    ledger = machine.ledger
    trails = [
        (kind, subject, [record_row(record, pool) for record in records])
        for (kind, subject), records in ledger.trails.items()
        if kind != "job" or JobId(subject) not in ledger.jobs
    ]
    return _TenantRow(name, list(_lane_rows(machine)), machine.schedules(), trails, ledger.told_count)


def _lane_rows(machine: Machine) -> Iterator[_LaneRow]:
    for name, lane in machine.ledger.lanes.items():
        full_until, turn, uses = lane.used()
        keys = [(key, use.turn, use.full_until) for key, use in uses.items() if use.turn or use.full_until]
        yield _LaneRow(name, lane.settings, full_until, turn, keys)
