"""`penstock dev`: one command, everything works, Ctrl-C leaves nothing running, saving a file is enough."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from openqueue import AuthenticationError, LeaseTokenError, OpenQueue

LONG = 60.0


class Dev:
    """A running `penstock dev`, and what it says."""

    def __init__(self, folder: Path, *options: str) -> None:
        env = {name: value for name, value in os.environ.items() if name != "PENSTOCK_URL"}
        self.folder = folder
        self.env = {**env, "PYTHONUNBUFFERED": "1"}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "penstock", "dev", *options, "--port", "0"],
            cwd=folder, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self.said: list[str] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self.said.append(line)
            self._lines.put(line)

    def says(self, pattern: str) -> str:
        """Wait until it says something like this."""
        deadline = time.monotonic() + LONG
        while (left := deadline - time.monotonic()) > 0:
            try:
                line = self._lines.get(timeout=min(left, 0.2))
            except queue.Empty:
                assert self._child.poll() is None, "".join(self.said)
                continue
            if found := re.search(pattern, line):
                return found[1] if found.groups() else found[0]
        raise AssertionError(f"never said {pattern}:\n{''.join(self.said)}")

    def penstock(self, *command: str) -> subprocess.CompletedProcess[str]:
        """The command in a second terminal, in the same folder."""
        return subprocess.run(
            [sys.executable, "-m", "penstock", *command],
            cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=LONG, check=False,
        )  # fmt: skip

    def interrupt(self) -> int:
        """Ctrl-C, as a terminal sends it: to the whole group."""
        os.killpg(self._child.pid, signal.SIGINT)
        return self._child.wait(LONG)

    def end(self) -> None:
        if self._child.poll() is None:
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait(LONG)
        self._reading.join(LONG)
        assert self._child.stdout is not None
        self._child.stdout.close()


@contextmanager
def dev(folder: Path, *options: str) -> Iterator[Dev]:
    running = Dev(folder, *options)
    try:
        yield running
    finally:
        running.end()


def processes_in(folder: Path) -> list[str]:
    """The command lines of processes that name this folder, or work in it."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in command or str(folder) in os.readlink(place / "cwd"):
                found.append(command)
        except OSError:
            continue
    return found


def test_the_printed_hints_work_and_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    with dev(tmp_path) as running:
        url = running.says(r"up at (http://[\d.:]+)")
        token = running.says(r"token\s+(pst_\S+)")
        told = running.penstock("enqueue", "hello", '{"name": "Ada"}', "--wait")
        assert told.returncode == 0, told.stderr
        assert "Hello, Ada!" in told.stdout
        listed = running.penstock("jobs", "list", "-o", "json")
        assert "hello" in listed.stdout, listed.stderr
        request = urllib.request.Request(
            f"{url}/v1/jobs", json.dumps({"type": "hello"}).encode(), {"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request, timeout=LONG) as answer:
            assert answer.status == 201
        with urllib.request.urlopen(f"{url}/docs", timeout=LONG) as page:
            assert page.status == 200
        assert (tmp_path / ".penstock" / "dev-token").stat().st_mode & 0o777 == 0o600
        assert running.interrupt() == 0
        deadline = time.monotonic() + LONG
        while (left := processes_in(tmp_path)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left == []


def test_the_published_client_of_openqueue_works_against_it(tmp_path: Path) -> None:
    """Its whole surface, once through; tests/server/test_openqueue.py has the errors and the corners."""
    with dev(tmp_path, "--no-worker") as running:
        url, token = running.says(r"up at (http://[\d.:]+)"), running.says(r"token\s+(pst_\S+)")
        with OpenQueue(url, token) as client:
            id = client.enqueue("theirs", {"n": 1}, priority=5, max_retries=0)
            others = client.enqueue_batch([{"queue_name": "theirs", "payload": {"n": n}} for n in (2, 3)])
            assert client.get_status(id) == "pending"
            leased = client.lease("theirs", "w")
            assert leased is not None
            assert (leased.job.id, leased.job.payload) == (id, {"n": 1})
            assert client.heartbeat(id, leased.lease_token)
            assert client.ack(id, leased.lease_token, {"done": True})
            failed = client.lease("theirs", "w")
            assert failed is not None
            assert client.nack(failed.job.id, failed.lease_token, "broke", retry=False)
            assert client.cancel_job(next(other for other in others if other != failed.job.id))
            assert client.lease("theirs", "w") is None
            assert client.get_job(id).result == {"done": True}
            assert client.list_jobs(queue_name="theirs").total == 3
            [stats] = client.get_queue_stats()
            assert (stats.queue_name, stats.completed, stats.cancelled) == ("theirs", 1, 1)
            with pytest.raises(LeaseTokenError):
                client.ack(id, "stale")
        with OpenQueue(url, "pst_of-nobody-at-all") as stranger, pytest.raises(AuthenticationError):
            stranger.get_status(id)


def test_a_saved_file_takes_effect(tmp_path: Path) -> None:
    code = "from penstock import Penstock\napp = Penstock()\n\n@app.job(name='answer')\nasync def answer() -> int:\n    return {}\n"
    program = tmp_path / "mine.py"
    program.write_text(code.format(41))
    with dev(tmp_path, "mine:app", "--token", "pst_of-my-very-own-choice") as running:
        running.says(r"token\s+pst_of-my-very-own-choice")
        assert "41" in running.penstock("enqueue", "answer", "--wait").stdout
        program.write_text(code.format(42) + "\n")
        running.says("saved: the worker starts again")
        assert "42" in running.penstock("enqueue", "answer", "--wait").stdout
        program.write_text("this is no Python\n")
        running.says("it starts again when you save")
        program.write_text(code.format(43))
        running.says("saved: the worker starts again")
        assert "43" in running.penstock("enqueue", "answer", "--wait").stdout
        assert running.interrupt() == 0


def test_a_port_that_is_taken_is_told_plainly(tmp_path: Path) -> None:
    with dev(tmp_path, "--no-worker") as running:
        port = running.says(r"up at http://[\d.]+:(\d+)")
        other = running.penstock("serve", "--port", port)
        assert other.returncode == 2
        assert "that is free" in other.stderr
        assert "Traceback" not in other.stderr
