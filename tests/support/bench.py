"""A machine on a bench: time, ids and tokens by count, and short words for what tests do all the time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from penstock.core.commands import (
    Ack,
    Beat,
    CancelJob,
    Changed,
    ConfigureQueue,
    Filter,
    Heartbeat,
    Leased,
    LeaseJobs,
    Nack,
    RedriveJob,
    Release,
    Settled,
    TakeJob,
)
from penstock.core.job import JobId, LeaseToken, NewJob, Status
from penstock.core.machine import Machine
from penstock.core.requests import new_job
from penstock.testing import START, counting_ids, counting_tokens

NOBODY = JobId("01890000-0000-7000-8000-000000000000")
NO_TOKEN = LeaseToken("never given")
SECOND = timedelta(seconds=1)


class Bench:
    """A machine with a clock, ids and tokens of its own."""

    def __init__(self, **settings: Any) -> None:
        self.machine = Machine("acme")
        self.now = START
        self.ids = counting_ids()
        self.tokens = counting_tokens()
        if settings:
            self.configure(**settings)

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.machine.advance(self.now)

    def new(self, **options: Any) -> NewJob:
        return new_job(self.ids(), {"type": "test.job", **options})

    def enqueue(self, **options: Any) -> JobId:
        return self.machine.enqueue(self.new(**options), self.now).id

    def lease(self, limit: int = 1, queue: str = "default", seconds: float | None = None) -> list[Leased]:
        return self.machine.lease(LeaseJobs(queue, "w1", limit, seconds), self.tokens, self.now)

    def lease_one(self) -> Leased:
        [leased] = self.lease()
        return leased

    def choose(self, limit: int = 100, queue: str = "default") -> list[JobId]:
        return self.machine.choose(queue, limit, self.now)

    def take(self, job_id: JobId) -> Leased:
        return self.machine.take(TakeJob(job_id, next(self.tokens), "w2"), self.now)

    def ack(self, leased: Leased) -> Settled:
        return self.machine.settle(Ack(leased.id, leased.token), self.now)

    def nack(self, leased: Leased, **options: Any) -> Settled:
        return self.machine.settle(Nack(leased.id, leased.token, "boom", **options), self.now)

    def release(self, leased: Leased) -> Settled:
        return self.machine.settle(Release(leased.id, leased.token), self.now)

    def heartbeat(self, leased: Leased) -> Beat:
        return self.machine.heartbeat(Heartbeat(leased.id, leased.token), self.now)

    def cancel(self, job_id: JobId) -> Changed:
        return self.machine.cancel(CancelJob(job_id, "ada"), self.now)

    def redrive(self, job_id: JobId) -> Changed:
        return self.machine.redrive(RedriveJob(job_id, "ada"), self.now)

    def configure(self, queue: str = "default", **changes: Any) -> None:
        self.machine.configure(ConfigureQueue(queue, changes, "ada"), self.now)

    def prune(self) -> int:
        return self.machine.prune(self.now, 1_000_000)

    def status(self, job_id: JobId) -> Status:
        return self.machine.get(job_id, self.now).status


def ids(leased: Sequence[Leased]) -> list[JobId]:
    return [each.id for each in leased]


def state(bench: Bench) -> dict[str, object]:
    """All that can be read of a machine."""
    machine, now = bench.machine, bench.now
    jobs = machine.find(Filter(), None, 100_000).jobs
    queues = machine.queues()
    schedules = machine.schedules()
    return {
        "jobs": jobs,
        "queues": queues,
        "schedules": schedules,
        "job trails": [machine.history(("job", job.id), now) for job in jobs],
        "queue trails": [machine.history(("queue", queue.name), now) for queue in queues],
        "schedule trails": [machine.history(("schedule", each.name), now) for each in schedules],
        "next at": machine.next_at([queue.name for queue in queues], now),
    }
