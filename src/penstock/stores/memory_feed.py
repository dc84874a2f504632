"""The feed of the memory store."""

from __future__ import annotations

import secrets
from datetime import datetime
from functools import cached_property
from itertools import islice

from penstock.core.clock import Clock
from penstock.core.errors import InvalidInput
from penstock.core.job import Attempt, Born, Job, JobId, Record
from penstock.core.machine import Machine
from penstock.core.registry import Event, Events


class MemoryFeed:
    """What happened in the memory store, for those who follow: the last hundred thousand events of each tenant."""

    _clock: Clock

    def machine(self, tenant: str, now: datetime) -> Machine:
        """The tenant's machine, which remembers what happened."""
        raise NotImplementedError

    @cached_property
    def _feed(self) -> str:
        """What tells our cursors from those of another store, also of one before us under the same URL."""
        return secrets.token_hex(8)

    async def events(self, tenant: str, *, after: str | None = None, limit: int) -> Events:
        """A cursor says how many events of its tenant came before it."""
        ledger = self.machine(tenant, self._clock.now()).ledger
        count = ledger.told_count
        if after is None:
            return Events((), self._cursor(tenant, count))
        begin = self._read(tenant, after)
        if begin > count:
            raise InvalidInput("after", "be a cursor that this feed has given", after)
        left = begin - (count - len(ledger.told))
        if left < 0:
            must = "be newer: some of what came after it has left; begin again without one"
            raise InvalidInput("after", must, after)
        events = tuple(
            _event(self._cursor(tenant, number), kind, name, told, ledger.jobs.get(JobId(name)))
            for number, (kind, name, told) in enumerate(islice(ledger.told, left, left + limit), begin + 1)
        )
        return Events(events, events[-1].cursor if events else after)

    def _cursor(self, tenant: str, number: int) -> str:
        return f"{self._feed}.{number}.{tenant}"

    def _read(self, tenant: str, after: str) -> int:
        _, _, rest = after.partition(".")
        number, _, _ = rest.partition(".")
        # Not isdigit: that takes digits of all scripts.
        if not number.isdecimal() or len(number) > 18 or after != self._cursor(tenant, int(number)):
            raise InvalidInput("after", "be a cursor of this very feed; begin again without one", after)
        return int(number)


def _event(cursor: str, kind: str, name: str, told: Record | Born, job: Job | None) -> Event:
    if isinstance(told, Born):
        return Event(cursor, told.at, kind, name, "enqueued", told.queue, told.type)
    of_job = job if kind == "job" else None
    queue = name if kind == "queue" else None if of_job is None else of_job.queue
    type_ = None if of_job is None else of_job.type
    if isinstance(told, Attempt):
        return Event(
            cursor, told.ended_at, kind, name, told.outcome, queue, type_, told.status, told.number, told.worker,
            error=told.error, started_at=told.started_at,
            ready_at=None if of_job is None or told.number != 1 else max(of_job.created_at, of_job.scheduled_at),
        )  # fmt: skip
    return Event(cursor, told.at, kind, name, told.verb, queue, type_, told.status, actor=told.actor)
