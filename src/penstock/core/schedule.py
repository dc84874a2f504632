"""A schedule: a cron expression in a time zone, and the job it enqueues at each fire time."""

from __future__ import annotations

import hashlib
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from penstock.core.bounds import PAYLOAD_BYTES
from penstock.core.codec import JsonText, encode
from penstock.core.job import JobId, NewJob

NO_ID = JobId("00000000-0000-0000-0000-000000000000")
"""Stands in a schedule's job, whose id is made anew at each fire."""


class Missed(StrEnum):
    """What becomes of fire times that passed while no scheduler ran."""

    SKIP = "skip"
    ONE = "one"
    ALL = "all"


class Schedule(Struct, frozen=True, gc=False):
    name: str
    cron: str
    job: NewJob
    tz: str = "UTC"
    missed: Missed = Missed.ONE
    paused: bool = False
    next_fire_at: datetime | None = None
    """Kept by the store; None when it is paused or never fires again."""
    last_fire_at: datetime | None = None
    declared_by: str | None = None
    """The program in whose code it is declared, if it is; made at run time, it has none."""
    declared_as: str | None = None
    """A fingerprint of that declaration: as long as it stays, what people have changed since stays too."""


def fire_job(tenant: str, schedule: Schedule, at: datetime) -> NewJob:
    """The job of one fire time. Its id is made of schedule and fire time, so that no two can exist."""
    return replace(
        schedule.job, id=_fire_id(tenant, schedule.name, at), run_at=at, delay=None, schedule=schedule.name
    )


def told(schedule: Schedule) -> JsonText:
    """What a schedule was set to, as the audit trail keeps it."""
    detail = {
        "cron": schedule.cron,
        "tz": schedule.tz,
        "missed": schedule.missed,
        "paused": schedule.paused,
        "type": schedule.job.type,
        "queue": schedule.job.queue,
    }
    return encode(detail, field="schedule", limit=PAYLOAD_BYTES)


def _fire_id(tenant: str, name: str, at: datetime) -> JobId:
    """A UUIDv7 whose time is the fire time and whose random part is a hash of what fires."""
    digest = hashlib.sha256(f"{tenant}\n{name}\n{at.isoformat()}".encode()).digest()
    number = int(at.timestamp() * 1000) << 80 | int.from_bytes(digest[:10])
    number = number & ~(0xF000 << 64) | 0x7000 << 64  # version 7
    number = number & ~(0xC000 << 48) | 0x8000 << 48  # the RFC 9562 variant
    return JobId(str(UUID(int=number)))
