"""Times at which something is to be looked at, soonest first."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from heapq import heapify, heappop, heappush

from penstock.core.job import JobId


class Timers:
    """A heap of (time, job). What no longer applies is dropped when it comes up, or when it outweighs the rest.

    The same timer may be set twice; the order in which equal ones come up does not show.
    """

    __slots__ = ("_applies", "_heap", "_room")

    def __init__(self, applies: Callable[[datetime, JobId], bool]) -> None:
        self._applies = applies
        self._heap: list[tuple[datetime, JobId]] = []
        self._room = 1024

    def set(self, at: datetime, job_id: JobId) -> None:
        heappush(self._heap, (at, job_id))
        if len(self._heap) > self._room:
            # Twice what is live, so that cleaning up costs O(1) per timer ever set.
            self._heap = list({timer for timer in self._heap if self._applies(*timer)})
            heapify(self._heap)
            self._room = max(1024, 2 * len(self._heap))

    def first(self) -> datetime | None:
        """The time of the soonest one that applies."""
        heap = self._heap
        while heap and not self._applies(*heap[0]):
            heappop(heap)
        return heap[0][0] if heap else None

    def pop(self) -> tuple[datetime, JobId]:
        """Take the one that `first` told of."""
        return heappop(self._heap)
