"""What truly happened: the facts that each entry brought about, for the lake.

The log holds what was asked, and much of that came to nothing. So facts are taken from the ledgers' own `told` while
entries are applied, and each is known by its place: the number of the entry, and how many of its tenant's came before in it.
Whoever applies the same entries gathers the same facts. The compactor writes them down as Parquet:

    <shard>/hist/<a>-<b>-<random>.parquet    the facts of entries a to b, never changed
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from importlib.util import find_spec
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import fields

from penstock.core import promises
from penstock.core.job import Attempt, Born, Change, Job, JobId, Record, Status
from penstock.core.ledger import MOST_TOLD
from penstock.core.lifecycle import Verb
from penstock.core.machine import Machine
from penstock.core.ordering import Lane
from penstock.core.promises import LAKE, Promise
from penstock.stores.log.state import Parts
from penstock.stores.log.touched import TouchedLedger, TouchedMachine
from penstock.stores.postgres.rows import to_options

_OVER = (Status.DEAD, Status.HELD, Status.CANCELLED)


class Fact(Struct, frozen=True, gc=False):
    """A row of the lake's `events`, as `penstock.lake.tables` says it, without the day."""

    tenant: str
    xid: int
    """The number of the entry."""
    seq: int
    kind: str
    occurred_at: datetime
    job_id: str | None = None
    queue: str | None = None
    type: str | None = None
    priority: int | None = None
    key: str | None = None
    schedule: str | None = None
    created_at: datetime | None = None
    scheduled_at: datetime | None = None
    run_at: datetime | None = None
    options: str | None = None
    attempt: int | None = None
    ready_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    worker: str | None = None
    outcome: str | None = None
    status: str | None = None
    error: str | None = None
    name: str | None = None
    verb: str | None = None
    actor: str | None = None
    reason: str | None = None
    detail: str | None = None


COLUMNS = tuple(field.name for field in fields(Fact))


# ── Gathering ─────────────────────────────────────────────────────────────────────────────────────


class ToldLedger(TouchedLedger):
    """A ledger whose `told` is taken note of before it is forgotten."""

    def __init__(self, tenant: str, lane_class: type[Lane] = Lane) -> None:
        super().__init__(tenant, lane_class)
        self.facts: Facts | None = None
        self.gathered = 0
        """How much of what was told has become facts."""
        self.begun = 0
        """How much had been told before the entry that is applied."""

    def note(self, name: str, record: Record, kind: str = "job") -> None:
        super().note(name, record, kind)
        self._stir()

    def keep(self, old: Job | None, new: Job, now: datetime) -> None:
        super().keep(old, new, now)
        if old is None:
            self._stir()
        if self.facts is not None and self.told_count - self.gathered > MOST_TOLD // 2:
            self.facts.gather(self)

    def remove(self, job: Job) -> None:
        if self.facts is not None and self.told_count > self.gathered:
            self.facts.gather(self)  # they say what job it was
        super().remove(job)

    def _stir(self) -> None:
        if self.facts is not None:
            self.facts.stirred[self.tenant] = self


class ToldMachine(TouchedMachine):
    ledger_class = ToldLedger
    ledger: ToldLedger


class Facts:
    """Gathers facts while a state is advanced: `machine` makes its machines, `begin` tells of each entry, `end` ends it."""

    def __init__(self) -> None:
        self.rows: list[Fact] = []
        self.stirred: dict[str, ToldLedger] = {}
        self._number = 0

    def machine(self, tenant: str) -> Machine:
        machine = ToldMachine(tenant)
        machine.ledger.facts = self
        return machine

    def follow(self, parts: Parts) -> None:
        """Go on from a snapshot: what was told before it is not gathered again."""
        for machine in parts.machines.values():
            ledger = machine.ledger
            assert isinstance(ledger, ToldLedger)
            ledger.gathered = ledger.begun = ledger.told_count

    def begin(self, number: int) -> None:
        self._number = number

    def end(self) -> None:
        for ledger in self.stirred.values():
            self.gather(ledger)
            ledger.begun = ledger.told_count
        self.stirred.clear()

    def gather(self, ledger: ToldLedger) -> None:
        """Make facts of what a ledger has told since."""
        first = ledger.told_count - len(ledger.told)
        for place, (kind, name, told) in enumerate(
            islice(ledger.told, ledger.gathered - first, None), ledger.gathered
        ):
            self.rows.append(_fact(ledger, self._number, place - ledger.begun, kind, name, told))
        ledger.gathered = ledger.told_count


def _fact(ledger: ToldLedger, xid: int, seq: int, kind: str, name: str, told: Record | Born) -> Fact:
    job = ledger.jobs.get(JobId(name)) if kind == "job" else None
    of_job: dict[str, Any] = {} if job is None else _of_job(job)
    if isinstance(told, Born):
        assert job is not None
        asked = job.asked
        return Fact(
            ledger.tenant, xid, seq, "job", told.at, **of_job, run_at=asked.run_at, options=to_options(asked)
        )
    if isinstance(told, Attempt):
        ready_at = None if job is None else ready(job, told, ledger.trails.get(("job", name), ()))
        return Fact(
            ledger.tenant, xid, seq, "attempt", told.ended_at, **(of_job or {"job_id": name}), run_at=told.run_at,
            attempt=told.number, ready_at=ready_at, started_at=told.started_at, ended_at=told.ended_at,
            worker=told.worker, outcome=str(told.outcome), status=str(told.status), error=told.error,
        )  # fmt: skip
    if kind != "job":
        of_job = {kind: name} if kind in ("queue", "schedule") else {}
    return Fact(
        ledger.tenant, xid, seq, "change", told.at, **(of_job or ({"job_id": name} if kind == "job" else {})),
        status=None if told.status is None else str(told.status), name=name, verb=str(told.verb), actor=told.actor,
        reason=told.reason, detail=told.detail,
    )  # fmt: skip


def _of_job(job: Job) -> dict[str, Any]:
    asked = job.asked
    return {
        "job_id": asked.id, "queue": asked.queue, "type": asked.type, "priority": asked.priority, "key": asked.key,
        "schedule": asked.schedule, "created_at": job.created_at, "scheduled_at": job.scheduled_at,
    }  # fmt: skip


def ready(job: Job, attempt: Attempt, trail: Sequence[Record]) -> datetime:
    """When an attempt could have begun: see the same in `penstock.lake.source.queries`."""
    before: Attempt | None = None
    brought_back: datetime | None = None
    unblocked: datetime | None = None
    for record in trail:
        if isinstance(record, Attempt):
            if record.number == attempt.number - 1:
                before = record
        elif record.at <= attempt.started_at:
            if record.verb == Verb.REDRIVE:
                brought_back = max(brought_back or record.at, record.at)
            elif record.verb == Verb.UNBLOCK and job.asked.parents:
                unblocked = max(unblocked or record.at, record.at)
    at = job.scheduled_at if before is None else before.run_at
    if before is not None and before.status in _OVER and brought_back is not None:
        at = brought_back
    return max(moment for moment in (job.created_at, at, unblocked) if moment is not None)


# ── What the lake has promised ────────────────────────────────────────────────────────────────────


def promised(parts: Parts) -> list[Promise]:
    """The promises that hold, of lakes that follow this log."""
    entries = (entry for (kind, _), here in parts.entries.items() if kind == LAKE for entry in here.values())
    return promises.kept(promises.read(entries))


def read_until(parts: Parts, promise: Promise) -> int:
    """The last entry that a lake has read; none as long as it has not said so of this very log."""
    if promise.offset.get("feed") != parts.name:
        return 0
    return max(0, int(promise.offset.get("xid", 0)) - 1)


# ── As Parquet ────────────────────────────────────────────────────────────────────────────────────


def is_possible() -> bool:
    """Whether there is something here to write Parquet with."""
    return find_spec("pyarrow") is not None


def schema() -> Any:
    import pyarrow as pa

    kinds = {"xid": pa.int64(), "seq": pa.int64(), "priority": pa.int32(), "attempt": pa.int32()}
    moment = pa.timestamp("us", tz="UTC")
    return pa.schema(
        [(name, moment if name.endswith("_at") else kinds.get(name, pa.string())) for name in COLUMNS]
    )


def table(facts: Iterable[Fact]) -> Any:
    import pyarrow as pa

    rows = list(facts)
    return pa.table(
        {field.name: pa.array([getattr(row, field.name) for row in rows], field.type) for field in schema()},
        schema=schema(),
    )


def encoded(facts: Any) -> bytes:
    """A table of facts as a file."""
    import pyarrow.parquet as pq

    made = io.BytesIO()
    pq.write_table(facts, made, compression="zstd")
    return made.getvalue()


def decoded(data: bytes) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # In this thread alone: one of Arrow's that lets go of our bytes while the interpreter ends takes the process down.
    return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False).cast(schema())


def joined(tables: Sequence[Any]) -> Any:
    import pyarrow as pa

    return pa.concat_tables(tables)


def attempts(machine: Machine) -> Iterator[tuple[Job, Attempt, datetime]]:
    """The attempts of all jobs that are there, with when each could have begun."""
    for (kind, name), trail in machine.ledger.trails.items():
        job = machine.ledger.jobs.get(JobId(name)) if kind == "job" else None
        if job is not None:
            for record in trail:
                if not isinstance(record, Change):
                    yield job, record, ready(job, record, trail)
