"""A worker whose database goes away, and comes back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import asyncpg
import pytest

from penstock import Penstock, Status
from support.postgres import emptied, server_url
from support.working import LONG


@pytest.fixture
async def app() -> AsyncIterator[Penstock]:
    await emptied()
    async with Penstock(server_url(), name="test") as app:
        yield app


async def end_all_backends() -> int:
    """Close every connection but this one, as a failover does."""
    connection = await asyncpg.connect(server_url())
    ended: int = await connection.fetchval(
        """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
           WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"""
    )
    await connection.close()
    return ended


async def test_every_job_is_done_though_connections_are_ended_again_and_again(app: Penstock) -> None:
    ran: Counter[int] = Counter()

    @app.job(name="one", max_attempts=20)
    async def one(n: int) -> None:
        ran[n] += 1
        await asyncio.sleep(0.002)

    handles = await app.enqueue_many([one.new(n) for n in range(300)])
    async with app.worker(concurrency=5, lease_seconds=2) as worker:
        for _ in range(5):
            await asyncio.sleep(0.05)
            assert await end_all_backends() > 0
        for handle in handles:
            assert (await handle.wait(timeout=LONG)).status is Status.SUCCEEDED  # type: ignore[union-attr]
        assert worker.is_alive()
    assert set(ran) == set(range(300)), "none was forgotten"


async def test_a_long_job_keeps_its_lease_through_it(app: Penstock) -> None:
    """The keeper's connection is ended too; it opens another well before the lease is over."""
    started, go_on = asyncio.Event(), asyncio.Event()

    @app.job(name="long", max_attempts=1)
    async def long() -> str:
        started.set()
        await go_on.wait()
        return "done"

    async with app.worker(lease_seconds=2):
        handle = await long.enqueue()
        await asyncio.wait_for(started.wait(), LONG)
        for _ in range(6):
            await asyncio.sleep(0.5)
            await end_all_backends()
        go_on.set()
        assert await handle.result(timeout=LONG) == "done"
    assert len((await app.queue.history(handle.id)).attempts) == 1
