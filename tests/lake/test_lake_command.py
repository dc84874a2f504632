"""`penstock lake run` with a real Spark: what it says, and how it ends when the lake lacks something."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from penstock import Queue
from penstock.cli import lake as command
from penstock.cli.main import main
from penstock.lake.manifest import Lake, lacking
from penstock.stores.postgres.store import PostgresStore
from penstock.stores.wakeups.polling import NoWakeups
from penstock.testing import FakeClock
from support.postgres import emptied, server_url

pytestmark = pytest.mark.spark


def test_a_run_that_does_not_reconcile_says_so_and_fails(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.lake import pipeline

    @contextmanager
    def ours(*_: object) -> Iterator[Any]:
        yield spark

    async def happen() -> None:
        await emptied()
        async with Queue(PostgresStore(server_url(), FakeClock(), wakeups=NoWakeups())) as queue:
            await queue.enqueue("mail")

    def run(*options: str) -> Result:
        env = {"PENSTOCK_URL": server_url(), "PENSTOCK_LAKE": str(tmp_path / "lake")}
        return CliRunner().invoke(main, ["lake", "run", *options], env=env)

    monkeypatch.setattr(command, "on_spark", ours)
    monkeypatch.setattr(pipeline, "recipes", tuple)
    asyncio.run(happen())
    first = run()
    assert first.exit_code == 0, first.output
    assert "1 events taken in, 1 days made anew, 1 checked, in " in first.stdout
    told = CliRunner().invoke(
        main, ["lake", "publish"], env={"PENSTOCK_URL": server_url(), "PENSTOCK_LAKE": str(tmp_path / "lake")}
    )
    assert told.exit_code == 0, told.output
    assert "0 answers published, as of 20" in told.stdout
    lake = Lake(tmp_path / "lake")
    lake.commit(replace(lake.manifest(), tables={}))
    second = run("--check-all")
    assert second.exit_code == 1
    assert "2026-01-01 does not reconcile: of 1 jobs in the store the lake lacks 1" in second.stderr
    assert "nothing may leave the store until they do" in second.stderr
    assert run("--from", "2026-01-02", "--to", "2026-01-01").exit_code == 2


def test_a_person_is_told_what_it_is_at_and_a_program_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with command._progress() as on_step:
        on_step("attempts written")
    assert capsys.readouterr() == ("", "")

    mine, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", terminal)
        patched.setenv("TERM", "xterm")
        with command._progress() as on_step:
            on_step("attempts written")
            seen = ""
            while "attempts written" not in seen:
                seen += os.read(mine, 65_536).decode()
            click.echo("3 events taken in")  # what is printed meanwhile goes where it goes without
    os.close(mine)
    assert "Spark is started" in seen
    assert capsys.readouterr().out == "3 events taken in\n"


@pytest.mark.long
def test_ctrl_c_ends_it_at_once_and_the_lake_is_whole(tmp_path: Path) -> None:
    place = tmp_path / "lake"
    command = ["lake", "demo", "--jobs", "20000", "--days", "3", "--lake", str(place)]
    running = subprocess.Popen(
        [sys.executable, "-m", "penstock", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (place / "bronze").exists():  # Spark has begun to write
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    said = running.communicate(timeout=60)[1]
    assert running.returncode != 0, said
    assert not lacking(Lake(place), Lake(place).manifest())
