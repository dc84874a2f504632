"""A reason, and the words that reasons are told in."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from penstock.core.job import Change, Job

FEW = 5
"""How many jobs or workers are named; of the others it is told how many there are."""
SHOWN_CHARS = 200


class Reason(Struct, frozen=True):
    """One thing that keeps a job from running, or would be next to do so."""

    code: str
    """Stable, for programs: paused, not_due, concurrency_limit, …"""
    message: str
    """For people."""
    facts: dict[str, Any] = {}
    """For programs, as JSON can say it."""


def last_change(changes: Sequence[Change], verb: str) -> Change | None:
    return next((change for change in reversed(changes) if change.verb == verb), None)


def by(change: Change | None, now: datetime) -> str:
    """Who did it, when and why, as far as that is known."""
    if change is None:
        return ""
    why = f" ({cut(change.reason)})" if change.reason else ""
    return f" by {change.actor} at {when(change.at, now)}{why}"


def change_facts(change: Change | None) -> dict[str, object]:
    return {} if change is None else {"by": change.actor, "at": iso(change.at), "why": change.reason}


def told(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """The first few, for programs."""
    return [
        {"id": job.id, "status": job.status.value}
        | ({} if job.lease is None else {"worker": job.lease.worker, "since": iso(job.lease.taken_at)})
        for job in jobs[:FEW]
    ]


def listed(jobs: Sequence[Job], number: int | None = None) -> str:
    """The first few, for people."""
    told = [f"{job.id} ({job.status if job.lease is None else job.lease.worker})" for job in jobs]
    return few(told, number)


def few(names: Sequence[str], number: int | None = None) -> str:
    shown, number = names[:FEW], len(names) if number is None else number
    more = f" and {number - len(shown):,} more" if number > len(shown) else ""
    return ", ".join(shown) + more


def many(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS]}…"


def iso(moment: datetime) -> str:
    return moment.isoformat()


def when(moment: datetime, now: datetime) -> str:
    shown = f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    return f"{shown} (in {span(moment - now)})" if moment > now else f"{shown} ({span(now - moment)} ago)"


def span(span: timedelta) -> str:
    seconds = span.total_seconds()
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.3g} s" if seconds < 10 else f"{seconds:.0f} s"
