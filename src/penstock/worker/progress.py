"""What handlers tell of their progress, sent now and then, with the last word never lost while the job runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from penstock.coalesce import Coalesce
from penstock.core import bounds
from penstock.core.codec import JsonText
from penstock.core.commands import Beat, Heartbeat
from penstock.core.errors import PenstockError
from penstock.queue import Queue
from penstock.worker.arguments import to_json
from penstock.worker.hand import InHand

EVERY_SECONDS = 1.0


class Progress:
    """Sends what is reported with a heartbeat, at most once a second and job."""

    def __init__(self, queue: Queue, told: Callable[[InHand, Beat | PenstockError], None]) -> None:
        self._queue = queue
        self._told = told
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beats: Coalesce[Heartbeat, Beat] = Coalesce(self._send_batch)
        self._sending: set[asyncio.Task[None]] = set()
        self._waiting: set[InHand] = set()

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def report(self, held: InHand, value: Any) -> None:
        """Take note; called by handlers, from whatever thread they run in."""
        held.progress = to_json(value, field="progress", limit=bounds.PROGRESS_BYTES)
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._soon, held)

    def _soon(self, held: InHand) -> None:
        if held in self._waiting or held.settling:
            return
        self._waiting.add(held)
        wait = max(0.0, held.told_at + EVERY_SECONDS - time.monotonic())
        asyncio.get_running_loop().call_later(wait, self._send, held)

    def _send(self, held: InHand) -> None:
        self._waiting.discard(held)
        if held.settling or held.progress is None or held.progress == held.told_progress:
            return
        held.told_at = time.monotonic()
        task = asyncio.create_task(self._beat(held, held.progress))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _beat(self, held: InHand, progress: JsonText) -> None:
        try:
            answer = await self._beats(Heartbeat(held.id, held.token, None, progress))
            held.told_progress = progress
            held.renewed_at = time.monotonic()
            self._told(held, answer)
        except PenstockError as error:
            self._told(held, error)

    async def _send_batch(self, beats: list[Heartbeat]) -> list[Beat | PenstockError]:
        return await self._queue.store.heartbeat(self._queue.tenant, beats)

    async def close(self) -> None:
        if self._sending:
            await asyncio.wait(self._sending, timeout=EVERY_SECONDS)
        await self._beats.close()
