"""Procrastinate under test: its psycopg connector, 100 jobs at a time, LISTEN/NOTIFY on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import procrastinate

from benchmarks.peers.harness import BATCH, Payload, main

CONCURRENCY = 100


class Procrastinate:
    def __init__(self, url: str) -> None:
        self.url = url
        self.app: Any = None
        self.task: Any = None
        self.handled: Callable[[int], None] = lambda number: None

    async def open(self, callers: int) -> None:
        connector = procrastinate.PsycopgConnector(conninfo=self.url, min_size=4, max_size=callers)
        self.app = procrastinate.App(connector=connector)

        async def noop(number: int, **rest: Any) -> None:
            self.handled(number)

        self.task = self.app.task(name="noop", queue="bench")(noop)
        await self.app.open_async()

    async def install(self) -> None:
        await self.app.schema_manager.apply_schema_async()

    async def enqueue_many(self, payloads: Sequence[Payload]) -> None:
        for start in range(0, len(payloads), BATCH):
            await self.task.batch_defer_async(*payloads[start : start + BATCH])

    async def enqueue(self, payload: Payload) -> None:
        await self.task.defer_async(**payload)

    @asynccontextmanager
    async def work(self, handled: Callable[[int], None]) -> AsyncIterator[None]:
        self.handled = handled
        worker = asyncio.create_task(
            self.app.run_worker_async(
                queues=["bench"], concurrency=CONCURRENCY, install_signal_handlers=False
            )
        )
        try:
            yield
        finally:
            worker.cancel()
            with suppress(asyncio.CancelledError):
                await worker

    async def unfinished(self) -> int:
        row = await self.app.connector.execute_query_one_async(
            "SELECT count(*) AS number FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        )
        return int(row["number"])

    async def close(self) -> None:
        await self.app.close_async()


if __name__ == "__main__":
    main(Procrastinate)
