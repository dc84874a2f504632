"""Who waits for jobs: a line for each queue, so that however many wait, one asks the store."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from random import Random
from typing import Any

from starlette.requests import Request

from penstock.core.commands import Leased, LeaseJobs, Release
from penstock.core.errors import PenstockError
from penstock.core.ports import Store
from penstock.stores.wakeups import Backoff

logger = logging.getLogger("penstock.server")


class Waiter:
    """One request that waits for jobs."""

    __slots__ = ("future", "request")

    def __init__(self, request: LeaseJobs, future: asyncio.Future[list[Leased]]) -> None:
        self.request = request
        self.future = future


class Lines:
    """The lines of all queues. Those who wait for one queue are served in the order they came."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lines: dict[tuple[str, str], deque[Waiter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_leaving = False

    async def lease(
        self, tenant: str, request: LeaseJobs, wait_seconds: float, client: Request | None = None
    ) -> list[Leased]:
        """Lease now, or wait in line for as long as is asked and the client stays."""
        if self._is_leaving:
            wait_seconds = 0.0
        place = (tenant, request.queue)
        if place not in self._lines or not wait_seconds:
            leased = await self._ask(tenant, request)
            if leased or not wait_seconds:
                return leased
        waiter = Waiter(request, asyncio.get_running_loop().create_future())
        line = self._lines.get(place)
        if line is None:
            line = self._lines[place] = deque()
            self._start(place, line)
        line.append(waiter)
        gone = None if client is None else asyncio.ensure_future(until_gone(client))
        try:
            both: list[asyncio.Future[Any]] = [waiter.future] if gone is None else [waiter.future, gone]
            await asyncio.wait(both, timeout=wait_seconds, return_when=asyncio.FIRST_COMPLETED)
            if waiter.future.done():
                return waiter.future.result()
            return []
        finally:
            waiter.future.cancel()
            with suppress(ValueError):
                line.remove(waiter)
            if gone is not None:
                gone.cancel()

    def leave(self) -> None:
        """Let everyone go who waits; from now on nobody does."""
        self._is_leaving = True
        for line in self._lines.values():
            for waiter in line:
                if not waiter.future.done():
                    waiter.future.set_result([])

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, place: tuple[str, str], line: deque[Waiter]) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(place, line))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, place: tuple[str, str], line: deque[Waiter]) -> None:
        """Serve a line until nobody is left in it."""
        tenant, queue = place
        waits = Backoff(Random())
        try:
            async with self._store.wakeups.listen(tenant, [queue]) as bell:
                while line:
                    if await self._serve_first(tenant, line):
                        waits.reset()
                        continue
                    if line and await bell.wait(await self._longest(tenant, queue, next(waits))):
                        waits.reset()
                self._close(
                    place, line
                )  # before the bell is put away: whoever comes meanwhile begins a new line
        except Exception as error:
            logger.warning("waiting for jobs of queue %s failed: %s", queue, error)
            self._close(place, line)
            for waiter in line:
                if not waiter.future.done():
                    waiter.future.set_exception(error)

    def _close(self, place: tuple[str, str], line: deque[Waiter]) -> None:
        if self._lines.get(place) is line:
            del self._lines[place]

    async def _serve_first(self, tenant: str, line: deque[Waiter]) -> bool:
        """Lease for whoever is first in line; says whether there was anything."""
        waiter = line[0]
        leased = await self._ask(tenant, waiter.request)
        if not leased:
            return False
        if line and line[0] is waiter:
            line.popleft()
        if waiter.future.done():  # it left while we asked; what was meant for it goes to others at once
            await self._give_back(tenant, leased)
        else:
            waiter.future.set_result(leased)
        return True

    async def _longest(self, tenant: str, queue: str, wait: float) -> float:
        """How long to sleep: until time itself lets a job out, at most."""
        at = await self._store.next_at(tenant, [queue])
        if at is not None:
            due_in = (at - await self._store.now()).total_seconds()
            if due_in > 0:
                return min(wait, due_in)
        return wait

    async def _ask(self, tenant: str, request: LeaseJobs) -> list[Leased]:
        [answer] = await self._store.lease(tenant, [request])
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    async def _give_back(self, tenant: str, leased: list[Leased]) -> None:
        await self._store.settle(tenant, [Release(one.id, one.token) for one in leased])


async def until_gone(client: Request) -> None:
    """Wait until whoever asked has hung up."""
    while (await client.receive())["type"] != "http.disconnect":
        pass
