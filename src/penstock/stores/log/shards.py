"""Several logs as one store, so that queues do not wait for each other: what must happen together shares a log.

A queue's jobs are in the log that its tenant and the part of its name before the first `/` lead to: `orders/import` and
`orders/mail` share one. Whatever is not about one queue (schedules, entries, offices, allowances, insights) is in the
first. Lease tokens begin with the number of their log, so that heartbeats and settles go straight there; an id alone is
looked for in all of them, first in those that are open.

What holds in one log only, because nobody decides for two at once: ids, idempotency keys and unique keys are told apart
among the queues of a log, and a job's parents must be in its own (CrossShard otherwise).

A schedule is in the first log, and its job perhaps in another, so a fire is three steps: see that the schedule stands
where the caller saw it; deliver the jobs; move the schedule on, under the guard. Whoever is killed in between leaves a
schedule that is still due, and the next one does the same again. Delivered twice, a fire time has one job all the same:
the log that has the job remembers the latest time it made one for, for ever, so that neither a repeat nor somebody who
slept for a week makes a second one, even when the first has left. What is lost is only this: a schedule that is changed
between the first step and the second fires once more as it was, as if the change had come a moment later.

A lake keeps its promise in every log, since each compacts its own history (`penstock.lake.keeping`). Which promises were
lifted the first log says for all: the sweep has the others follow, when only the first was told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any, TypeVar

from msgspec.structs import replace

from penstock.core import promises
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
from penstock.core.errors import (
    InvalidInput,
    JobNotFound,
    ParentNotFound,
    PenstockError,
    ScheduleNotFound,
    StoreUnavailable,
)
from penstock.core.job import Job, JobId, NewJob
from penstock.core.promises import Promise
from penstock.core.registry import (
    ALL_TENANTS,
    AuditPage,
    Entry,
    Events,
    Insight,
    PutEntry,
    Spend,
    Spent,
)
from penstock.core.schedule import Schedule, fire_job
from penstock.core.settings import QueueSettings
from penstock.stores.log import shard_pages
from penstock.stores.log.backings import Backing
from penstock.stores.log.compacting import Tended
from penstock.stores.log.cost import Usage, measured
from penstock.stores.log.errors import CrossShard, OutcomeUnknown
from penstock.stores.log.layout import (
    MARK_BYTES,
    Format,
    laid_out,
    shard_name,
    shard_of,
    shard_of_token,
)
from penstock.stores.log.options import MOST_SHARDS
from penstock.stores.log.shard_wakeups import ShardWakeups
from penstock.stores.log.store import LogStore
from penstock.stores.wakeups.polling import LONGEST_SECONDS

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class ShardedLogStore:
    """The logs of one place behind the port. Each is opened when it is first needed."""

    is_held_whole = True

    def __init__(
        self,
        backing: Backing,
        shards: int | None = None,
        *,
        cadence: float = 1.0,
        tend: Callable[[str], Tended] | None = None,
        window: float = 0.0,
        poll: float = LONGEST_SECONDS,
    ) -> None:
        """`tend` says who compacts the log of a name; without it nobody does. For the rest see `options`."""
        if shards is not None and not 1 <= shards <= MOST_SHARDS:
            raise InvalidInput("shards", f"be 1 to {MOST_SHARDS}", shards)
        self.cadence, self.window, self.poll = cadence, window, poll
        self.wakeups = ShardWakeups(self)
        self._backing = backing
        self._asked = shards
        self._tend = tend
        self._logs: Sequence[LogStore] | None = None
        self._opening = asyncio.Lock()
        self._feed = shard_pages.Feed("")

    @property
    def requests(self) -> Mapping[str, int]:
        """How often the storage was asked since this was opened, by kind."""
        return self._backing.requests

    async def usage(self) -> Usage:
        """What the newest entries of the busiest log were about."""
        tapes = [self._backing.tape(shard_name(number)) for number in range(len(await self.logs()))]
        found = [await measured(self._backing.name, tape, self.poll) for tape in tapes]
        return max(found, key=lambda one: (one.jobs, one.entries))

    @property
    def known_logs(self) -> Sequence[LogStore]:
        """The logs, opened or not; none before the first call."""
        return self._logs or ()

    async def logs(self) -> Sequence[LogStore]:
        if self._logs is None:
            async with self._opening:
                if self._logs is None:
                    found = await self._laid_out()
                    self._feed = shard_pages.Feed(found.id[:12])
                    self._logs = [self._log(number) for number in range(found.shards)]
        return self._logs

    def shard(self, tenant: str, queue: str) -> int:
        """The log of a queue. Only once the logs are known."""
        return shard_of(tenant, queue, len(self.known_logs))

    async def _laid_out(self) -> Format:
        try:
            return await laid_out(self._backing, self._asked)
        except PenstockError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            raise StoreUnavailable(self._backing.name, reason) from error

    def _log(self, number: int) -> LogStore:
        return LogStore.at(
            self._backing,
            shard_name(number),
            cadence=self.cadence,
            compactor=None if self._tend is None else self._tend(shard_name(number)),
            mark=number.to_bytes(MARK_BYTES, "big"),
            switchboard=self.wakeups.switchboard,
            window=self.window,
            poll=self.poll,
        )

    async def _first(self) -> LogStore:
        return (await self.logs())[0]

    async def close(self) -> None:
        async with AsyncExitStack() as stack:  # whatever goes wrong with one of them, the next is closed too
            stack.push_async_callback(self._backing.close)
            stack.push_async_callback(self._close_logs)
            await self.wakeups.close()

    async def _close_logs(self) -> None:
        """All at once, because each may wait for its compactor."""
        logs, self._logs = self._logs or (), None
        closed = await asyncio.gather(*(log.close() for log in logs), return_exceptions=True)
        for error in closed:
            if isinstance(error, BaseException):
                raise error

    # ── To one log each ───────────────────────────────────────────────────────────────────────────

    async def _scatter(
        self,
        items: Sequence[Item],
        where: Callable[[Item], int],
        call: Callable[[LogStore, Sequence[Item]], Awaitable[list[Answer | PenstockError]]],
    ) -> list[Answer | PenstockError]:
        """Ask each log about its own. One that is away does not take from the others' answers.

        If all are, one error is raised for all; and if anything may have happened anywhere, that is what it says.
        """
        logs = await self.logs()
        if len(logs) == 1:
            return await call(logs[0], items)
        places: dict[int, list[int]] = {}
        for place, item in enumerate(items):
            places.setdefault(where(item), []).append(place)
        parts = await asyncio.gather(
            *(call(logs[log], [items[place] for place in of]) for log, of in places.items()),
            return_exceptions=True,
        )
        answers: dict[int, Answer | PenstockError] = {}
        failed = [part for part in parts if isinstance(part, BaseException)]
        failed.sort(key=lambda error: not isinstance(error, OutcomeUnknown))
        for of, part in zip(places.values(), parts, strict=True):
            if isinstance(part, BaseException):
                if not isinstance(part, PenstockError):
                    raise part
                if len(failed) == len(parts):
                    raise failed[0]
                answers.update(dict.fromkeys(of, part))
            else:
                answers.update(zip(of, part, strict=True))
        return [answers[place] for place in range(len(items))]

    async def _of_queues(
        self,
        tenant: str,
        items: Sequence[Item],
        queue: Callable[[Item], str],
        call: Callable[[LogStore, Sequence[Item]], Awaitable[list[Answer | PenstockError]]],
    ) -> list[Answer | PenstockError]:
        return await self._scatter(items, lambda item: self.shard(tenant, queue(item)), call)

    async def enqueue(self, tenant: str, jobs: Sequence[NewJob]) -> list[Enqueued | PenstockError]:
        answers = await self._of_queues(
            tenant, jobs, lambda job: job.queue, lambda log, part: log.enqueue(tenant, part)
        )
        if len(self.known_logs) > 1:
            for place, answer in enumerate(answers):
                if isinstance(answer, ParentNotFound):
                    answers[place] = await self._why_not_found(tenant, jobs[place], answer)
        return answers

    async def _why_not_found(self, tenant: str, job: NewJob, error: ParentNotFound) -> PenstockError:
        parents = await self.get(tenant, job.parents)
        for parent in parents:
            if isinstance(parent, Job) and self.shard(tenant, parent.queue) != self.shard(tenant, job.queue):
                return CrossShard(job.id, job.queue, parent.id, parent.queue)
        return error

    async def lease(self, tenant: str, requests: Sequence[LeaseJobs]) -> list[list[Leased] | PenstockError]:
        return await self._of_queues(
            tenant, requests, lambda one: one.queue, lambda log, part: log.lease(tenant, part)
        )

    async def configure(
        self, tenant: str, commands: Sequence[ConfigureQueue]
    ) -> list[QueueSettings | PenstockError]:
        return await self._of_queues(
            tenant, commands, lambda one: one.queue, lambda log, part: log.configure(tenant, part)
        )

    async def next_at(self, tenant: str, queues: Sequence[str]) -> datetime | None:
        logs = await self.logs()
        by_log: dict[int, list[str]] = {}
        for queue in queues:
            by_log.setdefault(self.shard(tenant, queue), []).append(queue)
        found = await asyncio.gather(*(logs[log].next_at(tenant, some) for log, some in by_log.items()))
        return min((at for at in found if at is not None), default=None)

    # ── By token or id ────────────────────────────────────────────────────────────────────────────

    async def heartbeat(self, tenant: str, beats: Sequence[Heartbeat]) -> list[Beat | PenstockError]:
        return await self._by_token(tenant, beats, lambda log, part: log.heartbeat(tenant, part))

    async def settle(self, tenant: str, settles: Sequence[Settle]) -> list[Settled | PenstockError]:
        return await self._by_token(tenant, settles, lambda log, part: log.settle(tenant, part))

    async def _by_token(
        self,
        tenant: str,
        items: Sequence[Any],
        call: Callable[[LogStore, Sequence[Any]], Awaitable[list[Answer | PenstockError]]],
    ) -> list[Answer | PenstockError]:
        many = len(await self.logs())
        answers = await self._scatter(items, lambda item: shard_of_token(item.token, many), call)
        astray = [place for place, answer in enumerate(answers) if isinstance(answer, JobNotFound)]
        if many > 1 and astray:  # a token that was made up: what is wrong with it, the job's own log knows
            again = await self._by_id(tenant, [items[place] for place in astray], call)
            for place, answer in zip(astray, again, strict=True):
                answers[place] = answer
        return answers

    async def cancel(self, tenant: str, commands: Sequence[CancelJob]) -> list[Changed | PenstockError]:
        return await self._by_id(tenant, commands, lambda log, part: log.cancel(tenant, part))

    async def redrive(self, tenant: str, commands: Sequence[RedriveJob]) -> list[Changed | PenstockError]:
        return await self._by_id(tenant, commands, lambda log, part: log.redrive(tenant, part))

    async def _by_id(
        self,
        tenant: str,
        items: Sequence[Any],
        call: Callable[[LogStore, Sequence[Any]], Awaitable[list[Answer | PenstockError]]],
    ) -> list[Answer | PenstockError]:
        many, found = len(await self.logs()), {}
        if many > 1:
            jobs = await self.get(tenant, [item.job_id for item in items])
            found = {job.id: self.shard(tenant, job.queue) for job in jobs if isinstance(job, Job)}
        return await self._scatter(items, lambda item: found.get(item.job_id, 0), call)

    async def get(self, tenant: str, ids: Sequence[JobId]) -> list[Job | PenstockError]:
        return await self._look_for(ids, lambda log, some: log.get(tenant, some))

    async def history(
        self, tenant: str, subjects: Sequence[tuple[str, str]]
    ) -> list[History | PenstockError]:
        jobs = [one for one in subjects if one[0] == "job"]
        trails = dict(
            zip(jobs, await self._look_for(jobs, lambda log, some: log.history(tenant, some)), strict=True)
        )
        rest = [one for one in subjects if one[0] != "job"]
        trails.update(
            zip(
                rest,
                await self._scatter(
                    rest,
                    lambda one: self.shard(tenant, one[1]) if one[0] == "queue" else 0,
                    lambda log, part: log.history(tenant, part),
                ),
                strict=True,
            )
        )
        return [trails[one] for one in subjects]

    async def _look_for(
        self,
        items: Sequence[Item],
        call: Callable[[LogStore, Sequence[Item]], Awaitable[list[Answer | PenstockError]]],
    ) -> list[Answer | PenstockError]:
        """Ask the logs that are open, and the others only for what is in none of these."""
        logs = await self.logs()
        if len(logs) == 1:
            return await call(logs[0], items)
        answers: list[Answer | PenstockError | None] = [None] * len(items)
        for some in ([log for log in logs if log.is_open], [log for log in logs if not log.is_open]):
            missing = [
                n for n, answer in enumerate(answers) if answer is None or isinstance(answer, JobNotFound)
            ]
            if not missing or not some:
                continue
            found = await asyncio.gather(*(call(log, [items[n] for n in missing]) for log in some))
            for place, n in enumerate(missing):
                told = [part[place] for part in found]
                answers[n] = next((one for one in told if not isinstance(one, JobNotFound)), told[0])
        return [answer for answer in answers if answer is not None]

    # ── In all of them ────────────────────────────────────────────────────────────────────────────

    async def find(self, tenant: str, filter: Filter, *, after: JobId | None, limit: int) -> Page:
        logs = await self.logs()
        if filter.queue is not None:
            logs = [logs[self.shard(tenant, filter.queue)]]
        pages = await asyncio.gather(*(log.find(tenant, filter, after=after, limit=limit) for log in logs))
        return pages[0] if len(pages) == 1 else shard_pages.merged(pages, limit)

    async def queues(self, tenant: str) -> list[QueueView]:
        found = await asyncio.gather(*(log.queues(tenant) for log in await self.logs()))
        return sorted((view for views in found for view in views), key=lambda view: view.name)

    async def tenants(self) -> list[str]:
        found = await asyncio.gather(*(log.tenants() for log in await self.logs()))
        return sorted({name for names in found for name in names})

    async def sweep(self, *, limit: int, exported_until: datetime | None = None) -> Swept:
        # Each log keeps to the promises that it knows; what the first knows holds in all of them.
        promised = promises.read(await self.entries(ALL_TENANTS, promises.LAKE))
        exported_until = promises.exported_until(promised, exported_until)
        swept = Swept()
        for log in await self.logs():
            more = await log.sweep(limit=limit - swept.pruned, exported_until=exported_until)
            swept = Swept(swept.lost + more.lost, swept.expired + more.expired, swept.pruned + more.pruned)
            await self._follow_the_first(log, promised)
        return swept

    async def _follow_the_first(self, log: LogStore, promised: Mapping[str, Promise]) -> None:
        """Have a log lift what was lifted in the first, and hold what is held there again; nothing else of a promise."""
        for entry in await log.known_entries(ALL_TENANTS, promises.LAKE):
            here, first = promises.decode(entry.body), promised.get(entry.name)
            if first is not None and first.lifted != here.lifted:
                body = promises.encode(replace(here, lifted=first.lifted))
                # Whoever changes it meanwhile knows better: the next sweep looks again.
                await log.put_entries(ALL_TENANTS, [PutEntry(promises.LAKE, entry.name, body, entry.version)])

    async def audit(self, tenant: str, *, before: str | None = None, limit: int) -> AuditPage:
        return await shard_pages.audit(await self.logs(), tenant, before, limit)

    async def events(self, tenant: str, *, after: str | None = None, limit: int) -> Events:
        logs = await self.logs()
        if len(logs) == 1:
            return await logs[0].events(tenant, after=after, limit=limit)
        return await self._feed.events(logs, tenant, after, limit)

    # ── In the first ──────────────────────────────────────────────────────────────────────────────

    async def put_schedules(
        self, tenant: str, commands: Sequence[PutSchedule]
    ) -> list[Schedule | PenstockError]:
        return await (await self._first()).put_schedules(tenant, commands)

    async def drop_schedules(
        self, tenant: str, commands: Sequence[DropSchedule]
    ) -> list[Schedule | PenstockError]:
        return await (await self._first()).drop_schedules(tenant, commands)

    async def fire(self, tenant: str, fires: Sequence[Fire]) -> list[Fired | PenstockError]:
        logs = await self.logs()
        if len(logs) == 1:
            return await logs[0].fire(tenant, fires)
        schedules = {one.name: one for one in await logs[0].schedules(tenant)}
        return [await self._fire(tenant, fire, schedules.get(fire.name)) for fire in fires]

    async def _fire(self, tenant: str, fire: Fire, schedule: Schedule | None) -> Fired | PenstockError:
        if schedule is None:
            return ScheduleNotFound(fire.name)
        if schedule.next_fire_at != fire.due_at:
            return Fired(fire.name)
        logs = await self.logs()
        log = logs[self.shard(tenant, schedule.job.queue)]
        jobs = await log.deliver(tenant, [fire_job(tenant, schedule, at) for at in sorted(fire.at)])
        [moved] = await logs[0].pass_on(tenant, [fire])
        if isinstance(moved, PenstockError):
            return moved
        made = tuple(job for job in jobs if isinstance(job, Enqueued))
        refused = next((job for job in jobs if isinstance(job, PenstockError)), None)
        return refused or Fired(fire.name, made if moved else ())

    async def due_schedules(self, tenant: str | None = None) -> Due:
        return await (await self._first()).due_schedules(tenant)

    async def schedules(self, tenant: str) -> list[Schedule]:
        return await (await self._first()).schedules(tenant)

    async def now(self) -> datetime:
        return await (await self._first()).now()

    async def lead(self, office: str, holder: str, seconds: float) -> bool:
        return await (await self._first()).lead(office, holder, seconds)

    async def put_entries(
        self, tenant: str, commands: Sequence[PutEntry]
    ) -> list[Entry | PenstockError | None]:
        return await (await self._first()).put_entries(tenant, commands)

    async def entries(self, tenant: str | None, kind: str, names: Sequence[str] | None = None) -> list[Entry]:
        return await (await self._first()).entries(tenant, kind, names)

    async def spend(self, tenant: str, spends: Sequence[Spend]) -> list[Spent]:
        return await (await self._first()).spend(tenant, spends)

    async def put_insights(self, insights: Sequence[Insight]) -> None:
        await (await self._first()).put_insights(insights)

    async def insights(self, tenant: str, names: Sequence[str]) -> list[Insight]:
        return await (await self._first()).insights(tenant, names)
