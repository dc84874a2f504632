"""Whole lives per second of the memory store, near empty and a million deep, and the memory a queued job takes.

    python benchmarks/memory_store.py [--deep 1000000] [--json FILE]

A life is one enqueue, lease and ack through `Queue`, in batches of 100, checks included. The figure to
compare is the ratio between the two depths: it comes from one run on one machine.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import platform
import resource
import statistics
import time
from pathlib import Path
from typing import Any

from penstock import PenstockError, Queue, connect

BATCH = 100
ROUNDS = 5
LIVES_PER_ROUND = 10_000


def items(start: int, number: int) -> list[dict[str, Any]]:
    return [
        {"type": "email.send", "queue": "emails", "payload": {"to": "ada@example.com", "number": start + n}}
        for n in range(number)
    ]


async def fill(queue: Queue, depth: int, label: str) -> None:
    for start in range(0, depth, BATCH):
        await queue.enqueue_many(items(start, min(BATCH, depth - start)))
        if start % 50_000 == 0 and depth > 50_000:
            print(f"\r{label}: {start:>9,} of {depth:,} queued", end="", flush=True)
    if depth > 50_000:
        print(f"\r{label}: {depth:>9,} of {depth:,} queued")


async def live(queue: Queue, lives: int) -> float:
    """Seconds for so many whole lives; the depth of the queue stays as it is."""
    started = time.perf_counter()
    for start in range(0, lives, BATCH):
        await queue.enqueue_many(items(start, BATCH))
        leased = await queue.lease("emails", worker="bench", limit=BATCH)
        answers = await queue.settle_many([queue.acked(one) for one in leased])
        if len(answers) != BATCH or any(isinstance(answer, PenstockError) for answer in answers):
            raise SystemExit("a batch was not settled as a whole; the figures would mean nothing")
    return time.perf_counter() - started


async def measure(depth: int) -> dict[str, float]:
    queue = connect("memory://")
    gc.collect()
    before = resident_bytes()
    await fill(queue, depth, f"depth {depth:,}")
    gc.collect()
    payload = sum(len(job.payload) for job in (await queue.find(limit=1000)).jobs) / min(depth, 1000)
    per_job = (resident_bytes() - before) / depth - payload
    await live(queue, 1_000)  # warm up
    rounds = [LIVES_PER_ROUND / await live(queue, LIVES_PER_ROUND) for _ in range(ROUNDS)]
    return {
        "depth": depth,
        "lives_per_second": statistics.median(rounds),
        "slowest_round": min(rounds),
        "fastest_round": max(rounds),
        "bytes_per_queued_job_beyond_payload": per_job,
    }


def resident_bytes() -> float:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except FileNotFoundError:  # not Linux: the high-water mark is the best there is
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--deep", type=int, default=1_000_000, help="how many queued jobs is deep")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    shallow, deep = await measure(1_000), await measure(arguments.deep)
    ratio = shallow["lives_per_second"] / deep["lives_per_second"]
    print(f"\nPython {platform.python_version()}, batches of {BATCH}, median of {ROUNDS} rounds\n")
    print(f"{'queued':>10}  {'lives/s':>9}  {'range':>17}")
    for row in (shallow, deep):
        spread = f"{row['slowest_round']:,.0f}–{row['fastest_round']:,.0f}"
        print(f"{row['depth']:>10,}  {row['lives_per_second']:>9,.0f}  {spread:>17}")
    print(f"\ncost per job, deep ÷ shallow: {ratio:.2f}")
    print(
        f"memory per queued job beyond its payload: {deep['bytes_per_queued_job_beyond_payload']:,.0f} bytes"
    )
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"shallow": shallow, "deep": deep, "ratio": ratio}, indent=2) + "\n"
        )


if __name__ == "__main__":
    asyncio.run(main())
