"""What time it is, as far as a machine can know.

The time in a log goes forwards only, and all leases hang on it: one writer that is an hour ahead ends every one of them.
So nobody goes by a clock that may just have been set. Each goes on at the pace of a clock that nobody sets, from a start
that is the store's: a bucket's is the date that it gives to what is written, a folder's is its machine's.
Who is behind harms nobody, because an entry from the past moves nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from penstock.coalesce import Coalesce
from penstock.stores.log.errors import ClockOff

logger = logging.getLogger("penstock.log")

OFF_SECONDS = 2.0
"""A bucket dates to the second, so less than this says nothing."""
GOOD_FOR_SECONDS = 900.0
"""A clock that nobody sets goes wrong by a tenth of a second meanwhile."""
JUMP_SECONDS = 0.5
MOST_MEASURES = 3
NARROW_SECONDS, WIDEST_SECONDS = 4.0, 12.0
"""Between the earliest and the latest that it may have been dated: a wide measure proves nothing, but may refute."""
STANDS_SECONDS = 60.0
"""A folder's machine was set ahead: so long that may be a mistake, then it is the time."""

Clocks = tuple[float, ...]


def machine_clocks() -> Clocks:
    """Three, because each of them misses something: a suspended machine, a set clock, a restart."""
    return (time.monotonic(), steady(), time.time())


def steady() -> float:
    """Seconds on a clock that nobody sets and that goes on while the machine sleeps, where there is such a one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def is_within(seconds: float, now: Clocks, since: Clocks | None) -> bool:
    """Whether by every clock no more time has passed since then, if there is a then."""
    return since is not None and all(abs(a - b) <= seconds for a, b in zip(now, since, strict=True))


class StoreClock:
    """A bucket's clock, measured by what it dates; the machine's own is believed where that leaves it open."""

    def __init__(
        self,
        store: str,
        write: Callable[[], Awaitable[str]],
        dated: Callable[[str], Awaitable[datetime]],
        *,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = steady,
    ) -> None:
        """`write` puts something there and says what; `dated` says when that was, by the store."""
        self._store, self._write, self._dated = store, write, dated
        self._wall, self._steady = wall, steady
        self._ahead: float | None = None
        """How far the store's clock is ahead of the steady one."""
        self._since = self._wall_ahead = self._told = 0.0
        self._measures: Coalesce[None, None] = Coalesce(self._measure, most=1_000_000)

    async def now(self) -> datetime:
        """ClockOff if that cannot be told; it may be when asked again."""
        if not self._is_good():
            await self._measures(None)
        assert self._ahead is not None
        return _at(self._steady() + self._ahead)

    async def close(self) -> None:
        await self._measures.close()

    def _is_good(self) -> bool:
        """Not for long, and not once one of the machine's clocks went differently from the other."""
        now = self._steady()
        is_young = self._ahead is not None and now - self._since < GOOD_FOR_SECONDS
        return is_young and abs(self._wall() - now - self._wall_ahead) < JUMP_SECONDS

    async def _measure(self, asked: list[None]) -> list[None]:
        """For everyone who asks meanwhile: each measure is three requests."""
        if not self._is_good():
            self._ahead = await self._measured(self._ahead)
        return asked

    async def _measured(self, before: float | None) -> float:
        """How far it is ahead now: a measure counts if it fits with what was known, or with another one."""
        known = [before if before is not None else self._wall() - self._steady()]
        said, fits = "", list[bool]()
        for _ in range(MOST_MEASURES):
            wall_ahead = self._wall() - self._steady()
            sent_at = self._steady()
            key = await self._write()
            answered_at = self._steady()
            date = await self._dated(key)
            least = date.timestamp() - answered_at
            most = date.timestamp() - sent_at + (0.001 if date.microsecond else 1.0)
            if most - least > NARROW_SECONDS:
                said = f"a write to it takes {answered_at - sent_at:.1f} s"
                fits.append(least <= known[0] <= most and most - least <= WIDEST_SECONDS)
                continue
            ahead = wall_ahead if least <= wall_ahead <= most else (least + most) / 2
            if any(abs(ahead - one) <= OFF_SECONDS for one in known):
                return self._settled(ahead, wall_ahead)
            said = f"what it dates now is {ahead - known[-1]:+,.1f} s off what it dated before"
            known.append(ahead)
        if all(fits) and len(known) == 1:  # wide ones only, and none refutes it
            return self._settled(known[0], wall_ahead)
        raise ClockOff(self._store, said)

    def _settled(self, ahead: float, wall_ahead: float) -> float:
        self._since, self._wall_ahead = self._steady(), wall_ahead
        self._tell(ahead - wall_ahead)
        return ahead

    def _tell(self, off: float) -> None:
        if abs(off) > OFF_SECONDS and abs(off - self._told) > OFF_SECONDS:
            logger.warning(
                "the clock of %s is %+.1f s off this machine's; the store's is used", self._store, off
            )
        self._told = off


class MachineClock:
    """A folder's clock: that of its machine, which is believed to have been set ahead only if it stays so for a minute."""

    def __init__(
        self, store: str, wall: Callable[[], float] = time.time, steady: Callable[[], float] = steady
    ) -> None:
        self._store, self._wall, self._steady = store, wall, steady
        self._ahead = wall() - steady()
        self._jump = self._since = 0.0

    def now(self) -> datetime:
        now = self._steady()
        jump = self._wall() - now - self._ahead
        if jump <= OFF_SECONDS or self._stands(jump, now):
            self._ahead += jump
            self._jump = 0.0
        return _at(now + self._ahead)

    def _stands(self, jump: float, now: float) -> bool:
        if abs(jump - self._jump) > OFF_SECONDS:
            self._jump, self._since = jump, now
            logger.warning(
                "the clock of this machine was set %+.1f s ahead; %s goes by it if it is still so in %g s",
                jump, self._store, STANDS_SECONDS,
            )  # fmt: skip
        return now - self._since >= STANDS_SECONDS


def _at(seconds: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
