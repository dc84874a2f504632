"""Enqueue on a connection of the caller's, as part of whatever transaction it is in.

The driver is the caller's too: asyncpg, psycopg, SQLAlchemy, Django, or anything with a DB-API cursor. All of them
run the same function of the database, `penstock.enqueue_asked`, so nothing here imports any of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from penstock.core.codec import fingerprint
from penstock.core.commands import Duplicate, Enqueued
from penstock.core.errors import IdConflict, IdempotencyConflict, InvalidInput, ParentNotFound, PenstockError
from penstock.core.job import JobId, NewJob
from penstock.stores.postgres import rows

Answers = list[Enqueued | PenstockError]

_SECOND = timedelta(seconds=1)
_COLUMNS = "place, job_id, duplicate, error, about"


async def enqueue(
    connection: Any, tenant: str, jobs: Sequence[NewJob], at: datetime | None = None
) -> Answers:
    """Enqueue on any connection; one that is not async is simply used. `at` is for tests."""
    asked = _asked(jobs)
    match _package(connection):
        case "asyncpg":
            found = await connection.fetch(_statement("$1", "$2", "$3"), tenant, at, asked)
        case "psycopg" if inspect.iscoroutinefunction(connection.execute):
            async with connection.cursor(row_factory=_tuples()) as cursor:
                await cursor.execute(_statement("%s", "%s", "%s"), (tenant, at, asked))
                found = await cursor.fetchall()
        case "sqlalchemy" if inspect.iscoroutinefunction(connection.execute):
            found = (await connection.execute(*_for_sqlalchemy(tenant, asked, at))).all()
        case _:
            return enqueue_now(connection, tenant, jobs, at)
    return _answers(jobs, found)


def enqueue_now(connection: Any, tenant: str, jobs: Sequence[NewJob], at: datetime | None = None) -> Answers:
    """Enqueue on a connection that is not async."""
    asked = _asked(jobs)
    match _package(connection):
        case "asyncpg":
            is_async = True
        case "psycopg" | "sqlalchemy":
            is_async = inspect.iscoroutinefunction(connection.execute)
        case _:
            is_async = not hasattr(connection, "cursor")
    if is_async:
        must = "be a connection of psycopg, SQLAlchemy or Django that is not async, or have a DB-API cursor"
        raise InvalidInput("conn", must, type(connection).__qualname__)
    if _package(connection) == "sqlalchemy":
        return _answers(jobs, connection.execute(*_for_sqlalchemy(tenant, asked, at)).all())
    options = {"row_factory": _tuples()} if _package(connection) == "psycopg" else {}
    with connection.cursor(**options) as cursor:
        cursor.execute(_statement("%s", "%s", "%s"), (tenant, at, asked))
        return _answers(jobs, cursor.fetchall())


def _package(connection: Any) -> str | None:
    """Which of the packages whose connections differ from DB-API's this one comes from."""
    packages = (base.__module__.partition(".")[0] for base in type(connection).__mro__)
    return next((name for name in packages if name in ("asyncpg", "psycopg", "sqlalchemy")), None)


def _statement(tenant: str, at: str, asked: str) -> str:
    return (
        f"SELECT {_COLUMNS} FROM penstock.enqueue_asked("
        f"CAST({tenant} AS text), CAST({at} AS timestamptz), CAST({asked} AS json))"
    )


def _for_sqlalchemy(tenant: str, asked: str, at: datetime | None) -> tuple[Any, dict[str, Any]]:
    from sqlalchemy import text

    return text(_statement(":tenant", ":at", ":asked")), {"tenant": tenant, "at": at, "asked": asked}


def _tuples() -> Any:
    """Rows as tuples, whatever the caller has made of them for its own."""
    from psycopg.rows import tuple_row

    return tuple_row


def _asked(jobs: Sequence[NewJob]) -> str:
    return msgspec.json.encode([_body(job) for job in jobs]).decode()


def _body(job: NewJob) -> dict[str, Any]:
    """A job as `penstock.enqueue_asked` takes it."""
    return {
        "id": job.id,
        "queue": job.queue,
        "type": job.type,
        "payload": job.payload,
        "priority": job.priority,
        "key": job.key,
        "schedule": job.schedule,
        "run_at": job.run_at,
        "delay": _seconds(job.delay),
        "options": rows.to_options(job),
        "involved": not rows.is_plain(job),
        "expires_at": job.expires_at,
        "expires_in": _seconds(job.expires_in),
        "ordering_key": job.ordering_key,
        "unique_key": job.unique_key,
        "idempotency_key": job.idempotency_key,
        "idempotency_window": _seconds(job.idempotency_window),
        "fingerprint": None if job.idempotency_key is None else fingerprint(job),
        "parents": job.parents,
        "on_parent_failure": job.on_parent_failure,
    }


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span / _SECOND


def _answers(jobs: Sequence[NewJob], found: Iterable[Any]) -> Answers:
    ordered = sorted((tuple(row) for row in found), key=lambda row: row[0])
    return [_answer(job, *row[1:]) for job, row in zip(jobs, ordered, strict=True)]


def _answer(
    job: NewJob, job_id: Any, duplicate: str | None, error: str | None, about: str | None
) -> Enqueued | PenstockError:
    match error:
        case None:
            return Enqueued(JobId(str(job_id)), None if duplicate is None else Duplicate(duplicate))
        case IdConflict.code:
            return IdConflict(job.id)
        case IdempotencyConflict.code:
            return IdempotencyConflict(str(job.idempotency_key), str(about))
        case _:
            return ParentNotFound(job.id, str(about))
