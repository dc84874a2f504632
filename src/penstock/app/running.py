"""A worker in this process: signals, the scheduler, probes, and the order in which they start and end."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from penstock.app.declared import apply_queue_settings
from penstock.core.errors import Forbidden
from penstock.queue import Queue
from penstock.scheduler.reconcile import Declaration, reconcile
from penstock.scheduler.scheduler import Scheduler
from penstock.worker.listener import listening
from penstock.worker.worker import Stopped, Worker

if TYPE_CHECKING:
    from penstock.app.penstock import Penstock

logger = logging.getLogger("penstock")


async def run_worker(
    app: Penstock,
    *,
    queues: str | Iterable[str] | Mapping[str, float] | None = None,
    concurrency: int = 100,
    grace_seconds: float = 30.0,
    lease_seconds: float | None = None,
    name: str | None = None,
    scheduler: bool = True,
    listen: str | None = None,
    handle_signals: bool | None = None,
    on_start: Callable[[Worker], None] = lambda worker: None,
) -> Stopped:
    """Run jobs until SIGTERM or SIGINT; a second one hurries. Returns how it ended.

    `queues` names queues, or patterns, with weights: "emails=3,reports*"; by default those of the handlers. `scheduler`
    says whether schedules may fire from here: of all processes that may, one does; a service does it by itself. Signals are
    handled if this is the main thread, unless said otherwise; without them, `on_start` gets the worker, to `stop()` it.
    `listen`, such as "127.0.0.1:9100" or ":9100", is where it answers /livez, /readyz and /metrics.
    """
    queue = app.queue
    await _apply_if_allowed(app)
    scheduler = scheduler and not getattr(queue.store, "sees_to_time", False)
    worker = Worker(
        queue,
        app.handlers,
        queues=_queues_of(app) if queues is None else queues,
        concurrency=concurrency,
        grace_seconds=grace_seconds,
        lease_seconds=lease_seconds,
        name=name,
        connect=None if app.is_memory else app.open,
    )
    is_main = threading.current_thread() is threading.main_thread()
    wanted = is_main if handle_signals is None else handle_signals
    async with listening(worker, listen):
        with _on_signals(worker.stop) if wanted else nullcontext():
            on_start(worker)
            async with scheduling(queue) if scheduler else nullcontext():
                stopped = await worker.run()
    logger.info("worker %s ended: %s", worker.name, stopped.name.lower().replace("_", " "))
    return stopped


@asynccontextmanager
async def worker_beside(app: Penstock, options: Mapping[str, Any]) -> AsyncIterator[Worker]:
    """A worker in this event loop while the block runs; at its end it finishes what it has begun."""
    started: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(
        run_worker(app, **{"handle_signals": False, **options, "on_start": started.set_result}),
        name="penstock worker",
    )
    both: list[asyncio.Future[Any]] = [running, started]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        yield running.result() if not started.done() else started.result()  # type: ignore[misc]  # it raises
    finally:
        if started.done():
            started.result().stop()
        else:
            running.cancel()
        await asyncio.wait([running])
    running.result()


async def run_scheduler(app: Penstock) -> None:
    """Fire schedules and sweep, without running jobs, until SIGTERM or SIGINT."""
    await apply_declarations(app)
    scheduler = Scheduler(app.queue)
    with _on_signals(scheduler.stop):
        await scheduler.run()


async def apply_declarations(app: Penstock) -> None:
    """Bring what the code declares about queues and schedules to the store, as far as it is new."""
    for one in (app, *app.included):
        await apply_queue_settings(app.queue, one.queue_settings, one.name)
        declared = [Declaration(name, **schedule) for name, schedule in one.schedules.items()]
        await reconcile(app.queue, declared, one.name)


async def _apply_if_allowed(app: Penstock) -> None:
    """A worker on a service may have a token that is good for jobs alone: then others set queues and schedules."""
    try:
        await apply_declarations(app)
    except Forbidden as error:
        is_any = any(one.schedules or any(one.queue_settings.values()) for one in (app, *app.included))
        level = logging.WARNING if is_any else logging.DEBUG
        logger.log(level, "what the code declares of queues and schedules was not applied: %s", error)


@asynccontextmanager
async def scheduling(queue: Queue) -> AsyncIterator[None]:
    """A scheduler while the block runs, begun again if it fails."""
    running = asyncio.create_task(_keep_scheduling(queue), name="penstock scheduler")
    try:
        yield
    finally:
        running.cancel()  # it resigns on its way out
        await asyncio.wait([running])


async def _keep_scheduling(queue: Queue) -> None:
    while True:
        try:
            # A longer term than alone: a worker at rest should ask little, and keeping the office is the most of it.
            await Scheduler(queue, lead_seconds=10.0).run()
        except Exception:
            logger.exception("the scheduler failed and starts again")
        await asyncio.sleep(1.0)


def _queues_of(app: Penstock) -> list[str]:
    names = {str(handler.options.get("queue", "default")) for handler in app.handlers.values()}
    return sorted(names) or ["default"]


@contextmanager
def _on_signals(stop: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
