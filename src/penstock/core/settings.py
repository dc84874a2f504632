"""What can be set per queue, and what holds for a job in the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import fields, replace

from penstock.core import bounds
from penstock.core.codec import JsonText, encode, plain
from penstock.core.errors import InvalidInput
from penstock.core.job import NewJob, OnExhausted
from penstock.core.limits import Rate
from penstock.core.retry import DEFAULT_RETRY, Retry


class Policy(Struct, frozen=True, gc=False):
    """What happens to one job when an attempt fails."""

    max_attempts: int
    retry: Retry
    on_exhausted: OnExhausted


class QueueSettings(Struct, frozen=True, gc=False):
    """The settings of a queue. A queue nobody has set has these defaults; None means no limit."""

    paused: bool = False
    max_concurrency: int | None = None
    max_concurrency_per_key: int | None = None
    rate: Rate | None = None
    rate_per_key: Rate | None = None
    fair: bool = False
    """Leases rotate between the keys of its jobs, within one priority."""
    max_attempts: int = 5
    retry: Retry = DEFAULT_RETRY
    on_exhausted: OnExhausted = OnExhausted.DEAD
    lease_seconds: float = 30
    retention_seconds: float = 7 * 86_400
    """How long succeeded and cancelled jobs stay. Dead and held ones stay until somebody decides."""
    max_depth: int | None = None
    """With so many jobs queued, the service takes no more in. It looks once a second: some may get past."""
    target_seconds: float = 60
    """How long a job that is due may wait before the queue counts as late. It changes nothing but what people are told."""

    def policy(self, asked: NewJob) -> Policy:
        """What the job asked for, and this queue's settings where it asked for nothing."""
        return Policy(
            self.max_attempts if asked.max_attempts is None else asked.max_attempts,
            self.retry if asked.retry is None else asked.retry,
            self.on_exhausted if asked.on_exhausted is None else asked.on_exhausted,
        )

    def changed(self, changes: Mapping[str, Any]) -> QueueSettings:
        """These settings with some of them set anew."""
        return replace(self, **checked_settings(changes))


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "paused": lambda value: bounds.flag("paused", value),
    "max_concurrency": lambda value: _optional_count("max_concurrency", value),
    "max_concurrency_per_key": lambda value: _optional_count("max_concurrency_per_key", value),
    "rate": lambda value: _optional_rate("rate", value),
    "rate_per_key": lambda value: _optional_rate("rate_per_key", value),
    "fair": lambda value: bounds.flag("fair", value),
    "max_attempts": lambda value: bounds.integer("max_attempts", value, 1, bounds.MOST_ATTEMPTS),
    "retry": lambda value: checked_retry("retry", value),
    "on_exhausted": lambda value: bounds.member("on_exhausted", value, OnExhausted),
    "lease_seconds": lambda value: bounds.number("lease_seconds", value, 1, bounds.LONGEST_LEASE_SECONDS),
    "retention_seconds": lambda value: bounds.number("retention_seconds", value, 0, bounds.LONGEST_SECONDS),
    "max_depth": lambda value: _optional_count("max_depth", value, bounds.MOST_DEPTH),
    "target_seconds": lambda value: bounds.number("target_seconds", value, 0.001, bounds.LONGEST_SECONDS),
}
assert _CHECKS.keys() == {field.name for field in fields(QueueSettings)}


def checked_settings(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes to a queue's settings, each within its limits."""
    checked = {}
    for field, value in changes.items():
        check = _CHECKS.get(field)
        if check is None:
            raise InvalidInput("settings", f"name only {', '.join(_CHECKS)}", field)
        checked[field] = check(value)
    return checked


def described(changes: Mapping[str, Any]) -> JsonText:
    """Changes to a queue's settings as the audit trail keeps them."""
    return encode(
        {name: plain(value) for name, value in changes.items()}, field="settings", limit=bounds.PAYLOAD_BYTES
    )


def checked_retry(field: str, value: object) -> Retry:
    if not isinstance(value, Retry):
        raise InvalidInput(field, "be a Retry, such as Retry.exponential(base=5)", value)
    return value


def _optional_count(field: str, value: object, most: int = bounds.MOST_CONCURRENCY) -> int | None:
    return None if value is None else bounds.integer(field, value, 1, most)


def _optional_rate(field: str, value: object) -> Rate | None:
    if value is not None and not isinstance(value, Rate):
        raise InvalidInput(field, "be a Rate, such as Rate(100, per=60), or None", value)
    return value
