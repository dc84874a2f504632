"""The store port itself over HTTP, for Penstock's own clients: a call for each of its methods, and one to wait for wake-ups.

An ordinary token sees its tenant's part of the store. With a token of the service itself it is the whole of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from penstock import presence
from penstock.access import Scope
from penstock.core import bounds
from penstock.core.commands import Due, Leased, LeaseJobs, Page, QueueView, Release, Swept
from penstock.core.errors import Forbidden, InvalidInput, Overloaded, PenstockError
from penstock.core.job import JobId, NewJob
from penstock.core.ports import Store
from penstock.core.registry import ALL_TENANTS, AuditPage, Entry, Events, Insight, PutEntry, Spent
from penstock.core.schedule import Schedule
from penstock.core.wakeups import CANCELS, EVERYONE, OFFICES, ORDERS, SCHEDULES
from penstock.server.checks import checked, checked_filter, checked_job, subject
from penstock.server.operation import Call, Operation
from penstock.stores.remote.wire import (
    ANSWERS,
    BODIES,
    Answers,
    Audit,
    Entries,
    Follow,
    Lead,
    Listen,
    OneTopic,
    PutEntries,
    Rung,
    Sweep,
    Whose,
    answered,
    the_settle,
)
from penstock.stores.wakeups.bells import Topic

MOST_SWEPT = 1_000_000
LONGEST_OFFICE_SECONDS = 86_400
MOST_CURSOR_CHARS = 1_500
PUT_BY = {presence.KIND: (Scope.WORK,), presence.ORDER: (Scope.OPERATE,)}
SEEN_BY = {presence.KIND: (Scope.WORK, Scope.READ), presence.ORDER: (Scope.WORK, Scope.READ)}
"""Workers show themselves, and read what they are told, by entries: who may put these, and see them. Others are for admins."""
LETTING_IN = ("token", "session", "session-code")
"""The kinds of entries that let people in: only the service itself puts these."""


def _actor(call: Call) -> str | None:
    """Who a command is by, if that is not for the caller to say."""
    return None if call.caller.is_the_service else call.caller.queue.actor


# ── Producing ─────────────────────────────────────────────────────────────────────────────────────


async def store_enqueue(call: Call) -> Answers[Any]:
    """Put jobs in. Their ids are the client's: sent again, they are the same jobs."""
    service, tenant = call.service, call.caller.tenant
    jobs = [checked_job(asked) for asked in call.body.items]
    full = await _full(call, jobs)
    good = jobs if not full else [job for job in jobs if job.queue not in full]
    given = iter(await service.enqueue.many(tenant, good))
    answers = [full[job.queue] if job.queue in full else next(given) for job in jobs]
    for job, answer in zip(jobs, answers, strict=True):
        if not isinstance(answer, PenstockError):
            service.metrics.enqueued(job.queue, answer)
    return answered(answers)


async def _full(call: Call, jobs: Sequence[NewJob]) -> dict[str, PenstockError]:
    """The queues that take no more in, and why: the others' jobs go through."""
    full: dict[str, PenstockError] = {}
    for queue in {job.queue for job in jobs}:
        try:
            await call.service.make_room(call.caller.tenant, [queue])
        except Overloaded as error:
            full[queue] = error
    return full


# ── Working ───────────────────────────────────────────────────────────────────────────────────────


async def store_lease(call: Call) -> Answers[Any]:
    """Lease the next jobs of each queue named. What a client that has hung up was given goes back at once."""
    store, tenant = call.service.store, call.caller.tenant
    requests: list[LeaseJobs] = [checked(request, None) for request in call.body.items]
    answers = await store.lease(tenant, requests)
    leased = [one for answer in answers if not isinstance(answer, PenstockError) for one in answer]
    if leased and await call.request.is_disconnected():
        await _give_back(store, tenant, leased)
        return answered([])
    for request, answer in zip(requests, answers, strict=True):
        if not isinstance(answer, PenstockError):
            call.service.metrics.leased(request.queue, len(answer))
    return answered(answers)


async def _give_back(store: Store, tenant: str, leased: Sequence[Leased]) -> None:
    await store.settle(tenant, [Release(one.id, one.token) for one in leased])


async def store_heartbeat(call: Call) -> Answers[Any]:
    """Extend leases from now on; tells whether the job was asked to stop."""
    beats = [checked(beat, None) for beat in call.body.items]
    return answered(await call.service.heartbeat.many(call.caller.tenant, beats))


async def store_settle(call: Call) -> Answers[Any]:
    """End leases. Sent again, a settle gets its first answer."""
    settles = [checked(the_settle(sent), None) for sent in call.body.items]
    answers = await call.service.settle.many(call.caller.tenant, settles)
    for settle, answer in zip(settles, answers, strict=True):
        call.service.metrics.settled(settle, answer)
    return answered(answers)


async def store_next_at(call: Call) -> datetime | None:
    """When time alone may next let a job of these queues out."""
    queues = [bounds.name("queue", queue) for queue in call.body.queues]
    return await call.service.store.next_at(call.caller.tenant, queues)


async def store_now(call: Call) -> datetime:
    """The store's time."""
    return await call.service.store.now()


async def store_wakeups(call: Call) -> Rung:
    """Wait until one of some queues may have something: told are those that rang since the answer before."""
    body: Listen = call.body
    topics = {topic: sent for sent in body.topics if (topic := _topic(call, sent)) is not None}
    heard, rung = await call.service.rings.wait(topics, body.seconds, body.heard, call.request)
    return Rung(heard, [topics[topic] for topic in rung])


def _topic(call: Call, sent: OneTopic) -> Topic | None:
    """What to listen to; None for what rings for all tenants, unless the caller is the service itself."""
    if sent.tenant == EVERYONE and sent.queue in (SCHEDULES, OFFICES):
        return Topic(EVERYONE, sent.queue) if call.caller.is_the_service else None
    queue = sent.queue if sent.queue in (CANCELS, ORDERS) else bounds.name("queue", sent.queue)
    if sent.tenant is None or sent.tenant == call.caller.tenant:
        return Topic(call.caller.tenant, queue)
    if not call.caller.is_the_service:
        raise Forbidden(f"this token is for the tenant {call.caller.tenant!r}")
    return Topic(bounds.name("tenant", sent.tenant), queue)


# ── Operating ─────────────────────────────────────────────────────────────────────────────────────


async def store_cancel(call: Call) -> Answers[Any]:
    """Cancel jobs that do not run; ask those that do to stop."""
    return await _each(call, call.service.store.cancel)


async def store_redrive(call: Call) -> Answers[Any]:
    """Bring dead, held and cancelled jobs back, with their history."""
    return await _each(call, call.service.store.redrive)


async def store_configure(call: Call) -> Answers[Any]:
    """Set some settings of queues; the rest stay."""
    return await _each(call, call.service.store.configure)


async def store_put_schedules(call: Call) -> Answers[Any]:
    """Make or replace schedules."""
    return await _each(call, call.service.store.put_schedules)


async def store_drop_schedules(call: Call) -> Answers[Any]:
    """Drop schedules."""
    return await _each(call, call.service.store.drop_schedules)


async def store_fire(call: Call) -> Answers[Any]:
    """Enqueue the due jobs of schedules and move these on."""
    return await _each(call, call.service.store.fire)


async def _each(call: Call, ask: Callable[[str, Sequence[Any]], Awaitable[Sequence[Any]]]) -> Answers[Any]:
    commands = [checked(command, _actor(call)) for command in call.body.items]
    return answered(await ask(call.caller.tenant, commands) if commands else [])


async def store_due_schedules(call: Call) -> Due:
    """Who has schedules to fire, and when there will be more."""
    everyone = call.body.everyone and call.caller.is_the_service
    return await call.service.store.due_schedules(None if everyone else call.caller.tenant)


async def store_lead(call: Call) -> bool:
    """Take an office, or keep it, for a while. Each tenant has its own offices."""
    body: Lead = call.body
    office = bounds.key("office", body.office)
    holder = bounds.key("holder", body.holder)
    seconds = bounds.number("seconds", body.seconds, 0, LONGEST_OFFICE_SECONDS)
    if not call.caller.is_the_service:
        office = f"tenant {call.caller.tenant}: {office}"
    return await call.service.store.lead(office, holder, seconds)


async def store_sweep(call: Call) -> Swept:
    """Do what time asks for. The service does so by itself, and for a tenant that asks it does nothing more."""
    body: Sweep = call.body
    limit = bounds.integer("limit", body.limit, 0, MOST_SWEPT)
    until = None if body.exported_until is None else bounds.moment("exported_until", body.exported_until)
    if not call.caller.is_the_service:
        return Swept()
    return await call.service.store.sweep(limit=limit, exported_until=until)


async def store_tenants(call: Call) -> list[str]:
    """Everyone who ever used the store; only the caller's own tenant, unless the token is the service's."""
    return await call.service.store.tenants() if call.caller.is_the_service else [call.caller.tenant]


# ── Looking ───────────────────────────────────────────────────────────────────────────────────────


async def store_get(call: Call) -> Answers[Any]:
    """Jobs as they stand."""
    ids = [JobId(bounds.job_id("job id", one)) for one in call.body.items]
    return answered(await call.service.get.many(call.caller.tenant, ids))


async def store_history(call: Call) -> Answers[Any]:
    """The audit trails of jobs, queues and schedules."""
    subjects = [subject(one) for one in call.body.items]
    return answered(await call.service.store.history(call.caller.tenant, subjects))


async def store_find(call: Call) -> Page:
    """The jobs that match, newest first, a page at a time."""
    after = None if call.body.after is None else JobId(bounds.job_id("after", call.body.after))
    filter = checked_filter(call.body.filter)
    return await call.service.store.find(call.caller.tenant, filter, after=after, limit=_limit(call))


async def store_queues(call: Call) -> list[QueueView]:
    """Every queue: its settings, and how many of its jobs are in each state."""
    return await call.service.store.queues(call.caller.tenant)


async def store_schedules(call: Call) -> list[Schedule]:
    """Every schedule."""
    return await call.service.store.schedules(call.caller.tenant)


async def store_audit(call: Call) -> AuditPage:
    """What people and tokens changed, newest first."""
    body: Audit = call.body
    tenant = _whose(call, body.whose)
    if tenant is None:
        raise InvalidInput("whose", "be tenant or service", body.whose)
    return await call.service.store.audit(tenant, before=_cursor("before", body.before), limit=_limit(call))


async def store_events(call: Call) -> Events:
    """What happened after a cursor."""
    body: Follow = call.body
    return await call.service.store.events(
        call.caller.tenant, after=_cursor("after", body.after), limit=_limit(call)
    )


def _limit(call: Call) -> int:
    return bounds.integer("limit", call.body.limit, 1, bounds.MOST_LISTED)


def _cursor(field: str, value: str | None) -> str | None:
    """A place that an answer named; which ones there are, the store knows."""
    if value is not None and len(value) > MOST_CURSOR_CHARS:
        raise InvalidInput(field, "be a cursor that an answer gave", value)
    return value


# ── Entries ───────────────────────────────────────────────────────────────────────────────────────


async def store_put_entries(call: Call) -> Answers[Any]:
    """Make, replace or drop entries: workers show themselves, administrators see to the rest."""
    body: PutEntries = call.body
    tenant = _whose(call, body.whose)
    if tenant is None:
        raise InvalidInput("whose", "be tenant or service", body.whose)
    commands = [_entry(call, command) for command in body.items]
    return answered(await call.service.store.put_entries(tenant, commands) if commands else [])


def _entry(call: Call, command: PutEntry) -> PutEntry:
    command = checked(command, None)
    _may_see_to(call, command.kind, PUT_BY)
    actor = _actor(call)
    if actor is not None and command.audit is not None:
        command = replace(command, audit=replace(command.audit, actor=actor))
    return command


async def store_entries(call: Call) -> list[Entry]:
    """The entries of a kind."""
    body: Entries = call.body
    kind = bounds.name("kind", body.kind)
    _may_see_to(call, kind, SEEN_BY)
    names = None if body.names is None else [bounds.key("name", name) for name in body.names]
    return await call.service.store.entries(_whose(call, body.whose), kind, names)


def _may_see_to(call: Call, kind: str, scopes: Mapping[str, tuple[Scope, ...]]) -> None:
    """Forbidden, unless the caller may see to entries of this kind."""
    token = call.caller.token
    assert token is not None
    if kind in LETTING_IN and not call.caller.is_the_service:
        raise Forbidden(
            "tokens are made, listed and ended under /v1/tokens, or by penstock tokens at the store itself",
            needed="a token of the service itself",
        )
    needed = scopes.get(kind, (Scope.ADMIN,))
    if not any(token.allows(scope) for scope in needed):
        told = " or ".join(needed)
        raise Forbidden(f"entries of the kind {kind!r} need a token with the scope {told}", needed=told)


def _whose(call: Call, whose: Whose) -> str | None:
    """The tenant that is meant; None for everyone."""
    if whose == "tenant" or (whose == "everyone" and not call.caller.is_the_service):
        return call.caller.tenant
    if not call.caller.is_the_service:
        raise Forbidden("this needs a token of the service itself")
    return ALL_TENANTS if whose == "service" else None


async def store_spend(call: Call) -> list[Spent]:
    """Take from allowances, each as a whole or not at all."""
    spends = [checked(spend, None) for spend in call.body.items]
    return await call.service.store.spend(call.caller.tenant, spends) if spends else []


# ── Insights ──────────────────────────────────────────────────────────────────────────────────────


async def store_put_insights(call: Call) -> int:
    """Publish what a run of the lake found out, of all tenants; for the service itself alone. Says how many there were."""
    insights = [checked(insight, None) for insight in call.body.items]
    if insights:
        if not call.caller.is_the_service:
            raise Forbidden("insights are published by the lake", needed="a token of the service itself")
        await call.service.store.put_insights(insights)
    return len(insights)


async def store_insights(call: Call) -> list[Insight]:
    """What the newest run of the lake found out, by the names of its tables."""
    names = [bounds.name("name", name) for name in call.body.names]
    return await call.service.store.insights(call.caller.tenant, names)


_READ = (Scope.READ, Scope.OPERATE)
_ANY = (Scope.PRODUCE, Scope.WORK, Scope.READ, Scope.OPERATE)
_SCOPES: dict[Callable[[Call], Awaitable[Any]], Scope | tuple[Scope, ...]] = {
    store_enqueue: Scope.PRODUCE,
    store_lease: Scope.WORK,
    store_heartbeat: Scope.WORK,
    store_settle: Scope.WORK,
    store_next_at: Scope.WORK,
    store_wakeups: (Scope.WORK, Scope.OPERATE),
    store_now: _ANY,
    store_cancel: (Scope.OPERATE, Scope.PRODUCE),  # as POST /v1/jobs/{id}/cancel
    store_redrive: Scope.OPERATE,
    store_configure: Scope.OPERATE,
    store_put_schedules: Scope.OPERATE,
    store_drop_schedules: Scope.OPERATE,
    store_fire: Scope.OPERATE,
    store_due_schedules: Scope.OPERATE,
    store_lead: Scope.OPERATE,
    store_sweep: Scope.OPERATE,
    store_tenants: _READ,
    store_get: _ANY,
    store_history: _READ,
    store_find: _READ,
    store_queues: (*_READ, Scope.WORK),  # a worker may serve `reports*`
    store_schedules: _READ,
    store_audit: _READ,
    store_events: _READ,
    store_put_entries: (Scope.WORK, Scope.ADMIN),  # by their kind
    store_entries: (Scope.WORK, Scope.READ, Scope.ADMIN),
    store_spend: Scope.ADMIN,
    store_put_insights: Scope.ADMIN,
    store_insights: _READ,
}
assert {f"store_{verb}" for verb in BODIES} == {handle.__name__ for handle in _SCOPES}


def _operation(handle: Callable[[Call], Awaitable[Any]], scope: Scope | tuple[Scope, ...]) -> Operation:
    verb = handle.__name__.removeprefix("store_")
    return Operation(
        "POST", f"/v1/store/{verb}", handle, f"The store's {verb}", ANSWERS[verb], scope, BODIES[verb], tag="Store"
    )  # fmt: skip


OPERATIONS = tuple(_operation(handle, scope) for handle, scope in _SCOPES.items())
