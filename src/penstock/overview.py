"""How the queues do, at a glance: is anything late, is anybody at work, does anything fail, and what needs a person.

All of it comes from what is kept anyway (counts, presences, figures): a bounded number of reads, and nothing is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from penstock.core.commands import QueueView
from penstock.core.job import Status
from penstock.core.schedule import Schedule
from penstock.figures import (
    FailureGroup,
    Figures,
    Span,
    Totals,
    failure_groups,
    figures,
    is_rising,
    last_hour,
)
from penstock.presence import Presence, workers
from penstock.queue import Queue

MISSED = timedelta(minutes=2)
LONG_PAUSE = timedelta(hours=1)
RATE_MINUTES = 5
"""Over how many whole minutes rates are taken."""
MOST_ATTENTION = 20


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Attention(Struct, frozen=True):
    """Something a person should look at."""

    level: Level
    kind: str
    """late, unserved, rising, paused, missed, full."""
    subject: str
    """The queue's or schedule's name, or the failure's fingerprint."""
    title: str
    detail: str


class QueueStanding(Struct, frozen=True):
    """How one queue does."""

    name: str
    counts: dict[Status, int]
    paused: bool
    oldest_seconds: float
    """How long the oldest job that may run has been due; 0 if none is."""
    target_seconds: float
    is_late: bool
    arrived_per_minute: float
    ended_per_minute: float
    drains_in_seconds: float | None
    """At the pace of the last minutes; None if it never would, 0 if there is nothing."""
    failed_share: float | None
    wait_p95_ms: float | None
    run_p95_ms: float | None
    workers: int
    ended_by_step: list[int]
    """Of the last hour, by minute."""


class Overview(Struct, frozen=True):
    at: datetime
    level: Level
    sentence: str
    counts: dict[Status, int]
    oldest_seconds: float
    ended_per_minute: float
    failed_share: float | None
    """Of the attempts that ended in the last hour; None if none did."""
    workers: int
    slots: int
    busy: int
    attention: list[Attention]
    queues: list[QueueStanding]


async def overview(queue: Queue) -> Overview:
    store, tenant = queue.store, queue.tenant
    now, views, present, hour, failing, schedules = await asyncio.gather(
        store.now(), queue.queues(), workers(store, tenant), figures(store, tenant, Span.HOUR),
        failure_groups(store, tenant), queue.schedules(),
    )  # fmt: skip
    totals = {total.queue: total for total in hour.queues}
    standings = [_standing(view, totals.get(view.name), present, hour, now) for view in views]
    found = [
        *_about_queues(standings, views, present),
        *_about_failures(failing, now),
        *_about_schedules(schedules, now),
    ]
    found.sort(key=lambda one: one.level is not Level.PROBLEM)
    counts: dict[Status, int] = {}
    for view in views:
        for status, count in view.counts.items():
            counts[status] = counts.get(status, 0) + count
    ended, failed = sum(hour.series.succeeded) + sum(hour.series.failed), sum(hour.series.failed)
    return Overview(
        now, _level(found), _sentence(standings, failing, found, now), counts,
        max((one.oldest_seconds for one in standings), default=0.0),
        round(sum(one.ended_per_minute for one in standings), 2), failed / ended if ended else None,
        len(present), sum(one.slots for one in present), sum(one.running for one in present),
        found[:MOST_ATTENTION], standings,
    )  # fmt: skip


def _standing(
    view: QueueView, total: Totals | None, present: Sequence[Presence], hour: Figures, now: datetime
) -> QueueStanding:
    settings = view.settings
    due_for = 0.0 if view.oldest_run_at is None else max(0.0, (now - view.oldest_run_at).total_seconds())
    ended = _per_minute(total.ended_by_step if total else [])
    queued = view.counts.get(Status.QUEUED, 0)
    arrived = _per_minute(total.arrived_by_step if total else [])
    shrinks = ended - arrived
    drains = 0.0 if not queued else 60 * queued / shrinks if shrinks > 0 else None
    attempts = total.succeeded + total.failed if total else 0
    return QueueStanding(
        view.name, dict(view.counts), settings.paused, round(due_for, 3), settings.target_seconds,
        due_for > settings.target_seconds and not settings.paused, arrived, ended, drains,
        total.failed / attempts if total and attempts else None,
        total.wait.p95_ms if total else None, total.run.p95_ms if total else None,
        sum(one.serves(view.name) for one in present),
        total.ended_by_step if total else [0] * len(hour.series.arrived),
    )  # fmt: skip


def _per_minute(by_minute: Sequence[int]) -> float:
    """Over whole minutes: the one that goes on has not had its time."""
    whole = by_minute[-RATE_MINUTES - 1 : -1]
    return round(sum(whole) / RATE_MINUTES, 2) if whole else 0.0


def _about_queues(
    standings: Sequence[QueueStanding], views: Sequence[QueueView], present: Sequence[Presence]
) -> Iterator[Attention]:
    for one, view in zip(standings, views, strict=True):
        queued, depth = one.counts.get(Status.QUEUED, 0), view.settings.max_depth
        if one.oldest_seconds > 5 and not one.workers and not one.paused:
            yield Attention(
                Level.PROBLEM, "unserved", one.name, f"No worker serves {one.name}",
                f"{_waiting(queued)}, the oldest for {_told(one.oldest_seconds)}; "
                + ("none of the workers here takes this queue" if present else "no worker runs at all"),
            )  # fmt: skip
        elif one.is_late:
            drains = (
                "not at this pace" if one.drains_in_seconds is None else f"in {_told(one.drains_in_seconds)}"
            )
            yield Attention(
                Level.PROBLEM, "late", one.name, f"{one.name} is late",
                f"the oldest job has waited {_told(one.oldest_seconds)}, the target is "
                f"{_told(one.target_seconds)}; {_waiting(queued)}, done {drains}",
            )  # fmt: skip
        if one.paused and queued and one.oldest_seconds > LONG_PAUSE.total_seconds():
            yield Attention(
                Level.WARNING, "paused", one.name, f"{one.name} is paused",
                f"{_waiting(queued)}, the oldest for {_told(one.oldest_seconds)}",
            )  # fmt: skip
        if depth is not None and queued >= depth:
            yield Attention(
                Level.PROBLEM, "full", one.name, f"{one.name} is full",
                f"{_waiting(queued)} and it is set to hold {depth:,}: the service takes no more in",
            )  # fmt: skip


def _about_failures(groups: Sequence[FailureGroup], now: datetime) -> Iterator[Attention]:
    for group in groups:
        if is_rising(group, now):
            name = group.error_type or group.text[:80] or "An error without words"
            yield Attention(
                Level.WARNING, "rising", group.fingerprint, f"{name} is rising",
                f"{last_hour(group, now):,} times in the last hour in {', '.join(group.queues[:3])}: {group.text[:160]}",
            )  # fmt: skip


def _about_schedules(schedules: Sequence[Schedule], now: datetime) -> Iterator[Attention]:
    for one in schedules:
        if not one.paused and one.next_fire_at is not None and one.next_fire_at < now - MISSED:
            late = (now - one.next_fire_at).total_seconds()
            yield Attention(
                Level.PROBLEM, "missed", one.name, f"Schedule {one.name} does not fire",
                f"it was due {_told(late)} ago; is a scheduler running?",
            )  # fmt: skip


def _level(found: Sequence[Attention]) -> Level:
    if any(one.level is Level.PROBLEM for one in found):
        return Level.PROBLEM
    return Level.WARNING if found else Level.OK


def _sentence(
    standings: Sequence[QueueStanding],
    failing: Sequence[FailureGroup],
    found: Sequence[Attention],
    now: datetime,
) -> str:
    if not standings:
        return "Nothing has been enqueued yet"
    kinds = [one.kind for one in found]
    parts = [
        _many(kinds.count("late"), "queue is late", "queues are late"),
        _many(kinds.count("unserved"), "queue has no worker", "queues have no worker"),
        _many(kinds.count("full"), "queue is full", "queues are full"),
        _many(kinds.count("rising"), "failure is rising", "failures are rising"),
        _many(kinds.count("missed"), "schedule does not fire", "schedules do not fire"),
        _many(kinds.count("paused"), "queue has long been paused", "queues have long been paused"),
    ]
    said = ", ".join(part for part in parts if part)
    if said:
        return said[0].upper() + said[1:]
    waiting = sum(one.counts.get(Status.QUEUED, 0) for one in standings)
    seen = sum(1 for group in failing if last_hour(group, now))
    calm = "All queues are on time" if waiting else "All work is done"
    return f"{calm}; {_many(seen, 'kind of failure', 'kinds of failure')} in the last hour" if seen else calm


def _many(count: int, one: str, several: str) -> str:
    return "" if not count else f"{count:,} {one if count == 1 else several}"


def _waiting(count: int) -> str:
    return f"{count:,} job waits" if count == 1 else f"{count:,} jobs wait"


def _told(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
