"""A PostgreSQL of its own for a benchmark, gone without a trace afterwards."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.stores.postgres.embedded import start


@contextmanager
def fresh_server() -> Iterator[str]:
    """The URL of an embedded server on an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        with start(Path(folder) / "data") as server:
            yield server.url
        # It stops by itself, but after millions of rows its last checkpoint takes a while.
        deadline = time.monotonic() + 60
        while (Path(folder) / "data" / "pg" / "postmaster.pid").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
