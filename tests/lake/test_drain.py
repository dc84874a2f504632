"""A queue worked off in batches: results and errors go out with the settle, under the fence, however long a batch takes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock import Penstock, Queue
from penstock.core.errors import InvalidInput, StoreUnavailable
from penstock.core.job import Status
from penstock.core.limits import Rate
from penstock.stores.postgres.store import PostgresStore
from support.postgres import EmptyPostgresStore, server_url
from support.spark import WITHOUT

pytest.importorskip("pyspark", reason=WITHOUT)

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake import drain, draining
from penstock.lake.draining import Lane, _work, work

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


async def test_arrays_are_results(queue: Queue) -> None:
    [job_id] = await fill(queue, 1)
    done = await run(lambda frame: frame[["job_id"]].assign(result=[np.array([[0.5, 1.0]])]))
    assert (done.succeeded, (await queue.get(job_id)).result) == (1, "[[0.5,1.0]]")


async def test_of_two_things_said_of_one_job_neither_counts(queue: Queue) -> None:
    ill, well = await fill(queue, 2)

    def handler(frame: Any) -> Any:
        return pd.DataFrame({"job_id": [ill, ill, well], "error": ["ill", None, None]})

    done = await run(handler)
    assert (done.succeeded, done.failed) == (1, 1)
    assert "more than one thing" in str((await queue.get(ill)).error)
    assert (await queue.get(well)).status is Status.SUCCEEDED


async def test_columns_have_their_types_whatever_is_in_them(queue: Queue) -> None:
    await fill(queue, 1)

    def handler(table: Any) -> None:
        assert table.schema.field("key").type == pa.string()
        pc.utf8_length(table["key"])  # has no kernel for a column of nothing

    assert (await run(handler, arrow=True)).succeeded == 1


async def test_a_failure_says_first_what_it_is(queue: Queue) -> None:
    """As a worker's does: its fingerprint is made of the beginning, and what pandas raises has a long trace."""
    [job_id] = await fill(queue, 1)
    await run(lambda frame: frame["nowhere"])
    error = str((await queue.get(job_id)).error)
    assert error.startswith("KeyError: 'nowhere'")
    assert "Traceback" in error


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


async def test_a_heartbeat_that_fails_is_not_the_last(
    queue: Queue, beats: threading.Semaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job_id] = await fill(queue, 1)
    heartbeat, asked = PostgresStore.heartbeat, iter([True])

    async def once(self: PostgresStore, *given: Any) -> Any:
        if next(asked, False):
            raise OSError("planted: what a driver says is not always an error of Penstock's")
        return await heartbeat(self, *given)

    monkeypatch.setattr(PostgresStore, "heartbeat", once)

    def handler(frame: Any) -> None:
        for _ in range(3):
            assert beats.acquire(timeout=60)

    assert (await run(handler, lease_seconds=2)).succeeded == 1
    assert (await queue.get(job_id)).leases == 1


async def test_work_that_is_done_counts_though_somebody_cancelled_it(queue: Queue) -> None:
    done, failed = await fill(queue, 2)

    def handler(frame: Any) -> Any:
        _now("UPDATE penstock.lease SET cancel_requested = true")
        return pd.DataFrame({"job_id": [done, failed], "result": ["well", None], "error": [None, "ill"]})

    assert await run(handler) == Lane(0, batches=1, leased=2, succeeded=1, cancelled=1)
    assert (await queue.get(done)).result == '"well"'
    assert ((await queue.get(failed)).status, (await queue.get(failed)).error) == (Status.CANCELLED, "ill")


@pytest.mark.parametrize("verb", ["lease", "settle"])
async def test_a_store_that_is_away_for_a_while_is_asked_again(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    [job_id] = await fill(queue, 1)
    call, away = getattr(PostgresStore, verb), iter([True, True])

    async def twice(self: PostgresStore, *given: Any) -> Any:
        if next(away, False):
            raise StoreUnavailable("PostgreSQL", "planted")
        return await call(self, *given)

    monkeypatch.setattr(PostgresStore, verb, twice)
    assert await run(squared) == Lane(0, batches=1, leased=1, succeeded=1)
    assert (await queue.get(job_id)).result == "0"


async def test_a_store_that_stays_away_ends_the_lane(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "LONGEST_AWAY_SECONDS", 0.1)

    async def away(self: PostgresStore, *given: Any) -> Any:
        raise StoreUnavailable("PostgreSQL", "planted")

    monkeypatch.setattr(PostgresStore, "lease", away)
    with pytest.raises(StoreUnavailable, match="planted"):
        await _work(0, server_url(), "default", squared, **OPTIONS)


async def test_under_a_rate_a_lane_waits_for_its_turn(queue: Queue) -> None:
    await queue.configure("default", rate=Rate(20, per=1.0))
    await fill(queue, 8)
    assert (await run(squared)).succeeded == 8


async def test_under_a_limit_a_lane_waits_for_those_who_are_at_work(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.configure("default", max_concurrency=1)
    await fill(queue, 3)
    [held] = await queue.lease("default", worker="other", limit=1)
    until_more, looked = draining._until_more, threading.Event()

    async def told(*given: Any) -> float | None:
        try:
            return await until_more(*given)
        finally:
            looked.set()

    monkeypatch.setattr(draining, "_until_more", told)
    lane = asyncio.create_task(asyncio.to_thread(work, 0, server_url(), "default", squared, **OPTIONS))
    assert await asyncio.to_thread(looked.wait, 60)
    await queue.ack(held)
    assert (await lane).succeeded == 2


async def test_what_nothing_here_will_let_out_is_left(queue: Queue) -> None:
    """Behind a held job of its ordering key, or paused: somebody has to decide first."""
    await queue.enqueue("t", ordering_key="k", max_attempts=1, on_exhausted="hold")
    await queue.enqueue("t", ordering_key="k")
    done = await run(lambda frame: pd.DataFrame({"job_id": frame["job_id"], "error": "ill"}))
    assert (done.leased, done.failed) == (1, 1)
    await queue.pause("default")
    await queue.enqueue("t")
    assert await run(squared) == Lane(0)


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
