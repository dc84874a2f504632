"""Wake-ups by PostgreSQL's LISTEN and NOTIFY, on connections of their own.

One channel for all. A message is the tenant, a space and the queue, so SQL can send one by hand or within
a transaction of its own: `SELECT pg_notify('penstock', 'default emails')`. Behind another space may stand
who sent it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import asyncpg

from penstock.stores.wakeups.bells import Switchboard, Topic
from penstock.stores.wakeups.loop import Unfit
from penstock.stores.wakeups.wire import Speaker

CHANNEL = "penstock"
PING_SECONDS = 15.0
PROBE_SECONDS = 3.0


class PostgresLine:
    """Carries messages through a PostgreSQL server.

    Nothing here leaves a setting behind in its session: behind a pooler the session is also someone
    else's, and `synchronous_commit = off` in it would cost them committed jobs.
    """

    name = "postgres"

    def __init__(self, url: str, ping_seconds: float = PING_SECONDS) -> None:
        self.ping_seconds = ping_seconds
        self._url = url
        self._own = secrets.token_hex(8)
        self._is_listening = False

    def speak(self) -> AbstractAsyncContextManager[Speaker]:
        return self._speak()

    @asynccontextmanager
    async def _speak(self) -> AsyncIterator[Speaker]:
        async with self._connection() as connection:
            yield PostgresSpeaker(connection, self._own)

    async def hear(self, switchboard: Switchboard, up: Callable[[], None]) -> None:
        def on_message(connection: object, pid: int, channel: str, payload: object) -> None:
            tenant, queue, sender, *_ = f"{payload}   ".split(" ")
            # Its own messages come back too, but the bells of this process rang before they were sent.
            if sender != self._own:
                switchboard.ring(Topic(tenant, queue))

        async with self._connection() as connection:
            lost = asyncio.Event()
            connection.add_termination_listener(lambda connection: lost.set())
            # In a transaction, because it takes two messages: a pooler may not change sessions in between.
            async with connection.transaction():
                await connection.add_listener(CHANNEL, on_message)
            await self._probe(connection)
            self._is_listening = True
            try:
                up()
                switchboard.ring_all()
                await self._until_lost(connection, lost)
            finally:
                self._is_listening = False

    def hears(self, topic: Topic) -> bool:
        return self._is_listening

    def changed(self, topic: Topic) -> None:
        pass

    async def _until_lost(self, connection: asyncpg.Connection, lost: asyncio.Event) -> None:
        while True:
            try:
                async with asyncio.timeout(self.ping_seconds):
                    await lost.wait()
                raise ConnectionError("the server closed the connection")
            except TimeoutError:
                # Half-open connections say nothing, for ever; only a question finds out.
                await connection.execute("SELECT 1", timeout=self.ping_seconds)

    async def _probe(self, connection: asyncpg.Connection) -> None:
        """Make sure that what another connection sends arrives here.

        Another one: behind a transaction-mode pooler a session hears itself, and nobody else. On a channel
        of its own, so that a fleet that reconnects all at once does not wake itself.
        """
        channel, arrived = f"{CHANNEL}_probe_{secrets.token_hex(8)}", asyncio.Event()

        def on_message(*message: object) -> None:
            arrived.set()

        async with connection.transaction():
            await connection.add_listener(channel, on_message)
        async with self._connection() as other:
            await other.execute(f"NOTIFY {channel}")
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await arrived.wait()
        except TimeoutError:
            await connection.execute(f"UNLISTEN {CHANNEL}; UNLISTEN {channel}")
            raise Unfit(
                "LISTEN has no effect through this connection, as behind a transaction-mode pooler; "
                "set PENSTOCK_WAKEUPS to a direct postgresql:// URL, or to redis://"
            ) from None

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection]:
        # No prepared statements: through a pooler the next statement may meet another session.
        connection = await asyncpg.connect(
            self._url, statement_cache_size=0, server_settings={"application_name": "penstock wake-ups"}
        )
        try:
            yield connection
        finally:
            # Not close(): it waits for a server that may never answer.
            connection.terminate()


class PostgresSpeaker:
    """Sends through one connection, each batch in a transaction of its own that waits for no disk."""

    def __init__(self, connection: asyncpg.Connection, own: str) -> None:
        self._connection = connection
        self._own = own

    async def say(self, topics: Sequence[Topic]) -> None:
        # One string without parameters is one round trip and one transaction, in one session.
        await self._connection.execute(
            "BEGIN; SET LOCAL synchronous_commit = off; "
            + "".join(f"NOTIFY {CHANNEL}, {_quoted(f'{topic.text} {self._own}')}; " for topic in topics)
            + "COMMIT"
        )

    async def ping(self) -> None:
        await self._connection.execute("SELECT 1")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
