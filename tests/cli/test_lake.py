"""`penstock lake …` as people meet it: what it says of a lake, and what it says when there is none or no Spark."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from msgspec.structs import replace

from penstock.cli import lake as command
from penstock.core.errors import StoreUnavailable
from penstock.lake.manifest import NAME, WHOLE, Lake, Manifest, new_manifest, with_parts
from penstock.lake.pipeline import Report

Run = Callable[..., Any]


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture
def made(place: str) -> Manifest:
    """A lake with one table, and with what a run that died has left."""
    lake = Lake(place)
    begun = lake.commit(new_manifest({"feed": "f", "system": "1"}, {"xid": 1}))
    for folder in ("gold/slo/000002-a", "gold/slo/000003-b"):
        path = Path(lake.storage.path(folder))
        path.mkdir(parents=True)
        (path / "part-0.parquet").write_bytes(b"rows")
    counts = {"2026-01-01": {"job": 1200, "attempt": 3}, "2026-01-02": {"change": 1}}
    as_of = datetime(2026, 1, 3, tzinfo=UTC)
    return lake.commit(
        replace(with_parts(begun, "slo", {WHOLE: ("gold/slo/000002-a",)}), counts=counts, data_as_of=as_of)
    )


def test_status_tells_what_there_is(run: Run, place: str, made: Manifest) -> None:
    told = json.loads(run("lake", "status", "--lake", place).stdout)
    assert told["lake"] == place
    assert (told["first_day"], told["last_day"], told["events"], told["jobs"]) == (
        "2026-01-01",
        "2026-01-02",
        1204,
        1200,
    )
    assert told["data_as_of"] == "2026-01-03T00:00:00Z"
    assert (told["for_vacuum"], told["lacking"]) == (1, [])
    shown = run("lake", "status", "--lake", place, "-o", "table")
    assert shown.exit_code == 0
    assert "2026-01-03 00:00:00 UTC" in shown.stdout
    assert "1,204" in shown.stdout


def test_status_of_a_lake_in_doubt_fails(run: Run, place: str, made: Manifest) -> None:
    Lake(place).commit(replace(made, doubts=("2026-01-01",)))
    told = run("lake", "status", PENSTOCK_LAKE=place)
    assert told.exit_code == 1
    assert json.loads(told.stdout)["days_in_doubt"] == ["2026-01-01"]


def test_status_of_a_lake_that_lacks_files_fails(run: Run, place: str, made: Manifest) -> None:
    Lake(place).storage.remove("gold/slo/000002-a")
    told = run("lake", "status", "--lake", place)
    assert told.exit_code == 1
    assert json.loads(told.stdout)["lacking"] == ["gold/slo/000002-a"]


@pytest.mark.parametrize("what", ["publish", "show"])
def test_a_lake_that_lacks_files_is_not_told_as_an_empty_one(
    run: Run, place: str, made: Manifest, what: str
) -> None:
    Lake(place).storage.remove("gold/slo/000002-a")
    told = run("lake", what, "--lake", place)
    assert told.exit_code == 4
    assert (
        "lacks what its manifest names: gold/slo/000002-a; put it back from a copy, or make it anew"
        in told.stderr
    )


def test_vacuum_removes_what_is_no_part_of_it(run: Run, place: str, made: Manifest) -> None:
    told = run("lake", "vacuum", "--lake", place).stderr
    assert told == "0 folders removed; 1 more that count for nothing are left until --grace has passed, 1d\n"
    refused = run("lake", "vacuum", "--lake", place, "--grace", "59m")
    assert refused.exit_code == 2
    assert "--grace must be an hour at the least" in refused.stderr
    left = Path(place) / "gold/slo/000003-b"
    for path in (left, *left.iterdir()):
        os.utime(path, (0, 0))
    told = run("lake", "vacuum", "--lake", place, "--grace", "1h")
    assert told.stdout == "gold/slo/000003-b\n"
    assert told.stderr == "1 folders removed\n"
    assert "no time" in run("lake", "vacuum", "--lake", place, "--grace", "soon").stderr


@pytest.mark.parametrize("what", ["status", "vacuum"])
def test_no_lake(run: Run, place: str, what: str) -> None:
    told = run("lake", what, "--lake", place)
    assert told.exit_code == 3
    assert f"there is no lake in {place}; penstock lake run makes one" in told.stderr


@pytest.mark.parametrize("command", [["status"], ["show"], ["vacuum"], ["run"], ["publish"], ["adopt"]])
def test_a_lake_that_is_no_folder(run: Run, tmp_path: Path, command: list[str]) -> None:
    place = tmp_path / "file"
    place.touch()
    told = run("lake", *command, "--lake", str(place))
    assert told.exit_code == 5
    assert told.stderr.startswith(f"penstock: the lake in {place} ")
    assert "Not a directory" in told.stderr


def test_a_lake_where_nobody_may_write() -> None:
    with pytest.raises(StoreUnavailable, match=r"the lake in /proc/nowhere/lake is not there"):
        Lake("/proc/nowhere/lake").commit(new_manifest({"feed": "f", "system": "1"}, {"xid": 1}))


def test_a_manifest_edited_by_hand(run: Run, place: str, made: Manifest) -> None:
    file = Path(place) / NAME
    file.write_text(file.read_text().replace("1200", "1201"))
    told = run("lake", "status", "--lake", place)
    assert told.exit_code == 4
    assert "is not as Penstock wrote it" in told.stderr


@pytest.mark.parametrize("what", ["run", "demo"])
def test_without_the_extra(run: Run, place: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "NEEDS", ("sys", "spark_that_is_not_there"))
    told = run("lake", what, "--lake", place)
    assert told.exit_code == 2
    assert 'spark_that_is_not_there is not installed: pip install "penstock[lake]"' in told.stderr
    assert not Path(place).exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--from", "2026-01-02", "--to", "2026-01-01"], "--from must not be after --to"),
        (["--url", "http://127.0.0.1:1"], "as a source of the lake"),
        (["--continuous", "--rebuild"], "--continuous goes with none of"),
        (["--master", "local", "--remote", "sc://there"], "exclude each other"),
        (["--continuous", "--every", "often"], "'often' is no time"),
        (["--from", "yesterday"], "'yesterday' does not match"),
    ],
)
def test_wrong_usage(
    run: Run, place: str, options: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_spark(*_: object) -> object:
        raise AssertionError("nothing is started for it")

    monkeypatch.setattr("penstock.lake.session.session", no_spark)
    told = run("lake", "run", "--lake", place, *options)
    assert told.exit_code == 2
    assert said in told.stderr


def test_a_demo_says_where_it_is_and_what_shows_it(
    run: Run, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hints: list[str] = []
    monkeypatch.setattr(command, "hint", hints.append)
    monkeypatch.setattr(command, "on_spark", lambda *_: nullcontext(MagicMock()))
    monkeypatch.setattr("penstock.lake.demo.write", lambda *_: 3)
    monkeypatch.setattr("penstock.lake.pipeline.run_frame", lambda *_, **__: Report())
    assert run("lake", "demo", "--lake", place, "--jobs", "1").exit_code == 0
    assert hints == [f"the lake is in {place}: penstock lake show --lake {place}"]


@pytest.mark.parametrize("options", [["--master", "spark://there:7077"], ["--remote", "sc://there"]])
def test_a_spark_that_does_not_start_is_told_in_a_line(
    run: Run, place: str, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited.\nand more")

    monkeypatch.setattr("penstock.lake.session.session", broken)
    told = run("lake", "run", "--lake", place, *options)
    assert told.exit_code == 1
    [line] = told.stderr.splitlines()
    assert line.startswith(
        f"penstock: Spark did not start on {options[1]}: RuntimeError: [JAVA_GATEWAY_EXITED]"
    )


def test_what_was_wrong_is_told_and_not_what_was_called(
    run: Run, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RuntimeError(
            "An error occurred while calling None.Context.\n: java.lang.Exception: no cores\n\tat …"
        )

    monkeypatch.setattr("penstock.lake.session.session", broken)
    told = run("lake", "run", "--lake", place)
    assert told.stderr == "penstock: Spark did not start: RuntimeError: java.lang.Exception: no cores\n"


@pytest.mark.parametrize("master", ["nonsense", "local[0]", "local[]", "spork://there", "spark://"])
def test_a_master_that_is_none_is_refused_before_java_is_started(run: Run, place: str, master: str) -> None:
    told = run("lake", "run", "--lake", place, "--master", master)
    assert told.exit_code == 2
    assert (
        f"--master must be local[*], local[4], spark://host:7077, yarn or k8s://…; got {master!r}"
        in told.stderr
    )


def test_how_often_is_asked_of_one_who_goes_on(run: Run, place: str) -> None:
    told = run("lake", "run", "--lake", place, "--every", "5s")
    assert told.exit_code == 2
    assert "with --continuous" in told.stderr


def test_a_lake_of_another_store_is_refused_before_spark_is_started(
    run: Run, place: str, made: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.lake.session.session", None)
    told = run("lake", "run", "--lake", place)
    assert told.exit_code == 4
    assert "(lake_of_another)" in told.stderr


def test_a_tenant_that_the_lake_does_not_know_is_named_with_those_it_does(
    run: Run, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.lake_show.hours", lambda *_: [{"tenant": "acme"}, {"tenant": "zeta"}])
    told = run("lake", "show", "--lake", place, "--tenant", "nobody")
    assert told.exit_code == 3
    assert "no hours of the tenant 'nobody' to show; of others: acme, zeta" in told.stderr


@pytest.mark.parametrize(
    "lake",
    [
        "s3://key:topsecret@queue/lake",
        "s3://key:top/secret@queue/lake",
        "s3://queue/lake?endpoint=http://key:topsecret@there",
        "ftp://key:topsecret@queue/lake",
    ],
)
def test_a_lake_with_credentials_in_its_name_is_refused_unshown(run: Run, lake: str) -> None:
    told = run("lake", "status", "--lake", lake)
    assert told.exit_code == 2
    assert "top" not in told.output
    assert "secret" not in told.output


def test_a_folder_may_be_named_by_a_url(run: Run, place: str, made: Manifest) -> None:
    assert json.loads(run("lake", "status", "--lake", f"file:{place}").stdout)["lake"] == place


def test_looking_at_a_lake_needs_no_spark(place: str, made: Manifest, penstock: Run) -> None:
    code = "import sys; sys.modules['pyspark'] = None; from penstock.cli.main import main; main()"
    import subprocess

    told = subprocess.run(
        [sys.executable, "-c", code, "lake", "status", "--lake", place],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(told.stdout)["batch"] == 2
