"""From what people send to what a store takes: every value checked against its limits, here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from itertools import islice
from typing import Any

from msgspec.structs import fields

from penstock.core import bounds, codec
from penstock.core.commands import Filter
from penstock.core.cron import check_cron, check_tz
from penstock.core.errors import InvalidInput
from penstock.core.job import Cause, JobId, NewJob, OnExhausted, OnParentFailure, Status
from penstock.core.schedule import NO_ID, Missed, Schedule
from penstock.core.settings import checked_retry

Check = Callable[[str, Any], Any]


def new_job(id: JobId, item: Mapping[str, Any]) -> NewJob:
    """A job as asked for by name: `type`, and whatever else NewJob has. None stands for not given."""
    checked = _checked(item, _JOB, "a job")
    if "type" not in checked:
        raise InvalidInput("type", "be given", None)
    for absolute, relative in (("run_at", "delay"), ("expires_at", "expires_in")):
        if absolute in checked and relative in checked:
            raise InvalidInput(relative, f"not be given together with {absolute}", item[relative])
    checked.setdefault("id", id)
    return NewJob(**checked)


def new_schedule(name: str, cron: str, item: Mapping[str, Any], **options: Any) -> Schedule:
    """A schedule and the job it enqueues."""
    for field in ("id", "run_at", "delay", "expires_at", "idempotency_key", "parents", "schedule"):
        if item.get(field) is not None:
            raise InvalidInput(
                field, "not be given for a schedule: each fire time makes its own job", item[field]
            )
    options = _checked(options, _SCHEDULE, "a schedule")
    return Schedule(bounds.name("name", name), check_cron(cron), new_job(NO_ID, item), **options)


def new_filter(conditions: Mapping[str, Any]) -> Filter:
    """Which jobs: `statuses` (or one `status`), `queue`, `type`, `key`, `schedule`, `cause`, a span of created_at, `parents`, `in_flow`."""
    conditions = dict(conditions)
    if (status := conditions.pop("status", None)) is not None:
        if conditions.get("statuses"):
            raise InvalidInput("status", "not be given together with statuses", status)
        conditions["statuses"] = (status,)
    return Filter(**_checked(conditions, _FILTER, "a filter"))


def _checked(given: Mapping[str, Any], checks: Mapping[str, Check], what: str) -> dict[str, Any]:
    checked = {}
    for field, value in given.items():
        check = checks.get(field)
        if check is None:
            raise InvalidInput(what, f"have only the fields {', '.join(checks)}", field)
        if value is not None or field == "payload":
            checked[field] = check(field, value)
    return checked


_names: set[str] = set()
"""Names seen to be good. Programs use few, so the hot path looks them up instead of matching a pattern."""


def _name(field: str, value: object) -> str:
    if type(value) is str and value in _names:
        return value
    good = bounds.name(field, value)
    if len(_names) < 10_000:
        _names.add(good)
    return good


def _priority(field: str, value: object) -> int:
    return bounds.integer(field, value, *bounds.PRIORITIES)


def _attempts(field: str, value: object) -> int:
    return bounds.integer(field, value, 1, bounds.MOST_ATTEMPTS)


def _payload(field: str, value: object) -> codec.JsonText:
    return codec.encode(value, field=field, limit=bounds.PAYLOAD_BYTES)


def _headers(field: str, value: object) -> codec.JsonText:
    if not isinstance(value, Mapping):
        raise InvalidInput(field, "be an object", value)
    return codec.encode(value, field=field, limit=bounds.HEADERS_BYTES)


def _window(field: str, value: object) -> timedelta:
    window = bounds.span(field, value)
    if not window:
        raise InvalidInput(field, "be longer than nothing", value)
    return window


def _parents(field: str, value: object) -> tuple[JobId, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidInput(field, "be a list of job ids", value)
    parents = tuple(JobId(bounds.job_id(field, parent)) for parent in value)
    if len(parents) > bounds.MOST_PARENTS:
        raise InvalidInput(field, f"be at most {bounds.MOST_PARENTS:,} job ids", f"{len(parents):,}")
    if len(set(parents)) < len(parents):
        raise InvalidInput(field, "name each job once", value)
    return parents


def _statuses(field: str, value: object) -> tuple[Status, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidInput(field, "be a list of states", value)
    statuses = tuple(bounds.member(field, status, Status) for status in islice(value, len(Status) + 1))
    if len(set(statuses)) < len(statuses):
        raise InvalidInput(field, "name each state once", value)
    return statuses


_JOB: dict[str, Check] = {
    "id": bounds.job_id,
    "type": _name,
    "queue": _name,
    "payload": _payload,
    "priority": _priority,
    "run_at": bounds.moment,
    "delay": bounds.span,
    "expires_at": bounds.moment,
    "expires_in": bounds.span,
    "max_attempts": _attempts,
    "retry": checked_retry,
    "on_exhausted": lambda field, value: bounds.member(field, value, OnExhausted),
    "key": bounds.key,
    "ordering_key": bounds.key,
    "unique_key": bounds.key,
    "idempotency_key": bounds.key,
    "idempotency_window": _window,
    "parents": _parents,
    "on_parent_failure": lambda field, value: bounds.member(field, value, OnParentFailure),
    "headers": _headers,
}
assert _JOB.keys() == {field.name for field in fields(NewJob)} - {"schedule"}

_SCHEDULE: dict[str, Check] = {
    "tz": lambda field, value: check_tz(value),
    "missed": lambda field, value: bounds.member(field, value, Missed),
    "paused": bounds.flag,
    "declared_by": bounds.key,
    "declared_as": bounds.key,
}

_FILTER: dict[str, Check] = {
    "statuses": _statuses,
    "queue": bounds.name,
    "type": bounds.name,
    "key": bounds.key,
    "schedule": bounds.name,
    "cause": lambda field, value: bounds.member(field, value, Cause),
    "created_from": bounds.moment,
    "created_before": bounds.moment,
    "parents": _parents,
    "in_flow": bounds.flag,
}
assert _FILTER.keys() == {field.name for field in fields(Filter)}
