"""Jobs that wait, held in less room: most differ in nothing but id, payload and time.

A log is held in memory as a whole, and what it mostly holds is jobs that nobody has touched since they came in. Of such a
job only what sets it apart is kept; it is put together again whenever somebody looks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.codec import EMPTY_OBJECT, JsonText
from penstock.core.job import Job, JobId, NewJob, Status
from penstock.core.ledger import Ledger
from penstock.core.machine import Machine
from penstock.core.ordering import Lane
from penstock.core.schedule import NO_ID

MOST_SHARED = 10_000
"""Ways to ask for a job that are remembered, to be shared by the next one that is asked for so."""
FRESH = 1_000
"""So many of the newest jobs are held as they are: one that is leased soon would be packed for nothing."""


_item, _get = dict.__getitem__, dict.get
"""Without `super()`, which takes as long again: they are asked many times for each job."""


class Untouched(Struct, frozen=True, gc=False):
    """A queued job that was never leased."""

    asked: NewJob
    """Without id and payload, and shared by all that have the rest in common."""
    payload: JsonText
    created_at: datetime
    scheduled_at: datetime
    run_at: datetime


class PackedJobs(dict[JobId, Job]):
    """Jobs by id, of which some are packed. What is asked for is always a whole job."""

    def __init__(self, tenant: str) -> None:
        super().__init__()
        self._tenant = tenant
        self._shared: dict[tuple[NewJob, str], NewJob] = {}

    def __getitem__(self, job_id: JobId) -> Job:
        held: Any = _item(self, job_id)
        return held if type(held) is Job else self._whole(job_id, held)

    def get(self, job_id: JobId, default: Any = None) -> Any:
        held: Any = _get(self, job_id, default)
        return self._whole(job_id, held) if type(held) is Untouched else held

    def values(self) -> Any:
        return [self[job_id] for job_id in self]

    def items(self) -> Any:
        return [(job_id, self[job_id]) for job_id in self]

    def pack(self, job: Job) -> None:
        """Hold a job that is here in less room, if it is as it came in."""
        if job != Job(job.asked, self._tenant, job.created_at, job.scheduled_at, Status.QUEUED, job.run_at):
            return
        common = replace(job.asked, id=NO_ID, payload=EMPTY_OBJECT)
        # As it is told, too: 5 equals 5.0, and who asked for the one is not to be shown the other.
        told = "" if common.retry is None else repr(common.retry)
        shared = self._shared.get((common, told))
        if shared is None:
            if len(self._shared) >= MOST_SHARED:
                self._shared.clear()
            shared = self._shared[common, told] = common
        packed: Any = Untouched(shared, job.payload, job.created_at, job.scheduled_at, job.run_at)
        super().__setitem__(job.asked.id, packed)

    def _whole(self, job_id: JobId, held: Untouched) -> Job:
        asked = replace(held.asked, id=job_id, payload=held.payload)
        return Job(asked, self._tenant, held.created_at, held.scheduled_at, Status.QUEUED, held.run_at)


class PackedLedger(Ledger):
    jobs: PackedJobs

    def __init__(self, tenant: str, lane_class: type[Lane] = Lane) -> None:
        super().__init__(tenant, lane_class, PackedJobs(tenant))
        self._fresh: deque[JobId] = deque()

    def keep(self, old: Job | None, new: Job, now: datetime) -> None:
        super().keep(old, new, now)
        if old is None and new.status is Status.QUEUED:
            self._fresh.append(new.id)
            if len(self._fresh) > FRESH:
                self._pack(self._fresh.popleft())

    def _pack(self, job_id: JobId) -> None:
        job = self.jobs.get(job_id)
        if job is not None:
            self.jobs.pack(job)

    def take_back(self, jobs: Sequence[Job], now: datetime) -> None:
        super().take_back(jobs, now)
        for job in jobs:
            if job.status is Status.QUEUED and not job.leases:
                self.jobs.pack(job)


class PackedMachine(Machine):
    """A machine for many jobs that wait."""

    ledger_class = PackedLedger
    ledger: PackedLedger
