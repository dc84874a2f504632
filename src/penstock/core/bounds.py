"""The limits on input: each check names the field, the limit and what was given."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TypeVar
from uuid import UUID

from penstock.core.errors import InvalidInput

NAME_CHARS = 128
KEY_CHARS = 512
TEXT_CHARS = 1_024
PAYLOAD_BYTES = 1_048_576
RESULT_BYTES = 1_048_576
HEADERS_BYTES = 16_384
INSIGHT_BYTES = 4_194_304
PROGRESS_BYTES = 4_096
ERROR_CHARS = 4_096
LOG_CHARS = 16_384
MOST_ATTEMPTS = 1_000
MOST_PARENTS = 1_000
MOST_CONCURRENCY = 1_000_000
MOST_DEPTH = 1_000_000_000
MOST_LEASED = 1_000
MOST_LISTED = 1_000
LONGEST_LEASE_SECONDS = 86_400
LONGEST_SECONDS = 10 * 365 * 86_400
PRIORITIES = (-32_768, 32_767)
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9000, 1, 1, tzinfo=UTC)
CUT = "… [cut]"

_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.:/@+-]{{0,{NAME_CHARS - 1}}}\Z")
_SURROGATES = re.compile("[\ud800-\udfff]")

Choice = TypeVar("Choice", bound=StrEnum)


def name(field: str, value: object) -> str:
    """A name people type: queues, job types, schedules, tenants."""
    if type(value) is not str or _NAME.match(value) is None:
        raise InvalidInput(
            field,
            f"be 1 to {NAME_CHARS} letters, digits or _ . : / @ + - and begin with a letter, digit or _",
            value,
        )
    return value


def text(field: str, value: object, limit: int = TEXT_CHARS, least: int = 0) -> str:
    """Free text that a database can hold."""
    if (
        type(value) is not str
        or not least <= len(value) <= limit
        or "\0" in value
        or _SURROGATES.search(value)
    ):
        raise InvalidInput(field, f"be {least} to {limit:,} characters of Unicode without NUL", value)
    return value


def key(field: str, value: object) -> str:
    return text(field, value, KEY_CHARS, 1)


def error_text(value: object, limit: int = ERROR_CHARS) -> str:
    """Error text is never refused: what cannot be stored is escaped, and past the limit it is cut and marked."""
    try:
        shown = str(value)
    except Exception as error:
        shown = f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"
    escaped = _SURROGATES.sub(lambda found: f"\\u{ord(found[0]):04x}", shown.replace("\0", "\\x00"))
    return escaped if len(escaped) <= limit else escaped[: limit - len(CUT)] + CUT


def integer(field: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise InvalidInput(field, f"be a whole number from {least:,} to {most:,}", value)
    return value


def number(field: str, value: object, least: float, most: float) -> float:
    if type(value) not in (int, float) or not least <= value <= most:  # type: ignore[operator]
        raise InvalidInput(field, f"be a number from {least:,} to {most:,}", value)
    return value  # type: ignore[return-value]


def flag(field: str, value: object) -> bool:
    if type(value) is not bool:
        raise InvalidInput(field, "be true or false", value)
    return value


def member(field: str, value: object, choices: type[Choice]) -> Choice:
    try:
        return choices(value)  # type: ignore[arg-type]
    except ValueError:
        raise InvalidInput(field, f"be one of {', '.join(choices)}", value) from None


def moment(field: str, value: object) -> datetime:
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidInput(field, "be a datetime with a time zone", value)
    if not EARLIEST <= value <= LATEST:
        raise InvalidInput(
            field, f"lie between the years {EARLIEST.year} and {LATEST.year}", value.isoformat()
        )
    return value.astimezone(UTC)


def span(field: str, value: object) -> timedelta:
    """A duration: a timedelta, or seconds."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    return timedelta(seconds=number(field, value, 0, LONGEST_SECONDS))


def job_id(field: str, value: object) -> str:
    """A UUID in its usual lower-case form, which sorts as text the way it sorts as a number."""
    if type(value) is str and len(value) == 36:
        try:
            if str(UUID(value)) == value:
                return value
        except ValueError:
            pass
    raise InvalidInput(field, "be a UUID in lower case, 8-4-4-4-12", value)
