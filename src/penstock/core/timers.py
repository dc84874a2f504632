"""Times at which something is to be looked at, soonest first."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from heapq import heapify, heappop, heappush

from msgspec import Struct

from penstock.core.job import JobId

_SPARE = 1024
"""Timers beyond twice the needed number that are kept before the heap is cleaned."""


class Timer(Struct, frozen=True, order=True, gc=False):
    """When to look at which job. Less than half the size of a tuple, and there is one for each job that waits."""

    at: datetime
    job_id: JobId


class Timers:
    """A heap of timers, of which some no longer apply.

    Those are dropped when they come up, two with each timer that is set, and all at once when they outweigh
    the rest: cleaning costs O(1) per timer ever set. `needed` says how many can apply at most; without it every
    doubling is taken for an outweighing. The same timer may be set twice; which of the two comes up does not show.
    """

    __slots__ = ("_applies", "_heap", "_needed", "_room")

    def __init__(
        self, applies: Callable[[datetime, JobId], bool], needed: Callable[[], int] | None = None
    ) -> None:
        self._applies = applies
        self._needed = needed
        self._heap: list[Timer] = []
        self._room = _SPARE

    def set(self, at: datetime, job_id: JobId) -> None:
        """Look at a job at a time. It must apply already: what does not is taken for spent."""
        heap = self._heap
        heappush(heap, Timer(at, job_id))
        if not self._applies(heap[0].at, heap[0].job_id):
            heappop(heap)
            if heap and not self._applies(heap[0].at, heap[0].job_id):
                heappop(heap)
        if len(heap) > self._room:
            self._clean()

    def first(self) -> datetime | None:
        """The time of the soonest one that applies."""
        heap = self._heap
        while heap and not self._applies(heap[0].at, heap[0].job_id):
            heappop(heap)
        return heap[0].at if heap else None

    def pop(self) -> tuple[datetime, JobId]:
        """Take the one that `first` told of."""
        timer = heappop(self._heap)
        return timer.at, timer.job_id

    def _clean(self) -> None:
        if self._needed is None or len(self._heap) > 2 * self._needed() + _SPARE:
            self._heap = list({timer for timer in self._heap if self._applies(timer.at, timer.job_id)})
            heapify(self._heap)
        self._room = max(_SPARE, 2 * len(self._heap)) if self._needed is None else 2 * self._needed() + _SPARE
