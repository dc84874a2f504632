"""`penstock demo`, as a person and as a program would run it."""

from __future__ import annotations

import json
import subprocess
import sys


def penstock(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments], capture_output=True, text=True, check=False
    )


class TestDemo:
    def test_gives_json_in_a_pipe_and_tells_of_retries_a_vanished_worker_and_a_flow(self) -> None:
        done = penstock("demo", "--jobs", "200")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert sum(sum(counts.values()) for counts in told["queues"].values()) == 200
        assert told["queues"]["reports"] == {"succeeded": 1}
        outcomes = [
            line.split(" by ")[1].split()[1].rstrip(",") for line in told["failed_twice_then_sent"][1:]
        ]
        assert outcomes == ["failed", "failed", "succeeded"]
        assert "worker-5 lost" in told["worker_vanished"][1]
        assert "unblock by rule:flow" in told["waited_for_two_jobs"][1]

    def test_gives_tables_for_people(self) -> None:
        done = penstock("demo", "--jobs", "50", "--output", "table")
        assert done.returncode == 0, done.stderr
        assert "What became of them" in done.stdout

    def test_says_which_numbers_it_takes(self) -> None:
        done = penstock("demo", "--jobs", "3")
        assert done.returncode == 2
        assert "10<=x<=100000" in done.stderr


def test_version_is_the_package_version() -> None:
    import penstock as package

    assert package.__version__ in penstock("--version").stdout
