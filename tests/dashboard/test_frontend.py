"""What the page is made of: types that fit the API, unit tests by Node, a lock file that names no place."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FRONTEND = Path(__file__).parents[2] / "frontend"


@pytest.mark.parametrize("script", ["check", "test"])
def test_its_own_scripts_pass(script: str) -> None:
    """Types against docs/openapi.json, and what `node --test` runs."""
    done = subprocess.run(
        [sys.executable, str(FRONTEND / "hook.py"), script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_lock_file_pins_by_hash_and_names_no_place() -> None:
    text = (FRONTEND / "package-lock.json").read_text()
    assert "http" not in text
    assert '"resolved"' not in text
    packages = json.loads(text)["packages"]
    assert all("integrity" in one for path, one in packages.items() if path)


def test_versions_are_exact() -> None:
    manifest = json.loads((FRONTEND / "package.json").read_text())
    versions = {**manifest["dependencies"], **manifest["devDependencies"]}.values()
    assert all(version[0].isdigit() for version in versions)
