"""A service that speaks S3, on this machine, for tests of what is kept in buckets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen
from uuid import uuid4

ACCESS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}
"""What the environment says to whoever uses it, beside AWS_ENDPOINT."""


@contextmanager
def s3_service(folder: Path) -> Iterator[str]:
    """The address of one that keeps to conditions. Who calls before it is ready waits."""
    with socket.create_server(("127.0.0.1", 0)) as line, (folder / "s3.log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "hypercorn", "ministack.app:app", "--bind", f"fd://{line.fileno()}",
                "--graceful-timeout", "0",
            ],
            cwd=folder, env={**os.environ, "SERVICES": "s3", "LOG_LEVEL": "ERROR"}, pass_fds=[line.fileno()],
            stdout=log, stderr=log,
        )  # fmt: skip
        try:
            yield f"http://127.0.0.1:{line.getsockname()[1]}"
        finally:
            process.terminate()
            process.wait(timeout=30)


def new_bucket(address: str) -> str:
    """The URL of an empty bucket."""
    name = f"bucket-{uuid4().hex[:12]}"
    with urlopen(Request(f"{address}/{name}", method="PUT"), timeout=60):
        return f"s3://{name}"
