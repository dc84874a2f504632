"""Commands of clients, checked anew: a store trusts what it is given, and a service cannot trust who gives it.

Penstock's own clients have checked every value before they send it. So whatever fails here was made by somebody else,
or by a version with other limits, and the whole request is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from penstock.core import bounds, codec
from penstock.core.codec import EMPTY_OBJECT, NULL, JsonText
from penstock.core.commands import (
    Ack,
    CancelJob,
    ConfigureQueue,
    Discard,
    DropSchedule,
    Filter,
    Fire,
    Heartbeat,
    LeaseJobs,
    Nack,
    PutSchedule,
    RedriveJob,
    Release,
    Snooze,
)
from penstock.core.errors import InvalidInput
from penstock.core.job import NewJob
from penstock.core.limits import Rate
from penstock.core.registry import Audited, Insight, PutEntry, Spend
from penstock.core.requests import new_filter, new_job, new_schedule
from penstock.core.retry import Retry
from penstock.core.schedule import NO_ID, Schedule
from penstock.core.settings import checked_settings

Check = Callable[[str, Any], Any]
Command = TypeVar("Command", bound=Struct)

MOST_FIRED = 10_000
MOST_VERSION = 2**31 - 1


def checked(command: Command, actor: str | None) -> Command:
    """A command whose every value is within its limits. With an `actor`, that is who asks, whatever it says."""
    checks = _COMMANDS[type(command)]
    values = [check(name, getattr(command, name)) for name, check in checks.items()]
    if actor is not None and "actor" in checks:
        values[list(checks).index("actor")] = actor
    return type(command)(*values)


def checked_job(asked: NewJob) -> NewJob:
    """A job as a producer may ask for it."""
    job = new_job(asked.id, _given(asked, _TEXTS | {"schedule"}))
    schedule = None if asked.schedule is None else bounds.name("schedule", asked.schedule)
    return replace(job, **_texts(asked), schedule=schedule)


def checked_filter(filter: Filter) -> Filter:
    return new_filter(_given(filter))


def subject(value: tuple[str, str]) -> tuple[str, str]:
    """Whose audit trail: of a job by its id, of anything else by its kind and name."""
    kind, name = value
    if kind == "job":
        return kind, bounds.job_id("job id", name)
    return bounds.name("kind", kind), bounds.key("name", name)


def json_text(limit: int, kind: type = object) -> Check:
    """JSON as text, which stays as it was sent."""

    def check(field: str, value: str) -> JsonText:
        if value in (EMPTY_OBJECT, NULL) and kind is object:
            return JsonText(value)
        size = len(value.encode())
        if size > limit:
            raise InvalidInput(field, f"be at most {limit:,} bytes of JSON", f"{size:,} bytes")
        try:
            behind = codec.decode(JsonText(value))
        except (ValueError, RecursionError) as error:
            raise InvalidInput(field, f"be JSON ({error})", value) from None
        if not isinstance(behind, kind):
            raise InvalidInput(field, "be an object", value)
        # What cannot be written again, such as NaN or half a character, would be in others' way.
        codec.encode(behind, field=field, limit=2 * limit)
        return JsonText(value)

    return check


def optional(check: Check) -> Check:
    return lambda field, value: None if value is None else check(field, value)


def _given(value: Struct, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    return {
        name: given
        for name in value.__struct_fields__
        if name not in without and (given := getattr(value, name)) not in (None, ())
    }


_TEXTS = frozenset({"payload", "headers"})
_payload = json_text(bounds.PAYLOAD_BYTES)
_headers = optional(json_text(bounds.HEADERS_BYTES, dict))


def _texts(asked: NewJob) -> dict[str, Any]:
    return {"payload": _payload("payload", asked.payload), "headers": _headers("headers", asked.headers)}


def _schedule(field: str, value: Schedule) -> Schedule:
    job = _given(value.job, _TEXTS | {"id"})
    options = {
        name: getattr(value, name) for name in ("tz", "missed", "paused", "declared_by", "declared_as")
    }
    schedule = new_schedule(value.name, value.cron, job, **options)
    return replace(schedule, job=replace(schedule.job, id=NO_ID, **_texts(value.job)))


def _changes(field: str, value: Mapping[str, Any]) -> dict[str, Any]:
    return checked_settings({name: _setting(name, one) for name, one in value.items()})


def _setting(name: str, value: Any) -> Any:
    """A setting as JSON had it. Numbers stay what they were: the audit trail shows them as they were written."""
    kind = {"rate": Rate, "rate_per_key": Rate, "retry": Retry}.get(name)
    if kind is None or not isinstance(value, dict):
        return value
    try:
        return kind(**value)
    except TypeError:
        raise InvalidInput(name, f"have the fields {', '.join(kind.__struct_fields__)}", value) from None


def _moments(field: str, value: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(value) > MOST_FIRED:
        raise InvalidInput(field, f"be at most {MOST_FIRED:,} times", f"{len(value):,}")
    return tuple(bounds.moment(field, at) for at in value)


def _entropy(field: str, value: float) -> float:
    if not 0 <= value < 1:
        raise InvalidInput(field, "be from 0 to less than 1", value)
    return value


def _above_nothing(field: str, value: float) -> float:
    if not 0 < value <= MOST_VERSION:
        raise InvalidInput(field, f"be above 0 and at most {MOST_VERSION:,}", value)
    return value


def _text(limit: int, least: int = 0) -> Check:
    return lambda field, value: bounds.text(field, value, limit, least)


def _number(least: float, most: float) -> Check:
    return lambda field, value: bounds.number(field, value, least, most)


def _integer(least: int, most: int) -> Check:
    return lambda field, value: bounds.integer(field, value, least, most)


_as_it_is: Check = lambda field, value: value  # noqa: E731 - its type is all there is to check
_called = _text(bounds.NAME_CHARS, 1)
_reason = optional(_text(bounds.TEXT_CHARS))
_logs = optional(_text(bounds.LOG_CHARS))
_lease_seconds = optional(_number(1, bounds.LONGEST_LEASE_SECONDS))
_held: dict[str, Check] = {"job_id": bounds.job_id, "token": _text(bounds.KEY_CHARS)}
_amount = _number(0, MOST_VERSION)


def _audited(field: str, value: Audited) -> Audited:
    return checked(value, None)


_COMMANDS: dict[type[Struct], dict[str, Check]] = {
    LeaseJobs: {
        "queue": bounds.name,
        "worker": _called,
        "limit": _integer(1, bounds.MOST_LEASED),
        "seconds": _lease_seconds,
    },
    Heartbeat: {
        **_held,
        "seconds": _lease_seconds,
        "progress": optional(json_text(bounds.PROGRESS_BYTES)),
    },
    Ack: {**_held, "result": json_text(bounds.RESULT_BYTES), "logs": _logs},
    Nack: {
        **_held,
        "error": _text(bounds.ERROR_CHARS),
        "retry": _as_it_is,
        "delay": optional(bounds.span),
        "entropy": _entropy,
        "logs": _logs,
    },
    Release: {**_held, "delay": optional(bounds.span), "logs": _logs},
    Snooze: {**_held, "delay": bounds.span, "logs": _logs},
    Discard: {**_held, "reason": optional(_text(bounds.ERROR_CHARS)), "logs": _logs},
    CancelJob: {"job_id": bounds.job_id, "actor": _called, "reason": _reason},
    RedriveJob: {"job_id": bounds.job_id, "actor": _called, "reason": _reason, "descendants": _as_it_is},
    ConfigureQueue: {"queue": bounds.name, "changes": _changes, "actor": _called, "reason": _reason},
    PutSchedule: {"schedule": _schedule, "actor": _called, "reason": _reason},
    DropSchedule: {"name": bounds.name, "actor": _called, "reason": _reason},
    Fire: {
        "name": bounds.name,
        "due_at": bounds.moment,
        "at": _moments,
        "next_fire_at": optional(bounds.moment),
    },
    PutEntry: {
        "kind": bounds.name,
        "name": bounds.key,
        "body": optional(json_text(bounds.PAYLOAD_BYTES)),
        "version": optional(_integer(0, MOST_VERSION)),
        "seconds": optional(_number(0, bounds.LONGEST_SECONDS)),
        "audit": optional(_audited),
        "expires_at": optional(bounds.moment),
    },
    Audited: {
        "name": bounds.key,
        "verb": bounds.name,
        "actor": _called,
        "reason": _reason,
        "detail": optional(json_text(bounds.PAYLOAD_BYTES)),
    },
    Insight: {
        "tenant": bounds.name,
        "name": bounds.name,
        "as_of": bounds.moment,
        "body": json_text(bounds.INSIGHT_BYTES),
    },
    Spend: {"name": bounds.key, "cost": _amount, "rate": _above_nothing, "burst": _amount},
}
assert all(tuple(checks) == kind.__struct_fields__ for kind, checks in _COMMANDS.items())
