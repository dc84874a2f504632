"""The HTTP service under load: how much of the server's own speed is left when every job is on disk before it is answered.

    python benchmarks/service.py [--seconds 5] [--rounds 3]

One `penstock serve` process on the embedded PostgreSQL, wrk (Debian's package) on loopback with 32 connections. The no-op is
a POST of the same app that checks the token, reads and decodes the same body, and answers 201 without asking the store.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from penstock.stores.postgres.embedded import start

SECRET = "pst_benchmark-token-of-loopback"
JOB = {
    "type": "email.send",
    "queue": "load",
    "payload": {"to": "ada@example.com", "subject": "Hello", "n": 12345},
}
CONNECTIONS = 32

# The service with one route more, which does nothing.
SERVER = f"""
import sys
import penstock.server.app as app
from penstock.access import Scope
from penstock.server.operation import Operation
from penstock.server.wire import EnqueuedAnswer, JobRequest

async def noop(call):
    return EnqueuedAnswer("01890a5d-ac96-774b-bcce-b302099a8057")

app.OPERATIONS = (*app.OPERATIONS, Operation("POST", "/noop", noop, "", EnqueuedAnswer, Scope.PRODUCE, JobRequest, status=201))
from penstock.cli.main import main
main(["serve", "--port", "0", "--token", "{SECRET}", "--log-format", "json"])
"""

SCRIPT = """
wrk.method = "POST"
wrk.headers["Authorization"] = "Bearer {secret}"
wrk.headers["Content-Type"] = "application/json"
wrk.body = [[{body}]]
"""


@contextmanager
def serving(url: str) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env={**os.environ, "PENSTOCK_URL": url},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"serving on (http://[\d.:]+)", line):
                yield found[1]
                return
        raise SystemExit("the service did not start")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def wrk(url: str, body: Any, seconds: float, folder: Path) -> float:
    """Requests a second; anything but an answer of 2xx ends the benchmark."""
    script = folder / "post.lua"
    script.write_text(SCRIPT.format(secret=SECRET, body=json.dumps(body)))
    said = subprocess.run(
        ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds:g}s", "-s", str(script), url],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    if "Non-2xx" in said:
        raise SystemExit(f"the service refused some requests:\n{said}")
    return float(re.search(r"Requests/sec:\s+([\d.]+)", said)[1])  # type: ignore[index]


async def pick_up(url: str, times: int) -> list[float]:
    """From just before the enqueue's request to the answer of a lease that waits, in milliseconds, one at a time."""
    headers = {"Authorization": f"Bearer {SECRET}"}
    taken: list[float] = []
    async with aiohttp.ClientSession(url, headers=headers) as session:
        for _ in range(times):
            begun: list[float] = []

            async def lease() -> float:
                body = {"worker_id": "w", "wait": 30}
                async with session.post("/v1/queues/idle/lease", json=body) as answer:
                    [held] = (await answer.json())["jobs"]
                    at = time.perf_counter()
                settle = f"/v1/jobs/{held['job']['id']}/ack"
                async with session.post(settle, json={"token": held["token"]}) as answer:
                    answer.raise_for_status()
                return at

            waiting = asyncio.create_task(lease())
            await asyncio.sleep(0.2)
            begun.append(time.perf_counter())
            async with session.post("/v1/jobs", json={"type": "t", "queue": "idle"}) as answer:
                answer.raise_for_status()
            taken.append((await waiting - begun[0]) * 1000)
    return taken


def measure(seconds: float, rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="penstock-service-") as name:
        folder = Path(name)
        with start(folder / "data") as server:
            subprocess.run(
                [sys.executable, "-m", "penstock", "migrate"], env={**os.environ, "PENSTOCK_URL": server.url}, check=True,
                stdout=subprocess.DEVNULL,
            )  # fmt: skip
            with serving(server.url) as url:
                noop, single, batch = [], [], []
                wrk(f"{url}/v1/jobs", JOB, 1, folder)  # warm
                for _ in range(rounds):
                    noop.append(wrk(f"{url}/noop", JOB, seconds, folder))
                    single.append(wrk(f"{url}/v1/jobs", JOB, seconds, folder))
                    batch.append(100 * wrk(f"{url}/v1/jobs/batch", {"jobs": [JOB] * 100}, seconds, folder))
                waits = asyncio.run(pick_up(url, 30))
    return {
        "no-op POST, requests/s": statistics.median(noop),
        "single enqueue, jobs/s": statistics.median(single),
        "single ÷ no-op": statistics.median(one / other for one, other in zip(single, noop, strict=True)),
        "batches of 100, jobs/s": statistics.median(batch),
        "long-poll pick-up p50, ms": statistics.median(waits),
        "long-poll pick-up max, ms": max(waits),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("this needs wrk: apt-get install wrk")
    for name, figure in measure(options.seconds, options.rounds).items():
        print(f"{name:30} {figure:12,.2f}")


if __name__ == "__main__":
    main()
