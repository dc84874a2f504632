"""The parts of a lane: the due jobs of one key, and the jobs of one ordering key."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from penstock.core.job import JobId

Turns = tuple[datetime | None, int, datetime | None, int]
"""How far rates and turns of a queue and one of its keys have been used up."""


class KeyUse(Struct, frozen=True, gc=False):
    """What one key of a queue has used up."""

    running: int = 0
    turn: int = 0
    full_until: datetime | None = None


class Place(Struct, frozen=True, order=True, gc=False):
    """A due job's place among those of its key. As a struct it takes half the room of a tuple."""

    rank: int
    """Its priority, the highest first."""
    run_at: datetime
    job_id: JobId


class Group:
    """The due jobs of one key."""

    __slots__ = ("entry", "full_until", "heap", "key", "members", "running", "turn", "wakes_at")

    def __init__(self, key: str | None) -> None:
        self.key = key
        self.heap: list[Place] = []
        self.members = 0
        """Its jobs that are queued, due or not, or running."""
        self.running = 0
        self.full_until: datetime | None = None
        self.wakes_at: datetime | None = None
        self.turn = 0
        self.entry: Entry | None = None
        """What stands for it in the rotation; None while it has nothing to serve or may not."""


Entry = tuple[int, int, datetime, JobId, int, Group]
"""A group's place in the rotation. The number before the group is unique, so that groups are never compared."""


class Order:
    """The jobs of one ordering key."""

    __slots__ = ("admitted", "heap", "running")

    def __init__(self) -> None:
        self.heap: list[tuple[datetime, JobId]] = []
        self.running: JobId | None = None
        self.admitted: JobId | None = None
