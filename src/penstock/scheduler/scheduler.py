"""The scheduler: any number may run, one leads. It fires schedules on time and sweeps up after what time has ended.

Nothing correct depends on it leading alone: each fire time makes one job however many fire it, and a sweep
finds nothing to do where another has passed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from datetime import datetime
from random import Random
from typing import Literal

from msgspec import Struct

from penstock.core import bounds
from penstock.core.ports import cadence
from penstock.core.wakeups import EVERYONE, OFFICES, SCHEDULES
from penstock.queue import Queue
from penstock.scheduler.duty import DEADLINE_SECONDS, Duty
from penstock.scheduler.office import Office
from penstock.stores.wakeups import Backoff
from penstock.stores.wakeups.loop import end

SWEPT_AT_ONCE = 2_000
"""Ended jobs that one sweep lets go of: few enough to be done well within a pass's deadline, or it would never get on."""
FIRED_AT_ONCE = 4
"""Tenants whose schedules fire side by side; each takes a connection while it does."""
STUCK_SECONDS = (0.5, 30.0)
"""How soon, and at last how seldom, schedules that cannot fire are tried again."""


class SchedulerStatus(Struct, frozen=True, gc=False):
    """How a scheduler stands, for probes. One that does not lead is well when it can ask for the office."""

    leading: bool
    holder: str
    last_pass_at: datetime | None
    """Up to when everything it has to do was done, by the clock of this machine."""
    last_error: str | None
    """What went wrong in the last pass of anything it does; None as soon as that goes well again."""


class Scheduler:
    """Does for a store what time asks for, while it leads; until then it waits to take over.

    With tenants="own" it fires the schedules of the queue's tenant only, and leads among those that do. It sweeps for
    everyone in either case: a store knows no other sweep.
    """

    def __init__(
        self,
        queue: Queue,
        *,
        name: str | None = None,
        tenants: Literal["all", "own"] = "all",
        lead_seconds: float = 5.0,
        sweep_seconds: float = 15.0,
        look_seconds: float = 10.0,
        deadline_seconds: float = DEADLINE_SECONDS,
        random: Random | None = None,
    ) -> None:
        """Another takes over within `lead_seconds` and a half, at once when this one stops or is cancelled.

        `look_seconds` is how long a schedule made by others may stay unknown where no wake-up comes through. A store that
        wants to be asked seldom makes all of these longer.
        """
        random = random or Random()
        name = f"{socket.gethostname()[:64]}-{os.getpid()}" if name is None else name
        # Two of one name would both believe they lead.
        holder = f"{bounds.text('name', name, 100, 1)}-{secrets.token_hex(4)}"
        self._queue = queue
        self._tenant = queue.tenant if tenants == "own" else None
        slowly = cadence(queue.store)
        self._sweep_seconds = bounds.number("sweep_seconds", sweep_seconds, 0.01, 86_400) * slowly
        self._look_seconds = bounds.number("look_seconds", look_seconds, 0.01, 86_400) * slowly
        office = "scheduler" if self._tenant is None else f"scheduler of {self._tenant}"
        seconds = bounds.number("lead_seconds", lead_seconds, 0.1, 3_600) * slowly
        self._office = Office(queue.store, office, holder, seconds, random)
        self._seeking = Duty("seeking the scheduler's office", self._office.seek, random, deadline_seconds)
        self._firing = Duty("firing schedules", self._fire, random, deadline_seconds)
        self._sweeping = Duty("sweeping", self._sweep, random, deadline_seconds)
        self._stuck = Backoff(random, *STUCK_SECONDS)
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Lead when it can, until cancelled or stopped; then give the office up, so that another has it at once."""
        tasks = [
            asyncio.create_task(self._attend_to_office(), name="penstock scheduler: office"),
            asyncio.create_task(self._attend_to_schedules(), name="penstock scheduler: schedules"),
            asyncio.create_task(self._attend_to_sweeps(), name="penstock scheduler: sweeps"),
        ]
        stopping = asyncio.create_task(self._until_stopped(), name="penstock scheduler: stop")
        try:
            ended, _ = await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()  # none of them ends by itself, unless something is wrong that must not go unnoticed
        finally:
            await end(*tasks, stopping, patience_seconds=1.0)
            await self._office.resign()

    def stop(self) -> None:
        """Ask `run` to end. A stopped scheduler stays stopped."""
        self._stopping.set()

    def status(self) -> SchedulerStatus:
        """How things stand, without asking the store."""
        leading = self._office.held.is_set()
        duties = [self._seeking, *([self._firing, self._sweeping] if leading else [])]
        passes = [duty.last_pass_at for duty in duties if duty.last_pass_at is not None]
        return SchedulerStatus(
            leading,
            self._office.holder,
            min(passes, default=None),
            next((duty.error for duty in duties if duty.error is not None), None),
        )

    # ── Loops ─────────────────────────────────────────────────────────────────────────────────────

    async def _until_stopped(self) -> None:
        await self._stopping.wait()

    async def _attend_to_office(self) -> None:
        async with self._queue.store.wakeups.listen(EVERYONE, [OFFICES]) as bell:
            await _attend(self._seeking, bell.wait)

    async def _attend_to_schedules(self) -> None:
        async with self._queue.store.wakeups.listen(EVERYONE, [SCHEDULES]) as bell:
            await _attend(self._firing, bell.wait, self._office.held)

    async def _attend_to_sweeps(self) -> None:
        await _attend(self._sweeping, asyncio.sleep, self._office.held)

    # ── Passes ────────────────────────────────────────────────────────────────────────────────────

    async def _fire(self) -> float:
        """Fire what is due; the rest of the pass is to know when to come again."""
        due = await self._queue.store.due_schedules(self._tenant)
        places = asyncio.Semaphore(FIRED_AT_ONCE)
        moved = await asyncio.gather(*(self._fire_tenant(tenant, places) for tenant in due.tenants))
        if any(moved):
            return 0.0  # there may be more of what was missed, and there are new next times
        waits = [self._look_seconds]
        if due.next_fire_at is not None:
            # A difference of two times of the store: our clock may be wrong, but it counts seconds well.
            waits.append((due.next_fire_at - due.now).total_seconds())
        if due.tenants:
            waits.append(next(self._stuck))
        else:
            self._stuck.reset()
        return min(waits)

    async def _fire_tenant(self, tenant: str, places: asyncio.Semaphore) -> bool:
        """Fire one tenant's schedules; says whether any moved on. Its failure is not its neighbours'."""
        try:
            async with places:
                return bool(await self._queue.for_tenant(tenant).fire_due())
        except Exception as error:
            self._firing.failed_in_part(f"tenant {tenant}", error)
            return False

    async def _sweep(self) -> float:
        swept = await self._queue.sweep(limit=SWEPT_AT_ONCE)
        return 0.0 if swept.pruned >= SWEPT_AT_ONCE else self._sweep_seconds


async def _attend(
    duty: Duty, wait: Callable[[float], Awaitable[object]], allowed: asyncio.Event | None = None
) -> None:
    """Do passes for ever, as long as it is allowed, with the waits between them that they ask for."""
    while True:
        if allowed is not None:
            await allowed.wait()
        await wait(await duty.once())
