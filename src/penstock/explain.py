"""Why a job is where it is, in words."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from penstock.core.job import Status
from penstock.queue import Queue


class Reason(Struct, frozen=True):
    """One thing that keeps a job from running, or would be next to do so."""

    code: str
    """Stable, for programs: paused, not_due, concurrency_limit, …"""
    message: str
    """For people."""
    facts: dict[str, Any] = {}


class Explanation(Struct, frozen=True):
    job_id: str
    status: Status
    summary: str
    """One sentence that answers the question."""
    reasons: tuple[Reason, ...] = ()
    """What keeps it, the most telling first."""


async def explain(queue: Queue, job_id: str) -> Explanation:
    raise NotImplementedError
