"""Writers, readers and a compactor on one log of objects, in virtual time, from a seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from unittest.mock import patch

import msgspec

from penstock.core.errors import StoreUnavailable
from penstock.stores.log.backings import numbered, recent
from penstock.stores.log.backings.memory import MemoryObjects
from penstock.stores.log.backings.numbered import ObjectTape
from penstock.stores.log.errors import OutcomeUnknown, Truncated
from support.faults import FAIR, Faults, FaultyObjects, Killed, client
from support.virtual import run

SHARD = "s00"
START = datetime(2030, 1, 1, tzinfo=UTC)
RETENTION_SECONDS = 120.0
ENTRIES = 20
LONGEST_SECONDS = 50_000


class Wrong(AssertionError):
    """What must not happen happened; the message says it, the seed replays it."""


@dataclass
class World:
    """One run: what is shared, what clients were told, and everything that happened."""

    seed: int
    faults: Faults = field(default_factory=Faults)
    make_tape: Callable[..., ObjectTape] = ObjectTape
    make_objects: Callable[..., FaultyObjects] = FaultyObjects
    writers: int = 3
    readers: int = 2
    kill_at: int | None = None
    """Kill the first writer at this await, and no other; None: whoever the seed chooses."""

    def __post_init__(self) -> None:
        self.choices = Random(self.seed)
        self.held = MemoryObjects(lambda: START + timedelta(seconds=asyncio.get_running_loop().time()))
        self.told: dict[str, tuple[int, float, float]] = {}
        """Entry: number, when it was begun, when it was confirmed."""
        self.read: dict[int, bytes] = {}
        """What any reader saw at a number."""
        self.trace: list[tuple[object, ...]] = []
        self.truncations = 0
        self.reloads = 0

    def wrong(self, what: str) -> Wrong:
        return Wrong(f"seed {self.seed}: {what}")

    def note(self, *event: object) -> None:
        self.trace.append((round(asyncio.get_running_loop().time(), 6), *event))

    def objects(self, name: str, faults: Faults | None = None, kill_at: int | None = None) -> FaultyObjects:
        one = client(name, self.choices, faults or self.faults, kill_at, self.note)
        # A deadline longer than any stall: a suspended machine's timers are suspended with it.
        return self.make_objects(self.held, one, deadline_seconds=2_000)

    def tape(self, objects: FaultyObjects) -> ObjectTape:
        return self.make_tape(
            objects,
            SHARD,
            retention_seconds=RETENTION_SECONDS,
            clocks=lambda: (asyncio.get_running_loop().time(),),
            choices=Random(self.choices.getrandbits(64)),
        )

    # Who takes part.

    async def main(self) -> None:
        busy = [asyncio.create_task(self.write(f"w{n}", ENTRIES)) for n in range(self.writers)]
        others = [asyncio.create_task(self.follow(f"r{n}")) for n in range(self.readers)]
        others.append(asyncio.create_task(self.compact()))
        async with asyncio.timeout(LONGEST_SECONDS):
            await asyncio.gather(*busy)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for task in others:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        await self.check()

    async def write(self, name: str, entries: int) -> None:
        """Append so many entries, one after the other; whoever is killed is followed by another."""
        lives = 0
        number = 0
        while number < entries:
            kill_at = self._kill_at(name, lives)
            lives += 1
            tape = self.tape(self.objects(f"{name}.{lives}", kill_at=kill_at))
            try:
                while number < entries:
                    number += 1
                    await self._append(tape, f"{name}.{lives}.{number}")
                    await asyncio.sleep(self.choices.choice((0, 0, 0.5, 5, 120)) * self.choices.random())
            except Killed:
                self.note(name, "killed")

    def _kill_at(self, name: str, lives: int) -> int | None:
        if self.kill_at is not None:
            return self.kill_at if name == "w0" and lives == 0 else None
        return self.choices.randrange(4, 120) if self.choices.random() < 0.5 and lives < 3 else None

    async def _append(self, tape: ObjectTape, entry: str) -> None:
        """An error that does not leave the outcome open says that nothing was written: then it is sent again."""
        begun = asyncio.get_running_loop().time()
        while True:
            try:
                place = await tape.append(entry.encode())
            except OutcomeUnknown:
                return
            except StoreUnavailable:
                await asyncio.sleep(1)
                continue
            self.told[entry] = (place, begun, asyncio.get_running_loop().time())
            self.note(entry, place)
            self._check_prefix(entry, place)
            return

    def _check_prefix(self, entry: str, place: int) -> None:
        """All numbers below a confirmed one are taken, by what is there or by what was deleted under the watermark."""
        watermark = self._manifest()[0]
        for number in range(watermark + 1, place):
            if f"{SHARD}/log/{number:020d}" not in self.held._held:
                raise self.wrong(f"{entry} was confirmed at {place}, and {number} is not taken")

    async def follow(self, name: str) -> None:
        """Read on and on; whoever comes too late begins at the snapshot."""
        tape = self.tape(self.objects(name))
        after = 0
        while True:
            begun = asyncio.get_running_loop().time()
            try:
                found = await tape.read(after, self.choices.choice((1, 3, 1000)))
            except Truncated:
                self.reloads += 1
                watermark, snapshot, entries = self._manifest()
                self._saw(name, entries)
                after = max(snapshot, watermark)
                continue
            except StoreUnavailable:
                found = []
            else:
                self._check_end(name, after, begun, found)
            self._saw(name, dict(found))
            after = found[-1][0] if found else after
            if not found:
                await asyncio.sleep(self.choices.choice((0.2, 3, 30)))

    def _check_end(self, name: str, after: int, begun: float, found: list[tuple[int, bytes]]) -> None:
        """Nothing is found at the end only: whatever was confirmed before somebody looked is found by them."""
        if found and found[0][0] != after + 1:
            raise self.wrong(f"{name} asked what follows {after}, and was told of {found[0][0]}")
        for entry, (place, _, confirmed) in self.told.items():
            if not found and place > after and confirmed < begun:
                raise self.wrong(f"{name} found nothing behind {after}, and {entry} was confirmed at {place}")

    def _saw(self, name: str, entries: dict[int, bytes]) -> None:
        for number, data in entries.items():
            if self.read.setdefault(number, data) != data:
                raise self.wrong(f"{name} read {data!r} at {number}, and another {self.read[number]!r}")

    async def compact(self) -> None:
        """Take snapshots, publish the watermark, and delete what is old behind it."""
        objects = self.objects("compactor")
        tape = self.tape(objects)
        state: dict[int, bytes] = {}
        while True:
            await asyncio.sleep(self.choices.uniform(5, 40))
            try:
                while found := await tape.read(len(state)):
                    state.update(found)
                self._saw("compactor", state)
                held = await objects.read(f"{SHARD}/manifest")
                old = msgspec.json.decode(held[0])["watermark"] if held else 0
                limit = await objects.now() - timedelta(seconds=RETENTION_SECONDS)
                listed = await objects.list(f"{SHARD}/log")
                young = [
                    int(one.key[-20:]) for one in listed if one.modified > limit and int(one.key[-20:]) > old
                ]
                watermark = min([len(state), *(number - 1 for number in young)])
                if not state or watermark <= old:
                    continue
                manifest = {
                    "watermark": watermark,
                    "snapshot": {
                        "number": len(state),
                        "entries": {n: data.decode() for n, data in state.items()},
                    },
                }
                if await objects.replace(
                    f"{SHARD}/manifest", msgspec.json.encode(manifest), held and held[1]
                ):
                    self.note("compactor", "watermark", watermark)
                    await tape.truncate(watermark)
                    self.truncations += 1
            except StoreUnavailable:
                continue

    def _manifest(self) -> tuple[int, int, dict[int, bytes]]:
        held = self.held._held.get(f"{SHARD}/manifest")
        if held is None:
            return 0, 0, {}
        manifest = msgspec.json.decode(held[0])
        entries = {int(n): data.encode() for n, data in manifest["snapshot"]["entries"].items()}
        return manifest["watermark"], manifest["snapshot"]["number"], entries

    # What must be true in the end.

    async def check(self) -> None:
        _, snapshot, entries = self._manifest()
        late = self.tape(self.objects("late", FAIR))
        after = snapshot
        while found := await late.read(after):
            entries.update(found)
            after = found[-1][0]
        if sorted(entries) != list(range(1, after + 1)):
            raise self.wrong("there are gaps")
        written = [data for data in entries.values() if data]
        if twice := sorted({data for data in written if written.count(data) > 1}):
            raise self.wrong(f"{twice} are there more than once")
        for entry, (place, _, _) in self.told.items():
            if entries.get(place) != entry.encode():
                raise self.wrong(f"{entry} was confirmed at {place}, and {entries.get(place)!r} is there")
        self._saw("late", entries)
        in_order = sorted(self.told.values())
        for place, _, confirmed in in_order:
            for other, begun, _ in in_order:
                if other < place and begun > confirmed:
                    raise self.wrong(f"{other} was begun after {place} was confirmed")


def simulate(seed: int, **options: object) -> World:
    """One run. Wrong says what went wrong in it."""
    world = World(seed, **options)  # type: ignore[arg-type]
    # So little is remembered and fetched that what a reader asks for has often been dropped, or is more than it gets.
    with patch.object(recent, "REMEMBERED_BYTES", 20), patch.object(numbered, "FETCH_BYTES", 300):
        run(world.main())
    return world
