"""Lease and ack at 3,000 jobs a second while somebody holds a snapshot open and ANALYZE runs every five seconds.

    python benchmarks/pinned_snapshot.py [--url URL] [--seconds 60] [--rate 3000]

The open snapshot keeps vacuum from removing dead rows, which is what brings most queues in a database down. Both
statements together should stay where they were at the start, and the backlog at nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import asyncpg

from penstock import Queue
from penstock.stores.postgres.embedded import start
from penstock.stores.postgres.migrate import migrate
from penstock.stores.postgres.store import PostgresStore

BATCH = 100


class Run:
    """One producer, one worker, one who analyses and one who has left a transaction open."""

    def __init__(self, url: str, seconds: float, rate: int) -> None:
        self.url, self.seconds, self.rate = url, seconds, rate
        self.producer, self.worker = Queue(PostgresStore(url)), Queue(PostgresStore(url))
        self.enqueued = self.done = 0
        self.took: list[tuple[float, float]] = []
        self.started = time.perf_counter()

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.started

    async def produce(self) -> None:
        while (due := self.enqueued / self.rate) < self.seconds:
            await asyncio.sleep(max(0.0, due - self.elapsed))
            await self.producer.enqueue_many([{"type": "t", "queue": "pinned"} for _ in range(BATCH)])
            self.enqueued += BATCH

    async def work(self) -> None:
        while self.elapsed < self.seconds + 1:
            began = self.elapsed
            leased = await self.worker.lease("pinned", worker="bench", limit=BATCH)
            if not leased:
                await asyncio.sleep(0.005)
                continue
            await self.worker.settle_many([self.worker.acked(one) for one in leased])
            self.took.append((began, (self.elapsed - began) * 1000))
            self.done += len(leased)

    async def analyse(self) -> None:
        connection = await asyncpg.connect(self.url)
        while self.elapsed < self.seconds:
            await connection.execute("ANALYZE penstock.ready; ANALYZE penstock.lease")
            await asyncio.sleep(5)
        await connection.close()

    async def go(self) -> None:
        idler = await asyncpg.connect(self.url)
        async with idler.transaction(isolation="repeatable_read"):
            await idler.fetch("SELECT count(*) FROM penstock.job")
            self.started = time.perf_counter()
            await asyncio.gather(self.produce(), self.work(), self.analyse())
        await idler.close()
        await self.producer.close()
        await self.worker.close()

    def tell(self) -> None:
        print(
            f"{'seconds':>9}  {'p50 ms':>7}  {'p99 ms':>7}  {'worst ms':>8}   (lease and ack of up to {BATCH}, together)"
        )
        for begin in range(0, int(self.seconds), 10):
            took = sorted(took for began, took in self.took if begin <= began < begin + 10)
            if took:
                print(
                    f"{begin:>4}–{begin + 10:<4}  {took[len(took) // 2]:>7.1f}  {took[int(len(took) * 0.99)]:>7.1f}  {took[-1]:>8.1f}"
                )
        print(f"enqueued {self.enqueued:,}, done {self.done:,}")

    def figures(self) -> dict[str, float]:
        took = sorted(took for _, took in self.took)
        return {
            "p50_ms": took[len(took) // 2],
            "p99_ms": took[int(len(took) * 0.99)],
            "enqueued": self.enqueued,
            "left": self.enqueued - self.done,
        }


async def measure(url: str, seconds: float, rate: int) -> dict[str, float]:
    await migrate(url)
    run = Run(url, seconds, rate)
    await run.go()
    run.tell()
    return run.figures()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", help="an empty database to use instead of an embedded one")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=int, default=3_000)
    arguments = parser.parse_args()
    if arguments.url:
        asyncio.run(measure(arguments.url, arguments.seconds, arguments.rate))
    else:
        with tempfile.TemporaryDirectory() as folder, start(Path(folder) / "data") as server:
            asyncio.run(measure(server.url, arguments.seconds, arguments.rate))


if __name__ == "__main__":
    main()
