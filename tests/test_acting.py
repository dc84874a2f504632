"""What the lake found out is acted on in all the places that it is about."""

from __future__ import annotations

import msgspec
import pytest

from penstock.core.codec import JsonText
from penstock.core.errors import NotFound
from penstock.core.job import Status
from penstock.core.registry import PutEntry
from penstock.figures import FAILURES, FailureGroup
from penstock.insights import acting
from penstock.queue import Queue
from penstock.stores.memory import MemoryStore
from penstock.testing import START, FakeClock
from support.insights import FINGERPRINT, REFUSED, published


@pytest.mark.parametrize("is_published", [True, False])
async def test_a_failure_is_looked_for_wherever_it_was_seen_this_week_or_before(is_published: bool) -> None:
    store = MemoryStore(FakeClock())
    queue = Queue(store, actor="ada")
    if is_published:
        await published(store)  # the lake saw it in `emails`
    group = FailureGroup(
        fingerprint=FINGERPRINT, error_type="", top_frame="", text="", first_seen=START, last_seen=START,
        queues=["reports"], types=["report"],
    )  # fmt: skip
    body = JsonText(msgspec.json.encode(group).decode())
    await store.put_entries(queue.tenant, [PutEntry(FAILURES, FINGERPRINT, body, 0)])
    ids = []
    for name, type in (("emails", "email.send"), ("reports", "report")):
        ids.append((await queue.enqueue(type, queue=name)).id)
        [held] = await queue.lease(name, worker="w")
        await queue.nack(held, REFUSED, retry=False)
    wanted = ids if is_published else ids[1:]
    assert await acting.count_failure(queue, FINGERPRINT) == (len(wanted), True)
    done = await acting.redrive(queue, FINGERPRINT)
    assert (done.matched, done.changed) == (len(wanted), len(wanted))
    assert {(await queue.get(job_id)).status for job_id in wanted} == {Status.QUEUED}


async def test_a_queue_of_which_nothing_is_known_yet_is_not_set_to_anything() -> None:
    store = MemoryStore(FakeClock())
    queue = Queue(store, actor="ada")
    await published(store)
    await queue.enqueue("report", queue="reports")
    with pytest.raises(NotFound, match=r"'reports'.*none of its jobs had ended"):
        await acting.apply(queue, "reports", dry_run=False)
    assert (await queue.queue("reports")).settings.max_concurrency is None
