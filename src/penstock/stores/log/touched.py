"""Which jobs changed since a snapshot: the compactor's machine takes note of each, so that the rest is not written again."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from penstock.core.job import Job, JobId, NewJob, Record
from penstock.core.keys import Keys
from penstock.core.machine import Machine
from penstock.core.ordering import Lane
from penstock.stores.log.packing import PackedLedger, PackedMachine


class TouchedKeys(Keys):
    def __init__(self, touched: set[JobId]) -> None:
        super().__init__()
        self._touched = touched

    def remember(self, asked: NewJob, job_id: JobId, now: datetime) -> None:
        super().remember(asked, job_id, now)
        if asked.idempotency_key is not None:
            self._touched.add(job_id)


class TouchedLedger(PackedLedger):
    """A ledger that knows which jobs were touched since somebody last asked."""

    def __init__(self, tenant: str, lane_class: type[Lane] = Lane) -> None:
        super().__init__(tenant, lane_class)
        self.touched: set[JobId] = set()
        self.keys = TouchedKeys(self.touched)

    def keep(self, old: Job | None, new: Job, now: datetime) -> None:
        self.touched.add(new.id)
        super().keep(old, new, now)

    def note(self, name: str, record: Record, kind: str = "job") -> None:
        if kind == "job":
            self.touched.add(JobId(name))
        super().note(name, record, kind)

    def remove(self, job: Job) -> None:
        self.touched.add(job.id)
        super().remove(job)


class TouchedMachine(PackedMachine):
    """The compactor's machine."""

    ledger_class = TouchedLedger
    ledger: TouchedLedger


def touched_in(machines: Iterable[Machine]) -> dict[str, set[JobId]]:
    """The jobs touched so far, by tenant."""
    return {
        machine.tenant: machine.ledger.touched
        for machine in machines
        if isinstance(machine.ledger, TouchedLedger)
    }
