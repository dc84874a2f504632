"""What goes over HTTP: the bodies people send and the answers they get, as the OpenAPI document shows them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field
from msgspec.structs import replace

from penstock.access import Scope
from penstock.bulk import Action
from penstock.core import bounds
from penstock.core.archive import NOT_ARCHIVED, Archived
from penstock.core.codec import JsonText
from penstock.core.commands import Duplicate, History, Leased, Parent, QueueView
from penstock.core.cron import in_words, next_fires
from penstock.core.job import Attempt, Cause, Change, Job, OnExhausted, OnParentFailure, Outcome, Status
from penstock.core.limits import Rate
from penstock.core.registry import AuditLine
from penstock.core.retry import Retry
from penstock.core.schedule import Missed, Schedule
from penstock.core.settings import QueueSettings
from penstock.server.problems import Problem


def one_of(choices: type[StrEnum]) -> Meta:
    """Tells the choices; whoever reads the value says more about a wrong one than a decoder does."""
    return Meta(extra_json_schema={"enum": list(choices)})


NO_NUL = "^[^\\x00]*$"
Moment = Annotated[datetime, Meta(tz=True)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:/@+-]*$", max_length=bounds.NAME_CHARS)]
Key = Annotated[str, Meta(pattern=NO_NUL, min_length=1, max_length=bounds.KEY_CHARS)]
Cursor = Annotated[str, Meta(min_length=1, max_length=200)]
Text = Annotated[str, Meta(pattern=NO_NUL, max_length=bounds.TEXT_CHARS)]
Id = Annotated[str, Meta(pattern="^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")]
TokenId = Annotated[str, Meta(pattern="^tok_[0-9a-f]{1,64}$")]
Seconds = Annotated[float, Meta(ge=0, le=bounds.LONGEST_SECONDS)]
Token = Annotated[str, Meta(pattern=NO_NUL, min_length=1, max_length=bounds.KEY_CHARS)]

MOST_IN_BATCH = 10_000
LONGEST_WAIT_SECONDS = 60
NEXT_RUNS = 5


def raw(text: JsonText | None) -> Raw | None:
    return None if text is None else Raw(text)


def given(body: Struct) -> dict[str, Any]:
    """The fields of a body that were sent."""
    return {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not UNSET}


# ── Producing ─────────────────────────────────────────────────────────────────────────────────────


class JobRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A job to be enqueued. Only `type` is needed; what is left out, the queue's settings decide."""

    type: Name
    payload: Any = UNSET
    queue: Name | UnsetType | None = UNSET
    priority: Annotated[int, Meta(ge=bounds.PRIORITIES[0], le=bounds.PRIORITIES[1])] | UnsetType | None = (
        UNSET
    )
    run_at: Moment | UnsetType | None = UNSET
    delay: Seconds | UnsetType | None = UNSET
    """Seconds from now, on the store's clock; instead of `run_at`."""
    expires_at: Moment | UnsetType | None = UNSET
    expires_in: Seconds | UnsetType | None = UNSET
    max_attempts: Annotated[int, Meta(ge=1, le=bounds.MOST_ATTEMPTS)] | UnsetType | None = UNSET
    retry: Retry | UnsetType | None = UNSET
    on_exhausted: OnExhausted | UnsetType | None = UNSET
    key: Key | UnsetType | None = UNSET
    """Whose job this is: limits per key and fair turns go by it."""
    ordering_key: Key | UnsetType | None = UNSET
    unique_key: Key | UnsetType | None = UNSET
    idempotency_key: Key | UnsetType | None = UNSET
    """The same as the header `Idempotency-Key`."""
    idempotency_window: Annotated[float, Meta(ge=0.000_001, le=bounds.LONGEST_SECONDS)] | UnsetType | None = (
        UNSET
    )
    parents: Annotated[list[Id], Meta(max_length=bounds.MOST_PARENTS)] | UnsetType | None = UNSET
    on_parent_failure: OnParentFailure | UnsetType | None = UNSET
    headers: dict[str, Any] | UnsetType | None = UNSET
    id: Id | UnsetType | None = UNSET
    """A UUIDv7 of the caller's own making; sent again with the same body, it is the same job."""


class EnqueuedAnswer(Struct, frozen=True):
    """The new job, or the one that stands for it."""

    id: str
    duplicate: Duplicate | None = None


class Batch(Struct, frozen=True, forbid_unknown_fields=True):
    jobs: Annotated[list[Raw], Meta(max_length=MOST_IN_BATCH)]
    """Each a JobRequest. A bad one gets its own error; its neighbours go in."""


class BatchItem(Struct, frozen=True, omit_defaults=True):
    """The job's id, or the error that kept it out."""

    id: str | None = None
    duplicate: Duplicate | None = None
    error: Problem | None = None


class BatchAnswer(Struct, frozen=True):
    """An answer for each job, in the order they were sent."""

    jobs: list[BatchItem]


# ── Working ───────────────────────────────────────────────────────────────────────────────────────


class LeaseRequest(Struct, frozen=True, forbid_unknown_fields=True):
    worker_id: Annotated[str, Meta(pattern=NO_NUL, min_length=1, max_length=bounds.NAME_CHARS)]
    limit: Annotated[int, Meta(ge=1, le=bounds.MOST_LEASED)] = 1
    lease_seconds: Annotated[float, Meta(ge=1, le=bounds.LONGEST_LEASE_SECONDS)] | None = None
    wait: Annotated[float, Meta(ge=0, le=LONGEST_WAIT_SECONDS)] = 0.0
    """Seconds to wait for a job if there is none now."""


class AckRequest(Struct, frozen=True, forbid_unknown_fields=True):
    token: Token
    result: Any = None
    logs: str | None = None


class NackRequest(Struct, frozen=True, forbid_unknown_fields=True):
    token: Token
    error: str
    retry: bool = True
    """False: trying again is pointless."""
    retry_in: Seconds | None = None
    logs: str | None = None


class ReleaseRequest(Struct, frozen=True, forbid_unknown_fields=True):
    token: Token
    delay: Seconds | None = None
    logs: str | None = None


class SnoozeRequest(Struct, frozen=True, forbid_unknown_fields=True):
    token: Token
    delay: Seconds
    logs: str | None = None


class DiscardRequest(Struct, frozen=True, forbid_unknown_fields=True):
    token: Token
    reason: str | None = None
    logs: str | None = None


class HeartbeatRequest(Struct, frozen=True, forbid_unknown_fields=True):
    token: Token
    lease_seconds: Annotated[float, Meta(ge=1, le=bounds.LONGEST_LEASE_SECONDS)] | None = None
    progress: Any = None


class SettleAck(AckRequest, frozen=True, tag="ack", tag_field="verb", kw_only=True):
    id: Id


class SettleNack(NackRequest, frozen=True, tag="nack", tag_field="verb", kw_only=True):
    id: Id


class SettleRelease(ReleaseRequest, frozen=True, tag="release", tag_field="verb", kw_only=True):
    id: Id


class SettleSnooze(SnoozeRequest, frozen=True, tag="snooze", tag_field="verb", kw_only=True):
    id: Id


class SettleDiscard(DiscardRequest, frozen=True, tag="discard", tag_field="verb", kw_only=True):
    id: Id


SettleItem = SettleAck | SettleNack | SettleRelease | SettleSnooze | SettleDiscard


class SettleBatch(Struct, frozen=True, forbid_unknown_fields=True):
    settles: Annotated[list[Raw], Meta(max_length=MOST_IN_BATCH)]
    """Each with a `verb`: ack, nack, release, snooze or discard."""


class SettledAnswer(Struct, frozen=True):
    """What the job has become, and when it runs again if it was queued again."""

    id: str
    status: Status
    run_at: Moment | None = None


class SettleBatchItem(Struct, frozen=True, omit_defaults=True):
    """What the job has become, or the error that kept it from that."""

    id: str | None = None
    status: Status | None = None
    run_at: Moment | None = None
    error: Problem | None = None


class SettleBatchAnswer(Struct, frozen=True):
    settles: list[SettleBatchItem]


class BeatAnswer(Struct, frozen=True):
    """How long the lease holds now, and whether the handler should stop."""

    expires_at: Moment
    cancel_requested: bool


# ── Looking ───────────────────────────────────────────────────────────────────────────────────────


class JobAnswer(Struct, frozen=True, kw_only=True):
    """A job as it stands."""

    id: str
    type: str
    queue: str
    status: Status
    priority: int
    payload: Raw | UnsetType = UNSET
    """Not there for a job from the lake."""
    attempts: int
    max_attempts: int | None
    """None: what the queue is set to."""
    run_at: Moment
    created_at: Moment
    ended_at: Moment | None = None
    expires_at: Moment | None = None
    result: Raw | None = None
    error: str | None = None
    cause: Cause | None = None
    progress: Raw | None = None
    cancel_requested: bool = False
    worker: str | None = None
    """Who runs it now."""
    lease_expires_at: Moment | None = None
    leases: int = 0
    key: str | None = None
    ordering_key: str | None = None
    unique_key: str | None = None
    idempotency_key: str | None = None
    parents: tuple[str, ...] = ()
    schedule: str | None = None
    headers: Raw | None = None
    source: Literal["lake"] | UnsetType = UNSET
    """There if the job has left the store, and this is what the lake has of it."""
    data_as_of: Moment | UnsetType = UNSET
    """What happened later is not in the lake yet."""
    lacking: tuple[str, ...] | UnsetType = UNSET
    """What the lake does not keep of a job."""


def archived_answer(found: Archived) -> JobAnswer:
    """A job that has left the store."""
    return replace(
        job_answer(found.job), payload=UNSET, source="lake", data_as_of=found.data_as_of, lacking=NOT_ARCHIVED
    )


def job_answer(job: Job) -> JobAnswer:
    asked, lease = job.asked, job.lease
    return JobAnswer(
        id=asked.id,
        type=asked.type,
        queue=asked.queue,
        status=job.status,
        priority=asked.priority,
        payload=Raw(asked.payload),
        attempts=job.attempts,
        max_attempts=asked.max_attempts,
        run_at=job.run_at,
        created_at=job.created_at,
        ended_at=job.ended_at,
        expires_at=job.expires_at,
        result=raw(job.result),
        error=job.error,
        cause=job.cause,
        progress=raw(job.progress),
        cancel_requested=job.cancel_requested,
        worker=None if lease is None else lease.worker,
        lease_expires_at=None if lease is None else lease.expires_at,
        leases=job.leases,
        key=asked.key,
        ordering_key=asked.ordering_key,
        unique_key=asked.unique_key,
        idempotency_key=asked.idempotency_key,
        parents=asked.parents,
        schedule=asked.schedule,
        headers=raw(asked.headers),
    )


class ParentAnswer(Struct, frozen=True):
    id: str
    status: Status
    result: Raw | None


class LeasedAnswer(Struct, frozen=True):
    """A job in the caller's hands. The token is the fence: settle with it before the lease runs out."""

    job: JobAnswer
    token: str
    expires_at: Moment
    parents: list[ParentAnswer] = []


class LeaseAnswer(Struct, frozen=True):
    jobs: list[LeasedAnswer]


def leased_answer(leased: Leased) -> LeasedAnswer:
    lease = leased.job.lease
    assert lease is not None
    return LeasedAnswer(
        job_answer(leased.job), leased.token, lease.expires_at, [_parent(parent) for parent in leased.parents]
    )


def _parent(parent: Parent) -> ParentAnswer:
    return ParentAnswer(parent.id, parent.status, raw(parent.result))


class JobsAnswer(Struct, frozen=True, omit_defaults=True):
    jobs: list[JobAnswer]
    next: str | None = None
    """Where to go on: `?after=`. A short page may still have one."""
    count: int | None = None
    """How many match, where that was asked for; at most 10,000."""
    count_is_exact: bool | None = None


class ResultAnswer(Struct, frozen=True):
    id: str
    status: Status
    result: Raw | None = None
    error: str | None = None
    cause: Cause | None = None


class AttemptAnswer(Struct, frozen=True):
    """One lease of the job and how it ended."""

    number: int
    worker: str
    started_at: Moment
    ended_at: Moment
    outcome: Outcome
    status: Status
    run_at: Moment
    error: str | None = None
    result: Raw | None = None
    logs: str | None = None


class ChangeAnswer(Struct, frozen=True):
    """Something a person or a rule did."""

    at: Moment
    verb: str
    actor: str
    reason: str | None = None
    status: Status | None = None
    detail: Raw | None = None


class HistoryAnswer(Struct, frozen=True):
    """The audit trail: attempts, and changes beside them, each in the order in which they took effect."""

    attempts: list[AttemptAnswer]
    changes: list[ChangeAnswer]
    source: Literal["lake"] | UnsetType = UNSET
    """There if the job has left the store, and this is what the lake has of it: no results, and no logs."""
    data_as_of: Moment | UnsetType = UNSET


def attempt_answer(attempt: Attempt) -> AttemptAnswer:
    return AttemptAnswer(
        attempt.number, attempt.worker, attempt.started_at, attempt.ended_at, attempt.outcome, attempt.status,
        attempt.run_at, attempt.error, raw(attempt.result), attempt.logs,
    )  # fmt: skip


def change_answer(change: Change) -> ChangeAnswer:
    return ChangeAnswer(
        change.at, change.verb, change.actor, change.reason, change.status, raw(change.detail)
    )


def history_answer(history: History) -> HistoryAnswer:
    return HistoryAnswer(
        [attempt_answer(attempt) for attempt in history.attempts],
        [change_answer(change) for change in history.changes],
    )


# ── Operating ─────────────────────────────────────────────────────────────────────────────────────


class ReasonRequest(Struct, frozen=True, forbid_unknown_fields=True):
    reason: Text | None = None


class RedriveRequest(ReasonRequest, frozen=True, forbid_unknown_fields=True):
    descendants: bool = True
    """Also jobs that were cancelled because this one failed."""


class ChangedAnswer(Struct, frozen=True):
    id: str
    status: Status
    cancel_requested: bool = False
    others: tuple[str, ...] = ()
    """Jobs whose fate changed with it."""


class QueueAnswer(Struct, frozen=True):
    name: str
    settings: QueueSettings
    counts: dict[Status, int]
    oldest_run_at: Moment | None = None


def queue_answer(view: QueueView) -> QueueAnswer:
    return QueueAnswer(view.name, view.settings, dict(view.counts), view.oldest_run_at)


class QueuesAnswer(Struct, frozen=True):
    queues: list[QueueAnswer]


class StatsAnswer(Struct, frozen=True):
    at: Moment
    """By the store's clock."""
    counts: dict[Status, int]
    queues: list[QueueAnswer]


Concurrency = Annotated[int, Meta(ge=1, le=bounds.MOST_CONCURRENCY)]


class SettingsRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings to change; what is left out stays."""

    paused: bool | UnsetType = UNSET
    max_concurrency: Concurrency | UnsetType | None = UNSET
    max_concurrency_per_key: Concurrency | UnsetType | None = UNSET
    rate: Rate | UnsetType | None = UNSET
    rate_per_key: Rate | UnsetType | None = UNSET
    fair: bool | UnsetType = UNSET
    max_attempts: Annotated[int, Meta(ge=1, le=bounds.MOST_ATTEMPTS)] | UnsetType = UNSET
    retry: Retry | UnsetType = UNSET
    on_exhausted: OnExhausted | UnsetType = UNSET
    lease_seconds: Annotated[float, Meta(ge=1, le=bounds.LONGEST_LEASE_SECONDS)] | UnsetType = UNSET
    retention_seconds: Seconds | UnsetType = UNSET
    max_depth: Annotated[int, Meta(ge=1, le=bounds.MOST_DEPTH)] | UnsetType | None = UNSET
    target_seconds: Annotated[float, Meta(ge=0.001, le=bounds.LONGEST_SECONDS)] | UnsetType = UNSET
    """How long a job that is due may wait before the queue counts as late."""
    reason: Text | UnsetType | None = UNSET


class ScheduleRequest(Struct, frozen=True, forbid_unknown_fields=True):
    cron: Text
    job: JobRequest
    tz: Text = "UTC"
    missed: Missed = Missed.ONE
    paused: bool = False
    reason: Text | None = None


class ScheduleAnswer(Struct, frozen=True):
    name: str
    cron: str
    tz: str
    missed: Missed
    paused: bool
    type: str
    queue: str
    payload: Raw
    next_fire_at: Moment | None
    last_fire_at: Moment | None
    declared_by: str | None
    """The program in whose code it is declared, if it is."""
    words: str
    """What its cron expression says."""
    next: list[Moment]
    """The next fire times; none while it is paused."""


def schedule_answer(schedule: Schedule) -> ScheduleAnswer:
    return ScheduleAnswer(
        schedule.name, schedule.cron, schedule.tz, schedule.missed, schedule.paused, schedule.job.type,
        schedule.job.queue, Raw(schedule.job.payload), schedule.next_fire_at, schedule.last_fire_at,
        schedule.declared_by, in_words(schedule.cron), _next(schedule),
    )  # fmt: skip


def _next(schedule: Schedule) -> list[datetime]:
    first = schedule.next_fire_at
    if first is None or schedule.paused:
        return []
    return [first, *next_fires(schedule.cron, schedule.tz, first, NEXT_RUNS - 1)]


class SchedulesAnswer(Struct, frozen=True):
    schedules: list[ScheduleAnswer]


class AuditAnswer(Struct, frozen=True):
    """Changes made by people and tokens, newest first."""

    changes: list[AuditedAnswer]
    next: str | None = None


class AuditedAnswer(Struct, frozen=True):
    kind: str
    name: str
    change: ChangeAnswer


def audited_answer(line: AuditLine) -> AuditedAnswer:
    return AuditedAnswer(line.kind, line.name, change_answer(line.change))


class FilterBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Which jobs: those that match every condition given."""

    status: list[Status] | UnsetType = UNSET
    queue: Name | UnsetType = UNSET
    type: Name | UnsetType = UNSET
    key: Key | UnsetType = UNSET
    schedule: Name | UnsetType = UNSET
    cause: Cause | UnsetType = UNSET
    created_from: Moment | UnsetType = UNSET
    created_before: Moment | UnsetType = UNSET
    parents: Annotated[list[Id], Meta(max_length=bounds.MOST_PARENTS)] | UnsetType = UNSET
    in_flow: bool | UnsetType = UNSET


def conditions(body: Struct) -> dict[str, Any]:
    """A filter as `new_filter` takes it."""
    found: Mapping[str, Any] = {
        name: getattr(body, name) for name in FilterBody.__struct_fields__ if hasattr(body, name)
    }
    sent = {name: value for name, value in found.items() if value is not UNSET and value is not None}
    if "status" in sent:
        sent["statuses"] = tuple(sent.pop("status"))
    return sent


class BulkRequest(Struct, frozen=True, forbid_unknown_fields=True):
    action: Annotated[str, one_of(Action)]
    filter: FilterBody = field(default_factory=FilterBody)
    dry_run: bool = True
    """Only count; send false to act."""
    reason: Text | None = None


class BulkCount(Struct, frozen=True):
    """What the operation would change."""

    matched: int
    is_exact: bool
    """False: there are more; the count stops at 10,000."""


class TokenRequest(Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    scopes: Annotated[list[Annotated[str, one_of(Scope)]], Meta(min_length=1, max_length=10)]
    expires_in: Annotated[float, Meta(ge=1, le=bounds.LONGEST_SECONDS)] | None = None
    rate: Rate | None = None


class RotateRequest(Struct, frozen=True, forbid_unknown_fields=True):
    overlap_seconds: Annotated[float, Meta(ge=0, le=bounds.LONGEST_SECONDS)] = 86_400.0
