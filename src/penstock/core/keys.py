"""The two keys that keep work from being done twice: per request, and per active job."""

from __future__ import annotations

from datetime import datetime
from heapq import heappop, heappush

from msgspec import Struct

from penstock.core.codec import fingerprint
from penstock.core.errors import IdempotencyConflict
from penstock.core.job import JobId, NewJob


class Request(Struct, frozen=True, gc=False):
    job_id: JobId
    fingerprint: str
    until: datetime


class Keys:
    def __init__(self) -> None:
        self.requests: dict[str, Request] = {}
        self._windows: list[tuple[datetime, str]] = []
        self._holders: dict[tuple[str, str], JobId] = {}

    def restore_request(self, key: str, job_id: JobId, fingerprint: str, until: datetime) -> None:
        """Take a request as it was remembered elsewhere."""
        self.requests[key] = Request(job_id, fingerprint, until)
        heappush(self._windows, (until, key))

    def restore_holder(self, queue: str, unique_key: str, job_id: JobId) -> None:
        self._holders[queue, unique_key] = job_id

    def answered(self, asked: NewJob, now: datetime) -> JobId | None:
        """The job that answered this request before, if its window is still open."""
        if asked.idempotency_key is None:
            return None
        request = self.requests.get(asked.idempotency_key)
        if request is None or request.until <= now:
            return None
        if request.fingerprint != fingerprint(asked):
            raise IdempotencyConflict(asked.idempotency_key, request.job_id)
        return request.job_id

    def remember(self, asked: NewJob, job_id: JobId, now: datetime) -> None:
        """From now on, until its window closes, this request has this answer."""
        if asked.idempotency_key is not None:
            until = now + asked.idempotency_window
            self.requests[asked.idempotency_key] = Request(job_id, fingerprint(asked), until)
            heappush(self._windows, (until, asked.idempotency_key))

    def may_forget(self, now: datetime) -> bool:
        return bool(self._windows) and self._windows[0][0] <= now

    def forget(self, now: datetime) -> None:
        """Drop the requests whose window has closed."""
        while self._windows and self._windows[0][0] <= now:
            until, key = heappop(self._windows)
            if key in self.requests and self.requests[key].until == until:
                del self.requests[key]

    def holder(self, asked: NewJob) -> JobId | None:
        """The active job that holds this job's unique key."""
        return None if asked.unique_key is None else self._holders.get((asked.queue, asked.unique_key))

    def hold(self, asked: NewJob) -> None:
        if asked.unique_key is not None:
            self._holders[asked.queue, asked.unique_key] = asked.id

    def let_go(self, asked: NewJob) -> None:
        if asked.unique_key is not None:
            del self._holders[asked.queue, asked.unique_key]
