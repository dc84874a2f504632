"""The calls that a queue without a database is given, whosever it is: the same loops, the same counting.

    python -m benchmarks.peers.<system> '{"place": "memory", "at": …, "depth": 1000, "scenario": "mixed", …}'

It runs in the interpreter of the system under test and imports the standard library only.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

PAYLOAD = b'"' + b"x" * 1022 + b'"'
"""1 KB, and JSON."""

SCENARIOS = ("enqueue", "mixed")


class Queue(Protocol):
    """A queue in memory, a folder or a bucket."""

    async def open(self) -> None: ...

    async def fill(self, jobs: int) -> None:
        """Let so many jobs wait in it."""

    async def enqueue(self) -> None: ...

    async def lease(self) -> Any:
        """A job; None if there is none."""

    async def ack(self, leased: Any) -> None: ...

    async def close(self) -> None: ...


async def call(queue: Queue, scenario: str, callers: int, most: int, seconds: float) -> dict[str, float]:
    """So many callers until so many operations are done or the time is up; what each waits for it waits for alone.

    Mixed is enqueue, lease and ack in turn, and each of the three counts.
    """
    waits: list[float] = []
    started = time.perf_counter()

    def may_go_on() -> bool:
        return len(waits) < most and time.perf_counter() < started + seconds

    async def timed(operation: Any) -> Any:
        begun = time.perf_counter()
        answer = await operation
        waits.append(time.perf_counter() - begun)
        return answer

    async def caller() -> None:
        while may_go_on():
            await timed(queue.enqueue())
            if scenario == "mixed":
                leased = await timed(queue.lease())
                if leased is not None:
                    await timed(queue.ack(leased))

    worked = time.process_time()
    await asyncio.gather(*(caller() for _ in range(callers)))
    passed, worked = time.perf_counter() - started, time.process_time() - worked
    ordered = sorted(waits)
    return {
        "per_second": len(waits) / passed,
        "operations": len(waits),
        "cpu_us": worked / len(waits) * 1e6,
        "p50_ms": 1000 * ordered[len(ordered) // 2],
        "p99_ms": 1000 * ordered[int(0.99 * (len(ordered) - 1))],
    }


async def work(queue: Queue, given: dict[str, Any]) -> None:
    """Do what was asked for, and print the figures; with `together`, say when ready and wait to be told to begin."""
    await queue.open()
    await queue.fill(given["depth"])
    await queue.enqueue()  # what is loaded at the first call is loaded
    gc.collect()
    gc.freeze()
    if given.get("together"):
        print("ready", flush=True)
        sys.stdin.readline()
    figures = await call(queue, given["scenario"], given["callers"], given["most"], given["seconds"])
    print(json.dumps(figures), flush=True)
    await queue.close()


def main(system: Callable[[str, str], Queue]) -> None:
    given = json.loads(sys.argv[1])
    asyncio.run(work(system(given["place"], given["at"]), given))
