"""The state: what the machines have made of the log so far.

It is the memory store with a clock that only entries move. Whoever applies the same entries has the same state, so
nothing here may hang on the reader: not on its clock, its randomness, its hash seed, or on what it has looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any

from penstock.core import promises
from penstock.core.codec import NULL
from penstock.core.commands import Duplicate, Enqueued, Fire, PutSchedule
from penstock.core.errors import PenstockError
from penstock.core.job import LeaseToken, NewJob
from penstock.core.machine import Machine
from penstock.core.registry import ALL_TENANTS, Entry, Insight
from penstock.core.schedule import Schedule
from penstock.core.timetable import as_given
from penstock.core.wakeups import EVERYONE, OFFICES, SCHEDULES
from penstock.stores.log.entry import LogEntry, Op
from penstock.stores.log.packing import PackedMachine
from penstock.stores.memory import MemoryStore
from penstock.stores.memory_registry import Allowance
from penstock.stores.wakeups.memory import MemoryWakeups

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
MOST_WRITERS = 10_000
"""Writers whose last batch is remembered: an entry that comes a second time is not applied again."""

DELIVERED = "!delivered"
"""No kind of anybody's: by the name of a schedule in another log, the latest of its fire times that had its job here."""


class Moment:
    """A clock that shows what it was set to."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def now(self) -> datetime:
        return self.at


@dataclass
class Parts:
    """Everything that one state holds, as the memory store keeps it: what a snapshot is made of."""

    now: datetime = BEGINNING
    """The state's time: the greatest that any entry applied so far carried."""
    number: int = 0
    """The entry applied last."""
    machines: dict[str, Machine] = field(default_factory=dict)
    entries: dict[tuple[str, str], dict[str, Entry]] = field(default_factory=dict)
    allowances: dict[tuple[str, str], Allowance] = field(default_factory=dict)
    insights: dict[tuple[str, str], Insight] = field(default_factory=dict)
    offices: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    new_machine: Callable[[str], Machine] = PackedMachine
    name: str = ""
    """What tells this log from every other: who wrote its first entry. Cursors of the feed carry it."""
    writers: dict[bytes, int] = field(default_factory=dict)
    """The last batch of each writer, in the order in which they last wrote."""


class State(MemoryStore):
    """A fold over the entries. Nothing but `apply` changes it."""

    def __init__(self, parts: Parts | None = None, wakeups: MemoryWakeups | None = None) -> None:
        parts = parts or Parts()
        self._moment = Moment(parts.now)
        super().__init__(self._moment, tokens=iter(()), machine=parts.new_machine)
        self.time, self.number, self.name, self.writers = parts.now, parts.number, parts.name, parts.writers
        self._machines, self._leaders = parts.machines, parts.offices
        self._entries, self._allowances, self._insights = parts.entries, parts.allowances, parts.insights
        self._is_applying = False
        self._stirred: dict[str, set[str]] = {}
        if wakeups is not None:
            self.wakeups = wakeups

    @property
    def parts(self) -> Parts:
        """What it holds: the same objects, not copies."""
        return Parts(
            self.time, self.number, self._machines, self._entries, self._allowances, self._insights, self._leaders,
            self._new_machine, self.name, self.writers,
        )  # fmt: skip

    @property
    def _feed(self) -> str:
        return self.name

    def machine(self, tenant: str, now: datetime) -> Machine:
        """The tenant's machine. One who is only looked up gets an empty one that is not kept."""
        machine = self._machines.get(tenant)
        if machine is None:
            machine = self._new_machine(tenant)
            if self._is_applying:
                self._machines[tenant] = machine
        machine.advance(now)
        return machine

    # ── Applying ──────────────────────────────────────────────────────────────────────────────────

    def apply(self, number: int, entry: LogEntry | None) -> list[Any]:
        """Do what the next entry asks for; the answer to each of its calls, which may be an error.

        A filler changes nothing; nor does an entry that was applied before, or comes after a later one of its writer.
        """
        if entry is None or self._is_repeated(entry):
            self.number = number
            return []
        self.time = self._moment.at = max(self.time, entry.ts)
        self.name = self.name or entry.writer.hex()
        lease_prefix = f"{entry.writer.hex()}-{entry.batch}"
        self._is_applying = True
        try:
            answers = []
            for index, op in enumerate(entry.ops):
                if op.verb == "lease":
                    self._tokens = _tokens(f"{lease_prefix}-{index}")
                answers.append(self._answer(op))
        finally:
            self._is_applying = False
        self.number = number
        self._ring_all()
        return answers

    def _is_repeated(self, entry: LogEntry) -> bool:
        last = self.writers.pop(entry.writer, -1)
        self.writers[entry.writer] = max(last, entry.batch)
        if len(self.writers) > MOST_WRITERS:
            del self.writers[next(iter(self.writers))]
        return entry.batch <= last

    def _answer(self, op: Op) -> Any:
        try:
            return _CALLS[op.verb](self, op)
        except PenstockError as error:
            return error

    async def put_schedules(
        self, tenant: str, commands: Sequence[PutSchedule]
    ) -> list[Schedule | PenstockError]:
        self._stirred.setdefault(EVERYONE, set()).add(SCHEDULES)
        return self._each(tenant, lambda machine: partial(machine.put_schedule, plan=as_given), commands)

    async def lead(self, office: str, holder: str, seconds: float) -> bool:
        held = await super().lead(office, holder, seconds)
        if held and seconds == 0:
            self._stirred.setdefault(EVERYONE, set()).add(OFFICES)  # those who seek it are in other processes
        return held

    async def pass_on(self, tenant: str, fires: Sequence[Fire]) -> list[bool | PenstockError]:
        return self._each(tenant, lambda machine: machine.pass_on, fires)

    async def deliver(self, tenant: str, jobs: Sequence[NewJob]) -> list[Enqueued | PenstockError]:
        return self._each(tenant, lambda machine: partial(self._deliver, machine), jobs)

    def _deliver(self, machine: Machine, asked: NewJob, now: datetime) -> Enqueued:
        """Make the job of a fire time, unless that time or a later one had its job: also if it has left since."""
        assert asked.run_at is not None
        place, tenant = (DELIVERED, asked.schedule or ""), machine.tenant
        last = self._entries.get(place, {}).get(tenant)
        if last is not None and asked.run_at <= last.changed_at:
            return Enqueued(asked.id, Duplicate.ID)
        answer = machine.enqueue(asked, now)
        entry = Entry(DELIVERED, tenant, asked.schedule or "", 1, NULL, asked.run_at)
        self._entries.setdefault(place, {})[tenant] = entry
        return answer

    def tick(self, tenant: str) -> None:
        """Let time do what it has to."""
        self._ring(tenant, self.machine(tenant, self.time))

    def _ring(self, tenant: str, machine: Machine) -> None:
        if stirred := machine.ledger.stirred:
            self._stirred.setdefault(tenant, set()).update(stirred)
            stirred.clear()

    def _ring_all(self) -> None:
        """Ring once for all that an entry has stirred, when it is done."""
        for tenant, queues in self._stirred.items():
            self.wakeups.wake(tenant, queues)
        self._stirred.clear()

    # ── Looking ───────────────────────────────────────────────────────────────────────────────────

    def look(self, read: Callable[[State], Coroutine[Any, Any, Any]], now: datetime) -> Any:
        """What a read of the memory store says at a time at which nothing is due that was not applied."""
        self._moment.at = max(self.time, now)
        return immediately(read(self))

    def is_due(self, tenant: str | None, now: datetime) -> bool:
        """Whether time has done something to a tenant's jobs that no entry has let happen yet."""
        if tenant is None:
            return False
        machine = self._machines.get(tenant)
        return machine is not None and machine.is_due(max(self.time, now))

    def foresees(self, tenant: str, queue: str, now: datetime) -> bool | None:
        machine = self._machines.get(tenant)
        return False if machine is None else machine.foresees(queue, max(self.time, now))

    def foresees_at(self, tenant: str, queues: list[str], now: datetime) -> tuple[bool, datetime | None]:
        machine = self._machines.get(tenant)
        return (True, None) if machine is None else machine.foresees_at(queues, max(self.time, now))

    def may_sweep(self, now: datetime, exported_until: datetime | None) -> bool:
        """Whether a sweep would find anything to do."""
        now = max(self.time, now)
        told = immediately(self.entries(ALL_TENANTS, promises.LAKE))
        exported_until = promises.exported_until(promises.read(told), exported_until)
        return self._may_tidy(now) or any(
            machine.is_due(now) or machine.may_prune(now, exported_until)
            for machine in self._machines.values()
        )

    def office(self, name: str) -> tuple[str, datetime] | None:
        """Who holds an office, and until when."""
        return self._leaders.get(name)


def _tokens(prefix: str) -> Iterator[LeaseToken]:
    """Lease tokens made of the place in the log where they are given: the same for every reader, and never again."""
    return (LeaseToken(f"{prefix}-{number}") for number in count(1))


def immediately(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The answer of a call that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise RuntimeError("a call of the memory store waited")


def _with_tenant(verb: str) -> Callable[[State, Op], Any]:
    call = getattr(State, verb)
    return lambda state, op: immediately(call(state, op.tenant, op.given))


_CALLS: dict[str, Callable[[State, Op], Any]] = {
    **{
        verb: _with_tenant(verb)
        for verb in (
            "lease", "cancel", "redrive", "configure", "put_schedules", "drop_schedules", "fire", "put_entries",
            "spend", "next_at", "pass_on", "deliver",
        )
    },
    # These are most of what there is.
    "enqueue": lambda state, op: state._each(op.tenant, lambda machine: machine.enqueue, op.given),
    "settle": lambda state, op: state._each(op.tenant, lambda machine: machine.settle, op.given),
    "heartbeat": lambda state, op: state._each(op.tenant, lambda machine: machine.heartbeat, op.given),
    "put_insights": lambda state, op: immediately(state.put_insights(op.given)),
    "lead": lambda state, op: immediately(state.lead(*op.given)),
    "sweep": lambda state, op: immediately(state.sweep(limit=op.given[0], exported_until=op.given[1])),
    "tick": lambda state, op: state.tick(op.tenant),
}  # fmt: skip
