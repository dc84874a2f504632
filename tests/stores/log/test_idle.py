"""What programs at rest ask of a log: in a bucket every request costs money."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import datetime, timedelta

import pytest

from penstock.app.running import scheduling
from penstock.queue import Queue
from penstock.stores.log.backings.memory import MemoryTape
from penstock.stores.log.store import LogStore
from penstock.testing import START
from penstock.worker.worker import Worker
from support.virtual import VirtualLoop

WORKERS = 3
IN_A_BUCKET = 6.0


class Counted(MemoryTape):
    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()

    async def append(self, data: bytes) -> int:
        self.requests["put"] += 1
        return await super().append(data)

    async def read(self, after: int, most: int = 1000) -> list[tuple[int, bytes]]:
        self.requests["get"] += 1
        return await super().read(after, most)


class LoopClock:
    def now(self) -> datetime:
        return START + timedelta(seconds=asyncio.get_running_loop().time())


def test_three_idle_workers_ask_less_than_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = VirtualLoop()
    monkeypatch.setattr(time, "monotonic", loop.time)
    tape = Counted()

    async def rest() -> float:
        stores = [LogStore.on(tape, LoopClock(), cadence=IN_A_BUCKET) for _ in range(WORKERS)]
        queues = [Queue(store) for store in stores]
        await queues[0].enqueue("unknown", queue="other")
        await queues[0].put_schedule("nightly", "0 3 * * *", {"type": "a"})
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work(queue)) for queue in queues]
            await asyncio.sleep(60)
            tape.requests.clear()
            begun = loop.time()
            await asyncio.sleep(3_600)
            rate = tape.requests.total() / (loop.time() - begun)
            for task in tasks:
                task.cancel()
        for store in stores:
            await store.close()
        return rate

    async def work(queue: Queue) -> None:
        async with scheduling(queue):
            await Worker(queue, {}, queues="default,reports").run()

    try:
        rate = loop.run_until_complete(rest())
    finally:
        monkeypatch.undo()
        loop.close()
    print(f"{rate:.2f} requests a second: {tape.requests}")
    assert rate <= 1.0
