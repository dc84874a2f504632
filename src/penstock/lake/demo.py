"""A synthetic history: a fleet's month, as the store would have told it, for docs, tests and benchmarks.

Waits are not drawn: each tenant's queue has so many workers, and jobs wait for one that is free, first come first
served. So what the lake says of capacity and of waits can be checked against what was put in.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heappush, heapreplace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from penstock.lake.fleet import (
    DAY,
    FETCH,
    HOUR,
    LANES,
    MERGE,
    MINUTE,
    SCHEDULES,
    SEND,
    Lane,
    Type,
    error_text,
)
from penstock.lake.tables import EVENTS

_ARROW = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "timestamp": pa.timestamp("us", "UTC"),
}

SCHEMA = pa.schema([(column, _ARROW[kind]) for column, kind in EVENTS.items()])

Column: TypeAlias = Any
"""A numpy array. Its types differ between versions of numpy, and are checked nowhere else."""

SUCCEEDED, FAILED, LOST, SNOOZED = range(4)
_OUTCOMES = ("succeeded", "failed", "lost", "snoozed")
QUEUED, DONE, DEAD = range(3)
_STATUSES = ("queued", "succeeded", "dead")

MAX_ATTEMPTS = 5
LEASE = 60_000_000
_WORKERS = 1024
"""More than any lane has: a worker's number and the time it is free are kept in one integer."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BY_HOUR = np.array(
    [2, 1.5, 1.2, 1, 1, 1.5, 3, 5, 8, 10, 11, 11, 10, 10, 11, 10.5, 9, 7, 5.5, 5, 4.5, 4, 3.2, 2.6]
)
_BY_WEEKDAY = np.array([1.1, 1.05, 1.0, 1.0, 0.95, 0.45, 0.4])


class _Jobs(Struct):
    """The jobs of one lane, column by column. Times are microseconds since 1970."""

    created: Column
    scheduled: Column
    type: Column
    schedule: Column
    """Place in SCHEDULES, −1 for none."""
    parents: dict[int, list[int]]
    run: Column


class _Past(Struct):
    """What the simulation says happened: attempts and changes, as lists of equal length."""

    job: list[int] = []
    ready: list[int] = []
    start: list[int] = []
    end: list[int] = []
    again: list[int] = []
    worker: list[int] = []
    outcome: list[int] = []
    status: list[int] = []
    error: list[str | None] = []
    changes: list[tuple[int, int, str, str, str, str | None]] = []
    """(job, time, verb, actor, status, reason)"""


def events(jobs: int, days: int, seed: int, end: datetime) -> Iterator[pa.RecordBatch]:
    """The facts of so many jobs in the days before `end`, in batches that are each of one lane and one day.

    The same arguments give the same facts. What would have happened after `end` has not happened: the last jobs are
    still waiting or running.
    """
    if end.tzinfo is None:
        raise ValueError(f"end must have a time zone, got {end.isoformat()}")
    if jobs < 1 or days < 1:
        raise ValueError(f"there must be at least one job and one day, got {jobs} jobs in {days} days")
    last = (end - _EPOCH) // timedelta(microseconds=1)
    first = last - days * DAY
    shares = np.array([lane.share for lane in LANES])
    counts = np.floor(shares / shares.sum() * jobs).astype(int)
    counts[0] += jobs - counts.sum()
    seq = 1
    for number, (lane, count) in enumerate(zip(LANES, counts, strict=True)):
        if not count:
            continue
        rng = np.random.default_rng([seed, number])
        asked = _ask(lane, int(count), first, last, rng)
        workers = _workers(lane, asked, first, last)
        past = _simulate(lane, asked, workers, last, (first, days), rng)
        yield from _told(lane, asked, past, last, seq, rng)
        seq += len(past.job) + len(past.changes)


def write(folder: Path | str, jobs: int, days: int, seed: int, end: datetime) -> int:
    """Write the history as bronze Parquet, partitioned by day; returns how many facts it has."""
    folder = Path(folder)
    told = 0
    schema = SCHEMA.remove(SCHEMA.get_field_index("day"))
    files: dict[str, pq.ParquetWriter] = {}
    try:
        for batch in events(jobs, days, seed, end):
            day = batch.column("day")[0].as_py()
            if day not in files:
                path = folder / f"day={day}" / "part-0.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                files[day] = pq.ParquetWriter(path, schema, compression="zstd")
            files[day].write_batch(batch.drop_columns(["day"]))
            told += batch.num_rows
    finally:
        for file in files.values():
            file.close()
    return told


# ── What is asked for ─────────────────────────────────────────────────────────────────────────────


def _ask(lane: Lane, count: int, first: int, last: int, rng: np.random.Generator) -> _Jobs:
    scheduled = _fires(lane, count, first, last, rng)
    plain = count - sum(len(fires) for fires, _, _ in scheduled)
    flows = int(plain * lane.in_flows) // 5
    created = np.concatenate([
        _in_bursts(lane.burst, plain - 5 * flows, first, last, rng), np.repeat(_arrivals(flows, first, last, rng), 5),
        *(fires for fires, _, _ in scheduled),
    ])  # fmt: skip
    types = _types(lane)
    weights: Column = np.array([kind.weight for kind in lane.types])
    kind = np.concatenate([
        rng.choice(len(weights), plain - 5 * flows, p=weights / weights.sum()),
        np.tile(np.array([len(weights) + at for at in (0, 0, 0, 1, 2)], dtype=np.int64), flows),
        *(np.full(len(fires), next(n for n, one in enumerate(types) if one.name == SCHEDULES[at].type)) for fires, _, at in scheduled),
    ]).astype(np.int64)  # fmt: skip
    schedule = np.concatenate(
        [np.full(plain, -1), *(np.full(len(fires), at) for fires, _, at in scheduled)]
    ).astype(np.int64)
    # One in fifty is asked for later.
    later = (rng.random(plain) < 0.02) * rng.integers(MINUTE, 6 * HOUR, plain)
    later[plain - 5 * flows :] = 0
    asked = np.concatenate([created[:plain] + later, *(due for _, due, _ in scheduled)])
    parents = {}
    for at in range(plain - 5 * flows, plain, 5):
        parents[at + 3] = [at, at + 1, at + 2]
        parents[at + 4] = [at + 3]
    median = np.array([one.median_ms for one in types])[kind]
    sigma = np.array([one.sigma for one in types])[kind]
    run = np.minimum(rng.lognormal(np.log(median * 1000.0), sigma), 30.0 * MINUTE).astype(np.int64) + 1000
    return _Jobs(created, asked, kind, schedule, parents, run)


def _types(lane: Lane) -> tuple[Type, ...]:
    return (*lane.types, FETCH, MERGE, SEND) if lane.in_flows else lane.types


def _arrivals(count: int, first: int, last: int, rng: np.random.Generator) -> Column:
    """Times in the rhythm of days and weeks."""
    hours = np.arange(first, last, HOUR)
    hour_of_week: Column = (hours // HOUR + 72) % 168  # 1970 began on a Thursday
    weights = _BY_HOUR[hour_of_week % 24] * _BY_WEEKDAY[hour_of_week // 24]
    per_hour = rng.multinomial(count, weights / weights.sum())
    return np.sort(np.repeat(hours, per_hour) + rng.integers(0, HOUR, count))


def _in_bursts(mean: int, count: int, first: int, last: int, rng: np.random.Generator) -> Column:
    """The same, but some at once: each burst within a second or so."""
    if mean == 1:
        return _arrivals(count, first, last, rng)
    sizes = rng.geometric(1 / mean, count)
    bursts = int(np.searchsorted(np.cumsum(sizes), count)) + 1
    times: Column = np.repeat(_arrivals(bursts, first, last, rng), sizes[:bursts])[:count]
    return np.sort(np.minimum(times + rng.integers(0, 1_000_000, count), last - 1))


def _fires(
    lane: Lane, count: int, first: int, last: int, rng: np.random.Generator
) -> list[tuple[Column, Column, int]]:
    """When each of the lane's schedules fired, when it was due, and which it is; some fires were missed."""
    found = []
    for at, schedule in enumerate(SCHEDULES):
        if (schedule.tenant, schedule.queue) != (lane.tenant, lane.queue):
            continue
        midnight = first - first % DAY
        due = np.arange(midnight + schedule.offset, last, schedule.every)
        due = due[(due >= first) & (rng.random(len(due)) > 0.006)]
        if len(due) * 3 > count:
            continue  # too small a history for it
        late = rng.lognormal(np.log(150_000), 0.9, len(due)).astype(np.int64)
        fired = due + late
        kept = fired < last
        found.append((fired[kept], due[kept], at))
    return found


def _workers(lane: Lane, asked: _Jobs, first: int, last: int) -> int:
    """As many as the busiest usual hour needs, times the lane's reach."""
    hours = max(1, (last - first) // HOUR)
    per_hour = np.bincount((asked.created - first) // HOUR, minlength=hours)
    load = np.quantile(per_hour, 0.99) * asked.run.mean() / HOUR
    return int(min(_WORKERS - 1, max(1, np.ceil(load * lane.reach))))


# ── What happens ──────────────────────────────────────────────────────────────────────────────────


def _trouble(lane: Lane, first: int, days: int) -> tuple[int, int]:
    """From when to when the lane has its incident."""
    if lane.incident == "mail":
        at = first + int(days * 0.6) * DAY + 13 * HOUR
        return at, at + 3 * HOUR
    if lane.incident == "deploy":
        at = first + int(days * 0.8) * DAY + 9 * HOUR
        return at, at + 12 * HOUR
    return 2**62, 2**62  # never


def _simulate(
    lane: Lane, asked: _Jobs, workers: int, last: int, period: tuple[int, int], rng: np.random.Generator
) -> _Past:
    """Run the lane: attempts in the order in which they become ready, each on the first worker that is free.

    Plain Python on lists: who waits for whom depends on every attempt before, and a loop of a microsecond or two per
    attempt is exact where a vectorised recursion would only be near.
    """
    past = _Past()
    types = _types(lane)
    count = len(asked.created)
    fails = np.array([one.fails for one in types])[asked.type].tolist()
    kinds = [one.error for one in types]
    mails = lane.incident == "mail"
    type_of = asked.type.tolist()
    run = asked.run.tolist()
    chance = rng.random(2 * count + 16).tolist()
    spread = rng.integers(0, 1_000_000, 1021).tolist()
    from_, to = _trouble(lane, *period)
    children: dict[int, list[int]] = {}
    pending = {child: len(of) for child, of in asked.parents.items()}
    for child, of in asked.parents.items():
        for parent in of:
            children.setdefault(parent, []).append(child)
    cancelled = _cancel(asked, past, rng)

    ready = np.maximum(asked.scheduled, asked.created)
    order = np.argsort(ready, kind="stable")
    line = [(int(ready[n]), int(n)) for n in order if n not in pending and n not in cancelled]
    line.reverse()
    again: list[tuple[int, int]] = []  # (ready, job)
    used = [0] * count
    free = [first_free * _WORKERS + n for n, first_free in enumerate([0] * workers)]
    heapify(free)
    draw = 0
    while line or again:
        at, n = heappop(again) if again and (not line or again[0] <= line[-1]) else line.pop()
        if at >= last:
            continue
        slot = free[0]
        idle, who = divmod(slot, _WORKERS)
        start = max(idle, at)
        draw += 1
        u = chance[draw % len(chance)]
        took = run[n]
        used[n] += 1
        kind = kinds[type_of[n]]
        outcome, said, down = SUCCEEDED, "", False
        if from_ <= start < to and (mails or type_of[n] == 0):
            down = u < (0.97 if mails else 0.9)
            said = "refused" if mails else "type"
            if down:
                outcome, took = FAILED, (4_000_000 if mails else 9_000) + spread[draw % 1021]
        if not down and u < fails[n]:
            outcome, said = FAILED, kind
        elif not down and u > 0.9995:
            outcome, said, took = LOST, "lost", LEASE
        elif not down and u > 0.998 and used[n] == 1:
            outcome, took = SNOOZED, 5_000
        end = start + took
        heapreplace(free, end * _WORKERS + who)
        if end >= last:
            continue  # still running

        status, next_at = QUEUED, end
        if outcome == SUCCEEDED:
            status = DONE
        elif outcome == SNOOZED:
            next_at = end + 5 * MINUTE
            used[n] -= 1
        elif used[n] >= MAX_ATTEMPTS:
            status = DEAD
        elif outcome == FAILED:
            next_at = end + (15_000_000 << (2 * (used[n] - 1))) + spread[draw % 1021]
        past.job.append(n)
        past.ready.append(at)
        past.start.append(start)
        past.end.append(end)
        past.again.append(next_at)
        past.worker.append(who)
        past.outcome.append(outcome)
        past.status.append(status)
        past.error.append(
            error_text(said, n + 17 * draw, f"{lane.tenant}-{lane.queue}-{who}") if outcome in (FAILED, LOST) else None
        )  # fmt: skip
        if status == QUEUED:
            heappush(again, (next_at, n))
        elif status == DEAD and mails and from_ <= end < to + HOUR and n % 3:
            # Somebody brings most of them back when the server is up again.
            back = to + 2 * HOUR + n % 977 * 10_000
            if back < last:
                past.changes.append((n, back, "redrive", "ada", "queued", "the mail server is back"))
                used[n] = 0
                heappush(again, (back, n))
        if status != QUEUED and n in children:
            _go_on(n, status, end, children, pending, past, again, last)
    return past


def _cancel(asked: _Jobs, past: _Past, rng: np.random.Generator) -> set[int]:
    """Some of those that were asked for later are cancelled before their time."""
    later = np.flatnonzero(asked.scheduled > asked.created + MINUTE)
    chosen = later[rng.random(len(later)) < 0.2]
    for n in chosen.tolist():
        at = int(asked.created[n] + asked.scheduled[n]) // 2
        past.changes.append((n, at, "cancel", "grace", "cancelled", "the customer changed their mind"))
    return set(chosen.tolist())


def _go_on(
    parent: int, status: int, at: int,
    children: dict[int, list[int]], pending: dict[int, int], past: _Past, again: list[tuple[int, int]], last: int,
) -> None:  # fmt: skip
    for child in children[parent]:
        if child not in pending:
            continue
        if status == DEAD:
            del pending[child]
            past.changes.append((child, at, "abandon", "rule:flow", "cancelled", "a parent ended dead"))
            if child in children:
                _go_on(child, DEAD, at, children, pending, past, again, last)
            continue
        pending[child] -= 1
        if not pending[child]:
            del pending[child]
            past.changes.append((child, at, "unblock", "rule:flow", "queued", "a parent ended succeeded"))
            heappush(again, (at, child))


# ── As the store tells it ─────────────────────────────────────────────────────────────────────────


def _told(
    lane: Lane, asked: _Jobs, past: _Past, last: int, seq: int, rng: np.random.Generator
) -> Iterator[pa.RecordBatch]:
    ids = _ids(asked.created, rng)
    keys = None
    if lane.keys:
        # A few customers have most of the jobs.
        who = np.minimum(rng.zipf(1.6, len(asked.created)), lane.keys)
        keys = pa.array([f"customer-{n}" for n in range(lane.keys + 1)]).take(pa.array(who))
    common = {
        "job_id": ids,
        "type": pa.array([one.name for one in _types(lane)]).take(pa.array(asked.type)),
        "key": keys,
        "schedule": pa.array([schedule.name for schedule in SCHEDULES]).take(
            pa.array(asked.schedule, mask=asked.schedule < 0)
        ),
        "priority": pa.array(np.where(asked.schedule >= 0, 5, 0).astype(np.int32)),
        "created_at": _times(asked.created),
        "scheduled_at": _times(asked.scheduled),
    }
    yield from _by_day(lane, _job_facts(asked, ids, common), asked.created, last)
    yield from _by_day(
        lane, _attempt_facts(lane, past, common, seq), np.array(past.end, dtype=np.int64), last
    )
    if past.changes:
        at = np.array([change[1] for change in past.changes], dtype=np.int64)
        yield from _by_day(lane, _change_facts(past, common, seq + len(past.job)), at, last)


def _job_facts(asked: _Jobs, ids: pa.Array, common: dict[str, pa.Array]) -> dict[str, pa.Array]:
    options: Column = np.full(len(asked.created), f'{{"max_attempts":{MAX_ATTEMPTS}}}', dtype=object)
    for child, of in asked.parents.items():
        parents = ",".join(f'"{ids[parent].as_py()}"' for parent in of)
        options[child] = f'{{"max_attempts":{MAX_ATTEMPTS},"parents":[{parents}]}}'
    return {
        **common,
        "kind": _same("job", len(ids)),
        "seq": pa.array(np.zeros(len(ids), dtype=np.int64)),
        "run_at": _times(asked.scheduled, asked.scheduled == asked.created),
        "options": pa.array(options, pa.string()),
    }


def _attempt_facts(lane: Lane, past: _Past, common: dict[str, pa.Array], seq: int) -> dict[str, pa.Array]:
    job = pa.array(past.job, pa.int64())
    number = np.array(past.job, dtype=np.int64)
    names = pa.array([f"{lane.tenant}-{lane.queue}-{n}" for n in range(max(past.worker, default=0) + 1)])
    return {
        **{column: values and values.take(job) for column, values in common.items()},
        "kind": _same("attempt", len(job)),
        "seq": pa.array(np.arange(seq, seq + len(job), dtype=np.int64)),
        "attempt": pa.array(_nth(number)),
        "ready_at": _times(np.array(past.ready, dtype=np.int64)),
        "started_at": _times(np.array(past.start, dtype=np.int64)),
        "ended_at": _times(np.array(past.end, dtype=np.int64)),
        "run_at": _times(np.array(past.again, dtype=np.int64)),
        "worker": names.take(pa.array(past.worker, pa.int64())),
        "outcome": pa.array(_OUTCOMES).take(pa.array(past.outcome, pa.int64())),
        "status": pa.array(_STATUSES).take(pa.array(past.status, pa.int64())),
        "error": pa.array(past.error, pa.string()),
    }


def _change_facts(past: _Past, common: dict[str, pa.Array], seq: int) -> dict[str, pa.Array]:
    jobs, _, verbs, actors, statuses, reasons = zip(*past.changes, strict=True)
    ids = common["job_id"].take(pa.array(jobs, pa.int64()))
    return {
        "job_id": ids,
        "type": common["type"].take(pa.array(jobs, pa.int64())),
        "kind": _same("change", len(jobs)),
        "seq": pa.array(np.arange(seq, seq + len(jobs), dtype=np.int64)),
        "name": ids,
        "verb": pa.array(verbs, pa.string()),
        "actor": pa.array(actors, pa.string()),
        "status": pa.array(statuses, pa.string()),
        "reason": pa.array(reasons, pa.string()),
    }


def _by_day(lane: Lane, facts: dict[str, pa.Array | None], at: Column, last: int) -> Iterator[pa.RecordBatch]:
    """Facts up to `last`, in the order in which they happened, a batch for each day."""
    order = np.argsort(at, kind="stable")
    order = order[: np.searchsorted(at[order], last)]
    at = at[order]
    days: Column = at // DAY
    edges = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(at)]
    for begin, beyond in pairwise(edges):
        if begin == beyond:
            continue
        rows = pa.array(order[begin:beyond])
        moments = at[begin:beyond]
        made = {column: values.take(rows) for column, values in facts.items() if values is not None}
        size = beyond - begin
        made["tenant"] = _same(lane.tenant, size)
        made["queue"] = _same(lane.queue, size)
        made["occurred_at"] = _times(moments)
        made["xid"] = pa.array(moments // 1000 - 1_600_000_000_000)
        made["day"] = _same(str(np.datetime64(int(days[begin]), "D")), size)
        yield pa.RecordBatch.from_arrays(
            [made.get(field.name, pa.nulls(size, field.type)) for field in SCHEMA], schema=SCHEMA
        )


def _nth(of: Column) -> Column:
    """The how many-th of its job each attempt is; they are in order."""
    order = np.argsort(of, kind="stable")
    sorted_of = of[order]
    begins = np.r_[True, sorted_of[1:] != sorted_of[:-1]] if len(of) else np.zeros(0, dtype=bool)
    first = np.maximum.accumulate(np.where(begins, np.arange(len(of)), 0)) if len(of) else np.zeros(0, int)
    nth: Column = np.empty(len(of), dtype=np.int32)
    nth[order] = np.arange(len(of)) - first + 1
    return nth


def _times(moments: Column, missing: Column | None = None) -> pa.Array:
    return pc.cast(pa.array(moments, pa.int64(), mask=missing), _ARROW["timestamp"])


def _same(text: str, count: int) -> pa.Array:
    return pa.array([text]).take(pa.array(np.zeros(count, dtype=np.int8)))


_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


def _ids(created: Column, rng: np.random.Generator) -> pa.Array:
    """UUIDv7 of their times, as text, made without a loop."""
    count = len(created)
    raw = rng.integers(0, 256, (count, 16), dtype=np.uint8)
    ms: Column = created // 1000
    for byte in range(6):
        raw[:, byte] = ms >> (8 * (5 - byte)) & 0xFF
    raw[:, 6] = raw[:, 6] & 0x0F | 0x70
    raw[:, 8] = raw[:, 8] & 0x3F | 0x80
    digits: Column = np.empty((count, 32), dtype=np.uint8)
    digits[:, 0::2] = _HEX[raw >> 4]
    digits[:, 1::2] = _HEX[raw & 0x0F]
    text: Column = np.full((count, 36), ord("-"), dtype=np.uint8)
    for begin, to, place in ((0, 8, 0), (8, 12, 9), (12, 16, 14), (16, 20, 19), (20, 32, 24)):
        text[:, place : place + to - begin] = digits[:, begin:to]
    offsets: Column = np.arange(0, 36 * count + 1, 36, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text.tobytes()))
