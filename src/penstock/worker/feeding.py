"""Which queues to ask for jobs, in which order, and how many to have in reserve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random

from penstock.core import bounds
from penstock.core.errors import InvalidInput
from penstock.core.patterns import is_pattern

AHEAD_SECONDS = 0.1
"""How much work is kept in reserve: what will be begun within this time, going by what was finished lately."""


def parse_queues(queues: str | Iterable[str] | Mapping[str, float]) -> dict[str, float]:
    """Names or patterns and their weights: `"emails=3,reports*"`, `["emails", "reports*"]` or `{"emails": 3}`."""
    if isinstance(queues, Mapping):
        weights = dict(queues)
    else:
        names = queues.split(",") if isinstance(queues, str) else queues
        weights = {}
        for item in names:
            name, equals, weight = item.strip().partition("=")
            try:
                weights[name] = float(weight) if equals else 1.0
            except ValueError:
                raise InvalidInput("queues", "be like emails=3,reports*", item) from None
    for name, weight in weights.items():
        if not is_pattern(name):
            bounds.name("queue", name)
        bounds.number(f"the weight of {name}", weight, 0.001, 1_000_000)
    if not weights:
        raise InvalidInput("queues", "name at least one", queues)
    return weights


def in_turn(weights: Mapping[str, float], random: Random) -> Sequence[str]:
    """The queues in the order to ask them: each is first as often as its weight says, and none is ever left out."""
    if len(weights) == 1:
        return list(weights)
    return sorted(weights, key=lambda name: random.random() ** (1 / weights[name]), reverse=True)


class Pace:
    """How fast jobs are finished, so that no more are leased ahead than will be begun at once.

    A reserve that waits keeps its jobs from workers that have time: for slow handlers there is none.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._rate = 0.0
        self._since = 0.0
        self._count = 0

    def finished(self, now: float) -> None:
        self._count += 1
        passed = now - self._since
        if passed >= AHEAD_SECONDS / 2:
            share = min(1.0, passed / AHEAD_SECONDS)
            self._rate = (1 - share / 2) * self._rate + share / 2 * (self._count / passed)
            self._since, self._count = now, 0

    def ahead(self, now: float) -> int:
        """How many jobs to have in reserve."""
        if now - self._since > 1.0:  # nothing was finished for a while
            return 0
        return min(self._most, int(self._rate * AHEAD_SECONDS))
