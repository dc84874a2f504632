"""The window: whoever writes waits a little for others, so that they share an entry, which is what a bucket is paid by."""

from __future__ import annotations

import asyncio


class Company:
    """Those who came within one window go together when it is over, or when they fill an entry."""

    def __init__(self, seconds: float, most: int, most_bytes: int) -> None:
        self._seconds, self._most, self._most_bytes = seconds, most, most_bytes
        self._over: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._count = self._bytes = 0

    async def gathered(self, size: int) -> None:
        """Wait until those who go together are there. The first to come begins a window."""
        loop = asyncio.get_running_loop()
        if self._over is None or self._loop is not loop:  # or that of a loop which has ended
            self._over, self._loop = asyncio.Event(), loop
            self._count = self._bytes = 0
            loop.call_later(self._seconds, self._end, self._over)
        over = self._over
        self._count += 1
        self._bytes += size
        if self._count >= self._most or self._bytes >= self._most_bytes:
            self._end(over)
            await asyncio.sleep(0)  # after those who waited
        else:
            await over.wait()

    def end(self) -> None:
        """Let those go who wait."""
        if self._over is not None:
            self._end(self._over)

    def _end(self, over: asyncio.Event) -> None:
        over.set()  # they are let go in the order in which they came, and before anything that they begin
        if self._over is over:
            self._over = None
