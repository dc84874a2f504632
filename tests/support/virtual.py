"""An event loop whose time passes only when nothing else is left to do: hours take as long as their events."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class Stuck(BaseException):
    """Everybody waits for something that will not come."""


class _Selector(selectors.DefaultSelector):
    """Lets the time pass instead of waiting; for what threads and sockets have ready it only looks."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if found := super().select(0):
            return found
        if timeout is None:
            raise Stuck
        self.loop.now += max(timeout, 0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Deterministic as long as no thread and no socket is used in it."""

    def __init__(self) -> None:
        self.now = 1_000.0  # not 0: whoever last did something at no time at all did it long ago
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def run(main: Coroutine[Any, Any, Answer]) -> Answer:
    """Run to the end in a virtual loop, and cancel what is left."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(_cancel_the_rest())
        loop.close()


async def _cancel_the_rest() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
