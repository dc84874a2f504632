"""Many jobs into PostgreSQL at once, in one transaction per slice: by COPY straight into the tables where no row was there
before, and else staged by COPY and taken in by set.

Both ways are the statement of sql/enqueue.sql for many, with idempotency keys taken by set too. That is exact among those
who do it so: of two who bring one key, the second waits for the first and finds its job. Who enqueues one by one looks
first and writes later, under a lock per key; so keys that others may use as well go that way (`one_by_one`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from penstock.core.codec import fingerprint
from penstock.core.errors import IdempotencyConflict, PenstockError
from penstock.core.job import NewJob
from penstock.stores.postgres import in_transaction, rows

_CONCERNS = ("expires_at", "expires_in", "ordering_key", "unique_key")

CAREFUL = ("parents", "idempotency_key", *_CONCERNS)
"""What makes a job one that is not taken in by set: see `is_apart`."""

MOST_LOCKED = 500
"""Jobs with keys to lock that go into one transaction: all locks of a server fit into some thousands of places."""

COLUMNS = {
    "place": "integer",
    "id": "uuid",
    "queue": "text",
    "type": "text",
    "payload": "text",
    "priority": "smallint",
    "key": "text",
    "run_at": "timestamptz",
    "delay": "double precision",
    "options": "text",
    "request": "text",
    "seconds": "double precision",
    "fingerprint": "text",
}

_STAGE = f"""CREATE TEMPORARY TABLE penstock_stage ({", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())})
ON COMMIT DROP"""

# In the order of the keys: two who bring the same ones must not wait for each other.
_NEW = """
new AS (
    INSERT INTO penstock.request AS r (tenant, key, job_id, fingerprint, until)
    SELECT %(tenant)s, request, id, fingerprint, now() + make_interval(secs => seconds)
    FROM (SELECT DISTINCT ON (request COLLATE "C") request, id, fingerprint, seconds
          FROM penstock_stage ORDER BY request COLLATE "C", place) s
    ON CONFLICT (tenant, key) DO UPDATE SET job_id = excluded.job_id, fingerprint = excluded.fingerprint, until = excluded.until
    WHERE r.until <= now()
    RETURNING job_id
),
given AS (SELECT * FROM penstock_stage WHERE id IN (SELECT job_id FROM new)),"""
_ALL = "given AS (SELECT * FROM penstock_stage),"

_TAKE_IN = """
asked AS (
    INSERT INTO penstock.job (tenant, id, queue, type, payload, priority, key, run_at, options, created_at, scheduled_at)
    SELECT %(tenant)s, id, queue, type, payload::json, priority, key, run_at, options::json, now(),
           coalesce(run_at, now() + make_interval(secs => delay), now())
    FROM given
    {on_conflict}
    RETURNING id, queue, priority, key, scheduled_at
),
lined_up AS (
    INSERT INTO penstock.ready (tenant, id, queue, priority, run_at, key, scheduled_at)
    SELECT %(tenant)s, id, queue, priority, scheduled_at, key, scheduled_at FROM asked
),
counted AS (
    INSERT INTO penstock.tally (tenant, queue, queued) SELECT %(tenant)s, queue, count(*) FROM asked GROUP BY queue
)"""

_LANES = """
SELECT penstock.know(%(tenant)s, array_agg(queue), array_agg(priority)),
       penstock.hold(%(tenant)s, array_agg(queue), array_agg(priority), array_agg(run_at))
FROM (SELECT queue, priority, min(coalesce(run_at, now() + make_interval(secs => delay), now())) AS run_at
      FROM penstock_stage GROUP BY queue, priority) l"""

_TELL = "SELECT pg_notify('penstock', %(tenant)s || ' ' || queue) FROM (SELECT DISTINCT queue FROM penstock_stage) q"

_LANES_TOLD = """
SELECT penstock.know(%(tenant)s, %(queue)s, %(priority)s::smallint[]),
       penstock.hold(%(tenant)s, %(queue)s, %(priority)s::smallint[], %(due_min)s::timestamptz[])"""

_TOLD = """
WITH counted AS (
    INSERT INTO penstock.tally (tenant, queue, queued)
    SELECT %(tenant)s, queue, sum(number) FROM unnest(%(queue)s::text[], %(due_count)s::bigint[]) AS lane (queue, number)
    GROUP BY queue RETURNING queue
)
SELECT pg_notify('penstock', %(tenant)s || ' ' || queue) FROM counted"""

_CONFLICTS = """
SELECT s.place, s.request, r.job_id::text FROM penstock_stage s
JOIN penstock.request r ON r.tenant = %(tenant)s AND r.key = s.request
WHERE r.fingerprint <> s.fingerprint"""


class Taken(Struct, frozen=True):
    """What became of a slice: how many jobs it made, and which of its members were refused."""

    made: int
    refused: dict[int, PenstockError] = {}
    ids: frozenset[str] = frozenset()
    """Those of the jobs made, if they were asked for."""


def take_in(
    connection: Any, tenant: str, stage: Any, *, keyed: bool, named: bool = False, straight: bool = False
) -> Taken:
    """Take jobs in, inside the transaction that is open; `stage` is an Arrow table with COLUMNS.

    Rows whose id is taken are left out, uncounted and unrefused: whoever has `named` them asks about those once more.
    `straight`: none of the keys is likely to be known, all are to be remembered for equally long, and nothing has a delay.
    """
    if straight and _copied(connection, tenant, stage, keyed):
        return Taken(stage.num_rows)
    given = {"tenant": tenant}
    connection.execute("DROP TABLE IF EXISTS penstock_stage")
    connection.execute(_STAGE)
    _copy(connection, "penstock_stage", stage)
    # Only who names jobs can name one that is there; to look out for it is not free.
    take_in = _TAKE_IN.format(on_conflict="ON CONFLICT DO NOTHING" if named else "")
    ids = "array_agg(id::text)" if named else "NULL"
    [(made, known)] = connection.execute(
        f"WITH {_NEW if keyed else _ALL} {take_in} SELECT count(*), {ids} FROM asked", given
    )
    connection.execute(_LANES, given)
    connection.execute(_TELL, given)
    refused: dict[int, PenstockError] = {}
    if keyed and made < stage.num_rows:
        connection.execute("ANALYZE penstock_stage")
        for place, key, job_id in connection.execute(_CONFLICTS, given):
            refused[place] = IdempotencyConflict(key, job_id)
    return Taken(made, refused, frozenset(known or ()))


def _copied(connection: Any, tenant: str, stage: Any, keyed: bool) -> bool:
    """Copy jobs straight to where they belong, if no key was ever brought before: half the work of looking at each.

    Otherwise the index of the keys refuses, and nothing is written.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from psycopg.errors import UniqueViolation

    if keyed and pc.count_distinct(stage["request"]).as_py() < stage.num_rows:
        return False
    seconds = stage["seconds"][0].as_py()
    [(now, until)] = connection.execute("SELECT now(), now() + make_interval(secs => %s)", [seconds])
    due = pc.fill_null(stage["run_at"], moment_text(now))

    def same(value: str) -> Any:
        return pa.repeat(value, stage.num_rows)

    its = {"tenant": same(tenant), **{name: stage[name] for name in ("id", "queue", "priority", "key")}}
    job = {**its, **{name: stage[name] for name in ("type", "payload", "run_at", "options")}}
    job |= {"created_at": same(moment_text(now)), "scheduled_at": due}
    try:
        with connection.transaction():
            if keyed:
                # In the order of the keys: two who bring the same ones must not wait for each other; and cheaper too.
                keys = stage.select(["request", "id", "fingerprint"]).rename_columns(
                    ["key", "job_id", "fingerprint"]
                )
                keys = keys.append_column("tenant", same(tenant)).append_column(
                    "until", same(moment_text(until))
                )
                _copy(connection, "penstock.request", keys.sort_by("key"))
            _copy(connection, "penstock.job", pa.table(job))
            _copy(connection, "penstock.ready", pa.table({**its, "run_at": due, "scheduled_at": due}))
    except UniqueViolation:
        return False
    lanes = pa.table({"queue": stage["queue"], "priority": stage["priority"], "due": due})
    lanes = lanes.group_by(["queue", "priority"]).aggregate([("due", "min"), ("due", "count")])
    given = {"tenant": tenant, **{name: lanes[name].to_pylist() for name in lanes.column_names}}
    connection.execute(_LANES_TOLD, given)
    connection.execute(_TOLD, given)
    return True


def _copy(connection: Any, table: str, rows: Any) -> None:
    import pyarrow
    import pyarrow.csv

    # Quoted wherever there is a value: what is not is null.
    style = pyarrow.csv.WriteOptions(include_header=False, quoting_style="all_valid")
    with connection.cursor().copy(
        f"COPY {table} ({', '.join(rows.column_names)}) FROM STDIN (FORMAT csv)"
    ) as copy:
        sink = pyarrow.BufferOutputStream()
        pyarrow.csv.write_csv(rows, sink, style)
        copy.write(sink.getvalue())


def moment_text(moment: datetime) -> str:
    """A moment as PostgreSQL reads it and as Arrow writes it; the earlier is the lesser text."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}Z"


def one_by_one(connection: Any, tenant: str, jobs: Sequence[NewJob]) -> Taken:
    """Take jobs in under the rules for those that concern others, inside the transaction that is open."""
    made, refused = 0, {}
    for place, answer in enumerate(in_transaction.enqueue_now(connection, tenant, jobs)):
        if isinstance(answer, PenstockError):
            refused[place] = answer
        elif answer.duplicate is None:
            made += 1
    return Taken(made, refused)


def is_apart(job: NewJob, own_key: bool) -> bool:
    """Whether a job can be taken in by set: it concerns no other job, and if it has a key then one of `own_key`s."""
    if job.idempotency_key is None:
        return rows.is_plain(job)
    return own_key and not job.parents and all(getattr(job, name) is None for name in _CONCERNS)


def staged(jobs: Sequence[NewJob]) -> Any:
    """Jobs as an Arrow table with COLUMNS."""
    import pyarrow as pa

    return pa.table(
        {
            "place": pa.array(range(len(jobs)), pa.int32()),
            "id": pa.array([job.id for job in jobs], pa.string()),
            "queue": pa.array([job.queue for job in jobs], pa.string()),
            "type": pa.array([job.type for job in jobs], pa.string()),
            "payload": pa.array([job.payload for job in jobs], pa.string()),
            "priority": pa.array([job.priority for job in jobs], pa.int16()),
            "key": pa.array([job.key for job in jobs], pa.string()),
            "run_at": pa.array(
                [None if job.run_at is None else job.run_at.isoformat() for job in jobs], pa.string()
            ),
            "delay": pa.array(
                [None if job.delay is None else job.delay.total_seconds() for job in jobs], pa.float64()
            ),
            "options": pa.array([rows.to_options(job) for job in jobs], pa.string()),
            "request": pa.array([job.idempotency_key for job in jobs], pa.string()),
            "seconds": pa.array([job.idempotency_window.total_seconds() for job in jobs], pa.float64()),
            "fingerprint": pa.array(map(_fingerprint, jobs), pa.string()),
        }
    )


def quick_fingerprint(*asked: Any) -> str:
    """A hash of type, queue, payload, priority, key, run_at and max_attempts, where nothing else was asked for."""
    return hashlib.sha256(msgspec.json.encode(asked)).hexdigest()


def _fingerprint(job: NewJob) -> str | None:
    if job.idempotency_key is None:
        return None
    plain = NewJob(
        job.id, job.type, job.queue, job.payload, job.priority, job.run_at, max_attempts=job.max_attempts, key=job.key,
        idempotency_key=job.idempotency_key, idempotency_window=job.idempotency_window,
    )  # fmt: skip
    if plain != job:
        return fingerprint(job)
    run_at = None if job.run_at is None else moment_text(job.run_at)
    return quick_fingerprint(
        job.type, job.queue, job.payload, job.priority, job.key, run_at, job.max_attempts
    )
