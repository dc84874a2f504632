"""What people type for durations, moments and JSON, and how durations and moments are told to them."""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import click

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|min|[smhdw])")


def read_duration(text: str) -> float | None:
    """Seconds of `90`, `1.5h` or `1h30m`; None for anything else."""
    try:
        seconds = float(text)
    except ValueError:
        parts = _PART.findall(text.strip())
        if not parts or "".join(number + unit for number, unit in parts) != text.strip():
            return None
        return sum(float(number) * UNITS[unit] for number, unit in parts)
    return seconds if 0 <= seconds < float("inf") else None


def read_moment(text: str) -> datetime | None:
    """A moment in ISO 8601, local unless it names its zone; None for anything else."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = value if isinstance(value, float) else read_duration(value)
        if seconds is None:
            self.fail(f"{value!r} is no duration; say it as 90, 30s, 5m, 2h, 1h30m or 7d", param, ctx)
        return seconds


class Moment(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    """A moment; with `before_now`, also how long ago."""

    name = "time"

    def __init__(self, *, before_now: bool = False) -> None:
        self._before_now = before_now

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        if (moment := read_moment(value)) is not None:
            return moment
        if self._before_now and (seconds := read_duration(value)) is not None:
            return datetime.now(UTC) - timedelta(seconds=seconds)
        also = ", or a duration before now such as 2h" if self._before_now else ""
        self.fail(
            f"{value!r} is no time; say it as 2030-01-31T09:00, local unless it names its zone{also}",
            param,
            ctx,
        )


class Json(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    """A JSON document, or `-` for the one on standard input. It is wrapped, because null is one too."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any]:
        if isinstance(value, tuple):
            return value
        text = sys.stdin.read() if value == "-" else value
        try:
            return (json.loads(text),)
        except (ValueError, RecursionError) as error:
            place = "standard input" if value == "-" else repr(_short(text))
            self.fail(f"{place} is no JSON: {error}", param, ctx)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"


def span(seconds: float) -> str:
    """A duration as one looks at it: its largest unit, and the next one as long as that matters."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for size, unit, lower_size, lower in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if whole >= size:
            many, rest = divmod(whole, size)
            small = rest // lower_size if many < 10 else 0
            return f"{many} {unit} {small} {lower}" if small else f"{many} {unit}"
    return f"{whole} s"


def ago(moment: datetime, now: datetime) -> str:
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 1:
        return "just now"
    return f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"


def local(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def when(moment: datetime | None, now: datetime) -> str:
    """Local time with how far that is away."""
    return "never" if moment is None else f"{local(moment)} ({ago(moment, now)})"
