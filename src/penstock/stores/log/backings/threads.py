"""Blocking calls away from the event loop, in threads that keep no process alive and are noticed after a fork."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from penstock.core.errors import StoreUnavailable
from penstock.stores.log.errors import OpenedElsewhere

Answer = TypeVar("Answer")


class Threads:
    """At most so many threads, started when needed. With one, calls are made in the order they came.

    They are daemons: a call stuck in the kernel must not keep the process from ending, and whatever is cut
    off then is no worse than after `kill -9`.
    """

    def __init__(self, store: str, most: int = 1) -> None:
        self._store, self._most = store, most
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._mutex = threading.Lock()
        self._started = 0
        self._idle = threading.Semaphore(0)
        self._closed = False
        self._pid = os.getpid()

    def check_process(self) -> None:
        """Raise in a forked child, where the threads are not."""
        if os.getpid() != self._pid:
            raise OpenedElsewhere(self._store, self._pid, os.getpid())

    def call(self, run: Callable[[], None]) -> None:
        """Have it called; it must not raise."""
        self.check_process()
        with self._mutex:
            if self._closed:
                raise StoreUnavailable(self._store, "it was closed here")
            self._calls.put(run)
            if self._started < self._most and not self._idle.acquire(blocking=False):
                self._started += 1
                threading.Thread(target=self._work, name="penstock-log", daemon=True).start()

    async def run(self, function: Callable[..., Answer], *args: Any) -> Answer:
        """Await its answer, or its exception."""
        self.check_process()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                answer = function(*args)
            except BaseException as error:
                tell(loop, [(future, error)])
            else:
                tell(loop, [(future, answer)])

        self.call(run)
        return await future

    def close(self) -> None:
        """Let the threads end when they have done what was asked of them."""
        with self._mutex:
            if not self._closed and os.getpid() == self._pid:
                self._closed = True
                for _ in range(self._started):
                    self._calls.put(None)

    def _work(self) -> None:
        while (run := self._next()) is not None:
            run()
            del run  # or its data would live until the next call

    def _next(self) -> Callable[[], None] | None:
        try:
            return self._calls.get_nowait()
        except Empty:
            self._idle.release()
            return self._calls.get()


def tell(loop: asyncio.AbstractEventLoop, answers: list[tuple[asyncio.Future[Any], Any]]) -> None:
    """Hand answers over to the loop they are awaited in, if it still runs."""

    def hand_over() -> None:
        for future, answer in answers:
            if future.done():
                continue
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    try:
        loop.call_soon_threadsafe(hand_over)
    except RuntimeError:  # closed meanwhile: there is nobody left to tell
        pass
