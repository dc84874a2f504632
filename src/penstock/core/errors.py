"""What can go wrong, what it means, and what to do about it.

PenstockError
├── InvalidInput            a value is outside its limits
├── NotFound
│   ├── JobNotFound
│   ├── ParentNotFound
│   ├── ScheduleNotFound
│   ├── TokenNotFound
│   └── OperationNotFound
├── Conflict
│   ├── IdConflict
│   ├── IdempotencyConflict
│   ├── UniqueConflict
│   ├── ParentFailed
│   ├── NotAllowed
│   ├── NotLeasable
│   └── EntryConflict
├── Unauthorized            no token, or none that is known
├── Forbidden               the token does not allow this
├── RateLimited
├── Overloaded
├── LeaseLost
├── JobFailed
├── StoreUnavailable
└── UnknownStore
"""

from __future__ import annotations

from typing import ClassVar


class PenstockError(Exception):
    """Anything Penstock refuses. Catch it to handle every refusal alike; `code` says which one it is.

    `code` and `facts` cross HTTP, so that a client raises the very class the store raised.
    """

    code: ClassVar[str] = "error"
    _by_code: ClassVar[dict[str, type[PenstockError]]] = {}

    def __init_subclass__(cls) -> None:
        PenstockError._by_code[cls.code] = cls

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    @staticmethod
    def from_code(code: str, message: str, facts: dict[str, object]) -> PenstockError:
        """The error another process reported, as the class it was there."""
        error_class = PenstockError._by_code.get(code, PenstockError)
        error = error_class.__new__(error_class)
        PenstockError.__init__(error, message, **facts)
        return error

    def __reduce__(self) -> tuple[object, ...]:
        # Subclasses take facts, not messages; the default would call them with the message.
        return (PenstockError.from_code, (self.code, self.message, self.facts))


class InvalidInput(PenstockError):
    """A value is outside its limits. Nothing was changed; correct the named field and send it again."""

    code = "invalid_input"

    def __init__(self, field: str, must: str, given: object) -> None:
        shown = _shown(given)
        super().__init__(f"{field} must {must}; got {shown}", field=field, must=must, given=shown)


class NotFound(PenstockError):
    """The thing named is not in this tenant's store: it never was, or its retention has passed."""

    code = "not_found"


class JobNotFound(NotFound):
    """No such job in this tenant. Check the id; ended jobs leave the store after their queue's retention."""

    code = "job_not_found"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job {_shown(job_id)} in this tenant", job_id=job_id)


class ParentNotFound(NotFound):
    """A job names a parent that does not exist. Enqueue parents before, or earlier in the same batch as, their children."""

    code = "parent_not_found"

    def __init__(self, job_id: str, parent_id: str) -> None:
        super().__init__(
            f"job {job_id} names the parent {parent_id}, which does not exist in this tenant",
            job_id=job_id,
            parent_id=parent_id,
        )


class ScheduleNotFound(NotFound):
    """No such schedule in this tenant. `schedules` lists the ones there are."""

    code = "schedule_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"no schedule {_shown(name)} in this tenant", name=name)


class TokenNotFound(NotFound):
    """No such token in this tenant. `tokens` lists the ones there are; one that was revoked or has expired is gone."""

    code = "token_not_found"

    def __init__(self, token_id: str) -> None:
        super().__init__(f"no token {_shown(token_id)} in this tenant", token_id=token_id)


class OperationNotFound(NotFound):
    """No such operation in this tenant. `bulk.operations` lists the ones there are; they leave a week after their end."""

    code = "operation_not_found"

    def __init__(self, operation_id: str) -> None:
        super().__init__(f"no operation {_shown(operation_id)} in this tenant", operation_id=operation_id)


class Conflict(PenstockError):
    """The request is well formed but does not fit what is already there."""

    code = "conflict"


class IdConflict(Conflict):
    """Another job has this id. Ids are made once per job; use a new one."""

    code = "id_conflict"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"a different job already has the id {job_id}", job_id=job_id)


class IdempotencyConflict(Conflict):
    """This idempotency key came with another body before. Use a new key for a new request."""

    code = "idempotency_conflict"

    def __init__(self, idempotency_key: str, job_id: str) -> None:
        super().__init__(
            f"idempotency key {_shown(idempotency_key)} was first used, with a different body, for job {job_id}",
            idempotency_key=idempotency_key,
            job_id=job_id,
        )


class UniqueConflict(Conflict):
    """An active job holds this unique key, so this one cannot come back. Wait for that job, or cancel it."""

    code = "unique_conflict"

    def __init__(self, job_id: str, unique_key: str, holder_id: str) -> None:
        super().__init__(
            f"job {job_id} cannot come back: job {holder_id} is active with the same unique key {_shown(unique_key)}",
            job_id=job_id,
            unique_key=unique_key,
            holder_id=holder_id,
        )


class ParentFailed(Conflict):
    """A parent of this job failed for good. Redrive the parent: it brings this job back with it."""

    code = "parent_failed"

    def __init__(self, job_id: str, parent_id: str, status: str) -> None:
        super().__init__(
            f"job {job_id} cannot come back: its parent {parent_id} is {status}; redrive the parent",
            job_id=job_id,
            parent_id=parent_id,
            status=status,
        )


class NotAllowed(Conflict):
    """The job's state does not allow this. Look at the job: somebody else may have acted first."""

    code = "not_allowed"

    def __init__(self, job_id: str, verb: str, status: str) -> None:
        super().__init__(
            f"cannot {verb} job {job_id}: it is {status}", job_id=job_id, verb=verb, status=status
        )


class NotLeasable(Conflict):
    """This job may not be leased now (see `reason`). Choose again; the queue has moved on."""

    code = "not_leasable"

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(f"job {job_id} may not be leased now: {reason}", job_id=job_id, reason=reason)


class EntryConflict(Conflict):
    """Somebody else has changed it meanwhile. Look again, and decide again."""

    code = "entry_conflict"

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"the {kind} {_shown(name)} was changed by somebody else meanwhile", kind=kind, name=name
        )


class Unauthorized(PenstockError):
    """No token was sent, or one that is not known, has expired or was revoked. Send `Authorization: Bearer …`."""

    code = "unauthorized"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class Forbidden(PenstockError):
    """The token is good, but does not allow this. Use one with the scope named."""

    code = "forbidden"

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason, **facts)


class RateLimited(PenstockError):
    """The allowance of this token or tenant is used up. Try again after `retry_after` seconds."""

    code = "rate_limited"

    def __init__(self, policy: str, retry_after: float) -> None:
        super().__init__(
            f"the rate limit of this {policy} is reached; try again in {retry_after:.1f} s",
            policy=policy,
            retry_after=retry_after,
        )


class Overloaded(PenstockError):
    """The queue has as many jobs as it is set to hold. Try again after `retry_after` seconds, or raise its max_depth."""

    code = "overloaded"

    def __init__(self, queue: str, depth: int, max_depth: int, retry_after: float) -> None:
        super().__init__(
            f"queue {queue} is full: {depth:,} jobs wait and it is set to {max_depth:,}; try again in {retry_after:g} s",
            queue=queue,
            depth=depth,
            max_depth=max_depth,
            retry_after=retry_after,
        )


class LeaseLost(PenstockError):
    """The lease is no longer yours: it ran out, or was settled otherwise. Stop the handler; do not settle the job."""

    code = "lease_lost"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"the lease on job {job_id} is no longer held with this token", job_id=job_id)


class JobFailed(PenstockError):
    """The job whose result was awaited ended without one. `status`, `cause` and `error` say how."""

    code = "job_failed"

    def __init__(self, job_id: str, status: str, error: str | None, cause: str | None = None) -> None:
        reason = " ".join(part for part in (f"({cause})" if cause else "", error) if part)
        super().__init__(
            f"job {job_id} ended {status} {reason}".strip(),
            job_id=job_id,
            status=status,
            error=error,
            cause=cause,
        )
        self.status, self.error, self.cause = status, error, cause


class StoreUnavailable(PenstockError):
    """The store could not be reached in time. Try again: the same job id or lease token makes a repeat harmless."""

    code = "store_unavailable"

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(f"{store} could not be reached: {reason}", store=store, reason=reason)


class UnknownStore(PenstockError):
    """The URL names no store that this installation can open. The message lists the ones it can."""

    code = "unknown_store"

    def __init__(self, url: str, known: str) -> None:
        url = _without_secrets(url)
        super().__init__(f"cannot open {_shown(url)}: this installation knows {known}", url=url, known=known)


def _without_secrets(url: str) -> str:
    """A URL as an error may repeat it: without user, password and query."""
    scheme, separator, rest = url.partition("://")
    # The user first: a password may have a question mark.
    return scheme + separator + rest.rpartition("@")[2].partition("?")[0]


def _shown(value: object) -> str:
    """A value as an error may repeat it: never more than a line's worth."""
    try:
        text = repr(value)
    except Exception as error:  # too deep, too long a number, or a repr of its own making
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text):,} characters)"
