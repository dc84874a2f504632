"""What the service counts."""

from __future__ import annotations

from penstock.core.commands import Enqueued, Settled
from penstock.core.ports import Store


class ServiceMetrics:
    """Stands in until the real one is merged."""

    in_flight = 0

    def submitted(self, queue: str, enqueued: Enqueued) -> None: ...
    def leased(self, queue: str, count: int) -> None: ...
    def settled(self, settled: Settled) -> None: ...
    def request(self, method: str, route: str, status: int, seconds: float) -> None: ...

    async def render(self, store: Store) -> bytes:
        return b""
