"""`penstock migrate`: the PostgreSQL schema brought up to date, shown as SQL, or checked."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NoReturn

import asyncpg
import click

from penstock.cli.exits import UNREADABLE_URL, Exit
from penstock.stores.postgres.embedded import EmbeddedError, start_async
from penstock.stores.postgres.migrate import (
    Connection,
    Migration,
    MigrationFailed,
    SchemaError,
    load,
    migrate,
    pending,
    script,
)

CONNECT_SECONDS = 10


@click.command("migrate")
@click.option(
    "--url", envvar="PENSTOCK_URL", help="The store, postgresql://…; without it, the embedded server."
)
@click.option(
    "--sql", "as_sql", is_flag=True, help="Print the SQL instead of running it; without a URL, all of it."
)
@click.option(
    "--check", is_flag=True, help="Change nothing; list what is pending, and exit with 1 if anything is."
)
def command(url: str | None, as_sql: bool, check: bool) -> None:
    """Bring the PostgreSQL schema up to date. Any number of processes may do so at once.

    Exits with 0 when it is, 1 when migrations are pending, 2 on wrong usage, 5 without a connection, and 4 when
    the database is refused: a newer version of penstock has migrated it.
    """
    if as_sql and check:
        raise click.UsageError("--sql and --check exclude each other")
    run(url, as_sql=as_sql, check=check)


def run(url: str | None, *, as_sql: bool, check: bool) -> NoReturn:
    """Do it, and leave with a code that says how it went."""
    if url is not None and url.partition("://")[0] not in ("postgresql", "postgres"):
        _leave(Exit.USAGE, "only a store at postgresql://… has a schema; there is nothing to migrate")
    try:
        sys.exit(asyncio.run(_run(url, as_sql, check)))
    except MigrationFailed as error:
        _leave(Exit.FAILED, error)
    except SchemaError as error:
        _leave(Exit.REFUSED, error)
    except (OSError, asyncpg.PostgresConnectionError) as error:
        _leave(Exit.UNREACHABLE, f"lost the connection: {error}")
    except asyncpg.PostgresError as error:
        _leave(Exit.REFUSED, error)


async def _run(url: str | None, as_sql: bool, check: bool) -> Exit:
    if as_sql and url is None:
        # Everything, for a database that nobody here can reach.
        print(script(load()), end="")
        return Exit.OK
    async with _connected(url) as connection:
        if as_sql:
            print(script(await pending(connection)), end="")
        elif check:
            lacking = await pending(connection)
            for each in lacking:
                print(each.label)
            return Exit.FAILED if lacking else Exit.OK
        else:
            _warn(await migrate(connection, on_applied=_tell))
            print("the schema is up to date")
    return Exit.OK


def _tell(applied: Migration) -> None:
    print(f"applied {applied.label}", flush=True)


def _warn(applied: Sequence[Migration]) -> None:
    breaking = [each.label for each in applied if not each.old_workers_may_run]
    # A database that was empty has no workers of earlier versions.
    if breaking and applied[0].number > 1:
        print(f"stop the workers of earlier versions: they cannot work with {', '.join(breaking)}")


@asynccontextmanager
async def _connected(url: str | None) -> AsyncIterator[Connection]:
    """A connection to the server of this URL, or to the embedded one."""
    if url is None:
        try:
            server = await start_async()
        except EmbeddedError as error:
            _leave(Exit.UNREACHABLE, error)
        async with server, _connected(server.url) as connection:
            yield connection
        return
    connection = await _connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def _connect(url: str) -> asyncpg.Connection[asyncpg.Record]:
    try:
        # No statement cache: behind a pooler a prepared statement may be gone, or somebody else's.
        return await asyncpg.connect(url, timeout=CONNECT_SECONDS, statement_cache_size=0)
    except TimeoutError:
        _leave(Exit.UNREACHABLE, f"cannot connect: no answer within {CONNECT_SECONDS} seconds")
    except (OSError, asyncpg.PostgresError) as error:
        _leave(Exit.UNREACHABLE, f"cannot connect: {error}")
    except ValueError:
        _leave(Exit.USAGE, UNREADABLE_URL)


def _leave(code: Exit, reason: object) -> NoReturn:
    print(f"penstock migrate: {reason}", file=sys.stderr)
    sys.exit(code)
