"""jqueue: one JSON document, read and rewritten at every commit."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

from jqueue import BrokerQueue, InMemoryStorage, LocalFileSystemStorage
from jqueue.adapters.storage.s3 import S3Storage
from jqueue.core import codec
from jqueue.domain.models import Job, QueueState

from benchmarks.peers.calling import PAYLOAD, main


def storage(place: str, at: str) -> Any:
    parts = urlsplit(at)
    match place:
        case "memory":
            return InMemoryStorage()
        case "file":
            return LocalFileSystemStorage(f"{parts.path}.json")
        case _:
            endpoint = parse_qs(parts.query)["endpoint"][0]
            return S3Storage("queue", f"{parts.path.lstrip('/')}.json", endpoint_url=endpoint)


class JQueue:
    """Its storage, and its group commit over that."""

    def __init__(self, place: str, at: str) -> None:
        self._storage = storage(place, at)
        self._queue = BrokerQueue(self._storage)

    async def open(self) -> None:
        await self._queue.__aenter__()

    async def fill(self, jobs: int) -> None:
        """At once, by its own codec: one by one it would take minutes."""
        state = QueueState(jobs=tuple(Job.new("email", PAYLOAD) for _ in range(jobs)))
        await self._storage.write(codec.encode(state), None)

    async def enqueue(self) -> None:
        await self._queue.enqueue("email", PAYLOAD)

    async def lease(self) -> Any:
        found = await self._queue.dequeue("email", batch_size=1)
        return found[0].id if found else None

    async def ack(self, leased: Any) -> None:
        await self._queue.ack(leased)

    async def close(self) -> None:
        await self._queue.__aexit__(None, None, None)


if __name__ == "__main__":
    main(JQueue)
