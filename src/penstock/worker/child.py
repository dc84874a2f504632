"""The program of a child process: it runs one job at a time until its worker hangs up."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from multiprocessing import current_process, spawn
from typing import Any

from penstock.core import bounds
from penstock.worker import execution, finding, wire
from penstock.worker.arguments import to_json
from penstock.worker.context import JobContext
from penstock.worker.execution import Ending
from penstock.worker.handlers import Handler
from penstock.worker.line import Line

LOG_MESSAGE_CHARS = 4_096
LOGS_PER_SECOND = 1_000
"""More than this a child does not pass on to its worker; it says how many it left out."""

_MEMORY = "RLIMIT_DATA" if sys.platform == "linux" else "RLIMIT_AS"


def main(line_to_worker: socket.socket) -> None:
    """Run jobs until the worker hangs up. Everything in and out goes over the line."""
    _die_with_the_worker()
    _reset_signals()
    line = Line(line_to_worker)
    prepare = line.next()
    if not isinstance(prepare, wire.Prepare):
        return
    try:
        _Child(line, prepare).serve()
    except BaseException:
        # At once: a thread that a handler left behind would keep the process, and the worker, waiting.
        traceback.print_exc()
        os._exit(1)


class _Child:
    def __init__(self, line: Line, prepare: wire.Prepare) -> None:
        self._line = line
        self._prepare = prepare
        self._has_main = False
        self._forwarder = _Forwarder(line)
        sys.argv[:] = prepare.argv
        for name, level in prepare.levels.items():
            logging.getLogger(name or None).setLevel(level)
        logging.disable(prepare.disabled)
        # Once: whoever configures logging in the child after this has taken it over, and would have all lines twice.
        logging.getLogger().addHandler(self._forwarder)

    def serve(self) -> None:
        while isinstance(order := self._line.next(), wire.Run):
            if self._prepare.memory_mb is not None:
                _cap_memory(self._prepare.memory_mb)
            ended = self._run(order)
            if self._prepare.memory_mb is not None:
                _lift_cap()  # what is left to do is ours
            self._forwarder.tell_left_out()
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            _reset_signals()
            self._line.end(ended)

    def _run(self, order: wire.Run) -> wire.Ended:
        try:
            handler = self._find(order)
        except BaseException as error:  # whatever a user's module may raise when it is imported
            return wire.Ended(execution.failed(error), fit=False)
        context = JobContext(order.leased, _Reporter(self._line))
        try:
            ending = _in_full(_attempt(handler, context))
        except BaseException as error:
            # Memory ran out again while the failure was put into words, or an async handler was cancelled.
            _lift_cap()
            return wire.Ended(_in_full(execution.failed(error)), fit=False)
        # A child whose memory is full of what earlier jobs left behind would fail every job from now on.
        first_line = (ending.error or "").partition("\n")[0]
        return wire.Ended(ending, fit="MemoryError" not in first_line)

    def _find(self, order: wire.Run) -> Handler:
        if order.module == "__main__" and not self._has_main:
            self._import_main()
            self._has_main = True
        return finding.find(order.module, order.qualname)

    def _import_main(self) -> None:
        """As spawn does it; only for handlers that are defined there, since it may be a whole command line."""
        wanted = {
            "init_main_from_name": self._prepare.main_name,
            "init_main_from_path": self._prepare.main_path,
        }
        process: Any = current_process()
        # Makes multiprocessing, and ProcessPool, refuse to start processes meanwhile.
        process._inheriting = True
        try:
            spawn.prepare({key: value for key, value in wanted.items() if value is not None})
        finally:
            del process._inheriting


def _attempt(handler: Handler, context: JobContext) -> Ending:
    if handler.is_async:
        return asyncio.run(execution.run(handler, context))
    return execution.run_blocking(handler, context)


def _in_full(ending: Ending) -> Ending:
    """With logs that can be written as UTF-8, whatever was logged."""
    if ending.logs is None:
        return ending
    logs = bounds.error_text(ending.logs, bounds.LOG_CHARS)
    return Ending(ending.how, ending.result, ending.error, ending.retry, ending.delay_seconds, logs)


class _Reporter:
    """Passes on what one job reports of its progress, while it runs."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._job = line.jobs

    def __call__(self, value: Any) -> None:
        text = to_json(value, field="progress", limit=bounds.PROGRESS_BYTES)
        self._line.report(text, self._job)


class _Forwarder(logging.Handler):
    """Passes log records on to the worker, as text. A record is on its way when the logging call returns."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line
        self._second = 0.0
        self._passed = 0
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            now = time.monotonic()
            if now - self._second >= 1:
                self.tell_left_out()
                self._second, self._passed = now, 0
            if self._passed >= LOGS_PER_SECOND:
                self._left_out += 1
                return
            self._passed += 1
            self._line.tell(_logged(record, self.format(record)), wait=True)
        except Exception:
            self.handleError(record)

    def tell_left_out(self) -> None:
        if self._left_out:
            text = f"{self._left_out:,} log records were not passed on: more than {LOGS_PER_SECOND:,} in a second"
            self._left_out = 0
            record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (), None)
            self._line.tell(_logged(record, text), wait=True)


def _logged(record: logging.LogRecord, text: str) -> wire.Logged:
    return wire.Logged(
        bounds.error_text(record.name),
        record.levelno,
        bounds.error_text(text, LOG_MESSAGE_CHARS),
        record.created,
        bounds.error_text(record.pathname),
        record.lineno,
        record.funcName or "",
    )


# ── The process itself ────────────────────────────────────────────────────────────────────────────


def _die_with_the_worker() -> None:
    """Have the kernel kill this process when its worker's thread ends; where it cannot, the line's end tells."""
    if sys.platform == "linux":
        import ctypes  # on Linux only, and late: it is not needed elsewhere

        pr_set_pdeathsig = 1
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGKILL), 0, 0, 0)


def _reset_signals() -> None:
    """SIGTERM kills, Ctrl-C is the worker's to judge, and no alarm of an earlier job goes off in a later one."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _cap_memory(memory_mb: int) -> None:
    """Let allocations beyond the cap fail.

    On Linux by RLIMIT_DATA: the memory it can write to and shares with nobody. RLIMIT_AS also counts addresses
    that are only reserved and files that are only mapped, by the gigabyte where there are threads, numpy or torch.
    macOS accepts a limit and does not enforce it.
    """
    import resource  # not on every platform

    kind = getattr(resource, _MEMORY)
    cap, hard = memory_mb * 1_048_576, resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        cap = min(cap, hard)
    try:
        resource.setrlimit(kind, (cap, hard))
    except (ValueError, OSError) as error:
        logging.getLogger(__name__).warning("memory_mb=%d has no effect here: %s", memory_mb, error)


def _lift_cap() -> None:
    import resource

    with suppress(ValueError, OSError):
        hard = resource.getrlimit(getattr(resource, _MEMORY))[1]
        resource.setrlimit(getattr(resource, _MEMORY), (hard, hard))
