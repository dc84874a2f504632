"""The life cycle of one job: the MOVES table, and the pure functions that make the moves."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, assert_never

from msgspec.structs import replace

from penstock.core.commands import Ack, Discard, Nack, Release, Settle, Snooze
from penstock.core.errors import LeaseLost, NotAllowed
from penstock.core.job import Attempt, Cause, Job, Lease, LeaseToken, OnExhausted, Outcome, Status
from penstock.core.settings import Policy, QueueSettings


class Verb(StrEnum):
    UNBLOCK = "unblock"
    ABANDON = "abandon"
    LEASE = "lease"
    HEARTBEAT = "heartbeat"
    ACK = "ack"
    NACK = "nack"
    LOSE = "lose"
    RELEASE = "release"
    SNOOZE = "snooze"
    DISCARD = "discard"
    CANCEL = "cancel"
    EXPIRE = "expire"
    REDRIVE = "redrive"


_AFTER_FAILURE = (Status.QUEUED, Status.DEAD, Status.HELD, Status.CANCELLED)

BORN = (Status.QUEUED, Status.WAITING, Status.CANCELLED)
"""What enqueue makes of a job; cancelled when a parent it waits for has failed already."""

MOVES: Mapping[tuple[Verb, Status], tuple[Status, ...]] = {
    (Verb.UNBLOCK, Status.WAITING): (Status.QUEUED,),
    (Verb.ABANDON, Status.WAITING): (Status.CANCELLED,),
    (Verb.LEASE, Status.QUEUED): (Status.RUNNING,),
    (Verb.HEARTBEAT, Status.RUNNING): (Status.RUNNING,),
    (Verb.ACK, Status.RUNNING): (Status.SUCCEEDED,),
    (Verb.NACK, Status.RUNNING): _AFTER_FAILURE,
    (Verb.LOSE, Status.RUNNING): _AFTER_FAILURE,
    (Verb.RELEASE, Status.RUNNING): (Status.QUEUED, Status.CANCELLED),
    (Verb.SNOOZE, Status.RUNNING): (Status.QUEUED, Status.CANCELLED),
    (Verb.DISCARD, Status.RUNNING): (Status.CANCELLED,),
    (Verb.CANCEL, Status.WAITING): (Status.CANCELLED,),
    (Verb.CANCEL, Status.QUEUED): (Status.CANCELLED,),
    (Verb.CANCEL, Status.RUNNING): (Status.RUNNING,),
    (Verb.CANCEL, Status.HELD): (Status.CANCELLED,),
    (Verb.CANCEL, Status.CANCELLED): (Status.CANCELLED,),
    (Verb.EXPIRE, Status.WAITING): (Status.CANCELLED,),
    (Verb.EXPIRE, Status.QUEUED): (Status.CANCELLED,),
    (Verb.REDRIVE, Status.DEAD): (Status.QUEUED, Status.WAITING),
    (Verb.REDRIVE, Status.HELD): (Status.QUEUED, Status.WAITING),
    (Verb.REDRIVE, Status.CANCELLED): (Status.QUEUED, Status.WAITING),
}
"""The one statement of the life cycle: what each verb may make of a job in each state. All else is refused."""

ACTIVE = frozenset({Status.WAITING, Status.QUEUED, Status.RUNNING})
"""States in which a job holds its unique key."""

FINISHED = frozenset({Status.SUCCEEDED, Status.DEAD, Status.CANCELLED})
"""States that decide what becomes of a job's children. Held is not one: a person has yet to decide."""

FAILED_FOR_GOOD = frozenset({Status.DEAD, Status.CANCELLED})

OUTCOMES: Mapping[Verb, Outcome] = {
    Verb.ACK: Outcome.SUCCEEDED,
    Verb.NACK: Outcome.FAILED,
    Verb.LOSE: Outcome.LOST,
    Verb.RELEASE: Outcome.RELEASED,
    Verb.SNOOZE: Outcome.SNOOZED,
    Verb.DISCARD: Outcome.CANCELLED,
}
"""What the audit trail calls an attempt that ended by each verb."""

VERBS: Mapping[type[Settle], Verb] = {
    Ack: Verb.ACK,
    Nack: Verb.NACK,
    Release: Verb.RELEASE,
    Snooze: Verb.SNOOZE,
    Discard: Verb.DISCARD,
}


def move(job: Job, verb: Verb, to: Status, **changes: Any) -> Job:
    """Make one move of the table, or refuse it."""
    if to not in MOVES.get((verb, job.status), ()):
        raise NotAllowed(job.id, verb, job.status)
    return replace(job, status=to, **changes)


def take(job: Job, lease: Lease) -> Job:
    """Lease a queued job. The attempt counts from here on."""
    return move(
        job, Verb.LEASE, Status.RUNNING,
        lease=lease, attempts=job.attempts + 1, leases=job.leases + 1, progress=None,
    )  # fmt: skip


def held_lease(job: Job, token: LeaseToken) -> Lease:
    """The job's lease, if the token proves that the caller holds it."""
    if job.lease is None or job.lease.token != token:
        raise LeaseLost(job.id)
    return job.lease


def heartbeat(job: Job, token: LeaseToken, seconds: float | None, now: datetime, **changes: Any) -> Job:
    """Extend a lease from now on. The length given, if any, holds for later heartbeats too."""
    lease = held_lease(job, token)
    seconds = lease.seconds if seconds is None else seconds
    lease = replace(lease, seconds=seconds, expires_at=now + timedelta(seconds=seconds))
    return move(job, Verb.HEARTBEAT, Status.RUNNING, lease=lease, **changes)


def settle(job: Job, command: Settle, settings: QueueSettings, now: datetime) -> tuple[Job, Attempt]:
    """End a lease as its holder says. The token proves that the caller still holds it."""
    held_lease(job, command.token)
    ended, attempt = _settle(job, command, settings, now)
    return ended, attempt if command.logs is None else replace(attempt, logs=command.logs)


def _settle(job: Job, command: Settle, settings: QueueSettings, now: datetime) -> tuple[Job, Attempt]:
    match command:
        case Ack(result=result):
            return _end(job, Verb.ACK, now, Status.SUCCEEDED, result=result, error=None)
        case Nack():
            return _fail(job, command, settings.policy(job.asked), now)
        case Release(delay=delay):
            # Without a delay it keeps its place in the line: it was only borrowed.
            return _return(job, Verb.RELEASE, now, job.run_at if delay is None else now + delay)
        case Snooze(delay=delay):
            return _return(job, Verb.SNOOZE, now, now + delay)
        case Discard(reason=reason):
            cause = Cause.CANCELLED if job.cancel_requested else Cause.DISCARDED
            return _end(job, Verb.DISCARD, now, Status.CANCELLED, cause=cause, error=reason)
        case _:
            assert_never(command)


def lose(job: Job, settings: QueueSettings) -> tuple[Job, Attempt]:
    """End a lease that ran out, as of the moment it did, whenever that is noticed."""
    if job.lease is None:
        raise NotAllowed(job.id, Verb.LOSE, job.status)
    policy = settings.policy(job.asked)
    at = job.lease.expires_at
    error = f"lease lost: worker {job.lease.worker} neither settled the job nor sent a heartbeat in time"
    if job.cancel_requested:
        return _end(job, Verb.LOSE, at, Status.CANCELLED, cause=Cause.CANCELLED, error=error)
    if job.attempts >= policy.max_attempts:
        return _exhaust(job, Verb.LOSE, at, policy, Cause.EXHAUSTED, error)
    return _end(job, Verb.LOSE, at, Status.QUEUED, run_at=at, error=error)


def cancel(job: Job, now: datetime) -> Job:
    """Cancel a job that is not running; ask the worker of one that is."""
    if job.status is Status.RUNNING:
        return move(job, Verb.CANCEL, Status.RUNNING, cancel_requested=True)
    if job.status is Status.CANCELLED:
        return move(job, Verb.CANCEL, Status.CANCELLED)
    return move(job, Verb.CANCEL, Status.CANCELLED, cause=Cause.CANCELLED, ended_at=now)


def expire(job: Job) -> Job:
    """Cancel a job whose first lease did not begin in time, as of its deadline."""
    return move(job, Verb.EXPIRE, Status.CANCELLED, cause=Cause.EXPIRED, ended_at=job.expires_at)


def abandon(job: Job, now: datetime) -> Job:
    """Cancel a job whose parent failed for good."""
    return move(job, Verb.ABANDON, Status.CANCELLED, cause=Cause.PARENT_FAILED, ended_at=now)


def unblock(job: Job, now: datetime) -> Job:
    """Queue a job whose parents are done."""
    return move(job, Verb.UNBLOCK, Status.QUEUED, run_at=max(job.run_at, now))


def redrive(job: Job, to: Status, now: datetime) -> Job:
    """Bring a dead, held or cancelled job back with all its attempts before it, and no deadline to start."""
    return move(
        job, Verb.REDRIVE, to,
        attempts=0, run_at=now, expires_at=None, cause=None, ended_at=None, cancel_requested=False,
    )  # fmt: skip


def _fail(job: Job, nack: Nack, policy: Policy, now: datetime) -> tuple[Job, Attempt]:
    if job.cancel_requested:
        return _end(job, Verb.NACK, now, Status.CANCELLED, cause=Cause.CANCELLED, error=nack.error)
    if not nack.retry:
        return _exhaust(job, Verb.NACK, now, policy, Cause.REFUSED, nack.error)
    if job.attempts >= policy.max_attempts:
        return _exhaust(job, Verb.NACK, now, policy, Cause.EXHAUSTED, nack.error)
    delay = policy.retry.delay(job.attempts, nack.entropy) if nack.delay is None else nack.delay
    return _end(job, Verb.NACK, now, Status.QUEUED, run_at=now + delay, error=nack.error)


def _exhaust(
    job: Job, verb: Verb, at: datetime, policy: Policy, cause: Cause, error: str
) -> tuple[Job, Attempt]:
    to = Status.HELD if policy.on_exhausted is OnExhausted.HOLD else Status.DEAD
    return _end(job, verb, at, to, cause=cause, error=error)


def _return(job: Job, verb: Verb, now: datetime, run_at: datetime) -> tuple[Job, Attempt]:
    """Queue a job again without using up the attempt."""
    job = replace(job, attempts=job.attempts - 1)
    if job.cancel_requested:
        return _end(job, verb, now, Status.CANCELLED, cause=Cause.CANCELLED)
    return _end(job, verb, now, Status.QUEUED, run_at=run_at)


def _end(
    job: Job, verb: Verb, at: datetime, to: Status, *, run_at: datetime | None = None, **changes: Any
) -> tuple[Job, Attempt]:
    lease = job.lease
    assert lease is not None
    run_at = job.run_at if run_at is None else run_at
    ended = move(
        job, verb, to,
        lease=None, run_at=run_at, ended_at=None if to is Status.QUEUED else at, cancel_requested=False, **changes,
    )  # fmt: skip
    return ended, Attempt(
        job.id, job.leases, lease.worker, lease.token, lease.taken_at, at, OUTCOMES[verb], to, run_at,
        changes.get("error"), changes.get("result"),
    )  # fmt: skip


def diagram() -> str:
    """The life cycle as a Mermaid state diagram, drawn from the table."""
    labels: dict[tuple[Status, Status], list[str]] = {}
    for (verb, status), targets in MOVES.items():
        for to in targets:
            if to is not status:
                labels.setdefault((status, to), []).append(verb)
    lines = ["stateDiagram-v2", *(f"    [*] --> {status}: enqueue" for status in BORN)]
    lines += [f"    {status} --> {to}: {', '.join(verbs)}" for (status, to), verbs in labels.items()]
    return "\n".join(lines)
