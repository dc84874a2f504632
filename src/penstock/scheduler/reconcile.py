"""What code declares against what the store has: declarations are brought in line, never duplicated.

A schedule bears two marks: the program that declares it, and a fingerprint of the declaration as it was when it was
put. As long as the declaration stays, so does everything people have changed since: its times, its job, a pause. When
the code changes, the code's form replaces it; a pause set by people stays even then, unless it is the declaration's
own `paused` that changed. A schedule dropped by people comes back at the next start: to switch one off, pause it. One
that bears no mark, or another program's, is not ours: we leave it alone and say so.

While two versions of a program run side by side, each start brings the schedules to the form of the one that starts.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import fields, replace

from penstock.core import bounds
from penstock.core.commands import PutSchedule
from penstock.core.errors import InvalidInput, PenstockError, ScheduleNotFound
from penstock.core.job import NewJob
from penstock.core.requests import new_schedule
from penstock.core.schedule import Missed, Schedule
from penstock.queue import Queue

_PAUSED = " paused"

logger = logging.getLogger("penstock.scheduler")


@dataclass(frozen=True, slots=True)
class Declaration:
    """A schedule as code declares it."""

    name: str
    cron: str
    job: Mapping[str, Any]
    """The fields of the job: type, and whatever else `put_schedule` takes."""
    tz: str = "UTC"
    missed: Missed | str = Missed.ONE
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What became of the schedules of a program, by name."""

    made: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    """Declared here, but not ours to touch; and why."""


async def reconcile(queue: Queue, declared: Sequence[Declaration], program: str) -> Reconciled:
    """Bring the tenant's schedules in line with what a program declares. Any number of its processes may, at once.

    Nothing is changed if any declaration is bad.
    """
    bounds.name("program", program)
    wanted = _wanted(declared, program)
    present = {schedule.name: schedule for schedule in await queue.schedules()}
    made, changed, kept, refused = [], [], [], {}
    puts: list[Schedule] = []
    for name, schedule in wanted.items():
        there = present.get(name)
        if there is None:
            made.append(name)
            puts.append(schedule)
        elif there.declared_by != program:
            owner = "people" if there.declared_by is None else f"the program {there.declared_by!r}"
            refused[name] = f"{owner} made a schedule of this name; drop it, or give this one another name"
            logger.warning("schedule %r, declared by %r, was left alone: %s", name, program, refused[name])
        elif there.declared_as == schedule.declared_as:
            kept.append(name)
        else:
            changed.append(name)
            puts.append(_over(there, schedule))
    await _put(queue, puts, f"declared by {program}")
    dropped = [name for name, there in present.items() if there.declared_by == program and name not in wanted]
    for name in dropped:
        await _drop(queue, name, f"no longer declared by {program}")
    return Reconciled(tuple(made), tuple(changed), tuple(dropped), tuple(kept), refused)


def _wanted(declared: Sequence[Declaration], program: str) -> dict[str, Schedule]:
    wanted: dict[str, Schedule] = {}
    for one in declared:
        schedule = new_schedule(
            one.name, one.cron, one.job, tz=one.tz, missed=one.missed, paused=one.paused, declared_by=program
        )
        if schedule.name in wanted:
            raise InvalidInput("declared", "name each schedule once", schedule.name)
        wanted[schedule.name] = replace(schedule, declared_as=_fingerprint(schedule))
    return wanted


def _fingerprint(schedule: Schedule) -> str:
    """The declaration in few characters; whether it is paused can be read off, because that is decided on its own.

    Only what differs from a default counts, so that a Penstock with more fields sees nobody's code as changed.
    """
    job = {
        known.name: value
        for known in fields(NewJob)
        if known.name != "id" and (value := getattr(schedule.job, known.name)) != known.default
    }
    told = msgspec.json.encode([schedule.cron, schedule.tz, schedule.missed, job], order="sorted")
    return hashlib.sha256(told).hexdigest()[:32] + (_PAUSED if schedule.paused else "")


def _over(there: Schedule, schedule: Schedule) -> Schedule:
    """The code's new form over the one in the store, with the pause that people have set or lifted."""
    was_paused = (there.declared_as or "").endswith(_PAUSED)
    return replace(schedule, paused=there.paused) if was_paused == schedule.paused else schedule


async def _put(queue: Queue, schedules: Sequence[Schedule], reason: str) -> None:
    """Past the queue's own `put_schedule`, because these are checked already: all in one call, or none."""
    commands = [PutSchedule(schedule, queue.actor, reason) for schedule in schedules]
    for answer in await queue.store.put_schedules(queue.tenant, commands) if commands else []:
        if isinstance(answer, PenstockError):
            raise answer


async def _drop(queue: Queue, name: str, reason: str) -> None:
    try:
        await queue.drop_schedule(name, reason)
    except ScheduleNotFound:
        pass  # another process of the program was first
