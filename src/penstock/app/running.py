"""A worker in this process: signals, the scheduler, probes, and the order in which they start and end."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.app.declared import apply_queue_settings
from penstock.queue import Queue
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
    listen: str | None = None,
    handle_signals: bool | None = None,
    on_start: Callable[[Worker], None] = lambda worker: None,
) -> Stopped:
    """Run jobs until SIGTERM or SIGINT; a second one hurries. Returns how it ended.

    `queues` names queues, or patterns, with weights: "emails=3,reports*"; by default those of the handlers. Signals are
    handled if this is the main thread, unless said otherwise; without them, `on_start` gets the worker, to `stop()` it.
    `listen`, such as "127.0.0.1:9100" or ":9100", is where it answers /livez, /readyz and /metrics.
    """
    queue = app.queue
    await apply_queue_settings(queue, app.queue_settings, app.name)
    worker = Worker(
        queue,
        app.handlers,
        queues=_queues_of(app) if queues is None else queues,
        concurrency=concurrency,
        grace_seconds=grace_seconds,
        lease_seconds=lease_seconds,
        name=name,
        connect=None if app.is_memory else lambda: _for_keeper(app),
    )
    is_main = threading.current_thread() is threading.main_thread()
    async with listening(worker, listen):
        with _signals(worker, is_main if handle_signals is None else handle_signals):
            on_start(worker)
            stopped = await worker.run()
    logger.info("worker %s ended: %s", worker.name, stopped.name.lower().replace("_", " "))
    return stopped


def _queues_of(app: Penstock) -> list[str]:
    names = {str(handler.options.get("queue", "default")) for handler in app.handlers.values()}
    return sorted(names) or ["default"]


def _for_keeper(app: Penstock) -> Queue:
    return app.open()


@contextmanager
def _signals(worker: Worker, wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
