"""Every file under examples/ is run as people run it: a program of its own, on a database of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from penstock.stores.postgres.migrate import migrate
from support.postgres import server_url

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 120
NAME = "penstock_example"

LINES = {
    "quickstart": [
        "both jobs are safe in the database, and nothing has run yet",
        "sending 'Welcome' to ada@example.com",
        "result: {'sent_to': 'ada@example.com'}",
        "sending 'How is it going?' to bob@example.com",
        "result: {'sent_to': 'bob@example.com'}",
    ],
    "own_transaction": [
        "no yacht: its order was rolled back",
        "orders: cake, coffee, tea",
        "3 orders, 3 receipts to send",
    ],
    "retries": [
        "result: sunny",
        "result: paid",
        "dead, because it was refused: the bank says never to ask again",
        "cancelled, because it was discarded: the customer has left",
        "result: published cats.mp4 in attempt 1, after 2 snoozes",
        "  attempt 1: failed ConnectionError: no route to the weather of Lisbon",
        "  attempt 2: failed ConnectionError: no route to the weather of Lisbon",
        "  attempt 3: succeeded ",
    ],
    "cron": [
        "fired now: []",
        "Friday 09:00 UTC: clean-up, daily-report",
        "  writing the report as pdf",
        "Saturday 09:00 UTC: clean-up",
        "Sunday 09:00 UTC: clean-up",
        "Monday 09:00 UTC: clean-up, daily-report",
        "  writing the report as pdf",
    ],
    "flow": [
        "fetching https://example.com",
        "the report is dead: OSError: the printer is on fire",
        "report: a 5×, e 7×, i 2×",
    ],
    "customer_limits": [
        "in this order: big small *",
        "at most at once: big 1, small 1",
        "the small customer was done after * of 15 jobs",
    ],
    "cpu_bound": [
        "168 primes, counted in a process of its own",
        "1229 primes, counted in a process of its own",
        "5133 primes, counted in a process of its own",
        "the endless sum is dead: timed out*",
    ],
    "own_loop": [
        "tea.png: succeeded",
        "notes.txt: dead (cannot convert .txt)",
        "holiday.mov: succeeded",
        "result: {'converted': 'holiday.mov'}",
    ],
    "lake_without_spark": [
        "the busiest queues, and how long their jobs wait:",
        "  acme/mail: 1007 attempts, half within * s, 99 % within * s",
        "what failed most:",
        "  144× TypeError: unsupported operand type(s) for /: <str> and <str>",
    ],
    "lake_month": [
        "5,000 jobs came in from 2026-10-19 to 2026-11-01; * attempts failed",
        "most failed on 2026-10-*:",
        "what failed most, all ids and numbers taken out:",
        "  144× TypeError: unsupported operand type(s) for /: <str> and <str> in images",
        "the week, by hour from midnight UTC:",
        "  Fri *█*",
        "who waits longest:",
        "  initech/imports * s ████████████████████",
        "what the lake would set:",
        "  */*: * at once, *% used in its peak hour",
    ],
}
"""What each must print, in this order, among other lines."""


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """An empty database with Penstock's tables in it."""
    server = await asyncpg.connect(server_url())
    await server.execute(f"DROP DATABASE IF EXISTS {NAME} WITH (FORCE)")
    await server.execute(f"CREATE DATABASE {NAME}")
    url = urlunsplit(urlsplit(server_url())._replace(path=f"/{NAME}"))
    await migrate(url)
    yield url
    await server.execute(f"DROP DATABASE {NAME} WITH (FORCE)")
    await server.close()


@pytest.mark.parametrize(
    "name",
    sorted(LINES),
)
async def test_it_runs_and_says_what_it_shows(name: str, url: str, tmp_path: Path) -> None:
    if name.startswith("lake_"):
        pytest.importorskip("polars", reason="the lake's packages are not installed")
    if name == "lake_month":
        _make_lake(tmp_path)
    done = subprocess.run(  # noqa: ASYNC221
        [sys.executable, "-W", "error", EXAMPLES / f"{name}.py"],
        env={**os.environ, "PENSTOCK_URL": url, "PYTHONIOENCODING": "utf-8"},
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    pytest.LineMatcher(done.stdout.splitlines()).fnmatch_lines(
        [line.replace("[", "[[]") for line in LINES[name]]
    )
    assert done.stderr == ""


def _make_lake(folder: Path) -> None:
    """What `penstock lake demo` would have made, without Spark."""
    from lake.gold import gold, lake_of
    from penstock.lake import demo

    end = datetime(2026, 11, 2, tzinfo=UTC)
    demo.write(folder / "bronze", jobs=5_000, days=14, seed=4, end=end)
    lake_of(gold(folder / "bronze", end), folder / ".penstock" / "demo-lake", end)


def test_every_example_is_run_and_listed() -> None:
    files = {path.stem for path in EXAMPLES.glob("*.py")}
    assert files == set(LINES)
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"[{name}.py]({name}.py)" in listed for name in files)
