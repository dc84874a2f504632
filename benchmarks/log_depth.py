"""A log with a million queued jobs: the memory each takes, a cold start, a snapshot, and what a worker feels of it.

    python benchmarks/log_depth.py [--jobs 1000000] [--json FILE]

Each job has a payload of 200 bytes. The log is in a folder, synced as always. The cold start is that of a new process,
from its first call to its answer; the longest pause is how much later than asked for an event loop came back to a task
while a worker leased and settled jobs and the compactor, in its own process, wrote the snapshot.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import platform
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from penstock import Queue, connect
from penstock.stores.log.backings import open_backing
from penstock.stores.log.compacting import CompactorProcess, Rhythm
from penstock.stores.log.snapshots import Snapshots
from penstock.stores.log.store import SHARD

BATCH = 1_000
PAYLOAD = {"to": "ada@example.com", "text": "x" * 158}
"""200 bytes as JSON."""

GATES = {"bytes_per_job": 700, "cold_start_seconds": 10, "longest_pause_ms": 60}


def resident_bytes() -> float:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except FileNotFoundError:  # not Linux: the high-water mark is the best there is
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Pauses:
    """How late a loop comes back to a task that asks for a millisecond, and how long it was busy itself meanwhile.

    On a machine with nothing else to do the two are the same.
    """

    def __init__(self) -> None:
        self.longest = self.busiest = 0.0

    async def __aenter__(self) -> Pauses:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _watch(self) -> None:
        while True:
            before, worked = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, time.perf_counter() - before - 0.001)
            self.busiest = max(self.busiest, time.thread_time() - worked)


async def fill(queue: Queue, jobs: int) -> None:
    for start in range(0, jobs, BATCH):
        await queue.enqueue_many(
            [{"type": "email.send", "queue": "emails", "payload": PAYLOAD} for _ in range(BATCH)]
        )
        if start % 50_000 == 0:
            print(f"\r{start:>9,} of {jobs:,} queued", end="", flush=True)
    print(f"\r{jobs:>9,} of {jobs:,} queued")


async def work(queue: Queue) -> None:
    """What a worker does all day, a few jobs at a time."""
    while True:
        leased = await queue.lease("emails", worker="bench", limit=10)
        await queue.settle_many([queue.acked(one) for one in leased])
        await asyncio.sleep(0.005)


async def snapshot(queue: Queue, url: str) -> dict[str, float]:
    """Have a snapshot made while a worker works."""
    backing = open_backing(url)
    snapshots = Snapshots(backing.objects, SHARD)
    gc.collect()
    gc.freeze()  # as after a cold start
    async with Pauses() as alone:
        worker = asyncio.create_task(work(queue))
        await asyncio.sleep(5)
    started = time.perf_counter()
    process = await CompactorProcess.start(url, SHARD, Rhythm(entries=1, poll_seconds=0.5))
    async with Pauses() as pauses:
        while await snapshots.manifest() is None:  # noqa: ASYNC110 — it is another process that makes it
            await asyncio.sleep(0.1)
        seconds = time.perf_counter() - started
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    await process.stop()
    found = await backing.objects.list(f"{SHARD}/seg")
    await backing.close()
    return {
        "snapshot_seconds": seconds,
        "snapshot_bytes": sum(one.size for one in found),
        "longest_pause_ms": pauses.longest * 1000,
        "of_it_our_own_ms": pauses.busiest * 1000,
        "longest_pause_before_ms": alone.longest * 1000,
    }


async def open_cold(url: str) -> dict[str, float]:
    """What a process that begins finds and takes."""
    empty = connect(f"{url}-empty")
    await empty.queues()  # what is imported is not the jobs'
    await empty.close()
    before = resident_bytes()
    queue = connect(url)
    started, worked = time.perf_counter(), time.process_time()
    async with Pauses() as pauses:
        [view] = await queue.queues()
        seconds, cpu = time.perf_counter() - started, time.process_time() - worked
    jobs = sum(view.counts.values())
    taken = (resident_bytes() - before) / jobs
    await queue.close()
    return {
        "jobs": jobs,
        "cold_start_seconds": seconds,
        "cold_start_cpu_seconds": cpu,
        "bytes_per_job": taken,
        "longest_pause_while_opening_ms": pauses.longest * 1000,
        "of_that_our_own_ms": pauses.busiest * 1000,
    }


async def measure(url: str, jobs: int) -> dict[str, Any]:
    queue = connect(url)
    before = resident_bytes()
    started = time.perf_counter()
    await fill(queue, jobs)
    filled = time.perf_counter() - started
    gc.collect()
    grown = (resident_bytes() - before) / jobs
    figures: dict[str, Any] = {"enqueued_per_second": jobs / filled, "bytes_per_job_as_it_grew": grown}
    figures |= await snapshot(queue, url)
    await queue.close()
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--open", url, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    figures |= json.loads(told)
    return figures


def report(figures: dict[str, Any]) -> str:
    lines = [f"Python {platform.python_version()}, {figures['jobs']:,} jobs with a payload of 200 bytes", ""]
    for name, value in figures.items():
        gate = GATES.get(name)
        held = "" if gate is None else f"   {'holds' if value <= gate else 'BROKEN'}: at most {gate:,}"
        lines.append(f"{name.replace('_', ' '):<34}{value:>16,.1f}{held}")
    return "\n".join(lines)


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--open", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.open:
        print(json.dumps(await open_cold(arguments.open)))
        return
    with tempfile.TemporaryDirectory() as folder:
        figures = await measure(f"file://{folder}/log", arguments.jobs)
    print(report(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
