"""Shows a worker to others for as long as it runs. The work never waits for that, and never fails by it."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from importlib import metadata

from msgspec.structs import replace

from penstock.core.ports import cadence
from penstock.core.wakeups import ORDERS, Bell
from penstock.presence import Doing, Order, Presence, hide, read_order, show
from penstock.queue import Queue
from penstock.worker.proc import resident_bytes

EVERY_SECONDS = 20.0
SHOWN_SECONDS = 60.0
"""How long it is seen after it last showed itself: one that is killed is seen for as long."""
PATIENCE_SECONDS = 10.0
HIDE_SECONDS = 2.0

logger = logging.getLogger("penstock.worker")


class Showing:
    """Puts a worker's presence into the store when it starts, every so often, and when it begins to stop."""

    def __init__(
        self,
        queue: Queue,
        name: str,
        queues: Mapping[str, float],
        slots: int,
        stopping: asyncio.Event,
        doing: Callable[[], tuple[int, int, tuple[Doing, ...]]],
        obey: Callable[[Order], None],
    ) -> None:
        """`doing` tells how many handlers run, how many jobs are in reserve, and what runs; `obey` hears what we are told."""
        self._queue = queue
        self._name = name
        self._queues = dict(queues)
        self._slots = slots
        self._stopping = stopping
        self._doing = doing
        self._obey = obey
        self._told: Order | None = None
        self._id = secrets.token_hex(16)
        self._first: Presence | None = None
        self._is_failing = False

    async def run(self) -> None:
        """Until cancelled."""
        every_seconds = EVERY_SECONDS * cadence(self._queue.store)
        async with self._queue.store.wakeups.listen(self._queue.tenant, [ORDERS]) as bell:
            while True:
                told = self._stopping.is_set()
                await self._try(self._meet, PATIENCE_SECONDS)
                if told:
                    await bell.wait(every_seconds)
                else:
                    await self._until_stopping(bell, every_seconds)

    async def hide(self) -> None:
        """Show it no longer. If that cannot be done soon it lapses by itself."""
        await self._try(lambda: hide(self._queue.store, self._queue.tenant, self._id), HIDE_SECONDS)

    async def _show(self) -> None:
        queue, (running, reserved, jobs) = self._queue, self._doing()
        if self._first is None:
            self._first = Presence(
                self._id, self._name, queue.tenant, self._queues, self._slots, running, reserved,
                os.getpid(), socket.gethostname(), _version(), started_at=await queue.store.now(),
            )  # fmt: skip
        now = replace(
            self._first,
            running=running,
            reserved=reserved,
            memory_bytes=resident_bytes(),
            stopping=self._stopping.is_set(),
            jobs=jobs,
            quiet=self._told is Order.QUIET,
        )
        await show(queue.store, queue.tenant, now, SHOWN_SECONDS * cadence(queue.store))

    async def _meet(self) -> None:
        await self._hear()
        await self._show()

    async def _hear(self) -> None:
        """Do as we were told, if that is something new."""
        order = await read_order(self._queue.store, self._queue.tenant, self._id)
        if order is not None and order is not self._told:
            self._told = order
            logger.info("worker %s was told to %s", self._name, order)
            self._obey(order)

    async def _until_stopping(self, bell: Bell, seconds: float) -> None:
        """Until it begins to stop, is told something, or has to show itself again."""
        stopping = asyncio.create_task(self._stopping.wait())
        ringing = asyncio.create_task(bell.wait(seconds))
        try:
            await asyncio.wait([stopping, ringing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            ringing.cancel()
            await asyncio.wait([stopping, ringing])

    async def _try(self, work: Callable[[], Awaitable[None]], seconds: float) -> None:
        """Whatever happens, it is told once, and the worker works on."""
        try:
            async with asyncio.timeout(seconds):
                await work()
        except Exception as error:
            if not self._is_failing:
                logger.warning(
                    "worker %s cannot show itself, and goes on unseen (%s)",
                    self._name,
                    f"{type(error).__name__}: {error}".rstrip(": "),
                )
            self._is_failing = True
        else:
            self._is_failing = False


def _version() -> str:
    try:
        return metadata.version("penstock")
    except metadata.PackageNotFoundError:  # run from its sources
        return "unknown"
