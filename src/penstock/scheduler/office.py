"""An office that one of many holds for a while, as one of those who seek it sees it."""

from __future__ import annotations

import asyncio
from random import Random

from penstock.core.ports import Store
from penstock.core.wakeups import EVERYONE, OFFICES
from penstock.scheduler.duty import logger

RESIGN_SECONDS = 2.0


class Office:
    """Held here never longer than in the store: our time counts from before we asked, and on a clock nobody sets."""

    def __init__(self, store: Store, name: str, holder: str, seconds: float, random: Random) -> None:
        self.held = asyncio.Event()
        """Set for as long as we hold it."""
        self.holder = holder
        self._store = store
        self._name = name
        self._seconds = seconds
        self._random = random
        self._lapsing: asyncio.TimerHandle | None = None

    async def seek(self) -> float:
        """Take the office, or keep it; returns how long to wait before asking again."""
        asked_at = asyncio.get_running_loop().time()
        if await self._store.lead(self._name, self.holder, self._seconds):
            self._hold_until(asked_at + self._seconds)
            return self._seconds / 3
        self._lose()
        # Whoever was started together shall not ask together.
        return self._seconds / 2 * self._random.uniform(0.5, 1.0)

    async def resign(self) -> None:
        """Give the office up if we hold it, and tell those who seek it. It lapses by itself if that cannot be done soon."""
        if not self.held.is_set():
            return
        self._lose()
        try:
            async with asyncio.timeout(RESIGN_SECONDS):
                await self._store.lead(self._name, self.holder, 0)
        except Exception as error:
            logger.warning("%s could not give up the office %r: %s", self.holder, self._name, error)
        else:
            self._store.wakeups.wake(EVERYONE, [OFFICES])

    def _hold_until(self, moment: float) -> None:
        loop = asyncio.get_running_loop()
        if self._lapsing is not None:
            self._lapsing.cancel()
            self._lapsing = None
        if moment <= loop.time():
            self._lose()  # the answer was longer on its way than it holds
            return
        if not self.held.is_set():
            logger.info("%s holds the office %r", self.holder, self._name)
        self.held.set()
        self._lapsing = loop.call_at(moment, self._lose)

    def _lose(self) -> None:
        if self._lapsing is not None:
            self._lapsing.cancel()
            self._lapsing = None
        if self.held.is_set():
            logger.info("%s no longer holds the office %r", self.holder, self._name)
        self.held.clear()
