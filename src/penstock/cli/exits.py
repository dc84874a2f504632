"""How a command ends: what its exit code tells a script, and the one line that tells a person what was refused."""

from __future__ import annotations

import os
import sys
from enum import IntEnum
from traceback import walk_tb
from typing import IO, Any

import click

from penstock.core.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    LeaseLost,
    NotFound,
    Overloaded,
    PenstockError,
    RateLimited,
    StoreUnavailable,
    Unauthorized,
    UnknownStore,
)


class Exit(IntEnum):
    """What the end of a command tells a script."""

    OK = 0
    FAILED = 1
    """It was tried and did not work, or what was looked at is not well."""
    USAGE = 2
    """What was typed is wrong, here and everywhere."""
    NOT_FOUND = 3
    """What was named is not there: a job, a queue, a schedule, a log, a lake."""
    REFUSED = 4
    """It is there and does not take this: it is in another state, damaged, too new, or not one's own."""
    UNREACHABLE = 5
    """It cannot be got at: the store is away, or lets nobody in."""


_EXITS: tuple[tuple[type[PenstockError], Exit], ...] = (
    (InvalidInput, Exit.USAGE),
    (UnknownStore, Exit.USAGE),
    (NotFound, Exit.NOT_FOUND),
    (Conflict, Exit.REFUSED),
    (LeaseLost, Exit.REFUSED),
    (Unauthorized, Exit.REFUSED),
    (Forbidden, Exit.REFUSED),
    (RateLimited, Exit.REFUSED),
    (Overloaded, Exit.REFUSED),
    (StoreUnavailable, Exit.UNREACHABLE),
)
_EXITS_BY_CODE = {
    "unknown_wakeups": Exit.USAGE,
    "lake_missing": Exit.NOT_FOUND,
    "lake_promise_unknown": Exit.NOT_FOUND,
    "not_a_log": Exit.REFUSED,
    "opened_elsewhere": Exit.REFUSED,
    "shards_differ": Exit.REFUSED,
    "store_not_conditional": Exit.REFUSED,
    "lake_not_reconciled": Exit.FAILED,
    "spark_away": Exit.UNREACHABLE,
    "embedded": Exit.UNREACHABLE,
    "schema": Exit.REFUSED,
    "migration": Exit.REFUSED,
    "lake": Exit.REFUSED,
    "log": Exit.REFUSED,
}
"""Errors of parts that are imported when they are needed, by their codes or by how these begin."""

UNREADABLE_URL = (
    "cannot read the URL; say it as postgresql://user:password@host:5432/name, where /, #, ?, @, [ and ] in a password are"
    " %2F, %23, %3F, %40, %5B and %5D"
)
"""Not what its reader says: that repeats what it took for a port, which may be a part of the password."""
_URL_READERS = ("asyncpg.", "urllib.parse", "ipaddress")
_WRITERS = ("click.", "rich.", "csv", "penstock.cli.output")
"""The modules by which commands write."""


class Refused(click.ClickException):
    """One line on stderr, and the exit code that goes with it."""

    def __init__(self, message: str, code: Exit) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # click reads it from the instance

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"penstock: {self.format_message()}", file=file, err=file is None)


def refused(error: PenstockError) -> Refused:
    """What Penstock refuses, as a command says it."""
    return Refused(told(error), exit_of(error))


def told(error: PenstockError) -> str:
    return f"{' '.join(error.message.split())} ({error.code})"


def exit_of(error: PenstockError) -> Exit:
    for kind, code in _EXITS:
        if isinstance(error, kind):
            return code
    beginning = error.code.partition("_")[0]
    return _EXITS_BY_CODE.get(error.code) or _EXITS_BY_CODE.get(beginning, Exit.FAILED)


def refused_elsewhere(error: Exception) -> Refused | None:
    """What is no error of Penstock's and no fault of its code either; None for all others."""
    return _refused_by_output(error) if isinstance(error, OSError) else refused_by_driver(error)


def _refused_by_output(error: OSError) -> Refused | None:
    """What the system says when the output takes nothing more, as where a full disk is behind a `>`."""
    if isinstance(error, BrokenPipeError) or not _modules(error)[-1].startswith(_WRITERS):
        return None  # of a pipe that nobody reads, as in `| head`, click leaves without a word
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # or Python tries once more when it ends, and complains
    os.close(nowhere)
    return Refused(f"cannot write the answer: {error.strerror}", Exit.FAILED)


def refused_by_driver(error: Exception) -> Refused | None:
    """What a database's driver says before there is a store: a wrong password, no such database, a bad URL."""
    if isinstance(error, ValueError) and _is_of_url(error):
        return Refused(UNREADABLE_URL, Exit.USAGE)
    asyncpg = sys.modules.get("asyncpg")
    if asyncpg is None:
        return None
    said = " ".join(str(error).split())
    if isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError):
        return Refused(f"the database refuses: {said}", Exit.UNREACHABLE)
    return None


def _is_of_url(error: ValueError) -> bool:
    """Whether it came of a URL that we had read; not of one that somebody's app reads while it is imported."""
    modules = _modules(error)
    asking = [module for module in modules if not module.startswith(_URL_READERS)]
    return modules[-1].startswith(_URL_READERS) and asking[-1].startswith("penstock.")


def _modules(error: Exception) -> list[str]:
    """The modules that it went through, the one that raised it last."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return [str(frame.f_globals.get("__name__", "")) for frame in frames] or [""]
