"""The loop closes: bring back the jobs of a failure, set a queue as its capacity plan says."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import datetime
from typing import Any

from msgspec import Struct

from penstock import bulk
from penstock.bulk import BulkOperation
from penstock.core.commands import Bulk, RedriveJob
from penstock.core.errors import NotFound, PenstockError
from penstock.core.job import JobId, Status
from penstock.core.requests import new_filter
from penstock.core.settings import QueueSettings
from penstock.figures import failure_group
from penstock.insights import Row, ask
from penstock.queue import Queue

PER_SECOND = 100.0
"""How many jobs of a failure come back in a second, unless another rate is asked for: what failed once may fail again."""
MOST_TOLD = 100


class Sizing(Struct, frozen=True):
    """What of a queue's settings a capacity plan is about."""

    max_concurrency: int | None
    lease_seconds: float


class AppliedPlan(Struct, frozen=True):
    """A capacity plan, and what it makes of a queue's settings."""

    queue: str
    as_of: datetime
    before: Sizing
    after: Sizing
    why: str
    dry_run: bool
    """Nothing was set."""


# ── Failures ──────────────────────────────────────────────────────────────────────────────────────


async def known_failure(queue: Queue, fingerprint: str) -> tuple[Row, datetime]:
    """A failure that was seen lately, or that the lake has told of, and as of when.

    Both are asked: what was seen lately says nothing of before, nor the lake of what came after its last run.
    """
    found: list[tuple[Row, datetime]] = []
    if (seen := await failure_group(queue.store, queue.tenant, fingerprint)) is not None:
        found.append(({"queues": seen.queues, "types": seen.types}, seen.last_seen))
    try:
        answer = await ask(queue.store, queue.tenant, "failures")
        found += [(row, answer.as_of) for row in answer.rows if row["fingerprint"] == fingerprint]
    except NotFound:
        if not found:
            raise
    if not found:
        raise NotFound(f"no failure {fingerprint[:100]!r} is known as of {answer.as_of.isoformat()}")
    rows = [row for row, _ in found]
    both = {field: sorted({name for row in rows for name in row[field]}) for field in ("queues", "types")}
    return both, max(as_of for _, as_of in found)


def conditions(failure: Row) -> dict[str, Any]:
    """Where jobs of a failure are looked for. Which of them it hit, only their errors tell."""
    found: dict[str, Any] = {"statuses": (Status.DEAD, Status.HELD)}
    for field in ("queue", "type"):
        if len(failure[f"{field}s"]) == 1:
            [found[field]] = failure[f"{field}s"]
    return found


async def count_failure(queue: Queue, fingerprint: str) -> tuple[int, bool]:
    """How many jobs would come back, and whether that is all of them."""
    failure, _ = await known_failure(queue, fingerprint)
    return await bulk.count(queue, conditions(failure), fingerprint=fingerprint)


async def begin_redrive(
    queue: Queue, fingerprint: str, *, per_second: float = PER_SECOND, reason: str | None = None
) -> BulkOperation:
    """Bring back all dead and held jobs of a failure, as an operation that goes on by itself."""
    failure, as_of = await known_failure(queue, fingerprint)
    return await bulk.begin(
        queue, "redrive", conditions(failure), reason=reason or _because(fingerprint, as_of),
        fingerprint=fingerprint, per_second=per_second,
    )  # fmt: skip


async def redrive(
    queue: Queue,
    fingerprint: str,
    *,
    per_second: float = PER_SECOND,
    reason: str | None = None,
    progress: Callable[[int], object] = lambda changed: None,
) -> Bulk:
    """The same here and now, on stores that nobody serves; `progress` hears how many so far."""
    failure, as_of = await known_failure(queue, fingerprint)
    bulk.rate("per_second", per_second)
    filter, said = new_filter(conditions(failure)), reason or _because(fingerprint, as_of)
    matched = changed = 0
    refused: list[PenstockError] = []
    after: JobId | None = None
    while True:
        jobs, after = await bulk.next_jobs(
            queue.store, queue.tenant, filter, after, fingerprint=fingerprint, per_second=per_second
        )
        if jobs:
            commands = [RedriveJob(job.id, queue.actor, said) for job in jobs]
            answers = await queue.store.redrive(queue.tenant, commands)
            errors = [answer for answer in answers if isinstance(answer, PenstockError)]
            matched, changed = matched + len(jobs), changed + len(jobs) - len(errors)
            refused += errors[: MOST_TOLD - len(refused)]
            progress(changed)
        if after is None:
            return Bulk(matched, changed, tuple(refused))
        if jobs:
            await asyncio.sleep(len(jobs) / per_second)


def _because(fingerprint: str, as_of: datetime) -> str:
    return f"failure {fingerprint}, as of {as_of.isoformat()}"


# ── Capacity ──────────────────────────────────────────────────────────────────────────────────────


async def apply(queue: Queue, name: str, *, dry_run: bool = True) -> AppliedPlan:
    """Set a queue's concurrency and lease as its capacity plan says; a dry run only tells what it would be."""
    answer = await ask(queue.store, queue.tenant, "capacity", queue=name)
    if not answer.rows:
        raise NotFound(
            f"there is no capacity plan of the queue {name!r}: as of {answer.as_of.isoformat()} none of its jobs had ended, "
            "and what one takes is not known"
        )
    [plan] = answer.rows
    after = Sizing(max(1, math.ceil(plan["concurrency"])), max(1.0, plan["lease_seconds"]))
    before = _sizing((await queue.queue(name)).settings)
    if not dry_run:
        await queue.configure(
            name, reason=f"capacity plan of {answer.as_of.isoformat()}",
            max_concurrency=after.max_concurrency, lease_seconds=after.lease_seconds,
        )  # fmt: skip
    return AppliedPlan(name, answer.as_of, before, after, plan["why"] or "", dry_run)


def _sizing(settings: QueueSettings) -> Sizing:
    return Sizing(settings.max_concurrency, settings.lease_seconds)
