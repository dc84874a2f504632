"""The schedules of a machine, and the guard that lets each fire time through once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from msgspec.structs import replace

from penstock.core.commands import Fire
from penstock.core.cron import next_fire
from penstock.core.errors import ScheduleNotFound
from penstock.core.schedule import Schedule

Plan = Callable[[Schedule, datetime], datetime | None]
"""When a schedule next fires, counted from a time."""


def by_cron(schedule: Schedule, now: datetime) -> datetime | None:
    return next_fire(schedule.cron, schedule.tz, now)


def as_given(schedule: Schedule, now: datetime) -> datetime | None:
    """As whoever asked has worked it out: those who apply the same commands elsewhere may know other time zones."""
    return schedule.next_fire_at


class Timetable:
    def __init__(self) -> None:
        self._schedules: dict[str, Schedule] = {}

    def restore(self, schedules: Iterable[Schedule]) -> None:
        self._schedules.update((schedule.name, schedule) for schedule in schedules)

    def all(self) -> list[Schedule]:
        return [self._schedules[name] for name in sorted(self._schedules)]

    def get(self, name: str) -> Schedule:
        schedule = self._schedules.get(name)
        if schedule is None:
            raise ScheduleNotFound(name)
        return schedule

    def put(self, schedule: Schedule, now: datetime, plan: Plan = by_cron) -> tuple[Schedule, bool]:
        """Make or replace a schedule, and say whether that changed it. Declared again, it keeps its next fire time."""
        old = self._schedules.get(schedule.name)
        if old is not None:
            schedule = replace(schedule, last_fire_at=old.last_fire_at)
            if schedule.declared_by is None:
                # A person's edit: the code that declares it must know it again, or would take it for somebody else's.
                schedule = replace(schedule, declared_by=old.declared_by, declared_as=old.declared_as)
        if old is not None and (old.cron, old.tz, old.paused) == (
            schedule.cron,
            schedule.tz,
            schedule.paused,
        ):
            # What came due while the program was down to be deployed is missed, not forgotten.
            schedule = replace(schedule, next_fire_at=old.next_fire_at)
        else:
            next_at = None if schedule.paused else plan(schedule, now)
            schedule = replace(schedule, next_fire_at=next_at)
        self._schedules[schedule.name] = schedule
        return schedule, schedule != old

    def due(self, now: datetime) -> tuple[bool, datetime | None]:
        """Whether any is due, and when the next of the others will be."""
        times = [one.next_fire_at for one in self._schedules.values() if one.next_fire_at is not None]
        return any(at <= now for at in times), min((at for at in times if at > now), default=None)

    def drop(self, name: str) -> Schedule:
        schedule = self.get(name)
        del self._schedules[name]
        return schedule

    def pass_on(self, fire: Fire) -> Schedule | None:
        """Move a schedule on, and return it as it was; None if it no longer stands where the caller saw it."""
        schedule = self.get(fire.name)
        if schedule.next_fire_at != fire.due_at:
            return None
        last = fire.at[-1] if fire.at else schedule.last_fire_at
        self._schedules[fire.name] = replace(schedule, last_fire_at=last, next_fire_at=fire.next_fire_at)
        return schedule
