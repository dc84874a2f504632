"""What else goes on in the simulation: people interfere, schedules fire, some look late, compactors compact, one drains."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

from penstock.core import cron
from penstock.core.commands import (
    Ack,
    CancelJob,
    ConfigureQueue,
    Filter,
    Leased,
    LeaseJobs,
    PutSchedule,
    RedriveJob,
)
from penstock.core.errors import JobNotFound, LeaseLost, PenstockError, StoreUnavailable
from penstock.core.job import Job, JobId, NewJob, OnExhausted, Status
from penstock.core.retry import Retry
from penstock.core.schedule import NO_ID, Missed, Schedule
from penstock.stores.log.compacting import Compactor, Rhythm, compactor
from support.book_jobs import Wrong
from support.faults import Killed
from support.simprocess import RETENTION_SECONDS, Look, Process, now

TENANTS = ["acme", "acme", "acme", "zeta"]
QUEUES = ["mail", "orders/in", "orders/out"]
EACH = timedelta(minutes=3)
SCHEDULES = [
    ("minutely", "* * * * *", Missed.ONE, "orders/in"),
    ("each", "*/3 * * * *", Missed.ALL, "mail"),
]
DRAINED_WITHIN = 1_000
"""Rounds of the one who drains."""


async def set_up(process: Process) -> None:
    for tenant in sorted(set(TENANTS)):
        for queue, changes in (
            ("mail", {"max_attempts": 3, "retry": Retry.fixed(5, jitter=0)}),
            ("orders/in", {"max_concurrency": 3, "retention_seconds": 60}),
            ("orders/out", {"on_exhausted": OnExhausted.HOLD, "max_attempts": 2}),
        ):
            await configure(process, tenant, queue, changes)
        for name, expression, missed, queue in SCHEDULES:
            schedule = Schedule(name, expression, NewJob(NO_ID, "tick", queue), missed=missed)
            put = PutSchedule(schedule, "ops", process.world.new_id())
            await process.surely(
                [("put_schedules", put.reason)],
                process.store.put_schedules,
                tenant,
                [put],
            )


async def configure(process: Process, tenant: str, queue: str, changes: dict[str, Any]) -> None:
    change = ConfigureQueue(queue, changes, "ops", process.world.new_id())
    await process.surely([("configure", change.reason)], process.store.configure, tenant, [change])


async def rest(choices: Random, seconds: Sequence[float] = (0, 0, 1, 8, 60)) -> None:
    await asyncio.sleep(choices.choice(seconds) * choices.random())


# Operating.


async def operate(process: Process, choices: Random, rounds: int) -> None:
    world = process.world
    for _ in range(rounds):
        await rest(choices, (5, 60, 120))
        kind = choices.choice(("cancel", "redrive", "redrive", "pause", "limit"))
        tenant, queue = choices.choice(TENANTS), choices.choice(QUEUES)
        if kind == "pause":
            await configure(process, tenant, queue, {"paused": True})
            await rest(choices, (10, 40))
            await configure(process, tenant, queue, {"paused": False})
        elif kind == "limit":
            await configure(process, tenant, queue, {"max_concurrency": choices.choice((None, 1, 2, 5))})
        elif world.acked:
            tenant, job_id = choices.choice(world.acked)
            why = world.new_id()
            if kind == "cancel":
                cancel = CancelJob(JobId(job_id), "ops", why)
                await process.surely([("cancel", why)], process.store.cancel, tenant, [cancel])
            else:
                await redrive(
                    process, tenant, await _found(process, tenant, (Status.DEAD, Status.HELD), job_id)
                )


async def _found(process: Process, tenant: str, statuses: tuple[Status, ...], otherwise: str) -> str:
    try:
        page = await process.store.find(tenant, Filter(statuses), after=None, limit=5)
    except StoreUnavailable:
        return otherwise
    return page.jobs[0].id if page.jobs else otherwise


async def redrive(process: Process, tenant: str, job_id: str) -> None:
    again = RedriveJob(JobId(job_id), "ops", process.world.new_id())
    await process.surely([("redrive", again.reason)], process.store.redrive, tenant, [again])


async def fire(process: Process, choices: Random, rounds: int) -> None:
    """A scheduler. It fires whether it leads or not: leading saves work and decides nothing."""
    store = process.store
    for _ in range(rounds):
        await rest(choices, (20, 70, 150))
        try:
            await store.lead("scheduler", process.name, 30)
            for tenant in sorted(set(TENANTS)):
                at = await store.now()
                for schedule in await store.schedules(tenant):
                    if (due := cron.plan(schedule, at)) is not None:
                        key = ("fire", tenant, due.due_at)
                        await process.call([key], store.fire, tenant, [due])
            await store.sweep(limit=1_000)
        except StoreUnavailable:
            continue


# Looking.


async def look_late(process: Process) -> None:
    """A store opened in the middle, again and again, by one who knows what jobs there must be."""
    world, choices = process.world, process.choices
    while True:
        await asyncio.sleep(choices.uniform(20, 120))
        await process.store.close()
        process.backing._tapes.clear()
        process.store = world.make_store(process)
        world.met["opened late"] += 1
        wanted = choices.sample(world.acked, min(4, len(world.acked)))
        for tenant, job_id in wanted:
            begun = now()
            try:
                found = await _looked_for(process, tenant, job_id)
            except StoreUnavailable:
                continue
            status = found.status if isinstance(found, Job) else None
            world.looks.append(Look(tenant, job_id, begun, now(), status))


async def _looked_for(process: Process, tenant: str, job_id: str) -> Job | PenstockError:
    for left in reversed(range(5)):
        try:
            found: list[Job | PenstockError] = await process.store.get(tenant, [job_id])
            return found[0]
        except StoreUnavailable:
            if not left:
                raise
        except RuntimeError:
            if not process.is_dead:
                raise
            raise asyncio.CancelledError from None
        await asyncio.sleep(1)
    raise AssertionError


# Compacting.


async def compact(process: Process) -> None:
    """The compactor's own loop, with what it does counted."""
    world, choices = process.world, process.choices
    rhythm = Rhythm(retention=timedelta(seconds=RETENTION_SECONDS))
    some = {
        shard: compactor(process.backing.tape(shard), process.objects, shard, rhythm) for shard in world.logs
    }
    while True:
        await asyncio.sleep(choices.uniform(3, 30))
        for one in some.values():
            try:
                if await one.follow() > 5:
                    await _compact(process, one)
            except StoreUnavailable:
                one._state = None
            except PenstockError as error:
                raise Wrong(f"{process.name}: {type(error).__name__}: {error}") from error
            except Killed:
                raise asyncio.CancelledError from None


async def _compact(process: Process, one: Compactor) -> None:
    before = one._manifest.watermark
    told = await one.compact()
    process.world.met["snapshots"] += told.wrote
    process.world.met["truncations"] += told.watermark > before
    process.world.met["deleted segments"] += told.deleted
    process.world.note(process.name, "compacted", told.number, told.watermark)


# Draining.


async def drain(process: Process) -> None:
    """One fair worker, until there is nothing to do: every job ends."""
    for tenant in sorted(set(TENANTS)):
        for queue in QUEUES:
            await configure(process, tenant, queue, {"paused": False})
        for _ in range(DRAINED_WITHIN):
            for queue in QUEUES:
                await _drain(process, tenant, queue)
            held = await process.store.find(tenant, Filter((Status.HELD,)), after=None, limit=100)
            for job in held.jobs:
                await redrive(process, tenant, job.id)
            active = (Status.WAITING, Status.QUEUED, Status.RUNNING)
            left = await process.store.find(tenant, Filter(active), after=None, limit=100)
            if not left.jobs and not held.jobs:
                break
            await asyncio.sleep(5)
        else:
            raise Wrong(f"{len(left.jobs)} jobs of {tenant} never end, the newest {left.jobs[0]}")


async def _drain(process: Process, tenant: str, queue: str) -> None:
    while True:
        request = LeaseJobs(queue, f"fair.{process.world.new_id()[-6:]}", 20, 60)
        answers = await process.surely([("lease", request.worker)], process.store.lease, tenant, [request])
        leased: list[Leased] = answers[0]
        if not leased:
            return
        acks = [Ack(one.id, one.token) for one in leased]
        for ack, answer in zip(
            acks,
            await process.surely(
                [("settle", "Ack", one.token) for one in acks],
                process.store.settle,
                tenant,
                acks,
            ),
            strict=True,
        ):
            if isinstance(answer, (LeaseLost, JobNotFound)):
                raise Wrong(f"a fair worker lost {ack.job_id}")
