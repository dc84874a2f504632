"""One thing done again and again: every pass has a deadline, every failure is told, and none is the last."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from random import Random

from penstock.core.clock import SystemClock
from penstock.core.errors import StoreUnavailable
from penstock.stores.wakeups import Backoff

DEADLINE_SECONDS = 30.0
AGAIN_SECONDS = 0.1
LONGEST_SECONDS = 5.0

logger = logging.getLogger("penstock.scheduler")


class Duty:
    """A pass does some work and says how many seconds may go by until the next."""

    def __init__(
        self, name: str, work: Callable[[], Awaitable[float]], random: Random, deadline_seconds: float
    ) -> None:
        self.last_pass_at: datetime | None = None
        """When a pass last went through, by the clock of this machine."""
        self.error: str | None = None
        """What went wrong in the last pass."""
        self._name = name
        self._work = work
        self._deadline_seconds = deadline_seconds
        self._pauses = Backoff(random, AGAIN_SECONDS, LONGEST_SECONDS)
        self._part: str | None = None

    async def once(self) -> float:
        """Do one pass; returns how long to wait before the next."""
        self._part = None
        try:
            async with asyncio.timeout(self._deadline_seconds):
                seconds = await self._work()
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return self._failed(error)  # nobody has cancelled us: it came out of the work, and is its failure
        except Exception as error:
            return self._failed(error)
        self._pauses.reset()
        self.error = self._part
        self.last_pass_at = SystemClock().now()
        return seconds

    def failed_in_part(self, part: str, error: Exception) -> None:
        """Tell of a failure that did not stop the pass."""
        self._part = f"{part}: {_described(error)}"
        logger.error("%s failed for %s", self._name, self._part, exc_info=_traced(error))

    def _failed(self, error: BaseException) -> float:
        pause = next(self._pauses)
        self.error = _described(error)
        logger.warning(
            "%s failed (%s); trying again in %.2f s", self._name, self.error, pause, exc_info=_traced(error)
        )
        return pause


def _traced(error: BaseException) -> BaseException | None:
    """A store that is away says all there is to say, again and again; what it came through tells nobody more."""
    return None if isinstance(error, StoreUnavailable) else error


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error) or 'no answer in time'}"
