"""From --url and --tenant to the Queue that a command works on."""

from __future__ import annotations

import asyncio
import functools
import getpass
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import click

from penstock.connecting import Address, connect, locate
from penstock.core.errors import NotFound
from penstock.queue import Queue

if TYPE_CHECKING:
    from penstock.stores.log.layout import Format

EMBEDDED = Path(".penstock")
LOGS = ("file", "s3", "gs", "az")
IN_THIS_PROCESS = ("memory", "memory+log")
MAKING = "penstock.stores.log.layout"
"""Who says that a store was made."""
Options = ParamSpec("Options")

url_option = click.option(
    "--url", envvar="PENSTOCK_URL", show_envvar=True, metavar="URL",
    help="The store; without it, the embedded one under ./.penstock.",
)  # fmt: skip
tenant_option = click.option(
    "--tenant", envvar="PENSTOCK_TENANT", show_envvar=True, default="default", show_default=True, metavar="NAME",
    help="Whose jobs.",
)  # fmt: skip


def on_store(
    run: Callable[Concatenate[Queue, Options], Awaitable[int | None]], *, makes: bool = False
) -> Callable[..., None]:
    """A command that asks a store: it is called with the Queue, and what it returns is the exit code."""

    @functools.wraps(run)
    def command(url: str | None, tenant: str, **options: Any) -> None:
        async def within() -> int | None:
            async with opened(url, tenant, makes=makes) as queue:
                return await run(queue, **options)  # type: ignore[call-arg]

        click.get_current_context().exit(asyncio.run(within()) or 0)

    return url_option(tenant_option(command))


on_store_or_new = functools.partial(on_store, makes=True)
"""A command that puts something into a store, and may be the first to do so."""


@asynccontextmanager
async def opened(url: str | None, tenant: str, *, makes: bool = False) -> AsyncIterator[Queue]:
    """The store that is there; a log that is not is made only for one who puts something in."""
    asyncio.get_running_loop().set_exception_handler(_left_behind)
    with _troubles_told():
        await _check_there(url or "", makes)
        address = await asyncio.to_thread(_located, url)
        try:
            async with connect(address.url, tenant=tenant, actor=actor(), migrates=address.migrates) as queue:
                yield queue
        finally:
            address.close()


async def _check_there(url: str, makes: bool) -> None:
    scheme = url.partition(":")[0]
    if makes and scheme in IN_THIS_PROCESS:
        raise click.UsageError(
            f"{scheme}:// keeps nothing when this command ends; let --url or PENSTOCK_URL name a store that stays"
        )
    if not makes and scheme in LOGS:
        await found_log(url)


async def found_log(url: str) -> Format:
    """What a place for logs is. Where none is yet nothing is made: it may be mistyped, and would look like an empty one."""
    from penstock.stores.log.backings import open_backing
    from penstock.stores.log.layout import found_layout
    from penstock.stores.log.options import read_options

    backing = open_backing(url)
    try:
        found = await found_layout(backing, read_options(url)[1].shards)
    finally:
        await backing.close()
    if found is None:
        raise NotFound(f"there is no log in {backing.name} yet; look at its name")
    return found


def _located(url: str | None) -> Address:
    if url is None and not EMBEDDED.exists():
        click.echo(f"penstock: making a store in {EMBEDDED.resolve()}; PENSTOCK_URL names another", err=True)
    return locate(url, EMBEDDED)


def actor() -> str:
    """Who the audit trail says it was."""
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError):  # a container's user may have no name
        return f"cli:{os.getuid()}"


def _left_behind(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A connection that was lost while asyncpg opened it has been tried again; nobody needs to hear of it twice."""
    if not isinstance(context.get("exception"), ConnectionError):
        loop.default_exception_handler(context)


@contextmanager
def _troubles_told() -> Iterator[None]:
    """Let the library's warnings be heard, each kind once: a store that is away is tried again many times.

    And that it has made a store: what this command was to put in is there, and nobody may look for it.
    """
    logger, making, handler = logging.getLogger("penstock"), logging.getLogger(MAKING), _Once()
    propagated, logger.propagate = logger.propagate, False
    level = making.level
    making.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        making.setLevel(level)
        logger.propagate = propagated


class _Once(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg not in self._told:
            self._told.add(record.msg)
            click.echo(f"penstock: {record.getMessage()}", err=True)
