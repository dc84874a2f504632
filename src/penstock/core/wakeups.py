"""How a sleeping worker learns that there may be work: the second port. Nothing correct depends on it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec import Struct

CANCELS = "!cancels"
"""Not a queue, and no queue can be called so: rung when a running job was asked to stop."""

EVERYONE = "!everyone"
"""Not a tenant, and no tenant can be called so: whoever serves all of them listens here, and need not know them."""

SCHEDULES = "!schedules"
"""Rung for everyone when a schedule was made, replaced or dropped: the next fire time may be another."""

OFFICES = "!offices"
"""Rung for everyone by a leader that gives its office up: whoever seeks it may have it now."""

BULK = "!bulk"
"""Rung for everyone when an operation on many jobs was begun, or may be taken over."""

ORDERS = "!orders"
"""Rung for a tenant when one of its workers was given an order."""


class WakeupsStatus(Struct, frozen=True, gc=False):
    """What carries the wake-ups, and whether it works. Unhealthy means slower pick-up; no job is in danger."""

    driver: str
    healthy: bool
    detail: str


class Bell(Protocol):
    """Rings when one of its queues may have something. It belongs to one task."""

    async def wait(self, timeout_seconds: float) -> frozenset[str]:
        """The queues that were woken since the last wait ended; none of them when the time is up.

        Wake-ups are kept, not signalled: one that came while nobody waited, such as between a look that
        found nothing and this call, ends the wait at once. A hundred for one queue count as one. A
        cancelled wait leaves them for the next.
        """
        ...


class Wakeups(Protocol):
    """Carries "these queues may have something" from those who change them to those who sleep.

    What holds for every driver:

    - **A hint.** Any wake-up may be lost or come for nothing: whoever waits looks for itself when the wait
      ends, and waits no longer than it can bear (`stores.wakeups.polling` says how long).
    - **Nothing crosses.** A bell rings for its own tenant's queues only.
    - **Healed means rung.** A driver that lost its connection opens another by itself and then rings every
      bell once, because something may have been missed in between.
    - **One event loop.** All calls come from the event loop in which it was first used.
    """

    def wake(self, tenant: str, queues: Iterable[str]) -> None:
        """Tell everyone who sleeps on these queues. Call it after the commit, not before.

        It neither blocks nor raises, whatever the state of the server. Bells of this process ring at once;
        to others goes at most one message per queue within the driver's gathering time.
        """
        ...

    def listen(self, tenant: str, queues: Iterable[str]) -> AbstractAsyncContextManager[Bell]:
        """A bell for these queues, for as long as the block runs. Look once after entering, then wait.

        Entering returns when the driver hears for these queues, so nothing after it is missed; or, when its
        server is away, without: the bell then rings as soon as it is back. Bells share one connection.
        """
        ...

    async def start(self) -> None:
        """Connect now instead of at first use. Returns, without raising, once `status` knows the outcome."""
        ...

    def status(self) -> WakeupsStatus:
        """How things stand, without asking any server."""
        ...

    async def close(self) -> None:
        """Send what is still waiting to be sent, if that can be done quickly, and end every task."""
        ...
