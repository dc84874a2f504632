"""How attempts that have ended are settled: many in one call, and nobody waits for the answer but the jobs in hand."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from penstock.core.commands import Settle, Settled
from penstock.core.errors import LeaseLost, PenstockError, StoreUnavailable
from penstock.queue import Held, Queue
from penstock.telemetry import spans
from penstock.worker.execution import Ending, How
from penstock.worker.hand import InHand
from penstock.worker.metrics import Metrics

logger = logging.getLogger("penstock.worker")

MOST = 500
AT_ONCE = 2


def settle_for(queue: Queue, held: Held, ending: Ending) -> Settle:
    """What to tell the store of an attempt that ended like this."""
    logs = ending.logs
    match ending.how:
        case How.ACK:
            return queue.acked_text(held, ending.result, logs=logs)
        case How.NACK:
            return queue.nacked(
                held, ending.error, retry=ending.retry, retry_in=ending.delay_seconds, logs=logs
            )
        case How.RELEASE:
            return queue.released(held, delay=ending.delay_seconds, logs=logs)
        case How.SNOOZE:
            return queue.snoozed(held, ending.delay_seconds or 0, logs=logs)
        case How.DISCARD:
            return queue.discarded(held, ending.error, logs=logs)


class Settling:
    """Settles what has ended in batches: whatever came while the one before was on its way, as `Coalesce` does.

    Without a future for each, because no caller waits: a job's task ends with its handler, and `let_go` is called when the
    store has answered. Measured on no-op jobs, that is 10 of 45 µs a job.
    """

    def __init__(self, queue: Queue, worker: str, metrics: Metrics, let_go: Callable[[InHand], None]) -> None:
        self._queue = queue
        self._worker = worker
        self._metrics = metrics
        self._let_go = let_go
        self._pending: deque[tuple[InHand, Ending]] = deque()
        self._batches: set[asyncio.Task[None]] = set()

    def put(self, held: InHand, ending: Ending) -> None:
        held.settling = True
        self._pending.append((held, ending))
        if len(self._batches) < AT_ONCE:
            self._start()

    def _start(self) -> None:
        task = asyncio.get_running_loop().create_task(self._send())
        self._batches.add(task)

    async def _send(self) -> None:
        try:
            await self._send_all()
        finally:
            # At once, not when the loop comes to tell that the task is done: what is put in between would wait for ever.
            self._batches.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _send_all(self) -> None:
        while self._pending:
            batch = [self._pending.popleft() for _ in range(min(MOST, len(self._pending)))]
            try:
                answers = await self._ask(batch)
                for (held, ending), answer in zip(batch, answers, strict=True):
                    if isinstance(answer, PenstockError):
                        self._refused(held, ending, answer)
            except Exception:
                logger.exception(
                    "%d jobs have ended, but settling them failed; they will run again", len(batch)
                )
            finally:
                for held, _ in batch:
                    self._let_go(held)

    async def _ask(self, batch: Sequence[tuple[InHand, Ending]]) -> Sequence[Settled | PenstockError]:
        settles = [self._settle(held, ending) for held, ending in batch]
        with spans().settling((held.leased for held, _ in batch), self._worker) as span:
            try:
                return span.answered(await self._queue.store.settle(self._queue.tenant, settles))
            except PenstockError as error:
                return [error] * len(batch)

    def _settle(self, held: InHand, ending: Ending) -> Settle:
        try:
            return settle_for(self._queue, held, ending)
        except PenstockError as error:  # such as a delay that is none; its neighbours are not to blame
            return self._queue.nacked(held, f"the handler asked for the impossible: {error.message}")

    def _refused(self, held: InHand, ending: Ending, error: PenstockError) -> None:
        match error:
            case LeaseLost():
                self._metrics.lost.add()
                logger.warning(
                    "job %s had ended here (%s), but its lease was lost before", held.id, ending.how
                )
            case StoreUnavailable():
                self._metrics.unsettled.add()
                logger.error(
                    "job %s ended (%s), but that could not be told: %s; it will run again",
                    held.id,
                    ending.how,
                    error,
                )
            case _:
                logger.error("job %s ended (%s), but the store refused that: %s", held.id, ending.how, error)

    async def close(self) -> None:
        """Wait until everything that has ended is settled."""
        while self._batches:
            await asyncio.wait(self._batches)
