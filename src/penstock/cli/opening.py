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
from typing import Any, Concatenate, ParamSpec
from urllib.parse import unquote, urlsplit

import click

from penstock.connecting import Address, connect, locate
from penstock.queue import Queue

EMBEDDED = Path(".penstock")
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
    run: Callable[Concatenate[Queue, Options], Awaitable[int | None]],
) -> Callable[..., None]:
    """A command that asks a store: it is called with the Queue, and what it returns is the exit code."""

    @functools.wraps(run)
    def command(url: str | None, tenant: str, **options: Any) -> None:
        async def within() -> int | None:
            async with opened(url, tenant) as queue:
                return await run(queue, **options)  # type: ignore[call-arg]

        click.get_current_context().exit(asyncio.run(within()) or 0)

    return url_option(tenant_option(command))


@asynccontextmanager
async def opened(url: str | None, tenant: str) -> AsyncIterator[Queue]:
    asyncio.get_running_loop().set_exception_handler(_left_behind)
    with _troubles_told():
        address = await asyncio.to_thread(_located, url)
        try:
            async with connect(address.url, tenant=tenant, actor=actor(), migrates=address.migrates) as queue:
                yield queue
        finally:
            address.close()


def _located(url: str | None) -> Address:
    if url is None and not EMBEDDED.exists():
        click.echo(f"penstock: making a store in {EMBEDDED.resolve()}; PENSTOCK_URL names another", err=True)
    if (folder := _new_folder(url)) is not None:
        click.echo(f"penstock: making a store in {folder}", err=True)
    return locate(url, EMBEDDED)


def _new_folder(url: str | None) -> Path | None:
    """The folder that a URL names and that is no store yet: it may be mistyped, and would look like an empty one."""
    parts = urlsplit(url or "")
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"}:
        return None
    folder = Path(unquote(parts.path)).absolute()
    return folder if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())) else None


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
    """Let the library's warnings be heard, each kind once: a store that is away is tried again many times."""
    logger, handler = logging.getLogger("penstock"), _Once()
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated


class _Once(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg not in self._told:
            self._told.add(record.msg)
            click.echo(f"penstock: {record.getMessage()}", err=True)
