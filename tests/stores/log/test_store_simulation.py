"""The whole store with everything that can go wrong, from seeds that replay the run: jobs, leases, snapshots, history.

`support.storesim` says who takes part, `support.simclients` what they do, `support.judging` what must be true.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.core.errors import PenstockError
from support.planted_log import PLANTED as PLANTED_IN_LOGS
from support.planted_log import looking_without_reading_first
from support.planted_store import MORE, PLANTED, Planted, answers_before_the_prefix_is_read
from support.storesim import Wrong, simulate

SEEDS = int(os.environ.get("PENSTOCK_SIMULATIONS", "3"))
FOUND_WITHIN = 20

QUICK: dict[str, Any] = {"apps": 2, "rounds": 3}

KINDS: dict[str, dict[str, Any]] = {"objects": {}, "shards": {"shards": 3}, "tape": {"numbered": False}}
RUNS = [
    *(("objects", seed) for seed in range(SEEDS)),
    *((kind, seed) for kind in ("shards", "tape") for seed in range(-(-SEEDS // 3))),
]
LONG_RUNS = [
    *(("objects", seed) for seed in range(100, 125)),
    *((kind, seed) for kind in ("shards", "tape") for seed in range(100, 110)),
]

MEETS = {
    "told": 1_000,
    "failed": 50,
    "unknown": 5,
    "unknown and done": 2,
    "sent again": 30,
    "killed": 10,
    "stops": 20,
    "clocks set": 3,
    "clocks that are off": 2,
    "opened late": 10,
    "looks": 10,
    "snapshots": 10,
    "truncations": 5,
    "reloads": 2,
    "deleted segments": 10,
    "facts": 200,
    "leases": 300,
    "leases lost": 30,
    "late ones refused": 20,
    "repeated settles": 10,
    "pruned": 10,
    "fired": 20,
    "rung": 20,
    "in order": 500,
}
"""What the runs must have met at least, taken together: a run that meets nothing shows nothing."""


@cache
def met(kind: str, seed: int) -> Counter[str]:
    """What a run meets that goes well; a run that was is not made again."""
    return simulate(seed, **KINDS[kind]).met


@pytest.mark.parametrize(("kind", "seed"), RUNS)
def test_what_clients_were_told_is_what_happened_and_all_agree(kind: str, seed: int) -> None:
    assert met(kind, seed)["agree"] > 1


@pytest.mark.long
@pytest.mark.parametrize(("kind", "seed"), LONG_RUNS)
def test_what_clients_were_told_is_what_happened_in_many_more_runs(kind: str, seed: int) -> None:
    assert met(kind, seed)["agree"] > 1


def test_the_runs_meet_what_they_are_for() -> None:
    together: Counter[str] = Counter()
    for seed in range(3):
        together += met("objects", seed)
    together += met("shards", 0) + met("tape", 0)
    assert {name: least for name, least in MEETS.items() if together[name] < least} == {}, together


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_replays_the_run(kind: str) -> None:
    assert simulate(7, **KINDS[kind], **QUICK).trace == simulate(7, **KINDS[kind], **QUICK).trace


def test_another_seed_is_another_run() -> None:
    assert met("objects", 0) != met("objects", 1)


@pytest.mark.long
def test_a_seed_replays_the_run_in_any_process() -> None:
    """A failure in CI is to be seen again elsewhere: nothing hangs on the order in which strings hash."""
    script = (
        "import hashlib; from support.storesim import simulate;"
        "print(*(hashlib.sha256(repr(simulate(seed).trace).encode()).hexdigest() for seed in (5, 7, 8)))"
    )
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    said = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(said) == 1


def test_a_failure_says_the_seed_and_the_end_of_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    answers_before_the_prefix_is_read(monkeypatch)
    with pytest.raises(Wrong) as raised:
        simulate(0)
    said = str(raised.value).splitlines()
    assert said[0].startswith("seed 0, as usual: ")
    assert len(said) > 20


@pytest.mark.parametrize("kill_at", [2, 31])
@pytest.mark.parametrize("name", ["app0.1", "compactor0.1"])
def test_killed_at_an_await_a_process_harms_nobody(name: str, kill_at: int) -> None:
    _killed(name, kill_at)


@pytest.mark.long
@pytest.mark.parametrize("kill_at", range(0, 120, 5))
@pytest.mark.parametrize("name", ["app0.1", "compactor0.1"])
def test_killed_at_any_await_a_process_harms_nobody(name: str, kill_at: int) -> None:
    _killed(name, kill_at)


def _killed(name: str, kill_at: int) -> None:
    """In the first run in which it gets so far: a compactor has not always so much to do."""
    seeds = Random(f"{name} {kill_at}")
    runs = (simulate(seeds.getrandbits(32), kill=(name, kill_at), **QUICK) for _ in range(5))
    assert next((run.met["killed"] for run in runs if run.met["killed"]), 0) == 1


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted[0].__name__)
def test_finds_a_planted_fault(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    _find(planted, monkeypatch)


# Not `looking_without_reading_first`: who listens would look again and again, and virtual time would stand still.
@pytest.mark.long
@pytest.mark.parametrize(
    "planted",
    [*MORE, *((plant, {}, 0) for plant in PLANTED_IN_LOGS if plant is not looking_without_reading_first)],
    ids=lambda planted: planted[0].__name__,
)
def test_finds_more_planted_faults(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    _find(planted, monkeypatch)


def _find(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, options, first = planted
    plant(monkeypatch)
    found = next(filter(None, (_wrong(seed, options) for seed in range(first, first + FOUND_WITHIN))), None)
    assert found is not None
    assert isinstance(found.__cause__, (Wrong, PenstockError)), f"the plant itself fails: {found}"


def _wrong(seed: int, options: dict[str, Any]) -> Wrong | None:
    try:
        simulate(seed, **options)
    except Wrong as error:
        return error
    return None
