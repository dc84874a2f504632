"""How workers are woken. Each driver implements core.wakeups.Wakeups; polling always runs underneath.

wakeups = from_url("postgresql://…")
wakeups.wake("default", ["emails"])              # after the commit
async with wakeups.listen("default", ["emails"]) as bell:
    rung = await bell.wait(5.0)                  # frozenset({"emails"}), or empty when the time is up
"""

from __future__ import annotations

from random import Random
from urllib.parse import urlsplit

from penstock.core.errors import PenstockError
from penstock.core.wakeups import Wakeups
from penstock.stores.wakeups.memory import MemoryWakeups
from penstock.stores.wakeups.polling import Backoff, NoWakeups
from penstock.stores.wakeups.wire import Line, WireWakeups

__all__ = ["Backoff", "UnknownWakeups", "from_url"]


class UnknownWakeups(PenstockError):
    """PENSTOCK_WAKEUPS names nothing that this installation can use. The message says what it can."""

    code = "unknown_wakeups"


def from_url(url: str, *, random: Random | None = None) -> Wakeups:
    """The driver that a URL names; nothing is connected yet.

    `postgresql://…`, `redis://…` or `rediss://…`, `memory://` (this process only), `none://` (polling only).
    """
    match urlsplit(url).scheme:
        case "memory":
            return MemoryWakeups()
        case "none":
            return NoWakeups()
        case "postgresql" | "postgres" | "redis" | "rediss" as scheme:
            return WireWakeups(_line(scheme, url), random or Random())
        case scheme:
            # The scheme only: the rest may hold a password.
            raise UnknownWakeups(
                f"no wake-ups by {scheme[:40]!r}: use postgresql://, redis://, rediss://, memory:// or none://",
                scheme=scheme[:40],
            )


def _line(scheme: str, url: str) -> Line:
    extra = "redis" if scheme in ("redis", "rediss") else "postgres"
    try:
        # Here, not above: their packages come with an extra.
        if extra == "redis":
            from penstock.stores.wakeups.redis import RedisLine

            return RedisLine(url)
        from penstock.stores.wakeups.postgres import PostgresLine

        return PostgresLine(url)
    except ModuleNotFoundError as error:
        raise UnknownWakeups(
            f"wake-ups by {scheme}:// need the package {error.name!r}: pip install 'penstock[{extra}]'",
            scheme=scheme,
        ) from error
