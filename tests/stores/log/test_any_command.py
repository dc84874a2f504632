"""Whatever gets into a log can be read back and applied, alike for who asked and who reads: one that cannot stops everyone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from random import Random
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from penstock import Queue
from penstock.core import bounds
from penstock.core.codec import JsonText
from penstock.core.commands import (
    Ack,
    CancelJob,
    ConfigureQueue,
    Discard,
    DropSchedule,
    Fire,
    Heartbeat,
    LeaseJobs,
    Nack,
    PutSchedule,
    RedriveJob,
    Release,
    Snooze,
)
from penstock.core.errors import InvalidInput, PenstockError
from penstock.core.job import JobId, LeaseToken, NewJob
from penstock.core.limits import Rate
from penstock.core.registry import Insight, PutEntry, Spend
from penstock.core.retry import Retry
from penstock.core.schedule import NO_ID, Schedule
from penstock.server.checks import checked, checked_job
from penstock.stores.log.backings.memory import MemoryTape
from penstock.stores.log.entry import LogEntry, Op, Written, entry, read, write
from penstock.stores.log.state import State
from penstock.stores.log.store import LogStore

WRITER = b"w" * 16
LONGEST = float(bounds.LONGEST_SECONDS)
IDS = [JobId(str(UUID(int=number))) for number in (0, 1, 2, 3, 5, 8, 13, 2**128 - 1)]
BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
FAR_EAST = timezone(timedelta(hours=14))
ENTRIES = 1_500


class Asking:
    """Commands of all kinds, near their limits; a service would let each through."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.now = BEGUN
        self.held: dict[LeaseToken, JobId] = {}

    def key(self) -> str:
        return self.dice.choice(["k", "é", "\U0001f600", "a" * 512, " ", "x\ty", "rule:x"])

    def queue(self) -> str:
        return self.dice.choice(["a", "b", "a/b"])

    def seconds(self) -> float:
        return self.dice.choice([0, 1, 1.5, 30, LONGEST - 0.1, LONGEST])

    def span(self) -> timedelta:
        return timedelta(seconds=self.dice.choice([0, 1e-6, 0.5, 1, 30, 3600, LONGEST]))

    def text(self) -> JsonText:
        texts = ["{}", "null", '{"a":1.0}', '{"a":[1,{"b":"\\ud83d\\ude00"}]}', "1e300", "-0.0"]
        return JsonText(self.dice.choice(texts))

    def rate(self) -> Rate:
        return self.dice.choice([Rate(1, 0.001), Rate(1, LONGEST), Rate(10**6, 1, 10**6), Rate(3, 0.7)])

    def retry(self) -> Retry:
        return self.dice.choice(
            [
                Retry.fixed(0),
                Retry.linear(LONGEST, cap=LONGEST),
                Retry.exponential(0, factor=100, cap=LONGEST, jitter=1),
                Retry.exponential(LONGEST, factor=100, cap=LONGEST, jitter=1),
                Retry.exponential(1e-9, factor=1.0000001),
            ]
        )

    def perhaps(self, value: Callable[[], Any]) -> Any:
        return value() if self.dice.random() < 0.6 else None

    def moment(self) -> datetime:
        near = self.now + timedelta(seconds=self.dice.choice([-5, 0, 1, 30, 100]))
        return self.dice.choice([bounds.EARLIEST, bounds.LATEST, BEGUN, near, near.astimezone(FAR_EAST)])

    def job(self) -> NewJob:
        dice = self.dice
        when: dict[str, Any] = dice.choice([{}, {"run_at": self.moment()}, {"delay": self.span()}])
        until: dict[str, Any] = dice.choice([{}, {"expires_at": self.moment()}, {"expires_in": self.span()}])
        return checked_job(
            NewJob(
                dice.choice(IDS),
                "t",
                self.queue(),
                self.text(),
                priority=dice.choice([-32_768, 0, 5, 32_767]),
                max_attempts=self.perhaps(lambda: dice.choice([1, 2, 1_000])),
                retry=self.perhaps(self.retry),
                key=self.perhaps(self.key),
                ordering_key=self.perhaps(self.key),
                unique_key=self.perhaps(self.key),
                idempotency_key=self.perhaps(self.key),
                idempotency_window=dice.choice([timedelta(microseconds=1), timedelta(seconds=LONGEST)]),
                parents=tuple(dice.sample(IDS, dice.choice([0, 0, 1, 3]))),
                headers=self.perhaps(lambda: JsonText(dice.choice(["{}", '{"traceparent":"x"}', '{"a":1}']))),
                **when,
                **until,
            )
        )

    def settle(self) -> Any:
        dice = self.dice
        token = dice.choice([*self.held, LeaseToken("x"), LeaseToken("é")])
        job_id = self.held.get(token, dice.choice(IDS))
        asked: list[Callable[[], Any]] = [
            lambda: Ack(job_id, token, self.text(), self.perhaps(lambda: "log")),
            lambda: Nack(
                job_id, token, "e" * 40, dice.random() < 0.8, self.perhaps(self.span), 0.9999999999, None
            ),
            lambda: Release(job_id, token, self.perhaps(self.span)),
            lambda: Snooze(job_id, token, self.span()),
            lambda: Discard(job_id, token, self.perhaps(lambda: "why")),
        ]
        return checked(dice.choice(asked)(), None)

    def settings(self) -> dict[str, Any]:
        dice = self.dice
        every = {
            "paused": dice.random() < 0.1,
            "max_concurrency": self.perhaps(lambda: dice.choice([1, 10**6])),
            "max_concurrency_per_key": self.perhaps(lambda: 1),
            "rate": self.perhaps(self.rate),
            "rate_per_key": self.perhaps(self.rate),
            "fair": dice.random() < 0.5,
            "retry": self.retry(),
            "lease_seconds": dice.choice([1, 1.5, 86_400]),
            "retention_seconds": dice.choice([0, 1, LONGEST]),
        }
        return {name: value for name, value in every.items() if dice.random() < 0.3}

    def schedule(self) -> Schedule:
        job = NewJob(NO_ID, "t", self.queue(), self.text(), ordering_key=self.perhaps(self.key))
        return Schedule(self.dice.choice("sz"), "* * * * *", job, next_fire_at=self.perhaps(self.moment))

    def call(self) -> Written:
        dice = self.dice
        fires = lambda: [  # noqa: E731
            checked(Fire(dice.choice("sz"), self.moment(), (self.moment(),), self.perhaps(self.moment)), None)
        ]
        calls: dict[str, Callable[[], Sequence[Any]]] = {
            "enqueue": lambda: [self.job() for _ in range(dice.choice([1, 3]))],
            "lease": lambda: [checked(LeaseJobs(self.queue(), "w", dice.choice([1, 1_000]), self.perhaps(lambda: 2.5)), None)],
            "settle": lambda: [self.settle()],
            "heartbeat": lambda: [Heartbeat(dice.choice(IDS), dice.choice([*self.held, LeaseToken("x")]), None)],
            "cancel": lambda: [CancelJob(dice.choice(IDS), "me", None)],
            "redrive": lambda: [RedriveJob(dice.choice(IDS), "me", None, dice.random() < 0.7)],
            "configure": lambda: [checked(ConfigureQueue(self.queue(), self.settings(), "me"), None)],
            "put_schedules": lambda: [PutSchedule(self.schedule(), "me")],
            "drop_schedules": lambda: [DropSchedule(dice.choice("sz"), "me")],
            "fire": fires,
            "pass_on": fires,
            "deliver": lambda: [structs.replace(self.job(), run_at=self.moment(), delay=None, schedule="s")],
            "put_entries": lambda: [checked(PutEntry("k", "n", self.perhaps(self.text), None, self.perhaps(self.seconds)), None)],
            "spend": lambda: [checked(Spend("x", dice.choice([0, 5]), dice.choice([0.1, 1e6, 1e-300]), 10.0), None)],
            "lead": lambda: ("o", dice.choice("ab"), dice.choice([0, 1, 86_400])),
            "sweep": lambda: (dice.choice([0, 10, 10**6]), self.perhaps(self.moment)),
            "tick": tuple,
            "next_at": lambda: [self.queue(), self.queue()],
            "put_insights": lambda: [Insight("T", "n", self.now, self.text())],
        }  # fmt: skip
        verb = dice.choice([*calls, *["enqueue", "lease", "settle"] * 4])
        return write(verb, "" if verb in ("lead", "sweep", "put_insights") else "T", calls[verb]())


def told(answer: Any) -> Any:
    """An answer as it can be compared."""
    if isinstance(answer, PenstockError):
        return type(answer).__name__, answer.message
    return [told(one) for one in answer] if isinstance(answer, list | tuple) else answer


@pytest.mark.parametrize("seed", range(4))
def test_who_asked_and_who_reads_come_to_the_same(seed: int) -> None:
    asking, ours, theirs = Asking(seed), State(), State()
    for number in range(1, ENTRIES):
        asking.now += timedelta(seconds=asking.dice.choice([0, 1e-6, 1, 40, 4_000, 90_000]))
        calls = [asking.call() for _ in range(asking.dice.choice([1, 2]))]
        found = read("log", number, entry(WRITER, number, asking.now, [call.data for call in calls]))
        answers = ours.apply(number, LogEntry(WRITER, number, asking.now, [call.op for call in calls]))
        assert told(answers) == told(theirs.apply(number, found)), (number, calls)
        leased = [
            one
            for call, answer in zip(calls, answers, strict=True)
            if call.op.verb == "lease"
            for one in answer[0]
        ]
        asking.held.update({one.token: one.job.id for one in leased})
    assert ours.parts.machines["T"].ledger.jobs == theirs.parts.machines["T"].ledger.jobs


@pytest.mark.parametrize(
    "changes",
    [
        {"priority": 1.5},
        {"queue": None},
        {"key": 3},
        {"max_attempts": True},
        {"run_at": datetime(2026, 1, 1)},  # noqa: DTZ001 - of no time zone, and so of no moment
        {"payload": {"a": 1}},
        {"priority": 2**70},
        {"type": "half of a character: \ud800"},
    ],
)
async def test_what_nobody_could_read_is_refused_and_not_written(changes: dict[str, Any]) -> None:
    """Values that were made by hand come by no check."""
    tape = MemoryTape()
    async with Queue(LogStore.on(tape)) as queue:
        asked = structs.replace(queue.new("t", {}), **changes)
        with pytest.raises(InvalidInput, match="of the types it takes"):
            await queue.enqueue_many([asked])
        assert await tape.last() == 0


@pytest.mark.parametrize("changes", [{"payload": "{"}, {"headers": "[]"}, {"headers": "{"}])
async def test_text_that_is_no_json_stops_nobody(changes: dict[str, Any]) -> None:
    tape = MemoryTape()
    async with Queue(LogStore.on(tape)) as queue, Queue(LogStore.on(tape)) as other:
        asked = structs.replace(queue.new("t", {}, idempotency_key="k"), **changes)
        for _ in range(2):
            [answer] = await queue.enqueue_many([asked])
            assert not isinstance(answer, PenstockError)
        await other.enqueue("t")
        assert (await other.get(asked.id)).id == asked.id


async def test_a_moment_of_another_zone_is_the_same_request_to_everyone() -> None:
    tape = MemoryTape()
    async with Queue(LogStore.on(tape)) as queue, Queue(LogStore.on(tape)) as other:
        asked = structs.replace(queue.new("t", {}, idempotency_key="k"), run_at=BEGUN.astimezone(FAR_EAST))
        await queue.enqueue_many([asked])
        [again] = await other.enqueue_many([structs.replace(asked, run_at=BEGUN)])
        assert not isinstance(again, PenstockError)


def test_an_allowance_that_never_fills_up_again_stops_nobody() -> None:
    spend = checked(Spend("x", 1.0, 1e-300, 2.0), None)
    calls = [Op("spend", "T", [spend])] * 2
    assert [len(answer) for answer in State().apply(1, LogEntry(WRITER, 1, BEGUN, calls))] == [1, 1]
