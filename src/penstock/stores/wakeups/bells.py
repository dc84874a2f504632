"""The bells of one process, and who rings them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Topic(NamedTuple):
    """What a wake-up is about."""

    tenant: str
    queue: str

    @property
    def text(self) -> str:
        """The topic on the wire. A space parts it: names may hold slashes and colons, but never a space."""
        return f"{self.tenant} {self.queue}"


class LocalBell:
    """Remembers which queues were rung until somebody asks: level-triggered, so no ring falls between two waits."""

    def __init__(self, topics: frozenset[Topic]) -> None:
        self.topics = topics
        self._rung: set[str] = set()
        self._any_rung = asyncio.Event()

    def ring(self, queue: str) -> None:
        self._rung.add(queue)
        self._any_rung.set()

    def hush(self) -> frozenset[str]:
        """Forget what was rung, and say what it was."""
        rung = frozenset(self._rung)
        self._rung.clear()
        self._any_rung.clear()
        return rung

    async def wait(self, timeout_seconds: float) -> frozenset[str]:
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._any_rung.wait()
        except TimeoutError:
            pass
        # Only here, with no await behind it: a wait that is cancelled has taken nothing away.
        return self.hush()


class Switchboard:
    """Which bells hang on which topic. `on_change` is told when a topic gets its first bell or loses its last."""

    def __init__(self, on_change: Callable[[Topic], None] = lambda topic: None) -> None:
        self._bells: dict[Topic, dict[LocalBell, None]] = {}
        """In the order in which they were hung, which is that in which they ring."""
        self._on_change = on_change

    def __contains__(self, topic: Topic) -> bool:
        return topic in self._bells

    def topics(self) -> set[Topic]:
        return set(self._bells)

    @contextmanager
    def bell(self, tenant: str, queues: Iterable[str]) -> Iterator[LocalBell]:
        """A bell that hangs here while the block runs."""
        bell = LocalBell(frozenset(Topic(tenant, queue) for queue in queues))
        for topic in bell.topics:
            self._hang(topic, bell)
        try:
            yield bell
        finally:
            for topic in bell.topics:
                self._take_down(topic, bell)

    def _hang(self, topic: Topic, bell: LocalBell) -> None:
        if topic not in self._bells:
            self._bells[topic] = {}
            self._on_change(topic)
        self._bells[topic][bell] = None

    def _take_down(self, topic: Topic, bell: LocalBell) -> None:
        del self._bells[topic][bell]
        if not self._bells[topic]:
            del self._bells[topic]
            self._on_change(topic)

    def ring(self, topic: Topic) -> None:
        for bell in self._bells.get(topic, ()):
            bell.ring(topic.queue)

    def ring_all(self) -> None:
        for topic in self._bells:
            self.ring(topic)
