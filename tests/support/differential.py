"""Random histories against the state machine and a store at once: every answer must agree.

Histories hold commands of every kind, from two tenants, clock moves, requests sent twice because their
reply was lost, tokens long stale, and ids that never were. Both sides get the same commands at the same
times; only lease tokens differ, and are compared by the lease they belong to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from msgspec import Struct
from msgspec.structs import replace

from penstock.core.codec import JsonText
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
from penstock.testing import START, FakeClock, counting_ids

TENANTS = ["acme", "acme", "acme", "acme", "zeta"]
QUEUES = ["emails", "emails", "reports"]
NOBODY = JobId("01890000-0000-7000-8000-000000000000")

RETRIES = [Retry.fixed(2, jitter=0), Retry.linear(3, cap=5), Retry.exponential(1, factor=3, cap=20)]

OPTIONS: list[tuple[str, Any]] = [
    ("priority", -1),
    ("priority", 5),
    ("priority", 5),
    ("delay", 2),
    ("delay", 30),
    ("run_at", START),  # long past, mostly
    ("expires_in", 0),
    ("expires_in", 3),
    ("expires_in", 40),
    ("max_attempts", 1),
    ("max_attempts", 2),
    *(("retry", retry) for retry in RETRIES),
    ("on_exhausted", "hold"),
    ("ordering_key", "o1"),
    ("ordering_key", "o1"),
    ("ordering_key", "o2"),
    ("unique_key", "u1"),
    ("unique_key", "u2"),
    ("idempotency_key", "i1"),
    ("idempotency_key", "i2"),
    ("idempotency_window", 5),
    ("payload", {"n": 1}),
    ("on_parent_failure", "run"),
]

FIRED: list[tuple[str, Any]] = [
    ("priority", 5),
    ("unique_key", "u1"),
    ("ordering_key", "o1"),
    ("expires_in", 3),
]

RECENT = [0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 4, 6, 9, 20]
"""How far back to reach: mostly to leases that are still held, at times to ones long lost."""

SETTLES = [
    "ack",
    "ack",
    "ack",
    "nack",
    "nack",
    "refuse",
    "nack_later",
    "release",
    "release_later",
    "snooze",
    "discard",
]

LIMITS: dict[str, tuple[Any, ...]] = {
    "paused": (False, False, False, True),
    "fair": (False, True),
    "max_concurrency": (None, 1, 2, 3),
    "max_concurrency_per_key": (None, 1, 2),
    "rate": (None, None, Rate(2, per=10, burst=2), Rate(3, per=1)),
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


class History:
    """A random history; the machine behind MemoryStore is the reference, `make_store` makes the store under test."""

    make_store: Callable[[FakeClock], Store] = MemoryStore

    OPTIONS: ClassVar[Sequence[tuple[str, Any]]] = OPTIONS
    MOST_ENQUEUED: ClassVar[int] = 6

    # How often each thing is done, against the others.
    WEIGHTS: ClassVar[dict[str, float]] = {
        "enqueue": 6,
        "lease": 8,
        "settle": 8,
        "heartbeat": 3,
        "pass_time": 4,
        "cancel": 2,
        "redrive": 2,
        "configure": 2,
        "let_everything_go": 1.5,
        "enqueue_again": 1,
        "settle_with_the_token_of_another_job": 0.5,
        "put_schedule": 0.7,
        "drop_schedule": 0.2,
        "fire": 1,
        "sweep": 0.7,
        "find": 0.7,
        "look": 0.5,
    }

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.reference = MemoryStore(self.clock)
        self.store = type(self).make_store(self.clock)
        self.new_id = counting_ids()
        self.sent: list[tuple[str, NewJob]] = []
        self.held: list[Held] = []
        self.tokens: set[LeaseToken] = set()
        self.agreed = True
        command = ConfigureQueue("emails", {"retention_seconds": 100, "lease_seconds": 10}, "ada")
        self.both(lambda store, _: store.configure("acme", [command]))

    def draw(self, dice: Random) -> str:
        """Which verb comes next."""
        [verb] = dice.choices(list(self.WEIGHTS), list(self.WEIGHTS.values()))
        return verb

    def close(self) -> None:
        """Compare what is left in the end, unless something was amiss already."""
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

    def pick(self, tenant: str, dice: Random) -> JobId:
        """Some job of a tenant; now and then one of another tenant or of none."""
        anyones = dice.random() < 0.05
        ids = [job.id for owner, job in self.sent if owner == tenant or anyones]
        return (
            NOBODY
            if not ids or dice.random() < 0.02
            else ids[-1 - min(int(dice.expovariate(0.15)), len(ids) - 1)]
        )

    def recent(self, dice: Random) -> Held:
        return self.held[-1 - dice.choice(RECENT) % len(self.held)]

    # ── Producing ─────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, dice: Random) -> None:
        tenant = dice.choice(TENANTS)
        batch = []
        for _ in range(dice.randint(1, self.MOST_ENQUEUED)):
            # Few options each: a job that asks for everything mostly meets its own duplicates.
            options = dict(dice.choices(self.OPTIONS, k=dice.choice([0, 0, 1, 1, 2, 3])))
            if "delay" in options:
                options.pop("run_at", None)  # one or the other
            options["key"] = dice.choice([None, None, "k1", "k1", "k2", "k3"])
            parents = dict.fromkeys(self.pick(tenant, dice) for _ in range(dice.choice([0, 0, 0, 1, 2])))
            item = {"type": "a", "queue": dice.choice(QUEUES), **options, "parents": tuple(parents)}
            batch.append(new_job(self.new_id(), item))
            self.sent.append((tenant, batch[-1]))
        self.both(lambda store, _: store.enqueue(tenant, batch))

    def enqueue_again(self, dice: Random) -> None:
        """A reply was lost and the request is repeated, or somebody uses the id for something else."""
        if self.sent:
            tenant, job = dice.choice(self.sent)
            again = replace(job, type="c") if dice.random() < 0.3 else job
            self.both(lambda store, _: store.enqueue(tenant, [again]))

    # ── Working ───────────────────────────────────────────────────────────────────────────────────

    def lease(self, dice: Random) -> None:
        command = LeaseJobs(
            dice.choice(QUEUES), "worker", dice.randint(1, 4), dice.choice([None, None, 1, 5])
        )
        self.lease_from_both(dice.choice(TENANTS), command)

    def lease_from_both(self, tenant: str, command: LeaseJobs) -> None:
        expected, answered = self.both(lambda store, _: store.lease(tenant, [command]))
        for ours, theirs in zip(_leased(expected), _leased(answered), strict=True):
            assert theirs.token not in self.tokens, "a token was given twice"
            self.tokens.add(theirs.token)
            self.held.append(Held(tenant, ours.id, (ours.token, theirs.token)))

    def settle(self, dice: Random) -> None:
        """Settle the latest leases or stale ones, once or, after a lost reply, twice."""
        if not self.held:
            return
        chosen = [self.recent(dice) for _ in range(dice.randint(1, 3))]
        tenant, verb, number = chosen[0].tenant, dice.choice(SETTLES), dice.randint(0, 9)
        pairs = [settles(held, verb, number) for held in chosen if held.tenant == tenant]
        expected, _ = self.both(lambda store, side: store.settle(tenant, [pair[side] for pair in pairs]))
        if dice.random() < 0.3:
            again, _ = self.both(lambda store, side: store.settle(tenant, [pair[side] for pair in pairs]))
            assert without_tokens(again) == without_tokens(expected), "a repeated settle answered otherwise"

    def heartbeat(self, dice: Random) -> None:
        if self.held:
            held, seconds = self.recent(dice), dice.choice([None, 1, 20])
            progress = dice.choice([None, JsonText("1")])
            self.both(
                lambda store, side: store.heartbeat(
                    held.tenant, [Heartbeat(held.job_id, held.tokens[side], seconds, progress)]
                )
            )

    def settle_with_the_token_of_another_job(self, dice: Random) -> None:
        if self.held:
            held, thief = self.recent(dice), self.recent(dice)
            if held.job_id != thief.job_id:
                self.both(
                    lambda store, side: store.settle(held.tenant, [Ack(held.job_id, thief.tokens[side])])
                )

    # ── Operating ─────────────────────────────────────────────────────────────────────────────────

    def cancel(self, dice: Random) -> None:
        """Cancel some job, often one that runs."""
        tenant = dice.choice(TENANTS)
        job_id = self.pick(tenant, dice)
        if self.held and dice.random() < 0.4:
            held = self.recent(dice)
            tenant, job_id = held.tenant, held.job_id
        self.both(lambda store, _: store.cancel(tenant, [CancelJob(job_id, "ada", "no longer wanted")]))

    def redrive(self, dice: Random) -> None:
        tenant, descendants = dice.choice(TENANTS), dice.random() < 0.7
        ids = [self.pick(tenant, dice) for _ in range(dice.randint(1, 4))]
        commands = [RedriveJob(job_id, "ada", None, descendants) for job_id in ids]
        self.both(lambda store, _: store.redrive(tenant, commands))

    def configure(self, dice: Random) -> None:
        names = dice.sample(list(LIMITS), k=dice.randint(1, 2))
        changes = {name: dice.choice(LIMITS[name]) for name in names}
        self.configure_both(dice.choice(TENANTS), dice.choice(QUEUES), changes)

    def configure_both(self, tenant: str, queue: str, changes: dict[str, Any]) -> None:
        self.both(lambda store, _: store.configure(tenant, [ConfigureQueue(queue, changes, "ada", None)]))

    def let_everything_go(self, dice: Random) -> None:
        for queue in ("emails", "reports"):
            self.configure_both("acme", queue, {name: off for name, (off, *_) in LIMITS.items()})

    # ── Time ──────────────────────────────────────────────────────────────────────────────────────

    def pass_time(self, dice: Random) -> None:
        self.clock.advance(seconds=dice.choice([0.5, 1, 1, 2, 2, 5, 5, 5, 30, 90, 7200]))

    def put_schedule(self, dice: Random) -> None:
        name, cron = dice.choice(["s1", "s2"]), dice.choice(["* * * * *", "*/30 * * * * *", "0 9 * * *"])
        missed, paused = dice.choice(["skip", "one", "all"]), dice.random() < 0.2
        job = {"type": "a", "queue": "emails", **dict(dice.choices(FIRED, k=1))}
        schedule = new_schedule(name, cron, job, missed=missed, paused=paused, tz="Europe/Paris")
        self.both(lambda store, _: store.put_schedules("acme", [PutSchedule(schedule, "ada")]))

    def drop_schedule(self, dice: Random) -> None:
        name = dice.choice(["s1", "s2"])
        self.both(lambda store, _: store.drop_schedules("acme", [DropSchedule(name, "ada")]))

    def fire(self, dice: Random) -> None:
        """A scheduler fires what is due, and perhaps a second one saw the same."""
        schedules = self.loop.run_until_complete(self.reference.schedules("acme"))
        fires = [fire for schedule in schedules if (fire := plan(schedule, self.clock.now())) is not None]
        for _ in range(dice.randint(1, 2)):
            self.both(lambda store, _: store.fire("acme", fires))

    def sweep(self, dice: Random) -> None:
        exported = dice.choice([None, None, 0, 5000])
        until = None if exported is None else self.clock.now() - _seconds(exported)
        # How much was left for a sweep to notice is the store's own affair; what it leaves behind is not.
        self.both(lambda store, _: store.sweep(limit=1000, exported_until=until), lambda swept: swept.pruned)

    # ── Reading ───────────────────────────────────────────────────────────────────────────────────

    def find(self, dice: Random) -> None:
        tenant, statuses = dice.choice(TENANTS), dice.sample(list(Status), k=dice.randint(0, 2))
        cause, queue, key = (
            dice.choice([None, *Cause]),
            dice.choice([None, "emails"]),
            dice.choice([None, "k1"]),
        )
        filter = Filter(statuses=tuple(statuses), cause=cause, queue=queue, key=key)
        self.both(lambda store, _: all_jobs(store, tenant, filter))

    def look(self, dice: Random) -> None:
        self.compare_state(dice.choice(TENANTS))


class Differential(History, RuleBasedStateMachine):
    """Histories as Hypothesis makes them: one at a time, answer by answer, and made smaller when one fails."""

    def __init__(self) -> None:
        RuleBasedStateMachine.__init__(self)
        History.__init__(self)

    @initialize(seed=st.binary(min_size=8, max_size=8))
    def begin(self, seed: bytes) -> None:
        """Draw one seed for the whole history. Left to draw each step, Hypothesis repeats itself: it found in two
        hundred histories what one seed each finds in three. A failing one is printed and shrinks to its first part.
        """
        self.dice = Random(seed)

    @rule()
    def step(self) -> None:
        getattr(self, self.draw(self.dice))(self.dice)

    def teardown(self) -> None:
        self.close()


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
    if isinstance(value, Struct):
        return type(value), [without_tokens(getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, (list, tuple)):
        return [without_tokens(item) for item in value]
    return value


def _leased(answers: Sequence[Any]) -> list[Leased]:
    return [leased for answer in answers for leased in answer]


def _seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
