"""Handlers that run in processes of their own, which can be killed, capped and lost without harm to the worker."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from penstock.core import bounds
from penstock.core.commands import Leased
from penstock.worker import children, finding
from penstock.worker.children import Child, Died
from penstock.worker.context import JobContext
from penstock.worker.execution import Ending, How, begin
from penstock.worker.handlers import Handler


class ProcessPool:
    """At most so many child processes, started when they are needed and kept warm for the next job.

    A run holds one of `most` places; who waits for one is served in order. A child that is leaving keeps the place
    of its run until it is gone, so that there are never more. An idle child takes the next job of any handler with
    the same memory cap; if only others are idle and no room is left, the one idle for longest makes room.
    """

    def __init__(self, most: int = 4) -> None:
        if most < 1:
            raise ValueError(f"a pool needs room for at least one process, not {most}")
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise RuntimeError(
                "a child process imports the program's main module, and that starts a pool of processes again: "
                'put what starts the worker under `if __name__ == "__main__":`'
            )
        self._places = asyncio.Semaphore(most)
        self._most = most
        self._children: set[Child] = set()
        self._idle: list[Child] = []
        """The one idle for longest first."""
        self._leaving: set[asyncio.Task[None]] = set()
        self._starting = 0
        # One thread for as long as there are children: see `children.start`.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="penstock-starter")
        self._closed = asyncio.Event()

    @property
    def pids(self) -> set[int]:
        """The processes there are at the moment."""
        return {child.pid for child in self._children}

    @staticmethod
    def check(handler: Handler) -> None:
        """Raise TypeError if another process could not find the handler's function."""
        finding.name_of(handler)

    async def run(
        self, handler: Handler, leased: Leased, report: Callable[[Any], None] = lambda value: None
    ) -> Ending:
        """Run one attempt in a child. A child that dies is a failed attempt.

        Cancelling kills the child, and is over when the child is gone. A run that `close` ends, or that then still
        waits for a place, is a release: the attempt is not to blame.
        """
        name = finding.name_of(handler)
        if self._closed.is_set():
            raise RuntimeError("the pool of processes is closed")
        await self._places.acquire()
        place = _Place(self._places)
        try:
            while not self._closed.is_set():
                try:
                    child = await self._child_for(handler)
                except OSError as error:
                    return _failed(f"no process could be started for it: {error}")
                fresh = child.jobs == 0
                try:
                    return await self._attempt(child, place, handler, name, leased, report)
                except Died as death:
                    if fresh:
                        return _failed(f"the process that was to run it died: {death}")
                    # It died while idle, and nobody had noticed: this job was never begun.
            return Ending(How.RELEASE)
        finally:
            place.leave()

    async def close(self) -> None:
        """End all children and wait until they are gone."""
        self._closed.set()
        idle, self._idle = self._idle, []
        busy = self._children.difference(idle)
        await _to_the_end(
            asyncio.gather(*(child.retire() for child in idle), *(child.kill() for child in busy))
        )
        taken = 0
        try:
            while taken < self._most:  # whoever held a place or waited for one leaves first
                await self._places.acquire()
                taken += 1
            self._starter.shutdown(wait=False)
        finally:
            for _ in range(taken):
                self._places.release()

    async def _attempt(
        self,
        child: Child,
        place: _Place,
        handler: Handler,
        name: tuple[str, str],
        leased: Leased,
        report: Callable[[Any], None],
    ) -> Ending:
        if self._closed.is_set():  # while it was started
            await _to_the_end(child.kill())
            return Ending(How.RELEASE)
        context = copy_context()
        # What the child logs is kept here too: if it dies, this is all there will be.
        logs = context.run(begin, JobContext(leased))
        try:
            ended = await child.run(name, leased, report, context)
        except asyncio.CancelledError:
            await _to_the_end(child.kill())
            raise
        except Died as death:
            if self._closed.is_set():
                return Ending(How.RELEASE, logs=logs.text())
            if not death.begun:
                raise
            return _failed(f"the process that ran it died: {death}", logs.text())
        if not ended.fit or _is_used_up(child, handler) or self._closed.is_set():
            self._let_go(child, place)
        elif not child.gone.done():
            self._idle.append(child)
        return ended.ending

    async def _child_for(self, handler: Handler) -> Child:
        for child in reversed(self._idle):
            if child.memory_mb == handler.memory_mb and not _is_used_up(child, handler):
                self._idle.remove(child)
                return child
        while len(self._children) + self._starting >= self._most:
            await _to_the_end(self._idle.pop(0).retire())
        self._starting += 1
        starting = asyncio.create_task(self._start(handler.memory_mb))
        try:
            await _to_the_end(starting)
        except asyncio.CancelledError:
            if starting.exception() is None:
                await _to_the_end(starting.result().kill())
            raise
        return starting.result()

    async def _start(self, memory_mb: int | None) -> Child:
        try:
            started = await asyncio.get_running_loop().run_in_executor(self._starter, children.start)
            child = Child(*started, memory_mb)
            self._children.add(child)
        finally:
            self._starting -= 1
        child.gone.add_done_callback(lambda gone: self._forget(child))
        await child.connect()
        return child

    def _forget(self, child: Child) -> None:
        self._children.discard(child)
        if child in self._idle:
            self._idle.remove(child)

    def _let_go(self, child: Child, place: _Place) -> None:
        """See a child off in the background; the place of its run is free when it is gone."""
        task = asyncio.create_task(child.retire())
        place.keep_until(task)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


class _Place:
    """A place in the pool, given back once: when its run ends, or when its child is gone."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._kept = False

    def keep_until(self, task: asyncio.Task[None]) -> None:
        self._kept = True
        task.add_done_callback(lambda done: self._places.release())

    def leave(self) -> None:
        if not self._kept:
            self._places.release()


def _failed(why: str, logs: str | None = None) -> Ending:
    return Ending(How.NACK, error=bounds.error_text(why), logs=logs)


def _is_used_up(child: Child, handler: Handler) -> bool:
    return handler.max_jobs_per_child is not None and child.jobs >= handler.max_jobs_per_child


async def _to_the_end(work: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> None:
    """Await what must not be left half done; a cancellation meanwhile is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:
            break
    if cancelled is not None:
        raise cancelled
    task.result()
