"""What people watch: the overview, figures over time, failures by what they have in common, flows, markers, the system."""

from __future__ import annotations

import platform
import secrets
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

import penstock
from penstock import flows, overview
from penstock.access import Scope
from penstock.core import bounds
from penstock.core.codec import JsonText
from penstock.core.cron import check_cron, check_tz, in_words, next_fires
from penstock.core.errors import NotFound, PenstockError
from penstock.core.registry import Audited, AuditLine, PutEntry
from penstock.core.wakeups import WakeupsStatus
from penstock.figures import (
    FailureGroup,
    Figures,
    Span,
    TypeName,
    failure_group,
    failure_groups,
    figures,
    is_rising,
    last_hour,
    read_place,
    recent,
    types,
)
from penstock.flows import FlowPage, FlowView
from penstock.overview import Overview
from penstock.presence import Order, Presence, give_order
from penstock.server.insights import RedriveFailureRequest, redrive_failure
from penstock.server.looking import job_id
from penstock.server.operating import BulkAnswer
from penstock.server.operation import Call, Operation
from penstock.server.wire import NEXT_RUNS, Id, Moment, Name, Text, one_of

MARKER = "marker"
MARKER_SECONDS = 8 * 86_400.0
MOST_MARKERS = 200
HOURS_SHOWN = 24


async def get_overview(call: Call) -> Overview:
    """How the queues do, at a glance, and what needs a person."""
    call.service.historian.look_at(call.caller.tenant)
    return await overview.overview(call.caller.queue)


class FiguresQuery(Struct, frozen=True, forbid_unknown_fields=True):
    span: Annotated[str, one_of(Span)] = Span.HOUR
    queue: Name | UnsetType = UNSET


async def get_figures(call: Call) -> Figures:
    """What happened over the last while, step by step: arrivals, ends, waits and runs. Kept as it happens, not counted now."""
    call.service.historian.look_at(call.caller.tenant)
    span = bounds.member("span", call.query.span, Span)
    queue = None if call.query.queue is UNSET else call.query.queue
    return await figures(call.service.store, call.caller.tenant, span, queue)


class FailureAnswer(Struct, frozen=True):
    """A failure, and how often it was seen of late."""

    group: FailureGroup
    last_hour: int
    last_day: int
    by_hour: list[int]
    """Of the last 24, the one that goes on last."""
    is_new: bool
    """First seen within the last day."""
    is_rising: bool


class FailuresAnswer(Struct, frozen=True):
    at: Moment
    counted_since: Moment | None
    """Failures before were not counted; None if nothing has been counted yet."""
    failures: list[FailureAnswer]


class FailuresQuery(Struct, frozen=True, forbid_unknown_fields=True):
    queue: Name | UnsetType = UNSET
    type: Name | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=bounds.MOST_LISTED)] = 100


async def list_failures(call: Call) -> FailuresAnswer:
    """Failures of the last week, grouped by what they have in common; those seen most in the last day first."""
    call.service.historian.look_at(call.caller.tenant)
    query: FailuresQuery = call.query
    now = await call.service.store.now()
    groups = [
        _failure(group, now)
        for group in await failure_groups(call.service.store, call.caller.tenant)
        if (query.queue is UNSET or query.queue in group.queues)
        and (query.type is UNSET or query.type in group.types)
    ]
    groups.sort(key=lambda one: (one.last_day, one.group.last_seen), reverse=True)
    place = await read_place(call.service.store, call.caller.tenant)
    return FailuresAnswer(now, None if place is None else place.since, groups[: query.limit])


async def get_failure(call: Call) -> FailureAnswer:
    """One failure, with a sample of its error and jobs that it hit."""
    group = await failure_group(call.service.store, call.caller.tenant, call.path["fingerprint"])
    if group is None:
        raise NotFound(f"no failure {call.path['fingerprint'][:100]!r} was seen within the last week")
    return _failure(group, await call.service.store.now())


def _failure(group: FailureGroup, now: datetime) -> FailureAnswer:
    by_hour = [
        recent(group, now, back + 1) - recent(group, now, back) for back in reversed(range(HOURS_SHOWN))
    ]
    return FailureAnswer(
        group, last_hour(group, now), sum(by_hour), by_hour,
        now - group.first_seen < timedelta(days=1), is_rising(group, now),
    )  # fmt: skip


async def redrive_failure_group(call: Call) -> BulkAnswer:
    """Bring back all dead and held jobs of a failure, so many a second. A dry run unless `dry_run` is false."""
    return await redrive_failure(call)


class TypesAnswer(Struct, frozen=True):
    types: list[TypeName]


async def list_types(call: Call) -> TypesAnswer:
    """The types of jobs that were met, and in which queues."""
    return TypesAnswer(await types(call.service.store, call.caller.tenant))


# ── Flows ─────────────────────────────────────────────────────────────────────────────────────────


class FlowsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    after: Id | UnsetType = UNSET
    """The `next` of the page before."""
    limit: Annotated[int, Meta(ge=1, le=50)] = 20


async def list_flows(call: Call) -> FlowPage:
    """Flows, those with the youngest jobs first."""
    after = None if call.query.after is UNSET else call.query.after
    return await flows.recent_flows(call.caller.queue, after=after, limit=call.query.limit)


async def get_flow(call: Call) -> FlowView:
    """All jobs that hang together with this one."""
    return await flows.flow(call.caller.queue, job_id(call))


# ── Markers ───────────────────────────────────────────────────────────────────────────────────────


class MarkerRequest(Struct, frozen=True, forbid_unknown_fields=True):
    text: Annotated[str, Meta(pattern="^[^\\x00]*$", min_length=1, max_length=200)]
    """Such as: deployed 4f2a91c."""


class Marker(Struct, frozen=True):
    """A moment worth a line on a chart."""

    at: Moment
    kind: str
    """deploy, pause, resume, configure, bulk."""
    text: str
    actor: str


class MarkersAnswer(Struct, frozen=True):
    markers: list[Marker]


async def put_marker(call: Call) -> Marker:
    """Mark this moment on the charts: a deploy, say."""
    store, actor, text = call.service.store, call.caller.queue.actor, call.body.text
    body = JsonText(msgspec.json.encode(text).decode())
    audit = Audited(text[:100], "mark", actor, detail=body)
    put = PutEntry(MARKER, secrets.token_hex(8), body, seconds=MARKER_SECONDS, audit=audit)
    [answer] = await store.put_entries(call.caller.tenant, [put])
    if isinstance(answer, PenstockError):
        raise answer
    assert answer is not None
    return Marker(answer.changed_at, "deploy", text, actor)


async def list_markers(call: Call) -> MarkersAnswer:
    """What people did lately that a chart should show: deploys they told of, pauses, settings, operations on many jobs."""
    page = await call.service.store.audit(call.caller.tenant, limit=MOST_MARKERS)
    return MarkersAnswer([marker for line in page.lines if (marker := _marker(line)) is not None])


def _marker(line: AuditLine) -> Marker | None:
    change, name = line.change, line.name
    match line.kind:
        case "marker":
            return Marker(change.at, "deploy", name, change.actor)
        case "bulk":
            return Marker(change.at, "bulk", change.verb, change.actor)
        case "queue":
            detail = msgspec.json.decode(change.detail) if change.detail else {}
            paused = detail.get("paused") if isinstance(detail, dict) else None
            kind = "configure" if paused is None else "pause" if paused else "resume"
            said = f"{name} {'was set' if paused is None else 'paused' if paused else 'resumed'}"
            return Marker(
                change.at, kind, f"{said}: {change.reason}" if change.reason else said, change.actor
            )
        case _:
            return None


# ── Workers, schedules, the system ────────────────────────────────────────────────────────────────


class OrderRequest(Struct, frozen=True, forbid_unknown_fields=True):
    order: Annotated[str, one_of(Order)]
    """quiet: take nothing new; work: go on; stop: finish what has begun, and end."""
    reason: Text | None = None


async def order_worker(call: Call) -> Presence:
    """Tell a worker to take nothing new, to go on, or to stop."""
    order = bounds.member("order", call.body.order, Order)
    return await give_order(
        call.service.store, call.caller.tenant, call.path["worker"], order,
        actor=call.caller.queue.actor, reason=call.body.reason,
    )  # fmt: skip


class CronQuery(Struct, frozen=True, forbid_unknown_fields=True):
    cron: Annotated[str, Meta(max_length=256)]
    tz: Annotated[str, Meta(max_length=100)] = "UTC"


class CronAnswer(Struct, frozen=True):
    """A cron expression in words, and when it fires next."""

    words: str
    next: list[Moment]


async def get_cron(call: Call) -> CronAnswer:
    """What a cron expression means."""
    cron, tz = check_cron(call.query.cron), check_tz(call.query.tz)
    return CronAnswer(in_words(cron), next_fires(cron, tz, await call.service.store.now(), NEXT_RUNS))


class SystemAnswer(Struct, frozen=True):
    """What this instance runs on."""

    at: Moment
    version: str
    python: str
    store: str
    wakeups: WakeupsStatus
    database: dict[str, Any] | None
    """Of PostgreSQL: tables and their sizes, what pins old rows, what a claim costs, and threats in words."""


async def get_system(call: Call) -> SystemAnswer:
    """How the store is: sizes, dead rows, who keeps them from being removed, and whether wake-ups come through."""
    store = call.service.store
    health: Any = getattr(store, "health", None)
    database = None if health is None else msgspec.to_builtins(await health(), builtin_types=(datetime,))
    return SystemAnswer(
        await store.now(), penstock.__version__, platform.python_version(),
        type(store).__name__.removesuffix("Store").lower(), store.wakeups.status(), database,
    )  # fmt: skip


_SEE = (Scope.READ, Scope.OPERATE)
_NO_FAILURE = {404: "No such failure is known"}
_FAILURE = "/v1/failures/{fingerprint}"

OPERATIONS = (
    Operation("GET", "/v1/overview", get_overview, "See how the queues do", Overview, _SEE, tag="Watch"),
    Operation("GET", "/v1/figures", get_figures, "Read figures over time", Figures, _SEE, query=FiguresQuery, tag="Watch"),
    Operation("GET", "/v1/failures", list_failures, "List failures by what they have in common", FailuresAnswer, _SEE,
              query=FailuresQuery, tag="Watch"),
    Operation("GET", _FAILURE, get_failure, "Look at a failure", FailureAnswer, _SEE, also=_NO_FAILURE, tag="Watch"),
    Operation("POST", f"{_FAILURE}/redrive", redrive_failure_group, "Bring back all jobs of a failure", BulkAnswer,
              Scope.OPERATE, RedriveFailureRequest, body_is_optional=True,
              also={202: "Begun; `Location` tells how far it is", **_NO_FAILURE},
              example={"dry_run": False, "per_second": 20}, tag="Watch"),
    Operation("GET", "/v1/types", list_types, "List the types of jobs", TypesAnswer, _SEE, tag="Watch"),
    Operation("GET", "/v1/flows", list_flows, "List flows", FlowPage, _SEE, query=FlowsQuery, tag="Watch"),
    Operation("GET", "/v1/jobs/{id}/flow", get_flow, "See the flow of a job", FlowView, _SEE,
              also={404: "No such job in this tenant"}, tag="Watch"),
    Operation("GET", "/v1/markers", list_markers, "List moments worth a line on a chart", MarkersAnswer, _SEE, tag="Watch"),
    Operation("POST", "/v1/markers", put_marker, "Mark this moment", Marker, Scope.OPERATE, MarkerRequest, status=201,
              example={"text": "deployed 4f2a91c"}, tag="Watch"),
    Operation("POST", "/v1/workers/{worker}/order", order_worker, "Tell a worker what to do", Presence, Scope.OPERATE,
              OrderRequest, also={404: "No such worker has shown itself"},
              example={"order": "quiet", "reason": "its disk is full"}, tag="Operate"),
    Operation("GET", "/v1/cron", get_cron, "Say what a cron expression means", CronAnswer, _SEE, query=CronQuery, tag="Schedules"),
    Operation("GET", "/v1/system", get_system, "See how the store is", SystemAnswer, Scope.ADMIN, tag="Watch"),
)  # fmt: skip
