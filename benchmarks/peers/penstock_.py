"""Penstock under test: through `Queue`, single calls gathered by `Coalesce`, a worker that leases ahead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import msgspec

from benchmarks.peers.harness import BATCH, Payload, main
from penstock.coalesce import Coalesce
from penstock.core.commands import Ack, Enqueued, Leased, LeaseJobs, Settled
from penstock.core.job import NewJob
from penstock.core.ports import Store
from penstock.core.wakeups import Wakeups
from penstock.queue import Queue
from penstock.stores.postgres.migrate import migrate
from penstock.stores.postgres.store import PostgresStore
from penstock.stores.wakeups import from_url
from penstock.stores.wakeups.polling import Backoff

TENANT, QUEUE, TYPE = "default", "bench", "email.send"
AHEAD = 500

Handler = Callable[[Any], Any]


class Penstock:
    def __init__(self, url: str) -> None:
        self.url = url
        self.store = PostgresStore(url)
        self.queue = Queue(self.store)
        self.wakeups: Wakeups = from_url(url)
        self._enqueue: Coalesce[NewJob, Enqueued] = Coalesce(self._enqueue_batch)

    async def open(self, callers: int) -> None:
        """Nothing: the store connects at the first call, which is not measured."""

    async def install(self) -> None:
        await migrate(self.url)

    async def _enqueue_batch(self, jobs: list[NewJob]) -> Sequence[Enqueued | Exception]:
        answers = await self.store.enqueue(TENANT, jobs)
        # TODO: the store is about to do this itself.
        self.wakeups.wake(TENANT, [QUEUE])
        return answers

    async def enqueue_many(self, payloads: Sequence[Payload]) -> None:
        for start in range(0, len(payloads), BATCH):
            answers = await self.queue.enqueue_many(
                {"type": TYPE, "queue": QUEUE, "payload": payload}
                for payload in payloads[start : start + BATCH]
            )
            assert all(isinstance(answer, Enqueued) for answer in answers)

    async def enqueue(self, payload: Payload) -> None:
        await self._enqueue(self.queue.new(TYPE, payload, queue=QUEUE))

    @asynccontextmanager
    async def work(self, handled: Callable[[int], None]) -> AsyncIterator[None]:
        async def handler(payload: Any) -> None:
            handled(payload["number"])

        worker = asyncio.create_task(drive(self.store, self.wakeups, handler))
        try:
            yield
        finally:
            worker.cancel()
            with suppress(asyncio.CancelledError):
                await worker

    async def unfinished(self) -> int:
        pool = await self.store.pool()
        number: int = await pool.fetchval(
            "SELECT (SELECT count(*) FROM penstock.ready) + (SELECT count(*) FROM penstock.lease)"
        )
        return number

    async def close(self) -> None:
        await self._enqueue.close()
        await self.wakeups.close()
        await self.store.close()


async def drive(store: Store, wakeups: Wakeups, handler: Handler) -> None:
    """A worker with what a worker needs at least; to be replaced by penstock.worker.

    Up to two batches are leased ahead, each job is a task of its own, and acks are gathered.
    """

    async def settle_batch(acks: list[Ack]) -> Sequence[Settled | Exception]:
        return await store.settle(TENANT, acks)

    settle: Coalesce[Ack, Settled] = Coalesce(settle_batch, most=AHEAD)
    running: set[asyncio.Task[None]] = set()
    room = asyncio.Event()

    async def run(leased: Leased) -> None:
        await handler(msgspec.json.decode(leased.job.payload))
        await settle(Ack(leased.id, leased.token))

    def ended(task: asyncio.Task[None]) -> None:
        running.discard(task)
        if len(running) <= AHEAD:
            room.set()

    backoff = Backoff(Random())
    request = LeaseJobs(QUEUE, "bench", AHEAD)
    async with wakeups.listen(TENANT, [QUEUE]) as bell:
        while True:
            [leased] = await store.lease(TENANT, [request])
            if isinstance(leased, Exception):
                raise leased
            if not leased:
                if await bell.wait(next(backoff)):
                    backoff.reset()
                continue
            backoff.reset()
            for each in leased:
                task = asyncio.create_task(run(each))
                running.add(task)
                task.add_done_callback(ended)
            if len(running) > AHEAD:
                room.clear()
                await room.wait()


if __name__ == "__main__":
    main(Penstock)
