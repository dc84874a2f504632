"""Penstock beside a bare asyncpg loop, PGQueuer, Procrastinate and SAQ: the same work, one server, one machine, one run.

    make bench                                      # everything, some 15 minutes
    python -m benchmarks.side_by_side --quick       # tiny counts: does it work? The figures mean nothing.

Every system has its own fresh database on one embedded PostgreSQL with its default settings (fsync and
synchronous_commit on), runs in the interpreter of .bench-venv with the same asyncpg, and on uvloop. Rounds go
round all systems before the next begins, and the median counts. Slow systems get fewer jobs, which if anything
helps them: their tables stay small.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg

from benchmarks import deep_backlog, pinned_snapshot
from benchmarks.report import Figures, report
from benchmarks.server import fresh_server

ROOT = Path(__file__).parent.parent
PYTHON = ROOT / ".bench-venv" / "bin" / "python"
RESULTS = ROOT / "benchmarks" / "results"


class Sizes(NamedTuple):
    """How much of everything."""

    rounds: int
    drained: int
    drained_slow: int
    single: int
    idle: int
    rate: int
    rate_seconds: int
    deep_ready: int
    deep_scheduled: int
    pinned_seconds: int


FULL = Sizes(3, 50_000, 2_000, 4_000, 200, 1_000, 10, 1_000_000, 5_000_000, 60)
QUICK = Sizes(1, 3_000, 300, 500, 30, 200, 2, 20_000, 100_000, 10)
SLOW = {"procrastinate", "saq"}
SYSTEMS = ("penstock", "floor", "pgqueuer", "procrastinate", "saq")
MODULES = {name: f"benchmarks.peers.{name if name == 'floor' else name + '_'}" for name in SYSTEMS}


class Bench:
    """Runs the commands of one system against one database."""

    def __init__(self, system: str, url: str, database: asyncpg.Connection, plain_loop: bool) -> None:
        self.system, self.url, self.database, self.plain_loop = system, url, database, plain_loop

    async def start(self, command: str, **options: object) -> asyncio.subprocess.Process:
        words = [
            word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))
        ]
        if self.plain_loop:
            words.append("--plain-loop")
        return await asyncio.create_subprocess_exec(
            str(PYTHON), "-m", MODULES[self.system], command, "--url", self.url, *words,
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, stdout=subprocess.PIPE, limit=2**26,
        )  # fmt: skip

    async def run(self, command: str, **options: object) -> dict[str, Any]:
        return await self.finish(await self.start(command, **options))

    async def finish(self, process: asyncio.subprocess.Process) -> dict[str, Any]:
        assert process.stdout is not None
        output = (await process.stdout.read()).decode()
        if await process.wait() != 0:
            raise SystemExit(f"{self.system} failed; what it said is above")
        figures: dict[str, Any] = json.loads(output.splitlines()[-1])
        return figures

    async def lives(self, jobs: int) -> dict[str, float]:
        """Bulk enqueue and drain: both rates, and what a whole life leaves in the log and in the tables."""
        await self.database.execute("CHECKPOINT")
        log = await self.database.fetchval("SELECT pg_current_wal_lsn()")
        put = await self.run("bulk", jobs=jobs)
        done = await self.run("work", jobs=jobs, deadline=120)
        if not done["finished"]:
            raise SystemExit(
                f"{self.system} settled {len(done['started'])} of {jobs} jobs within two minutes"
            )
        written = await self.database.fetchval("SELECT pg_current_wal_lsn() - $1::pg_lsn", log)
        return {
            "bulk": jobs / put["seconds"],
            "drain": jobs / done["seconds"],
            "bulk_cpu": put["cpu_seconds"] / jobs * 1e6,
            "drain_cpu": done["cpu_seconds"] / jobs * 1e6,
            "wal": float(written) / jobs,
            # Their sessions have ended, and with that told the statistics everything.
            "dead": float(await self.database.fetchval("SELECT sum(n_dead_tup) FROM pg_stat_user_tables"))
            / jobs,
        }

    async def single_calls(self, jobs: int) -> dict[str, float]:
        put = await self.run("callers", jobs=jobs, callers=32)
        return {"callers": jobs / put["seconds"]}

    async def pick_up(self, jobs: int, rate: int | None) -> dict[str, float]:
        """Milliseconds until each handler started, in another process, from the call and from the return of its enqueue."""
        load = {} if rate is None else {"rate": rate}
        lasts = jobs * 0.05 if rate is None else jobs / rate
        worker = await self.start("work", jobs=jobs, settle_in=1.0, deadline=lasts + 15)
        assert worker.stdout is not None
        await worker.stdout.readline()
        produced = await self.run("produce", jobs=jobs, deadline=10, **load)
        started = (await self.finish(worker))["started"]
        skipped = 10 if rate is None else rate  # until everybody is warm
        from_call, from_return = [], []
        for number, (called, returned) in produced["calls"].items():
            if int(number) >= skipped:
                begun = started.get(number, returned + 30)  # one never started is as late as the run was long
                from_call.append((begun - called) * 1000)
                from_return.append(max(0.0, (begun - returned) * 1000))
        return {
            "p50": quantile(from_return, 0.5),
            "p99": quantile(from_return, 0.99),
            "call_p50": quantile(from_call, 0.5),
            "call_p99": quantile(from_call, 0.99),
        }


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[int(len(values) * part)]


@asynccontextmanager
async def fresh_database(server_url: str, name: str) -> AsyncIterator[tuple[str, asyncpg.Connection]]:
    admin = await asyncpg.connect(server_url)
    await admin.execute(f'CREATE DATABASE "{name}"')
    url = server_url.rpartition("/")[0] + "/" + name
    database = await asyncpg.connect(url)
    try:
        yield url, database
    finally:
        await database.close()
        await admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
        await admin.close()


async def measure(server_url: str, system: str, sizes: Sizes, plain_loop: bool) -> Figures:
    """All that is measured of one system in one round."""
    figures: Figures = {}
    async with fresh_database(server_url, f"bench_{system}") as (url, database):
        bench = Bench(system, url, database, plain_loop)
        await bench.run("install")
        figures |= await bench.lives(sizes.drained_slow if system in SLOW else sizes.drained)
        figures |= await bench.single_calls(sizes.single)
    if system == "floor":
        return figures
    for name, jobs, rate in (
        ("idle", sizes.idle, None),
        ("loaded", sizes.rate * sizes.rate_seconds, sizes.rate),
    ):
        async with fresh_database(server_url, f"bench_{system}_{name}") as (url, database):
            bench = Bench(system, url, database, plain_loop)
            await bench.run("install")
            figures |= {f"{name}_{key}": value for key, value in (await bench.pick_up(jobs, rate)).items()}
    return figures


def median(rounds: Sequence[Figures]) -> Figures:
    return {name: statistics.median(figures[name] for figures in rounds) for name in rounds[0]}


async def side_by_side(
    server_url: str, sizes: Sizes, systems: Sequence[str], plain_loop: bool
) -> dict[str, list[Figures]]:
    rounds: dict[str, list[Figures]] = {system: [] for system in systems}
    for number in range(sizes.rounds):
        for system in systems:
            began = time.perf_counter()
            rounds[system].append(await measure(server_url, system, sizes, plain_loop))
            took = time.perf_counter() - began
            print(f"round {number + 1} of {sizes.rounds}: {system:<14} {took:5.1f} s", flush=True)
    return rounds


async def everything(
    server_url: str, sizes: Sizes, systems: Sequence[str], plain_loop: bool
) -> dict[str, Any]:
    rounds = await side_by_side(server_url, sizes, systems, plain_loop)
    figures = {system: median(each) for system, each in rounds.items()}
    print("deep backlog …", flush=True)
    async with fresh_database(server_url, "bench_deep") as (url, _):
        deep = await deep_backlog.measure(url, sizes.deep_ready, sizes.deep_scheduled)
    print("pinned snapshot …", flush=True)
    async with fresh_database(server_url, "bench_pinned") as (url, database):
        pinned = await pinned_snapshot.measure(url, sizes.pinned_seconds, 3_000)
        version = await database.fetchval("SHOW server_version")
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "postgresql": version,
        "event_loop": "asyncio" if plain_loop else "uvloop",
        "versions": versions(),
        "sizes": sizes._asdict(),
        "figures": figures,
        "rounds": rounds,
        "deep": deep,
        "pinned": pinned,
    }


def versions() -> dict[str, str]:
    names = ["asyncpg", "pgqueuer", "procrastinate", "psycopg", "saq", "uvloop"]
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {names}}}))"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny counts, to see that it works")
    parser.add_argument("--only", nargs="+", choices=SYSTEMS, default=SYSTEMS, help="leave the others out")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--jobs", type=int, help="how many jobs are put in at once and drained")
    parser.add_argument(
        "--deep", type=int, nargs=2, metavar=("READY", "SCHEDULED"), help="rows of the deep backlog"
    )
    parser.add_argument(
        "--plain-loop", action="store_true", help="asyncio's own event loop for all, instead of uvloop"
    )
    parser.add_argument(
        "--json", type=Path, help="where to write the figures; benchmarks/results/… if not given"
    )
    given = parser.parse_args()
    if not PYTHON.exists():
        sys.exit("the peers are not installed: make .bench-venv/.ready")
    sizes = QUICK if given.quick else FULL
    if given.rounds:
        sizes = sizes._replace(rounds=given.rounds)
    if given.jobs:
        sizes = sizes._replace(drained=given.jobs)
    if given.deep:
        sizes = sizes._replace(deep_ready=given.deep[0], deep_scheduled=given.deep[1])
    with fresh_server() as url:
        result = asyncio.run(everything(url, sizes, given.only, given.plain_loop))
    path = given.json or RESULTS / f"side_by_side{'_quick' if given.quick else ''}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(report(result))
    if given.quick:
        print("\nA quick run: it shows that everything works, and nothing else.")
    print(f"\nfigures: {path}")


if __name__ == "__main__":
    main()
