"""The `penstock` command as people and scripts really run it: processes, pipes, a worker beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

APP = """
from penstock import Penstock

app = Penstock()


@app.job(name="sum", queue="sums")
async def add(numbers: list[int]) -> int:
    return sum(numbers)
"""


@pytest.fixture
def worker(url: str, tmp_path: Path) -> Iterator[None]:
    (tmp_path / "sums.py").write_text(APP)
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "worker", "sums:app", "--no-scheduler", "--name", "adder"],
        cwd=tmp_path, env={**os.environ, "PENSTOCK_URL": url}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "is at work" in line:
            break
    yield
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)


def test_a_job_is_put_in_waited_for_fails_and_is_brought_back(
    penstock: Any, worker: None, run: Any, told: Any
) -> None:
    done = penstock("enqueue", "sum", "-", "--queue", "sums", "--wait", "60", input='{"numbers": [1, 2, 3]}')
    assert (done.returncode, done.stdout) == (0, "6\n"), done.stderr
    failed = penstock(
        "enqueue", "sum", '{"numbers": ["one"]}', "-q", "sums", "--max-attempts", "1", "--wait", "60"
    )
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "ended dead" in failed.stderr
    [job] = told("jobs", "list", "--status", "dead")
    assert [seen["worker"] for seen in told("workers", "list")] == ["adder"]
    assert "adder" in run("workers", "list", "-o", "table").stdout
    assert "adder" in run("jobs", "show", job["id"], "-o", "table").stdout
    assert told("jobs", "redrive", "--status", "dead", "--yes", "--reason", "let us see")["changed"] == 1


def test_a_reader_that_leaves_early_is_no_error(url: str, run: Any) -> None:
    for _ in range(3):
        run("enqueue", "t")
    listing = subprocess.Popen(
        [sys.executable, "-m", "penstock", "jobs", "list", "-o", "jsonl"],
        env={**os.environ, "PENSTOCK_URL": url}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert listing.stdout is not None
    listing.stdout.close()
    assert listing.stderr is not None
    told = listing.stderr.read()
    listing.stderr.close()
    listing.wait(timeout=30)
    assert b"Traceback" not in told


def test_colour_is_for_terminals(run: Any) -> None:
    id = run("enqueue", "t").stdout.strip()
    run("jobs", "cancel", id)
    assert "\x1b" not in run("jobs", "list", "-o", "table").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(run: Any, shell: str) -> None:
    done = run("completion", shell)
    assert done.exit_code == 0
    assert f"_PENSTOCK_COMPLETE={shell}_complete" in done.stdout


def test_completion_knows_the_commands_and_their_options() -> None:
    environment = {
        **os.environ,
        "_PENSTOCK_COMPLETE": "bash_complete",
        "COMP_WORDS": "penstock jobs li",
        "COMP_CWORD": "2",
    }
    script = "from penstock.cli.main import main; main(prog_name='penstock')"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "plain,list\n"


def test_explains_why_a_job_does_not_run(run: Any, told: Any) -> None:
    id = run("enqueue", "t", "-q", "emails", "--delay", "1h").stdout.strip()
    run("queues", "pause", "emails", "--reason", "month's end")
    explained = told("jobs", "explain", id)
    assert {"paused", "not_due"} <= {reason["code"] for reason in explained["reasons"]}
    out = run("jobs", "explain", id, "-o", "table").stdout
    assert out.startswith("The job is queued: ")
    assert out.count("also: ") == len(explained["reasons"]) - 1
    assert run("jobs", "explain", "0199aaaa-0000-7000-8000-000000000000").exit_code == 3
