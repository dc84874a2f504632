"""What a URL says of how a log is used, besides where it is: `?window=50ms&poll=10s&shards=8`."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode

from msgspec import Struct

from penstock.core.errors import InvalidInput
from penstock.stores.wakeups.polling import LONGEST_SECONDS

MOST_SHARDS = 64
REST, REST_JITTER = 1.25, 0.2
"""Pauses at rest are this many times `poll`, more or less by that share: from `poll` to half as much again."""
LONGEST_WINDOW_SECONDS = 1.0
SHORTEST_POLL_SECONDS, LONGEST_POLL_SECONDS = 0.1, 600.0

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}


class Options(Struct, frozen=True):
    """How a log is used."""

    window: float = 0.0
    """So many seconds a write waits for others to go in the same entry: what money is saved by, and time is paid with."""
    poll: float = LONGEST_SECONDS
    """So many seconds, up to half as much again, lie between two looks while nothing happens."""
    shards: int | None = None
    """How many logs a new place is made of; None: what is there, or one."""


NAMES = Options.__struct_fields__


def read_options(url: str) -> tuple[str, Options]:
    """The URL without them, and the options in it."""
    address, _, query = url.partition("?")  # not urlunsplit: that makes file:./path absolute
    given = parse_qsl(query, keep_blank_values=True)
    rest = urlencode([(name, value) for name, value in given if name not in NAMES])
    said = dict(given)
    options = Options(
        _seconds(said, "window", 0.0, LONGEST_WINDOW_SECONDS, Options().window),
        _seconds(said, "poll", SHORTEST_POLL_SECONDS, LONGEST_POLL_SECONDS, Options().poll),
        _shards(said.get("shards")),
    )
    return f"{address}?{rest}" if rest else address, options


def _seconds(said: dict[str, str], name: str, least: float, most: float, default: float) -> float:
    if name not in said:
        return default
    found = _DURATION.fullmatch(said[name])
    seconds = float(found[1]) * _UNITS[found[2]] if found else -1.0
    if not least <= seconds <= most:
        raise InvalidInput(
            name, f"be a duration from {told(least)} to {told(most)}, such as 250ms or 1s", said[name]
        )
    return seconds


def _shards(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= MOST_SHARDS):
        raise InvalidInput("shards", f"be a number from 1 to {MOST_SHARDS}", text)
    return int(text)


def told(seconds: float) -> str:
    """A duration as the URL would say it."""
    return f"{seconds:g}s" if seconds >= 1 or not seconds else f"{seconds * 1000:g}ms"
