"""A missing program of the system is a skip that says why, and a failure where CI has promised it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import system


@pytest.fixture(autouse=True)
def nothing_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_TEST_REQUIRE", raising=False)


def test_a_program_in_one_of_the_systems_folders_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(system, "SYSTEM_FOLDERS", (str(tmp_path),))
    (tmp_path / "bouncer").touch(mode=0o755)
    assert system.program("bouncer") == tmp_path / "bouncer"


def test_a_missing_program_skips() -> None:
    with pytest.raises(pytest.skip.Exception, match="no-such-program is not installed"):
        system.program("no-such-program")


def test_a_missing_program_fails_where_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TEST_REQUIRE", "system")
    with pytest.raises(pytest.fail.Exception, match="no-such-program is not installed"):
        system.program("no-such-program")


def test_the_newest_postgresql_is_taken_and_one_version_can_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "POSTGRES", tmp_path)
    for version in ("9", "15", "18"):
        (tmp_path / version / "bin").mkdir(parents=True)
        (tmp_path / version / "bin/initdb").touch()
    assert system.postgres_bin() == tmp_path / "18/bin"
    assert system.postgres_bin(other_than=18) == tmp_path / "15/bin"


def test_a_missing_postgresql_skips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "POSTGRES", tmp_path)
    with pytest.raises(pytest.skip.Exception, match="no PostgreSQL server other than 18"):
        system.postgres_bin(other_than=18)
