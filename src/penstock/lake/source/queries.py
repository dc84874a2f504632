"""What the tables of the source are in PostgreSQL."""

from __future__ import annotations

from datetime import date
from typing import Any

from msgspec import Struct

from penstock.lake.source.asking import Ask
from penstock.lake.source.filters import literal
from penstock.lake.tables import SOURCE


class Span(Struct, frozen=True):
    """Part of a table: by transactions, or by the ids of jobs; from the lower bound on, below the upper one."""

    by: str = ""
    low: str | None = None
    high: str | None = None
    since: dict[str, object] | None = None
    """The offset that a stream reads on from."""


class Statement(Struct, frozen=True):
    """What reads some of a table's rows: the columns that differ from row to row, and what the others are in all of them."""

    sql: str
    columns: tuple[str, ...]
    same: dict[str, Any] = {}
    moment: str = ""
    """The column whose day is `day`. Who reads makes it of that: a text for each row costs the server as much as all else."""


def statements(ask: Ask, span: Span) -> list[Statement]:
    """What reads the columns asked for, one after the other."""
    return [_statement(ask, branch) for branch in _TABLES[ask.table](ask, span)]


def union(ask: Ask, span: Span) -> str:
    """The same rows by a single statement, as whoever has nothing but SQL would read them."""
    columns = ", ".join(f'e."{column}"' for column in ask.columns)
    branches = " UNION ALL ".join(branch.sql for branch in _TABLES[ask.table](ask, span))
    return f"SELECT {columns} FROM ({branches}) AS e{_conditions(ask)}"


class _Branch(Struct, frozen=True):
    sql: str
    moment: str = ""
    same: dict[str, Any] = {}


def _statement(ask: Ask, branch: _Branch) -> Statement:
    derived = {"day"} if branch.moment else set()
    columns = [column for column in ask.columns if column not in branch.same and column not in derived]
    if derived & set(ask.columns) and branch.moment not in columns:
        columns.append(branch.moment)
    chosen = ", ".join(f'e."{column}"' for column in columns) or "NULL::text"
    sql = f"SELECT {chosen} FROM ({branch.sql}) AS e{_conditions(ask)}"
    return Statement(sql, tuple(columns), branch.same, branch.moment)


def _conditions(ask: Ask) -> str:
    kinds = dict(SOURCE[ask.table])
    conditions = " AND ".join(condition.sql(kinds) for condition in ask.conditions)
    return f" WHERE {conditions}" if conditions else ""


def rows_between(ask: Ask, low: int, high: int) -> str:
    """The transactions of what is between two of them, a row for each fact."""
    span = Span("xid", str(low), str(high))
    return " UNION ALL ".join(
        f"SELECT {one}.xid FROM penstock.{table} {one} WHERE {_where(ask, span, one, f'{one}.{moment}')}"
        for table, one, moment in _FACTS
    )


_FACTS = (("job", "j", "created_at"), ("attempt", "a", "ended_at"), ("change", "c", "at"))


def _where(ask: Ask, span: Span, alias: str, moment: str | None, id: str = "id") -> str:
    parts = ["true"]
    if ask.tenant is not None:
        # IS TRUE: of the indexes only the one on `xid` is to be taken.
        is_true = " IS TRUE" if span.by == "xid" else ""
        parts.append(f"({alias}.tenant = {literal(ask.tenant)}){is_true}")
    column = f"{alias}.{'xid' if span.by == 'xid' else id}"
    kind = "bigint" if span.by == "xid" else "uuid"
    if span.low is not None:
        parts.append(f"{column} >= '{span.low}'::{kind}")
    if span.high is not None:
        parts.append(f"{column} < '{span.high}'::{kind}")
    if moment is not None and ask.first_day is not None:
        parts.append(f"{moment} >= {_midnight(ask.first_day)}")
    if moment is not None and ask.last_day is not None:
        # Added by the database: it knows a day after 9999-12-31. And not as a day, which may have 23 hours.
        parts.append(f"{moment} < {_midnight(ask.last_day)} + interval '24 hours'")
    return " AND ".join(parts)


def _midnight(day: date) -> str:
    return f"'{day.isoformat()} 00:00:00+00'::timestamptz"


def _day(moment: str) -> str:
    return f"to_char({moment} AT TIME ZONE 'UTC', 'YYYY-MM-DD')"


# An attempt could have begun when the one before said so; after an end for good, when the job was brought back; else when
# it was first to run; and not before the job's parents had ended. Nothing here changes once the attempt has ended: who reads it again reads the same.
_READY_AT = """greatest(j.created_at, coalesce(
    CASE WHEN p.status IN ('dead', 'held', 'cancelled') THEN (
        SELECT max(c.at) FROM penstock.change c
        WHERE c.tenant = a.tenant AND c.kind = 'job' AND c.name = a.job_id::text AND c.verb = 'redrive' AND c.at <= a.started_at
    ) END,
    p.run_at, j.scheduled_at), CASE WHEN j.options->'parents' IS NOT NULL THEN (
        SELECT max(c.at) FROM penstock.change c
        WHERE c.tenant = a.tenant AND c.kind = 'job' AND c.name = a.job_id::text AND c.verb = 'unblock' AND c.at <= a.started_at
    ) END)"""

_ATTEMPTS = """penstock.attempt a
    LEFT JOIN penstock.job j ON j.tenant = a.tenant AND j.id = a.job_id
    LEFT JOIN penstock.attempt p ON a.number > 1 AND p.tenant = a.tenant AND p.job_id = a.job_id AND p.number = a.number - 1"""


_OF_ATTEMPTS = ("attempt", "ready_at", "started_at", "ended_at", "worker", "outcome", "error")
_OF_CHANGES = ("name", "verb", "actor", "reason", "detail")


def _events(ask: Ask, span: Span) -> list[_Branch]:
    jobs = f"""
    SELECT j.tenant, j.xid, 0::bigint AS seq, 'job'::text AS kind, j.created_at AS occurred_at, j.id::text AS job_id, j.queue,
           j.type, j.priority::int AS priority, j.key, j.schedule, j.created_at, j.scheduled_at, j.run_at,
           j.options::text AS options, NULL::int AS attempt, NULL::timestamptz AS ready_at, NULL::timestamptz AS started_at,
           NULL::timestamptz AS ended_at, NULL::text AS worker, NULL::text AS outcome, NULL::text AS status, NULL::text AS error,
           NULL::text AS name, NULL::text AS verb, NULL::text AS actor, NULL::text AS reason, NULL::text AS detail,
           {_day("j.created_at")} AS day
    FROM penstock.job j WHERE {_where(ask, span, "j", "j.created_at")}"""
    attempts = f"""
    SELECT a.tenant, a.xid, a.seq, 'attempt'::text AS kind, a.ended_at AS occurred_at, a.job_id::text AS job_id, j.queue,
           j.type, j.priority::int AS priority, j.key, j.schedule, j.created_at, j.scheduled_at, a.run_at,
           NULL::text AS options, a.number AS attempt, {_READY_AT} AS ready_at, a.started_at,
           a.ended_at, a.worker, a.outcome, a.status, a.error,
           NULL::text AS name, NULL::text AS verb, NULL::text AS actor, NULL::text AS reason, NULL::text AS detail,
           {_day("a.ended_at")} AS day
    FROM {_ATTEMPTS} WHERE {_where(ask, span, "a", "a.ended_at", "job_id")}"""
    changes = f"""
    SELECT c.tenant, c.xid, c.seq, 'change'::text AS kind, c.at AS occurred_at, CASE c.kind WHEN 'job' THEN c.name END AS job_id,
           CASE c.kind WHEN 'queue' THEN c.name ELSE j.queue END AS queue,
           j.type, j.priority::int AS priority, j.key, CASE c.kind WHEN 'schedule' THEN c.name ELSE j.schedule END AS schedule,
           j.created_at, j.scheduled_at, NULL::timestamptz AS run_at,
           NULL::text AS options, NULL::int AS attempt, NULL::timestamptz AS ready_at, NULL::timestamptz AS started_at,
           NULL::timestamptz AS ended_at, NULL::text AS worker, NULL::text AS outcome, c.status, NULL::text AS error,
           c.name, c.verb, c.actor, c.reason, c.detail::text AS detail,
           {_day("c.at")} AS day
    FROM penstock.change c
    LEFT JOIN penstock.job j ON j.tenant = c.tenant AND j.id = CASE c.kind WHEN 'job' THEN c.name::uuid END
    WHERE {_where(ask, span, "c", "c.at")}"""
    none = dict.fromkeys((*_OF_ATTEMPTS, *_OF_CHANGES))
    return [
        _Branch(jobs, "occurred_at", {**none, "status": None, "kind": "job", "seq": 0}),
        _Branch(attempts, "occurred_at", {**dict.fromkeys(_OF_CHANGES), "options": None, "kind": "attempt"}),
        _Branch(
            changes,
            "occurred_at",
            {**dict.fromkeys(_OF_ATTEMPTS), "options": None, "run_at": None, "kind": "change"},
        ),
    ]


def _attempts(ask: Ask, span: Span) -> list[_Branch]:
    sql = f"""
    SELECT a.tenant, a.job_id::text AS job_id, a.number AS attempt, j.queue, j.type, j.key, j.schedule,
           j.priority::int AS priority, a.worker, j.created_at, j.scheduled_at, {_READY_AT} AS ready_at, a.started_at,
           a.ended_at, a.run_at, a.outcome, a.status, a.error, a.result, {_day("a.ended_at")} AS day
    FROM {_ATTEMPTS} WHERE {_where(ask, span, "a", "a.ended_at", "job_id")}"""
    return [_Branch(sql, "ended_at")]


def _jobs(ask: Ask, span: Span) -> list[_Branch]:
    sql = f"""
    SELECT n.tenant, n.id::text AS job_id, n.queue, n.type, n.payload::text AS payload, n.priority::int AS priority, n.key,
           n.schedule, n.asked_run_at, n.options::text AS options, n.created_at, n.scheduled_at, n.status, n.run_at,
           n.start_by AS expires_at, n.attempts, n.leases, n.error, n.progress, n.cause, n.ended_at, n.worker,
           n.taken_at AS started_at, n.until AS lease_until, n.cancel_requested, n.result, {_day("n.created_at")} AS day
    FROM penstock.job_now n WHERE {_where(ask, span, "n", "n.created_at")}"""
    return [_Branch(sql, "created_at")]


def _queues(ask: Ask, span: Span) -> list[_Branch]:
    states = ("waiting", "queued", "running", "succeeded", "dead", "held", "cancelled")
    counted = ", ".join(f"coalesce(sum(t.{state}), 0)::bigint AS {state}" for state in states)
    sql = f"""
    SELECT q.tenant, q.name AS queue, q.settings::text AS settings, q.paused, {counted}
    FROM penstock.queue q LEFT JOIN penstock.tally t ON t.tenant = q.tenant AND t.queue = q.name
    WHERE {_where(ask, span, "q", None)} GROUP BY q.tenant, q.name"""
    return [_Branch(sql)]


def _schedules(ask: Ask, span: Span) -> list[_Branch]:
    sql = f"""
    SELECT s.tenant, s.name AS schedule, s.body::text AS body, s.next_fire_at, s.last_fire_at
    FROM penstock.schedule s WHERE {_where(ask, span, "s", None)}"""
    return [_Branch(sql)]


_TABLES = {
    "events": _events,
    "attempts": _attempts,
    "jobs": _jobs,
    "queues": _queues,
    "schedules": _schedules,
}
