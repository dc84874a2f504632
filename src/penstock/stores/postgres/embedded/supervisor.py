"""The detached process that starts the embedded PostgreSQL and stops it once nobody holds it any more.

It is run by its path and imports the standard library only: it starts in milliseconds and does not depend
on the caller's import path. The names and small checks below are shared with the process that launches it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import TypedDict

CLUSTER = "pg"  # PostgreSQL's own files
LEASE = "lease"  # locked shared by everyone who uses the server
DOOR = "door"  # locked by the one process that is attaching, starting or stopping
SERVER_LOCK = "server.lock"  # inherited locked by PostgreSQL and all its children
SUPERVISOR_LOCK = "supervisor.lock"  # inherited locked by the supervisor

PAUSE_SECONDS = 0.01


class Plan(TypedDict):
    """What a supervisor is told; an empty command means the server runs already and is adopted."""

    folder: str
    command: list[str]
    fds: list[int]
    uid: int | None
    gid: int | None


def open_private(path: Path) -> FileIO:
    """Open a file that only its owner may read, made if absent; never through a link planted in its place."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return FileIO(os.open(path, flags), "r+")
    if os.geteuid() == 0:
        # With sudo in someone's folder, the file is theirs: they come back without sudo.
        owner = path.parent.stat()
        os.fchown(fd, owner.st_uid, owner.st_gid)
    return FileIO(fd, "r+")


def try_lock(file: FileIO, kind: int) -> bool:
    """Take the lock if it is free now."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def pid_file(cluster: Path) -> list[str]:
    """The lines of postmaster.pid: pid, folder, start, port, socket, address, memory, state; or none."""
    try:
        return (cluster / "postmaster.pid").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []


def postmaster_pid(cluster: Path) -> int | None:
    """The pid of a PostgreSQL that lives on these files, if there is one."""
    lines = pid_file(cluster)
    if not lines or not lines[0].isdigit():
        return None
    pid = int(lines[0])
    return pid if _is_postgres(pid) else None


def _is_postgres(pid: int) -> bool:
    # After a machine or a container was reset, the pid in a left-over file often belongs to something else.
    if not Path("/proc/self/stat").exists():
        return _is_alive(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    name, _, rest = stat.partition("(")[2].rpartition(")")
    # A container whose first process reaps nobody keeps dead servers as zombies.
    return name == "postgres" and not rest.startswith(" Z")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def main(plan: Plan) -> None:
    """Leave the caller behind, start the server if asked to, and stay until it has ended."""
    if os.fork():
        os._exit(0)
    folder = Path(plan["folder"])
    # Opened now, so that a folder deleted under a running server does not leave the server running.
    lease, door, server_lock = (open_private(folder / name) for name in (LEASE, DOOR, SERVER_LOCK))
    server = _launch(plan) if plan["command"] else None
    watcher = threading.Thread(target=_exit_with_server, args=(server_lock, server))
    watcher.start()
    _wait_until_unused(lease, door)
    _stop(folder / CLUSTER, server)
    # The door stays shut until the server is gone: until then it would still answer someone who attaches.
    watcher.join()


def _launch(plan: Plan) -> subprocess.Popen[bytes]:
    server = subprocess.Popen(
        plan["command"],
        stdin=subprocess.DEVNULL,
        cwd="/",
        pass_fds=plan["fds"],
        user=plan["uid"],
        group=plan["gid"],
        extra_groups=None if plan["uid"] is None else [],
    )
    for fd in plan["fds"]:
        os.close(fd)
    return server


def _exit_with_server(server_lock: FileIO, server: subprocess.Popen[bytes] | None) -> None:
    # Shared, so that a process that only asks whether the server runs is not told that this one is it.
    fcntl.flock(server_lock, fcntl.LOCK_SH)
    if server is not None:
        server.wait()
    os._exit(0)


def _wait_until_unused(lease: FileIO, door: FileIO) -> None:
    """Return, with the door held, when nobody holds a lease and so nobody can come to hold one."""
    while True:
        fcntl.flock(lease, fcntl.LOCK_EX)
        # Let go before waiting for the door: whoever is inside it may be waiting for a lease.
        fcntl.flock(lease, fcntl.LOCK_UN)
        fcntl.flock(door, fcntl.LOCK_EX)
        if try_lock(lease, fcntl.LOCK_EX):
            return
        fcntl.flock(door, fcntl.LOCK_UN)


def _stop(cluster: Path, server: subprocess.Popen[bytes] | None) -> None:
    """Ask for a fast shutdown."""
    if server is not None:
        server.send_signal(signal.SIGINT)
        return
    # An adopted server may be so young that it has not written its pid yet.
    while (pid := postmaster_pid(cluster)) is None:
        time.sleep(PAUSE_SECONDS)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
