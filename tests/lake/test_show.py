"""`penstock lake show`: what it draws of a lake's hours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("duckdb", reason="the lake's packages are not installed")

from lake.gold import lake_of, table
from penstock.cli.lake_show import hours
from penstock.cli.main import main
from penstock.cli.plots import columns, shades
from penstock.lake.histogram import histogram
from penstock.lake.manifest import Lake
from penstock.lake.tables import GOLD
from support.emulated_s3 import ACCESS, new_bucket, s3_service

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)


def hour(after: timedelta, **more: Any) -> dict[str, Any]:
    numbers = [column for column, kind in GOLD["hourly"].items() if kind == "bigint"]
    told = {**dict.fromkeys(numbers, 0), "run_hist": {}, "wait_hist": {}, **more}
    return {"tenant": "t", "queue": "q", "type": "a", "hour": MONDAY + after, **told}


def test_the_worst_day_the_week_and_the_waits(tmp_path: Path) -> None:
    rows = [
        hour(timedelta(hours=9), arrivals=40, failed=1, wait_hist=histogram([100] * 40)),
        hour(timedelta(days=1, hours=10), arrivals=10, failed=3, wait_hist=histogram([9_000] * 10)),
        hour(timedelta(days=1, hours=11), arrivals=20, tenant="u", wait_hist=histogram([20_000])),
        hour(timedelta(days=7, hours=9), arrivals=40),
    ]
    made = {**{name: table(name, []) for name in GOLD}, "hourly": table("hourly", rows)}
    lake_of(made, tmp_path / "lake", MONDAY)

    def show(*options: str) -> list[str]:
        told = CliRunner().invoke(main, ["lake", "show", "--lake", str(tmp_path / "lake"), *options])
        assert told.exit_code == 0, told.output
        return told.stdout.splitlines()

    lines = show()
    assert "The day with most failures, Tue 2026-03-03: 3 attempts failed (by hour, UTC)" in lines
    assert "arrivals" + " " * (4 + 20) + "████" + " " * 24 + "  at most 20" in lines
    assert "failed" + " " * (6 + 20) + "██" + " " * 26 + "  at most 3" in lines
    assert "Jobs coming in by hour of the week (UTC); the darkest is 40 an hour" in lines
    assert "Mon" + " " * (9 + 18) + "██" in lines
    assert "Tue" + " " * (9 + 20) + "░░▒▒" in lines
    [waits_u, waits_q] = [line.split() for line in lines if line.startswith(("t/q", "u/q"))]
    assert waits_u[:6] == ["u/q", "20", "s", "20", "s", "20"]
    assert waits_q[:3] == ["t/q", "100", "ms"]
    assert not [line for line in show("--tenant", "t") if "u/q" in line]
    assert "Mon 2026-03-09: 0 attempts" in show("--days", "1")[0]


def test_a_lake_in_a_bucket_is_read_as_every_other_command_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    made = {**{name: table(name, []) for name in GOLD}, "hourly": table("hourly", [hour(timedelta())])}
    with s3_service(tmp_path) as service:
        for name, value in {**ACCESS, "AWS_ENDPOINT": service, "XDG_CACHE_HOME": str(tmp_path)}.items():
            monkeypatch.setenv(name, value)
        place = f"{new_bucket(service)}/lake"
        lake_of(made, place, MONDAY)
        assert [row["hour"] for row in hours(Lake(place), 30)] == [MONDAY]


def test_nothing_to_show(tmp_path: Path) -> None:
    lake_of({name: table(name, []) for name in GOLD}, tmp_path / "lake", MONDAY)
    told = CliRunner().invoke(main, ["lake", "show", "--lake", str(tmp_path / "lake")])
    assert told.exit_code == 1
    assert "there are no hours to show" in told.stderr


def test_columns_and_shades() -> None:
    assert columns([0, 1, 4, 8], 2, width=1) == ["   █", " ▂██"]
    assert columns([], 1) == [""]
    assert columns([0], 1, width=1) == [" "]
    assert shades([0, 0.01, 5, 10], 10, width=1) == " ░▒█"
