"""The database files of the embedded PostgreSQL: made once, checked before every start."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.stores.postgres.embedded.errors import EmbeddedDataUnusable, EmbeddedStartFailed
from penstock.stores.postgres.embedded.programs import User, run_as
from penstock.stores.postgres.embedded.supervisor import CLUSTER, open_private, pid_file, postmaster_pid

NAME = "penstock"  # the role, and the database

# Set once, with ALTER SYSTEM, so that a user may change them the same way.
SETTINGS = {
    "max_connections": "100",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%a ",
    # A line every few minutes would be most of a quiet server's log, which is only cut at a start.
    "log_checkpoints": "off",
    # Compiling a plan takes longer than any statement of a queue.
    "jit": "off",
    # The narrow tables turn over completely within the default minute.
    "autovacuum_naptime": "15s",
}


@contextmanager
def reachable(cluster: Path, user: User) -> Iterator[tuple[str, list[int]]]:
    """A path that leads the server to its files, and the open files it must inherit for that.

    A user lent by root often may not pass the folders above (/root is 0700). A link to an open folder
    passes them by, and no permission has to be changed.
    """
    if user.uid is None:
        yield str(cluster), []
        return
    fd = os.open(cluster, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}", [fd]
    finally:
        os.close(fd)


def prepare_cluster(folder: Path, binaries: Path, user: User, server_lock: int) -> None:
    """Make the database files if there are none, and check those that are there.

    The caller holds the server lock. The programs inherit it, so that one that outlives a killed caller
    is waited for like a server.
    """
    if not (folder / CLUSTER).exists():
        _create(folder, binaries, user, server_lock)
        return
    _refuse_other_version(folder / CLUSTER, binaries, user)
    _clear_stale_pid(folder / CLUSTER)


def _create(folder: Path, binaries: Path, user: User, server_lock: int) -> None:
    draft = folder / f"{CLUSTER}.new"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    if user.uid is not None and user.gid is not None:
        os.chown(draft, user.uid, user.gid)
    with reachable(draft, user) as (data, fds):

        def run(*command: str, stdin: str = "") -> None:
            done = run_as(user, [binaries / command[0], *command[1:]], fds=[server_lock, *fds], stdin=stdin)
            if done.returncode != 0:
                raise EmbeddedStartFailed(f"{command[0]} could not make the database:\n{done.stdout[-2000:]}")

        authentication = ("--auth-local=reject", "--auth-host=scram-sha-256")
        run("initdb", "-D", data, "-U", NAME, *authentication, "--locale=C", "--encoding=UTF8", "--no-sync")
        single = ("--single", "-F", "-D", data, "-c", "exit_on_error=on", "template1")
        run("postgres", *single, stdin=_first_sql(folder))
        # All at once, here: without it a power cut in the first minute could take files no checkpoint wrote.
        run("initdb", "-D", data, "--sync-only")
    draft.rename(folder / CLUSTER)
    _sync_folder(folder)


def _first_sql(folder: Path) -> str:
    # Single-user mode reads one statement per line: no port is open before the password is set.
    settings = (f"ALTER SYSTEM SET {name} = '{value}';" for name, value in SETTINGS.items())
    password = _make_password(folder)
    lines = (f"ALTER ROLE {NAME} PASSWORD '{password}';", f"CREATE DATABASE {NAME};", *settings)
    return "".join(f"{line}\n" for line in lines)


def _make_password(folder: Path) -> str:
    password = secrets.token_urlsafe(24)
    with open_private(folder / "password") as file:
        file.truncate(0)
        file.write(password.encode())
        os.fsync(file)
    return password


def read_password(folder: Path) -> str:
    """The password of the role, as made with the database files."""
    try:
        return (folder / "password").read_text()
    except FileNotFoundError:
        raise EmbeddedDataUnusable(
            f"the file {folder / 'password'} is missing; put it back, or move the data away"
        ) from None


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _refuse_other_version(cluster: Path, binaries: Path, user: User) -> None:
    made_by = (cluster / "PG_VERSION").read_text().strip()
    answer = run_as(user, [binaries / "postgres", "--version"]).stdout
    version = re.search(r"\d+", answer)
    if version is None or version[0] != made_by:
        raise EmbeddedDataUnusable(
            f"{cluster} was made by PostgreSQL {made_by}, but {binaries / 'postgres'} is {answer.strip()!r}; "
            f"set PENSTOCK_PG_BIN to the bin folder of a PostgreSQL {made_by}, or move the data away"
        )


def _clear_stale_pid(cluster: Path) -> None:
    """Remove the postmaster.pid of a server that was killed.

    PostgreSQL would refuse to start if its pid were by now some other process of the same user, and the
    processes that wait for the new server must not read the old one's pid and port.
    """
    pid = postmaster_pid(cluster)
    if pid is not None:
        raise EmbeddedDataUnusable(
            f"a PostgreSQL that Penstock did not start runs on {cluster} (pid {pid}); stop it, then retry"
        )
    if pid_file(cluster):
        (cluster / "postmaster.pid").unlink()
