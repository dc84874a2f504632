"""Programs that only the system can give: used when present, a visible skip when not, a failure where CI installed them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


def program(name: str) -> Path:
    """Where a program is."""
    found = shutil.which(
        name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    )
    if found is None:
        pytest.skip(f"{name} is not installed")
    return Path(found)
