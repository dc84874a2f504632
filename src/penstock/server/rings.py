"""What has rung lately: whoever asks again is told what rang between two requests, so nothing falls between them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.requests import Request

from penstock.core.ports import Store
from penstock.server.lines import until_gone
from penstock.stores.wakeups.bells import Topic

LINGER_SECONDS = 60.0
"""How long a topic is listened to when nobody asks for it any more: longer than clients stay away between requests."""
MOST_HEARD = 100_000
"""Topics listened to at once. Who comes with another finds its jobs by polling."""


class Hearing:
    """A topic that somebody asked for lately."""

    __slots__ = ("asked_at", "begun", "rung", "waiting")

    def __init__(self) -> None:
        self.asked_at = 0.0
        self.begun = asyncio.Event()
        self.rung = 0
        """The number of its last ring. That it began to be heard counts as one: what came before was missed."""
        self.waiting: set[asyncio.Future[None]] = set()


class Rings:
    """The topics that clients ask for, each listened to once, and a number for every ring."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._own = secrets.token_hex(6)  # another instance's numbers mean nothing here
        self._number = 0
        self._hearings: dict[Topic, Hearing] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_leaving = False

    async def wait(
        self, topics: Iterable[Topic], seconds: float, heard: str | None, client: Request | None = None
    ) -> tuple[str, list[Topic]]:
        """The topics that rang since `heard`, as soon as there are any, and what to send as `heard` the next time.

        Whoever has heard nothing yet, or heard it from another instance, is told of all.
        """
        hearings = {topic: hearing for topic in topics if (hearing := self._hearing(topic)) is not None}
        for hearing in hearings.values():
            await hearing.begun.wait()
        since = self._since(heard)
        if hearings and not self._is_leaving and not _rung(hearings, since):
            await self._until_rung(hearings, seconds, client)
        return f"{self._own}-{self._number}", _rung(hearings, since)

    def leave(self) -> None:
        """Let everyone go who waits; from now on nobody does."""
        self._is_leaving = True
        for hearing in self._hearings.values():
            _let_go(hearing)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _since(self, heard: str | None) -> int:
        own, _, number = (heard or "").rpartition("-")
        return int(number) if own == self._own and number.isdecimal() else -1

    async def _until_rung(
        self, hearings: Mapping[Topic, Hearing], seconds: float, client: Request | None
    ) -> None:
        rang: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        both: list[asyncio.Future[Any]] = [rang]
        if client is not None:
            both.append(asyncio.ensure_future(until_gone(client)))
        for hearing in hearings.values():
            hearing.waiting.add(rang)
        try:
            await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for hearing in hearings.values():
                hearing.waiting.discard(rang)
                hearing.asked_at = asyncio.get_running_loop().time()
            for future in both:
                future.cancel()

    def _hearing(self, topic: Topic) -> Hearing | None:
        hearing = self._hearings.get(topic)
        if hearing is None:
            if len(self._hearings) >= MOST_HEARD:
                return None
            hearing = self._hearings[topic] = Hearing()
            task = asyncio.get_running_loop().create_task(self._hear(topic, hearing))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        hearing.asked_at = asyncio.get_running_loop().time()
        return hearing

    async def _hear(self, topic: Topic, hearing: Hearing) -> None:
        """Listen to a topic until nobody has asked for it for a while."""
        clock = asyncio.get_running_loop().time
        try:
            async with self._store.wakeups.listen(topic.tenant, [topic.queue]) as bell:
                self._ring(hearing)
                hearing.begun.set()
                while hearing.waiting or clock() - hearing.asked_at < LINGER_SECONDS:
                    if await bell.wait(LINGER_SECONDS):
                        self._ring(hearing)
                del self._hearings[topic]  # before the bell is put away: who comes meanwhile begins anew
        finally:
            if self._hearings.get(topic) is hearing:
                del self._hearings[topic]
            hearing.begun.set()

    def _ring(self, hearing: Hearing) -> None:
        self._number += 1
        hearing.rung = self._number
        _let_go(hearing)


def _let_go(hearing: Hearing) -> None:
    for future in hearing.waiting:
        if not future.done():
            future.set_result(None)


def _rung(hearings: Mapping[Topic, Hearing], since: int) -> list[Topic]:
    return [topic for topic, hearing in hearings.items() if hearing.rung > since]
