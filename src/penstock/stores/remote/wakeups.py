"""Wake-ups of a service: one request waits for all topics of this process, and is answered when one of them rings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from random import Random

import msgspec

from penstock.core.errors import Forbidden, Unauthorized
from penstock.stores.remote.http import DEFAULT_TENANT, Http
from penstock.stores.remote.wire import MOST_TOPICS, Listen, OneTopic, Rung
from penstock.stores.wakeups.bells import Switchboard, Topic
from penstock.stores.wakeups.loop import Unfit, end
from penstock.stores.wakeups.wire import Speaker, WireWakeups

WAIT_SECONDS = 25.0
"""How long a request waits: less than what stands between client and service lets a silent one live."""
SLACK_SECONDS = 10.0

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Rung).decode


class RemoteLine:
    """Hears what rings at a service."""

    name = "http"
    ping_seconds = WAIT_SECONDS

    def __init__(self, http: Http) -> None:
        self._http = http
        self._heard: set[Topic] = set()
        self._changed = asyncio.Event()

    def speak(self) -> AbstractAsyncContextManager[Speaker]:
        raise NotImplementedError("the service rings for everyone by itself")

    def hears(self, topic: Topic) -> bool:
        return topic in self._heard

    def changed(self, topic: Topic) -> None:
        self._changed.set()

    async def hear(self, switchboard: Switchboard, up: Callable[[], None]) -> None:
        heard: str | None = None  # so the first answer tells of all: what came before was missed
        seconds = 0.0
        try:
            while True:
                self._changed.clear()
                topics = sorted(switchboard.topics())[:MOST_TOPICS]
                answer = await self._answer(topics, seconds, heard)
                if answer is None:
                    continue
                if heard is None:
                    up()
                    seconds = WAIT_SECONDS
                heard = answer.heard
                rung = {Topic(sent.tenant or DEFAULT_TENANT, sent.queue) for sent in answer.rung}
                rung |= (
                    set(topics) - self._heard
                )  # also what only a token of the service itself would be told of
                self._heard = set(topics)
                for topic in rung:
                    switchboard.ring(topic)
                if not topics:
                    await self._changed.wait()
        finally:
            self._heard.clear()

    async def _answer(self, topics: Iterable[Topic], seconds: float, heard: str | None) -> Rung | None:
        """What rang; None if meanwhile other topics are wanted: then it is asked again, and what rang is told then."""
        asking = asyncio.ensure_future(self._ask(topics, seconds, heard))
        changing = asyncio.ensure_future(self._changed.wait())
        try:
            # A first answer comes at once, and is not given up for what comes and goes meanwhile.
            waiting = [asking] if heard is None else [asking, changing]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        finally:
            await end(asking, changing)  # type: ignore[arg-type]

    async def _ask(self, topics: Iterable[Topic], seconds: float, heard: str | None) -> Rung:
        wanted = [OneTopic(queue, None if tenant == DEFAULT_TENANT else tenant) for tenant, queue in topics]
        body = _encode(Listen(wanted, seconds, heard))
        longest = seconds + SLACK_SECONDS
        try:
            # Not patient: whoever holds this line says when to come again, and that it is down until then.
            sent = await self._http.ask("wakeups", body, repeatable=False, patient=False, seconds=longest)
        except (Unauthorized, Forbidden) as error:
            raise Unfit(error.message) from None
        return _decode(sent)


class RemoteWakeups(WireWakeups):
    """Wake-ups by a service. Its store rings for everyone, so `wake` rings the bells of this process and no others."""

    def __init__(self, http: Http, random: Random) -> None:
        super().__init__(RemoteLine(http), random)

    def wake(self, tenant: str, queues: Iterable[str]) -> None:
        if not self._is_closed:
            for queue in queues:
                self._switchboard.ring(Topic(tenant, queue))

    async def start(self) -> None:
        if not self._is_closed:
            self._ear.start()
            await self._ear.tried()
