"""Why a job is where it is, in words.

Everything here is read through the port, in a bounded number of calls and rows: where there is too much to be certain,
the answer says so.
"""

from __future__ import annotations

from datetime import datetime
from typing import assert_never

from msgspec import Struct

from penstock.core.fingerprint import TRACE
from penstock.core.job import Cause, Job, Status
from penstock.explain.obstacles import expiring, queued
from penstock.explain.telling import (
    FEW,
    Reason,
    by,
    change_facts,
    cut,
    iso,
    last_change,
    listed,
    many,
    told,
    when,
)
from penstock.presence import workers
from penstock.queue import Queue

__all__ = ["Explanation", "Reason", "explain"]


class Explanation(Struct, frozen=True):
    job_id: str
    status: Status
    summary: str
    """One sentence that answers the question."""
    reasons: tuple[Reason, ...] = ()
    """What keeps it, the most telling first."""


async def explain(queue: Queue, job_id: str) -> Explanation:
    """Why the job does not run; or, if it runs or has ended, what it does and how it came to that."""
    job = await queue.get(job_id)
    now = await queue.store.now()
    match job.status:
        case Status.RUNNING:
            reasons = await _running(queue, job, now)
        case Status.WAITING:
            reasons = [*await _waiting(queue, job), *expiring(job, now)]
        case Status.QUEUED:
            reasons = await queued(queue, job, now)
        case Status.SUCCEEDED | Status.DEAD | Status.HELD | Status.CANCELLED:
            reasons = [await _ended(queue, job, now)]
        case _:
            assert_never(job.status)
    return Explanation(job.id, job.status, f"The job is {job.status}: {reasons[0].message}.", tuple(reasons))


async def _running(queue: Queue, job: Job, now: datetime) -> list[Reason]:
    lease = job.lease
    assert lease is not None
    reasons = [
        Reason(
            "running",
            f"worker {lease.worker} has run attempt {job.attempts} since {when(lease.taken_at, now)}; "
            f"its lease lasts until {when(lease.expires_at, now)}, unless it is renewed",
            {
                "worker": lease.worker, "attempt": job.attempts, "since": iso(lease.taken_at),
                "lease_until": iso(lease.expires_at), "cancel_requested": job.cancel_requested,
            },
        )
    ]  # fmt: skip
    if job.cancel_requested:
        asked = last_change((await queue.history(job.id)).changes, "cancel")
        reasons.insert(
            0,
            Reason(
                "cancel_requested",
                f"it was asked to stop{by(asked, now)}, and worker {lease.worker} has not ended it yet; "
                f"at the latest it ends with its lease, {when(lease.expires_at, now)}",
                {"worker": lease.worker, "lease_until": iso(lease.expires_at), **change_facts(asked)},
            ),
        )
    if all(shown.worker != lease.worker for shown in await workers(queue.store, queue.tenant)):
        reasons.append(
            Reason(
                "worker_not_seen",
                f"worker {lease.worker} does not show itself: it leases by hand, or it is gone, and then "
                "the attempt counts as lost when its lease runs out",
                {"worker": lease.worker, "lease_until": iso(lease.expires_at)},
            )
        )
    return reasons


async def _ended(queue: Queue, job: Job, now: datetime) -> Reason:
    ended_at = job.ended_at or now
    facts: dict[str, object] = {"ended_at": iso(ended_at), "attempts": job.attempts}
    if job.error is not None:
        facts["error"] = job.error
    # Where it was raised would fill the sentence; whoever looks at the job sees it.
    said = "" if job.error is None else f"; the last error was: {cut(job.error.partition(TRACE)[0])}"
    match job.cause:
        case None:
            took = f" in attempt {job.attempts}" if job.attempts else ""
            return Reason("succeeded", f"it ended well{took} at {when(ended_at, now)}", facts)
        case Cause.EXHAUSTED:
            how = (
                f"its {many(job.attempts, 'attempt')} were used up"
                if job.attempts != 1
                else "its only attempt failed"
            )
            message = f"{how} at {when(ended_at, now)}{said}; {_what_to_do(job)}"
        case Cause.REFUSED:
            message = f"its handler said at {when(ended_at, now)} that trying again is pointless{said}; {_what_to_do(job)}"
        case Cause.CANCELLED:
            asked = last_change((await queue.history(job.id)).changes, "cancel")
            facts |= change_facts(asked)
            message = f"it was cancelled{by(asked, now)}; redrive it to run it after all"
        case Cause.DISCARDED:
            why = "" if job.error is None else f": {cut(job.error)}"
            message = f"its handler found nothing left to do at {when(ended_at, now)}{why}"
        case Cause.EXPIRED:
            message = f"it had not started by its expires_at, {when(ended_at, now)}; redrive it to run it all the same"
        case Cause.PARENT_FAILED:
            failed = [parent for parent in await _parents(queue, job) if parent.status in _FAILED]
            facts |= {"parents": told(failed), "more": max(0, len(failed) - FEW)}
            message = f"a job it waited for failed: {listed(failed)}; redrive that one, and this one comes back with it"
        case _:
            assert_never(job.cause)
    return Reason(job.cause, message, facts)


def _what_to_do(job: Job) -> str:
    if job.status is not Status.HELD:
        return "redrive it to try again"
    behind = "" if job.asked.ordering_key is None else ", and the jobs behind its ordering key wait for that"
    return f"somebody has to redrive or cancel it{behind}"


_FAILED = (Status.DEAD, Status.CANCELLED)


async def _waiting(queue: Queue, job: Job) -> list[Reason]:
    parents = await _parents(queue, job)
    # A child that runs whatever becomes of its parents waits only for those that have not ended.
    pending = [parent for parent in parents if parent.status not in (Status.SUCCEEDED, *_FAILED)]
    if not pending:
        return [Reason("parents_ended", "its parents have ended, and it is about to be queued")]
    facts: dict[str, object] = {
        "parents": told(pending), "more": max(0, len(pending) - FEW), "all": len(job.asked.parents),
    }  # fmt: skip
    message = (
        f"it waits for {len(pending)} of its {many(len(job.asked.parents), 'parent')}: {listed(pending)}"
    )
    held = [parent for parent in pending if parent.status is Status.HELD]
    if held:
        message += f"; somebody has to redrive or cancel {held[0].id}"
    return [Reason("waiting_for_parents", message, facts)]


async def _parents(queue: Queue, job: Job) -> list[Job]:
    found = await queue.store.get(queue.tenant, job.asked.parents)
    return [parent for parent in found if isinstance(parent, Job)]
