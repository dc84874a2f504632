"""A log of objects under every fault that a store and a network have, from seeds that replay the run."""

from __future__ import annotations

import os
from random import Random

import pytest

from penstock.stores.log.backings.numbered import Clocks, ObjectTape
from penstock.stores.log.backings.resolving import Put
from support.faults import FaultyObjects
from support.logsim import Wrong, simulate

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
        except Wrong:
            return True
        return False

    assert any(is_found(seed) for seed in range(FOUND_WITHIN))
