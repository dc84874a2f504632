"""What keeps a queued job from being leased: read through the port, in a bounded number of calls and rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from penstock.core import codec
from penstock.core.commands import Filter, QueueView
from penstock.core.job import Attempt, Change, Job, JobId, Outcome, Status
from penstock.core.limits import Rate
from penstock.core.settings import QueueSettings
from penstock.explain.telling import (
    FEW,
    Reason,
    by,
    change_facts,
    cut,
    few,
    iso,
    listed,
    many,
    span,
    told,
    when,
)
from penstock.presence import Presence, workers
from penstock.queue import Queue

MOST_READ = 100
"""Jobs read to answer one question."""
MOST_PAGES = 3
"""A store may give short pages where matches are rare."""


async def queued(queue: Queue, job: Job, now: datetime) -> list[Reason]:
    view = await queue.queue(job.queue)
    shown = await workers(queue.store, queue.tenant)
    serving = [worker for worker in shown if worker.serves(job.queue)]
    reasons: list[Reason] = []
    if view.settings.paused:
        reasons.append(await _paused(queue, job.queue, now))
    if job.run_at > now:
        reasons.append(await _not_due(queue, job, now))
    else:
        reasons += await _limits(queue, job, view, now)
    reasons += _unserved(job.queue, view, shown, serving)
    if job.run_at <= now:
        reasons += await _behind(queue, job, view, now)
    if not reasons:
        names = [worker.worker for worker in serving]
        who = f"one of {few(names)}" if len(names) > 1 else names[0]
        reasons.append(
            Reason("next", f"nothing keeps it: {who} may take it at any moment", {"workers": names[:FEW]})
        )
    return reasons + expiring(job, now)


async def _paused(queue: Queue, name: str, now: datetime) -> Reason:
    paused: Change | None = None
    for change in (await queue.history(name, "queue")).changes:
        wanted = {} if change.detail is None else codec.decode(change.detail)
        if "paused" in wanted:
            paused = (paused or change) if wanted["paused"] else None
    message = f"its queue {name} is paused{by(paused, now)}; resume the queue to let it out"
    return Reason("paused", message, {"queue": name, **change_facts(paused)})


async def _not_due(queue: Queue, job: Job, now: datetime) -> Reason:
    records = (await queue.history(job.id)).records
    last = next((record for record in reversed(records) if isinstance(record, Attempt)), None)
    facts: dict[str, object] = {"run_at": iso(job.run_at), "in_seconds": (job.run_at - now).total_seconds()}
    due = f"it is due at {when(job.run_at, now)}"
    if last is None:
        return Reason("not_due", f"{due}, as was asked for", {**facts, "because": "scheduled"})
    facts |= {"attempt": last.number, "worker": last.worker}
    match last.outcome:
        case Outcome.FAILED:
            error = last.error or ""
            message = f"{due}, to try again after attempt {job.attempts} failed: {cut(error)}"
            return Reason("not_due", message, {**facts, "because": "retry", "error": error})
        case Outcome.SNOOZED:
            message = f"{due}: its handler put it off"
            return Reason("not_due", message, {**facts, "because": "snoozed"})
        case _:
            message = (
                f"{due}: worker {last.worker} gave it back, as one does that has no handler for {job.type}"
            )
            return Reason("not_due", message, {**facts, "because": "given_back"})


async def _limits(queue: Queue, job: Job, view: QueueView, now: datetime) -> list[Reason]:
    """Which of its queue's limits, and who ahead of it, keeps a job that is due."""
    settings, key = view.settings, job.asked.key
    reasons: list[Reason] = []
    if job.asked.ordering_key is not None:
        reasons += await _in_order(queue, job, job.asked.ordering_key)
    if key is not None and settings.max_concurrency_per_key is not None:
        reasons += await _key_concurrency(queue, job.queue, key, settings.max_concurrency_per_key)
    if not reasons and not settings.paused:  # else the store's next moment says nothing about rates
        reasons += await _rates(queue, job, settings, now)
    if (most := settings.max_concurrency) is not None and view.counts.get(Status.RUNNING, 0) >= most:
        running, _ = await _some(queue, Filter((Status.RUNNING,), job.queue), most=FEW)
        message = (
            f"its queue {job.queue} runs {many(most, 'job')} at once and no more: {listed(running, most)}"
        )
        reasons.append(
            Reason(
                "concurrency_limit", message, {"queue": job.queue, "limit": most, "running": told(running)}
            )
        )
    return reasons


async def _in_order(queue: Queue, job: Job, ordering_key: str) -> list[Reason]:
    """Who goes before it among those that share its ordering key: what runs, is held, or was to run earlier."""
    all_read = True
    # Those who go before it mostly have older ids; only a look from the top can tell that there are no others.
    for status, after in (
        (Status.RUNNING, None), (Status.HELD, None), (Status.QUEUED, job.id), (Status.QUEUED, None),
    ):  # fmt: skip
        found, complete = await _some(queue, Filter((status,), job.queue), after=after)
        all_read &= complete or after is not None
        ahead = [other for other in found if _goes_before(other, job, ordering_key)]
        if ahead:
            first = min(ahead, key=lambda other: (other.scheduled_at, other.id))
            message = (
                f"job {first.id} goes before it, by the ordering key {ordering_key!r}, and is {first.status}"
            )
            if first.status is Status.HELD:
                message += "; somebody has to redrive or cancel that one"
            facts = {"ordering_key": ordering_key, "certain": True, "jobs": told([first])}
            return [Reason("ordering_key", message, facts)]
    if all_read:
        return []
    message = f"another job may go before it, by the ordering key {ordering_key!r}; there are too many to read them all"
    return [Reason("ordering_key", message, {"ordering_key": ordering_key, "certain": False})]


def _goes_before(other: Job, job: Job, ordering_key: str) -> bool:
    if other.asked.ordering_key != ordering_key or other.id == job.id:
        return False
    return other.status is Status.RUNNING or (other.scheduled_at, other.id) < (job.scheduled_at, job.id)


async def _key_concurrency(queue: Queue, name: str, key: str, most: int) -> list[Reason]:
    running, all_read = await _some(
        queue, Filter((Status.RUNNING,), name, key=key), most=min(most, MOST_READ)
    )
    if len(running) < most and all_read:
        return []
    certain = len(running) >= most
    runs = (
        f"runs {many(most, 'job')} at once and no more"
        if certain
        else f"may run its {most} jobs at once already"
    )
    facts: dict[str, object] = {
        "queue": name, "key": key, "limit": most, "running": told(running), "certain": certain,
    }  # fmt: skip
    return [Reason("key_concurrency_limit", f"its key {key!r} {runs}: {listed(running, most)}", facts)]


async def _rates(queue: Queue, job: Job, settings: QueueSettings, now: datetime) -> list[Reason]:
    """Which rates keep a job that nothing else of its own does.

    No store tells how full a rate is, but all tell when time will let something of the queue out: that is later than
    now if its rate is used up. Of the rates of keys not every store takes account there.
    """
    limits: list[tuple[str, str, Rate]] = []
    if settings.rate is not None:
        limits.append(("rate_limit", f"its queue {job.queue}", settings.rate))
    if settings.rate_per_key is not None and job.asked.key is not None:
        limits.append(("key_rate_limit", f"its key {job.asked.key!r}", settings.rate_per_key))
    opens_at = await queue.next_at([job.queue]) if limits else None
    is_barred = opens_at is not None and opens_at > now
    if not is_barred:
        limits = [limit for limit in limits if limit[0] == "key_rate_limit"]
    reasons = []
    for code, whose, rate in limits:
        certain = is_barred and len(limits) == 1
        facts: dict[str, object] = {"limit": rate.limit, "per_seconds": rate.per, "certain": certain}
        message = f"the rate of {whose}, {rate.limit:,} in {span(timedelta(seconds=rate.per))}, "
        message += "is used up" if certain else "may be used up"
        if is_barred and opens_at is not None:
            facts["not_before"] = iso(opens_at)
            message += f"; it is not let out before {when(opens_at, now)}"
        reasons.append(Reason(code, message, facts))
    return reasons


def _unserved(
    name: str, view: QueueView, shown: Sequence[Presence], serving: Sequence[Presence]
) -> list[Reason]:
    if not serving:
        others = (
            f"{many(len(shown), 'worker')} of this tenant take other queues, or are stopping"
            if shown
            else "none is seen at all"
        )
        running = view.counts.get(Status.RUNNING, 0)
        by_hand = f"; what runs of it, {many(running, 'job')}, was leased by others" if running else ""
        message = f"no worker that shows itself takes jobs of the queue {name}: {others}{by_hand}"
        return [Reason("no_worker", message, {"queue": name, "workers": len(shown), "running": running})]
    busy = [worker for worker in serving if worker.running >= worker.slots]
    if len(busy) < len(serving):
        return []
    slots = sum(worker.slots for worker in serving)
    names = [worker.worker for worker in serving]
    message = (
        f"all {many(slots, 'slot')} of {few(names)} were taken when last seen; start more workers, or wait"
    )
    return [
        Reason(
            "workers_busy",
            message,
            {"workers": names[:FEW], "more": max(0, len(names) - FEW), "slots": slots},
        )
    ]


async def _behind(queue: Queue, job: Job, view: QueueView, now: datetime) -> list[Reason]:
    """Who goes first by priority and age: exactly in a short queue, else how many at the most."""
    queued = view.counts.get(Status.QUEUED, 0)
    if queued <= 1:
        return []
    found, all_read = await _some(queue, Filter((Status.QUEUED,), job.queue))
    place = (-job.priority, job.run_at, job.id)
    ahead = [
        other for other in found if other.run_at <= now and (-other.priority, other.run_at, other.id) < place
    ]
    if all_read and not ahead:
        return []
    turns = "; keys take turns in it, so that it may come sooner" if view.settings.fair else ""
    facts: dict[str, object] = {
        "queued": queued, "ahead_at_least": len(ahead), "ahead_at_most": len(ahead) if all_read else queued - 1,
        "oldest_run_at": None if view.oldest_run_at is None else iso(view.oldest_run_at), "fair": view.settings.fair,
    }  # fmt: skip
    if all_read:
        goes = f"{many(len(ahead), 'job')} of its queue go first, by priority or age"
    else:
        goes = f"up to {queued - 1:,} jobs of its queue may go first, by priority or age"
    return [Reason("behind", goes + turns, facts)]


def expiring(job: Job, now: datetime) -> list[Reason]:
    if job.expires_at is None or job.leases:
        return []
    message = f"it will be cancelled as expired unless it has started by {when(job.expires_at, now)}"
    return [Reason("expires", message, {"expires_at": iso(job.expires_at)})]


async def _some(
    queue: Queue, filter: Filter, *, after: JobId | None = None, most: int | None = None
) -> tuple[list[Job], bool]:
    """The newest jobs that match, within bounds, and whether that is all of them."""
    found: list[Job] = []
    most = most or MOST_READ
    for _ in range(MOST_PAGES):
        page = await queue.store.find(queue.tenant, filter, after=after, limit=most - len(found))
        found += page.jobs
        after = page.next
        if after is None:
            return found, True
        if len(found) >= most:
            break
    return found, False
