"""Stores on logs that tests can look into."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from penstock.core.ports import Store
from penstock.stores.log.backings.memory import MemoryBacking, MemoryTape
from penstock.stores.log.shards import ShardedLogStore
from penstock.stores.log.store import LogStore
from penstock.testing import FakeClock


def log_store(clock: FakeClock) -> Store:
    """A store on a log of its own."""
    return ShardedLogStore(MemoryBacking(clock=clock.now))


def sharded_store(clock: FakeClock) -> Store:
    """A store of three logs: what is about two queues is in most tests about two logs."""
    return ShardedLogStore(MemoryBacking(clock=clock.now), shards=3)


def several_log_stores(clock: FakeClock) -> Sequence[Store]:
    """Stores of several processes, as it were, on one log."""
    tape = MemoryTape()
    return [LogStore.on(tape, clock) for _ in range(3)]


def slow_log_stores(clock: FakeClock) -> Sequence[Store]:
    """The same, each at some distance from the log: what they do overlaps in ever other ways."""
    tape, dice = MemoryTape(), Random(0)
    return [LogStore.on(Distant(tape, dice), clock) for _ in range(3)]


class Distant(MemoryTape):
    """A tape to which the way is sometimes longer, and the way back too."""

    def __init__(self, tape: MemoryTape, dice: Random) -> None:
        super().__init__()
        self._tape = tape
        self._dice = dice

    async def append(self, data: bytes) -> int:
        await self._travel()
        number = await self._tape.append(data)
        await self._travel()
        return number

    async def read(self, after: int, most: int = 1000) -> list[tuple[int, bytes]]:
        await self._travel()
        found = await self._tape.read(after, most)
        await self._travel()
        return found

    async def _travel(self) -> None:
        for _ in range(self._dice.randrange(4)):
            await asyncio.sleep(0)
