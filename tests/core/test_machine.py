"""The machine as a log store needs it: alike everywhere, choosing without a trace, refusing without a change."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.core import ordering
from penstock.core.commands import (
    Ack,
    Discard,
    DropSchedule,
    Duplicate,
    Enqueued,
    Filter,
    Fire,
    Heartbeat,
    Leased,
    Nack,
    PutSchedule,
    Release,
    Settle,
    Snooze,
    TakeJob,
)
from penstock.core.errors import (
    IdConflict,
    IdempotencyConflict,
    InvalidInput,
    JobNotFound,
    LeaseLost,
    NotAllowed,
    NotLeasable,
    ParentFailed,
    ParentNotFound,
    PenstockError,
    ScheduleNotFound,
    UniqueConflict,
)
from penstock.core.job import Cause, JobId, LeaseToken, Status
from penstock.core.limits import Rate
from penstock.core.requests import new_schedule
from penstock.core.retry import Retry
from penstock.testing import START
from support.bench import Bench, ids, state

NOBODY = JobId("01890000-0000-7000-8000-000000000000")
NO_TOKEN = LeaseToken("never given")
SECOND = timedelta(seconds=1)


pytestmark = pytest.mark.usefixtures("no_endless_loop")


# ── A random life ─────────────────────────────────────────────────────────────────────────────────

SETTINGS: list[dict[str, Any]] = [
    {"fair": True},
    {"fair": False},
    {"max_concurrency": 4},
    {"max_concurrency": None},
    {"max_concurrency_per_key": 1},
    {"max_concurrency_per_key": None},
    {"rate": Rate(2, per=3, burst=2)},
    {"rate": None},
    {"rate_per_key": Rate(1, per=4)},
    {"rate_per_key": None},
    {"paused": True},
    {"paused": False},
    {"paused": False},
    {"retention_seconds": 20},
]


class Life(Bench):
    """A machine that lives through random commands; the same seed gives the same life."""

    def __init__(self, seed: int, *, choosing: bool = False) -> None:
        super().__init__(lease_seconds=15, retry=Retry.fixed(3), max_attempts=3)
        self.dice = random.Random(seed)
        self.choosing = choosing
        self.known: list[JobId] = [NOBODY]
        self.held: list[Leased] = []
        self.answers: list[object] = []

    def live(self, steps: int) -> None:
        deeds = [
            *[self._enqueue] * 6, *[self._lease] * 5, *[self._settle] * 5, *[self._pass_time] * 4,
            self._cancel, self._redrive, self._configure, self._beat, self._take, self._prune,
        ]  # fmt: skip
        for _ in range(steps):
            deed = self.dice.choice(deeds)
            if self.choosing:
                self.choose(limit=7)
            try:
                self.answers.append(deed())
            except PenstockError as error:
                self.answers.append((type(error), error.facts))

    def _enqueue(self) -> object:
        dice = self.dice
        options: dict[str, Any] = {
            "priority": dice.choice([0, 0, 0, 5]),
            "key": dice.choice([None, "a", "b", "c"]),
        }
        if dice.random() < 0.3:
            options["ordering_key"] = dice.choice("xy")
        if dice.random() < 0.2:
            options["delay"] = dice.choice([1, 6])
        if dice.random() < 0.1:
            options["unique_key"] = "only"
        if dice.random() < 0.1:
            options["expires_in"] = dice.choice([0, 4])
        if dice.random() < 0.1:
            options["on_exhausted"] = "hold"
        if dice.random() < 0.2:
            options |= {
                "parents": [dice.choice(self.known)],
                "on_parent_failure": dice.choice(["run", "cancel"]),
            }
        enqueued = self.machine.enqueue(self.new(**options), self.now)
        self.known.append(enqueued.id)
        return enqueued

    def _lease(self) -> object:
        leased = self.lease(self.dice.randint(1, 5))
        self.held += leased
        return leased

    def _take(self) -> object:
        leased = self.take(self.dice.choice(self.known))
        self.held.append(leased)
        return leased

    def _settle(self) -> object:
        if not self.held:
            return None
        held = self.dice.choice(self.held)
        job_id, token = held.id, held.token
        ways: list[Settle] = [
            Ack(job_id, token), Nack(job_id, token, "boom"), Nack(job_id, token, "no", retry=False),
            Release(job_id, token), Snooze(job_id, token, 2 * SECOND), Discard(job_id, token),
        ]  # fmt: skip
        return self.machine.settle(self.dice.choice(ways), self.now)

    def _beat(self) -> object:
        return self.heartbeat(self.dice.choice(self.held)) if self.held else None

    def _cancel(self) -> object:
        return self.cancel(self.dice.choice(self.known))

    def _redrive(self) -> object:
        return self.redrive(self.dice.choice(self.known))

    def _configure(self) -> object:
        changes = self.dice.choice(SETTINGS)
        self.configure(**changes)
        return changes

    def _pass_time(self) -> object:
        self.wait(self.dice.choice([0, 0.5, 1, 3, 20]))
        return self.now

    def _prune(self) -> object:
        return self.prune()


SEEDS = range(12)


class TestDeterminism:
    def test_which_turn_is_forgotten_does_not_depend_on_who_looked_when(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Replicas of a log apply the same commands, but look at different times."""
        monkeypatch.setattr(ordering, "MOST_IDLE_GROUPS", 1)

        def lived(looks: bool) -> list[Any]:
            bench = Bench(fair=True)
            kept = [bench.enqueue(key=key) for key in "ab"]
            for _ in kept:
                bench.ack(bench.lease_one())
            later = [bench.enqueue(key=key, delay=5) for key in "ab"]
            bench.wait(10)
            if looks:
                bench.machine.next_at(["default"], bench.now)
            for job_id in reversed(later):
                bench.cancel(job_id)
                if looks:
                    bench.machine.next_at(["default"], bench.now)
            bench.enqueue(key="c")
            bench.ack(bench.lease_one())
            return list(bench.machine.ledger.lane("default").used()[2].items())

        assert lived(looks=True) == lived(looks=False)

    def test_the_fate_of_children_is_decided_by_their_ids_not_by_who_came_first(self) -> None:
        bench = Bench()
        parent = bench.enqueue()
        second, first = (bench.new(parents=[parent]) for _ in range(2))
        for child in (first, second):
            bench.machine.enqueue(child, bench.now)
        assert bench.cancel(parent).others == (second.id, first.id)

    @pytest.mark.parametrize("seed", SEEDS)
    def test_the_same_commands_at_the_same_times_give_the_same_answers_and_state(self, seed: int) -> None:
        one, two = Life(seed), Life(seed)
        one.live(250)
        two.live(250)
        assert one.answers == two.answers
        assert state(one) == state(two)

    def test_it_does_not_matter_how_often_time_is_told(self) -> None:
        often, seldom = Bench(lease_seconds=5), Bench(lease_seconds=5)
        for bench in (often, seldom):
            for _ in range(3):
                bench.enqueue(max_attempts=1)
            bench.enqueue(expires_in=7)
            bench.lease(3)
        for _ in range(20):
            often.wait(0.5)
        seldom.wait(10)
        assert state(often) == state(seldom)


# ── Choosing ──────────────────────────────────────────────────────────────────────────────────────


def mixed(bench: Bench) -> None:
    """Jobs of two priorities and three keys, some behind ordering keys, some not due."""
    for number in range(12):
        bench.enqueue(
            priority=5 if number % 5 == 0 else 0,
            key=[None, "a", "a", "b"][number % 4],
            ordering_key="line" if number % 3 == 0 else None,
            delay=60 if number == 7 else None,
        )


CHOICES: dict[str, dict[str, Any]] = {
    "plain": {},
    "fair": {"fair": True},
    "concurrency": {"max_concurrency": 3},
    "concurrency per key": {"max_concurrency_per_key": 1},
    "rate": {"rate": Rate(1, per=10, burst=3)},
    "rate per key": {"rate_per_key": Rate(1, per=10, burst=2)},
    "rate and concurrency per key": {"rate_per_key": Rate(5), "max_concurrency_per_key": 2},
    "everything": {
        "fair": True,
        "max_concurrency": 9,
        "max_concurrency_per_key": 2,
        "rate": Rate(1, per=10, burst=7),
        "rate_per_key": Rate(1, per=10, burst=2),
    },
    "paused": {"paused": True},
}


class TestChoose:
    @pytest.mark.parametrize("limit", [1, 3, 100])
    @pytest.mark.parametrize("settings", CHOICES.values(), ids=CHOICES)
    def test_equals_what_lease_then_takes_in_order(self, settings: dict[str, Any], limit: int) -> None:
        bench = Bench(**settings)
        mixed(bench)
        chosen = bench.choose(limit)
        assert ids(bench.lease(limit)) == chosen

    @pytest.mark.parametrize("settings", CHOICES.values(), ids=CHOICES)
    def test_equals_it_after_leases_were_settled_and_time_has_passed(self, settings: dict[str, Any]) -> None:
        bench = Bench(**settings)
        mixed(bench)
        for number, leased in enumerate(bench.lease(5)):
            [bench.ack, bench.nack, bench.release][number % 3](leased)
        bench.wait(11)
        chosen = bench.choose()
        assert ids(bench.lease(100)) == chosen

    @pytest.mark.parametrize("settings", CHOICES.values(), ids=CHOICES)
    def test_changes_nothing(self, settings: dict[str, Any]) -> None:
        bench = Bench(**settings)
        mixed(bench)
        before = state(bench)
        first = bench.choose()
        assert bench.choose() == first
        assert state(bench) == before

    def test_of_one_job_leaves_it_whole(self) -> None:
        bench = Bench()
        job_id = bench.enqueue()
        assert bench.choose() == [job_id]
        leased = bench.lease_one()
        assert bench.choose() == []
        assert bench.ack(leased).status is Status.SUCCEEDED

    def test_does_not_use_up_a_turn(self) -> None:
        bench = Bench(fair=True)
        first, _, third = bench.enqueue(key="a"), bench.enqueue(key="a"), bench.enqueue(key="b")
        for _ in range(3):
            bench.choose(1)
        assert ids(bench.lease(2)) == [first, third]

    def test_does_not_use_up_a_rate(self) -> None:
        bench = Bench(rate=Rate(1, per=10), rate_per_key=Rate(1, per=10))
        job_id = bench.enqueue(key="a")
        bench.choose()
        assert ids(bench.lease()) == [job_id]

    def test_takes_only_the_first_of_an_ordering_key(self) -> None:
        bench = Bench()
        first, _ = bench.enqueue(ordering_key="line"), bench.enqueue(ordering_key="line")
        assert bench.choose() == [first]

    def test_of_a_queue_nobody_knows_is_nothing_and_makes_no_queue(self) -> None:
        bench = Bench()
        assert bench.choose(queue="nowhere") == []
        assert bench.machine.queues() == []

    @pytest.mark.parametrize("seed", SEEDS)
    def test_leaves_no_trace_in_a_long_life(self, seed: int) -> None:
        choosing, plain = Life(seed, choosing=True), Life(seed)
        choosing.live(250)
        plain.live(250)
        assert choosing.answers == plain.answers
        assert state(choosing) == state(plain)

    @pytest.mark.parametrize("seed", SEEDS)
    def test_equals_what_lease_takes_anywhere_in_a_long_life(self, seed: int) -> None:
        life = Life(seed)
        for _ in range(30):
            life.live(8)
            chosen = life.choose(4)
            leased = life.lease(4)
            life.held += leased
            assert ids(leased) == chosen


# ── Taking under guard ────────────────────────────────────────────────────────────────────────────


def _not_queued(bench: Bench) -> JobId:
    bench.enqueue()
    return bench.lease_one().id


def _not_due(bench: Bench) -> JobId:
    return bench.enqueue(delay=1)


def _paused(bench: Bench) -> JobId:
    bench.configure(paused=True)
    return bench.enqueue()


def _queue_full(bench: Bench) -> JobId:
    bench.configure(max_concurrency=1)
    bench.enqueue()
    bench.lease_one()
    return bench.enqueue()


def _key_full(bench: Bench) -> JobId:
    bench.configure(max_concurrency_per_key=1)
    bench.enqueue(key="a")
    bench.lease_one()
    return bench.enqueue(key="a")


def _queue_rate(bench: Bench) -> JobId:
    bench.configure(rate=Rate(1, per=10))
    bench.enqueue()
    bench.ack(bench.lease_one())
    return bench.enqueue()


def _key_rate(bench: Bench) -> JobId:
    bench.configure(rate_per_key=Rate(1, per=10))
    bench.enqueue(key="a")
    bench.ack(bench.lease_one())
    return bench.enqueue(key="a")


def _behind_one_that_runs(bench: Bench) -> JobId:
    bench.enqueue(ordering_key="line")
    bench.lease_one()
    return bench.enqueue(ordering_key="line")


def _behind_one_that_waits(bench: Bench) -> JobId:
    bench.enqueue(ordering_key="line")
    return bench.enqueue(ordering_key="line")


def _behind_one_that_is_held(bench: Bench) -> JobId:
    bench.enqueue(ordering_key="line", max_attempts=1, on_exhausted="hold")
    bench.nack(bench.lease_one())
    return bench.enqueue(ordering_key="line")


GUARDS: dict[str, tuple[Callable[[Bench], JobId], str]] = {
    "not queued": (_not_queued, "it is running"),
    "not due": (_not_due, "it is due at 2026-01-01T12:00:01+00:00"),
    "paused": (_paused, "the queue is paused"),
    "queue concurrency": (_queue_full, "the queue runs its 1 jobs at once already"),
    "key concurrency": (_key_full, "the key 'a' runs its 1 jobs at once already"),
    "queue rate": (_queue_rate, "the queue's rate is used up until 2026-01-01T12:00:10+00:00"),
    "key rate": (_key_rate, "the rate of the key 'a' is used up until 2026-01-01T12:00:10+00:00"),
    "behind a running one": (_behind_one_that_runs, "another job with the ordering key 'line' goes first"),
    "behind a waiting one": (_behind_one_that_waits, "another job with the ordering key 'line' goes first"),
    "behind a held one": (_behind_one_that_is_held, "another job with the ordering key 'line' goes first"),
}


class TestTake:
    @pytest.mark.parametrize(("prepare", "reason"), GUARDS.values(), ids=GUARDS)
    def test_is_refused_with_the_reason_and_changes_nothing(
        self, prepare: Callable[[Bench], JobId], reason: str
    ) -> None:
        bench = Bench()
        job_id = prepare(bench)
        before = state(bench)
        with pytest.raises(NotLeasable) as refused:
            bench.take(job_id)
        assert refused.value.facts == {"job_id": job_id, "reason": reason}
        assert state(bench) == before

    @pytest.mark.parametrize("name", ["not due", "queue rate", "key rate"])
    def test_is_allowed_once_time_has_opened_the_door(self, name: str) -> None:
        bench = Bench()
        job_id = GUARDS[name][0](bench)
        bench.wait(10)
        assert bench.take(job_id).job.status is Status.RUNNING

    def test_leases_as_lease_does(self) -> None:
        taken, leased = Bench(), Bench()
        job_id = taken.enqueue(key="a", ordering_key="line")
        leased.enqueue(key="a", ordering_key="line")
        token = next(taken.tokens)
        answer = taken.machine.take(TakeJob(job_id, token, "w1"), taken.now)
        assert [answer] == leased.lease()
        assert state(taken) == state(leased)

    def test_shows_what_parents_gave(self) -> None:
        bench = Bench()
        parent = bench.enqueue()
        child = bench.enqueue(parents=[parent])
        bench.ack(bench.lease_one())
        assert [each.id for each in bench.take(child).parents] == [parent]

    def test_refuses_a_stale_choice_that_another_writer_was_faster_with(self) -> None:
        bench = Bench()
        bench.enqueue()
        [chosen] = bench.choose()
        winner = bench.take(chosen)
        before = state(bench)
        with pytest.raises(NotLeasable, match="it is running"):
            bench.take(chosen)
        assert state(bench) == before
        assert bench.ack(winner).status is Status.SUCCEEDED

    def test_refuses_the_rest_of_a_stale_choice_when_the_limit_is_reached_meanwhile(self) -> None:
        bench = Bench(max_concurrency=2)
        jobs = [bench.enqueue() for _ in range(4)]
        mine = bench.choose()
        bench.take(jobs[3])
        bench.take(mine[0])
        with pytest.raises(NotLeasable, match="at once already"):
            bench.take(mine[1])
        assert [bench.status(job_id) for job_id in jobs] == [
            Status.RUNNING, Status.QUEUED, Status.QUEUED, Status.RUNNING,
        ]  # fmt: skip

    def test_does_not_know_a_job_that_never_was(self) -> None:
        with pytest.raises(JobNotFound):
            Bench().take(NOBODY)

    def test_counts_towards_the_limits_like_any_lease(self) -> None:
        bench = Bench(max_concurrency_per_key=1, rate=Rate(1, per=1, burst=2))
        bench.enqueue(key="a")
        second, other = bench.enqueue(key="a"), bench.enqueue(key="b")
        bench.take(second)
        assert ids(bench.lease(5)) == [other]

    @pytest.mark.parametrize("fair", [False, True])
    def test_out_of_order_leaves_later_leases_right(self, fair: bool) -> None:
        bench = Bench(fair=fair)
        jobs = [bench.enqueue(priority=number % 2) for number in range(8)]
        for place in (4, 3, 6):
            bench.take(jobs[place])
        assert ids(bench.lease(10)) == [jobs[1], jobs[5], jobs[7], jobs[0], jobs[2]]

    def test_out_of_order_and_given_back_is_in_its_place_again(self) -> None:
        bench = Bench()
        jobs = [bench.enqueue() for _ in range(4)]
        bench.release(bench.take(jobs[2]))
        assert ids(bench.lease(10)) == jobs

    def test_out_of_order_does_not_confuse_an_ordering_key(self) -> None:
        bench = Bench()
        other = bench.enqueue()
        line = [bench.enqueue(ordering_key="line") for _ in range(3)]
        bench.ack(bench.take(line[0]))
        bench.ack(bench.take(line[1]))
        assert ids(bench.lease(10)) == [other, line[2]]

    def test_of_every_job_in_reverse_leaves_nothing_to_lease(self) -> None:
        bench = Bench()
        jobs = [bench.enqueue(key="ab"[number % 2]) for number in range(10)]
        taken = [bench.take(job_id) for job_id in reversed(jobs)]
        assert bench.lease(10) == []
        assert {bench.ack(each).status for each in taken} == {Status.SUCCEEDED}


class TestLease:
    def test_gives_a_released_job_out_again_at_once(self) -> None:
        bench = Bench()
        job_id = bench.enqueue()
        assert bench.release(bench.lease_one()).status is Status.QUEUED
        assert ids(bench.lease()) == [job_id]

    def test_ends_although_a_key_is_full_whose_rate_has_opened_again(self) -> None:
        bench = Bench(rate_per_key=Rate(10), max_concurrency_per_key=1)
        first, second = bench.enqueue(key="a"), bench.enqueue(key="a")
        [leased] = bench.lease(5)
        bench.wait(5)
        assert bench.lease(5) == []
        bench.ack(leased)
        assert [leased.id, *ids(bench.lease(5))] == [first, second]


class TestFind:
    def test_shows_a_job_once_that_was_pruned_and_enqueued_again(self) -> None:
        bench = Bench(retention_seconds=0)
        asked = bench.new()
        bench.machine.enqueue(asked, bench.now)
        others = [bench.enqueue(), bench.enqueue()]
        bench.cancel(asked.id)
        assert bench.prune() == 1
        bench.machine.enqueue(asked, bench.now)
        found = [job.id for job in bench.machine.find(Filter(), None, 10).jobs]
        assert sorted(found) == sorted([asked.id, *others])


# ── Refusals ──────────────────────────────────────────────────────────────────────────────────────


class Town(Bench):
    """One job in every state, a schedule, and keys in use."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = self.new(idempotency_key="request-1")
        self.succeeded = self.machine.enqueue(self.asked, self.now).id
        self.over = self.lease_one()
        self.ack(self.over)
        self.dead = self.enqueue()
        self.nack(self.lease_one(), retry=False)
        self.held = self.enqueue(on_exhausted="hold")
        self.nack(self.lease_one(), retry=False)
        self.orphan = self.enqueue(parents=[self.dead])
        self.ousted = self.enqueue(unique_key="only")
        self.cancel(self.ousted)
        self.enqueue(unique_key="only", delay=60)
        self.running = self.enqueue()
        self.lapsed = self.lease_one()
        self.wait(31)
        self.live = self.lease_one()
        self.waiting = self.enqueue(parents=[self.running])
        self.queued = self.enqueue()
        schedule = new_schedule("hourly", "0 * * * *", {"type": "report"})
        self.machine.put_schedule(PutSchedule(schedule, "ada"), self.now)


def _with(
    job: Callable[[Town], JobId], token: Callable[[Town], LeaseToken]
) -> dict[str, Callable[[Town], Any]]:
    """Everything that needs a live token, done with this one."""
    return {
        "ack": lambda town: town.machine.settle(Ack(job(town), token(town)), town.now),
        "nack": lambda town: town.machine.settle(Nack(job(town), token(town), "no", retry=False), town.now),
        "release": lambda town: town.machine.settle(Release(job(town), token(town)), town.now),
        "snooze": lambda town: town.machine.settle(Snooze(job(town), token(town), SECOND), town.now),
        "discard": lambda town: town.machine.settle(Discard(job(town), token(town)), town.now),
        "heartbeat": lambda town: town.machine.heartbeat(Heartbeat(job(town), token(town)), town.now),
    }


IN_OTHER_HANDS = {
    "that lost its lease": _with(lambda town: town.running, lambda town: town.lapsed.token),
    "of another job": _with(lambda town: town.queued, lambda town: town.live.token),
    "nobody had": _with(lambda town: town.waiting, lambda town: NO_TOKEN),
}

REFUSED: dict[str, tuple[type[PenstockError], Callable[[Town], Any]]] = {
    "enqueue another body under a known id": (
        IdConflict, lambda town: town.machine.enqueue(replace(town.asked, priority=1), town.now)
    ),
    "enqueue another body under a known key": (
        IdempotencyConflict, lambda town: town.enqueue(idempotency_key="request-1", priority=1)
    ),
    "enqueue below no parent": (ParentNotFound, lambda town: town.enqueue(parents=[NOBODY])),
    "enqueue below one parent of two in a new queue": (
        ParentNotFound, lambda town: town.enqueue(parents=[town.queued, NOBODY], queue="elsewhere")
    ),
    **{
        f"{verb} with a token {whose}": (LeaseLost, act)
        for whose, acts in IN_OTHER_HANDS.items()
        for verb, act in acts.items()
    },
    **{
        f"{verb} a job that never was": (JobNotFound, act)
        for verb, act in _with(lambda town: NOBODY, lambda town: town.live.token).items()
    },
    "nack what was acked": (LeaseLost, lambda town: town.nack(town.over)),
    "cancel a succeeded job": (NotAllowed, lambda town: town.cancel(town.succeeded)),
    "cancel a dead job": (NotAllowed, lambda town: town.cancel(town.dead)),
    "cancel a job that never was": (JobNotFound, lambda town: town.cancel(NOBODY)),
    "redrive a succeeded job": (NotAllowed, lambda town: town.redrive(town.succeeded)),
    "redrive a queued job": (NotAllowed, lambda town: town.redrive(town.queued)),
    "redrive a running job": (NotAllowed, lambda town: town.redrive(town.running)),
    "redrive a waiting job": (NotAllowed, lambda town: town.redrive(town.waiting)),
    "redrive a job whose unique key is taken": (UniqueConflict, lambda town: town.redrive(town.ousted)),
    "redrive a job whose parent is dead": (ParentFailed, lambda town: town.redrive(town.orphan)),
    "redrive a job that never was": (JobNotFound, lambda town: town.redrive(NOBODY)),
    "take a running job": (NotLeasable, lambda town: town.take(town.running)),
    "take a waiting job": (NotLeasable, lambda town: town.take(town.waiting)),
    "take a dead job": (NotLeasable, lambda town: town.take(town.dead)),
    "take a job that never was": (JobNotFound, lambda town: town.take(NOBODY)),
    "configure a bad value": (InvalidInput, lambda town: town.configure(paused="yes")),
    "configure a good value and an unknown setting": (
        InvalidInput, lambda town: town.configure(max_concurrency=5, colour="red")
    ),
    "configure a bad value for a new queue": (
        InvalidInput, lambda town: town.configure(queue="elsewhere", paused="yes")
    ),
    "drop a schedule that never was": (
        ScheduleNotFound, lambda town: town.machine.drop_schedule(DropSchedule("daily", "ada"), town.now)
    ),
    "fire a schedule that never was": (
        ScheduleNotFound, lambda town: town.machine.fire(Fire("daily", START, (START,), None), town.now)
    ),
    "get a job that never was": (JobNotFound, lambda town: town.machine.get(NOBODY, town.now)),
    "read the history of a job that never was": (
        JobNotFound, lambda town: town.machine.history(("job", NOBODY), town.now)
    ),
}  # fmt: skip


class TestRefusals:
    def test_are_tried_where_every_state_is(self) -> None:
        assert {job.status for job in Town().machine.find(Filter(), None, 100).jobs} == set(Status)

    @pytest.mark.parametrize(("error", "act"), REFUSED.values(), ids=REFUSED)
    def test_change_nothing(self, error: type[PenstockError], act: Callable[[Town], Any]) -> None:
        town = Town()
        before = state(town)
        with pytest.raises(error):
            act(town)
        assert state(town) == before

    def test_of_an_enqueue_leave_its_keys_free(self) -> None:
        bench = Bench()
        with pytest.raises(ParentNotFound):
            bench.enqueue(parents=[NOBODY], idempotency_key="request-1", unique_key="only")
        asked = bench.new(idempotency_key="request-1", unique_key="only", priority=1)
        assert bench.machine.enqueue(asked, bench.now) == Enqueued(asked.id)

    def test_do_not_hold_up_a_fire_that_another_scheduler_was_faster_with(self) -> None:
        town = Town()
        [schedule] = town.machine.schedules()
        assert schedule.next_fire_at is not None
        fire = Fire("hourly", schedule.next_fire_at, (schedule.next_fire_at,), None)
        [fired] = town.machine.fire(fire, town.now).jobs
        before = state(town)
        assert town.machine.fire(fire, town.now).jobs == ()
        assert fired.duplicate is None
        assert state(town) == before

    def test_of_the_same_id_and_body_are_none(self) -> None:
        town = Town()
        before = state(town)
        assert town.machine.enqueue(town.asked, town.now) == Enqueued(town.asked.id, Duplicate.ID)
        assert state(town) == before


# ── Long chains ───────────────────────────────────────────────────────────────────────────────────


class TestLongChain:
    LENGTH = 5_000

    @pytest.fixture
    def bench(self) -> Bench:
        return Bench()

    @pytest.fixture
    def chain(self, bench: Bench) -> list[JobId]:
        """Jobs of which each waits for the one before."""
        jobs = [bench.enqueue()]
        for _ in range(self.LENGTH - 1):
            jobs.append(bench.enqueue(parents=[jobs[-1]]))
        return jobs

    def test_is_cancelled_with_its_first_job(self, bench: Bench, chain: list[JobId]) -> None:
        assert bench.cancel(chain[0]).others == tuple(chain[1:])
        causes = {bench.machine.get(job_id, bench.now).cause for job_id in chain[1:]}
        assert causes == {Cause.PARENT_FAILED}

    def test_comes_back_with_its_first_job(self, bench: Bench, chain: list[JobId]) -> None:
        bench.cancel(chain[0])
        assert bench.redrive(chain[0]).others == tuple(chain[1:])
        assert bench.status(chain[0]) is Status.QUEUED
        assert {bench.status(job_id) for job_id in chain[1:]} == {Status.WAITING}

    def test_is_pruned_from_its_end(self, bench: Bench, chain: list[JobId]) -> None:
        bench.configure(retention_seconds=0)
        bench.cancel(chain[0])
        while bench.prune():
            pass
        assert bench.machine.find(Filter(), None, 10).jobs == ()
