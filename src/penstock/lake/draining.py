"""A queue's backlog worked off by Spark: worker lanes on executors that lease, run a handler on whole batches, and settle.

Not a source of rows: Spark reads again what it likes, and a lease is taken once. Here a task is a worker. One that Spark
starts anew takes new leases; those of the first run out, and their jobs come back. Results go out with the ack.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import asdict, fields

from penstock.connecting import connect
from penstock.core import bounds
from penstock.core.commands import Heartbeat, Leased, Settle
from penstock.core.errors import InvalidInput, PenstockError, StoreUnavailable
from penstock.core.job import Status
from penstock.queue import Queue
from penstock.stores.wakeups.polling import Backoff
from penstock.worker.execution import told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.app.penstock import Penstock

Answer = TypeVar("Answer")

Handler = Callable[[Any], Any]
"""From a batch of jobs, a row each, to what became of them.

It is given `job_id, type, key, priority, attempt, created_at` and `payload` (JSON text), as a pandas DataFrame or an Arrow
table. None answers that all went well. Otherwise it answers with a frame or table of its own, with `job_id` and, as need
be, `result` (anything that is JSON) and `error` (null where it went well), one row a job. If it raises, all of the batch
have failed. It is not interrupted when somebody cancels a job: done is done, and a failure is then not tried again.
"""

IDLE_SECONDS = 1.0
SHORTEST_SECONDS = 0.02
LONGEST_AWAY_SECONDS = 300.0
"""A store that is away for so long ends a lane: Spark then says why."""

logger = logging.getLogger("penstock.lake")


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

    The queue is one of an app's, or of the store that a URL names. A lane ends when nothing is due any more: jobs that are
    to run later, such as retries, stay, and so does everything in a queue that is paused. Under a limit it waits for its
    turn. With until_empty=False lanes wait for more until the Spark job is cancelled. Lanes beyond the number of cores
    wait for a free one.
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
        leased_at = time.monotonic()
        while True:
            leased = await _asked(
                lambda: door.lease(queue, worker=worker, limit=batch_size, lease_seconds=lease_seconds)
            )
            if leased:
                done = _sum(done, await _batch(door, leased, handler, lease_seconds, arrow))
                leased_at = time.monotonic()
            elif not until_empty:
                await asyncio.sleep(IDLE_SECONDS)
            elif (pause := await _until_more(door, queue, time.monotonic() - leased_at)) is not None:
                await asyncio.sleep(pause)
            else:
                return done


async def _until_more(door: Queue, queue: str, waited_seconds: float) -> float | None:
    """How long to wait for jobs that are due and that only a limit holds back; None if there are none."""
    view = await _asked(lambda: door.queue(queue))
    is_due = view.oldest_run_at is not None and view.oldest_run_at <= await _asked(door.store.now)
    if not is_due or view.settings.paused:
        return None
    rates = [rate.per for rate in (view.settings.rate, view.settings.rate_per_key) if rate is not None]
    # If no lease came of it for that long it is not the rate: a held job may stop the line of its ordering key.
    patience = max(rates) + IDLE_SECONDS if rates else 0.0
    if not view.counts.get(Status.RUNNING, 0) and waited_seconds >= patience:
        return None
    turn = await _asked(lambda: door.next_in([queue])) if rates else None
    seconds = IDLE_SECONDS if turn is None else turn.total_seconds()
    return min(max(seconds, SHORTEST_SECONDS), IDLE_SECONDS)


async def _asked(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """What the store answers; while it is away it is asked again. Leases and settles may be asked for twice."""
    waits, began = Backoff(Random(), 0.05, 5.0), time.monotonic()
    while True:
        try:
            return await call()
        except StoreUnavailable as error:
            pause = next(waits)
            if time.monotonic() + pause > began + LONGEST_AWAY_SECONDS:
                raise
            logger.warning("the store is away, asking again in %.2f s: %s", pause, error)
            await asyncio.sleep(pause)


async def _batch(
    door: Queue, leased: Sequence[Leased], handler: Handler, lease_seconds: float, arrow: bool
) -> Lane:
    beating = asyncio.create_task(_beat(door, leased, lease_seconds))
    try:
        # In a thread: heartbeats go out however long it takes.
        answers = await asyncio.to_thread(_answers, handler, leased, arrow)
        settles = [_settle(door, one, answers) for one in leased]
        settled = await _asked(lambda: door.settle_many(settles))
    finally:
        beating.cancel()
    became = Counter(None if isinstance(one, PenstockError) else one.status for one in settled)
    succeeded, cancelled, lost = became[Status.SUCCEEDED], became[Status.CANCELLED], became[None]
    return Lane(0, 1, len(leased), succeeded, len(leased) - succeeded - cancelled - lost, cancelled, lost)


async def _beat(door: Queue, leased: Sequence[Leased], lease_seconds: float) -> None:
    beats = [Heartbeat(one.id, one.token, None) for one in leased]
    begun, third = time.monotonic(), lease_seconds / 3
    for number in count(1):
        await asyncio.sleep(max(0.0, begun + number * third - time.monotonic()))
        try:
            async with asyncio.timeout(third):
                await door.store.heartbeat(door.tenant, beats)
        except Exception as error:
            # Whatever it was: the leases have two thirds left, and without another beat all of the batch would be lost.
            logger.warning("%d leases could not be renewed, trying again: %r", len(leased), error)


Answers = Mapping[str, Sequence[Mapping[str, Any]]]
"""What was said of each job; of those that are there it should be one thing."""


def _answers(handler: Handler, leased: Sequence[Leased], arrow: bool) -> Answers | str:
    """What the handler says of each job; or as text what went wrong with all of them."""
    try:
        answer = handler(_frame(leased, arrow))
        if answer is None:
            return {one.id: [{}] for one in leased}
        rows = answer.to_pylist() if arrow else answer.to_dict("records")
        if any("job_id" not in row for row in rows):
            raise InvalidInput("what the handler answers", "have a column job_id", type(answer).__name__)
        by_job: dict[str, list[Mapping[str, Any]]] = {}
        for row in rows:
            by_job.setdefault(row["job_id"], []).append(row)
        return by_job
    except Exception as error:
        return told(error)


def _frame(leased: Sequence[Leased], arrow: bool) -> Any:
    import pyarrow as pa

    # Not left to what is in it: a column without a value would be of no type at all.
    columns = {
        "job_id": pa.string(), "type": pa.string(), "key": pa.string(), "priority": pa.int32(), "attempt": pa.int32(),
        "created_at": pa.timestamp("us", "UTC"), "payload": pa.string(),
    }  # fmt: skip
    rows = [
        (one.id, one.job.type, one.job.asked.key, one.job.priority, one.job.leases, one.job.created_at, one.job.payload)
        for one in leased
    ]  # fmt: skip
    arrays = [
        pa.array(values, type) for values, type in zip(zip(*rows, strict=True), columns.values(), strict=True)
    ]
    table = pa.table(arrays, names=list(columns))
    return table if arrow else table.to_pandas()


def _plain(value: Any) -> Any:
    """What pandas gave as Python has it; what it takes for missing is None."""
    if hasattr(value, "tolist"):  # of numpy: an array, or one value
        value = value.tolist()
    return None if value is None or (not isinstance(value, dict | list | str) and value != value) else value


def _settle(door: Queue, one: Leased, answers: Answers | str) -> Settle:
    if isinstance(answers, str):
        return door.nacked(one, answers)
    said = answers.get(one.id, ())
    if len(said) != 1:
        much = "more than one thing" if said else "nothing"
        return door.nacked(one, f"the handler has said {much} of this job")
    try:
        error = _plain(said[0].get("error"))
        return door.acked(one, _plain(said[0].get("result"))) if error is None else door.nacked(one, error)
    except Exception as error:  # what cannot be told of this job is no reason to fail the others
        return door.nacked(one, told(error))


def _sum(one: Lane, other: Lane) -> Lane:
    return Lane(
        one.lane,
        *(getattr(one, field.name) + getattr(other, field.name) for field in fields(Lane)[1:]),
    )
