"""Penstock's log, through the store's port."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.calling import PAYLOAD, main
from penstock.core.codec import JsonText
from penstock.core.commands import Ack, LeaseJobs
from penstock.core.errors import PenstockError
from penstock.core.job import NewJob
from penstock.queue import new_id
from penstock.stores.log.backings import open_backing
from penstock.stores.log.store import LogStore

TENANT = "default"
BATCH = 1_000
TEXT = JsonText(PAYLOAD.decode())
REQUEST = LeaseJobs("email", "bench", 1, 600.0)


def job() -> NewJob:
    return NewJob(new_id(), "email", "email", TEXT)


def checked(answer: Any) -> Any:
    if isinstance(answer, PenstockError):
        raise answer
    return answer


class OurLog:
    def __init__(self, place: str, at: str) -> None:
        self._store = LogStore.at(open_backing(at))

    async def open(self) -> None:
        await self._store.queues(TENANT)

    async def fill(self, jobs: int) -> None:
        for start in range(0, jobs, BATCH):
            await self._store.enqueue(TENANT, [job() for _ in range(min(BATCH, jobs - start))])

    async def enqueue(self) -> None:
        checked((await self._store.enqueue(TENANT, (job(),)))[0])

    async def lease(self) -> Any:
        leased = checked((await self._store.lease(TENANT, (REQUEST,)))[0])
        return leased[0] if leased else None

    async def ack(self, leased: Any) -> None:
        checked((await self._store.settle(TENANT, (Ack(leased.job.id, leased.token),)))[0])

    async def close(self) -> None:
        await self._store.close()


if __name__ == "__main__":
    main(OurLog)
