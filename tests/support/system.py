"""Programs that only the system can give, such as another PostgreSQL or PgBouncer.

Where one is missing, the test that asks is skipped and says why. Under PENSTOCK_TEST_REQUIRE=system, which CI sets once
it has installed them, the test fails instead: a gap there would be silent.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where Debian puts servers; the PATH of a normal user leaves them out."""

POSTGRES = Path("/usr/lib/postgresql")


def program(name: str) -> Path:
    """The program of this name, from the PATH or the system's folders."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS])
    found = shutil.which(name, path=path)
    return Path(found) if found else _lack(f"the program {name} is not installed")


def postgres_bin(*, other_than: int | None = None) -> Path:
    """The folder of the newest PostgreSQL server that the system has, of another major version than this one."""
    versions = {
        int(folder.parent.name): folder
        for folder in POSTGRES.glob("*/bin")
        if folder.parent.name.isdigit() and (folder / "initdb").exists()
    }
    versions.pop(other_than or 0, None)
    if versions:
        return versions[max(versions)]
    what = "PostgreSQL server" if other_than is None else f"PostgreSQL server other than {other_than}"
    return _lack(f"there is no {what} under {POSTGRES}")


def _lack(what: str) -> NoReturn:
    if os.environ.get("PENSTOCK_TEST_REQUIRE") == "system":
        pytest.fail(f"{what}, and PENSTOCK_TEST_REQUIRE=system says it must be")
    pytest.skip(what)
