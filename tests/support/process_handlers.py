"""Handlers for the tests of child processes: those must be able to import them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from penstock.worker.context import Discard, GiveUp, JobContext, RetryAfter, Snooze
from penstock.worker.handlers import Handler, Runs, make_handler

log = logging.getLogger("tests.handlers")


class Decorated:
    """What `@app.job` will leave in place of the function."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler


def job(**options: Any) -> Callable[[Callable[..., Any]], Decorated]:
    def decorate(function: Callable[..., Any]) -> Decorated:
        return Decorated(make_handler(function.__name__, function, runs=Runs.PROCESS, **options))

    return decorate


@job()
def pid() -> int:
    return os.getpid()


@job(memory_mb=256)
def pid_capped() -> int:
    return os.getpid()


@job(max_jobs_per_child=2)
def pid_twice() -> int:
    return os.getpid()


@job()
def add(a: int, b: int = 2) -> dict[str, int]:
    return {"sum": a + b}


@job()
async def add_later(a: int, on: date) -> str:
    await asyncio.sleep(0)
    return f"{a} on {on:%d.%m.%Y}"


def plain(word: str) -> str:
    return word.upper()


def _bare(word: str) -> str:
    return word.lower()


_bare.__qualname__ = "bare"
bare = make_handler("bare", _bare, runs=Runs.PROCESS)


@job()
def about(ctx: JobContext) -> dict[str, Any]:
    return {
        "id": ctx.id,
        "attempt": ctx.attempt,
        "headers": ctx.headers,
        "parents": [(parent.id, parent.status, parent.result) for parent in ctx.parents],
    }


@job()
def count_to(most: int, ctx: JobContext) -> None:
    for number in range(1, most + 1):
        ctx.progress({"at": number})


@job()
def tell_and_wait(ctx: JobContext, fifo: str) -> None:
    """Reports twice in a row, so that the second is held back, then waits to be let go."""
    ctx.progress("first")
    ctx.progress("second")
    Path(fifo).read_bytes()


@job()
def progress_of_no_kind(ctx: JobContext) -> None:
    ctx.progress(object())


@job()
def say(words: list[str]) -> None:
    for word in words:
        log.info("said %s", word)
    log.debug("not said")


@job()
def say_oddly() -> None:
    log.warning("a lone surrogate: \ud800")


@job()
def chatter(times: int) -> None:
    for number in range(times):
        log.info("%d", number)


@job()
def log_and_crash() -> None:
    for number in range(100):
        log.info("word %d", number)
    os._exit(3)


@job()
def fail() -> None:
    raise ValueError("no such thing")


@job()
async def fail_later() -> None:
    raise ValueError("no such thing")


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("cannot be pickled")
        self.lock = threading.Lock()


@job()
def fail_unpicklably() -> None:
    raise Unpicklable


@job()
def end_by(how: str) -> None:
    match how:
        case "retry":
            raise RetryAfter(7, "busy")
        case "give up":
            raise GiveUp("hopeless")
        case "snooze":
            raise Snooze(9)
        case "discard":
            raise Discard("done already")
        case "exit":
            sys.exit("bye")
        case "interrupt":
            raise KeyboardInterrupt
        case _:
            raise AssertionError(how)


@job()
async def end_by_cancel() -> None:
    raise asyncio.CancelledError


@job()
def letters(times: int) -> str:
    return "x" * times


@job()
def length(text: str) -> int:
    return len(text)


@job()
def die(number: int) -> None:
    os.kill(os.getpid(), number)


@job()
def leave(code: int) -> None:
    os._exit(code)


@job(memory_mb=200)
def take_mb(mb: int) -> int:
    return len(bytearray(mb * 1_048_576))


_hoard: list[bytearray] = []


@job(memory_mb=200)
def hoard_mb(mb: int) -> int:
    """Never lets go of what it took."""
    _hoard.extend(bytearray(1_048_576) for _ in range(mb))
    return os.getpid()


@job()
def wait(ctx: JobContext) -> None:
    ctx.progress(os.getpid())
    while True:
        signal.pause()


@job()
def wait_stubbornly(ctx: JobContext) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctx.progress(os.getpid())
    while True:
        signal.pause()


@job()
def spin(ctx: JobContext) -> None:
    ctx.progress(os.getpid())
    while True:
        pass


@job()
def hog() -> int:
    """Computes without ever letting another thread of its process run."""
    print(os.getpid(), flush=True)
    return sum(range(10**15))


@job()
def wait_with_company(ctx: JobContext) -> None:
    """Waits for a program it started, as one does with ffmpeg."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as other:
        ctx.progress([os.getpid(), other.pid])


@job()
def wait_for(fifo: str, ctx: JobContext) -> None:
    ctx.progress(os.getpid())
    Path(fifo).read_bytes()


@job()
def catch_sigterm(ctx: JobContext) -> None:
    class Stop(Exception):
        pass

    def stop(number: int, frame: object) -> None:
        raise Stop

    signal.signal(signal.SIGTERM, stop)


@job()
def signals() -> dict[str, bool]:
    return {
        "SIGTERM kills": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "SIGINT is ignored": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        "SIGUSR1 is default": signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL,
        "none is blocked": signal.pthread_sigmask(signal.SIG_BLOCK, []) == set(),
    }


@job()
def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@job()
def fork_and_return() -> str:
    """A fork that comes back from the handler as well: it must not speak for the child."""
    other = os.fork()
    if other == 0:
        log.warning("from the fork")
        return "the fork"
    os.waitpid(other, 0)
    return "the child"


@job()
def write_into_every_descriptor() -> None:
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"\xff" * 64)
        except OSError:
            pass
    signal.pause()


@job()
def close_every_descriptor() -> None:
    os.closerange(3, 256)
    signal.pause()


@job()
def close_every_descriptor_and_hog() -> None:
    os.closerange(3, 256)
    sum(range(10**15))


@job()
def print_out(text: str) -> None:
    print(text)


@job()
def set_alarm() -> str:
    """Its alarm is to go off long after it has returned."""
    signal.setitimer(signal.ITIMER_REAL, 3600)
    return "in time"


@job()
def alarm() -> float:
    return signal.getitimer(signal.ITIMER_REAL)[0]
