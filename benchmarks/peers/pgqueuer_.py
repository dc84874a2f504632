"""PGQueuer under test, set up as its performance guide says: asyncpg, a large batch, `pgq autovac` applied, durable tables."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.peers.harness import BATCH, Payload, main

DEQUEUED = 500


class PGQueuer:
    def __init__(self, url: str) -> None:
        self.url = url
        self.pool: Any = None
        self.queries: Any = None

    async def open(self, callers: int) -> None:
        self.pool = await asyncpg.create_pool(self.url, min_size=5, max_size=callers)
        self.queries = Queries(AsyncpgPoolDriver(self.pool))

    async def install(self) -> None:
        await self.queries.install()
        await self.queries.optimize_autovacuum()

    async def enqueue_many(self, payloads: Sequence[Payload]) -> None:
        for start in range(0, len(payloads), BATCH):
            batch = [json.dumps(payload).encode() for payload in payloads[start : start + BATCH]]
            await self.queries.enqueue(["noop"] * len(batch), batch, [0] * len(batch))

    async def enqueue(self, payload: Payload) -> None:
        await self.queries.enqueue("noop", json.dumps(payload).encode())

    @asynccontextmanager
    async def work(self, handled: Callable[[int], None]) -> AsyncIterator[None]:
        async def noop(job: Job) -> None:
            handled(json.loads(job.payload)["number"])

        manager = PgQueuer(AsyncpgPoolDriver(self.pool))
        manager.entrypoint("noop")(noop)
        worker = asyncio.create_task(manager.run(batch_size=DEQUEUED))
        try:
            yield
        finally:
            manager.shutdown.set()
            await worker

    async def unfinished(self) -> int:
        number: int = await self.pool.fetchval("SELECT count(*) FROM pgqueuer")
        return number

    async def close(self) -> None:
        await self.pool.close()


if __name__ == "__main__":
    main(PGQueuer)
