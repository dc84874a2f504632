"""The programs of the simulation that make jobs and work on them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

from penstock.core.codec import JsonText
from penstock.core.commands import (
    Ack,
    Discard,
    Enqueued,
    Heartbeat,
    Leased,
    LeaseJobs,
    Nack,
    Release,
    Settle,
    Snooze,
)
from penstock.core.errors import PenstockError
from penstock.core.job import JobId, NewJob, OnParentFailure
from support.simoperators import QUEUES, TENANTS, fire, operate, rest
from support.simprocess import Process

NAMED = {"mail": ["mail"], "orders": ["orders/in", "orders/out"]}
"""What shares a log, and may so be in one flow."""
LEASE_SECONDS = (5, 15, 40)


async def app(process: Process) -> None:
    """What one process does at a time shares its store, and so its entries."""
    world = process.world
    busy = [
        asyncio.create_task(produce(process, world.random(), world.rounds)),
        asyncio.create_task(operate(process, world.random(), world.rounds // 2)),
        asyncio.create_task(fire(process, world.random(), world.rounds // 2)),
    ]
    others = [asyncio.create_task(work(process, world.random(), f"{process.name}-{n}")) for n in range(2)]
    try:
        while any(not task.done() for task in busy):
            done, _ = await asyncio.wait([*busy, *others], return_when=asyncio.FIRST_EXCEPTION, timeout=5)
            for task in done:
                await task
    finally:
        for task in [*busy, *others]:
            task.cancel()
        await asyncio.gather(*busy, *others, return_exceptions=True)


# Producing.


async def produce(process: Process, choices: Random, rounds: int) -> None:
    for _ in range(rounds):
        tenant = choices.choice(TENANTS)
        kind = choices.choice(("one", "many", "flow", "again"))
        if kind == "flow":
            await _enqueue_flow(process, choices, tenant)
        elif kind == "again":
            # The same request twice, by a client that has forgotten the id that it made: the key knows.
            job = _job(process, choices, tenant, idempotency_key=f"again-{choices.randrange(8)}")
            for job_id in (job.id, JobId(process.world.new_id())):
                same = NewJob(
                    job_id, "again", "mail", idempotency_key=job.idempotency_key,
                    idempotency_window=timedelta(seconds=200),
                )  # fmt: skip
                await enqueue(process, tenant, [same])
        else:
            count = 1 if kind == "one" else choices.randrange(2, 8)
            await enqueue(process, tenant, [_job(process, choices, tenant) for _ in range(count)])
        await rest(choices)


def _job(process: Process, choices: Random, tenant: str, **given: Any) -> NewJob:
    options: dict[str, Any] = {"queue": choices.choice(QUEUES), "priority": choices.choice((0, 0, 0, -1, 5))}
    drawn = choices.random()
    if drawn < 0.15:
        options["delay"] = timedelta(seconds=choices.choice((3, 30, 90)))
    elif drawn < 0.3:
        options["unique_key"] = f"unique-{choices.randrange(3)}"
    elif drawn < 0.45:
        options["ordering_key"] = f"order-{choices.randrange(2)}"
    elif drawn < 0.6:
        options["idempotency_key"] = process.world.new_id()
    elif drawn < 0.7:
        options["max_attempts"] = 1
    return NewJob(JobId(process.world.new_id()), "work", **{**options, **given})


async def _enqueue_flow(process: Process, choices: Random, tenant: str) -> None:
    """Parents, children of all of them, and a grandchild; in one call or in several."""
    queues = NAMED[choices.choice(sorted(NAMED))]
    first = [
        _job(process, choices, tenant, queue=choices.choice(queues), unique_key=None)
        for _ in range(choices.randrange(1, 4))
    ]
    end = choices.choice(list(OnParentFailure))
    children = [
        NewJob(
            JobId(process.world.new_id()), "child", choices.choice(queues),
            parents=tuple(job.id for job in first), on_parent_failure=end,
        )
        for _ in range(2)
    ]  # fmt: skip
    last = NewJob(JobId(process.world.new_id()), "last", queues[0], parents=(children[0].id,))
    if process.world.shards == 1 or len(queues) == 1:
        await enqueue(process, tenant, [*first, *children, last])
    else:
        for jobs in (first, children, [last]):
            await enqueue(process, tenant, jobs)


async def enqueue(process: Process, tenant: str, jobs: Sequence[NewJob]) -> None:
    answers = await process.surely([("enqueue", job.id) for job in jobs], process.store.enqueue, tenant, jobs)
    process.world.acked += [(tenant, one.id) for one in answers if isinstance(one, Enqueued)]


# Working.


async def work(process: Process, choices: Random, worker: str) -> None:
    while True:
        tenant, queue = choices.choice(TENANTS), choices.choice(QUEUES)
        if choices.random() < 0.15:
            await _work_when_rung(process, choices, worker, tenant, queue)
        else:
            await _work_once(process, choices, worker, tenant, queue)
            await rest(choices)


async def _work_when_rung(process: Process, choices: Random, worker: str, tenant: str, queue: str) -> None:
    """As workers do: meanwhile the log is followed, beside whatever else this process does with it."""
    async with process.store.wakeups.listen(tenant, [queue]) as bell:
        for _ in range(3):
            if await bell.wait(10):
                process.world.met["rung"] += 1
            await _work_once(process, choices, worker, tenant, queue)


async def _work_once(process: Process, choices: Random, worker: str, tenant: str, queue: str) -> None:
    seconds = choices.choice(LEASE_SECONDS)
    # Each call with a name of its own: so it is known in the log.
    name = f"{worker}.{process.world.new_id()[-6:]}"
    request = LeaseJobs(queue, name, choices.choice((1, 1, 2, 4)), seconds)
    answers = await process.call([("lease", name)], process.store.lease, tenant, [request])
    leased: list[Leased] = answers[0] if answers is not None else []
    await asyncio.gather(*(handle(process, choices, tenant, one, seconds) for one in leased))


async def handle(process: Process, choices: Random, tenant: str, leased: Leased, seconds: float) -> None:
    world = process.world
    manner = choices.choice(
        (
            "ack",
            "ack",
            "ack",
            "long",
            "late",
            "late",
            "never",
            "nack",
            "refuse",
            "release",
            "snooze",
            "discard",
        )
    )
    if manner == "never":
        world.met["never settled"] += 1
        return
    if manner == "late":
        await asyncio.sleep(seconds * choices.uniform(1.05, 3))
        world.met["late"] += 1
    for _ in range(choices.randrange(1, 5) if manner == "long" else 0):
        await asyncio.sleep(seconds / 3)
        number = world.new_id()
        beat = Heartbeat(leased.id, leased.token, progress=JsonText(f'"{number}"'))
        answers = await process.call([("heartbeat", number)], process.store.heartbeat, tenant, [beat])
        if answers is not None and isinstance(answers[0], PenstockError):
            return
    settle = _settle(choices, leased, manner)
    key = ("settle", type(settle).__name__, leased.token)
    again = 2 if choices.random() < 0.15 else 1  # the same once more changes nothing
    for _ in range(again):
        [answer] = await process.surely([key], process.store.settle, tenant, [settle])
        if isinstance(answer, PenstockError):
            world.met["refused settles"] += 1


def _settle(choices: Random, leased: Leased, manner: str) -> Settle:
    wait = timedelta(seconds=choices.choice((1, 10, 40)))
    match manner:
        case "nack":
            return Nack(leased.id, leased.token, "boom", delay=wait)
        case "refuse":
            return Nack(leased.id, leased.token, "never", retry=False, delay=wait)
        case "release":
            return Release(leased.id, leased.token, choices.choice((None, wait)))
        case "snooze":
            return Snooze(leased.id, leased.token, wait)
        case "discard":
            return Discard(leased.id, leased.token, "enough")
        case _:
            return Ack(leased.id, leased.token, JsonText(f'"{leased.token}"'))
