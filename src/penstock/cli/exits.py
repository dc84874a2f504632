"""How a command ends: what its exit code tells a script, and the one line that tells a person what was refused."""

from __future__ import annotations

import sys
from enum import IntEnum
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
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNREACHABLE = 5


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
    "embedded": Exit.UNREACHABLE,
    "schema": Exit.REFUSED,
    "migration": Exit.REFUSED,
    "lake": Exit.REFUSED,
}
"""Errors of parts that come with an extra, by how their codes begin."""


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
    return _EXITS_BY_CODE.get(error.code.partition("_")[0], Exit.FAILED)


def refused_by_driver(error: Exception) -> Refused | None:
    """What a database's driver says before there is a store: a wrong password, no such database, a bad URL."""
    asyncpg = sys.modules.get("asyncpg")
    if asyncpg is None:
        return None
    said = " ".join(str(error).split())
    if isinstance(error, ValueError) and _raised_in(error).startswith("asyncpg."):
        return Refused(f"cannot read the URL: {said}", Exit.USAGE)
    if isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError):
        return Refused(f"the database refuses: {said}", Exit.UNREACHABLE)
    return None


def _raised_in(error: Exception) -> str:
    """The module that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
