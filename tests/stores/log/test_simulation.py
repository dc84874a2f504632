"""A log of objects under every fault that a store and a network have, from seeds that replay the run."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from random import Random

import pytest

from penstock.stores.log.backings.clocks import Clocks
from penstock.stores.log.backings.memory import MemoryTape
from penstock.stores.log.backings.numbered import ObjectTape
from penstock.stores.log.backings.packed import Evidence, Packed
from penstock.stores.log.backings.resolving import Put
from penstock.stores.log.errors import LogCorrupt, LogGap, OutcomeUnknown
from support.faults import FAIR, FaultyObjects, FaultyTape, client
from support.logsim import SHARD, World, Wrong, simulate
from support.virtual import run

SEEDS = int(os.environ.get("PENSTOCK_SIMULATIONS", "12"))
FOUND_WITHIN = 60


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_confirmed_is_lost_and_all_read_one_order(seed: int) -> None:
    simulate(seed)


def test_the_runs_meet_what_they_are_for() -> None:
    """Without truncations and late readers the runs would show nothing."""
    worlds = [simulate(seed) for seed in range(100, 105)]
    assert sum(world.truncations for world in worlds) > 1
    assert sum(world.reloads for world in worlds) > 0
    assert sum("killed" in event for world in worlds for event in world.trace) > 2
    assert sum(len(world.told) for world in worlds) > 100


def test_a_seed_replays_the_run() -> None:
    first = simulate(7).trace
    assert first == simulate(7).trace
    assert first != simulate(8).trace


@pytest.mark.parametrize("kill_at", range(0, 30, 2))
def test_killed_at_any_await_a_writer_harms_nobody(kill_at: int) -> None:
    simulate(Random(kill_at).getrandbits(32), writers=2, readers=1, kill_at=kill_at)


def test_a_faulty_tape_confirms_only_what_is_there() -> None:
    """The wrapper that tests of the log above it stand on."""

    async def main() -> tuple[dict[int, bytes], dict[int, bytes], int]:
        tape, choices = MemoryTape(), Random(3)
        told: dict[int, bytes] = {}
        unknown = 0
        for name in ("a", "b"):
            faulty = FaultyTape(tape, client(name, choices))
            for number in range(60):
                entry = f"{name}{number}".encode()
                try:
                    told[await faulty.append(entry)] = entry
                except OutcomeUnknown:
                    unknown += 1
        return told, dict(await tape.read(0)), unknown

    told, held, unknown = run(main())
    assert told.items() <= held.items()
    assert unknown > 0
    assert len(held) > len(told), "no answer was lost after the entry was written"


class WithoutWatermark(ObjectTape):
    """Believes what it sees, however long it slept."""

    def _is_fresh(self) -> bool:
        return True


class WithoutFilling(ObjectTape):
    """Answers though numbers below are not taken."""

    async def _fill_below(self, number: int) -> None:
        pass


class AbsentMeansNotWritten(FaultyObjects):
    """Takes a 404 after a lost answer for a no."""

    async def create(self, key: str, data: bytes) -> bool:
        if await self._put(key, data) is Put.WON:
            return True
        return await self.get(key) == data


class ForgetsWhenItLooked(ObjectTape):
    """Takes the time of an answer for that of the question: what happened in between is not seen."""

    async def _deleted_until(self, number: int, absent_since: Clocks | None) -> int:
        self._confirmed = self._clocks()
        return await super()._deleted_until(number, absent_since)


@pytest.mark.parametrize(
    "planted",
    [
        {"make_tape": WithoutWatermark},
        {"make_tape": WithoutFilling},
        {"make_tape": ForgetsWhenItLooked},
        {"make_objects": AbsentMeansNotWritten},
    ],
    ids=["no watermark", "holes are left", "forgets when it looked", "absent means not written"],
)
def test_finds_a_planted_fault(planted: dict[str, object]) -> None:
    def is_found(seed: int) -> bool:
        try:
            simulate(seed, **planted)
        except (Wrong, LogCorrupt, LogGap):  # what the tape itself tells of is found, too
            return True
        return False

    assert any(is_found(seed) for seed in range(FOUND_WITHIN))


class Removing(World):
    """Somebody deletes an entry in the middle. Whoever reads the log is told, or finds all that was confirmed."""

    removed = 0
    reported = False

    def _check_prefix(self, entry: str, place: int) -> None:
        """Who had read it goes on."""

    async def main(self) -> None:
        everybody = [asyncio.create_task(self._until_it_is_told(n)) for n in range(self.writers)]
        await asyncio.sleep(self.choices.uniform(20, 60))
        present = [int(key[-20:]) for key in self.held._held if "/log/" in key]
        inner = [number for number in present if number < max(present, default=0) - 3]
        if inner:
            self.removed = self.choices.choice(inner)
            await self.held.delete([f"{SHARD}/log/{self.removed:020d}"])
        await asyncio.gather(*everybody)
        late, found = self.tape(self.objects("late", FAIR)), dict[int, bytes]()
        try:
            while more := await late.read(len(found)):
                found.update(more)
        except (LogGap, LogCorrupt):
            self.reported = True
            return
        for entry, (place, _, _) in self.told.items():
            if found.get(place) != entry.encode():
                raise self.wrong(f"{entry} was confirmed at {place}, and {found.get(place)!r} is read there")

    async def _until_it_is_told(self, n: int) -> None:
        with suppress(LogGap, LogCorrupt):
            await self.write(f"w{n}", 12)
        await asyncio.sleep(60)
        with suppress(LogGap, LogCorrupt):
            await self.write(f"late{n}", 3)


def removing(seed: int, **options: object) -> Removing:
    world = Removing(seed, **options)  # type: ignore[arg-type]
    run(world.main())
    return world


class WithoutEvidence(ObjectTape):
    """Takes whatever is absent for a hole."""

    async def _check_not_removed(self, number: int) -> None:
        pass

    def _noted(self, number: int, packed: bytes) -> Packed:
        self._evidence = Evidence()
        return super()._noted(number, packed)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_removed_entry_is_never_lost_unnoticed(seed: int) -> None:
    removing(seed)


def test_it_would_be_without_the_evidence() -> None:
    def is_found(seed: int) -> bool:
        try:
            removing(seed, make_tape=WithoutEvidence)
        except Wrong:
            return True
        return False

    assert any(is_found(seed) for seed in range(FOUND_WITHIN))
    assert sum(removing(seed).reported for seed in range(8)) >= 3
