"""Workers that show themselves: entries that each keeps putting anew, and that lapse when it no longer does."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.core.codec import JsonText
from penstock.core.errors import PenstockError
from penstock.core.patterns import matching
from penstock.core.ports import Store
from penstock.core.registry import PutEntry

KIND = "worker"


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


async def _put(store: Store, tenant: str, command: PutEntry) -> None:
    [answer] = await store.put_entries(tenant, [command])
    if isinstance(answer, PenstockError):
        raise answer
