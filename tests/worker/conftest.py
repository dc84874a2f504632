"""An app on each store, and a worker that runs while a test does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock import Penstock
from penstock.app.running import run_worker
from penstock.worker.worker import Worker
from support.postgres import emptied, server_url
from support.working import LONG, Running, Work


@pytest.fixture(params=["memory", "postgres"])
async def app(request: pytest.FixtureRequest) -> AsyncIterator[Penstock]:
    url = "memory://"
    if request.param == "postgres":
        url = server_url()
        await emptied()
    async with Penstock(url, name="test") as app:
        yield app


@pytest.fixture
def work(app: Penstock) -> Work:
    """`async with work(): …` runs a worker for the app's handlers while the block runs."""

    @asynccontextmanager
    async def running(**options: Any) -> AsyncIterator[Running]:
        started: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(
            run_worker(app, handle_signals=False, on_start=started.set_result, **options)
        )
        both: list[asyncio.Future[Any]] = [task, started]
        await asyncio.wait(both, timeout=LONG, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        now = Running(started.result(), task)
        try:
            yield now
        finally:
            if not task.done():
                now.worker.stop()
                now.worker.stop()
                await asyncio.wait_for(task, LONG)

    return running
