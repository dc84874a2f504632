"""Keeps leases alive from a thread and a connection of its own, so that a handler that blocks the event loop loses nothing.

It also watches the event loop, and says with a stack what blocks it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence

from penstock.core.commands import Beat, Heartbeat
from penstock.core.errors import PenstockError
from penstock.queue import Queue
from penstock.worker.hand import Hand, InHand

logger = logging.getLogger("penstock.worker")

TICK_SECONDS = 0.5
MOST_BEATS = 500
BLOCKED_SECONDS = 1.0

Told = Callable[[InHand, Beat | PenstockError], None]


class Keeper:
    """Renews the leases of what is in hand. `told` gets every answer, in the worker's event loop.

    With `connect` it has a thread and connections of its own; without, as for the memory store, it is a task of the loop.
    """

    def __init__(
        self, hand: Hand, queue: Queue, told: Told, connect: Callable[[], Queue] | None = None
    ) -> None:
        self._hand = hand
        self._queue = queue
        self._told = told
        self._connect = connect
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None
        self._worker_loop: asyncio.AbstractEventLoop | None = None
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._kick: asyncio.Event | None = None
        self._stopping = False
        self._ponged_at = time.monotonic()
        self.passed_at = time.monotonic()
        """When it last looked at everything in hand: proof that it is alive."""
        self.blocked_seconds = 0.0
        """How long the event loop has been blocked in all, as far as it was noticed."""
        self.failures = 0
        """How often leases could not be renewed."""

    def start(self) -> None:
        self._worker_loop = asyncio.get_running_loop()
        self._ponged_at = self.passed_at = time.monotonic()
        if self._connect is None:
            self._task = asyncio.create_task(self._keep(self._queue), name="penstock keeper")
            return
        worker_thread = threading.get_ident()
        self._thread = threading.Thread(
            target=self._run, args=(worker_thread, self._connect), name="penstock keeper", daemon=True
        )
        self._thread.start()

    def beat_now(self) -> None:
        """Ask after all leases at once: something may have been cancelled."""
        for held in self._hand:
            held.renewed_at = min(held.renewed_at, time.monotonic() - held.seconds / 3)
        loop, kick = self._own_loop, self._kick
        if loop is not None and kick is not None:
            loop.call_soon_threadsafe(kick.set)

    async def stop(self) -> None:
        self._stopping = True
        self.beat_now()
        if self._task is not None:
            await self._task
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 5.0)

    # ── In the keeper's own thread ────────────────────────────────────────────────────────────────

    def _run(self, worker_thread: int, connect: Callable[[], Queue]) -> None:
        async def keep() -> None:
            queue = connect()
            watch = asyncio.create_task(self._watch(worker_thread))
            try:
                await self._keep(queue)
            finally:
                watch.cancel()
                await queue.close()

        while not self._stopping:
            try:
                asyncio.run(keep())
            except Exception:
                # Without a keeper, jobs would be taken away while they run: it must never just be gone.
                logger.exception("the keeper of leases failed and starts again")
                time.sleep(TICK_SECONDS)

    async def _keep(self, queue: Queue) -> None:
        self._own_loop, self._kick = asyncio.get_running_loop(), asyncio.Event()
        while not self._stopping:
            now = time.monotonic()
            due = [held for held in self._hand if held.is_due(now)]
            for start in range(0, len(due), MOST_BEATS):
                await self._renew(queue, due[start : start + MOST_BEATS])
            self.passed_at = time.monotonic()
            try:
                async with asyncio.timeout(self._until_next()):
                    await self._kick.wait()
            except TimeoutError:
                pass
            self._kick.clear()

    def _until_next(self) -> float:
        """How long until the next lease is due; what is leased meanwhile is not due sooner than a third of its length."""
        now = time.monotonic()
        waits = [held.renewed_at + held.seconds / 3 - now for held in self._hand if not held.settling]
        return max(0.02, min([TICK_SECONDS, *waits]))

    async def _renew(self, queue: Queue, due: Sequence[InHand]) -> None:
        beats = [Heartbeat(held.id, held.token, None, held.progress) for held in due]
        asked_at = time.monotonic()
        try:
            answers = await self._ask(queue, beats, min(held.seconds for held in due) / 6)
        except PenstockError as error:
            self.failures += 1
            logger.warning("%d leases could not be renewed, trying again: %s", len(due), error)
            return
        for held, beat, answer in zip(due, beats, answers, strict=True):
            if isinstance(answer, Beat):
                held.renewed_at = asked_at
                held.told_progress = beat.progress
            else:
                held.renewed_at = time.monotonic()
            if not isinstance(answer, Beat) or answer.cancel_requested:
                self._tell(held, answer)

    async def _ask(
        self, queue: Queue, beats: Sequence[Heartbeat], patience_seconds: float
    ) -> Sequence[Beat | PenstockError]:
        """Through our own store; one that would hold every job a second time is opened only if the worker's loop is stuck."""
        loop = self._worker_loop
        if loop is None or loop is self._own_loop or not getattr(queue.store, "is_held_whole", False):
            return await queue.store.heartbeat(queue.tenant, beats)
        asked_at = time.monotonic()
        call = self._queue.store.heartbeat(self._queue.tenant, beats)
        try:
            loop.call_soon_threadsafe(self._pong)
            answer = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, loop))
        except RuntimeError:  # the worker's loop has ended
            call.close()
            return await queue.store.heartbeat(queue.tenant, beats)
        while not answer.done():
            await asyncio.wait([answer], timeout=patience_seconds)
            if not answer.done() and self._ponged_at < asked_at:
                answer.cancel()
                return await queue.store.heartbeat(queue.tenant, beats)
        return answer.result()

    def _tell(self, held: InHand, answer: Beat | PenstockError) -> None:
        assert self._worker_loop is not None
        if self._worker_loop is self._own_loop:
            self._told(held, answer)
            return
        try:
            self._worker_loop.call_soon_threadsafe(self._told, held, answer)
        except RuntimeError:  # the worker's loop has ended
            self._stopping = True

    # ── Watching the event loop ───────────────────────────────────────────────────────────────────

    async def _watch(self, worker_thread: int) -> None:
        assert self._worker_loop is not None
        blocked_since: float | None = None
        while True:
            sent_at = time.monotonic()
            try:
                self._worker_loop.call_soon_threadsafe(self._pong)
            except RuntimeError:
                return
            await asyncio.sleep(BLOCKED_SECONDS)
            if self._ponged_at >= sent_at:
                if blocked_since is not None:
                    blocked = self._ponged_at - blocked_since
                    self.blocked_seconds += blocked
                    logger.warning("the event loop runs again after %.1f s", blocked)
                    blocked_since = None
            elif blocked_since is None:
                blocked_since = sent_at
                frame = sys._current_frames().get(worker_thread)
                stack = "" if frame is None else "".join(traceback.format_stack(frame))
                logger.warning(
                    "the event loop is blocked; leases are renewed all the same, but nothing else happens. "
                    'Let the handler that does this run with runs="thread":\n%s',
                    stack,
                )

    def _pong(self) -> None:
        self._ponged_at = time.monotonic()
