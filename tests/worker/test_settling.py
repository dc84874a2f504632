"""What has ended is settled, whenever it ends."""

from __future__ import annotations

import asyncio
import time

import pytest

from penstock import Queue, Status
from penstock.stores.memory import MemoryStore
from penstock.worker import settling
from penstock.worker.execution import Ending, How
from penstock.worker.hand import InHand
from penstock.worker.metrics import Metrics
from penstock.worker.settling import Settling


async def test_what_ends_just_as_a_batch_has_gone_out_does_not_wait_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settling, "AT_ONCE", 1)
    queue = Queue(MemoryStore())
    for _ in range(2):
        await queue.enqueue("t")
    first, second = (InHand(leased, time.monotonic()) for leased in await queue.lease(worker="w", limit=2))
    all_settled = asyncio.Event()

    def let_go(held: InHand) -> None:
        if (
            held is first
        ):  # in the very next turn of the loop, when the batch is over but its task not yet forgotten
            asyncio.get_running_loop().call_soon(settle.put, second, Ending(How.ACK))
        else:
            all_settled.set()

    settle = Settling(queue, "w", Metrics(), let_go)
    settle.put(first, Ending(How.ACK))
    await asyncio.wait_for(all_settled.wait(), 5)
    assert (await queue.get(second.id)).status is Status.SUCCEEDED
