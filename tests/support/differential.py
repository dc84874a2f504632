"""Random histories against the state machine and a store at once: every answer must agree.

Histories hold commands of every kind, from two tenants, clock moves, requests sent twice because their
reply was lost, tokens long stale, and ids that never were. Both sides get the same commands at the same
times; only lease tokens differ, and are compared by the lease they belong to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from penstock.core.commands import (
    Ack,
    CancelJob,
    ConfigureQueue,
    Discard,
    DropSchedule,
    Filter,
    Heartbeat,
    Leased,
    LeaseJobs,
    Nack,
    PutSchedule,
    RedriveJob,
    Release,
    Settle,
    Snooze,
)
from penstock.core.cron import plan
from penstock.core.errors import PenstockError
from penstock.core.job import Attempt, Cause, Job, JobId, Lease, LeaseToken, NewJob, Status
from penstock.core.limits import Rate
from penstock.core.ports import Store
from penstock.core.requests import new_job, new_schedule
from penstock.core.retry import Retry
from penstock.stores.memory import MemoryStore
from penstock.testing import FakeClock, counting_ids

TENANTS = st.sampled_from(["acme", "acme", "acme", "zeta"])
QUEUES = st.sampled_from(["emails", "emails", "reports"])
NOBODY = JobId("01890000-0000-7000-8000-000000000000")

RETRIES = [Retry.fixed(2, jitter=0), Retry.linear(3, cap=5), Retry.exponential(1, factor=3, cap=20)]

JOBS = st.fixed_dictionaries(
    {"type": st.sampled_from(["a", "b"]), "queue": QUEUES},
    optional={
        "priority": st.sampled_from([-1, 0, 5]),
        "delay": st.sampled_from([0, 2, 30]),
        "expires_in": st.sampled_from([0, 3, 40]),
        "max_attempts": st.sampled_from([1, 2]),
        "retry": st.sampled_from(RETRIES),
        "on_exhausted": st.sampled_from(["dead", "hold"]),
        "key": st.sampled_from(["k1", "k2", "k3"]),
        "ordering_key": st.sampled_from(["o1", "o2"]),
        "unique_key": st.sampled_from(["u1", "u2"]),
        "idempotency_key": st.sampled_from(["i1", "i2"]),
        "idempotency_window": st.sampled_from([5, 600]),
        "payload": st.sampled_from([{"n": 1}, {"n": 2}]),
        "on_parent_failure": st.sampled_from(["cancel", "run"]),
    },
)

SETTINGS = st.dictionaries(
    st.sampled_from(["paused", "max_concurrency", "max_concurrency_per_key", "rate", "rate_per_key", "fair"]),
    st.booleans(),
    min_size=1,
    max_size=3,
)

LIMITS: dict[str, tuple[Any, Any]] = {
    "paused": (False, True),
    "fair": (False, True),
    "max_concurrency": (None, 2),
    "max_concurrency_per_key": (None, 1),
    "rate": (None, Rate(2, per=10, burst=2)),
    "rate_per_key": (None, Rate(1, per=5)),
}


@dataclass(frozen=True)
class Held:
    """A lease as both sides know it."""

    tenant: str
    job_id: JobId
    tokens: tuple[LeaseToken, LeaseToken]


def settles(held: Held, verb: str, number: int) -> tuple[Settle, Settle]:
    """The same settle for the machine and for the store, each with its own token."""
    make: dict[str, Callable[[LeaseToken], Settle]] = {
        "ack": lambda token: Ack(held.job_id, token),
        "nack": lambda token: Nack(held.job_id, token, "boom", entropy=number / 10),
        "refuse": lambda token: Nack(held.job_id, token, "never", retry=False),
        "nack_later": lambda token: Nack(held.job_id, token, "wait", delay=_seconds(number)),
        "release": lambda token: Release(held.job_id, token),
        "release_later": lambda token: Release(held.job_id, token, _seconds(number)),
        "snooze": lambda token: Snooze(held.job_id, token, _seconds(number)),
        "discard": lambda token: Discard(held.job_id, token, "enough"),
    }
    machines, stores = held.tokens
    return make[verb](machines), make[verb](stores)


class Differential(RuleBasedStateMachine):
    """The machine behind MemoryStore is the reference; `make_store` makes the store under test."""

    make_store: Callable[[FakeClock], Store] = MemoryStore

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.reference = MemoryStore(self.clock)
        self.store = type(self).make_store(self.clock)
        self.new_id = counting_ids()
        self.sent: list[tuple[str, NewJob]] = []
        self.held: list[Held] = []
        self.tokens: set[LeaseToken] = set()
        self.agreed = True

    def teardown(self) -> None:
        try:
            for tenant in ("acme", "zeta") if self.agreed else ():
                self.compare_state(tenant)
        finally:
            self.loop.run_until_complete(self.store.close())
            self.loop.close()

    # ── Both sides ────────────────────────────────────────────────────────────────────────────────

    def both(
        self, ask: Callable[[Store, int], Awaitable[Any]], compare: Callable[[Any], Any] | None = None
    ) -> tuple[Any, Any]:
        """Ask both sides the same; the answers must agree."""
        compare = compare or without_tokens
        self.agreed = False
        expected = self.loop.run_until_complete(_awaited(ask(self.reference, 0)))
        answered = self.loop.run_until_complete(_awaited(ask(self.store, 1)))
        assert compare(answered) == compare(expected)
        self.agreed = True
        return expected, answered

    def compare_state(self, tenant: str) -> None:
        self.both(lambda store, _: store.queues(tenant))
        self.both(lambda store, _: store.schedules(tenant))
        expected, _ = self.both(lambda store, _: all_jobs(store, tenant, Filter()))
        ids = [job.id for job in expected]
        self.both(lambda store, _: store.get(tenant, ids))
        subjects = [("job", job_id) for job_id in ids] + [("queue", "emails"), ("schedule", "s1")]
        self.both(lambda store, _: store.history(tenant, subjects))

    def pick(self, tenant: str, number: int) -> JobId:
        """Some job of a tenant; now and then one of another tenant or of none."""
        ids = [job.id for owner, job in self.sent if owner == tenant or number % 7 == 0]
        return ids[number % len(ids)] if ids else NOBODY

    # ── Producing ─────────────────────────────────────────────────────────────────────────────────

    @rule(
        tenant=TENANTS,
        items=st.lists(st.tuples(JOBS, st.lists(st.integers(0, 50), max_size=2)), min_size=1, max_size=4),
    )
    def enqueue(self, tenant: str, items: list[tuple[dict[str, Any], list[int]]]) -> None:
        batch = []
        for item, numbers in items:
            parents = tuple(dict.fromkeys(self.pick(tenant, number) for number in numbers if self.sent))
            batch.append(new_job(self.new_id(), {**item, "parents": parents}))
            self.sent.append((tenant, batch[-1]))
        self.both(lambda store, _: store.enqueue(tenant, batch))

    @rule(tenant=TENANTS, queue=QUEUES, number=st.integers(1, 5))
    def enqueue_plain(self, tenant: str, queue: str, number: int) -> None:
        """Without options: what a long line is made of."""
        batch = [new_job(self.new_id(), {"type": "a", "queue": queue}) for _ in range(number)]
        self.sent += [(tenant, job) for job in batch]
        self.both(lambda store, _: store.enqueue(tenant, batch))

    @rule(number=st.integers(0, 50), other=st.booleans())
    def enqueue_again(self, number: int, other: bool) -> None:
        """A reply was lost and the request is repeated, or somebody uses the id for something else."""
        if self.sent:
            tenant, job = self.sent[number % len(self.sent)]
            again = replace(job, type="c") if other else job
            self.both(lambda store, _: store.enqueue(tenant, [again]))

    # ── Working ───────────────────────────────────────────────────────────────────────────────────

    @rule(tenant=TENANTS, queue=QUEUES, limit=st.integers(1, 4), seconds=st.sampled_from([None, 1, 5]))
    def lease(self, tenant: str, queue: str, limit: int, seconds: float | None) -> None:
        self.lease_from_both(tenant, LeaseJobs(queue, "worker", limit, seconds))

    def lease_from_both(self, tenant: str, command: LeaseJobs) -> None:
        expected, answered = self.both(lambda store, _: store.lease(tenant, [command]))
        for ours, theirs in zip(_leased(expected), _leased(answered), strict=True):
            assert theirs.token not in self.tokens, "a token was given twice"
            self.tokens.add(theirs.token)
            self.held.append(Held(tenant, ours.id, (ours.token, theirs.token)))

    @rule(
        which=st.lists(st.integers(0, 50), min_size=1, max_size=3),
        verb=st.sampled_from(
            ["ack", "ack", "nack", "refuse", "nack_later", "release", "release_later", "snooze", "discard"]
        ),
        number=st.integers(0, 9),
        twice=st.booleans(),
    )
    def settle(self, which: list[int], verb: str, number: int, twice: bool) -> None:
        """Settle the latest leases or stale ones, once or, after a lost reply, twice."""
        if not self.held:
            return
        chosen = [self.held[-1 - place % len(self.held)] for place in which]
        tenant = chosen[0].tenant
        pairs = [settles(held, verb, number) for held in chosen if held.tenant == tenant]
        expected, _ = self.both(lambda store, side: store.settle(tenant, [pair[side] for pair in pairs]))
        if twice:
            again, _ = self.both(lambda store, side: store.settle(tenant, [pair[side] for pair in pairs]))
            assert without_tokens(again) == without_tokens(expected), "a repeated settle answered otherwise"

    @rule(
        number=st.integers(0, 50),
        seconds=st.sampled_from([None, 1, 20]),
        progress=st.sampled_from([None, "1"]),
    )
    def heartbeat(self, number: int, seconds: float | None, progress: Any) -> None:
        if self.held:
            held = self.held[-1 - number % len(self.held)]
            self.both(
                lambda store, side: store.heartbeat(
                    held.tenant, [Heartbeat(held.job_id, held.tokens[side], seconds, progress)]
                )
            )

    @rule(number=st.integers(0, 50), other=st.integers(0, 50))
    def settle_with_the_token_of_another_job(self, number: int, other: int) -> None:
        if self.held:
            held, thief = (self.held[place % len(self.held)] for place in (number, other))
            if held.job_id != thief.job_id:
                self.both(
                    lambda store, side: store.settle(held.tenant, [Ack(held.job_id, thief.tokens[side])])
                )

    # ── Operating ─────────────────────────────────────────────────────────────────────────────────

    @rule(tenant=TENANTS, number=st.integers(0, 50))
    def cancel(self, tenant: str, number: int) -> None:
        command = CancelJob(self.pick(tenant, number), "ada", "no longer wanted")
        self.both(lambda store, _: store.cancel(tenant, [command]))

    @rule(
        tenant=TENANTS,
        numbers=st.lists(st.integers(0, 50), min_size=1, max_size=3),
        descendants=st.booleans(),
    )
    def redrive(self, tenant: str, numbers: list[int], descendants: bool) -> None:
        commands = [RedriveJob(self.pick(tenant, number), "ada", None, descendants) for number in numbers]
        self.both(lambda store, _: store.redrive(tenant, commands))

    @rule(tenant=TENANTS, queue=QUEUES, chosen=SETTINGS)
    def configure(self, tenant: str, queue: str, chosen: dict[str, bool]) -> None:
        changes = {name: LIMITS[name][on] for name, on in chosen.items()}
        self.both(lambda store, _: store.configure(tenant, [ConfigureQueue(queue, changes, "ada", None)]))

    @rule(tenant=TENANTS)
    def let_everything_go(self, tenant: str) -> None:
        changes = {name: off for name, (off, _) in LIMITS.items()}
        commands = [ConfigureQueue(queue, changes, "ada", None) for queue in ("emails", "reports")]
        self.both(lambda store, _: store.configure(tenant, commands))

    # ── Time ──────────────────────────────────────────────────────────────────────────────────────

    @rule(seconds=st.sampled_from([0.5, 1, 1, 2, 5, 5, 30, 90, 7200]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds=seconds)

    @rule(
        name=st.sampled_from(["s1", "s2"]),
        cron=st.sampled_from(["* * * * *", "*/30 * * * * *", "0 9 * * *"]),
        missed=st.sampled_from(["skip", "one", "all"]),
        paused=st.booleans(),
    )
    def put_schedule(self, name: str, cron: str, missed: str, paused: bool) -> None:
        schedule = new_schedule(
            name, cron, {"type": "a", "queue": "emails"}, missed=missed, paused=paused, tz="Europe/Paris"
        )
        self.both(lambda store, _: store.put_schedules("acme", [PutSchedule(schedule, "ada")]))

    @rule(name=st.sampled_from(["s1", "s2"]))
    def drop_schedule(self, name: str) -> None:
        self.both(lambda store, _: store.drop_schedules("acme", [DropSchedule(name, "ada")]))

    @rule(twice=st.booleans())
    def fire(self, twice: bool) -> None:
        """A scheduler fires what is due, and perhaps a second one saw the same."""
        schedules = self.loop.run_until_complete(self.reference.schedules("acme"))
        fires = [fire for schedule in schedules if (fire := plan(schedule, self.clock.now())) is not None]
        for _ in range(1 + twice):
            self.both(lambda store, _: store.fire("acme", fires))

    @rule(exported=st.sampled_from([None, 0, 5000]))
    def sweep(self, exported: int | None) -> None:
        until = None if exported is None else self.clock.now() - _seconds(exported)
        # How much was left for a sweep to notice is the store's own affair; what it leaves behind is not.
        self.both(lambda store, _: store.sweep(limit=1000, exported_until=until), lambda swept: swept.pruned)

    # ── Reading ───────────────────────────────────────────────────────────────────────────────────

    @rule(
        tenant=TENANTS,
        statuses=st.lists(st.sampled_from(Status), max_size=2),
        cause=st.sampled_from([None, None, *Cause]),
        queue=st.sampled_from([None, "emails"]),
        key=st.sampled_from([None, "k1"]),
    )
    def find(self, tenant: str, statuses: list[Status], cause: Any, queue: Any, key: Any) -> None:
        filter = Filter(statuses=tuple(statuses), cause=cause, queue=queue, key=key)
        self.both(lambda store, _: all_jobs(store, tenant, filter))

    @rule(tenant=TENANTS)
    def look(self, tenant: str) -> None:
        self.compare_state(tenant)

    @initialize(retention=st.sampled_from([1, 3600]))
    def set_retention(self, retention: int) -> None:
        command = ConfigureQueue("emails", {"retention_seconds": retention, "lease_seconds": 10}, "ada")
        self.both(lambda store, _: store.configure("acme", [command]))


async def all_jobs(store: Store, tenant: str, filter: Filter) -> list[Job]:
    """Every job that matches, page by page; where the pages end is the store's own affair."""
    jobs: list[Job] = []
    after: JobId | None = None
    while True:
        page = await store.find(tenant, filter, after=after, limit=3)
        jobs += page.jobs
        after = page.next
        if after is None:
            return jobs


def without_tokens(value: Any) -> Any:
    """An answer with each token replaced by the lease it stands for, and errors as comparable values."""
    match value:
        case PenstockError():
            return type(value), value.message, value.facts
        case Lease() | Attempt() | Leased():
            value = replace(value, token=LeaseToken("the token"))
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), {
            field.name: without_tokens(getattr(value, field.name)) for field in fields(value)
        }
    if isinstance(value, (list, tuple)):
        return [without_tokens(item) for item in value]
    return value


def _leased(answers: Sequence[Any]) -> list[Leased]:
    return [leased for answer in answers for leased in answer]


def _seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
