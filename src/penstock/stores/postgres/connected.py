"""A connection to PostgreSQL that heals by itself, and transactions under the rules on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

import asyncpg

from penstock.core.clock import Clock
from penstock.core.commands import Swept
from penstock.core.errors import StoreUnavailable
from penstock.core.wakeups import Wakeups
from penstock.stores.postgres.migrate import check, migrate
from penstock.stores.postgres.rules import Moved, Session, sql
from penstock.stores.wakeups import from_url

Answer = TypeVar("Answer")

_AGAIN = (
    asyncpg.UniqueViolationError,  # two callers made the same row; the second look finds the first's
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    Moved,
)
MOST_TRIES = 20
MOST_WAITS = 12
"""For locks, each as long as `lock_timeout` below: a caller's own transaction may keep us waiting for a minute."""
_OUT_OF_REACH = (
    OSError,  # among them TimeoutError: a connection that hangs half-open
    asyncpg.PostgresConnectionError,
    asyncpg.InternalClientError,
    asyncpg.InterfaceError,  # what asyncpg makes of a connection that died inside a transaction
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InsufficientResourcesError,  # no connection, no memory, no room on the disk
    asyncpg.PostgresIOError,
    asyncpg.InternalServerError,  # of these only what _is_the_databases says
)
_ON_FILES = ("md.c", "fd.c", "buffile.c", "xlog.c")
_LONGEST_COMMAND_SECONDS = 60

_SETTINGS = {
    # Hot tables change faster than their statistics: a plan made when one was empty must not read all of it.
    # Without them every index looks alike to a planner that believes the table empty; the sorted one must win.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    # A process that is stopped in the middle of a transaction must not keep the locks it has there. One stopped between
    # a statement's parsing and its execution counts as active: whoever has waited so long for its lock ends it.
    "idle_in_transaction_session_timeout": "10s",
    "lock_timeout": "5s",
}
_SET_SO = "; ".join(f"SET LOCAL {name} = '{value}'" for name, value in _SETTINGS.items())

logger = logging.getLogger("penstock.postgres")


class _NotOurSession(Exception):
    """What was set when connecting is not set: something stands between us and the database."""


def _is_the_databases(error: Exception) -> bool:
    """Whether the database is in trouble, and not something wrong that we would only do again."""
    if isinstance(error, asyncpg.InterfaceError):
        return "clos" in str(error)  # else it is not the connection: we have used it wrongly
    if isinstance(error, asyncpg.InternalServerError):
        # A disk quota or a limit on file sizes has no code of its own; the file of PostgreSQL's source tells it apart.
        return type(error) is asyncpg.InternalServerError and error.server_source_filename in _ON_FILES
    return True


async def _leave_as_it_is(connection: Any) -> None:
    """Nothing to clean up: no session state is ever set, and a round trip per call is saved."""


async def _end_the_stuck(connection: Any) -> None:
    for pid in await connection.fetch(sql("end_the_stuck")):
        logger.warning(
            "ended the session %d, whose process has stopped in a transaction and kept its locks", pid[0]
        )


class Connected:
    """A pool of connections, and the two ways to use one: a single statement, or a transaction under the rules."""

    def __init__(
        self,
        url: str,
        clock: Clock | None = None,
        *,
        connections: int = 10,
        patience_seconds: float = 10,
        pooled: bool = False,
        wakeups: Wakeups | None = None,
        migrates: bool = False,
    ) -> None:
        """`patience_seconds` is how long a call waits for a database that cannot be reached.

        `pooled` asks nothing of a session that a transaction-mode pooler such as PgBouncer cannot give: no setting,
        no prepared statement. One that shows itself at the start is noticed without it. `migrates` brings the schema
        up to date first.
        """
        self._url = url
        self._where = urlsplit(url).netloc.rpartition("@")[2] or "its usual place"
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._connections = connections
        self._pooled = pooled
        self._migrates = migrates
        self.wakeups = from_url(url) if wakeups is None else wakeups
        self._pool: Any = None
        self._opening = asyncio.Lock()

    async def now(self) -> datetime:
        return await self._reach(self._now)

    async def _by_rules(
        self, tenant: str, run: Callable[[Session], Awaitable[Answer]], *, repeatable: bool = True
    ) -> Answer:
        """Load, decide and write down in one transaction.

        `repeatable` says that a commit whose outcome is unknown may be tried again without changing the answer's sense.
        """
        committing = False

        async def work(connection: Any) -> Answer:
            nonlocal committing
            if committing and not repeatable:
                raise StoreUnavailable(
                    "PostgreSQL", "the connection was lost in the commit; look before you try again"
                )
            committing = False
            async with self._transaction(connection):
                session = Session(connection, tenant, await self._now(connection))
                answer = await run(session)
                await session.save()
                committing = True
            self.wakeups.wake(tenant, session.rules.ledger.stirred)
            return answer

        return await self._reach(work)

    @asynccontextmanager
    async def _transaction(self, connection: Any) -> AsyncIterator[None]:
        async with connection.transaction():
            if self._pooled:
                await connection.execute(_SET_SO)
            yield

    async def _fetch(self, statement: str, *values: Any) -> list[Any]:
        """Run one statement that is a transaction of its own."""

        async def fetch(connection: Any) -> list[Any]:
            if not self._pooled:
                found: list[Any] = await connection.fetch(statement, *values)
                return found
            # What is set must hold for this statement and for nothing else that meets the same session.
            async with self._transaction(connection):
                found = await connection.fetch(statement, *values)
            return found

        return await self._reach(fetch)

    async def _reach(self, work: Callable[[Any], Awaitable[Answer]]) -> Answer:
        """Do something with a connection; again if others were first, and while the database cannot be reached."""
        loop = asyncio.get_running_loop()
        deadline, tries, waits, pause = loop.time() + self._patience_seconds, 0, 0, 0.02
        while True:
            try:
                return await self._with_connection(work)
            except _AGAIN:
                tries += 1
                if tries == MOST_TRIES:
                    raise
            except asyncpg.LockNotAvailableError as error:
                waits += 1
                if waits == MOST_WAITS:
                    raise StoreUnavailable(
                        "PostgreSQL", f"another transaction keeps its locks: {error}"
                    ) from error
                await self._with_connection(_end_the_stuck)
            except _OUT_OF_REACH as error:
                if not _is_the_databases(error):
                    raise
                if loop.time() + pause > deadline:
                    reason = f"{type(error).__name__}: {error}".rstrip(": ")
                    raise StoreUnavailable("PostgreSQL", reason) from error
                logger.warning(
                    "PostgreSQL at %s is out of reach, trying again in %.2f s: %s", self._where, pause, error
                )
                await asyncio.sleep(pause)
                pause = min(pause * 2, 1.0)

    async def _with_connection(self, work: Callable[[Any], Awaitable[Answer]]) -> Answer:
        pool = await self.pool()
        connection = await pool.acquire(timeout=self._patience_seconds)
        try:
            return await work(connection)
        finally:
            try:
                await pool.release(connection)
            except _OUT_OF_REACH as error:
                # What was done is done; doing it again because the way back failed would be wrong.
                logger.warning("a connection was lost on its way back to the pool: %s", error)

    def _given_now(self) -> datetime | None:
        return None if self._clock is None else self._clock.now()

    async def _now(self, connection: Any) -> datetime:
        """The store's time: the database's, unless a test has brought its own."""
        if self._clock is not None:
            return self._clock.now()
        moment: datetime = await connection.fetchval("SELECT now()")
        return moment

    async def pool(self) -> Any:
        if self._pool is None:
            async with self._opening:
                if self._pool is None:
                    self._pool = await self._open()
        return self._pool

    async def _open(self) -> Any:
        if self._migrates:
            await migrate(self._url)
        if not self._pooled:
            try:
                return await self._open_with(_SETTINGS)
            except (asyncpg.ProtocolViolationError, _NotOurSession) as error:
                logger.warning(
                    "%s; PostgreSQL is used as behind a transaction-mode pooler: safely, with more round trips. "
                    "Give the URL of the database itself, or pooled=True to say that this is meant",
                    error,
                )
                self._pooled = True
        return await self._open_with({})

    async def _open_with(self, settings: dict[str, str]) -> Any:
        pool = await asyncpg.create_pool(
            self._url,
            min_size=1,
            max_size=self._connections,
            timeout=self._patience_seconds,
            command_timeout=_LONGEST_COMMAND_SECONDS,
            reset=_leave_as_it_is,
            statement_cache_size=0 if self._pooled else 100,
            server_settings={"application_name": "penstock", **settings},
        )
        try:
            async with pool.acquire() as connection, connection.transaction():
                for name, value in settings.items():
                    if await connection.fetchval(f"SHOW {name}") != value:
                        raise _NotOurSession(f"the setting {name} did not reach the session")
                await check(connection)  # a schema this code does not know is refused before it is touched
        except BaseException:
            pool.terminate()
            raise
        return pool

    async def close(self) -> None:
        await self.wakeups.close()
        if self._pool is not None:
            await self._pool.close()
            self._pool = None

    async def _catch_up(self, tenant: str) -> Swept:
        """Let everything happen that time alone has made happen."""
        if not await self._fetch(sql("overdue"), tenant, self._given_now()):
            return Swept()

        async def run(session: Session) -> Swept:
            await session.load([])
            return session.rules.advance(session.now)

        return await self._by_rules(tenant, run)
