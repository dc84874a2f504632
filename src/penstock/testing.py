"""For tests, yours and ours: a clock you move, a queue in memory, jobs that run until nothing is left to do."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID

from msgspec import Struct

from penstock.core.bounds import LONGEST_LEASE_SECONDS
from penstock.core.codec import decode
from penstock.core.commands import Leased
from penstock.core.job import Job, JobId, LeaseToken, NewJob, Status
from penstock.core.requests import new_job
from penstock.queue import Queue
from penstock.stores.memory import MemoryStore

START = datetime(2026, 1, 1, 12, tzinfo=UTC)

Handler = Callable[[Any], object | Awaitable[object]]


class FakeClock:
    """A clock that stands still until it is moved.

    >>> clock = FakeClock()
    >>> clock.advance(minutes=5)
    datetime.datetime(2026, 1, 1, 12, 5, tzinfo=datetime.timezone.utc)
    """

    def __init__(self, start: datetime = START) -> None:
        self._now = start

    def now(self) -> datetime:
        return self._now

    def advance(self, **by: float) -> datetime:
        """Move on by `seconds=`, `minutes=`, `days=`, …; returns the new time."""
        return self.set(self._now + timedelta(**by))

    def set(self, moment: datetime) -> datetime:
        self._now = moment
        return moment


def counting_ids(start: datetime = START) -> Callable[[], JobId]:
    """Job ids that are the same in every run: valid UUIDv7s, each greater than the one before."""
    first = int(start.timestamp() * 1000) << 80 | 0x7 << 76 | 0x2 << 62
    numbers = count(first + 1)
    return lambda: JobId(str(UUID(int=next(numbers))))


def counting_tokens() -> Iterator[LeaseToken]:
    """Lease tokens that are the same in every run."""
    return (LeaseToken(f"token-{number}") for number in count(1))


def memory_queue(clock: FakeClock | None = None, *, tenant: str = "default") -> Queue:
    """A queue in memory whose ids, tokens, time and jitter are the same in every run."""
    store = MemoryStore(clock or FakeClock(), counting_tokens())
    return Queue(store, tenant=tenant, actor="test", ids=counting_ids(), entropy=lambda: 0.5)


_factory_ids = counting_ids()


def make_job(type: str = "test.job", **options: Any) -> NewJob:
    """A job to enqueue, with as much of it given as the test is about."""
    return new_job(_factory_ids(), {"type": type, **options})


class Ran(Struct, frozen=True, gc=False):
    """One attempt made by `run_until_idle`, or by the test kit."""

    job: Job
    status: Status
    """What the job became by it."""
    error: Exception | None = None


async def run_until_idle(
    queue: Queue, handlers: Mapping[str, Handler], *, clock: FakeClock | None = None, most: int = 10_000
) -> list[Ran]:
    """Run every job that is due, and what follows from it, until nothing is left to do.

    A handler gets the payload; what it returns is the result, and a raise fails the attempt. With a clock,
    time jumps to whenever the next job is due, so retries and delays take no time; without one, only what
    is due now runs. More than `most` attempts raise: something goes round in circles.
    """
    return await attempt_until_idle(
        queue, lambda leased: _run(queue, handlers, leased), clock=clock, most=most
    )


async def attempt_until_idle(
    queue: Queue,
    attempt: Callable[[Leased], Awaitable[Ran]],
    *,
    clock: FakeClock | None = None,
    most: int = 10_000,
) -> list[Ran]:
    """`run_until_idle` for any way to run a job and settle it."""
    ran: list[Ran] = []
    while True:
        names = [view.name for view in await queue.queues()]
        before = len(ran)
        for name in names:
            # One at a time: what a handler cancels is then not in our hands already. And for as long as there is,
            # because nobody sends heartbeats while a handler moves the clock.
            for leased in await queue.lease(name, worker="test", lease_seconds=LONGEST_LEASE_SECONDS):
                ran.append(await attempt(leased))
                if len(ran) > most:
                    raise AssertionError(
                        f"{most:,} attempts and still not idle; the last were {_summed_up(ran[-min(100, most) :])}"
                    )
        if len(ran) > before:
            continue
        due_at = await queue.next_at(names)
        if clock is None or due_at is None or due_at <= clock.now():
            return ran
        clock.set(due_at)


def _summed_up(ran: list[Ran]) -> str:
    """Which jobs ran and what became of them, the most frequent first."""
    counts = Counter((each.job.type, each.job.payload, each.status) for each in ran)
    shown = [
        f"{times} × {type} {payload} → {status}" for (type, payload, status), times in counts.most_common(5)
    ]
    return "; ".join(shown) + (f"; and {len(counts) - 5} others" if len(counts) > 5 else "")


async def _run(queue: Queue, handlers: Mapping[str, Handler], leased: Leased) -> Ran:
    handler = handlers.get(leased.job.type)
    if handler is None:
        raise AssertionError(
            f"no handler for {leased.job.type!r}; there are {', '.join(sorted(handlers)) or 'none'}"
        )
    try:
        result = handler(decode(leased.job.payload))
        if inspect.isawaitable(result):
            result = await result
    except Exception as error:
        settled = await queue.nack(leased, f"{type(error).__name__}: {error}")
        return Ran(leased.job, settled.status, error)
    return Ran(leased.job, (await queue.ack(leased, result)).status)


async def assert_enqueued(
    queue: Queue,
    type: str,
    payload: Mapping[str, Any] | None = None,
    /,
    *,
    times: int | None = None,
    **conditions: Any,
) -> list[Job]:
    """Assert that jobs of a type are in the store, whatever their state; returns them, newest first.

    `payload` names what must be in theirs; `times` how many there must be; conditions are those of `find`.
    """
    found = await _matching(queue, type, payload, conditions)
    if not found if times is None else len(found) != times:
        wanted = "at least one" if times is None else f"exactly {times}"
        raise AssertionError(
            f"expected {wanted} {_described(type, payload, conditions)}, found {len(found)}; {await _contents(queue)}"
        )
    return found


async def refute_enqueued(
    queue: Queue, type: str, payload: Mapping[str, Any] | None = None, /, **conditions: Any
) -> None:
    """Assert that no such job is in the store."""
    await assert_enqueued(queue, type, payload, times=0, **conditions)


async def _matching(
    queue: Queue, type: str, payload: Mapping[str, Any] | None, conditions: Mapping[str, Any]
) -> list[Job]:
    jobs = [job async for job in queue.find_all(type=type, **conditions)]
    return [job for job in jobs if payload is None or _contains(decode(job.payload), payload)]


def _contains(payload: object, wanted: Mapping[str, Any]) -> bool:
    return isinstance(payload, dict) and all(
        name in payload and payload[name] == wanted[name] for name in wanted
    )


def _described(type: str, payload: Mapping[str, Any] | None, conditions: Mapping[str, Any]) -> str:
    details = [
        repr(type),
        *([f"with {dict(payload)}"] if payload else []),
        *(f"{name}={value!r}" for name, value in conditions.items()),
    ]
    return " ".join(details)


async def _contents(queue: Queue) -> str:
    jobs = [f"{job.type} {job.payload} ({job.queue}, {job.status})" async for job in queue.find_all()]
    shown = "; ".join(jobs[:10]) + (f"; and {len(jobs) - 10} more" if len(jobs) > 10 else "")
    return f"the store has {shown}" if jobs else "the store is empty"
