"""Appends per second to a log without a database, alone and with several processes on one log.

    python benchmarks/object_log.py [--seconds 5] [--json FILE]

Callers append 200 bytes each and share entries as they come (group commit by `coalesce`). The file is synced at every
entry. The bucket is `tests/support/s3.py` in a process of its own, with the latencies of S3 Standard: writes 40 ms in the
median and 150 at the 99th percentile, reads 15 and 60. The figures to compare are the ratios within one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from penstock.coalesce import Coalesce
from penstock.stores.log.backings import Backing, Tape, open_backing

PAYLOAD = b"x" * 200
CALLERS = (1, 10, 50)
PROCESSES = (1, 2, 4)
CALLERS_IN_A_PROCESS = 25
SERVER = Path(__file__).resolve().parents[1] / "tests" / "support" / "s3.py"


class Group:
    """Appends of many callers as one entry. It stands for the store's group commit, without a state to apply to."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self.entries = 0
        self.append = Coalesce(self._append)

    async def _append(self, payloads: list[bytes]) -> Sequence[int]:
        number = await self._tape.append(msgspec.msgpack.encode(payloads))
        self.entries += 1
        return [number] * len(payloads)


async def load(backing: Backing, callers: int, seconds: float) -> dict[str, float]:
    """So many callers, each appending again as soon as it was answered."""
    await backing.ready()
    group = Group(backing.tape("s00"))
    await group.append(PAYLOAD)
    waits: list[float] = []
    started = time.perf_counter()

    async def call() -> None:
        while (begun := time.perf_counter()) < started + seconds:
            await group.append(PAYLOAD)
            waits.append(time.perf_counter() - begun)

    await asyncio.gather(*(call() for _ in range(callers)))
    passed = time.perf_counter() - started
    ordered = sorted(waits)
    return {
        "appends_per_second": len(waits) / passed,
        "entries_per_second": group.entries / passed,
        "p50_ms": 1000 * statistics.median(ordered),
        "p99_ms": 1000 * ordered[int(0.99 * (len(ordered) - 1))],
    }


async def alone(url: str, callers: int, seconds: float) -> dict[str, float]:
    backing = open_backing(url)
    try:
        return await load(backing, callers, seconds)
    finally:
        await backing.close()


def together(url: str, processes: int, seconds: float) -> dict[str, Any]:
    """Several processes on one log. All are ready before the first one begins."""
    command = [sys.executable, __file__, "--contend", url, "--seconds", str(seconds)]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    each = [json.loads(process.communicate()[0]) for process in running]
    rates = [one["appends_per_second"] for one in each]
    return {
        "processes": processes,
        "appends_per_second": sum(rates),
        "jain": sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates)),
        "slowest": min(rates),
        "fastest": max(rates),
        "p50_ms": statistics.median(one["p50_ms"] for one in each),
        "p99_ms": max(one["p99_ms"] for one in each),
    }


async def contend(url: str, seconds: float) -> None:
    backing = open_backing(url)
    await backing.ready()
    await backing.tape("s00").last()
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(await load(backing, CALLERS_IN_A_PROCESS, seconds)), flush=True)
    await backing.close()


@contextmanager
def places(folder: str) -> Iterator[dict[str, str]]:
    """Where to measure; each measurement gets a log of its own below."""
    server = subprocess.Popen(
        [sys.executable, str(SERVER), "--put", "40", "150", "--get", "15", "60"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        yield {
            "memory": "memory+log://{name}",
            "file, synced": f"file://{folder}/{{name}}",
            "S3 of 40 ms": server.stdout.readline().strip().replace("/jobs?", "/{name}?"),
        }
    finally:
        server.stdin.close()
        server.wait()
        server.stdout.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--contend", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.contend:
        asyncio.run(contend(given.contend, given.seconds))
        return
    result: dict[str, Any] = {"python": platform.python_version(), "alone": {}, "together": {}}
    with tempfile.TemporaryDirectory() as folder, places(folder) as urls:
        print(f"{'':14}{'callers':>8}{'appends/s':>12}{'entries/s':>12}{'p50 ms':>9}{'p99 ms':>9}")
        for place, url in urls.items():
            for callers in CALLERS:
                figures = asyncio.run(alone(url.format(name=f"alone{callers}"), callers, given.seconds))
                result["alone"][f"{place}, {callers}"] = figures
                print(
                    f"{place:14}{callers:>8}{figures['appends_per_second']:>12,.0f}{figures['entries_per_second']:>12,.0f}"
                    f"{figures['p50_ms']:>9.2f}{figures['p99_ms']:>9.2f}"
                )
        print(
            f"\n{'':14}{'processes':>10}{'appends/s':>12}{'of one':>8}{'Jain':>7}{'p50 ms':>9}{'p99 ms':>9}"
        )
        for place, url in list(urls.items())[1:]:
            one = 0.0
            for processes in PROCESSES:
                shared = together(url.format(name=f"together{processes}"), processes, given.seconds)
                one = one or shared["appends_per_second"]
                shared["of_one"] = shared["appends_per_second"] / one
                result["together"][f"{place}, {processes}"] = shared
                print(
                    f"{place:14}{processes:>10}{shared['appends_per_second']:>12,.0f}{shared['of_one']:>8.2f}"
                    f"{shared['jain']:>7.3f}{shared['p50_ms']:>9.2f}{shared['p99_ms']:>9.2f}"
                )
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
