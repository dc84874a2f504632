"""The store in memory of a test kit: it takes jobs in from any thread and with any connection, and can run them at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec.structs import replace

from penstock.core.bounds import LONGEST_LEASE_SECONDS
from penstock.core.clock import Clock
from penstock.core.commands import Enqueued, Leased, TakeJob
from penstock.core.errors import NotLeasable, PenstockError
from penstock.core.job import NewJob
from penstock.stores.memory import MemoryStore
from penstock.testing import counting_tokens
from penstock.testkit.attempts import Runner, at_once, in_loop

Inline = Callable[[str, Sequence[NewJob], Runner], Awaitable[None]]
"""Runs jobs of a tenant that were just put in."""


class KitStore(MemoryStore):
    def __init__(self, clock: Clock, here: Callable[[], Runner]) -> None:
        super().__init__(clock, counting_tokens())
        self._here = here
        self.inline: Inline | None = None
        """While it is set, what is put in runs before the call returns."""

    async def enqueue(self, tenant: str, jobs: Sequence[NewJob]) -> list[Enqueued | PenstockError]:
        return await self._enqueue(tenant, jobs, in_loop)

    async def enqueue_in(
        self, connection: Any, tenant: str, jobs: Sequence[NewJob]
    ) -> list[Enqueued | PenstockError]:
        """In force at once, whatever becomes of the caller's transaction: nothing here can be rolled back."""
        return await self.enqueue(tenant, jobs)

    def enqueue_in_now(
        self, connection: Any, tenant: str, jobs: Sequence[NewJob]
    ) -> list[Enqueued | PenstockError]:
        return at_once(self._enqueue(tenant, jobs, self._here()))

    async def _enqueue(
        self, tenant: str, jobs: Sequence[NewJob], run: Runner
    ) -> list[Enqueued | PenstockError]:
        if self.inline is None:
            return await super().enqueue(tenant, jobs)
        answers = await super().enqueue(tenant, [replace(job, run_at=None, delay=None) for job in jobs])
        new = [
            job
            for job, answer in zip(jobs, answers, strict=True)
            if isinstance(answer, Enqueued) and answer.duplicate is None
        ]
        await self.inline(tenant, new, run)
        return answers

    def take(self, tenant: str, job: NewJob) -> Leased | None:
        """Lease this very job, if it may run now."""
        now = self._clock.now()
        command = TakeJob(job.id, next(self._tokens), "test", LONGEST_LEASE_SECONDS)
        try:
            return self.machine(tenant, now).take(command, now)
        except NotLeasable:
            return None
