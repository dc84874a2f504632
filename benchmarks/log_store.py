"""A queue without a database: Penstock's log beside jqueue, several processes on one log, and workers at rest.

    make bench
    python -m benchmarks.log_store [--part group depth together idle] [--seconds 3] [--rounds 1] [--depth 1000000]

Group commit: 50 callers with payloads of 1 KB, on queues that hold 1,000 and 10,000 jobs. Our file is synced at every
entry, jqueue's never. The bucket is `tests/support/s3.py` in a process of its own, with the latencies of S3 Standard:
writes 40 ms in the median and 150 at the 99th percentile, reads 15 and 60. Both run in processes of their own on the
same Python and go round in turn. jqueue does fewer operations, which helps it: its queue stays shallow.
The idle workers rest beside the rest of the run. What counts are the ratios within one run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.peers.calling import SCENARIOS
from benchmarks.report import Gate

ROOT = Path(__file__).resolve().parents[1]
SERVER = ROOT / "tests" / "support" / "s3.py"
RESULTS = ROOT / "benchmarks" / "results"
PYTHONS = {"log": Path(sys.executable), "jqueue": ROOT / ".bench-venv" / "jqueue" / "bin" / "python"}

PARTS = ("group", "depth", "together", "idle")
PLACES = ("memory", "file", "S3")
DEPTHS = (1_000, 10_000)
CALLERS = 50
CALLERS_IN_A_PROCESS = 25
PROCESSES = 4
WORKERS = 3
MOST = {"log": 20_000, "jqueue": 1_000}
"""Operations of one measurement, if the time is not up before."""
UNBOUNDED = 10**9
SETTLES_SECONDS = 60.0
PATIENCE_SECONDS = 300

SIMULATED = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
"""What jqueue signs its requests with; the server does not look."""

APP = """
from penstock import Penstock

app = Penstock(name="rest")


@app.cron("0 0 1 1 *")
@app.job(name="yearly")
async def yearly() -> None: ...
"""


# ── Where and by whom ─────────────────────────────────────────────────────────────────────────────


class Bucket:
    """The simulated S3: its address, and how many requests it has had."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.url = self._said()

    def requests(self) -> dict[str, int]:
        assert self._process.stdin is not None
        self._process.stdin.write("?\n")
        self._process.stdin.flush()
        counted: dict[str, int] = json.loads(self._said())
        return counted

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def bucket() -> Iterator[Bucket]:
    command = [sys.executable, str(SERVER), "--put", "40", "150", "--get", "15", "60"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Bucket(process)


class Places:
    """Fresh addresses, one for each measurement."""

    def __init__(self, folder: str, bucket: Bucket) -> None:
        self._folder, self._bucket, self._count = folder, bucket, 0

    def new(self, place: str) -> str:
        self._count += 1
        match place:
            case "memory":
                return f"memory+log://bench{self._count}"
            case "file":
                return f"file://{self._folder}/bench{self._count}"
            case _:
                return self._bucket.url.replace("/jobs?", f"/bench{self._count}?")


def started(system: str, **given: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PYTHONS[system], "-m", f"benchmarks.peers.{system}_", json.dumps(given)],
        cwd=ROOT,
        env={**os.environ, **SIMULATED},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def figures_of(process: subprocess.Popen[str], what: str) -> dict[str, float]:
    try:
        said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        sys.exit(f"{what} did not end within {PATIENCE_SECONDS} s")
    if process.returncode:
        sys.exit(f"{what} failed: its error is above")
    figures: dict[str, float] = json.loads(said)
    return figures


def measured(system: str, place: str, **given: Any) -> dict[str, float]:
    return figures_of(started(system, place=place, callers=CALLERS, **given), f"{system} on {place}")


def jqueue_version() -> str | None:
    """None if it is not installed."""
    code = "import importlib.metadata as m, aioboto3, jqueue; print(m.version('jqueue'))"
    try:
        done = subprocess.run([PYTHONS["jqueue"], "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


# ── The parts ─────────────────────────────────────────────────────────────────────────────────────


def group(
    places: Places, systems: Sequence[str], depths: Sequence[int], seconds: float, rounds: int
) -> dict[str, Any]:
    """Operations a second, by system, place, depth and scenario; the median of all rounds."""
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(rounds):
        for place in PLACES:
            for depth in depths:
                for scenario in SCENARIOS:
                    for system in systems:
                        figures = measured(
                            system,
                            place,
                            at=places.new(place),
                            depth=depth,
                            scenario=scenario,
                            most=MOST[system],
                            seconds=seconds,
                        )
                        found.setdefault(f"{system}, {place}, {depth}, {scenario}", []).append(figures)
                    print(".", end="", flush=True)
    print()
    return {
        name: {key: statistics.median(one[key] for one in each) for key in each[0]}
        for name, each in found.items()
    }


def depth_costs(places: Places, deep: int, seconds: float, rounds: int) -> dict[str, Any]:
    """What an operation costs us with few jobs and with many, in memory, where nothing else costs anything."""
    costs: dict[str, Any] = {}
    for scenario in SCENARIOS:
        for depth in (1_000, deep):
            each = [
                measured(
                    "log", "memory", at=places.new("memory"), depth=depth, scenario=scenario,
                    most=MOST["log"], seconds=seconds,
                )
                for _ in range(rounds)
            ]  # fmt: skip
            costs[f"{scenario}, {depth}"] = statistics.median(one["cpu_us"] for one in each)
        costs[scenario] = costs[f"{scenario}, {deep}"] / costs[f"{scenario}, 1000"]
    return costs


def together(at: str, place: str, processes: int, seconds: float) -> dict[str, float]:
    """Several processes on one log. All are ready before the first one begins."""
    running = [
        started(
            "log", place=place, at=at, depth=0, scenario="mixed", callers=CALLERS_IN_A_PROCESS,
            most=UNBOUNDED, seconds=seconds, together=True,
        )
        for _ in range(processes)
    ]  # fmt: skip
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    each = [figures_of(process, f"a process on {place}") for process in running]
    rates = [one["per_second"] for one in each]
    return {
        "per_second": sum(rates),
        "jain": sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates)),
        "slowest": min(rates),
        "fastest": max(rates),
        "p50_ms": statistics.median(one["p50_ms"] for one in each),
        "p99_ms": max(one["p99_ms"] for one in each),
    }


def several(places: Places, seconds: float) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for place in ("file", "S3"):
        for processes in (1, PROCESSES):
            result[f"{place}, {processes}"] = together(places.new(place), place, processes, seconds)
        one, all = result[f"{place}, 1"], result[f"{place}, {PROCESSES}"]
        all["of_one"] = all["per_second"] / one["per_second"]
    return result


def idle(folder: str, settles: float, seconds: float) -> dict[str, float]:
    """Requests a second of real workers with their schedulers, by the bucket's own count."""
    Path(folder, "restapp.py").write_text(APP)
    command = [sys.executable, "-m", "penstock", "worker", "restapp:app", "--log-level", "warning"]
    with bucket() as rested, ExitStack() as ended:
        environment = {**os.environ, "PENSTOCK_URL": rested.url, "PYTHONPATH": folder}
        for _ in range(WORKERS):
            process = ended.enter_context(subprocess.Popen(command, env=environment))
            ended.callback(process.terminate)
        time.sleep(settles)
        before, began = rested.requests(), time.monotonic()
        time.sleep(seconds)
        after, passed = rested.requests(), time.monotonic() - began
    rates = {method: (count - before.get(method, 0)) / passed for method, count in after.items()}
    return {"workers": WORKERS, "per_second": sum(rates.values()), **rates}


# ── What is said of it ────────────────────────────────────────────────────────────────────────────

TIMES = {1_000: {"memory": 10, "file": 8, "S3": 4}, 10_000: {"memory": 100, "file": 50, "S3": 10}}
OF_ONE = {"file": 0.6, "S3": 0.8}


def _times(result: Mapping[str, Any], where: str) -> float:
    ours, theirs = result["group"][f"log, {where}"], result["group"][f"jqueue, {where}"]
    return float(ours["per_second"] / theirs["per_second"])


def gates() -> Iterator[Gate]:
    for depth, limits in TIMES.items():
        for place, limit in limits.items():
            for scenario in SCENARIOS:
                where = f"{place}, {depth}, {scenario}"
                label = f"{scenario} on {place} with {depth:,} jobs, times jqueue"
                yield Gate(label, lambda result, where=where: _times(result, where), limit, True)  # type: ignore[misc]
    for scenario in SCENARIOS:
        label = f"cost of {scenario} on a deep queue, times that with 1,000 jobs"
        yield Gate(label, lambda result, key=scenario: result["depth"][key], 3, False)  # type: ignore[misc]
    for place, least in OF_ONE.items():
        name = f"{place}, {PROCESSES}"
        label = f"{PROCESSES} processes on {place}"
        yield Gate(f"{label}, times one", lambda result, n=name: result["together"][n]["of_one"], least, True)  # type: ignore[misc]
        yield Gate(f"{label}, fairness", lambda result, n=name: result["together"][n]["jain"], 0.95, True)  # type: ignore[misc]
    label = f"{WORKERS} idle workers on S3, requests a second"
    yield Gate(label, lambda result: result["idle"]["per_second"], 1, False)


def report(result: Mapping[str, Any]) -> str:
    versions = f"jqueue {result['jqueue']}" if result["jqueue"] else "jqueue is not installed"
    lines = ["", f"{result['machine']}; Python {result['python']}; {versions}"]
    for part, told in (("group", _group), ("depth", _depth), ("together", _together), ("idle", _idle)):
        if part in result:
            lines += ["", *told(result[part])]
    return "\n".join([*lines, "", "gates", *(gate.line(result) for gate in gates())])


def _group(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{CALLERS} callers, operations/s{'log':>22}{'jqueue':>12}{'times':>9}{'p50 ms':>10}{'jqueue':>10}"
    for name, ours in found.items():
        system, place, depth, scenario = name.split(", ")
        if system != "log":
            continue
        line = f"{place:<8}{int(depth):>8,} jobs  {scenario:<16}{ours['per_second']:>11,.0f}"
        theirs = found.get(f"jqueue, {place}, {depth}, {scenario}")
        if theirs is None:
            yield f"{line}{'–':>12}{'–':>9}{ours['p50_ms']:>10.2f}"
        else:
            times = ours["per_second"] / theirs["per_second"]
            waits = f"{ours['p50_ms']:>10.2f}{theirs['p50_ms']:>10.1f}"
            yield f"{line}{theirs['per_second']:>12,.1f}{times:>8,.1f}×{waits}"


def _depth(costs: Mapping[str, float]) -> Iterator[str]:
    for name, cost in costs.items():
        if ", " in name:
            scenario, depth = name.split(", ")
            yield f"{scenario:<8} with {int(depth):>9,} jobs: {cost:>8.1f} µs of CPU an operation"


def _together(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'processes on one log':<24}{'ops/s':>9}{'of one':>8}{'Jain':>7}{'p50 ms':>9}{'p99 ms':>9}"
    for name, one in found.items():
        yield (
            f"{name:<24}{one['per_second']:>9,.0f}{one.get('of_one', 1):>8.2f}{one['jain']:>7.3f}"
            f"{one['p50_ms']:>9.2f}{one['p99_ms']:>9.1f}"
        )


def _idle(found: Mapping[str, float]) -> Iterator[str]:
    methods = ", ".join(f"{method} {rate:.2f}" for method, rate in found.items() if method.isupper() and rate)
    yield f"{WORKERS} idle workers: {found['per_second']:.2f} requests a second ({methods or 'none at all'})"


def measure(given: argparse.Namespace) -> dict[str, Any]:
    version = jqueue_version()
    if version is None:
        print("jqueue cannot be imported (make .bench-venv/jqueue/.ready): our figures stand alone")
    systems = ("log",) if version is None else ("log", "jqueue")
    result: dict[str, Any] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "jqueue": version,
        "sizes": {"seconds": given.seconds, "rounds": given.rounds, "depth": given.depth, "jobs": given.jobs},
    }
    with tempfile.TemporaryDirectory() as folder, bucket() as served, ThreadPoolExecutor(1) as beside:
        places = Places(folder, served)
        resting = beside.submit(idle, folder, given.settles, given.idle) if "idle" in given.part else None
        if "group" in given.part:
            result["group"] = group(places, systems, given.jobs, given.seconds, given.rounds)
        if "depth" in given.part:
            result["depth"] = depth_costs(places, given.depth, given.seconds, given.rounds)
        if "together" in given.part:
            result["together"] = several(places, given.seconds)
        if resting is not None:
            result["idle"] = resting.result()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS, help="leave the others out")
    parser.add_argument("--seconds", type=float, default=3, help="of one measurement, at most")
    parser.add_argument("--rounds", type=int, default=1, help="of which the median counts")
    parser.add_argument("--jobs", type=int, nargs="+", default=DEPTHS, help="already in the queue")
    parser.add_argument("--depth", type=int, default=1_000_000, help="jobs in the deep queue")
    parser.add_argument(
        "--settles", type=float, default=SETTLES_SECONDS, help="before idle workers are watched"
    )
    parser.add_argument("--idle", type=float, default=60, help="seconds that they are watched for")
    parser.add_argument(
        "--json", type=Path, default=RESULTS / "log_store.json", help="where to write the figures"
    )
    given = parser.parse_args()
    result = measure(given)
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(result, indent=2) + "\n")
    print(report(result))
    print(f"\nfigures: {given.json}")


if __name__ == "__main__":
    main()
