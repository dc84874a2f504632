"""Tapes and objects in this process's memory, shared by name: the other backings without their weather."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from penstock.stores.log.backings import Backing, Found, Objects, Tape, checked_key, checked_tape
from penstock.stores.log.backings.counting import CountedTape, new_count
from penstock.stores.log.errors import Truncated

_shared: dict[str, MemoryBacking] = {}


def _machine_clock() -> datetime:
    return datetime.now(UTC)


class MemoryTape(Tape):
    """A list. What was cut off its beginning is counted."""

    def __init__(self, name: str = "memory") -> None:
        self._name = name
        self._entries: list[bytes] = []
        self._cut = 0

    async def append(self, data: bytes) -> int:
        self._entries.append(data)
        return self._cut + len(self._entries)

    async def read(self, after: int, most: int = 1000) -> list[tuple[int, bytes]]:
        if after < self._cut:
            raise Truncated(self._name, after, self._cut + 1)
        start = after - self._cut
        return list(enumerate(self._entries[start : start + most], after + 1))

    async def last(self) -> int:
        return self._cut + len(self._entries)

    async def truncate(self, until: int) -> None:
        gone = max(0, min(until - self._cut, len(self._entries)))
        del self._entries[:gone]
        self._cut += gone

    async def close(self) -> None:
        """Others may hold it still."""


class MemoryObjects(Objects):
    """A dictionary whose versions are counted."""

    def __init__(self, clock: Callable[[], datetime] = _machine_clock) -> None:
        self._clock = clock
        self._held: dict[str, tuple[bytes, str, datetime]] = {}
        self._versions = 0

    async def create(self, key: str, data: bytes) -> bool:
        held = self._held.get(checked_key(key))
        if held is None:
            self._put(key, data)
            return True
        return held[0] == data

    async def get(self, key: str) -> bytes | None:
        held = self._held.get(checked_key(key))
        return held and held[0]

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._held[checked_key(key)][0][start : start + length]

    async def head(self, key: str) -> Found | None:
        held = self._held.get(checked_key(key))
        return held and Found(key, len(held[0]), held[2])

    async def read(self, key: str) -> tuple[bytes, str] | None:
        held = self._held.get(checked_key(key))
        return held and held[:2]

    async def replace(self, key: str, data: bytes, version: str | None) -> str | None:
        held = self._held.get(checked_key(key))
        if (held and held[1]) != version:
            return None
        return self._put(key, data)

    async def list(self, prefix: str, *, after: str = "", most: int | None = None) -> list[Found]:
        folder = prefix.rstrip("/") + "/" if prefix else ""
        keys = sorted(key for key in self._held if key.startswith(folder) and key > after)
        return [Found(key, len(self._held[key][0]), self._held[key][2]) for key in keys[:most]]

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._held.pop(checked_key(key), None)

    async def now(self) -> datetime:
        return self._clock()

    async def close(self) -> None:
        """Others may hold it still."""

    def _put(self, key: str, data: bytes) -> str:
        self._versions += 1
        self._held[key] = (bytes(data), str(self._versions), self._clock())
        return str(self._versions)


class MemoryBacking(Backing):
    """Tapes and objects that end with the process."""

    def __init__(self, name: str = "memory", clock: Callable[[], datetime] = _machine_clock) -> None:
        self._name = name
        self._objects = MemoryObjects(clock)
        self._tapes: dict[str, Tape] = {}
        self._requests = new_count()

    @property
    def requests(self) -> Counter[str]:
        return self._requests

    @property
    def name(self) -> str:
        return self._name

    @property
    def objects(self) -> Objects:
        return self._objects

    def tape(self, name: str) -> Tape:
        if name not in self._tapes:
            tape = MemoryTape(f"{self._name} {checked_tape(name)}")
            self._tapes[name] = CountedTape(tape, self._requests)
        return self._tapes[name]

    async def ready(self) -> None:
        """One thread, one dictionary: there is nothing to doubt."""

    async def close(self) -> None:
        """Others may hold it still."""


def shared(name: str) -> MemoryBacking:
    """The backing of this name in this process; without a name, one of the caller's own."""
    if not name:
        return MemoryBacking()
    return _shared.setdefault(name, MemoryBacking(f"memory+log://{name}"))
