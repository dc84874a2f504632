"""Wake-ups by Redis (or Valkey) publish and subscribe: for large fleets, and where a pooler breaks LISTEN.

A channel per queue, `penstock:<tenant> <queue>`, so that a process gets messages for its own queues only.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from penstock.stores.wakeups.bells import Switchboard, Topic
from penstock.stores.wakeups.loop import end
from penstock.stores.wakeups.wire import Speaker

PREFIX = "penstock:"
PING_SECONDS = 15.0
CONNECT_SECONDS = 5.0
HELLO = f"{PREFIX}hello"


class RedisLine:
    """Carries messages through a Redis server."""

    name = "redis"

    def __init__(self, url: str, ping_seconds: float = PING_SECONDS) -> None:
        self.ping_seconds = ping_seconds
        self._url = url
        self._own = secrets.token_hex(8).encode()
        self._heard: set[Topic] = set()
        self._changed: set[Topic] = set()
        self._any_changed = asyncio.Event()

    def speak(self) -> AbstractAsyncContextManager[Speaker]:
        return self._speak()

    @asynccontextmanager
    async def _speak(self) -> AsyncIterator[Speaker]:
        async with self._client() as client:
            await client.ping()
            yield RedisSpeaker(client, self._own)

    async def hear(self, switchboard: Switchboard, up: Callable[[], None]) -> None:
        async with self._client() as client, client.pubsub() as pubsub:
            # Nothing is ever sent there: the answer shows that subscribing works, and that there is no
            # moment without a subscription, in which Redis would speak another dialect.
            await pubsub.subscribe(HELLO)
            await self._next_message(pubsub)
            up()
            following = asyncio.create_task(self._follow(pubsub, switchboard))
            reading = asyncio.create_task(self._read(pubsub, switchboard))
            try:
                await asyncio.wait([following, reading], return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._heard.clear()
                await end(following, reading)
            errors = [task.exception() for task in (following, reading) if not task.cancelled()]
            raise next(filter(None, errors))

    def hears(self, topic: Topic) -> bool:
        return topic in self._heard

    def changed(self, topic: Topic) -> None:
        self._changed.add(topic)
        self._any_changed.set()

    async def _follow(self, pubsub: PubSub, switchboard: Switchboard) -> None:
        """Keep the subscriptions equal to the topics that have bells."""
        followed: set[Topic] = set()
        self._changed |= switchboard.topics()
        while True:
            changed, self._changed = self._changed, set()
            self._any_changed.clear()
            wanted = {topic for topic in changed if topic in switchboard}
            new, old = wanted - followed, (changed - wanted) & followed
            followed = (followed | new) - old
            self._heard -= old
            if new:
                await pubsub.subscribe(*_channels(new))
            if old:
                await pubsub.unsubscribe(*_channels(old))
            await self._any_changed.wait()

    async def _read(self, pubsub: PubSub, switchboard: Switchboard) -> None:
        while True:
            kind, channel, data = await self._next_message(pubsub)
            tenant, _, queue = channel.removeprefix(PREFIX).partition(" ")
            topic = Topic(tenant, queue)
            if kind == "subscribe":
                self._heard.add(topic)
                switchboard.ring(topic)
            elif kind == "unsubscribe":
                self._heard.discard(topic)
            elif kind == "message" and data != self._own:
                # Its own messages come back too, but the bells of this process rang before they were sent.
                switchboard.ring(topic)

    async def _next_message(self, pubsub: PubSub) -> tuple[str, str, bytes]:
        """The kind, channel and data of what comes next. Asks a silent server whether it is alive."""
        message = await pubsub.get_message(timeout=self.ping_seconds)
        if message is None:
            await pubsub.ping()
            message = await pubsub.get_message(timeout=self.ping_seconds)
        if message is None:
            raise ConnectionError("the server no longer answers")
        return message["type"], (message["channel"] or b"").decode(errors="replace"), message["data"]

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Redis]:
        # It must not retry or reconnect behind our back: then nobody would know that something was missed.
        client = Redis.from_url(
            self._url,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=self.ping_seconds,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_keepalive=True,
            client_name="penstock-wakeups",
        )
        try:
            yield client
        finally:
            await client.aclose()


class RedisSpeaker:
    """Sends through one connection, each batch in one round trip."""

    def __init__(self, client: Redis, own: bytes) -> None:
        self._client = client
        self._own = own

    async def say(self, topics: Sequence[Topic]) -> None:
        async with self._client.pipeline(transaction=False) as pipeline:
            for channel in _channels(topics):
                pipeline.publish(channel, self._own)
            await pipeline.execute()

    async def ping(self) -> None:
        await self._client.ping()


def _channels(topics: Iterable[Topic]) -> list[str]:
    return [PREFIX + topic.text for topic in topics]
