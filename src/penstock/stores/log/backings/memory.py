"""A tape in this process, for tests."""

from __future__ import annotations

from penstock.stores.log.errors import Truncated


class MemoryTape:
    """A list. Several stores may share it."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.dropped = 0

    async def append(self, data: bytes) -> int:
        self.entries.append(data)
        return self.dropped + len(self.entries)

    async def read(self, after: int, most: int = 1000) -> list[tuple[int, bytes]]:
        if after < self.dropped:
            raise Truncated(after, self.dropped + 1)
        begin = after - self.dropped
        return list(enumerate(self.entries[begin : begin + most], after + 1))

    async def last(self) -> int:
        return self.dropped + len(self.entries)

    async def truncate(self, until: int) -> None:
        del self.entries[: max(0, until - self.dropped)]
        self.dropped = max(self.dropped, until)

    async def close(self) -> None:
        pass
