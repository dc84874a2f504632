"""SAQ on PostgreSQL under test. It has no bulk enqueue: many single ones are under way at once instead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from saq import Worker
from saq.queue.postgres import PostgresQueue

from benchmarks.peers.harness import Payload, main

CONCURRENCY = 100


class SAQ:
    def __init__(self, url: str) -> None:
        self.url = url
        self.queue: Any = None
        self.callers = 1

    async def open(self, callers: int) -> None:
        self.callers = callers
        self.queue = PostgresQueue.from_url(self.url, name="bench", min_size=4, max_size=callers)
        await self.queue.connect()  # makes its tables, too

    async def install(self) -> None:
        pass

    async def enqueue_many(self, payloads: Sequence[Payload]) -> None:
        left = list(payloads)

        async def caller() -> None:
            while left:
                await self.enqueue(left.pop())

        await asyncio.gather(*(caller() for _ in range(self.callers)))

    async def enqueue(self, payload: Payload) -> None:
        await self.queue.enqueue("noop", **payload)

    @asynccontextmanager
    async def work(self, handled: Callable[[int], None]) -> AsyncIterator[None]:
        async def noop(context: Any, *, number: int, **rest: Any) -> None:
            handled(number)

        worker = Worker(self.queue, functions=[("noop", noop)], concurrency=CONCURRENCY)
        task = asyncio.create_task(worker.start())
        try:
            yield
        finally:
            worker.event.set()
            await task

    async def unfinished(self) -> int:
        return int(await self.queue.count("incomplete"))

    async def close(self) -> None:
        await self.queue.disconnect()


if __name__ == "__main__":
    main(SAQ)
