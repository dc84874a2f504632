"""Workers that show themselves: entries that each keeps putting anew, and that lapse when it no longer does."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.core.codec import JsonText
from penstock.core.errors import NotFound, PenstockError
from penstock.core.patterns import matching
from penstock.core.ports import Store
from penstock.core.registry import Audited, PutEntry
from penstock.core.wakeups import ORDERS

KIND = "worker"


ORDER = "order"
"""The kind of entry that tells a worker what to do."""
ORDER_SECONDS = 3_600.0
MOST_DOING = 20


class Order(StrEnum):
    """What a worker may be told."""

    WORK = "work"
    QUIET = "quiet"
    """Take nothing new."""
    STOP = "stop"
    """Take nothing new, finish what has begun, and end."""


class Doing(Struct, frozen=True):
    """A job that a worker runs."""

    id: str
    type: str
    queue: str
    started_at: datetime


class Presence(Struct, frozen=True):
    """A worker as it last showed itself."""

    id: str
    """No other worker has it; two in one process may well share a name."""
    worker: str
    """The name that its leases carry."""
    tenant: str
    queues: dict[str, float]
    """Names and patterns with their weights, as it was given them."""
    slots: int
    """Handlers that may run at once."""
    running: int
    reserved: int
    """Jobs leased and not begun."""
    pid: int
    host: str
    version: str
    started_at: datetime
    seen_at: datetime | None = None
    """When it last showed itself, on the store's clock; None until it has."""
    memory_bytes: int | None = None
    """What it has in memory; None where the system does not tell."""
    stopping: bool = False
    """It finishes what it has begun, and takes nothing new."""
    jobs: tuple[Doing, ...] = ()
    """What it runs, the longest first, as far as that is few."""
    quiet: bool = False
    """It was told to take nothing new, and waits to be told to stop or go on."""

    def serves(self, queue: str) -> bool:
        """Whether it may come to lease jobs of this queue."""
        return not self.stopping and queue in matching(self.queues, [queue])


async def show(store: Store, tenant: str, presence: Presence, seconds: float) -> None:
    """Let others see it, for so long unless it is shown again. Nothing of this is in the audit trail."""
    body = JsonText(msgspec.json.encode(presence).decode())
    await _put(store, tenant, PutEntry(KIND, presence.id, body, seconds=seconds))


async def hide(store: Store, tenant: str, presence_id: str) -> None:
    """It has ended; one that is not shown is hidden already."""
    await _put(store, tenant, PutEntry(KIND, presence_id, None))


async def workers(store: Store, tenant: str) -> list[Presence]:
    """The tenant's workers that have shown themselves lately, by name.

    One that was killed is among them until its time is over; whoever leases jobs by hand never is.
    """
    entries = await store.entries(tenant, KIND)
    shown = [
        replace(msgspec.json.decode(entry.body, type=Presence), seen_at=entry.changed_at) for entry in entries
    ]
    return sorted(shown, key=lambda presence: (presence.worker, presence.id))


async def give_order(
    store: Store, tenant: str, presence_id: str, order: Order, *, actor: str, reason: str | None
) -> Presence:
    """Tell a worker what to do; it hears at once where wake-ups come through, else when it next shows itself."""
    there = {one.id: one for one in await workers(store, tenant)}.get(presence_id)
    if there is None:
        raise NotFound(f"no worker {presence_id[:100]!r} has shown itself within the last minute")
    audit = Audited(there.worker, order, actor, reason)
    body = JsonText(msgspec.json.encode(order).decode())
    await _put(store, tenant, PutEntry(ORDER, presence_id, body, seconds=ORDER_SECONDS, audit=audit))
    store.wakeups.wake(tenant, [ORDERS])
    return there


async def read_order(store: Store, tenant: str, presence_id: str) -> Order | None:
    """What the worker was last told, if anything."""
    entries = await store.entries(tenant, ORDER, [presence_id])
    return msgspec.json.decode(entries[0].body, type=Order) if entries else None


async def _put(store: Store, tenant: str, command: PutEntry) -> None:
    [answer] = await store.put_entries(tenant, [command])
    if isinstance(answer, PenstockError):
        raise answer
