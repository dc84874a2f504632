"""Holds a connection for as long as the process wants it: no loop here ends unnoticed or hangs for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random

from penstock.stores.wakeups.polling import Backoff

OPENING_SECONDS = 10.0
AGAIN_SECONDS = 0.05
LONGEST_SECONDS = 5.0
UNFIT_SECONDS = 60.0

logger = logging.getLogger("penstock.wakeups")

Session = Callable[[Callable[[], None]], Awaitable[None]]
"""One connection from its opening to its loss. It calls its argument once it works, and ends by raising."""


async def end(*tasks: asyncio.Task[None], patience_seconds: float = 0.05) -> None:
    """Cancel tasks and wait until they have ended, however they do.

    Asks more than once: in Python 3.11 `asyncio.wait_for`, which redis-py sends with, swallows a
    cancellation that comes in the same moment as the result.
    """
    running = set(tasks)
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=patience_seconds)


class Unfit(Exception):
    """The server is there, but what is asked of it does not work there. Trying again soon is pointless."""


class Loop:
    """Runs sessions one after the other, each failure with a log line and a growing pause behind it.

    A session has a deadline for opening; from then on it must notice by itself when its connection is dead.
    """

    def __init__(self, name: str, session: Session, random: Random) -> None:
        self.problem: str | None = None
        self.is_up = False
        self._name = name
        self._session = session
        self._waits = Backoff(random, AGAIN_SECONDS, LONGEST_SECONDS)
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_started(self) -> bool:
        return self._task is not None

    def start(self) -> None:
        """Begin, unless it runs already. Needs a running event loop."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=f"penstock {self._name}")

    async def tried(self) -> None:
        """Wait until the first session has opened or failed to."""
        await self._tried.wait()

    async def close(self) -> None:
        if self._task is not None:
            # More patience than a session needs to end tasks of its own.
            await end(self._task, patience_seconds=1.0)
            self._task = None

    async def _run(self) -> None:
        while True:
            pause_seconds = await self._run_session()
            await asyncio.sleep(pause_seconds)

    async def _run_session(self) -> float:
        """Run one session to its end; returns how long to pause before the next."""
        try:
            async with asyncio.timeout(OPENING_SECONDS) as deadline:
                await self._session(lambda: self._opened(deadline))
            error: Exception = RuntimeError("it ended without a reason")
        except Exception as failure:
            error = failure
        finally:
            self.is_up = False
        pause = UNFIT_SECONDS if isinstance(error, Unfit) else next(self._waits)
        self.problem = f"{type(error).__name__}: {str(error) or 'no answer in time'}"
        self._tried.set()
        logger.warning("%s failed (%s); trying again in %.2f s", self._name, self.problem, pause)
        return pause

    def _opened(self, deadline: asyncio.Timeout) -> None:
        deadline.reschedule(None)
        if self.problem is not None:
            logger.info("%s works again", self._name)
        self.problem = None
        self.is_up = True
        self._waits.reset()
        self._tried.set()
