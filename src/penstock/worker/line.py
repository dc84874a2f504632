"""A child's end of the line to its worker."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
import traceback
from collections import deque
from contextlib import suppress
from queue import SimpleQueue

from penstock.core.codec import JsonText
from penstock.worker import wire

PROGRESS_SECONDS = 0.1
"""Progress is told at most this often; the last value always is."""

_BEGUN = wire.framed(wire.Begun())


class Line:
    """One thread does all reading and writing, and leaves the main thread to the handler.

    It alone writes, because a handler may raise out of its own signal handler (the `signal.alarm` idiom) in the main
    thread at any moment, and half a message must not stay on the line. And it reads all the time, so that it learns
    at once if the worker is gone.
    """

    def __init__(self, line: socket.socket) -> None:
        line.set_inheritable(False)
        line.setblocking(True)
        self._line = line
        self._pid = os.getpid()
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._lock = threading.RLock()
        self._orders: SimpleQueue[wire.ToChild | None] = SimpleQueue()
        self._out: deque[tuple[bytes, threading.Event | None]] = deque()
        self._progress: JsonText | None = None
        self._progress_at = 0.0
        self._open = True
        self._busy = False
        self.jobs = 0
        """How many have begun."""
        # What the handler forks is not the child: it must neither speak for it nor hold its line open.
        os.register_at_fork(after_in_child=self._forked)
        threading.Thread(target=self._serve, name="penstock-line", daemon=True).start()

    def next(self) -> wire.ToChild | None:
        """Wait for the next order; None when the worker has hung up."""
        if os.getpid() != self._pid:
            os._exit(1)  # what the handler forked came back from the handler
        return self._orders.get()

    def tell(self, message: wire.FromChild, *, wait: bool = False) -> None:
        """Tell the worker; with `wait` it is on its way when this returns, and even a crash does not lose it."""
        sent = threading.Event() if wait else None
        data = wire.framed(message)
        with self._lock:
            if not self._open:
                return
            self._out.append((data, sent))
        self._ring()
        if sent is not None:
            sent.wait()

    def report(self, value: JsonText, job: int) -> None:
        """Tell the progress of a job now, or soon, or something newer instead; nothing once it has ended."""
        with self._lock:
            if not self._open or not self._busy or job != self.jobs:
                return
            is_first, self._progress = self._progress is None, value
        if is_first:
            self._ring()

    def end(self, ended: wire.Ended) -> None:
        """Tell how the job ended, after all else."""
        data = wire.framed(ended)
        with self._lock:
            self._busy = False
            if self._progress is not None:
                self._out.append((wire.framed(wire.Progress(self._progress)), None))
                self._progress = None
            self._out.append((data, None))
        self._ring()

    def _ring(self) -> None:
        with suppress(BlockingIOError, OSError):  # full: it is awake
            self._wake.send(b"!")

    def _serve(self) -> None:
        unframed = wire.Unframed(wire.to_child)
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        try:
            while True:
                ready = {descriptor for descriptor, _ in poll.poll(self._patience())}
                if self._woken.fileno() in ready:
                    self._woken.recv(4_096)
                self._write()
                if self._line.fileno() in ready:
                    data = self._line.recv(262_144)
                    if not data:
                        break
                    for order in unframed.feed(data):
                        self._take(order)
        except OSError:  # the worker is gone, and its end of the line with it
            pass
        except BaseException:
            # Out of memory, most likely, and without this thread the worker would wait forever.
            traceback.print_exc()
            os.kill(os.getpid(), signal.SIGKILL)
        self._hung_up()

    def _patience(self) -> float | None:
        with self._lock:
            if self._progress is None:
                return None
            return max(0.0, (self._progress_at - time.monotonic()) * 1000 + 1)

    def _take(self, order: wire.ToChild) -> None:
        with self._lock:
            if isinstance(order, wire.Run):
                self._busy = True
                self.jobs += 1
                # Before the handler can do anything, such as crash: a job that was not begun is given to another child.
                self._line.sendall(_BEGUN)
        self._orders.put(order)

    def _write(self) -> None:
        with self._lock:
            now = time.monotonic()
            if self._progress is not None and now >= self._progress_at:
                self._out.append((wire.framed(wire.Progress(self._progress)), None))
                self._progress, self._progress_at = None, now + PROGRESS_SECONDS
        while self._out:
            data, sent = self._out.popleft()
            try:
                self._line.sendall(data)
            finally:
                if sent is not None:
                    sent.set()

    def _hung_up(self) -> None:
        with self._lock:
            self._open = False
            busy = self._busy
            while self._out:
                _, sent = self._out.popleft()
                if sent is not None:
                    sent.set()
        if busy:
            # The worker is dead. Whoever runs this job next must not meet us; what we started goes, too.
            if os.getpgrp() == os.getpid():
                with suppress(OSError):
                    os.killpg(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGKILL)
        self._orders.put(None)

    def _forked(self) -> None:
        self._open = False
        self._lock = threading.RLock()
        for end in (self._line, self._wake, self._woken):
            end.close()
