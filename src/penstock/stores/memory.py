"""The memory store: the state machine itself behind the port. It is the reference for every other store."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import count
from typing import TypeVar

from penstock.core import promises
from penstock.core.clock import Clock, SystemClock
from penstock.core.commands import (
    Beat,
    CancelJob,
    Changed,
    ConfigureQueue,
    DropSchedule,
    Due,
    Enqueued,
    Filter,
    Fire,
    Fired,
    Heartbeat,
    History,
    Leased,
    LeaseJobs,
    Page,
    PutSchedule,
    QueueView,
    RedriveJob,
    Settle,
    Settled,
    Swept,
)
from penstock.core.errors import PenstockError
from penstock.core.job import Job, JobId, LeaseToken, NewJob
from penstock.core.machine import Machine, each
from penstock.core.registry import ALL_TENANTS
from penstock.core.schedule import Schedule
from penstock.core.settings import QueueSettings
from penstock.core.wakeups import EVERYONE, SCHEDULES
from penstock.stores.memory_feed import MemoryFeed
from penstock.stores.memory_registry import MemoryRegistry
from penstock.stores.wakeups.memory import MemoryWakeups

Command = TypeVar("Command")
Answer = TypeVar("Answer")


def random_tokens() -> Iterator[LeaseToken]:
    """Lease tokens that nobody can guess and that never repeat."""
    prefix = secrets.token_hex(12)  # drawn once: a counter is enough to tell our own tokens apart
    return (LeaseToken(f"{prefix}-{number}") for number in count(1))


class MemoryStore(MemoryRegistry, MemoryFeed):
    """Jobs in this process, gone with it. It never awaits, so callers in one event loop never interleave."""

    def __init__(
        self,
        clock: Clock | None = None,
        tokens: Iterator[LeaseToken] | None = None,
        machine: Callable[[str], Machine] = Machine,
    ) -> None:
        super().__init__(clock or SystemClock())
        self.wakeups = MemoryWakeups()
        self._tokens = tokens or random_tokens()
        self._new_machine = machine
        self._machines: dict[str, Machine] = {}
        self._leaders: dict[str, tuple[str, datetime]] = {}

    def machine(self, tenant: str, now: datetime) -> Machine:
        """The tenant's machine, up to date."""
        machine = self._machines.get(tenant)
        if machine is None:
            machine = self._machines[tenant] = self._new_machine(tenant)
        machine.advance(now)
        return machine

    async def enqueue(self, tenant: str, jobs: Sequence[NewJob]) -> list[Enqueued | PenstockError]:
        return self._each(tenant, lambda machine: machine.enqueue, jobs)

    async def lease(self, tenant: str, requests: Sequence[LeaseJobs]) -> list[list[Leased] | PenstockError]:
        now = self._clock.now()
        machine = self.machine(tenant, now)
        return [machine.lease(request, self._tokens, now) for request in requests]

    async def heartbeat(self, tenant: str, beats: Sequence[Heartbeat]) -> list[Beat | PenstockError]:
        return self._each(tenant, lambda machine: machine.heartbeat, beats)

    async def settle(self, tenant: str, settles: Sequence[Settle]) -> list[Settled | PenstockError]:
        return self._each(tenant, lambda machine: machine.settle, settles)

    async def cancel(self, tenant: str, commands: Sequence[CancelJob]) -> list[Changed | PenstockError]:
        return self._each(tenant, lambda machine: machine.cancel, commands)

    async def redrive(self, tenant: str, commands: Sequence[RedriveJob]) -> list[Changed | PenstockError]:
        return self._each(tenant, lambda machine: machine.redrive, commands)

    async def configure(
        self, tenant: str, commands: Sequence[ConfigureQueue]
    ) -> list[QueueSettings | PenstockError]:
        return self._each(tenant, lambda machine: machine.configure, commands)

    async def put_schedules(
        self, tenant: str, commands: Sequence[PutSchedule]
    ) -> list[Schedule | PenstockError]:
        answers = self._each(tenant, lambda machine: machine.put_schedule, commands)
        self.wakeups.wake(EVERYONE, [SCHEDULES])
        return answers

    async def drop_schedules(
        self, tenant: str, commands: Sequence[DropSchedule]
    ) -> list[Schedule | PenstockError]:
        answers = self._each(tenant, lambda machine: machine.drop_schedule, commands)
        self.wakeups.wake(EVERYONE, [SCHEDULES])
        return answers

    async def fire(self, tenant: str, fires: Sequence[Fire]) -> list[Fired | PenstockError]:
        return self._each(tenant, lambda machine: machine.fire, fires)

    async def due_schedules(self, tenant: str | None = None) -> Due:
        now = self._clock.now()
        found = {
            name: machine.due_schedules(now)
            for name, machine in sorted(self._machines.items())
            if tenant in (None, name)
        }
        return Due(
            now,
            tuple(name for name, (is_due, _) in found.items() if is_due),
            min((at for _, at in found.values() if at is not None), default=None),
        )

    async def get(self, tenant: str, ids: Sequence[JobId]) -> list[Job | PenstockError]:
        return self._each(tenant, lambda machine: machine.get, ids)

    async def history(
        self, tenant: str, subjects: Sequence[tuple[str, str]]
    ) -> list[History | PenstockError]:
        return self._each(tenant, lambda machine: machine.history, subjects)

    async def find(self, tenant: str, filter: Filter, *, after: JobId | None, limit: int) -> Page:
        return self.machine(tenant, self._clock.now()).find(filter, after, limit)

    async def queues(self, tenant: str) -> list[QueueView]:
        return self.machine(tenant, self._clock.now()).queues()

    async def schedules(self, tenant: str) -> list[Schedule]:
        return self.machine(tenant, self._clock.now()).schedules()

    async def next_at(self, tenant: str, queues: Sequence[str]) -> datetime | None:
        now = self._clock.now()
        return self.machine(tenant, now).next_at(queues, now)

    async def now(self) -> datetime:
        return self._clock.now()

    async def tenants(self) -> list[str]:
        # One who was only looked up, or has nothing but entries, has a machine too.
        return sorted(
            name for name, machine in self._machines.items() if machine.ledger.lanes or machine.schedules()
        )

    async def lead(self, office: str, holder: str, seconds: float) -> bool:
        now = self._clock.now()
        leader, until = self._leaders.get(office, (holder, now))
        if leader != holder and until > now:
            return False
        if seconds > 0:
            self._leaders[office] = (holder, now + timedelta(seconds=seconds))
        else:
            self._leaders.pop(office, None)  # each operation on many jobs has an office of its own
        return True

    async def sweep(self, *, limit: int, exported_until: datetime | None = None) -> Swept:
        now = self._clock.now()
        told = await self.entries(ALL_TENANTS, promises.LAKE)
        exported_until = promises.exported_until(promises.read(told), exported_until)
        lost = expired = pruned = 0
        for tenant, machine in sorted(self._machines.items()):
            swept = machine.advance(now)
            lost, expired = lost + swept.lost, expired + swept.expired
            pruned += machine.prune(now, limit - pruned, exported_until)
            self._ring(tenant, machine)
        self._tidy(now)
        return Swept(lost, expired, pruned)

    async def close(self) -> None:
        self._machines.clear()

    def _each(
        self,
        tenant: str,
        verb: Callable[[Machine], Callable[[Command, datetime], Answer]],
        commands: Iterable[Command],
    ) -> list[Answer | PenstockError]:
        now = self._clock.now()
        machine = self.machine(tenant, now)
        answers = each(verb(machine), commands, now)
        self._ring(tenant, machine)
        return answers

    def _ring(self, tenant: str, machine: Machine) -> None:
        if stirred := machine.ledger.stirred:
            self.wakeups.wake(tenant, stirred)
            stirred.clear()
