"""Objects and tapes behind a network that delays, drops, repeats and reorders, from a seed.

Each client has a wrapper of its own around what all share. Requests go their own way once they are sent: a client
that is killed or has given up does not take them back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any, TypeVar

from penstock.core.errors import StoreUnavailable
from penstock.stores.log.backings import Found, Objects, Tape
from penstock.stores.log.backings.resolving import Put, create
from penstock.stores.log.errors import OutcomeUnknown

Answer = TypeVar("Answer")


class Killed(BaseException):
    """The process was killed at this await."""


@dataclass(frozen=True)
class Faults:
    """How often what happens, and how long things take (in seconds, drawn evenly)."""

    delay_seconds: tuple[float, float] = (0.01, 0.3)
    request_lost: float = 0.03
    reply_lost: float = 0.04
    error_before: float = 0.03
    error_after: float = 0.04
    conflict: float = 0.04
    """A refusal though nothing is there."""
    late: float = 0.03
    """An error now, and the write lands later."""
    late_seconds: tuple[float, float] = (0.5, 300)
    twice: float = 0.03
    """The request is carried out a second time, later."""
    stalled: float = 0.01
    """The client stops between deciding to ask and asking, as one that is suspended does."""
    stall_seconds: tuple[float, float] = (1, 600)
    timeout_seconds: float = 5

    def fate(self, choices: Random, *, writes: bool) -> str:
        drawn = choices.random()
        names = ["request_lost", "reply_lost", "error_before", "error_after"]
        if writes:
            names += ["conflict", "late", "twice"]
        for name in names:
            drawn -= getattr(self, name)
            if drawn < 0:
                return name
        return "well"


FAIR = Faults(
    request_lost=0, reply_lost=0, error_before=0, error_after=0, conflict=0, late=0, twice=0, stalled=0
)


class _Client:
    """What a wrapper of objects and one of a tape have in common."""

    def __init__(
        self,
        name: str,
        faults: Faults,
        choices: Random,
        kill_at: int | None = None,
        trace: Callable[..., None] = lambda *event: None,
    ) -> None:
        self.name, self.faults, self.choices, self.kill_at, self.trace = name, faults, choices, kill_at, trace
        self.awaits = 0
        self._under_way: set[asyncio.Task[Any]] = set()

    def step(self) -> None:
        """One await. From the one given on, everything is over for this client."""
        self.awaits += 1
        if self.kill_at is not None and self.awaits > self.kill_at:
            raise Killed(self.name)

    async def pause(self, seconds: tuple[float, float]) -> None:
        await asyncio.sleep(self.choices.uniform(*seconds))

    async def ask(self, what: str, act: Callable[[], Awaitable[Answer]], *, writes: bool = False) -> Answer:
        """Send a request, and wait for its answer. StoreUnavailable: none came, or an error that says nothing."""
        self.step()
        if self.choices.random() < self.faults.stalled:
            await self.pause(self.faults.stall_seconds)
        fate = self.faults.fate(self.choices, writes=writes)
        self.trace(self.name, what, fate)
        task = asyncio.get_running_loop().create_task(self._carry(act, fate))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        done, _ = await asyncio.wait([task], timeout=self.faults.timeout_seconds)
        self.step()
        if not done:
            raise StoreUnavailable("the simulated store", f"no answer ({fate})")
        return task.result()

    async def _carry(self, act: Callable[[], Awaitable[Answer]], fate: str) -> Answer:
        faults = self.faults
        await self.pause(faults.delay_seconds)
        match fate:
            case "request_lost":
                await asyncio.sleep(2 * faults.timeout_seconds)
                raise StoreUnavailable("the simulated store", "lost")
            case "error_before":
                raise StoreUnavailable("the simulated store", "500")
            case "conflict":
                raise Conflicting
            case "late":
                self._again(act)
                raise StoreUnavailable("the simulated store", "500")
        answer = await act()
        if fate == "twice":
            self._again(act)
        await self.pause(faults.delay_seconds)
        if fate == "reply_lost":
            await asyncio.sleep(2 * faults.timeout_seconds)
        if fate in {"reply_lost", "error_after"}:
            raise StoreUnavailable("the simulated store", "500, though it was done")
        return answer

    def _again(self, act: Callable[[], Awaitable[Any]]) -> None:
        async def later() -> None:
            await self.pause(self.faults.late_seconds)
            await act()

        task = asyncio.get_running_loop().create_task(later())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)


class Conflicting(Exception):
    """A store's 409: somebody else is at it, or so it says."""


class FaultyObjects(Objects):
    """One client's way to objects that it shares with others."""

    def __init__(self, objects: Objects, client: _Client, deadline_seconds: float = 30) -> None:
        self._objects, self._client, self._deadline = objects, client, deadline_seconds

    async def create(self, key: str, data: bytes) -> bool:
        return await create(
            lambda: self._put(key, data),
            lambda: self.get(key),
            data,
            store="the simulated store",
            key=key,
            deadline_seconds=self._deadline,
            choices=self._client.choices,
        )

    async def _put(self, key: str, data: bytes) -> Put:
        async def put() -> bool:
            return (await self._objects.replace(key, data, None)) is not None

        try:
            won = await self._client.ask(f"put {key}", put, writes=True)
        except StoreUnavailable:
            return Put.UNKNOWN
        except Conflicting:
            return Put.REFUSED
        return Put.WON if won else Put.REFUSED

    async def get(self, key: str) -> bytes | None:
        return await self._client.ask(f"get {key}", lambda: self._objects.get(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self._client.ask(f"get {key}", lambda: self._objects.get_range(key, start, length))

    async def head(self, key: str) -> Found | None:
        return await self._client.ask(f"head {key}", lambda: self._objects.head(key))

    async def read(self, key: str) -> tuple[bytes, str] | None:
        return await self._client.ask(f"read {key}", lambda: self._objects.read(key))

    async def replace(self, key: str, data: bytes, version: str | None) -> str | None:
        try:
            return await self._client.ask(
                f"replace {key}", lambda: self._objects.replace(key, data, version), writes=True
            )
        except (StoreUnavailable, Conflicting):
            raise OutcomeUnknown("the simulated store", key, "no answer") from None

    async def list(self, prefix: str, *, after: str = "", most: int | None = None) -> list[Found]:
        return await self._client.ask(
            f"list {prefix}", lambda: self._objects.list(prefix, after=after, most=most)
        )

    async def delete(self, keys: Sequence[str]) -> None:
        await self._client.ask(f"delete {len(keys)}", lambda: self._objects.delete(keys))

    async def now(self) -> datetime:
        return await self._objects.now()

    async def close(self) -> None:
        pass


class FaultyTape(Tape):
    """One client's way to a tape that it shares with others: an append may be done and not confirmed, or be late."""

    def __init__(self, tape: Tape, client: _Client) -> None:
        self._tape, self._client = tape, client

    async def append(self, data: bytes) -> int:
        try:
            return await self._client.ask("append", lambda: self._tape.append(data))
        except StoreUnavailable as error:
            raise OutcomeUnknown("the simulated store", "an entry", error.message) from None

    async def read(self, after: int, most: int = 1000) -> list[tuple[int, bytes]]:
        return await self._client.ask(f"read {after}", lambda: self._tape.read(after, most))

    async def last(self) -> int:
        return await self._client.ask("last", self._tape.last)

    async def truncate(self, until: int) -> None:
        await self._client.ask(f"truncate {until}", lambda: self._tape.truncate(until))

    async def close(self) -> None:
        pass


def client(
    name: str,
    choices: Random,
    faults: Faults | None = None,
    kill_at: int | None = None,
    trace: Callable[..., None] = lambda *event: None,
) -> _Client:
    """A client of its own fortune, drawn from the run's."""
    return _Client(name, faults or Faults(), Random(choices.getrandbits(64)), kill_at, trace)
