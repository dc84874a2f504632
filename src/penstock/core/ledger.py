"""All jobs of one tenant and every index over them, kept in step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial

from penstock.core import lifecycle
from penstock.core.catalogue import Catalogue
from penstock.core.errors import JobNotFound
from penstock.core.flow import Flow
from penstock.core.job import Born, Cause, Change, Job, JobId, NewJob, Record, Status
from penstock.core.keys import Keys
from penstock.core.lifecycle import ACTIVE, FAILED_FOR_GOOD, FINISHED, Verb
from penstock.core.ordering import Lane
from penstock.core.registry import BY_RULES, AuditLine
from penstock.core.timers import Timers

BY_FLOW = f"{BY_RULES}flow"
BY_EXPIRY = f"{BY_RULES}expiry"
MOST_AUDITED = 100_000
MOST_TOLD = 100_000
"""How much of what happened is remembered in its order, for those who follow."""


class Ledger:
    """What the machine knows. `keep` is the one place where a job is stored; what follows from a move is `move`."""

    def __init__(
        self, tenant: str, lane_class: type[Lane] = Lane, jobs: dict[JobId, Job] | None = None
    ) -> None:
        self.tenant = tenant
        self.jobs: dict[JobId, Job] = {} if jobs is None else jobs
        self.lanes: dict[str, Lane] = {}
        self.trails: dict[tuple[str, str], list[Record]] = {}
        self.audited: deque[tuple[int, AuditLine]] = deque(maxlen=MOST_AUDITED)
        """The last changes that people and tokens made, numbered; they stay when a job and its trail leave."""
        self.keys = Keys()
        self.flow = Flow(self.jobs)
        self.catalogue = Catalogue(self.jobs)
        self.leases = Timers(self._is_leased_until, lambda: sum(lane.running for lane in self.lanes.values()))
        self.deadlines = Timers(self._must_start_by)
        self.ended: dict[str, Timers] = {}
        self.stirred: set[str] = set()
        """Queues in which something may have become free to be leased, until somebody takes note and clears it."""
        self.told: deque[tuple[str, str, Record | Born]] = deque(maxlen=MOST_TOLD)
        """The last things that happened, in order: records as they were noted, and that jobs came in."""
        self.told_count = 0
        self._lane_class = lane_class

    def job(self, job_id: JobId) -> Job:
        job = self.jobs.get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        return job

    def lane(self, queue: str) -> Lane:
        lane = self.lanes.get(queue)
        if lane is None:
            lane = self.lanes[queue] = self._lane_class(queue, self.jobs)
            self.ended[queue] = Timers(partial(self._may_leave, queue))
        return lane

    def note(self, name: str, record: Record, kind: str = "job") -> None:
        """Add a line to the audit trail of a job, a queue, a schedule or an entry."""
        self.trails.setdefault((kind, name), []).append(record)
        if isinstance(record, Change) and not record.actor.startswith(BY_RULES):
            number = self.audited[-1][0] + 1 if self.audited else 1
            self.audited.append((number, AuditLine(kind, name, record)))
        self.told.append((kind, name, record))
        self.told_count += 1

    def add(self, asked: NewJob, now: datetime) -> None:
        """Take a new job in."""
        run_at = asked.run_at or (now if asked.delay is None else now + asked.delay)
        expires_at = asked.expires_at or (None if asked.expires_in is None else now + asked.expires_in)
        status, cause, change = self._birth(asked, expires_at, now)
        ended_at = None if cause is None else now
        job = Job(asked, self.tenant, now, run_at, status, run_at, expires_at, cause=cause, ended_at=ended_at)
        self.told.append(("job", asked.id, Born(now, asked.queue, asked.type)))
        self.told_count += 1
        if change is not None:
            self.note(asked.id, change)
        self.flow.link(asked)
        self.catalogue.add(asked.id)
        self.keep(None, job, now)
        if expires_at is not None:
            self.deadlines.set(expires_at, asked.id)

    def restore(self, jobs: Sequence[Job], now: datetime) -> None:
        """Take jobs as they stand, from wherever they were kept; whose parents do not come along keeps waiting."""
        self.take_back(jobs, now)
        self.count_waiting(jobs)

    def take_back(self, jobs: Sequence[Job], now: datetime) -> None:
        """Take some of the jobs as they stand; when all are here, `count_waiting` says what they wait for."""
        self.jobs.update([(job.asked.id, job) for job in jobs])
        for job in jobs:
            asked, status = job.asked, job.status
            lane = self.lanes.get(asked.queue) or self.lane(asked.queue)
            lane.counts[status] += 1
            lane.restored(job, now)
            self.catalogue.add(asked.id)
            if asked.parents:
                self.flow.link(asked)
            if asked.unique_key is not None and status in ACTIVE:
                self.keys.hold(asked)
            if job.lease is not None:
                self.leases.set(job.lease.expires_at, asked.id)
            if job.expires_at is not None:
                self.deadlines.set(job.expires_at, asked.id)
            if job.ended_at is not None and status in FINISHED:
                self.ended[asked.queue].set(job.ended_at, asked.id)

    def count_waiting(self, jobs: Iterable[Job]) -> None:
        """Count the parents that jobs taken back still wait for."""
        for job in jobs:
            if job.status is Status.WAITING and all(parent in self.jobs for parent in job.asked.parents):
                self.flow.count_pending(job.asked)

    def _birth(
        self, asked: NewJob, expires_at: datetime | None, now: datetime
    ) -> tuple[Status, Cause | None, Change | None]:
        """What a job is when it comes in, and why it is that if it is cancelled."""
        if expires_at is not None and expires_at <= now:
            reason = "it had expired before it came in"
            change = Change(now, Verb.EXPIRE, BY_EXPIRY, reason, Status.CANCELLED)
            return Status.CANCELLED, Cause.EXPIRED, change
        if (parent := self.flow.failed_parent(asked)) is not None:
            reason = f"parent {parent.id} ended {parent.status}"
            change = Change(now, Verb.ABANDON, BY_FLOW, reason, Status.CANCELLED)
            return Status.CANCELLED, Cause.PARENT_FAILED, change
        return (Status.WAITING if self.flow.count_pending(asked) else Status.QUEUED), None, None

    def keep(self, old: Job | None, new: Job, now: datetime) -> None:
        """Store a job: the one place that keeps every index in step with the jobs."""
        asked = new.asked
        self.jobs[asked.id] = new
        was, status = None if old is None else old.status, new.status
        if status is was:
            return
        lane = self.lane(asked.queue)
        lane.counts[status] += 1
        if was is not None:
            lane.counts[was] -= 1
        if was is Status.RUNNING:
            lane.left(new, now)
            self.stirred.add(asked.queue)
        elif was is Status.QUEUED and status is not Status.RUNNING:
            lane.dropped(new, now)
        elif was is Status.HELD:
            lane.unheld(new, now)
        elif was is Status.WAITING:
            self.flow.stopped_waiting(asked.id)
        if status is Status.QUEUED:
            lane.joined(new, was, now)
            self.stirred.add(asked.queue)
        elif status is Status.RUNNING:
            lane.took(new, now)
        if status in ACTIVE:
            if was not in ACTIVE:
                self.keys.hold(asked)
        elif was in ACTIVE:
            self.keys.let_go(asked)
        if status in FINISHED:
            assert new.ended_at is not None
            self.ended[asked.queue].set(new.ended_at, asked.id)
        elif was in FINISHED:
            self.flow.parent_returned(asked.id)

    def move(self, old: Job, new: Job, now: datetime) -> tuple[JobId, ...]:
        """Store a job's move and decide the fate of those that wait for it; returns whose fate changed."""
        self.keep(old, new, now)
        if new.status not in FINISHED or not self.flow.has_children(new.id):
            return ()
        others: list[JobId] = []
        finished = deque([new])
        while finished:
            parent = finished.popleft()
            assert parent.ended_at is not None
            for child in self.flow.waiting_children(parent.id):
                reason = f"parent {parent.id} ended {parent.status}"
                if parent.status in FAILED_FOR_GOOD and self.flow.gives_up(child.asked):
                    moved, verb = lifecycle.abandon(child, parent.ended_at), Verb.ABANDON
                    finished.append(moved)
                elif self.flow.parent_finished(child.asked):
                    moved, verb = lifecycle.unblock(child, parent.ended_at), Verb.UNBLOCK
                else:
                    continue
                self.note(child.id, Change(parent.ended_at, verb, BY_FLOW, reason, moved.status))
                self.keep(child, moved, now)
                others.append(child.id)
        return tuple(others)

    def remove(self, job: Job) -> None:
        """Let go of a job that has ended, and of its trail."""
        del self.jobs[job.id]
        self.trails.pop(("job", job.id), None)
        self.lanes[job.queue].counts[job.status] -= 1
        for parent_id in self.flow.unlink(job.asked):
            parent = self.jobs[parent_id]
            if parent.status in FINISHED and parent.ended_at is not None:
                self.ended[parent.queue].set(parent.ended_at, parent_id)

    def _is_leased_until(self, at: datetime, job_id: JobId) -> bool:
        job = self.jobs.get(job_id)
        return job is not None and job.lease is not None and job.lease.expires_at == at

    def _must_start_by(self, at: datetime, job_id: JobId) -> bool:
        job = self.jobs.get(job_id)
        return (
            job is not None
            and job.expires_at == at
            and job.leases == 0
            and job.status in (Status.WAITING, Status.QUEUED)
        )

    def _may_leave(self, queue: str, at: datetime, job_id: JobId) -> bool:
        job = self.jobs.get(job_id)
        return (
            job is not None
            and job.ended_at == at
            and job.status in (Status.SUCCEEDED, Status.CANCELLED)
            and job.asked.queue == queue
        )
