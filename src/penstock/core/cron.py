"""When a schedule fires.

Daylight saving, as in Debian's cron: an expression with a fixed minute and hour fires once a day by the
wall clock. A time that the clock skips in spring fires at the first minute after the gap; a time that
comes twice in autumn fires the first time only. An expression whose minute or hour begins with `*`
follows elapsed time: every hour stays every hour. In the one zone that shifts by half an hour (Lord Howe) a
fire time on the two days of the shift may be late or left out.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import assert_never
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from penstock.core.commands import Fire
from penstock.core.errors import InvalidInput
from penstock.core.schedule import Missed, Schedule

LATE_AFTER = timedelta(seconds=60)
"""A fire time noticed later than this was missed; cron counts in minutes, schedulers in seconds."""

MOST_AT_ONCE = 1_000
"""Fire times caught up in one step by `missed="all"`; the next step goes on from there."""

_MOST_CHARS = 256
_LONGEST_FOLD = timedelta(hours=3)


def check_cron(cron: object) -> str:
    """A cron expression of five fields, or six with seconds first, that fires at least once in 50 years."""
    if type(cron) is not str or len(cron) > _MOST_CHARS:
        raise InvalidInput("cron", f"be an expression of at most {_MOST_CHARS} characters", cron)
    try:
        next(CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC)))
    except CronSimError as error:
        raise InvalidInput("cron", f"be a cron expression such as '0 9 * * 1-5' ({error})", cron) from None
    except StopIteration:
        raise InvalidInput("cron", "fire at least once in 50 years", cron) from None
    return cron


def check_tz(tz: object) -> str:
    try:
        if type(tz) is str:
            ZoneInfo(tz)
            return tz
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    raise InvalidInput("tz", "be a time zone of the IANA database, such as Europe/Paris", tz)


def in_words(cron: str) -> str:
    """What a cron expression says, for people."""
    return str(CronSim(cron, datetime(2000, 1, 1, tzinfo=UTC)).explain())


def next_fires(cron: str, tz: str, after: datetime, count: int) -> list[datetime]:
    """The next fire times after a moment, as far as there are any."""
    fires: list[datetime] = []
    while (
        len(fires) < count and (after_last := next_fire(cron, tz, fires[-1] if fires else after)) is not None
    ):
        fires.append(after_last)
    return fires


def next_fire(cron: str, tz: str, after: datetime) -> datetime | None:
    """The first fire time after a moment."""
    times = CronSim(cron, after.astimezone(ZoneInfo(tz)))
    # In the repeated hour of autumn the wall clock starts behind `after`, so look until it is past.
    return next((found for found in map(_in_utc, times) if found > after), None)


def last_fire(cron: str, tz: str, until: datetime) -> datetime | None:
    """The last fire time at or before a moment."""
    # In the repeated hour of autumn the wall clock has yet to reach what has already been, so start past it.
    start = until + (_LONGEST_FOLD if _goes_by_the_wall_clock(cron) else timedelta(seconds=1))
    times = CronSim(cron, start.astimezone(ZoneInfo(tz)), reverse=True)
    return next((found for found in map(_in_utc, times) if found <= until), None)


def plan(schedule: Schedule, now: datetime) -> Fire | None:
    """What a schedule should do now: nothing before its next fire time, or by its rule for missed ones."""
    due_at = schedule.next_fire_at
    if due_at is None or due_at > now:
        return None
    times = _due(schedule, due_at, now)
    # Only `all` may have more to do up to now; the others are done with everything that has passed.
    onward = times[-1] if schedule.missed is Missed.ALL and times else now
    return Fire(schedule.name, due_at, times, next_fire(schedule.cron, schedule.tz, onward))


def _due(schedule: Schedule, due_at: datetime, now: datetime) -> tuple[datetime, ...]:
    match schedule.missed:
        case Missed.ALL:
            times: list[datetime] = []
            found: datetime | None = due_at
            while found is not None and found <= now and len(times) < MOST_AT_ONCE:
                times.append(found)
                found = next_fire(schedule.cron, schedule.tz, found)
            return tuple(times)
        case Missed.ONE:
            latest = last_fire(schedule.cron, schedule.tz, now)
            return (max(latest, due_at),) if latest is not None else (due_at,)
        case Missed.SKIP:
            on_time = []
            found = last_fire(schedule.cron, schedule.tz, now)
            while found is not None and found >= due_at and now - found < LATE_AFTER:
                on_time.append(found)
                found = last_fire(schedule.cron, schedule.tz, found - timedelta(microseconds=1))
            return tuple(reversed(on_time))
        case _:
            assert_never(schedule.missed)


def _goes_by_the_wall_clock(cron: str) -> bool:
    fields = cron.split()
    return len(fields) == 5 and not fields[0].startswith("*") and not fields[1].startswith("*")


def _in_utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)
