"""A queue's settings as people type and read them: `max_concurrency=5 rate=100/60s retry=exponential,base=5s`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import click

from penstock.cli.words import UNITS, read_duration, span
from penstock.core.limits import Rate
from penstock.core.retry import Retry, RetryKind
from penstock.core.settings import QueueSettings

NONE = ("none", "null", "unlimited")


def read_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """The changes that `name=value` pairs ask for. Whether a value is within its limits is for the queue to say."""
    changes: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise click.UsageError(f"{pair!r} is no setting; say it as name=value, such as max_concurrency=5")
        if name not in _READ:
            raise click.UsageError(f"there is no setting {name!r}; there are {', '.join(_READ)}")
        changes[name] = _READ[name](name, text.strip())
    return changes


def read_rate(name: str, text: str) -> Rate:
    """`100/60s`, `100/min`, `5/s`; with a burst, `100/60s,burst=20`."""
    rate, *options = text.split(",")
    limit, slash, per = rate.partition("/")
    seconds = UNITS.get(per) or read_duration(per) if slash else 1.0
    given = _options(name, options, {"burst": int})
    if not limit.strip().isdigit() or not seconds:
        _wrong(name, text, "100/60s, 5/s or 100/min,burst=20")
    return Rate(int(limit), seconds, **given)


def _retry(name: str, text: str) -> Retry:
    """`fixed,base=30s`, `linear,base=10s,cap=5m`, `exponential,base=5s,factor=2,cap=1h,jitter=0.1`."""
    kind, *options = text.split(",")
    given = _options(
        name, options, {"base": read_duration, "cap": read_duration, "factor": float, "jitter": float}
    )
    makers: dict[str, Callable[..., Retry]] = {
        RetryKind.FIXED: Retry.fixed, RetryKind.LINEAR: Retry.linear, RetryKind.EXPONENTIAL: Retry.exponential,
    }  # fmt: skip
    try:
        return makers[kind](**given)
    except (KeyError, TypeError):
        _wrong(name, text, "fixed,base=30s or linear,base=10s,cap=5m or exponential,base=5s,factor=2,cap=1h")


def _options(name: str, given: list[str], known: dict[str, Callable[[str], Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for option in given:
        key, _, text = option.partition("=")
        try:
            found[key] = known[key](text)
        except (KeyError, ValueError):
            found[key] = None
        if found[key] is None:
            _wrong(name, option, " and ".join(f"{one}=…" for one in known))
    return found


def _number(name: str, text: str) -> int:
    try:
        return int(text.replace("_", "").replace(",", ""))
    except ValueError:
        _wrong(name, text, "a whole number")


def _seconds(name: str, text: str) -> float:
    seconds = read_duration(text)
    if seconds is None:
        _wrong(name, text, "45, 30s, 5m, 2h or 7d")
    return seconds


def _flag(name: str, text: str) -> bool:
    flags = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if text.lower() not in flags:
        _wrong(name, text, "true or false")
    return flags[text.lower()]


def _optional(read: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
    return lambda name, text: None if text.lower() in NONE else read(name, text)


def _wrong(name: str, text: str, say: str) -> NoReturn:
    raise click.UsageError(f"{text!r} is no {name}; say it as {say}")


_READ: dict[str, Callable[[str, str], Any]] = {
    "paused": _flag,
    "max_concurrency": _optional(_number),
    "max_concurrency_per_key": _optional(_number),
    "rate": _optional(read_rate),
    "rate_per_key": _optional(read_rate),
    "fair": _flag,
    "max_attempts": _number,
    "retry": _retry,
    "on_exhausted": lambda name, text: text,
    "lease_seconds": _seconds,
    "retention_seconds": _seconds,
    "max_depth": _optional(_number),
    "target_seconds": _seconds,
}
assert set(_READ) == set(QueueSettings.__struct_fields__)


def told_setting(value: object) -> str:
    """A setting's value the way it can be typed."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case Rate():
            burst = f",burst={value.burst}" if value.burst != 1 else ""
            return f"{value.limit}/{value.per:g}s{burst}"
        case Retry():
            factor = f",factor={value.factor:g}" if value.kind is RetryKind.EXPONENTIAL else ""
            cap = f",cap={value.cap:g}s" if value.kind is not RetryKind.FIXED else ""
            return f"{value.kind},base={value.base:g}s{factor}{cap},jitter={value.jitter:g}"
        case float() if value == int(value):
            return str(int(value))
        case _:
            return str(value)


def told_settings(settings: QueueSettings) -> dict[str, str]:
    """All settings by name, durations with what they amount to."""
    told = {}
    for name in QueueSettings.__struct_fields__:
        value = getattr(settings, name)
        told[name] = told_setting(value)
        if name.endswith("_seconds") and value >= 60:
            told[name] += f" ({span(value)})"
    return told
