"""A real PgBouncer in transaction mode in front of a PostgreSQL server."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from support.system import program

LONG = 20.0


@contextmanager
def pgbouncer(url: str, folder: Path, *, sessions: int = 2) -> Iterator[str]:
    """Run one for as long as the block runs; yields the URL through it. All clients share `sessions` sessions."""
    server = urlsplit(url)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = folder / "pgbouncer.ini"
    config.write_text(
        f"""[databases]
{server.path[1:]} = host={server.hostname} port={server.port} user={server.username} password={server.password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 200
"""
    )
    os.chmod(folder, 0o755)
    as_nobody = {"user": "nobody"} if os.geteuid() == 0 else {}  # it refuses to run as root
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [program("pgbouncer"), config], stdout=log, stderr=subprocess.STDOUT, cwd="/", **as_nobody  # type: ignore[call-overload]
        )  # fmt: skip
        try:
            _wait_for(port, process, folder / "log")
            yield f"postgresql://{server.username}@127.0.0.1:{port}{server.path}"
        finally:
            process.terminate()
            process.wait(LONG)


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + LONG
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"PgBouncer did not start: {log.read_text()}") from None
            time.sleep(0.02)
