"""How often a storage is asked, by what costs alike."""

from __future__ import annotations

from collections import Counter

from penstock.stores.log.backings import Tape

KINDS = ("put", "get", "list", "delete")


def new_count() -> Counter[str]:
    return Counter(dict.fromkeys(KINDS, 0))


class CountedTape(Tape):
    """A tape that is not made of objects: an append counts as a put, a look as a get."""

    def __init__(self, tape: Tape, requests: Counter[str]) -> None:
        self._tape, self._requests = tape, requests

    async def append(self, data: bytes) -> int:
        self._requests["put"] += 1
        return await self._tape.append(data)

    async def read(self, after: int, most: int = 1000) -> list[tuple[int, bytes]]:
        self._requests["get"] += 1
        return await self._tape.read(after, most)

    async def last(self) -> int:
        self._requests["get"] += 1
        return await self._tape.last()

    async def truncate(self, until: int) -> None:
        self._requests["delete"] += 1
        await self._tape.truncate(until)

    async def close(self) -> None:
        await self._tape.close()
