"""One child process, as its worker sees it: started, given jobs, heard, and seen to its end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from multiprocessing import spawn
from subprocess import _args_from_interpreter_flags  # type: ignore[attr-defined]  # as multiprocessing does
from typing import Any, assert_never

from penstock.core.codec import decode
from penstock.core.commands import Leased
from penstock.worker import finding, wire

GRACE_SECONDS = 1.0
"""How long a child has to follow SIGTERM, or to leave when it is no longer needed, before SIGKILL."""

BOOT = """\
import json, socket, sys
line = socket.socket(fileno={fd})
size = int.from_bytes(line.recv(4, socket.MSG_WAITALL), "big") or sys.exit()
sys.path[:] = json.loads(line.recv(size, socket.MSG_WAITALL))
from penstock.worker.child import main
main(line)
"""
"""The child's program. It must have the worker's sys.path before it can be sure to find Penstock."""

_pidfd_open: Callable[[int], int] | None = getattr(os, "pidfd_open", None)
_log = logging.getLogger(__name__)


class Died(Exception):
    """The child is gone, and what it was doing is not done."""

    def __init__(self, how: str, begun: bool) -> None:
        super().__init__(how)
        self.begun = begun
        """Whether it had taken up the job: if not, another child may."""


def start() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """A fresh interpreter, and our end of the line to it.

    It returns when the interpreter is loaded: milliseconds, and more when the machine is busy, so not for the event
    loop's thread. And not for a passing thread either: Linux sends the parent-death signal when the *thread* that
    started a child ends.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        code = BOOT.format(fd=theirs.fileno())
        command = [_python(), *_args_from_interpreter_flags(), "-c", code]
        try:
            process = subprocess.Popen(
                [*command, "--penstock-child"],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        except BaseException:
            ours.close()
            raise
    return ours, process


class Child(asyncio.Protocol):
    """A process of its own in a process group of its own, so that what the handler started is signalled with it.

    It is a fresh interpreter (what multiprocessing calls spawn, done with Popen): nothing of the worker's is
    inherited, neither signal handlers nor descriptors, but stdout and stderr.
    """

    def __init__(
        self, line: socket.socket, process: subprocess.Popen[bytes], memory_mb: int | None = None
    ) -> None:
        self.memory_mb = memory_mb
        self.jobs = 0
        """How many it has been given."""
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[int] = self._loop.create_future()
        """Done, with the exit code, when the process is reaped and all it said has been heard."""
        self._code: int | None = None
        self._heard_all = False
        self._broken: str | None = None
        self._begun = False
        self._ended: asyncio.Future[wire.Ended] | None = None
        self._report: Callable[[Any], None] = lambda value: None
        self._context = Context()
        self._unframed = wire.Unframed(wire.from_child, wire.LONGEST)
        self._line: asyncio.Transport | None = None
        self._socket, self._process = line, process
        self._watch()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def connect(self) -> None:
        """Tell it how to begin. It is not waited for: what it is told meanwhile it hears when it is up."""
        try:
            await self._loop.create_unix_connection(lambda: self, sock=self._socket)
        except BaseException:
            self._heard_all = True
            self._socket.close()
            self._signal(signal.SIGKILL)
            raise
        path = [str(entry) or os.getcwd() for entry in sys.path]
        self._write(wire.behind_length(json.dumps(path).encode()))
        self._write(wire.framed(_preparation(self.memory_mb)))

    async def run(
        self, name: tuple[str, str], leased: Leased, report: Callable[[Any], None], context: Context
    ) -> wire.Ended:
        """Have it run a job. Raises Died. What it says meanwhile is told within the context."""
        self.jobs += 1
        self._begun = False
        self._report, self._context = report, context
        self._ended = self._loop.create_future()
        if self.gone.done():
            self._fail()
        else:
            self._write(wire.framed(wire.Run(*name, leased)))
        try:
            return await self._ended
        finally:
            self._ended = None

    async def retire(self) -> None:
        """Let it leave by itself, running what it registered atexit; see to it that it does."""
        if self._line is not None:
            self._line.write_eof()
        if not await self._gone_soon():
            await self.kill()

    async def kill(self) -> None:
        """SIGTERM, which kills unless the handler has its own mind about it; then SIGKILL. Returns when it is gone."""
        self._signal(signal.SIGTERM)
        if not await self._gone_soon():
            self._signal(signal.SIGKILL)
            await asyncio.wait([self.gone])

    async def _gone_soon(self) -> bool:
        done, _ = await asyncio.wait([self.gone], timeout=GRACE_SECONDS)
        return bool(done)

    def _write(self, data: bytes) -> None:
        if self._line is not None:
            self._line.write(data)

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.abort()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):  # macOS says EPERM of a group of zombies
                os.killpg(self._process.pid, number)

    # ── What it says ──────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._line = transport

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._unframed.feed(data)
        except wire.Noise as error:  # something else wrote into our socket
            self._broken = f"it said what cannot be understood ({error})"
            self._hang_up()
            self._signal(signal.SIGKILL)
            return
        for message in messages:
            self._hear(message)

    def _hear(self, message: wire.FromChild) -> None:
        match message:
            case wire.Begun():
                self._begun = True
            case wire.Progress():
                try:
                    self._context.run(self._report, decode(message.value))
                except Exception:
                    _log.exception("the progress of a job could not be told")
            case wire.Logged():
                self._context.run(_relay, message, self._process.pid)
            case wire.Ended():
                if self._ended is not None and not self._ended.done():
                    self._ended.set_result(message)
            case _:
                assert_never(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._line = None
        self._heard_all = True
        if self._code is None:
            # It closed its end: it is about to leave, or the handler closed what it does not own.
            self._loop.call_later(GRACE_SECONDS, self._signal, signal.SIGKILL)
        self._over()

    # ── Its end ───────────────────────────────────────────────────────────────────────────────────

    def _watch(self) -> None:
        """Be told when the process ends: by a descriptor where there are such (Linux), else by a thread that waits."""
        try:
            if _pidfd_open is None:
                raise OSError
            pidfd = _pidfd_open(self._process.pid)
        except OSError:  # an old kernel, or a sandbox
            threading.Thread(target=self._wait, name="penstock-child-watch", daemon=True).start()
        else:
            self._loop.add_reader(pidfd, self._ready, pidfd)

    def _ready(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        self._reaped(self._reap())

    def _wait(self) -> None:
        if hasattr(os, "waitid"):  # macOS has it since Python 3.13
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            code = self._reap()
        else:
            code = self._process.wait()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._reaped, code)

    def _reap(self) -> int:
        # What the handler started goes with it. Before reaping: until then the group's number is surely ours.
        # SIGTERM, because multiprocessing's resource tracker must live to clean up; it ignores that.
        self._signal(signal.SIGTERM)
        return self._process.wait()

    def _reaped(self, code: int) -> None:
        self._code = code
        if not self._heard_all:
            # What it last said may still be unread; somebody it forked may hold its end open, too.
            self._loop.call_later(GRACE_SECONDS, self._hang_up)
        self._over()

    def _over(self) -> None:
        if self._heard_all and self._code is not None and not self.gone.done():
            self.gone.set_result(self._code)
            self._fail()

    def _fail(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(Died(self._broken or told(self.gone.result()), self._begun))


def _python() -> str | bytes:
    return spawn.get_executable() or sys.executable  # a program that embeds Python says which one to use


def told(code: int) -> str:
    """An exit code as people want to read it."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"signal {-code} ({name})" + (", perhaps out of memory" if -code == signal.SIGKILL else "")


def _preparation(memory_mb: int | None) -> wire.Prepare:
    levels = {"": logging.root.level}
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET:
            levels[name] = logger.level
    return wire.Prepare(sys.argv, *finding.main(), levels, logging.root.manager.disable, memory_mb)


def _relay(said: wire.Logged, pid: int) -> None:
    """Log what a child logged, as if it had been logged here."""
    logger = logging.getLogger(said.logger)
    if logger.isEnabledFor(said.level):
        record = logger.makeRecord(
            said.logger, said.level, said.path, said.line, said.text, (), None, said.function
        )
        record.created, record.msecs = said.at, said.at % 1 * 1000
        record.process, record.processName = pid, "penstock-child"
        logger.handle(record)
