"""A PostgreSQL that Penstock brings along: nothing to set up, shared by all who open its folder.

    with start(Path(".penstock")) as server:
        ...  # server.url

The first process to need it starts it, others attach, and it stops when the last one has left, even if
that one was killed. It listens on 127.0.0.1 only, with a generated password.
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.stores.postgres.embedded.errors import (
    EmbeddedDataUnusable,
    EmbeddedError,
    EmbeddedStartFailed,
    EmbeddedUnsupported,
)

if TYPE_CHECKING:
    from penstock.stores.postgres.embedded.server import Lease

__all__ = [
    "Embedded",
    "EmbeddedDataUnusable",
    "EmbeddedError",
    "EmbeddedStartFailed",
    "EmbeddedUnsupported",
    "start",
    "start_async",
]

DEFAULT_DATA_DIR = Path(".penstock")


class Embedded:
    """A hold on the embedded server, which runs at least until this is closed or its process has ended.

    Keep it: a hold that is garbage is let go. A process made by fork() shares the hold, and the server runs
    until parent and child have both closed it or ended; a program started with subprocess does not share it.
    """

    def __init__(self, lease: Lease) -> None:
        self.url = lease.url
        self._lease = lease

    def close(self) -> None:
        """Let go. The server stops soon afterwards if nobody else holds it; closing again does nothing."""
        self._lease.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def start(data_dir: Path = DEFAULT_DATA_DIR, *, timeout_seconds: float = 60.0) -> Embedded:
    """Hold the server of this folder, started, and made, if need be.

    Any number of processes may call it at once. A server that is still recovering from a crash when the
    time is up is stopped again if nobody else holds it: allow more time for a large database.
    """
    if sys.platform == "win32":
        raise EmbeddedUnsupported(
            "the embedded PostgreSQL does not run on Windows; use WSL, or set PENSTOCK_URL to a server"
        )
    # Here, not above: it needs modules that Windows lacks, and this one must be importable there.
    from penstock.stores.postgres.embedded.server import attach

    return Embedded(attach(data_dir, timeout_seconds))


async def start_async(data_dir: Path = DEFAULT_DATA_DIR, *, timeout_seconds: float = 60.0) -> Embedded:
    """`start` without blocking the event loop."""
    # Not asyncio.to_thread: a loop that is shut down forgets its futures, and with them the hold.
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="penstock-embedded")
    starting = executor.submit(start, data_dir, timeout_seconds=timeout_seconds)
    executor.shutdown(wait=False)
    try:
        return await asyncio.wrap_future(starting)
    except asyncio.CancelledError:
        # The thread cannot be stopped; what it brings is let go as soon as it arrives.
        starting.add_done_callback(_let_go)
        raise


def _let_go(starting: Future[Embedded]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()
