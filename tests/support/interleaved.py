"""The differential test through several stores on one database: one after another, and at the same moment.

`Scattered` sends each call of a history through another store, so that nothing may hang on what a store itself
remembers. `Bursts` sends calls through several stores at once. Their answers, and everything there is to read
afterwards, must be those of some serial order of the calls on the reference machine.

What a serial order is made of:

- A call takes effect at one moment, with all its items; only a batch of acks of several jobs may have others between its
  items, in whatever order, because those that concern nobody else go ahead. Calls that one caller makes in turn stay in
  turn.
- A sweep may say what it pruned; what else it noticed is its own affair.

Leasing takes "among the jobs that no one else is taking at that moment", so a lease that overlaps others has some
leeway, and no more than this:

- Each job it answers with, in the order answered, may be leased at that point of the serial order: it is queued, due,
  nobody else's, within every limit, rate and pause, and first of its ordering key. The reference takes these very jobs,
  so what follows from them (turns, rates, lines) is held against everything that comes later.
- It passes over a job that should have come first only if another call of the burst was *busy* with that job: named it,
  leased it, changed it or noticed that its time was up, or did so to a job of its flow or of its ordering key, or came
  with a job of its ordering key. A queue with limits may pass over
  others as well, if there is such a job, because its candidates are looked up key by key before they are locked.
- It answers with fewer jobs than there were only as far as jobs of its queue were kept busy by calls that are not
  leases: two leases never take from each other's number.
- With nobody busy in its queue, and always if it was sent alone, it is exact.

If several serial orders fit and differ in what cannot be read yet (turns, rates, requests), all are carried on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from random import Random
from typing import Any, ClassVar, cast

from penstock.core.commands import Ack, Filter, Leased, LeaseJobs, TakeJob
from penstock.core.errors import NotLeasable
from penstock.core.job import Job, JobId, NewJob
from penstock.core.lifecycle import ACTIVE
from penstock.core.machine import Machine
from penstock.core.ports import Store
from penstock.core.schedule import Schedule
from penstock.stores.memory import MemoryStore
from penstock.testing import FakeClock
from support.differential import Differential, Held, History, without_tokens

MOST_ORDERS = 6
"""How many serial orders are carried on; more than two are hardly ever left."""


# ── One after another ─────────────────────────────────────────────────────────────────────────────


class Scattered:
    """Several stores as one: each call goes through one of them, drawn at random; the first through the first."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self._stores = stores
        self._chosen = stores[0]
        self.dice = Random(0)

    def __getattr__(self, verb: str) -> Any:
        chosen, self._chosen = self._chosen, self.dice.choice(self._stores)
        return getattr(chosen, verb)

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


class ScatteredDifferential(Differential):
    """A differential history in which every call goes through another store."""

    make_stores: Callable[[FakeClock], Sequence[Store]]

    @classmethod
    def make_store(cls, clock: FakeClock) -> Store:
        return cast(Store, Scattered(cls.make_stores(clock)))

    def draw(self, dice: Random) -> str:
        cast(Scattered, self.store).dice = dice
        return super().draw(dice)


# ── At the same moment ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Call:
    """One call of the port."""

    verb: str
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def on(self, store: Store) -> Awaitable[Any]:
        answer: Awaitable[Any] = getattr(store, self.verb)(*self.args, **self.options)
        return answer

    @property
    def tenants(self) -> tuple[str, ...]:
        return ("acme", "zeta") if self.verb == "sweep" else (self.args[0],)

    def names(self, answers: Sequence[Any]) -> Iterator[JobId]:
        """The jobs that the call, or the answer to it, names."""
        items = self.args[1] if self.verb != "sweep" else ()
        for item in (*items, *(answers if isinstance(answers, list) else ())):
            for name in ("job_id", "id"):
                if isinstance(found := getattr(item, name, None), str):
                    yield JobId(found)
            yield from getattr(item, "parents", ())
            yield from getattr(item, "others", ())
            yield from (enqueued.id for enqueued in getattr(item, "jobs", ()))

    def lines(self, schedules: Sequence[Schedule]) -> Iterator[tuple[str, str]]:
        """The queues and ordering keys of jobs that the call brings, whether they are let in or not."""
        brought: list[NewJob] = []
        if self.verb == "enqueue":
            brought = self.args[1]
        elif self.verb == "fire":
            names = {fire.name for fire in self.args[1]}
            brought = [schedule.job for schedule in schedules if schedule.name in names]
        yield from ((job.queue, job.ordering_key) for job in brought if job.ordering_key is not None)


class _Recorder:
    """A store that notes calls and makes none."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        return lambda *args, **options: self.calls.append(Call(verb, args, options))


@dataclass(frozen=True)
class Unit:
    """A call that took effect at one moment, what it was answered, and who else was busy meanwhile."""

    now: datetime
    call: Call
    answer: Any
    busy: frozenset[JobId] = frozenset()
    """Jobs that others were busy with."""
    withheld: frozenset[JobId] = frozenset()
    """Of these, the ones that were kept busy by calls that are not leases."""

    @property
    def leased(self) -> list[Leased]:
        [answer] = self.answer
        return cast("list[Leased]", answer)


Chain = list[list[Unit]]
"""What one caller did, step by step; what is in one step may have taken effect in any order."""


class Serial:
    """The reference machine after one serial order of everything so far."""

    def __init__(self, done: Iterable[Unit] = ()) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.done: list[Unit] = []
        for unit in done:
            self._redo(unit)

    def machine(self, tenant: str) -> Machine:
        return self.store.machine(tenant, self.clock.now())

    def apply(self, unit: Unit) -> bool:
        """Let the reference do it; says whether the answer is one it could have given."""
        self.clock.set(unit.now)
        self.done.append(unit)
        if unit.call.verb == "lease":
            return self._lease(unit)
        answer = immediately(unit.call.on(self.store))
        if unit.call.verb == "sweep":
            return bool(answer.pruned == unit.answer.pruned)
        return bool(without_tokens(answer) == without_tokens(unit.answer))

    def _redo(self, unit: Unit) -> None:
        """Let the reference do what it has done before."""
        self.clock.set(unit.now)
        self.done.append(unit)
        if unit.call.verb == "lease":
            tenant, [request] = unit.call.args
            machine = self.machine(tenant)
            for leased in unit.leased:
                machine.take(TakeJob(leased.id, leased.token, request.worker, request.seconds), unit.now)
        else:
            immediately(unit.call.on(self.store))

    def _lease(self, unit: Unit) -> bool:
        tenant, [request] = unit.call.args
        machine, now = self.machine(tenant), unit.now
        best = machine.choose(request.queue, request.limit, now)
        taken = [leased.id for leased in unit.leased]
        if taken != best and not self._may_differ(unit, request, machine, best, taken):
            return False
        answers = []
        for leased in unit.leased:
            try:
                answers.append(
                    machine.take(TakeJob(leased.id, leased.token, request.worker, request.seconds), now)
                )
            except NotLeasable:
                return False
        # Parents are told of as they are when all are taken.
        return [machine.with_parents(one) for one in answers] == unit.leased

    def _may_differ(
        self, unit: Unit, request: LeaseJobs, machine: Machine, best: list[JobId], taken: list[JobId]
    ) -> bool:
        jobs, lane = machine.ledger.jobs, machine.ledger.lanes.get(request.queue)
        if lane is None or not all(job_id in jobs for job_id in taken):
            return False
        withheld = sum(job_id in jobs and jobs[job_id].queue == request.queue for job_id in unit.withheld)
        if len(taken) > request.limit or len(taken) < len(best) - withheld:
            return False
        settings = lane.settings
        if settings.fair or settings.max_concurrency_per_key is not None or settings.rate_per_key is not None:
            return bool(unit.busy)
        last = max((rank(jobs[job_id]) for job_id in taken), default=None)
        passed_over = [
            job.id
            for job in jobs.values()
            if job.queue == request.queue
            and job.id not in taken
            and lane.why_not(job, unit.now) is None
            and last is not None
            and rank(job) < last
        ]
        in_order = taken == sorted(taken, key=lambda job_id: rank(jobs[job_id]))
        return in_order and unit.busy.issuperset(passed_over)

    def would(self, unit: Unit) -> Any:
        """What the reference would answer, were this the next call."""
        self.clock.set(unit.now)
        return immediately(unit.call.on(self.store))

    def state(self) -> Any:
        """All there is to read, and what else decides how it goes on."""
        return [immediately(everything(self.store, tenant)) for tenant in ("acme", "zeta")], self._unread()

    def _unread(self) -> Any:
        ledgers = [self.machine(tenant).ledger for tenant in ("acme", "zeta")]
        return [
            ({name: lane.used() for name, lane in ledger.lanes.items()}, ledger.keys.requests)
            for ledger in ledgers
        ]


def rank(job: Job) -> tuple[int, datetime, JobId]:
    return -job.priority, job.run_at, job.id


class Bursts(History):
    """A history whose calls are sent in bursts, at the same moment through several stores."""

    make_stores: Callable[[FakeClock], Sequence[Store]]

    WEIGHTS: ClassVar[dict[str, float]] = {
        **History.WEIGHTS,
        "pass_time": 2,
        "let_everything_go": 0.7,
        "find": 0,
        "look": 0,
    }
    SIZES: ClassVar[list[int]] = [1, 2, 2, 2, 3, 3, 3]

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.stores: Sequence[Store] = ()
        self.orders = [Serial()]
        self.seen: dict[str, list[Job]] = {}
        self.recorder: _Recorder | None = None
        super().__init__()

    @classmethod
    def make_store(cls, clock: FakeClock) -> Store:
        return MemoryStore(clock)  # not used: there are several

    @property
    def reference(self) -> MemoryStore:
        """Where histories look before they ask."""
        return self.orders[0].store

    @reference.setter
    def reference(self, store: MemoryStore) -> None:
        pass

    def run(self, steps: int) -> None:
        try:
            for _ in range(steps):
                self.step()
        finally:
            self.close()

    def close(self) -> None:
        for store in self.stores:
            self.loop.run_until_complete(store.close())
        self.loop.close()

    def step(self) -> None:
        chains: list[list[Call]] = []
        size = self.dice.choice(self.SIZES)
        while len(chains) < size:
            verb = self.draw(self.dice)
            if verb == "pass_time":
                if not chains:
                    self.pass_time(self.dice)
                    return
                continue
            chains.append(self.record(verb))
        self.burst([chain for chain in chains if chain])

    # ── What a history would ask ──────────────────────────────────────────────────────────────────

    def record(self, verb: str) -> list[Call]:
        """The calls that a step would make."""
        self.recorder = recorder = _Recorder()
        try:
            getattr(self, verb)(self.dice)
        finally:
            self.recorder = None
        return recorder.calls

    def both(
        self, ask: Callable[[Store, int], Awaitable[Any]], compare: Callable[[Any], Any] | None = None
    ) -> tuple[Any, Any]:
        if self.recorder is None:  # the one call that every history begins with
            self.stores = self.make_stores(self.clock)
            self.recorder = recorder = _Recorder()
            ask(cast(Store, recorder), 0)
            self.recorder = None
            self.burst([recorder.calls])
        else:
            ask(cast(Store, self.recorder), 0)
        return [], []

    def lease_from_both(self, tenant: str, command: LeaseJobs) -> None:
        self.both(lambda store, _: store.lease(tenant, [command]))

    # ── What came of it ───────────────────────────────────────────────────────────────────────────

    def burst(self, chains: Sequence[Sequence[Call]]) -> None:
        """Send chains of calls at once, each through its own store; then look for a serial order that explains it."""
        tenants = sorted({tenant for chain in chains for call in chain for tenant in call.tenants})
        answers = self.loop.run_until_complete(self._send(chains))
        after = self.loop.run_until_complete(self._read(tenants))
        units = list(self._units(chains, answers, after))
        self.seen |= {tenant: reads["jobs"] for tenant, reads in after.items()}
        found: list[Serial] = []
        for order in self.orders:
            for serial in serial_orders(order, units):
                if self._reads(serial, tenants) == after and not any(
                    serial.state() == other.state() for other in found
                ):
                    found.append(serial)
        assert found, self._complaint(units, tenants, after)
        self.orders = found[:MOST_ORDERS]
        leases = (unit for chain in units for step in chain for unit in step if unit.call.verb == "lease")
        for unit in leases:
            for leased in unit.leased:
                assert leased.token not in self.tokens, "a token was given twice"
                self.tokens.add(leased.token)
                self.held.append(Held(unit.call.args[0], leased.id, (leased.token, leased.token)))

    async def _send(self, chains: Sequence[Sequence[Call]]) -> list[list[Any]]:
        # The first call goes through the first store, which empties the database.
        stores = self.dice.sample(list(self.stores), len(chains)) if self.orders[0].done else self.stores

        async def send(chain: Sequence[Call], store: Store) -> list[Any]:
            return [await call.on(store) for call in chain]

        return list(await asyncio.gather(*(map(send, chains, stores))))

    async def _read(self, tenants: Sequence[str]) -> dict[str, Any]:
        store = self.dice.choice(self.stores) if self.orders[0].done else self.stores[0]
        return {tenant: await everything(store, tenant) for tenant in tenants}

    def _reads(self, serial: Serial, tenants: Sequence[str]) -> dict[str, Any]:
        return {tenant: immediately(everything(serial.store, tenant)) for tenant in tenants}

    def _units(
        self,
        chains: Sequence[Sequence[Call]],
        answers: Sequence[Sequence[Any]],
        after: dict[str, Any],
    ) -> Iterator[Chain]:
        """Each chain as its steps, and each step as what takes effect in it."""
        now = self.clock.now()
        leased = {
            one.id
            for chain, answered in zip(chains, answers, strict=True)
            for call, answer in zip(chain, answered, strict=True)
            if call.verb == "lease"
            for one in answer[0]
        }
        then = {job.id: job for tenant in after for job in self.seen.get(tenant, ())}
        since = {job.id: job for reads in after.values() for job in reads["jobs"]}
        known = [*then.values(), *since.values()]
        changed = {job_id for job_id in then.keys() | since.keys() if then.get(job_id) != since.get(job_id)}
        schedules = [one for tenant in after for one in self.orders[0].machine(tenant).schedules()]
        schedules += [one for reads in after.values() for one in reads["schedules"]]
        # What time has done since is noticed by every call that is not hot, whatever it is about.
        noticed = {job.id for job in then.values() if overdue(job, now)}
        for chain, answered in zip(chains, answers, strict=True):
            others = [
                (call, answer)
                for other, theirs in zip(chains, answers, strict=True)
                if other is not chain
                for call, answer in zip(other, theirs, strict=True)
            ]
            steps: list[list[Unit]] = []
            for call, answer in zip(chain, answered, strict=True):
                if call.verb == "lease" and others:
                    ours = {one.id for one in answer[0]}
                    named = {
                        job_id for call, answer in others if call.verb != "lease" for job_id in call.names(answer)
                    }  # fmt: skip
                    withheld = related(named | noticed | (changed - leased), known)
                    withheld |= in_line_with(leased - ours, known) - leased
                    lines = {line for call, _ in others for line in call.lines(schedules)}
                    withheld |= {job.id for job in known if (job.queue, job.asked.ordering_key) in lines}
                    steps.append([Unit(now, call, answer, frozenset(withheld | leased), frozenset(withheld))])
                elif call.verb == "settle" and is_batch_of_acks(call.args[1]):
                    tenant, items = call.args
                    steps.append(
                        [
                            Unit(now, Call("settle", (tenant, [item])), [told])
                            for item, told in zip(items, answer, strict=True)
                        ]
                    )
                else:
                    steps.append([Unit(now, call, answer)])
            yield steps

    def _complaint(self, units: Sequence[Chain], tenants: Sequence[str], after: dict[str, Any]) -> str:
        lines = ["no serial order explains what these calls were answered, or what they left behind:"]
        for number, chain in enumerate(units, 1):
            for unit in (unit for step in chain for unit in step):
                lines.append(f"  {number}. {unit.call.verb} {unit.call.args} {unit.call.options or ''}")
                lines.append(f"     → {unit.answer}")
                lines.append(f"     alone: {Serial(self.orders[0].done).would(unit)}")
        for serial in islice(serial_orders(self.orders[0], units), 2):
            lines.append("as far as answers go, this order would do:")
            lines += [
                f"  {unit.call.verb} {unit.call.args}" for unit in serial.done[len(self.orders[0].done) :]
            ]
            expected = self._reads(serial, tenants)
            for tenant in tenants:
                lines += [
                    f"  {tenant} {name}: {line}"
                    for name in after[tenant]
                    for line in differences(expected[tenant][name], after[tenant][name])
                ]
        return "\n".join(lines)


def serial_orders(
    start: Serial, chains: Sequence[Chain], tried: dict[frozenset[int], list[Any]] | None = None
) -> Iterator[Serial]:
    """Every order of these units, the steps of each chain kept in theirs, in which each answer is right.

    Of orders that come to the same, one: most calls do not concern each other.
    """
    tried = {} if tried is None else tried
    left = frozenset(id(unit) for chain in chains for step in chain for unit in step)
    state, states = start.state(), tried.setdefault(left, [])
    if state in states:
        return
    states.append(state)
    if not left:
        yield start
    for number, chain in enumerate(chains):
        if not chain:
            continue
        step, *later = chain
        for unit in step:
            after = Serial(start.done)
            if after.apply(unit):
                rest = [other for other in step if other is not unit]
                remaining: Chain = [rest, *later] if rest else later
                yield from serial_orders(after, [*chains[:number], remaining, *chains[number + 1 :]], tried)


def is_batch_of_acks(settles: Sequence[Any]) -> bool:
    return all(isinstance(one, Ack) for one in settles) and len({one.job_id for one in settles}) == len(
        settles
    )


def overdue(job: Job, now: datetime) -> bool:
    """Whether time has done something to this job that may not have been noticed yet."""
    if job.lease is not None:
        return job.lease.expires_at <= now
    return job.expires_at is not None and job.expires_at <= now and job.leases == 0 and job.status in ACTIVE


def related(ids: set[JobId], jobs: Sequence[Job]) -> set[JobId]:
    """These jobs, those of the flows they are in, and those that share an ordering key with one of all these."""
    known = set(ids)
    size = -1
    while size < len(known):
        size = len(known)
        for job in jobs:
            family = {job.id, *job.asked.parents}
            if family & known:
                known |= family
    return known | in_line_with(known, jobs)


def in_line_with(ids: set[JobId], jobs: Sequence[Job]) -> set[JobId]:
    """The jobs that share an ordering key with one of these."""
    lines = {(job.queue, job.asked.ordering_key) for job in jobs if job.id in ids and job.asked.ordering_key}
    return {job.id for job in jobs if (job.queue, job.asked.ordering_key) in lines}


async def everything(store: Store, tenant: str) -> dict[str, Any]:
    """All there is to read."""
    page = await store.find(tenant, Filter(), after=None, limit=10_000)
    subjects = [("job", job.id) for job in page.jobs] + [
        ("queue", "emails"), ("queue", "reports"), ("schedule", "s1"), ("schedule", "s2"),
    ]  # fmt: skip
    return {
        "jobs": list(page.jobs),
        "history": [
            (subject, history)
            for subject, history in zip(subjects, await store.history(tenant, subjects), strict=True)
        ],
        "queues": await store.queues(tenant),
        "schedules": await store.schedules(tenant),
    }


def differences(expected: Sequence[Any], found: Sequence[Any]) -> Iterator[str]:
    yield from (f"expected {one}" for one in expected if one not in found)
    yield from (f"found    {one}" for one in found if one not in expected)


def immediately(awaitable: Awaitable[Any]) -> Any:
    """The answer of a store that never waits."""
    try:
        awaitable.__await__().send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the reference waited")
