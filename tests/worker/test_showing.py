"""A worker is seen while it runs, and what keeps it from being seen does not keep it from working."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Penstock
from penstock.core.errors import PenstockError, StoreUnavailable
from penstock.core.registry import Entry, PutEntry
from penstock.core.wakeups import Wakeups, WakeupsStatus
from penstock.presence import Presence, workers
from penstock.stores.memory import MemoryStore
from penstock.stores.wakeups.polling import NoWakeups
from penstock.worker import showing
from penstock.worker.handlers import make_handler
from penstock.worker.proc import resident_bytes
from penstock.worker.showing import Showing
from penstock.worker.worker import Worker
from support.postgres import CountingStore
from support.working import LONG, Running, Work, until


async def seen(app: Penstock) -> list[Presence]:
    return await workers(app.queue.store, app.queue.tenant)


async def test_it_shows_itself_from_its_start_to_its_end(app: Penstock, work: Work) -> None:
    async with work(queues={"emails": 3, "reports*": 1}, concurrency=7, name="w1") as running:
        await until(lambda: _is_seen(app))
        [shown] = await seen(app)
        assert (shown.worker, shown.tenant, shown.queues, shown.slots) == (
            "w1", "default", {"emails": 3, "reports*": 1}, 7,
        )  # fmt: skip
        assert (shown.pid, shown.host, shown.version) == (
            os.getpid(), socket.gethostname(), penstock.__version__,
        )  # fmt: skip
        assert (shown.running, shown.reserved, shown.stopping) == (0, 0, False)
        assert shown.memory_bytes is not None
        assert shown.memory_bytes > 1_000_000
        assert shown.seen_at is not None
        assert shown.started_at <= shown.seen_at
        await running.stop()
        assert await seen(app) == []


async def test_it_says_that_it_stops_and_what_it_still_runs(app: Penstock, work: Work) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()

    @app.job(name="slow")
    async def slow() -> None:
        began.set()
        await may_end.wait()

    async with work() as running:
        await slow.enqueue()
        await asyncio.wait_for(began.wait(), LONG)
        running.worker.stop()
        await until(lambda: _says_it_stops(app))
        [shown] = await seen(app)
        assert (shown.running, shown.serves("default")) == (1, False)
        may_end.set()
        await asyncio.wait_for(running.task, LONG)
        assert await seen(app) == []


async def test_it_shows_itself_again_and_again(
    app: Penstock, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(showing, "EVERY_SECONDS", 0.01)
    async with work():
        await until(lambda: _is_seen(app))
        [first] = await seen(app)

        async def later() -> bool:
            [shown] = await seen(app)
            return shown.seen_at != first.seen_at and shown.started_at == first.started_at

        await until(later)


async def test_it_costs_one_statement_each_time() -> None:
    store = CountingStore()
    shown = Showing(
        penstock.Queue(store),
        "w1",
        {"default": 1.0},
        10,
        asyncio.Event(),
        lambda: (0, 0, ()),
        lambda order: None,
    )
    await shown._show()
    store.statements.clear()
    await shown._show()
    assert len(store.statements) == 1
    await store.close()


class DeafStore(MemoryStore):
    """Takes no entries."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.times = 0

    async def put_entries(
        self, tenant: str, commands: Sequence[PutEntry]
    ) -> list[Entry | PenstockError | None]:
        self.times += 1
        if self.times >= 3:
            self.asked.set()
        raise StoreUnavailable("the store", "no entries today")


async def test_one_that_cannot_be_seen_works_on_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(showing, "EVERY_SECONDS", 0.01)
    store, ran = DeafStore(), asyncio.Event()
    queue = penstock.Queue(store)

    async def touch() -> None:
        ran.set()

    worker = Worker(queue, {"touch": make_handler("touch", touch)}, name="w1")
    running = Running(worker, asyncio.create_task(worker.run()))
    with caplog.at_level(logging.WARNING):
        await asyncio.wait_for(store.asked.wait(), LONG)
        await queue.enqueue("touch")
        await asyncio.wait_for(ran.wait(), LONG)
        await running.stop()
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "worker w1 cannot show itself, and goes on unseen (StoreUnavailable: the store could not be reached: no entries today)"
    ]


def test_memory_is_unknown_where_the_system_does_not_tell(tmp_path: Path) -> None:
    assert resident_bytes(tmp_path) is None


class Says(NoWakeups):
    def __init__(self, driver: str, healthy: bool) -> None:
        super().__init__()
        self._status = WakeupsStatus(driver, healthy, "")

    def status(self) -> WakeupsStatus:
        return self._status


@pytest.mark.parametrize(
    ("wakeups", "seconds"),
    [
        (Says("postgres", healthy=True), 10),
        (Says("redis", healthy=True), 10),
        (Says("postgres", healthy=False), 5),
        (Says("memory", healthy=True), 5),
        (NoWakeups(), 5),
    ],
    ids=["postgres", "redis", "postgres away", "memory", "none"],
)
def test_who_is_woken_looks_less_often(wakeups: Wakeups, seconds: float) -> None:
    store: Any = MemoryStore()
    store.wakeups = wakeups
    worker = Worker(penstock.Queue(store), {})
    assert worker._longest_wait() == seconds


async def _is_seen(app: Penstock) -> bool:
    return len(await seen(app)) == 1


async def _says_it_stops(app: Penstock) -> bool:
    return any(shown.stopping for shown in await seen(app))
