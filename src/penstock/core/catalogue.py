"""All jobs of a machine in the order of their ids, so that they can be listed page by page."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from penstock.core.commands import Filter, Page
from penstock.core.job import Job, JobId

MOST_EXAMINED = 10_000
"""Jobs looked at for one page: a rare match makes a short page with a `next`, not a long wait."""


class Catalogue:
    def __init__(self, jobs: Mapping[JobId, Job]) -> None:
        self._jobs = jobs
        self._ids: list[JobId] = []

    def add(self, job_id: JobId) -> None:
        ids = self._ids
        if not ids or ids[-1] < job_id:
            ids.append(job_id)  # ids grow with time: nearly always this
            return
        place = bisect_left(ids, job_id)
        if ids[place] != job_id:  # else it was here before, left, and is not tidied away yet
            ids.insert(place, job_id)

    def between(self, first: JobId, before: JobId | None) -> list[JobId]:
        """The ids of the jobs from one id on and below another, in order."""
        end = len(self._ids) if before is None else bisect_left(self._ids, before)
        return [job_id for job_id in self._ids[bisect_left(self._ids, first) : end] if job_id in self._jobs]

    def tidy(self) -> None:
        """Forget the ids of jobs that have left, once they are most of what is here."""
        if len(self._ids) > 2 * len(self._jobs):
            self._ids = [job_id for job_id in self._ids if job_id in self._jobs]

    def page(self, filter: Filter, after: JobId | None, limit: int) -> Page:
        """The jobs that match, newest id first, from below `after` on."""
        start = len(self._ids) if after is None else bisect_left(self._ids, after)
        end = max(0, start - MOST_EXAMINED)
        found: list[Job] = []
        for index in range(start - 1, end - 1, -1):
            job = self._jobs.get(self._ids[index])
            if job is not None and filter.matches(job):
                found.append(job)
                if len(found) == limit:
                    return Page(tuple(found), job.id if index > 0 else None)
        return Page(tuple(found), self._ids[end] if end > 0 else None)
