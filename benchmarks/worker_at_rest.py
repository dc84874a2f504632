"""What a worker costs that has nothing to do: memory, CPU and statements.

    python benchmarks/worker_at_rest.py [--seconds 60]

A real `penstock worker` in a process of its own on the embedded server, with its scheduler, one queue and one schedule.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import asyncpg

from penstock.stores.postgres.embedded import start
from penstock.stores.postgres.migrate import migrate

APP = """
from penstock import Penstock

app = Penstock(name="rest")


@app.cron("0 0 1 1 *")
@app.job(name="yearly")
async def yearly() -> None: ...
"""
SETTLES_SECONDS = 25.0
"""By then its waits have grown to their longest."""


async def transactions(url: str) -> int:
    connection = await asyncpg.connect(url)
    await connection.execute("SELECT pg_stat_force_next_flush()")
    number: int = await connection.fetchval(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    )
    await connection.close()
    return number


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


async def measure(seconds: float) -> dict[str, float]:
    with (
        tempfile.TemporaryDirectory(prefix="penstock-rest-") as folder,
        start(Path(folder) / "data") as server,
    ):
        await migrate(server.url)
        (Path(folder) / "rest.py").write_text(APP)
        worker = subprocess.Popen(  # noqa: ASYNC220 (nothing else runs here)
            [sys.executable, "-m", "penstock", "worker", "rest:app"],
            cwd=folder,
            env={**os.environ, "PENSTOCK_URL": server.url},
        )
        try:
            await asyncio.sleep(SETTLES_SECONDS)
            cpu, asked = cpu_seconds(worker.pid), await transactions(server.url)
            own = await transactions(server.url) - asked  # what one look of ours costs
            await asyncio.sleep(seconds)
            asked = await transactions(server.url) - asked - 2 * own
            return {
                "resident_mb": resident_mb(worker.pid),
                "cpu_percent": 100 * (cpu_seconds(worker.pid) - cpu) / seconds,
                "statements_per_second": asked / seconds,
            }
        finally:
            worker.terminate()
            worker.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    found = asyncio.run(measure(given.seconds))
    print(
        f"a worker at rest, {given.seconds:g} s:",
        json.dumps({name: round(value, 2) for name, value in found.items()}),
    )


if __name__ == "__main__":
    main()
