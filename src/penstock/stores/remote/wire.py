"""How the store port goes over HTTP: the core's own values as JSON, an answer or an error for each item.

Both sides read this module, so it needs neither's packages. Where the port has a choice of values, a struct has a field
for each, of which one is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import Meta, Struct

from penstock.core.commands import (
    Ack,
    Beat,
    CancelJob,
    Changed,
    ConfigureQueue,
    Discard,
    DropSchedule,
    Due,
    Enqueued,
    Filter,
    Fire,
    Fired,
    Heartbeat,
    History,
    Leased,
    LeaseJobs,
    Nack,
    Page,
    PutSchedule,
    QueueView,
    RedriveJob,
    Release,
    Settle,
    Settled,
    Snooze,
    Swept,
)
from penstock.core.errors import InvalidInput, PenstockError
from penstock.core.job import Attempt, Change, Job, NewJob, Record
from penstock.core.registry import AuditPage, Entry, Events, Insight, PutEntry, Spend, Spent
from penstock.core.schedule import Schedule
from penstock.core.settings import QueueSettings

MOST_ITEMS = 10_000
MOST_TOPICS = 1_000
LONGEST_WAIT_SECONDS = 60

Item = TypeVar("Item")
Value = TypeVar("Value")


class Items(Struct, Generic[Item], frozen=True, forbid_unknown_fields=True):
    """What a call is about."""

    items: Annotated[list[Item], Meta(max_length=MOST_ITEMS)]


class Refused(Struct, frozen=True):
    """The error that refused an item; the client raises the same."""

    code: str
    message: str
    facts: dict[str, Any] = {}


class Answered(Struct, Generic[Value], frozen=True, omit_defaults=True):
    """What came of an item: a value, or an error."""

    value: Value | None = None
    error: Refused | None = None


class Answers(Struct, Generic[Value], frozen=True):
    """An answer to each item, in its place."""

    answers: list[Answered[Value]]


class OneSettle(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One way to end a lease."""

    ack: Ack | None = None
    nack: Nack | None = None
    release: Release | None = None
    snooze: Snooze | None = None
    discard: Discard | None = None


class OneRecord(Struct, frozen=True, omit_defaults=True):
    """A line of an audit trail."""

    attempt: Attempt | None = None
    change: Change | None = None


class Trail(Struct, frozen=True):
    """An audit trail, in the order in which things took effect."""

    records: list[OneRecord]


class Find(Struct, frozen=True, forbid_unknown_fields=True):
    filter: Filter
    limit: int
    after: str | None = None


class NextAt(Struct, frozen=True, forbid_unknown_fields=True):
    queues: Annotated[list[str], Meta(max_length=MOST_TOPICS)]


class DueSchedules(Struct, frozen=True, forbid_unknown_fields=True):
    everyone: bool = False
    """Of all tenants; of one's own, with a token that is not the service's."""


class Lead(Struct, frozen=True, forbid_unknown_fields=True):
    office: str
    holder: str
    seconds: float


class Sweep(Struct, frozen=True, forbid_unknown_fields=True):
    limit: int
    exported_until: datetime | None = None


Whose = Literal["tenant", "service", "everyone"]
"""The caller's tenant's; with a token of the service itself also the service's own, or everyone's."""


class PutEntries(Struct, frozen=True, forbid_unknown_fields=True):
    items: Annotated[list[PutEntry], Meta(max_length=MOST_ITEMS)]
    whose: Whose = "tenant"


class Entries(Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    names: Annotated[list[str], Meta(max_length=MOST_ITEMS)] | None = None
    whose: Whose = "tenant"


class Insights(Struct, frozen=True, forbid_unknown_fields=True):
    names: Annotated[list[str], Meta(max_length=MOST_TOPICS)]


class Audit(Struct, frozen=True, forbid_unknown_fields=True):
    limit: int
    before: str | None = None
    whose: Whose = "tenant"


class Follow(Struct, frozen=True, forbid_unknown_fields=True):
    limit: int
    after: str | None = None


class OneTopic(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a wake-up is about."""

    queue: str
    tenant: str | None = None
    """None for the caller's own."""


class Listen(Struct, frozen=True, forbid_unknown_fields=True):
    topics: Annotated[list[OneTopic], Meta(max_length=MOST_TOPICS)]
    seconds: Annotated[float, Meta(ge=0, le=LONGEST_WAIT_SECONDS)]
    """How long to wait for one to ring."""
    heard: Annotated[str, Meta(max_length=100)] | None = None
    """The `heard` of the answer before."""


class Rung(Struct, frozen=True):
    """Which topics rang since, and what to send the next time."""

    heard: str
    rung: list[OneTopic]


BODIES: dict[str, Any] = {
    "enqueue": Items[NewJob],
    "lease": Items[LeaseJobs],
    "heartbeat": Items[Heartbeat],
    "settle": Items[OneSettle],
    "cancel": Items[CancelJob],
    "redrive": Items[RedriveJob],
    "configure": Items[ConfigureQueue],
    "put_schedules": Items[PutSchedule],
    "drop_schedules": Items[DropSchedule],
    "fire": Items[Fire],
    "due_schedules": DueSchedules,
    "get": Items[str],
    "history": Items[tuple[str, str]],
    "find": Find,
    "queues": None,
    "schedules": None,
    "next_at": NextAt,
    "now": None,
    "tenants": None,
    "lead": Lead,
    "sweep": Sweep,
    "put_entries": PutEntries,
    "entries": Entries,
    "spend": Items[Spend],
    "put_insights": Items[Insight],
    "insights": Insights,
    "audit": Audit,
    "events": Follow,
    "wakeups": Listen,
}
"""What each verb takes."""

ANSWERS: dict[str, Any] = {
    "enqueue": Answers[Enqueued],
    "lease": Answers[list[Leased]],
    "heartbeat": Answers[Beat],
    "settle": Answers[Settled],
    "cancel": Answers[Changed],
    "redrive": Answers[Changed],
    "configure": Answers[QueueSettings],
    "put_schedules": Answers[Schedule],
    "drop_schedules": Answers[Schedule],
    "fire": Answers[Fired],
    "due_schedules": Due,
    "get": Answers[Job],
    "history": Answers[Trail],
    "find": Page,
    "queues": list[QueueView],
    "schedules": list[Schedule],
    "next_at": datetime | None,
    "now": datetime,
    "tenants": list[str],
    "lead": bool,
    "sweep": Swept,
    "put_entries": Answers[Entry],
    "entries": list[Entry],
    "spend": list[Spent],
    "put_insights": int,
    "insights": list[Insight],
    "audit": AuditPage,
    "events": Events,
    "wakeups": Rung,
}
"""What each verb answers."""

assert BODIES.keys() == ANSWERS.keys()


def refused(error: PenstockError) -> Refused:
    facts = {
        name: fact if isinstance(fact, str | int | float | bool | None) else str(fact)
        for name, fact in error.facts.items()
    }
    return Refused(error.code, error.message, facts)


def answered(answers: Sequence[Any]) -> Answers[Any]:
    """A store's answers as they are sent."""
    return Answers(
        [
            Answered(error=refused(answer)) if isinstance(answer, PenstockError) else Answered(_sent(answer))
            for answer in answers
        ]
    )


def told(answers: Answers[Any]) -> list[Any]:
    """A store's answers as they were."""
    return [
        _received(one.value)
        if (error := one.error) is None
        else PenstockError.from_code(error.code, error.message, error.facts)
        for one in answers.answers
    ]


def _sent(value: object) -> object:
    return Trail([_one_record(record) for record in value.records]) if isinstance(value, History) else value


def _received(value: object) -> object:
    if isinstance(value, Trail):
        return History(tuple(record for one in value.records if (record := _only(one)) is not None))
    return value


def _one_record(record: Record) -> OneRecord:
    return OneRecord(attempt=record) if isinstance(record, Attempt) else OneRecord(change=record)


def one_settle(settle: Settle) -> OneSettle:
    match settle:
        case Ack():
            return OneSettle(ack=settle)
        case Nack():
            return OneSettle(nack=settle)
        case Release():
            return OneSettle(release=settle)
        case Snooze():
            return OneSettle(snooze=settle)
        case Discard():
            return OneSettle(discard=settle)


def the_settle(sent: OneSettle) -> Settle:
    settle: Settle | None = _only(sent)
    if settle is None:
        there = [name for name in sent.__struct_fields__ if getattr(sent, name) is not None]
        raise InvalidInput("a settle", f"be one of {', '.join(sent.__struct_fields__)}", there)
    return settle


def _only(choice: Struct) -> Any:
    """The one field that is there; None if there is none, or several."""
    there = [value for name in choice.__struct_fields__ if (value := getattr(choice, name)) is not None]
    return there[0] if len(there) == 1 else None
