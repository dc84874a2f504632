"""Programs with real stores on one place for logs, with everything that can go wrong, in virtual time, from a seed.

Each process has a store, tapes and objects of its own, clocks of its own, and may be stopped or killed. What happened is
judged afterwards by `judging`: here is only who takes part.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from penstock.core.errors import StoreUnavailable
from penstock.stores.log import compacting, log, shard_wakeups, snapshots
from penstock.stores.log.backings import numbered, recent
from penstock.stores.log.backings.memory import MemoryTape
from penstock.stores.log.backings.numbered import ObjectTape
from penstock.stores.log.shards import ShardedLogStore
from penstock.stores.log.store import SHARD, LogStore
from support.book_jobs import Wrong
from support.faults import FAIR, Faults, Killed
from support.judging import judge
from support.simclients import app
from support.simoperators import compact, drain, look_late, set_up
from support.simprocess import START, Call, Kept, KeptTape, Look, Objects, Process, now
from support.virtual import run

__all__ = ["Objects", "World", "Wrong", "simulate"]

STRAGGLERS_SECONDS = 1_000
"""After so long nothing is on its way any more that was sent in bad weather."""
LONGEST_SECONDS = 12_000


def _weathered(share: float) -> Faults:
    """The faults there are, so much of each: in the worst weather little would come about."""
    names = ("request_lost", "reply_lost", "error_before", "error_after", "conflict", "late", "twice")
    rates = {name: getattr(Faults, name) * share for name in names}
    return Faults(stalled=0.002, **rates)


Program = Callable[[Process], Coroutine[Any, Any, None]]


@dataclass
class World:
    """One run: what is shared, what clients were told, and everything that happened."""

    seed: int
    shards: int = 1
    numbered: bool = True
    """Entries are objects by number; otherwise the tape numbers them."""
    make_tape: Callable[..., ObjectTape] = ObjectTape
    make_objects: Callable[..., Objects] = Objects
    apps: int = 3
    rounds: int = 12
    kill: tuple[str, int] | None = None
    """Kill this life of this program at this await, and no other; None: whoever the seed chooses."""

    def __post_init__(self) -> None:
        self.choices = Random(self.seed)
        self.faults = _weathered(self.choices.choice((0.05, 0.2, 0.5)))
        self.archive: dict[str, dict[int, tuple[float, bytes]]] = {}
        """Of every log the first that was ever written at each number, and when."""
        self.held = Kept(self._keep)
        self.tapes: dict[str, MemoryTape] = {}
        self.calls: list[Call] = []
        self.looks: list[Look] = []
        self.trace: list[tuple[object, ...]] = []
        self.met: Counter[str] = Counter()
        self.processes: list[Process] = []
        self.living: dict[str, Process] = {}
        self.acked: list[tuple[str, str]] = []
        """Jobs that were told to be there: tenant and id."""
        self.strays: list[BaseException] = []
        """What tasks ended with that nobody waited for."""
        self.calmed = asyncio.Event()
        """Set when nothing goes wrong any more."""
        self.ids = 0

    @property
    def logs(self) -> list[str]:
        return [f"s{number:02d}" for number in range(self.shards)] if self.shards > 1 else [SHARD]

    def random(self) -> Random:
        return Random(self.choices.getrandbits(64))

    def note(self, *event: object) -> None:
        self.trace.append((round(now(), 6), *event))

    def tape(self, shard: str) -> MemoryTape:
        return self.tapes.setdefault(shard, KeptTape(shard, self._keep))

    def _keep(self, shard: str, number: int, data: bytes) -> None:
        self.archive.setdefault(shard, {}).setdefault(number, (now(), data))

    def make_store(self, process: Process) -> Any:
        if self.shards > 1:
            return ShardedLogStore(process.backing, self.shards)
        return LogStore.at(process.backing, random=self.random())

    def new_id(self) -> str:
        """Ids that sort by age, as a client's do."""
        self.ids += 1
        millis = int((START + timedelta(seconds=now())).timestamp() * 1000)
        text = f"{millis:012x}7000a{self.ids:015x}"
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

    # Who takes part.

    async def main(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._stray)
        try:
            await self._run()
        except TimeoutError as error:
            raise Wrong(f"it came to no end within {LONGEST_SECONDS:,} seconds") from error
        await judge(self, self.first)
        if self.strays:
            raise Wrong(f"nobody was there to hear of {self.strays[0]!r}") from self.strays[0]

    async def _run(self) -> None:
        async with asyncio.timeout(LONGEST_SECONDS):
            self.first = Process(self, "first", None, 0)
            await set_up(self.first)
            apps = [asyncio.create_task(self.live(f"app{n}", app, deaths=2)) for n in range(self.apps)]
            others = [
                asyncio.create_task(self.live("late", look_late, deaths=3)),
                *(asyncio.create_task(self.live(f"compactor{n}", compact, deaths=3)) for n in range(2)),
                asyncio.create_task(self.weather()),
            ]
            try:
                await self._all_of(apps, others)
                self.calm()
                for task in others:
                    task.cancel()
                await asyncio.gather(*others, return_exceptions=True)
                for task in others:
                    if not task.cancelled() and (error := task.exception()) is not None:
                        raise error
                await asyncio.sleep(STRAGGLERS_SECONDS)
            finally:
                for task in [*apps, *others]:
                    task.cancel()
            await drain(self.first)

    def _stray(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What a task of a process that was killed had to say is nobody's any more."""
        error = context.get("exception")
        if not isinstance(error, (Killed, StoreUnavailable)):
            self.strays.append(error or RuntimeError(context["message"]))

    async def _all_of(self, busy: list[asyncio.Task[None]], others: list[asyncio.Task[None]]) -> None:
        """Until all who are busy are done, or anybody finds something wrong."""
        while any(not task.done() for task in busy):
            done, _ = await asyncio.wait([*busy, *others], return_when=asyncio.FIRST_EXCEPTION, timeout=5)
            for task in done:
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error

    async def live(self, name: str, program: Program, deaths: int) -> None:
        """A program whose process may be killed a few times, and is followed by another each time."""
        choices = self.random()
        for life in range(1, 100):
            kill_at = choices.randrange(5, 250) if choices.random() < 0.6 and life <= deaths else None
            if self.kill is not None:
                kill_at = self.kill[1] if self.kill[0] == f"{name}.{life}" else None
            off = choices.choice((0, 0, 0, 0, -6, 7)) if name.startswith("app") else 0
            self.met["clocks that are off"] += off != 0
            process = self.living[name] = Process(self, f"{name}.{life}", kill_at, off)
            process.main = asyncio.create_task(program(process))
            try:
                await process.main
                return
            except (asyncio.CancelledError, Killed):
                if not process.is_dead:
                    process.main.cancel()
                    raise
            await asyncio.sleep(choices.uniform(0, 20))

    async def weather(self) -> None:
        """Now and then a process stands still, or has its clock set."""
        choices = self.random()
        while True:
            await asyncio.sleep(choices.uniform(10, 80))
            process = self.living[choices.choice(sorted(self.living))]
            if process.is_stopped:
                continue
            if choices.random() < 0.2 and not any(kind == "machine" for *_, kind in process.stops):
                process.set_seconds += choices.choice((-3600, -30, 40, 3600))
                self.met["clocks set"] += 1
            else:
                kind = choices.choice(("stopped", "sleep", "machine"))
                if kind == "machine" and process.set_seconds:
                    kind = "sleep"  # with no clock left that tells it, nobody could know
                process.stop(choices.choice((5, 30, 150, 400)), kind)
                self.met["stops"] += 1

    def calm(self) -> None:
        """From now on nothing goes wrong any more."""
        self.calmed.set()
        self.faults = FAIR
        for process in self.processes:
            process.client.faults, process.client.kill_at = FAIR, None


@contextmanager
def small(random: Random, met: Counter[str]) -> Iterator[None]:
    """All that has an end comes to it soon, and nothing hangs on the machine that this runs on."""
    load = log.Log._load

    async def counted(self: log.Log, source: log.Source, least: int) -> None:
        met["reloads"] += least > 0
        await load(self, source, least)

    drawn = SimpleNamespace(
        token_bytes=random.randbytes, token_hex=lambda length=16: random.randbytes(length).hex()
    )
    clock = SimpleNamespace(monotonic=now)
    with ExitStack() as stack:
        for module, name, value in (
            (log, "secrets", drawn),
            (log, "time", clock),
            (numbered, "time", clock),
            (numbered, "FETCH_BYTES", 4_000),
            (recent, "REMEMBERED_BYTES", 400),
            (snapshots, "secrets", drawn),
            (snapshots, "JOBS_PER_SEGMENT", 8),
            (snapshots, "TOLD_PER_SEGMENT", 16),
            (compacting, "KEPT_UNNAMED", timedelta(seconds=400)),
            (snapshots, "KEPT_UNNAMED", timedelta(seconds=400)),
            (compacting, "FACTS_PER_FILE", 40),
            (log, "READ_AT_ONCE", 20),
            (log.Log, "_load", counted),
            (log, "Random", lambda: Random(random.getrandbits(64))),
            (shard_wakeups, "Random", lambda: Random(random.getrandbits(64))),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield


def simulate(seed: int, **options: Any) -> World:
    """One run. Wrong says what went wrong in it, with the seed and the end of the trace."""
    world = World(seed, **options)
    try:
        with small(world.random(), world.met):
            run(world.main())
    except Exception as error:
        events = "\n".join(map(str, world.trace[-25:]))
        what = str(error) if isinstance(error, Wrong) else f"{type(error).__name__}: {error}"
        raise Wrong(f"seed {seed}, {options or 'as usual'}: {what}\n{events}") from error
    return world
