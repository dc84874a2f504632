"""Which number a writer tries: those who see each other take turns, by number modulo how many they are."""

from __future__ import annotations

import asyncio
from random import Random

HOT_ROUND_TRIPS = 4
SHARED_SECONDS, ALONE_SECONDS, FORGOTTEN_SECONDS = 2.0, 60.0, 600.0
"""Where others have written lately a look is worth it, because it costs a twelfth of a write that is lost to one of them.
Who is alone looks too, now and then: what was removed at the end would be taken for it."""
FIRST_ROUND_TRIP_SECONDS = 0.1
LEAST_ROUND_TRIP_SECONDS = 0.001
"""Whoever waits for a share of it waits for some time."""


class Turns:
    """One writer's view of who else is writing."""

    def __init__(self, me: bytes, choices: Random) -> None:
        self.round_trip = FIRST_ROUND_TRIP_SECONDS
        """How long a write takes, about, in seconds."""
        self._me = me
        self._choices = choices
        self._others: dict[bytes, float] = {}
        self._another_at = float("-inf")

    @property
    def sure_for(self) -> float:
        """How many seconds an end that was seen is taken for the end when we write."""
        return ALONE_SECONDS if now() - self._another_at > FORGOTTEN_SECONDS else SHARED_SECONDS

    def learn(self, seconds: float) -> None:
        """A running mean that one slow write does not spoil."""
        mean = self.round_trip + (min(seconds, 4 * self.round_trip) - self.round_trip) / 8
        self.round_trip = max(mean, LEAST_ROUND_TRIP_SECONDS)

    def saw(self, writer: bytes) -> None:
        self._others[writer] = self._another_at = now()

    def slot(self, after: int, lost: int) -> int:
        """The number to try, above the highest that is taken; `lost` is how often it was another's."""
        number = after + 1
        oldest = now() - HOT_ROUND_TRIPS * self.round_trip
        self._others = {writer: seen for writer, seen in self._others.items() if seen >= oldest}
        if self._others:
            turns = sorted([self._me, *self._others])
            number += (turns.index(self._me) - number) % len(turns)
        return number + (self._choices.randrange(2) if lost >= 3 else 0)


def now() -> float:
    return asyncio.get_running_loop().time()
