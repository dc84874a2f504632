"""A queue worked off in batches: results and errors go out with the settle, under the fence, however long a batch takes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock import Penstock, Queue
from penstock.core.errors import InvalidInput
from penstock.core.job import Status
from penstock.stores.postgres.store import PostgresStore
from support.postgres import EmptyPostgresStore, server_url
from support.spark import WITHOUT

pytest.importorskip("pyspark", reason=WITHOUT)

import pandas as pd

from penstock.lake import drain
from penstock.lake.draining import Lane, work

OPTIONS: dict[str, Any] = {
    "tenant": "default",
    "batch_size": 10,
    "lease_seconds": 30,
    "until_empty": True,
    "arrow": False,
}


@pytest.fixture
async def queue() -> AsyncIterator[Queue]:
    async with Queue(EmptyPostgresStore(None)) as queue:
        await queue.queues()
        yield queue


async def fill(queue: Queue, number: int) -> list[str]:
    found = await queue.enqueue_many([{"type": "t", "payload": {"n": n}} for n in range(number)])
    return [one.id for one in found]  # type: ignore[union-attr]


async def run(handler: Any, **options: Any) -> Lane:
    """One lane, in a thread: it has an event loop of its own."""
    done: list[Lane] = []
    lane = threading.Thread(
        target=lambda: done.append(work(0, server_url(), "default", handler, **{**OPTIONS, **options}))
    )
    lane.start()
    lane.join()
    return done[0]


def squared(frame: Any) -> Any:
    numbers = frame["payload"].map(lambda text: json.loads(text)["n"])
    return pd.DataFrame({"job_id": frame["job_id"], "result": numbers**2})


async def test_results_go_out_with_the_ack(queue: Queue) -> None:
    ids = await fill(queue, 25)
    assert await run(squared) == Lane(0, batches=3, leased=25, succeeded=25)
    found = [await queue.get(job_id) for job_id in ids]
    assert [json.loads(job.result or "") for job in found] == [n**2 for n in range(25)]
    assert {job.status for job in found} == {Status.SUCCEEDED}


async def test_an_arrow_handler_is_given_tables(queue: Queue) -> None:
    [job_id] = await fill(queue, 1)

    def handler(table: Any) -> Any:
        return table.select(["job_id", "attempt"]).rename_columns(["job_id", "result"])

    await run(handler, arrow=True)
    assert (await queue.get(job_id)).result == "1"


async def test_a_handler_says_of_each_job_what_became_of_it(queue: Queue) -> None:
    well, ill, left = await fill(queue, 3)

    def handler(frame: Any) -> Any:
        return pd.DataFrame({"job_id": [well, ill], "result": [{"a": [1]}, None], "error": [None, "ill"]})

    done = await run(handler)
    assert (done.succeeded, done.failed) == (1, 2)
    assert (await queue.get(well)).result == '{"a":[1]}'
    assert (await queue.get(ill)).error == "ill"
    assert "said nothing" in str((await queue.get(left)).error)


async def test_a_handler_that_raises_fails_its_batch_and_no_other(queue: Queue) -> None:
    ids = await fill(queue, 20)

    def handler(frame: Any) -> None:
        if ids[0] in set(frame["job_id"]):
            raise ValueError("planted")

    done = await run(handler)
    assert (done.batches, done.succeeded, done.failed) == (2, 10, 10)
    assert "ValueError: planted" in str((await queue.get(ids[0])).error)


async def test_a_result_that_is_no_json_fails_its_job_alone(queue: Queue) -> None:
    ids = await fill(queue, 2)

    def handler(frame: Any) -> Any:
        return pd.DataFrame({"job_id": frame["job_id"], "result": [object(), "good"]})

    done = await run(handler)
    assert (done.succeeded, done.failed) == (1, 1)
    assert "result must be JSON" in str((await queue.get(ids[0])).error)


async def test_a_lease_that_ran_out_is_not_settled(queue: Queue) -> None:
    """The fence: somebody else has the job by then."""
    [lost, kept] = await fill(queue, 2)

    def handler(frame: Any) -> Any:
        _now(f"UPDATE penstock.lease SET token = 'another', worker = 'other' WHERE id = '{lost}'")
        return squared(frame)

    assert await run(handler) == Lane(0, batches=1, leased=2, succeeded=1, lost=1)
    job = await queue.get(lost)
    assert (job.status, job.result) == (Status.RUNNING, None)
    assert (await queue.get(kept)).status is Status.SUCCEEDED


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Up by one with every answer to heartbeats."""
    answered = threading.Semaphore(0)
    heartbeat = PostgresStore.heartbeat

    async def told(self: PostgresStore, *given: Any) -> Any:
        answers = await heartbeat(self, *given)
        # When whoever asked has had the answer.
        asyncio.get_running_loop().call_later(0.05, answered.release)
        return answers

    monkeypatch.setattr(PostgresStore, "heartbeat", told)
    return answered


async def test_heartbeats_keep_the_leases_of_a_long_batch(queue: Queue, beats: threading.Semaphore) -> None:
    """The handler goes on until four heartbeats have gone out: without them the leases would have run out."""
    [job_id] = await fill(queue, 1)

    def handler(frame: Any) -> None:
        for _ in range(4):
            assert beats.acquire(timeout=60)

    assert (await run(handler, lease_seconds=2)).succeeded == 1
    assert (await queue.get(job_id)).leases == 1


async def test_a_job_that_was_asked_to_stop_ends_cancelled(queue: Queue, beats: threading.Semaphore) -> None:
    [stopped, other] = await fill(queue, 2)

    def handler(frame: Any) -> None:
        _now(f"UPDATE penstock.lease SET cancel_requested = true WHERE id = '{stopped}'")
        while beats.acquire(blocking=False):
            pass
        for _ in range(2):  # the first may have been on its way already
            assert beats.acquire(timeout=60)

    done = await run(handler, lease_seconds=1)
    assert (done.cancelled, done.succeeded) == (1, 1)
    assert (await queue.get(stopped)).status is Status.CANCELLED
    assert (await queue.get(other)).status is Status.SUCCEEDED


@pytest.mark.spark
@pytest.mark.parametrize("named", ["by its URL", "by an app"])
async def test_lanes_on_executors_share_a_queue(spark: Any, queue: Queue, named: str) -> None:
    await fill(queue, 60)
    store = server_url() if named == "by its URL" else Penstock(server_url())

    def handler(frame: Any) -> Any:
        return frame[["job_id"]].assign(result=len(frame))

    lanes = drain(spark, store, "default", handler, lanes=2, batch_size=10)
    assert [lane.lane for lane in lanes] == [0, 1]
    assert sum(lane.succeeded for lane in lanes) == 60
    assert (await queue.queue("default")).counts[Status.SUCCEEDED] == 60


def test_bad_figures_are_refused() -> None:
    for options in ({"lanes": 0}, {"lanes": 1, "batch_size": 1_001}):
        with pytest.raises(InvalidInput):
            drain(None, "postgresql://", "q", squared, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("store", ["memory://", Penstock("memory://")])
def test_a_store_that_executors_cannot_reach_is_refused(store: Penstock | str) -> None:
    with pytest.raises(InvalidInput, match="executors can reach"):
        drain(None, store, "q", squared, lanes=1)


def _now(statement: str) -> None:
    """Run a statement from a thread without an event loop."""
    import psycopg

    with psycopg.connect(server_url(), autocommit=True) as connection:
        connection.execute(statement)
