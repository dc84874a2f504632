"""A queue's backlog worked off by Spark: worker lanes on executors that lease, run a handler on whole batches, and settle.

Not a source of rows: Spark reads again what it likes, and a lease is taken once. Here a task is a worker. One that Spark
starts anew takes new leases; those of the first run out, and their jobs come back. Results go out with the ack.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import asdict, fields

from penstock.connecting import connect
from penstock.core import bounds
from penstock.core.commands import Beat, Heartbeat, Leased, Settle
from penstock.core.errors import InvalidInput, PenstockError
from penstock.core.job import Status
from penstock.queue import Queue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.app.penstock import Penstock

Handler = Callable[[Any], Any]
"""From a batch of jobs, a row each, to what became of them.

It is given `job_id, type, key, priority, attempt, created_at` and `payload` (JSON text), as a pandas DataFrame or an Arrow
table. None answers that all went well. Otherwise it answers with a frame or table of its own, with `job_id` and, as need
be, `result` (anything that is JSON) and `error` (null where it went well). If it raises, all of the batch have failed.
"""

IDLE_SECONDS = 1.0
COLUMNS = ("job_id", "type", "key", "priority", "attempt", "created_at", "payload")


class Lane(Struct, frozen=True):
    """What one lane did."""

    lane: int
    batches: int = 0
    leased: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    lost: int = 0
    """Jobs whose lease had run out before they were settled: somebody else has them, and their results here are void."""


def drain(
    spark: SparkSession,
    app: Penstock | str,
    queue: str,
    handler: Handler,
    *,
    lanes: int,
    batch_size: int = 200,
    lease_seconds: float = 60,
    until_empty: bool = True,
    tenant: str | None = None,
    arrow: bool = False,
) -> list[Lane]:
    """Work a queue off on the executors of Spark; answers with what each lane did.

    The queue is one of an app's, or of the store that a URL names. A lane ends when there is nothing to lease: jobs that are to run later, such as retries, stay. With until_empty=False
    lanes wait for more until the Spark job is cancelled. Lanes beyond the number of cores wait for a free one.
    """
    bounds.name("queue", queue)
    bounds.integer("lanes", lanes, 1, 10_000)
    bounds.integer("batch_size", batch_size, 1, bounds.MOST_LEASED)
    if isinstance(app, str):
        url, whose = app, tenant or "default"
    else:
        url, whose = "memory:" if app.is_memory else app.address.url, tenant or app.tenant
    if url.startswith("memory:"):
        raise InvalidInput(
            "the store", "be one that executors can reach", "one in the memory of this process"
        )

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                done = work(
                    number, url, queue, handler, tenant=whose, batch_size=batch_size, lease_seconds=lease_seconds,
                    until_empty=until_empty, arrow=arrow,
                )  # fmt: skip
                yield pa.RecordBatch.from_pylist([asdict(done)])

    schema = ", ".join(f"{field.name} bigint" for field in fields(Lane))
    found = spark.range(0, lanes, 1, lanes).mapInArrow(run, schema).collect()
    return sorted((Lane(**row.asDict()) for row in found), key=lambda lane: lane.lane)


def work(lane: int, url: str, queue: str, handler: Handler, **options: Any) -> Lane:
    """One lane, in a process of its own."""
    return asyncio.run(_work(lane, url, queue, handler, **options))


async def _work(
    lane: int,
    url: str,
    queue: str,
    handler: Handler,
    *,
    tenant: str,
    batch_size: int,
    lease_seconds: float,
    until_empty: bool,
    arrow: bool,
) -> Lane:
    worker = f"spark:{socket.gethostname()}:{os.getpid()}:{lane}:{uuid4().hex[:8]}"[: bounds.NAME_CHARS]
    done = Lane(lane)
    async with connect(url, tenant=tenant, actor="spark") as door:
        while True:
            leased = await door.lease(queue, worker=worker, limit=batch_size, lease_seconds=lease_seconds)
            if leased:
                done = _sum(done, await _batch(door, leased, handler, lease_seconds, arrow))
            elif until_empty:
                return done
            else:
                await asyncio.sleep(IDLE_SECONDS)


async def _batch(
    door: Queue, leased: Sequence[Leased], handler: Handler, lease_seconds: float, arrow: bool
) -> Lane:
    stopped: set[str] = set()
    beating = asyncio.create_task(_beat(door, leased, lease_seconds, stopped))
    try:
        # In a thread: heartbeats go out however long it takes.
        answers = await asyncio.to_thread(_answers, handler, leased, arrow)
    finally:
        beating.cancel()
    settles = [_settle(door, one, answers, one.id in stopped) for one in leased]
    settled = await door.settle_many(settles)
    became = [None if isinstance(one, PenstockError) else one.status for one in settled]
    succeeded, cancelled, lost = (
        became.count(Status.SUCCEEDED),
        became.count(Status.CANCELLED),
        became.count(None),
    )
    return Lane(0, 1, len(leased), succeeded, len(leased) - succeeded - cancelled - lost, cancelled, lost)


async def _beat(door: Queue, leased: Sequence[Leased], lease_seconds: float, stopped: set[str]) -> None:
    beats = [Heartbeat(one.id, one.token, None) for one in leased]
    begun = time.monotonic()
    for number in range(1, 1_000_000_000):
        await asyncio.sleep(max(0.0, begun + number * lease_seconds / 3 - time.monotonic()))
        try:
            answers = await door.store.heartbeat(door.tenant, beats)
        except PenstockError:
            continue  # out of reach for now; the leases have two thirds left
        for one, answer in zip(leased, answers, strict=True):
            if isinstance(answer, Beat) and answer.cancel_requested:
                stopped.add(one.id)


def _answers(handler: Handler, leased: Sequence[Leased], arrow: bool) -> dict[str, dict[str, Any]] | str:
    """What the handler says of each job; or as text what went wrong with all of them."""
    try:
        given = _frame(leased, arrow)
        answer = handler(given)
        if answer is None:
            return {one.id: {} for one in leased}
        rows = answer.to_pylist() if arrow else answer.to_dict("records")
        if any("job_id" not in row for row in rows):
            raise InvalidInput("what the handler answers", "have a column job_id", type(answer).__name__)
        return {row["job_id"]: {name: _plain(value) for name, value in row.items()} for row in rows}
    except Exception:
        return traceback.format_exc()


def _frame(leased: Sequence[Leased], arrow: bool) -> Any:
    import pyarrow as pa

    rows = [
        (one.id, one.job.type, one.job.asked.key, one.job.priority, one.job.leases, one.job.created_at, one.job.payload)
        for one in leased
    ]  # fmt: skip
    table = pa.table(
        [pa.array(column) for column in zip(*rows, strict=True)],
        names=list(COLUMNS),
    )
    return table if arrow else table.to_pandas()


def _plain(value: Any) -> Any:
    """What pandas gave as Python has it; what it takes for missing is None."""
    if hasattr(value, "item"):
        value = value.item()
    return None if value is None or (not isinstance(value, dict | list | str) and value != value) else value


def _settle(door: Queue, one: Leased, answers: dict[str, dict[str, Any]] | str, is_stopped: bool) -> Settle:
    if is_stopped:
        return door.discarded(one)
    if isinstance(answers, str):
        return door.nacked(one, answers)
    if one.id not in answers:
        return door.nacked(one, "the handler has said nothing of this job")
    answer = answers[one.id]
    if answer.get("error") is not None:
        return door.nacked(one, answer["error"])
    try:
        return door.acked(one, answer.get("result"))
    except PenstockError as error:
        return door.nacked(one, error)


def _sum(one: Lane, other: Lane) -> Lane:
    return Lane(
        one.lane,
        *(getattr(one, field.name) + getattr(other, field.name) for field in fields(Lane)[1:]),
    )
