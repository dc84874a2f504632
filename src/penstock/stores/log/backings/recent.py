"""The newest entries of a log, at hand: what was just written or read is asked for again at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

REMEMBERED_BYTES = 8 << 20


class Recent:
    """The last entries up to a number that its owner knows. At least one is kept, however long."""

    def __init__(self) -> None:
        self._entries: deque[bytes] = deque()
        self._bytes = 0

    def add(self, entries: Iterable[bytes]) -> None:
        for entry in entries:
            self._entries.append(entry)
            self._bytes += len(entry)
        while self._bytes > REMEMBERED_BYTES and len(self._entries) > 1:
            self._drop()

    def following(self, after: int, most: int, last: int) -> list[tuple[int, bytes]]:
        """What follows a number, if that is at hand; `last` is the number of the newest."""
        start = after - (last - len(self._entries))
        if not 0 <= start < len(self._entries):
            return []
        stop = min(start + most, len(self._entries))
        return [(after + 1 + n, self._entries[start + n]) for n in range(stop - start)]

    def forget(self, until: int, last: int) -> None:
        """Drop entries up to a number."""
        while self._entries and last - len(self._entries) < until:
            self._drop()

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0

    def _drop(self) -> None:
        self._bytes -= len(self._entries.popleft())
