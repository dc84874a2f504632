"""A process of the simulation: a store, tapes and objects of its own, clocks of its own; it may be stopped and killed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock.core.errors import PenstockError, StoreUnavailable
from penstock.stores.log import backings
from penstock.stores.log.backings import Backing, Tape
from penstock.stores.log.backings.memory import MemoryObjects, MemoryTape
from penstock.stores.log.errors import OutcomeUnknown
from support.book_jobs import Wrong
from support.faults import FaultyObjects, FaultyTape, Killed, _Client

if TYPE_CHECKING:
    from support.storesim import World

START = datetime(2030, 1, 1, tzinfo=UTC)
RETENTION_SECONDS = 120.0

Key = tuple[Any, ...]
"""What a call is known by in the log."""


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Call:
    """Something a client asked for, and what it was told."""

    key: Key
    begun: float
    ended: float | None = None
    answer: Any = None
    outcome: str = "unknown"
    """`told`, `failed` (it says that nothing was written) or `unknown`."""


@dataclass
class Look:
    """A job as a client was shown it."""

    tenant: str
    job_id: str
    begun: float
    ended: float
    status: str | None


class Kept(MemoryObjects):
    """The objects that all share. Of every log there is a copy that nobody ever cuts."""

    def __init__(self, archive: Callable[[str, int, bytes], None]) -> None:
        super().__init__(lambda: START + timedelta(seconds=now()))
        self._archive = archive

    def _put(self, key: str, data: bytes) -> str:
        shard, _, rest = key.partition("/log/")
        if rest:
            self._archive(shard, int(rest), data)
        return super()._put(key, data)


class KeptTape(MemoryTape):
    """A tape that numbers what it is given, as one in a folder does; of it too there is a copy."""

    def __init__(self, shard: str, archive: Callable[[str, int, bytes], None]) -> None:
        super().__init__()
        self._shard, self._archive = shard, archive

    async def append(self, data: bytes) -> int:
        number = await super().append(data)
        self._archive(self._shard, number, data)
        return number


class _Body(_Client):
    """The way of a process to what it shares with others. Nothing gets through while it is stopped."""

    process: Process

    def step(self) -> None:
        try:
            super().step()
        except Killed:
            self.process.end()
            raise

    async def ask(self, what: str, act: Callable[[], Awaitable[Any]], more: Sequence[str] = ()) -> Any:
        await self.process.gate()
        try:
            return await super().ask(what, act, more)
        finally:
            await self.process.gate()


class Objects(FaultyObjects):
    process: Process

    async def now(self) -> datetime:
        await self.process.gate()
        return await super().now() + timedelta(seconds=self.process.off_seconds)


class _Backing(Backing):
    """The place as one process has it."""

    name = "the simulated place"

    def __init__(self, process: Process) -> None:
        self._process, self._tapes = process, dict[str, Tape]()
        self._objects = process.objects

    @property
    def requests(self) -> Counter[str]:
        return Counter()

    @property
    def objects(self) -> backings.Objects:
        return self._objects

    def tape(self, name: str) -> Tape:
        if name not in self._tapes:
            self._tapes[name] = self._process.tape(name)
        return self._tapes[name]

    async def ready(self) -> None:
        pass

    async def close(self) -> None:
        pass


class Process:
    """One life of a program: it ends when it is killed, and another one follows."""

    def __init__(self, world: World, name: str, kill_at: int | None, off_seconds: float) -> None:
        self.world, self.name, self.off_seconds = world, name, off_seconds
        self.client = _Body(name, world.faults, world.random(), kill_at, world.note)
        self.client.process = self
        # A deadline longer than any stall: a suspended machine's timers are suspended with it.
        self.objects = world.make_objects(world.held, self.client, deadline_seconds=2_000)
        self.objects.process = self
        self.stops: list[tuple[float, float, str]] = []
        self.set_seconds = 0.0
        """How far somebody has set its wall clock."""
        self.is_dead = False
        self.main: asyncio.Task[None] | None = None
        self.backing = _Backing(self)
        self.choices = world.random()
        self.store: Any = world.make_store(self)
        world.processes.append(self)

    def tape(self, shard: str) -> Tape:
        world = self.world
        if world.numbered:
            choices = world.random()
            return world.make_tape(
                self.objects, shard, retention_seconds=RETENTION_SECONDS, clocks=self.clocks, choices=choices
            )
        return FaultyTape(world.tape(shard), self.client)

    def clocks(self) -> tuple[float, ...]:
        """The steady one, the one that counts sleep, and the one on the wall."""
        at = now()

        def missed(*kinds: str) -> float:
            return sum(max(0.0, min(at, end) - begin) for begin, end, kind in self.stops if kind in kinds)

        return at - missed("sleep", "machine"), at - missed("machine"), at + self.set_seconds

    def stop(self, seconds: float, kind: str) -> None:
        """Nothing of it goes on for so long: it was stopped, its machine slept, or a virtual machine was suspended."""
        self.stops.append((now(), now() + seconds, kind))
        self.world.note(self.name, "stopped", kind, round(seconds, 3))

    @property
    def is_stopped(self) -> bool:
        return bool(self.stops) and self.stops[-1][1] > now() and not self.world.calmed.is_set()

    async def gate(self) -> None:
        """Wait until it goes on."""
        if self.is_stopped:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.stops[-1][1] - now()):
                    await self.world.calmed.wait()

    def end(self) -> None:
        if not self.is_dead:
            self.is_dead = True
            self.world.note(self.name, "killed")
            self.world.met["killed"] += 1
            if self.main is not None:
                self.main.cancel()

    async def call(
        self, keys: Sequence[Key], ask: Callable[..., Awaitable[Sequence[Any]]], *given: Any
    ) -> Sequence[Any] | None:
        """Ask for something, and keep what was told. None: it is not known whether it has happened, or it has not."""
        calls = [Call(key, now()) for key in keys]
        self.world.calls += calls
        try:
            answers = await ask(*given)
        except StoreUnavailable as error:
            answers = [error] * len(calls)
        except PenstockError as error:
            raise Wrong(f"{self.name} was told {type(error).__name__}: {error}") from error
        except RuntimeError:  # its batch was broken off
            if not self.is_dead:
                raise
            raise asyncio.CancelledError from None
        if self.is_dead:
            raise asyncio.CancelledError
        for call, answer in zip(calls, answers, strict=True):
            call.ended = now()
            if isinstance(answer, StoreUnavailable):
                call.outcome = "unknown" if isinstance(answer, OutcomeUnknown) else "failed"
            else:
                call.outcome, call.answer = "told", answer
            self.world.met[call.outcome] += 1
        away = any(call.outcome != "told" for call in calls)
        self.world.note(self.name, keys[0][0], "unanswered" if away else "told")
        return None if away else answers

    async def surely(
        self, keys: Sequence[Key], ask: Callable[..., Awaitable[Sequence[Any]]], *given: Any
    ) -> Sequence[Any]:
        """The same again, until it is answered."""
        while (answers := await self.call(keys, ask, *given)) is None:
            self.world.met["sent again"] += 1
            await asyncio.sleep(1)
        return answers
