"""One attempt as a worker makes it, but when a test says so: in the test's event loop, or in its own thread."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from penstock.app.sync import Portal
from penstock.core import bounds
from penstock.core.codec import JsonText
from penstock.core.commands import Heartbeat, Leased
from penstock.queue import Queue
from penstock.testing import Ran
from penstock.worker import execution
from penstock.worker.arguments import to_json
from penstock.worker.context import HowItEnds, JobContext
from penstock.worker.execution import Ending, How
from penstock.worker.handlers import Handler
from penstock.worker.settling import settle_for

logger = logging.getLogger("penstock.testkit")

Answer = TypeVar("Answer")
Runner = Callable[[Handler, JobContext], Awaitable[Ending]]


def at_once(coroutine: Coroutine[Any, Any, Answer]) -> Answer:
    """What a coroutine returns that never has to wait, as none does that only asks a store in memory."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        answer: Answer = ended.value
        return answer
    coroutine.close()
    raise RuntimeError("this cannot be answered without an event loop")


# ── Where handlers run ────────────────────────────────────────────────────────────────────────────


async def in_loop(handler: Handler, context: JobContext) -> Ending:
    """As a worker does it: async functions in this event loop, others in a thread; those for processes too."""
    if handler.is_async:
        return await asyncio.create_task(_within_its_time(handler, context))
    return await asyncio.to_thread(execution.run_blocking, handler, context)


def in_this_thread(portal: Portal) -> Runner:
    """For tests that are not async: plain functions see the test's own database connection, and whatever else is a thread's."""

    async def run(handler: Handler, context: JobContext) -> Ending:
        if handler.is_async:
            ending: Ending = portal.call(_within_its_time(handler, context))
            return ending
        return contextvars.copy_context().run(execution.run_blocking, handler, context)

    return run


async def _within_its_time(handler: Handler, context: JobContext) -> Ending:
    try:
        async with asyncio.timeout(handler.timeout_seconds):
            return await execution.run(handler, context)
    except TimeoutError:
        context.cancel()
        return Ending(
            How.NACK, error=f"timed out: it had not ended after {handler.timeout_seconds:g} seconds"
        )


# ── An attempt, from lease to settle ──────────────────────────────────────────────────────────────


class Attempted(Ran, frozen=True, gc=False):
    """An attempt, and whether its handler chose how it ended."""

    meant: bool = True


async def attempt(
    queue: Queue, handler: Handler, leased: Leased, run: Runner, *, waits: bool = True
) -> Attempted:
    """Run a leased job and settle it. Without `waits` it may run again at once, whatever retry or snooze asks for."""
    told: list[JsonText] = []

    def tell(value: Any) -> None:
        told.append(to_json(value, field="progress", limit=bounds.PROGRESS_BYTES))

    watched, raised = _watched(handler)
    ending = await run(watched, JobContext(leased, tell))
    error = raised[-1] if raised else None
    if error is not None and not isinstance(error, Exception):
        raise error  # Ctrl-C, or pytest's own: none of the job's business
    if told:
        await queue.store.heartbeat(queue.tenant, [Heartbeat(leased.id, leased.token, None, told[-1])])
    if not waits and ending.how in (How.NACK, How.SNOOZE):
        ending = ending_now(ending)
    [settled] = await queue.settle_many([settle_for(queue, leased, ending)])
    if isinstance(settled, Exception):
        raise settled
    meant = ending.how is not How.NACK or isinstance(error, HowItEnds)
    if not meant:
        logger.warning("%s failed, and is %s: %s", leased.job.type, settled.status, ending.error)
    return Attempted(leased.job, settled.status, error, meant)


def ending_now(ending: Ending) -> Ending:
    """The same ending, with the job due again at once if it is to run again."""
    return Ending(ending.how, ending.result, ending.error, ending.retry, 0, ending.logs)


def _watched(handler: Handler) -> tuple[Handler, list[BaseException]]:
    """A handler whose exceptions are kept: an ending has only their text."""
    raised: list[BaseException] = []

    async def call_async(**arguments: Any) -> Any:
        try:
            return await handler.function(**arguments)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            raised.append(error)
            raise

    def call(**arguments: Any) -> Any:
        try:
            return handler.function(**arguments)
        except BaseException as error:
            raised.append(error)
            raise

    return dataclasses.replace(handler, function=call_async if handler.is_async else call), raised
