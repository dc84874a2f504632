"""`penstock worker`: one process that works, or one that watches over several."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import click

from penstock import Penstock
from penstock.app.running import run_worker
from penstock.cli.loading import load_app
from penstock.cli.main import lake_options, logging_options
from penstock.worker.worker import Stopped, Worker

logger = logging.getLogger("penstock")

WATCHED = "PENSTOCK_WATCHED"
"""The number of a worker whose parent watches over it: it ends when its standard input does, and so with its parent."""
CRASHED = 70
FIRST_SECONDS, LONGEST_SECONDS = 0.5, 30.0
LAKE_QUEUE = "penstock-lake"


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "-q",
    "--queues",
    help="Queues or patterns, with weights: emails=3,reports*. By default, those of the handlers.",
)
@click.option(
    "-c",
    "--concurrency",
    default=100,
    show_default=True,
    type=click.IntRange(1),
    help="Handlers at once, in each process.",
)
@click.option(
    "-p", "--processes", default=1, show_default=True, type=click.IntRange(1, 256), help="Worker processes."
)
@click.option(
    "--grace",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds that running handlers have to finish after SIGTERM.",
)
@click.option(
    "--lease", type=click.FloatRange(1), help="Seconds of a lease; by default, what each queue is set to."
)
@click.option(
    "--scheduler/--no-scheduler",
    default=True,
    show_default=True,
    help="Whether schedules may fire from here; of all who may, one does.",
)
@click.option(
    "--listen",
    metavar="[HOST]:PORT",
    help="Where to answer /livez, /readyz and /metrics; of several processes, the second on the next port, and so on.",
)
@click.option("--name", help="What this worker is called; by default, host and process.")
@lake_options
@logging_options
def worker(
    target: str,
    queues: str | None,
    concurrency: int,
    processes: int,
    grace: float,
    lease: float | None,
    scheduler: bool,
    listen: str | None,
    name: str | None,
    lake: str | None,
    lake_every: str,
) -> None:
    """Run the jobs of an app.

    SIGTERM or Ctrl-C: lease no more, give back what has not begun, let running handlers finish within the grace period, then
    cancel them and give their jobs back. A second signal hurries. Exits with 0 when all had finished, 3 when the grace
    period was over, 4 when it was hurried, 70 when a process crashed while it ended.
    """
    app = load_app(target)
    if lake is not None and _with_lake(app, lake, lake_every) and queues is not None:
        queues = f"{queues},{LAKE_QUEUE}"
    if processes > 1:
        if name is not None:
            raise click.UsageError("--name is for one process: each worker has a name of its own")
        command = [sys.executable, "-m", "penstock", *sys.argv[1:], "--processes", "1"]
        leave(Watch(command, processes).run())
    leave(
        work(
            app,
            queues=queues,
            concurrency=concurrency,
            grace_seconds=grace,
            lease_seconds=lease,
            scheduler=scheduler,
            listen=listen,
            name=name,
        )
    )


def _with_lake(app: Penstock, lake: str, every: str) -> bool:
    """Have the lake run by itself; false where it cannot and nobody has asked for it in so many words."""
    from penstock.cli.lake import lacking_extra

    if lacking := lacking_extra():
        source = click.get_current_context().get_parameter_source("lake")
        if source is not click.core.ParameterSource.ENVIRONMENT:
            raise click.UsageError(lacking)
        logger.warning("PENSTOCK_LAKE is set, and the lake is not run from here: %s", lacking)
        return False
    from penstock.lake.job import run_itself

    run_itself(app, lake, every=every)
    return True


def work(app: Penstock, **options: Any) -> int:
    """Run a worker in this process until it is told to end; its exit code."""
    stopped = asyncio.run(_work(app, options))
    return int(stopped)


async def _work(app: Penstock, options: dict[str, Any]) -> Stopped:
    def started(worker: Worker) -> None:
        if WATCHED in os.environ:
            _end_with_parent(worker)
        logger.info("worker %s is at work", worker.name)

    listen = options.pop("listen", None)
    if listen is not None:
        options["listen"] = _own_port(listen, int(os.environ.get(WATCHED, "0")))
    try:
        return await run_worker(app, handle_signals=True, on_start=started, **options)
    finally:
        await app.close()


def _own_port(listen: str, number: int) -> str:
    """Where the worker of this number listens: each on a port of its own, unless the system picks one."""
    host, _, port = listen.rpartition(":")
    return f"{host}:{int(port) + number}" if port.isdigit() and port != "0" else listen


def _end_with_parent(worker: Worker) -> None:
    loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()

    def heard() -> None:
        if not os.read(stdin, 1024):
            loop.remove_reader(stdin)
            worker.stop()

    loop.add_reader(stdin, heard)


def leave(code: int) -> None:
    """Exit, though a handler may still be stuck in a thread: its job was given back."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    if any(thread.name.startswith("penstock handler") for thread in threading.enumerate()):
        os._exit(code)
    sys.exit(code)


class Watch:
    """Runs several workers as processes of their own: starts again what crashed, and passes signals on."""

    def __init__(self, command: Sequence[str], processes: int) -> None:
        self._command = list(command)
        self._processes = processes
        self._children: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}
        self._codes: list[int] = []
        self._crashes = 0
        self._stops = 0

    def run(self) -> int:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._stop)
        for number in range(self._processes):
            self._start(number)
        while self._children:
            pid, status = os.waitpid(-1, 0)
            if pid not in self._children:
                continue
            number, child = self._children.pop(pid)
            child.returncode = os.waitstatus_to_exitcode(status)
            assert child.stdin is not None
            child.stdin.close()
            if self._stops:
                self._codes.append(child.returncode)
            else:
                self._replace(number, child)
        return max((code if code >= 0 else CRASHED for code in self._codes), default=0)

    def _start(self, number: int) -> None:
        # A session of their own: Ctrl-C at a terminal reaches them through us, once.
        child = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            env={**os.environ, WATCHED: str(number)},
            start_new_session=True,
        )
        self._children[child.pid] = (number, child)

    def _replace(self, number: int, child: subprocess.Popen[bytes]) -> None:
        self._crashes += 1
        pause = min(FIRST_SECONDS * 2 ** (self._crashes - 1), LONGEST_SECONDS)
        logger.error(
            "worker process %d ended with %s; another starts in %.1f s", child.pid, child.returncode, pause
        )
        deadline = time.monotonic() + pause
        while not self._stops and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))  # a signal ends the wait at the next look
        if not self._stops:
            self._start(number)

    def _stop(self, number: int, frame: object) -> None:
        self._stops += 1
        for _, child in list(self._children.values()):
            child.send_signal(signal.SIGTERM)
