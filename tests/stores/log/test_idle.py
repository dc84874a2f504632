"""What programs at rest ask of a bucket, where every request costs money: each object asked for is counted."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

import pytest

from penstock.app.running import scheduling
from penstock.connecting import IN_A_BUCKET
from penstock.queue import Queue
from penstock.stores.log import cost
from penstock.stores.log.backings import Found
from penstock.stores.log.backings.clocks import StoreClock
from penstock.stores.log.backings.memory import MemoryObjects
from penstock.stores.log.backings.numbered import ObjectTape
from penstock.stores.log.compacting import compactor
from penstock.stores.log.log import Source
from penstock.stores.log.snapshots import Snapshots
from penstock.stores.log.state import Parts, State
from penstock.stores.log.store import SHARD, LogStore
from penstock.stores.wakeups.memory import MemoryWakeups
from penstock.testing import START
from penstock.worker.worker import Worker
from support.virtual import VirtualLoop

WORKERS = 3
FREE = "delete"


def _now() -> datetime:
    return START + timedelta(seconds=asyncio.get_running_loop().time())


def _wall() -> float:
    return _now().timestamp()


class Client(MemoryObjects):
    """One process's way to the objects that all share. It counts its requests as a bucket would."""

    def __init__(self, name: str, shared: MemoryObjects, counts: Counter[tuple[str, str, str]]) -> None:
        super().__init__(_now)
        self._held, self._name, self._counts = shared._held, name, counts
        self.clock = StoreClock(
            "a bucket", self._write, self._dated, wall=_wall, steady=lambda: _wall() - 9e8
        )

    def _count(self, kind: str, key: str) -> None:
        self._counts[self._name, kind, key.removeprefix(f"{SHARD}/").partition("/")[0]] += 1

    async def create(self, key: str, data: bytes) -> bool:
        self._count("put", key)
        won = await super().create(key, data)
        if not won:
            self._count("get", key)  # whose it is
        return won

    async def get(self, key: str) -> bytes | None:
        self._count("get", key)
        return await super().get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self._count("get", key)
        return await super().get_range(key, start, length)

    async def head(self, key: str) -> Found | None:
        self._count("get", key)
        return await super().head(key)

    async def read(self, key: str) -> tuple[bytes, str] | None:
        self._count("get", key)
        return await super().read(key)

    async def replace(self, key: str, data: bytes, version: str | None) -> str | None:
        self._count("put", key)
        return await super().replace(key, data, version)

    async def list(self, prefix: str, *, after: str = "", most: int | None = None) -> list[Found]:
        self._count("list", prefix)
        return await super().list(prefix, after=after, most=most)

    async def delete(self, keys: Sequence[str]) -> None:
        self._count(FREE, keys[0])
        await super().delete(keys)

    async def now(self) -> datetime:
        return await self.clock.now()

    async def _write(self) -> str:
        await self.create(key := f"clock/{self._name}", b"")
        return key

    async def _dated(self, key: str) -> datetime:
        found = await self.head(key)
        await self.delete([key])
        assert found is not None
        return found.modified

    def tape(self) -> ObjectTape:
        return ObjectTape(self, SHARD, clocks=lambda: (asyncio.get_running_loop().time(),))

    def store(self, poll: float) -> LogStore:
        async def load(wakeups: MemoryWakeups) -> State:
            parts = Parts()
            await Snapshots(self, SHARD).load(parts)
            return State(parts, wakeups)

        async def leave_open() -> None:
            pass

        async def open() -> Source:
            return Source(self.tape(), self.now, load, leave_open)

        return LogStore(open, cadence=IN_A_BUCKET, poll=poll)


@contextmanager
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    monkeypatch.setattr(time, "monotonic", loop.time)
    try:
        yield loop
    finally:
        monkeypatch.undo()
        loop.close()


async def work(queue: Queue) -> None:
    async with scheduling(queue):
        await Worker(queue, {}, queues="default,reports").run()


async def at_rest(
    minutes_before: float, workers: int = WORKERS, poll: float = 5.0
) -> tuple[Counter[tuple[str, str, str]], float]:
    """The requests of so many workers and a compactor within an hour, and how many seconds that was."""
    shared, counts = MemoryObjects(_now), Counter[tuple[str, str, str]]()
    stores = [Client(f"w{n}", shared, counts).store(poll) for n in range(workers)]
    queues = [Queue(store) for store in stores]
    await queues[0].enqueue("unknown", queue="other")
    await queues[0].put_schedule("nightly", "0 3 * * *", {"type": "a"})
    own, stopped = Client("compactor", shared, counts), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for queue in queues:  # one after the other, as processes are started
            tasks.append(group.create_task(work(queue)))
            await asyncio.sleep(3.7)
        group.create_task(compactor(own.tape(), own, SHARD).run(stopped))
        await asyncio.sleep(60 * minutes_before)
        counts.clear()
        begun = asyncio.get_running_loop().time()
        await asyncio.sleep(3_600)
        counted, seconds = counts.copy(), asyncio.get_running_loop().time() - begun
        stopped.set()
        for task in tasks:
            task.cancel()
    for store in stores:
        await store.close()
    return counted, seconds


def requests_of(counts: Counter[tuple[str, str, str]], seconds: float) -> cost.Requests:
    """By the hour."""
    kinds = Counter[str]()
    for (_, kind, _), count in counts.items():
        kinds[kind] += count
    return cost.Requests((kinds["put"] + kinds["list"]) * 3600 / seconds, kinds["get"] * 3600 / seconds)


@pytest.mark.parametrize("minutes_before", [1, 120])
def test_three_idle_workers_ask_less_than_once_a_second(
    minutes_before: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with virtual_time(monkeypatch) as loop:
        counts, seconds = loop.run_until_complete(at_rest(minutes_before))
    for about, count in counts.most_common():
        print(f"{count / seconds:.4f} {' '.join(about)}")
    asked = requests_of(counts, seconds)
    print(f"{(asked.puts + asked.gets) / 3600:.3f} requests a second")
    assert (asked.puts + asked.gets) / 3600 <= 0.85


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("workers", "poll"),
    [(1, 5.0), (3, 5.0), pytest.param(8, 5.0, marks=LONG), pytest.param(3, 15.0, marks=LONG)],
)
def test_it_costs_what_is_said_to_be_its_cost(
    workers: int, poll: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with virtual_time(monkeypatch) as loop:
        counts, seconds = loop.run_until_complete(at_rest(60, workers, poll))
    asked, said = requests_of(counts, seconds), cost.at_rest(workers, 1, poll)
    print(asked, said)
    assert asked.cost(cost.S3_STANDARD) == pytest.approx(said.cost(cost.S3_STANDARD), rel=0.25)
    assert asked.puts == pytest.approx(said.puts, rel=0.35)
    assert asked.gets == pytest.approx(said.gets, rel=0.35)
