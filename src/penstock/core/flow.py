"""Who waits for whom: the edges between jobs, and how many of a job's parents are still to come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.core.commands import Parent
from penstock.core.job import Job, JobId, NewJob, OnParentFailure, Status
from penstock.core.lifecycle import FAILED_FOR_GOOD


class Flow:
    """The edges of all flows. Like every index it is told of changes and can be rebuilt from the jobs."""

    def __init__(self, jobs: Mapping[JobId, Job]) -> None:
        self._jobs = jobs
        self._children: dict[JobId, dict[JobId, None]] = {}
        self._pending: dict[JobId, int] = {}

    def link(self, asked: NewJob) -> None:
        """A job with parents came in."""
        for parent_id in asked.parents:
            self._children.setdefault(parent_id, {})[asked.id] = None

    def unlink(self, asked: NewJob) -> list[JobId]:
        """A job left the store; returns the parents that have no children left."""
        childless = []
        for parent_id in asked.parents:
            children = self._children[parent_id]
            del children[asked.id]
            if not children:
                del self._children[parent_id]
                childless.append(parent_id)
        return childless

    @staticmethod
    def gives_up(asked: NewJob) -> bool:
        """Whether the failure of a parent is the end of this job."""
        return asked.on_parent_failure is OnParentFailure.CANCEL

    def failed_parent(self, asked: NewJob) -> Job | None:
        """A parent whose failure keeps this job from ever running."""
        if not self.gives_up(asked):
            return None
        parents = (self._jobs[parent_id] for parent_id in asked.parents)
        return next((parent for parent in parents if parent.status in FAILED_FOR_GOOD), None)

    def count_pending(self, asked: NewJob) -> int:
        """How many parents are still to come, remembered while the job waits."""
        pending = sum(not self._is_done(self._jobs[parent_id].status, asked) for parent_id in asked.parents)
        if pending:
            self._pending[asked.id] = pending
        return pending

    def parent_finished(self, child: NewJob) -> bool:
        """One of a waiting job's parents is done; says whether it was the last."""
        self._pending[child.id] -= 1
        return self._pending[child.id] == 0

    def parent_returned(self, parent_id: JobId) -> None:
        """A finished job was brought back: those who still wait have one more parent to wait for."""
        for child in self.waiting_children(parent_id):
            self._pending[child.id] += 1

    def stopped_waiting(self, job_id: JobId) -> None:
        self._pending.pop(job_id, None)

    def has_children(self, job_id: JobId) -> bool:
        return job_id in self._children

    def children(self, job_id: JobId) -> Iterator[Job]:
        """By id: whose fate is decided first must not depend on the order in which jobs were read back."""
        for child_id in sorted(self._children.get(job_id, ())):
            yield self._jobs[child_id]

    def waiting_children(self, job_id: JobId) -> Iterator[Job]:
        return (child for child in self.children(job_id) if child.status is Status.WAITING)

    def parents(self, asked: NewJob) -> tuple[Parent, ...]:
        """What a job may know of its parents."""
        found = (self._jobs[parent_id] for parent_id in asked.parents)
        return tuple(Parent(parent.id, parent.status, parent.result) for parent in found)

    def _is_done(self, status: Status, child: NewJob) -> bool:
        return status is Status.SUCCEEDED or (status in FAILED_FOR_GOOD and not self.gives_up(child))
