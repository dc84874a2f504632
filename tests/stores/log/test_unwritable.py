"""What is told of a log while nothing can be written to it: how things stood at its newest entry, and without delay."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from penstock.core.errors import StoreUnavailable
from penstock.core.job import JobId, Status
from penstock.queue import Queue
from penstock.stores.log.backings.memory import MemoryTape
from penstock.stores.log.errors import OutcomeUnknown
from penstock.stores.log.store import LogStore
from penstock.testing import FakeClock
from support.virtual import VirtualLoop

ERRORS = [StoreUnavailable("the disk", "Input/output error"), OutcomeUnknown("the bucket", "a call", "500")]


class Tape(MemoryTape):
    """One that takes what is written, or fails with an error, and not at once."""

    def __init__(self) -> None:
        super().__init__()
        self.error: StoreUnavailable | None = None
        self.is_readable = True
        self.seconds = 0.0
        self.tries = 0

    async def append(self, data: bytes) -> int:
        if self.error is None:
            return await super().append(data)
        self.tries += 1
        await asyncio.sleep(self.seconds)
        raise self.error

    async def read(self, after: int, most: int = 1000) -> list[tuple[int, bytes]]:
        if not self.is_readable:
            raise StoreUnavailable("the bucket", "503")
        return await super().read(after, most)


class World:
    """A queue with a job whose lease has run out, and that cannot be written down."""

    def __init__(self) -> None:
        self.clock, self.tape = FakeClock(), Tape()
        self.queue = Queue(LogStore.on(self.tape, self.clock))
        self.job = JobId("")

    async def begin(self, error: StoreUnavailable, seconds: float = 0.0) -> None:
        self.job = (await self.queue.enqueue("a")).id
        await self.queue.lease(worker="w", lease_seconds=1)
        self.clock.advance(seconds=2)
        self.tape.error, self.tape.seconds = error, seconds

    async def status(self) -> Status:
        return (await self.queue.get(self.job)).status

    async def timed_status(self) -> tuple[Status, float]:
        """And how long it took."""
        begun = asyncio.get_running_loop().time()
        status = await self.status()
        return status, asyncio.get_running_loop().time() - begun


def run(test: Coroutine[Any, Any, None]) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(test)
    finally:
        loop.close()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_whatever_a_write_fails_with_can_be_read_as_of_the_newest_entry(
    error: StoreUnavailable,
) -> None:
    world = World()
    await world.begin(error)
    assert await world.status() is Status.RUNNING, "that its lease has run out is written nowhere"
    assert [view.name for view in await world.queue.queues()] == ["default"]
    assert [job.id for job in (await world.queue.find()).jobs] == [world.job]
    world.tape.error = None
    assert await world.status() is Status.QUEUED, "a write that failed at once is tried by the next one"


async def test_nothing_is_told_when_it_cannot_be_read_either() -> None:
    world = World()
    await world.begin(ERRORS[0])
    await world.status()
    world.tape.is_readable = False
    with pytest.raises(StoreUnavailable, match="503"):
        await world.status()


def test_not_every_read_waits_for_a_write_that_fails_late() -> None:
    async def test() -> None:
        world = World()
        await world.begin(ERRORS[1], seconds=30)
        assert await world.timed_status() == (Status.RUNNING, 30)
        for _ in range(29):
            assert await world.timed_status() == (Status.RUNNING, 0)
            await asyncio.sleep(1)
        assert world.tape.tries == 1
        await asyncio.sleep(2)
        told = await asyncio.gather(*(world.timed_status() for _ in range(5)))
        assert sorted(seconds for _, seconds in told) == [0, 0, 0, 0, 30], "one tries it for all"
        assert world.tape.tries == 2

    run(test())


def test_once_it_can_be_written_again_all_is_told() -> None:
    async def test() -> None:
        world = World()
        await world.begin(ERRORS[1], seconds=30)
        await world.status()
        world.tape.error = None
        await asyncio.sleep(31)
        assert await world.timed_status() == (Status.QUEUED, 0)

    run(test())
