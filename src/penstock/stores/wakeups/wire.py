"""Wake-ups between processes, whatever carries them: gather, send, hear, and heal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import islice
from random import Random
from typing import Protocol

from penstock.core.wakeups import Bell, WakeupsStatus
from penstock.stores.wakeups.bells import LocalBell, Switchboard, Topic
from penstock.stores.wakeups.loop import Loop, logger

GATHER_SECONDS = 0.01
SEND_SECONDS = 5.0
HEARD_SECONDS = 5.0
CLOSE_SECONDS = 2.0
MOST_SENT = 500
MOST_PENDING = 10_000


class Speaker(Protocol):
    """An open connection to send on. Every failure raises; the connection is then given up."""

    async def say(self, topics: Sequence[Topic]) -> None:
        """Send one message for each topic."""
        ...

    async def ping(self) -> None:
        """Return if the connection is alive."""
        ...


class Line(Protocol):
    """A kind of server that carries messages from process to process."""

    name: str
    ping_seconds: float

    def speak(self) -> AbstractAsyncContextManager[Speaker]: ...

    async def hear(self, switchboard: Switchboard, up: Callable[[], None]) -> None:
        """Connect, call `up`, and ring the switchboard for every message, until the connection is lost: then raise.

        Each topic is rung once when it begins to be heard: what came before was missed. A connection that
        says nothing for `ping_seconds` is asked whether it is alive.
        """
        ...

    def hears(self, topic: Topic) -> bool:
        """Whether a message for this topic, sent from now on, will ring the switchboard."""
        ...

    def changed(self, topic: Topic) -> None:
        """The topic has got its first bell or lost its last."""
        ...


class Mouth:
    """Sends topics, each at most once per gathering time.

    The first goes out at once; what comes while it is on its way, or within the gathering time behind it,
    goes out together. What could not be sent is kept, within bounds, until the server is back.
    """

    def __init__(self, line: Line, random: Random, gather_seconds: float) -> None:
        self.loop = Loop(f"sending wake-ups by {line.name}", self._session, random)
        self._line = line
        self._gather_seconds = gather_seconds
        self._pending: dict[Topic, None] = {}
        self._has_pending = asyncio.Event()
        self._all_sent = asyncio.Event()
        self._all_sent.set()

    def add(self, topics: Iterable[Topic]) -> None:
        self.loop.start()
        room = MOST_PENDING - len(self._pending)
        self._pending.update(dict.fromkeys(islice(topics, max(room, 0))))
        if self._pending:
            self._has_pending.set()
            self._all_sent.clear()

    async def finish(self) -> None:
        """Give what is pending a moment to go out, unless the server is known to be away; then end."""
        try:
            if self.loop.problem is None:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._all_sent.wait()
        except TimeoutError:
            pass
        finally:
            await self.loop.close()

    async def _session(self, up: Callable[[], None]) -> None:
        async with self._line.speak() as speaker:
            up()
            while True:
                if await self._something_to_say():
                    await self._say_some(speaker)
                    await asyncio.sleep(self._gather_seconds)
                else:
                    async with asyncio.timeout(self._line.ping_seconds):
                        await speaker.ping()

    async def _something_to_say(self) -> bool:
        try:
            async with asyncio.timeout(self._line.ping_seconds):
                await self._has_pending.wait()
        except TimeoutError:
            return False
        return True

    async def _say_some(self, speaker: Speaker) -> None:
        # Taken out before they are sent: a wake-up that comes meanwhile may be too late for this message.
        topics = list(islice(self._pending, MOST_SENT))
        for topic in topics:
            del self._pending[topic]
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await speaker.say(topics)
        except BaseException:
            self._pending = dict.fromkeys([*topics, *self._pending])
            raise
        if not self._pending:
            self._has_pending.clear()
            self._all_sent.set()


class WireWakeups:
    """Wake-ups over a line: one connection to speak and one to listen, each opened when first needed."""

    def __init__(self, line: Line, random: Random, gather_seconds: float = GATHER_SECONDS) -> None:
        self._line = line
        self._switchboard = Switchboard(line.changed)
        self._mouth = Mouth(line, random, gather_seconds)
        self._ear = Loop(
            f"listening for wake-ups by {line.name}", lambda up: line.hear(self._switchboard, up), random
        )
        self._is_closed = False

    def wake(self, tenant: str, queues: Iterable[str]) -> None:
        if self._is_closed:
            return
        try:
            # First of all, because it refuses a caller from another thread, where nothing below is safe.
            asyncio.get_running_loop()
            topics = [Topic(tenant, queue) for queue in queues]
            for topic in topics:
                self._switchboard.ring(topic)
            self._mouth.add(topics)
        except Exception:
            # The caller's jobs are committed; an error here would make it believe otherwise.
            logger.exception("a wake-up for tenant %r was not sent", tenant)

    def listen(self, tenant: str, queues: Iterable[str]) -> AbstractAsyncContextManager[Bell]:
        return self._listen(tenant, queues)

    @asynccontextmanager
    async def _listen(self, tenant: str, queues: Iterable[str]) -> AsyncIterator[Bell]:
        with self._switchboard.bell(tenant, queues) as bell:
            if not self._is_closed:
                self._ear.start()
                await self._until_heard(bell)
            # What was rung until now is what the caller's first look will see.
            bell.hush()
            yield bell

    async def _until_heard(self, bell: LocalBell) -> None:
        try:
            async with asyncio.timeout(HEARD_SECONDS):
                await self._ear.tried()
                # A topic is rung when it begins to be heard, so the bell itself tells when to look again.
                while self._ear.problem is None and not all(map(self._line.hears, bell.topics)):
                    await bell.wait(HEARD_SECONDS)
        except TimeoutError:
            # Not heard yet: the bell rings when it is, and until then its owner polls.
            pass

    async def start(self) -> None:
        if not self._is_closed:
            for loop in (self._ear, self._mouth.loop):
                loop.start()
            for loop in (self._ear, self._mouth.loop):
                await loop.tried()

    def status(self) -> WakeupsStatus:
        loops = {"listening": self._ear, "sending": self._mouth.loop}
        started = {verb: loop for verb, loop in loops.items() if loop.is_started}
        problems = [
            f"{verb}: {loop.problem or 'connecting'}" for verb, loop in started.items() if not loop.is_up
        ]
        if problems or not started:
            detail = "; ".join(problems) or ("closed" if self._is_closed else "not connected yet")
            return WakeupsStatus(self._line.name, healthy=False, detail=detail)
        return WakeupsStatus(self._line.name, healthy=True, detail=" and ".join(started))

    async def close(self) -> None:
        self._is_closed = True
        await asyncio.gather(self._mouth.finish(), self._ear.close())
