"""How a process gets hold of the embedded server: find it running, or start it, exactly once.

Four lock files in the data folder decide everything; the kernel frees a lock when its last holder is gone,
however it went. Whoever attaches passes the door alone, takes a shared lease, and only then looks: the
server runs as long as the server lock is held, and is watched as long as the supervisor lock is held. A new
server inherits both locks already taken, so there is no moment at which it runs and cannot be seen to.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from weakref import WeakSet

from penstock.stores.postgres.embedded import supervisor
from penstock.stores.postgres.embedded.cluster import NAME, prepare_cluster, reachable, read_password
from penstock.stores.postgres.embedded.errors import EmbeddedDataUnusable, EmbeddedStartFailed
from penstock.stores.postgres.embedded.programs import User, environment, find_binaries, server_user
from penstock.stores.postgres.embedded.supervisor import (
    CLUSTER,
    DOOR,
    LEASE,
    PAUSE_SECONDS,
    SERVER_LOCK,
    SUPERVISOR_LOCK,
    Plan,
    open_private,
    pid_file,
    try_lock,
)

LOG = "server.log"
PORT = "port"
LARGEST_LOG_BYTES = 10_000_000
NEW_PORTS = 3
ASKED = f"user\0{NAME}\0database\0{NAME}\0\0".encode()
LET_ME_IN = struct.pack("!ii", 8 + len(ASKED), 3 << 16) + ASKED  # how a client begins, in version 3.0
NOT_NOW = b"\0C57P03\0"  # the error code of a server that starts, recovers or shuts down


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment until which one attach may take."""

    seconds: float
    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(seconds, time.monotonic() + seconds)

    def pause(self, folder: Path, waiting_for: str) -> None:
        """Wait a moment, unless the time is up."""
        if time.monotonic() >= self.at:
            raise EmbeddedStartFailed(
                f"gave up after {self.seconds:g} s of waiting for {waiting_for} in {folder}; "
                f"if it is only slow, allow more timeout_seconds. The end of its log:\n{log_tail(folder)}"
            )
        time.sleep(PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class Lease:
    """Keeps the server running while its file is open, in this process or one that it forked."""

    url: str
    folder: Path
    file: FileIO

    def close(self) -> None:
        """Let go, after making sure that someone will notice."""
        if self.file.closed:
            return
        try:
            if _is_running(self.folder):
                _ensure_supervisor(self.folder)
        except (OSError, EmbeddedStartFailed):
            # The folder may be deleted by now; leaving must not fail for that.
            pass
        finally:
            # Closed, never unlocked: an unlock would take it from the other side of a fork() as well.
            self.file.close()


def attach(data_dir: Path, timeout_seconds: float) -> Lease:
    """A lease on the running server."""
    deadline = Deadline.after(timeout_seconds)
    try:
        folder = _prepare_folder(data_dir)
        with _locked(folder, DOOR, fcntl.LOCK_EX, deadline):
            file = _locked(folder, LEASE, fcntl.LOCK_SH, deadline)
            try:
                port = _ensure_server(folder, deadline)
                url = f"postgresql://{NAME}:{read_password(folder)}@127.0.0.1:{port}/{NAME}"
            except BaseException:
                file.close()
                raise
            return Lease(url, folder, file)
    except OSError as error:
        raise EmbeddedDataUnusable(
            f"cannot use the data folder {data_dir}: {error}; "
            "it must be on a local disk with free space, and belong to this user"
        ) from error


def _prepare_folder(data_dir: Path) -> Path:
    folder = data_dir.absolute()
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return folder
    # Root's server runs as someone else, who must be able to pass; every file inside is private.
    folder.chmod(0o711 if os.geteuid() == 0 else 0o700)
    (folder / ".gitignore").write_text("*\n")
    return folder


def _locked(folder: Path, name: str, kind: int, deadline: Deadline) -> FileIO:
    file = open_private(folder / name)
    if kind == fcntl.LOCK_EX:
        _not_for_forks.add(file)
    try:
        while not try_lock(file, kind):
            deadline.pause(folder, f"another process to let go of `{name}`")
    except BaseException:
        file.close()
        raise
    return file


_not_for_forks: WeakSet[FileIO] = WeakSet()


def _close_in_fork() -> None:
    # Another thread may fork() while this one attaches; the child would keep the door shut while it lives.
    for file in list(_not_for_forks):
        file.close()


os.register_at_fork(after_in_child=_close_in_fork)


def _ensure_server(folder: Path, deadline: Deadline) -> int:
    """The port of the server, started if it does not run. The caller is inside the door."""
    if _is_running(folder):
        _ensure_supervisor(folder)
        port = _wait_until_ready(folder, deadline)
        if port is not None:
            return port
    return _start(folder, deadline)


def _is_running(folder: Path) -> bool:
    with open_private(folder / SERVER_LOCK) as file:
        return not try_lock(file, fcntl.LOCK_SH)


def _ensure_supervisor(folder: Path) -> None:
    """Give a running server whose supervisor was killed a new one."""
    with open_private(folder / SUPERVISOR_LOCK) as lock:
        _not_for_forks.add(lock)
        if try_lock(lock, fcntl.LOCK_EX):
            plan = Plan(folder=str(folder), command=[], fds=[], uid=None, gid=None)
            _run_supervisor(plan, lock)


def _wait_until_ready(folder: Path, deadline: Deadline) -> int | None:
    """The port, once the server answers on it; None if the server ended instead.

    As long as it lives it is given time: recovery after a crash may be long.
    """
    while True:
        lines = pid_file(folder / CLUSTER)
        if len(lines) >= 8 and lines[7].strip() == "ready" and _answers(int(lines[3])):
            return int(lines[3])
        if not _is_running(folder):
            return None
        deadline.pause(folder, "PostgreSQL to become ready")


def _answers(port: int) -> bool:
    # The file still says ready when the postmaster was killed and its children are not gone yet, and while it shuts
    # down. A connection alone proves nothing: the kernel accepts it for a process that is about to die, and one that
    # is shutting down still talks about TLS, and only then says that it lets nobody in.
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(LET_ME_IN)
            match connection.recv(1):
                case b"R":  # it asks for the password
                    return True
                case b"E":  # it may be full, say, which is to be alive
                    with connection.makefile("rb") as reply:
                        return NOT_NOW not in reply.read()
                case _:
                    return False
    except OSError:
        return False


def _start(folder: Path, deadline: Deadline) -> int:
    user = server_user(folder)
    binaries = find_binaries(folder, user)
    for port in _ports(folder):
        log_start = _launch(folder, binaries, user, port, deadline)
        if _wait_until_ready(folder, deadline) is not None:
            _remember_port(folder, port)
            return port
        if "Address already in use" not in log_tail(folder, log_start):
            break
    raise EmbeddedStartFailed(
        f"PostgreSQL ended instead of becoming ready in {folder}. "
        f"The end of its log:\n{log_tail(folder, log_start)}"
    )


def _ports(folder: Path) -> Iterator[int]:
    """The ports to try: the last one first, so that a URL in use stays right after a crash."""
    with open_private(folder / PORT) as file:
        remembered = file.read().decode()
    if remembered:
        yield int(remembered)
    for _ in range(NEW_PORTS):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        yield port


def _remember_port(folder: Path, port: int) -> None:
    with open_private(folder / PORT) as file:
        file.truncate(0)
        file.write(str(port).encode())


def _launch(folder: Path, binaries: Path, user: User, port: int, deadline: Deadline) -> int:
    """Start the supervisor, and it the server; both inherit their locks. Returns where their log begins."""
    with (
        _locked(folder, SUPERVISOR_LOCK, fcntl.LOCK_EX, deadline) as supervisor_lock,
        _locked(folder, SERVER_LOCK, fcntl.LOCK_EX, deadline) as server_lock,
    ):
        prepare_cluster(folder, binaries, user, server_lock.fileno())
        log_start = _rotate_log(folder)
        with reachable(folder / CLUSTER, user) as (data, fds):
            plan = Plan(
                folder=str(folder),
                command=_server_command(binaries, data, port),
                fds=[server_lock.fileno(), *fds],
                uid=user.uid,
                gid=user.gid,
            )
            _run_supervisor(plan, supervisor_lock)
    return log_start


def _server_command(binaries: Path, data: str, port: int) -> list[str]:
    settings = {
        "port": str(port),
        "listen_addresses": "127.0.0.1",
        # The path of a socket may have no more than 107 characters; a project's folder may have more.
        "unix_socket_directories": "",
        "cluster_name": NAME,
    }
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return [str(binaries / "postgres"), "-D", data, *options]


def _run_supervisor(plan: Plan, lock: FileIO) -> None:
    with open_private(Path(plan["folder"]) / LOG) as log:
        # The log is shared by processes that write at their own pace: each line goes to its end.
        fcntl.fcntl(log, fcntl.F_SETFL, fcntl.fcntl(log, fcntl.F_GETFL) | os.O_APPEND)
        done = subprocess.run(
            # Isolated: neither the caller's variables nor its packages can change what runs.
            [sys.executable, "-I", "-S", supervisor.__file__, json.dumps(plan)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=environment(),
            # Out of the terminal's reach: to PostgreSQL, Ctrl-C is a request to shut down.
            start_new_session=True,
            pass_fds=[lock.fileno(), *plan["fds"]],
        )
    if done.returncode != 0:
        folder = Path(plan["folder"])
        raise EmbeddedStartFailed(f"{sys.executable} did not run the supervisor:\n{log_tail(folder)}")


def _rotate_log(folder: Path) -> int:
    """Put a large log aside; returns the size of the one that goes on."""
    log = folder / LOG
    size = log.stat().st_size if log.exists() else 0
    if size <= LARGEST_LOG_BYTES:
        return size
    log.replace(folder / f"{LOG}.1")
    return 0


def log_tail(folder: Path, start: int = 0) -> str:
    """The last lines the server wrote from `start` on."""
    with open_private(folder / LOG) as log:
        end = log.seek(0, os.SEEK_END)
        log.seek(max(start, end - 2000))
        return log.read().decode(errors="replace")
