"""Behind a real PgBouncer in transaction mode: any statement may meet any session, and all clients share them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from penstock import connect
from penstock.queue import Queue
from penstock.stores.postgres.store import PostgresStore
from penstock.stores.wakeups.polling import NoWakeups
from penstock.testing import FakeClock
from support.differential import Differential
from support.pgbouncer import pgbouncer
from support.postgres import emptied, server_url


@pytest.fixture(scope="module")
def pooler() -> Iterator[str]:
    with (
        TemporaryDirectory(prefix="penstock-pgbouncer-") as folder,
        pgbouncer(server_url(), Path(folder)) as url,
    ):
        yield url


@pytest.fixture(autouse=True)
async def empty() -> None:
    await emptied()


@pytest.fixture
async def queue(pooler: str) -> AsyncIterator[Queue]:
    store = PostgresStore(pooler, pooled=True, wakeups=NoWakeups())
    yield Queue(store)
    await store.close()


class PooledStore(PostgresStore):
    url = ""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(type(self).url, clock, connections=4, pooled=True, wakeups=NoWakeups())

    async def pool(self) -> Any:
        if self._pool is None:
            await emptied()
        return await super().pool()


def test_a_store_behind_a_pooler_answers_as_the_state_machine_does(pooler: str) -> None:
    PooledStore.url = pooler

    class Subject(Differential):
        make_store = PooledStore

    few = settings(
        max_examples=15, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(Subject, settings=few)


async def test_many_clients_over_two_sessions_each_get_their_own_answers(pooler: str) -> None:
    """More clients than sessions, all at once: statements of different clients meet in the same session."""
    stores = [PostgresStore(pooler, pooled=True, connections=4, wakeups=NoWakeups()) for _ in range(4)]
    queues = [Queue(store) for store in stores]
    await queues[0].configure("limited", max_concurrency=3)
    done: Counter[str] = Counter()

    async def produce(queue: Queue, name: str) -> None:
        for _ in range(10):
            answers = await queue.enqueue_many(
                [{"type": name}] * 5 + [{"type": name, "queue": "limited", "key": name}]
            )
            assert len(answers) == 6

    async def work(queue: Queue, name: str) -> None:
        while sum(done.values()) < 240:
            for line in ("default", "limited"):
                for leased in await queue.lease(line, worker=name, limit=7):
                    await queue.ack(leased, {"by": name})
                    done[leased.id] += 1
            await asyncio.sleep(0)

    await asyncio.wait_for(
        asyncio.gather(
            *(produce(queue, f"p{number}") for number, queue in enumerate(queues)),
            *(work(queue, f"w{number}") for number, queue in enumerate(queues)),
        ),
        60,
    )
    assert len(done) == 240
    assert set(done.values()) == {1}
    counts = {view.name: view.counts["succeeded"] for view in await queues[0].queues()}  # type: ignore[index]
    assert counts == {"default": 200, "limited": 40}
    for store in stores:
        await store.close()


async def test_the_planner_is_told_what_it_must_know_for_each_statement(pooler: str) -> None:
    store = PostgresStore(pooler, pooled=True, wakeups=NoWakeups())
    for name in ("enable_seqscan", "enable_sort", "enable_bitmapscan"):
        [row] = await store._fetch("SELECT current_setting($1) AS value", name)
        assert row["value"] == "off", name
    await store.close()


async def test_it_leaves_nothing_behind_in_the_sessions_of_others(queue: Queue, pooler: str) -> None:
    for _ in range(5):
        await asyncio.gather(*(queue.enqueue("a") for _ in range(4)))
        await queue.lease(worker="w", limit=2)
    for _ in range(4):  # whichever session it meets
        connection = await asyncpg.connect(pooler, statement_cache_size=0)
        async with connection.transaction():
            await connection.execute("SELECT pg_sleep(0.01)")
            assert await connection.fetchval("SHOW enable_seqscan") == "on"
            assert (
                await connection.fetchval("SELECT count(*) FROM pg_prepared_statements WHERE name <> ''") == 0
            )
        await connection.close()


async def test_a_pooler_is_noticed_by_what_it_refuses(
    pooler: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_WAKEUPS", "none://")
    with caplog.at_level(logging.WARNING, "penstock.postgres"):
        async with connect(pooler) as queue:
            assert (await queue.enqueue("a")).duplicate is None
            assert len(await queue.lease(worker="w")) == 1
    assert "as behind a transaction-mode pooler" in caplog.text


async def test_the_url_can_say_so(
    pooler: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_WAKEUPS", "none://")
    with caplog.at_level(logging.WARNING, "penstock.postgres"):
        async with connect(f"{pooler}?pooled=true&application_name=mine") as queue:
            assert (await queue.enqueue("a")).duplicate is None
    assert not caplog.records


async def test_wake_ups_go_by_the_direct_url(pooler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_WAKEUPS", server_url())
    async with (
        connect(f"{pooler}?pooled=true") as workers,
        connect(f"{pooler}?pooled=true") as callers,
        workers.store.wakeups.listen("default", ["default"]) as bell,
    ):
        await callers.enqueue("a")
        assert await bell.wait(20) == {"default"}
