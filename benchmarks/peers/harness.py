"""The work every system is given, whoever it is: the same calls, the same clock, figures as JSON on standard output.

    python -m benchmarks.peers.<system> install | bulk | callers | produce | work --url URL [--jobs N] …

It runs in the interpreter of the system under test and imports the standard library only; the clock is the
machine's monotonic one, so that a producer and a worker in two processes can be compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

Payload = dict[str, Any]
BATCH = 1_000
"""How many jobs a bulk call takes, where a system has bulk calls."""


class System(Protocol):
    """A job queue on PostgreSQL."""

    async def open(self, callers: int) -> None:
        """Connect, with room for so many concurrent calls."""

    async def install(self) -> None:
        """Make the tables in an empty database, as the system's documents say."""

    async def enqueue_many(self, payloads: Sequence[Payload]) -> None:
        """Put many jobs in, the fastest durable way the system offers."""

    async def enqueue(self, payload: Payload) -> None:
        """Put one job in, durably."""

    def work(self, handled: Callable[[int], None]) -> AbstractAsyncContextManager[None]:
        """A worker that runs in this process during the block; its async handler calls `handled` with a job's number."""
        ...

    async def unfinished(self) -> int:
        """How many jobs are not settled in the database."""
        ...

    async def close(self) -> None: ...


def payload(number: int) -> Payload:
    """About 170 bytes of JSON."""
    return {"to": "ada@example.com", "subject": "hello", "body": "x" * 100, "number": number}


async def bulk(system: System, given: argparse.Namespace) -> dict[str, Any]:
    jobs = [payload(number) for number in range(given.jobs)]
    await system.enqueue_many([jobs.pop()])  # statements are prepared, connections are open
    began, used = time.monotonic(), time.process_time()
    await system.enqueue_many(jobs)
    return {"seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - used}


async def callers(system: System, given: argparse.Namespace) -> dict[str, Any]:
    """Single calls from many concurrent callers, each waiting for its own answer before the next."""
    jobs = [payload(number) for number in range(given.jobs)]
    await system.enqueue(jobs.pop())

    async def caller() -> None:
        while jobs:
            await system.enqueue(jobs.pop())

    began = time.monotonic()
    await asyncio.gather(*(caller() for _ in range(given.callers)))
    return {"seconds": time.monotonic() - began}


async def produce(system: System, given: argparse.Namespace) -> dict[str, Any]:
    """Single calls, one after the other or at a rate; when each was made and when it returned."""
    calls: dict[int, tuple[float, float]] = {}

    async def one(number: int) -> None:
        called = time.monotonic()
        await system.enqueue(payload(number))
        calls[number] = (called, time.monotonic())

    began = time.monotonic()
    if given.rate is None:
        for number in range(given.jobs):
            await one(number)
            # By chance, so that no timer of anybody's falls into step with it.
            await asyncio.sleep(random.uniform(0.02, 0.05))
    else:
        tasks = []
        for number in range(given.jobs):
            await asyncio.sleep(max(0.0, began + number / given.rate - time.monotonic()))
            tasks.append(asyncio.create_task(one(number)))
        _, late = await asyncio.wait(tasks, timeout=given.deadline)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    return {"calls": calls, "seconds": time.monotonic() - began}


async def work(system: System, given: argparse.Namespace) -> dict[str, Any]:
    """Run a worker until so many jobs were handled and all are settled; when each was started."""
    started: dict[int, float] = {}
    done = asyncio.Event()

    def handled(number: int) -> None:
        started[number] = time.monotonic()
        if len(started) == given.jobs:
            done.set()

    used = time.process_time()
    async with system.work(handled):
        await asyncio.sleep(given.settle_in)
        print("ready", flush=True)
        finished = True
        try:
            async with asyncio.timeout(given.deadline):
                await done.wait()
                while await system.unfinished():  # noqa: ASYNC110 - the database rings no bell for this
                    await asyncio.sleep(0.005)
        except TimeoutError:
            finished = False
        ended, used = time.monotonic(), time.process_time() - used
    first = min(started.values(), default=ended)
    return {"started": started, "seconds": ended - first, "cpu_seconds": used, "finished": finished}


async def install(system: System, given: argparse.Namespace) -> dict[str, Any]:
    await system.install()
    return {}


async def _run(system: System, given: argparse.Namespace) -> dict[str, Any]:
    await system.open(given.callers)
    try:
        result: dict[str, Any] = await COMMANDS[given.command](system, given)
    finally:
        await system.close()
    return result


COMMANDS = {each.__name__: each for each in (install, bulk, callers, produce, work)}


def main(make: Callable[[str], System]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--url", required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--callers", type=int, default=32)
    parser.add_argument("--rate", type=float, help="jobs per second; without it one after the other")
    parser.add_argument("--deadline", type=float, default=60.0, help="give up after so many seconds")
    parser.add_argument(
        "--settle-in", type=float, default=0.0, help="how long a worker runs before it is called ready"
    )
    parser.add_argument(
        "--plain-loop", action="store_true", help="asyncio's own event loop instead of uvloop"
    )
    given = parser.parse_args()
    logging.disable(logging.WARNING)  # for everybody alike
    if given.plain_loop:
        figures = asyncio.run(_run(make(given.url), given))
    else:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            figures = runner.run(_run(make(given.url), given))
    # Not print: a loop may have left the pipe non-blocking, and with PYTHONUNBUFFERED what does not fit is lost in silence.
    os.set_blocking(sys.stdout.fileno(), True)
    with open(sys.stdout.fileno(), "wb", closefd=False) as output:
        output.write(json.dumps(figures).encode() + b"\n")
