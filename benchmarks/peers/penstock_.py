"""Penstock under test, as people use it: an app, its handlers, and its own worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.peers.harness import BATCH, Payload, main
from penstock import JobHandle
from penstock import Penstock as App
from penstock.app.running import run_worker
from penstock.stores.postgres.migrate import migrate
from penstock.worker.worker import Worker

QUEUE, TYPE = "bench", "email.send"


class Penstock:
    def __init__(self, url: str) -> None:
        self.url = url
        self.app = App(url, name="bench")

    async def open(self, callers: int) -> None:
        """Nothing: the store connects at the first call, which is not measured."""

    async def install(self) -> None:
        await migrate(self.url)

    async def enqueue_many(self, payloads: Sequence[Payload]) -> None:
        for start in range(0, len(payloads), BATCH):
            answers = await self.app.enqueue_many(
                {"type": TYPE, "queue": QUEUE, "payload": payload}
                for payload in payloads[start : start + BATCH]
            )
            assert all(isinstance(answer, JobHandle) for answer in answers)

    async def enqueue(self, payload: Payload) -> None:
        await self.app.enqueue(TYPE, payload, queue=QUEUE)

    @asynccontextmanager
    async def work(self, handled: Callable[[int], None]) -> AsyncIterator[None]:
        @self.app.job(name=TYPE, queue=QUEUE)
        async def handler(number: int, **others: Any) -> None:
            handled(number)

        started: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        worker = asyncio.create_task(
            run_worker(self.app, concurrency=500, handle_signals=False, on_start=started.set_result)
        )
        try:
            await started
            yield
        finally:
            if started.done():
                started.result().stop()
            await worker

    async def unfinished(self) -> int:
        pool = await self.app.queue.store.pool()  # type: ignore[attr-defined]
        number: int = await pool.fetchval(
            "SELECT (SELECT count(*) FROM penstock.ready) + (SELECT count(*) FROM penstock.lease)"
        )
        return number

    async def close(self) -> None:
        await self.app.close()


if __name__ == "__main__":
    main(Penstock)
