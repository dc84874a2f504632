"""The jobs a worker has in hand: from the moment they are leased until they are settled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from enum import Enum, auto

from penstock.core.codec import JsonText
from penstock.core.commands import Leased
from penstock.core.job import JobId, LeaseToken
from penstock.presence import Doing


class Stop(Enum):
    """Why a job that runs is to stop."""

    CANCELLED = auto()
    """Somebody asked for it."""
    LOST = auto()
    """Its lease is no longer ours: another worker may run it already."""
    SHUTDOWN = auto()
    """The worker ends, and its patience is over."""


class InHand:
    """One job in hand. Its keeper, in another thread, reads it and sets nothing but `renewed_at` and `told_progress`."""

    __slots__ = (
        "id",
        "leased",
        "leased_at",
        "progress",
        "renewed_at",
        "seconds",
        "settling",
        "stop",
        "task",
        "token",
        "told_at",
        "told_progress",
    )  # fmt: skip

    def __init__(self, leased: Leased, now: float) -> None:
        lease = leased.job.lease
        assert lease is not None
        self.leased = leased
        self.id: JobId = leased.id
        self.token: LeaseToken = leased.token
        self.seconds = lease.seconds
        self.leased_at = self.renewed_at = now
        self.task: asyncio.Task[None] | None = None
        self.settling = False
        self.stop: Stop | None = None
        self.progress: JsonText | None = None
        self.told_progress: JsonText | None = None
        self.told_at = 0.0

    def is_due(self, now: float) -> bool:
        """Whether its lease should be renewed: a third of it has passed, so that two more tries fit in."""
        return not self.settling and now - self.renewed_at >= self.seconds / 3


class Hand:
    """All jobs in hand. Only the worker's own thread adds and removes; others may look."""

    def __init__(self) -> None:
        self._jobs: dict[LeaseToken, InHand] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[InHand]:
        return iter(list(self._jobs.values()))

    def __contains__(self, held: InHand) -> bool:
        return held.token in self._jobs

    def doing(self, most: int) -> tuple[Doing, ...]:
        """What runs, the longest first."""
        running = sorted(
            (held for held in self if held.task and not held.settling), key=lambda held: held.leased_at
        )
        jobs = (held.leased.job for held in running[:most])
        return tuple(
            Doing(job.id, job.type, job.queue, job.lease.taken_at) for job in jobs if job.lease is not None
        )

    def add(self, held: InHand) -> None:
        self._jobs[held.token] = held

    def remove(self, held: InHand) -> None:
        self._jobs.pop(held.token, None)
