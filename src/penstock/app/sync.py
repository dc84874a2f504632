"""The same verbs for code that is not async: one thin wrapper, and a thread with an event loop behind it."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any


class Portal:
    """Runs coroutines for threads that have no event loop.

    In the event loop that the app is already used in, if one runs: a store in memory belongs to that one. Otherwise in
    a loop of its own, in a thread that starts at the first call.
    """

    def __init__(self, home: Callable[[], asyncio.AbstractEventLoop | None]) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not None:
            coroutine.close()
            raise RuntimeError(
                "an event loop runs in this thread, which .sync would block: await the same call without .sync"
            )
        loop = self._home() or self._own()
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    def _own(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="penstock sync", daemon=True
                )
                self._thread.start()
            return self._loop

    @property
    def own_loop(self) -> asyncio.AbstractEventLoop | None:
        return self._loop

    def close(self) -> None:
        with self._lock:
            if self._loop is not None and self._thread is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()
            self._loop = self._thread = None


class Sync:
    """Whatever the thing behind it can do, without await. What it answers can be asked without await too, by its own `.sync`."""

    def __init__(self, target: Any, portal: Portal) -> None:
        self._target = target
        self._portal = portal

    def __getattr__(self, name: str) -> Any:
        # A verb may have a form that must run in the caller's thread, because the caller's connection does.
        here = getattr(self._target, f"{name}_here", None)
        verb = getattr(self._target, name)
        if not inspect.iscoroutinefunction(verb):
            return verb

        @functools.wraps(verb)
        def call(*args: Any, **kwargs: Any) -> Any:
            if here is not None and (found := here(*args, **kwargs)) is not None:
                return found
            return self._portal.call(verb(*args, **kwargs))

        return call

    def __repr__(self) -> str:
        return f"{self._target!r}.sync"
