"""Real processes: the leader is killed, and another one fires."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from penstock.queue import Queue
from penstock.stores.postgres.store import PostgresStore
from support.postgres import TABLES, server_url

LONG = 60.0
PROGRAM = """
import asyncio, sys
from penstock import connect
from penstock.scheduler import Scheduler

async def main():
    async with connect(sys.argv[1]) as queue:
        scheduler = Scheduler(queue, name=sys.argv[2], lead_seconds=1.0)
        run = asyncio.create_task(scheduler.run())
        while not scheduler.status().last_pass_at:
            await asyncio.sleep(0.01)
        print("seeks", flush=True)
        while not scheduler.status().leading:
            await asyncio.sleep(0.01)
        print("leads", flush=True)
        await run

asyncio.run(main())
"""


@asynccontextmanager
async def scheduler(name: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, server_url(), name, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def said(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(LONG):
        return (await process.stdout.readline()).decode().strip()


async def test_when_the_leader_is_killed_another_fires_the_next_times() -> None:
    connection = await asyncpg.connect(server_url())
    await connection.execute("; ".join(f"DELETE FROM penstock.{table}" for table in TABLES))
    await connection.close()
    async with Queue(PostgresStore(server_url())) as queue:
        async with scheduler("first") as first:
            assert [await said(first), await said(first)] == ["seeks", "leads"]
            async with scheduler("second") as second:
                assert await said(second) == "seeks"
                # Put by this process: the leader learns of it by a wake-up through the database.
                await queue.put_schedule("s", "* * * * * *", {"type": "a"}, missed="all")
                await fired(queue, 1)
                first.send_signal(signal.SIGKILL)
                await first.wait()
                before = len((await queue.find(schedule="s", limit=1000)).jobs)
                assert await said(second) == "leads"
                await fired(queue, before + 2)
        jobs = (await queue.find(schedule="s", limit=1000)).jobs
        times = sorted(job.scheduled_at.timestamp() for job in jobs)
        assert times == [times[0] + second for second in range(len(times))], (
            "each time once, and none left out"
        )


async def fired(queue: Queue, least: int) -> None:
    async with asyncio.timeout(LONG), queue.store.wakeups.listen("default", ["default"]) as bell:
        while len((await queue.find(schedule="s", limit=1000)).jobs) < least:
            await bell.wait(0.5)
