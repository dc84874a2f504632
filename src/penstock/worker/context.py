"""What a handler sees of its job, and how it may say that its attempt ends."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from penstock.core.codec import decode
from penstock.core.commands import Leased
from penstock.core.job import Job, JobId, Status


class HowItEnds(Exception):
    """Raised by a handler to say how its attempt ends."""


class RetryAfter(HowItEnds):
    """The attempt failed; try again after this many seconds, if attempts are left."""

    def __init__(self, seconds: float, reason: str = "the handler asked to be tried again") -> None:
        super().__init__(reason)
        self.seconds = seconds


class GiveUp(HowItEnds):
    """The attempt failed, and trying again is pointless: the job is dead, or held, whatever attempts are left."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class Snooze(HowItEnds):
    """Not yet: run the job again after this many seconds. The attempt does not count."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"snoozed for {seconds} seconds")
        self.seconds = seconds


class Discard(HowItEnds):
    """There is nothing left to do: the job ends cancelled."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class ParentResult:
    """A job this one waited for, and what came of it."""

    __slots__ = ("id", "result", "status")

    def __init__(self, id: JobId, status: Status, result: Any) -> None:
        self.id = id
        self.status = status
        self.result = result

    def __repr__(self) -> str:
        return f"ParentResult({self.id!r}, {self.status.value!r}, {self.result!r})"


class JobContext:
    """A handler with a parameter of this type gets its own.

    >>> @app.job(name="video.encode")                                                # doctest: +SKIP
    ... def encode(path: str, ctx: JobContext) -> None:
    ...     for percent in range(100):
    ...         if ctx.cancelled:
    ...             return
    ...         ctx.progress(percent)
    """

    def __init__(self, leased: Leased, report: Callable[[Any], None] = lambda value: None) -> None:
        self._leased = leased
        self._report = report
        self._cancelled = False

    @property
    def job(self) -> Job:
        """The job as it was when this attempt began."""
        return self._leased.job

    @property
    def id(self) -> JobId:
        return self._leased.id

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1; snoozed and released ones are not counted."""
        return self.job.attempts

    @property
    def fence(self) -> int:
        """A number that grows with every lease of this job: a guard for writes elsewhere, where an older one must lose."""
        return self.job.leases

    @property
    def headers(self) -> dict[str, Any]:
        """What travelled with the job beside its payload."""
        headers = self.job.asked.headers
        return {} if headers is None else decode(headers)

    @property
    def parents(self) -> list[ParentResult]:
        """The jobs this one waited for, in the order it named them."""
        return [
            ParentResult(parent.id, parent.status, None if parent.result is None else decode(parent.result))
            for parent in self._leased.parents
        ]

    @property
    def cancelled(self) -> bool:
        """Whether the job was asked to stop, or its lease was lost. An async handler is cancelled as well."""
        return self._cancelled

    def progress(self, value: Any) -> None:
        """Tell how far it is: any small JSON value. Cheap: what is told often is sent now and then."""
        self._report(value)

    def cancel(self) -> None:
        """Make `cancelled` true; the worker's to call."""
        self._cancelled = True


current: ContextVar[JobContext | None] = ContextVar("penstock_job", default=None)
"""The job that this code runs for, if any: logs and traces are told by it which job they belong to."""
