"""Changes to all jobs that match a filter, as operations that outlive the call: with progress, and an end people can hasten."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct

from penstock.core.commands import Filter
from penstock.core.ports import Store
from penstock.queue import Queue


class Action(StrEnum):
    CANCEL = "cancel"
    REDRIVE = "redrive"


class BulkState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    ABORTED = "aborted"


class BulkOperation(Struct, frozen=True):
    """A change to all jobs that match, and how far it has come."""

    id: str
    action: Action
    filter: Filter
    state: BulkState
    actor: str
    reason: str | None
    created_at: datetime
    matched: int = 0
    """Jobs looked at so far."""
    changed: int = 0
    refused: int = 0
    refusals: tuple[str, ...] = ()
    """The first of them, in words."""
    ended_at: datetime | None = None


async def count(queue: Queue, conditions: Mapping[str, Any], *, most: int = 10_000) -> tuple[int, bool]:
    """How many jobs match, up to `most`, and whether that is all of them."""
    raise NotImplementedError


async def begin(
    queue: Queue, action: str, conditions: Mapping[str, Any], *, reason: str | None = None
) -> BulkOperation:
    """Write the operation down; whoever runs `BulkRunner` on this store carries it out."""
    raise NotImplementedError


async def abort(queue: Queue, operation_id: str) -> BulkOperation:
    raise NotImplementedError


async def get(queue: Queue, operation_id: str) -> BulkOperation:
    raise NotImplementedError


async def operations(queue: Queue) -> list[BulkOperation]:
    raise NotImplementedError


class BulkRunner:
    """Carries out operations, of all tenants. Any number may run; each operation has one that does it at a time."""

    def __init__(self, store: Store) -> None:
        raise NotImplementedError

    async def run(self) -> None:
        """Until cancelled."""
        raise NotImplementedError
