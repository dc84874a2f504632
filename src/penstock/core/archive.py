"""Jobs that have left the store, and who still knows of them."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from msgspec import Struct

from penstock.core.commands import History
from penstock.core.job import Job, JobId

NOT_ARCHIVED = ("payload", "result", "progress", "logs")
"""What a job says or comes to is not history: of one that has left nobody knows it any more."""


class Archived(Struct, frozen=True, gc=False):
    """A job as the archive has it. What is NOT_ARCHIVED stands empty in it."""

    job: Job
    history: History
    data_as_of: datetime
    """What happened later is not in it."""


class Archive(Protocol):
    """Where to ask for a job that the store does not have."""

    async def find(self, tenant: str, job_id: JobId) -> Archived | None:
        """The job, if it was this tenant's; None for another's just as for one that never was.

        StoreUnavailable if the archive cannot be read, or has too many readers.
        """
        ...

    async def close(self) -> None: ...
