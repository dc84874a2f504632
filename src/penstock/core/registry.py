"""What a store keeps besides jobs: entries by kind and name, allowances that are spent, and the feed of what happened.

Tokens, workers that show themselves and operations on many jobs are entries. A store knows nothing of their meaning: it
keeps them, guards them by their version, and lets them go when their time is over.
"""

from __future__ import annotations

import re
from datetime import datetime

from msgspec import Struct

from penstock.core.codec import JsonText
from penstock.core.errors import InvalidInput
from penstock.core.job import Change, Status

ALL_TENANTS = "*"
"""Not a tenant, and no tenant can be called so: whose entries belong to the service itself."""

BY_RULES = "rule:"
"""How the actors of changes begin that no person and no token made."""


class Entry(Struct, frozen=True, gc=False):
    """Something kept under a name, within one kind and tenant."""

    kind: str
    tenant: str
    name: str
    version: int
    """1 when new, and one more with every change."""
    body: JsonText
    changed_at: datetime
    expires_at: datetime | None = None
    """From then on it is gone, whether or not a sweep has passed."""


class PutEntry(Struct, frozen=True, gc=False):
    """Make, replace or (without a body) drop an entry."""

    kind: str
    name: str
    body: JsonText | None
    version: int | None = None
    """The guard: the version it must have now, 0 if it must be new; None takes whatever is there."""
    seconds: float | None = None
    """How long it stays unless it is put again; None for ever."""
    audit: Audited | None = None
    """With it the change is written into the audit trail of (kind, `audit.name`)."""
    expires_at: datetime | None = None
    """Instead of `seconds`, by who changes an entry and wants it to go when it would have gone."""


class Audited(Struct, frozen=True, gc=False):
    """Who changed an entry, and how that reads in the audit trail."""

    name: str
    """What people call the entry, where its own name says nothing: the digest of a token, say."""
    verb: str
    actor: str
    reason: str | None = None
    detail: JsonText | None = None


class Spend(Struct, frozen=True, gc=False):
    """Take from an allowance that fills up at `rate` a second, up to `burst`."""

    name: str
    cost: float
    rate: float
    burst: float


class Spent(Struct, frozen=True, gc=False):
    """What came of it: all of the cost was taken, or nothing."""

    granted: bool
    left: float
    """What is left of the allowance now."""
    wait_seconds: float
    """Until as much would be there as was asked for; 0 if it was granted."""


class Insight(Struct, frozen=True, gc=False):
    """What a run of the lake found out for a tenant, under the name of its table; the newest run's alone is kept."""

    tenant: str
    name: str
    as_of: datetime
    """What happened before is in it."""
    body: JsonText


class AuditLine(Struct, frozen=True, gc=False):
    """A change made by a person or a token, and to what."""

    kind: str
    """job, queue, schedule, or the kind of an entry."""
    name: str
    change: Change


class AuditPage(Struct, frozen=True, gc=False):
    """Some changes, newest first, and where to go on."""

    lines: tuple[AuditLine, ...]
    next: str | None = None


def outdated(given: datetime, there: datetime) -> InvalidInput:
    """The refusal of insights when newer ones are there."""
    return InvalidInput(
        "as_of", f"be no older than what is published, which is as of {there.isoformat()}", given.isoformat()
    )


def audit_place(before: str | None) -> int | None:
    """The number behind the `next` of a page; None for the newest."""
    if before is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", before):
        raise InvalidInput("before", "be the `next` of a page of this audit log", before)
    return int(before)


class Event(Struct, frozen=True, gc=False):
    """Something that happened, as told to those who follow."""

    cursor: str
    """Where to go on after this one."""
    at: datetime
    kind: str
    """job, queue, schedule, or the kind of an entry."""
    name: str
    """The job's id, or the name of what else it happened to."""
    what: str
    """`enqueued`; how an attempt ended (`succeeded`, `failed`, `lost`, …); or the verb of a change."""
    queue: str | None = None
    type: str | None = None
    status: Status | None = None
    """What the job became by it."""
    attempt: int | None = None
    worker: str | None = None
    actor: str | None = None
    error: str | None = None
    started_at: datetime | None = None
    """Of an attempt."""
    ready_at: datetime | None = None
    """Of a first attempt: when it could have begun."""


class Events(Struct, frozen=True, gc=False):
    """What happened since, in an order that never changes, and where to go on, whether or not anything did."""

    events: tuple[Event, ...]
    next: str
