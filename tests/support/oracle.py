"""The order of leasing said as plainly as possible: look at every job, keep those that may run, take the first.

It shares no index with the machine, so it catches what heaps, maps and lazy clean-up can get wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from penstock.core.job import Job, JobId, Status
from penstock.core.limits import Rate
from penstock.core.settings import QueueSettings


@dataclass
class Used:
    """What leases have used up of one queue: its rates and the turns of its keys."""

    queue_full_until: datetime | None = None
    key_full_until: dict[str | None, datetime] = field(default_factory=dict)
    turns: dict[str | None, int] = field(default_factory=dict)
    turn: int = 0

    def lease(self, key: str | None, settings: QueueSettings, now: datetime) -> None:
        if settings.rate is not None:
            self.queue_full_until = settings.rate.use(self.queue_full_until, now)
        if settings.rate_per_key is not None and key is not None:
            self.key_full_until[key] = settings.rate_per_key.use(self.key_full_until.get(key), now)
        if settings.fair:
            self.turn += 1
            self.turns[key] = self.turn

    def configure(self, before: QueueSettings, after: QueueSettings) -> None:
        """A rate that is set anew starts anew."""
        if before.rate != after.rate:
            self.queue_full_until = None
        if before.rate_per_key != after.rate_per_key:
            self.key_full_until.clear()

    def copy(self) -> Used:
        return Used(self.queue_full_until, dict(self.key_full_until), dict(self.turns), self.turn)


def next_jobs(
    jobs: Iterable[Job], settings: QueueSettings, used: Used, limit: int, now: datetime
) -> list[JobId]:
    """What a lease of up to `limit` jobs of this queue should take now, in order."""
    jobs, used, chosen = list(jobs), used.copy(), list[Job]()
    while len(chosen) < limit:
        candidates = [
            job for job in jobs if job not in chosen and may_run(job, jobs, chosen, settings, used, now)
        ]
        if not candidates:
            break
        first = min(
            candidates,
            key=lambda job: (
                -job.priority,
                used.turns.get(job.asked.key, 0) if settings.fair else 0,
                job.run_at,
                job.id,
            ),
        )
        chosen.append(first)
        used.lease(first.asked.key, settings, now)
    return [job.id for job in chosen]


def may_run(
    job: Job, jobs: list[Job], chosen: list[Job], settings: QueueSettings, used: Used, now: datetime
) -> bool:
    if settings.paused or job.status is not Status.QUEUED or job.run_at > now:
        return False
    running = [other for other in jobs if other.status is Status.RUNNING] + chosen
    if settings.max_concurrency is not None and len(running) >= settings.max_concurrency:
        return False
    if settings.rate is not None and not _open(settings.rate, used.queue_full_until, now):
        return False
    key = job.asked.key
    if key is not None:
        of_key = sum(other.asked.key == key for other in running)
        if settings.max_concurrency_per_key is not None and of_key >= settings.max_concurrency_per_key:
            return False
        rate = settings.rate_per_key
        if rate is not None and not _open(rate, used.key_full_until.get(key), now):
            return False
    if job.asked.ordering_key is not None:
        line = [other for other in jobs if other.asked.ordering_key == job.asked.ordering_key]
        if any(other in running for other in line):
            return False
        ahead = [other for other in line if other.status in (Status.QUEUED, Status.HELD)]
        if min(ahead, key=lambda other: (other.scheduled_at, other.id)) != job:
            return False
    return True


def _open(rate: Rate, full_until: datetime | None, now: datetime) -> bool:
    return full_until is None or rate.opens_at(full_until) <= now


def counts(jobs: Iterable[Job]) -> dict[Status, int]:
    return dict.fromkeys(Status, 0) | Counter(job.status for job in jobs)
