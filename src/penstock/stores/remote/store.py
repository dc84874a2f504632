"""The remote store: every verb is a request to a service, whose store carries it out.

What is sent again when an answer stays away, and what is not:

- Jobs have ids made here, settles their tokens, fires their guard, offices their holder: again is as once. Reading,
  cancelling and heartbeats are harmless anyhow.
- A lease is never repeated once it may have been heard. The first may have leased jobs that nobody knows of, and a
  second would only lease more. The service gives back what it leased for a client that has hung up before the answer;
  what is lost on the way comes back when its lease runs out.
- A redrive, a setting, a schedule and a guarded entry would meet what they did themselves and be told that they came
  too late, or stand twice in the audit trail; an allowance would be spent twice. The caller is told StoreUnavailable,
  and looks before it decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from random import Random
from typing import Any

import msgspec

from penstock.coalesce import Groups
from penstock.core.commands import (
    Beat,
    CancelJob,
    Changed,
    ConfigureQueue,
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
    Page,
    PutSchedule,
    QueueView,
    RedriveJob,
    Settle,
    Settled,
    Swept,
)
from penstock.core.errors import PenstockError, StoreUnavailable
from penstock.core.job import Job, JobId, NewJob
from penstock.core.registry import ALL_TENANTS, AuditPage, Entry, Events, Insight, PutEntry, Spend, Spent
from penstock.core.schedule import Schedule
from penstock.core.settings import QueueSettings
from penstock.stores.remote.http import DEFAULT_TENANT, Http
from penstock.stores.remote.wakeups import RemoteWakeups
from penstock.stores.remote.wire import (
    ANSWERS,
    Audit,
    DueSchedules,
    Entries,
    Find,
    Follow,
    Insights,
    Items,
    Lead,
    NextAt,
    PutEntries,
    Sweep,
    Whose,
    one_settle,
    told,
)

PATIENCE_SECONDS = 10.0
MOST_SENT = 5_000
MOST_BYTES = 4 * 1_048_576
"""In one request; what is more goes in several, one after the other."""

_encode = msgspec.json.Encoder().encode
_decoders = {verb: msgspec.json.Decoder(kind) for verb, kind in ANSWERS.items()}


class RemoteStore:
    """A Penstock service as a store. It belongs to one event loop; a worker opens a second one for its keeper."""

    sees_to_time = True
    """The service fires schedules and sweeps by itself: no worker on it needs to."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        random: Random | None = None,
    ) -> None:
        """`patience_seconds` is how long a call waits for a service that cannot be reached, or is asked to wait itself."""
        random = random or Random()
        self._http = Http(url, token, patience_seconds, random)
        self.wakeups = RemoteWakeups(self._http, random)
        self._enqueue: Groups[NewJob, Enqueued] = Groups(self._asking("enqueue"), 4)
        self._settle: Groups[Settle, Settled] = Groups(self._asking("settle", one_settle), 4)
        self._heartbeat: Groups[Heartbeat, Beat] = Groups(self._asking("heartbeat"), 2)
        self._get: Groups[JobId, Job] = Groups(self._asking("get"), 2)

    def __repr__(self) -> str:
        return f"RemoteStore({self._http.url!r})"

    async def close(self) -> None:
        await self.wakeups.close()
        await self._http.close()

    # ── Jobs ──────────────────────────────────────────────────────────────────────────────────────

    async def enqueue(self, tenant: str, jobs: Sequence[NewJob]) -> list[Enqueued | PenstockError]:
        return list(await self._enqueue.many(tenant, jobs))

    async def lease(self, tenant: str, requests: Sequence[LeaseJobs]) -> list[list[Leased] | PenstockError]:
        return await self._each("lease", tenant, requests, repeatable=False)

    async def heartbeat(self, tenant: str, beats: Sequence[Heartbeat]) -> list[Beat | PenstockError]:
        return list(await self._heartbeat.many(tenant, beats))

    async def settle(self, tenant: str, settles: Sequence[Settle]) -> list[Settled | PenstockError]:
        return list(await self._settle.many(tenant, settles))

    async def cancel(self, tenant: str, commands: Sequence[CancelJob]) -> list[Changed | PenstockError]:
        return await self._each("cancel", tenant, commands)

    async def redrive(self, tenant: str, commands: Sequence[RedriveJob]) -> list[Changed | PenstockError]:
        return await self._each("redrive", tenant, commands, repeatable=False)

    async def get(self, tenant: str, ids: Sequence[JobId]) -> list[Job | PenstockError]:
        return list(await self._get.many(tenant, ids))

    async def history(
        self, tenant: str, subjects: Sequence[tuple[str, str]]
    ) -> list[History | PenstockError]:
        return await self._each("history", tenant, subjects)

    async def find(self, tenant: str, filter: Filter, *, after: JobId | None, limit: int) -> Page:
        page: Page = await self._ask("find", Find(filter, limit, after), tenant)
        return page

    async def next_at(self, tenant: str, queues: Sequence[str]) -> datetime | None:
        at: datetime | None = await self._ask("next_at", NextAt(list(queues)), tenant)
        return at

    # ── Queues and schedules ──────────────────────────────────────────────────────────────────────

    async def configure(
        self, tenant: str, commands: Sequence[ConfigureQueue]
    ) -> list[QueueSettings | PenstockError]:
        return await self._each("configure", tenant, commands, repeatable=False)

    async def queues(self, tenant: str) -> list[QueueView]:
        views: list[QueueView] = await self._ask("queues", None, tenant)
        return views

    async def put_schedules(
        self, tenant: str, commands: Sequence[PutSchedule]
    ) -> list[Schedule | PenstockError]:
        return await self._each("put_schedules", tenant, commands, repeatable=False)

    async def drop_schedules(
        self, tenant: str, commands: Sequence[DropSchedule]
    ) -> list[Schedule | PenstockError]:
        return await self._each("drop_schedules", tenant, commands, repeatable=False)

    async def fire(self, tenant: str, fires: Sequence[Fire]) -> list[Fired | PenstockError]:
        return await self._each("fire", tenant, fires)

    async def due_schedules(self, tenant: str | None = None) -> Due:
        due: Due = await self._ask("due_schedules", DueSchedules(tenant is None), tenant or DEFAULT_TENANT)
        return due

    async def schedules(self, tenant: str) -> list[Schedule]:
        schedules: list[Schedule] = await self._ask("schedules", None, tenant)
        return schedules

    # ── The store as a whole ──────────────────────────────────────────────────────────────────────

    async def now(self) -> datetime:
        now: datetime = await self._ask("now", None)
        return now

    async def tenants(self) -> list[str]:
        tenants: list[str] = await self._ask("tenants", None)
        return tenants

    async def lead(self, office: str, holder: str, seconds: float) -> bool:
        is_held: bool = await self._ask("lead", Lead(office, holder, seconds))
        return is_held

    async def sweep(self, *, limit: int, exported_until: datetime | None = None) -> Swept:
        swept: Swept = await self._ask("sweep", Sweep(limit, exported_until))
        return swept

    async def put_entries(
        self, tenant: str, commands: Sequence[PutEntry]
    ) -> list[Entry | PenstockError | None]:
        if not commands:
            return []
        # Without a guard and a line in the audit trail, as workers show themselves, again is as once.
        repeatable = all(command.version is None and command.audit is None for command in commands)
        owner, whose = _owner(tenant)
        answers = await self._ask("put_entries", PutEntries(list(commands), whose), owner, repeatable)
        return told(answers)

    async def entries(self, tenant: str | None, kind: str, names: Sequence[str] | None = None) -> list[Entry]:
        owner, whose = _owner(tenant)
        entries: list[Entry] = await self._ask(
            "entries", Entries(kind, None if names is None else list(names), whose), owner
        )
        return entries

    async def spend(self, tenant: str, spends: Sequence[Spend]) -> list[Spent]:
        return await self._ask("spend", Items(list(spends)), tenant, False) if spends else []

    async def put_insights(self, insights: Sequence[Insight]) -> None:
        if insights:  # in one request, however long: all or nothing
            await self._ask("put_insights", Items(list(insights)))

    async def insights(self, tenant: str, names: Sequence[str]) -> list[Insight]:
        insights: list[Insight] = await self._ask("insights", Insights(list(names)), tenant)
        return insights

    async def audit(self, tenant: str, *, before: str | None = None, limit: int) -> AuditPage:
        owner, whose = _owner(tenant)
        page: AuditPage = await self._ask("audit", Audit(limit, before, whose), owner)
        return page

    async def events(self, tenant: str, *, after: str | None = None, limit: int) -> Events:
        events: Events = await self._ask("events", Follow(limit, after), tenant)
        return events

    # ── Asking ────────────────────────────────────────────────────────────────────────────────────

    def _asking(self, verb: str, sent: Callable[[Any], Any] = lambda item: item) -> Any:
        async def ask(tenant: str, items: Sequence[Any]) -> list[Any]:
            return await self._each(verb, tenant, [sent(item) for item in items])

        return ask

    async def _each(
        self, verb: str, tenant: str, items: Sequence[Any], *, repeatable: bool = True
    ) -> list[Any]:
        """The answers to many items, in as many requests as they need."""
        answers: list[Any] = []
        for body in _bodies(map(_encode, items)):
            given = await self._http.ask(verb, body, tenant=tenant, repeatable=repeatable)
            answers += told(self._decoded(verb, given))
        if len(answers) != len(items):
            raise StoreUnavailable(self._http.name, f"{len(items)} items got {len(answers)} answers")
        return answers

    async def _ask(self, verb: str, body: Any, tenant: str = DEFAULT_TENANT, repeatable: bool = True) -> Any:
        sent = b"" if body is None else _encode(body)
        return self._decoded(verb, await self._http.ask(verb, sent, tenant=tenant, repeatable=repeatable))

    def _decoded(self, verb: str, answer: bytes) -> Any:
        try:
            return _decoders[verb].decode(answer)
        except msgspec.MsgspecError as error:
            raise StoreUnavailable(self._http.name, f"its answer to {verb} cannot be read: {error}") from None


def _bodies(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Encoded items as the bodies of requests, none of them longer than a service takes."""
    some: list[bytes] = []
    size = 0
    for piece in pieces:
        if some and (len(some) >= MOST_SENT or size + len(piece) > MOST_BYTES):
            yield b'{"items":[%b]}' % b",".join(some)
            some, size = [], 0
        some.append(piece)
        size += len(piece)
    if some:
        yield b'{"items":[%b]}' % b",".join(some)


def _owner(tenant: str | None) -> tuple[str, Whose]:
    """How a request names whose entries are meant."""
    if tenant is None:
        return DEFAULT_TENANT, "everyone"
    return (DEFAULT_TENANT, "service") if tenant == ALL_TENANTS else (tenant, "tenant")
