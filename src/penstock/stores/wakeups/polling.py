"""Looking again and again: what always runs underneath, and what is left when nothing else works."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Self

from penstock.core.wakeups import Bell, WakeupsStatus
from penstock.stores.wakeups.memory import MemoryWakeups

FIRST_SECONDS = 0.02
LONGEST_SECONDS = 5.0
JITTER = 0.5


class Backoff:
    """Endless waits in seconds, each twice the one before, up to the longest.

    Each is shortened or lengthened by up to half (`jitter`), so that processes that began together drift apart.
    """

    def __init__(
        self,
        random: Random,
        first_seconds: float = FIRST_SECONDS,
        longest_seconds: float = LONGEST_SECONDS,
        jitter: float = JITTER,
    ) -> None:
        self.longest_seconds = longest_seconds
        self._jitter = jitter
        self._random = random
        self._first = first_seconds
        self._next = first_seconds

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> float:
        wait = min(self._next, self.longest_seconds)
        self._next = 2 * wait
        return wait * self._random.uniform(1 - self._jitter, 1 + self._jitter)

    def reset(self) -> None:
        """Begin again with the shortest wait: a look found something, or a bell rang."""
        self._next = self._first


class NoWakeups:
    """Bells that never ring. Every worker looks when its own wait is over."""

    def __init__(self) -> None:
        self._silent = MemoryWakeups()

    def wake(self, tenant: str, queues: Iterable[str]) -> None:
        pass

    def listen(self, tenant: str, queues: Iterable[str]) -> AbstractAsyncContextManager[Bell]:
        return self._silent.listen(tenant, queues)

    async def start(self) -> None:
        pass

    def status(self) -> WakeupsStatus:
        return WakeupsStatus("none", healthy=True, detail="workers find jobs by polling only")

    async def close(self) -> None:
        pass
