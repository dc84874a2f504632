"""The PostgreSQL store: hot statements in SQL, everything else by the rules themselves (see rules.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar

import msgspec

from penstock.core.clock import Clock
from penstock.core.commands import (
    Ack,
    Beat,
    CancelJob,
    Changed,
    ConfigureQueue,
    Enqueued,
    Heartbeat,
    Leased,
    LeaseJobs,
    RedriveJob,
    Settle,
    Settled,
)
from penstock.core.errors import PenstockError
from penstock.core.flow import Flow
from penstock.core.job import Job, NewJob, Status
from penstock.core.machine import each
from penstock.core.settings import QueueSettings
from penstock.stores.memory import random_tokens
from penstock.stores.postgres import days, in_transaction, rows
from penstock.stores.postgres.connected import MOST_TRIES
from penstock.stores.postgres.rules import MARGIN, Session, sql
from penstock.stores.postgres.timely import Timely

Answer = TypeVar("Answer")
Answers = list[Any]


_EVER = datetime(1970, 1, 1, tzinfo=UTC)


class PostgresStore(Timely):
    """Jobs in PostgreSQL 14 or newer. `clock` is for tests; without it the database's own clock decides."""

    def __init__(self, url: str, clock: Clock | None = None, **options: Any) -> None:
        super().__init__(url, clock, **options)
        self._tokens = random_tokens()
        self._lanes: set[tuple[str, str, int]] = set()
        self._noticed: dict[str, datetime] = {}
        self._floors: dict[tuple[str, str, int], datetime] = {}
        self._governed: set[tuple[str, str]] = set()
        self._window = days.Window()

    # ── Producing ─────────────────────────────────────────────────────────────────────────────────

    async def enqueue(self, tenant: str, jobs: Sequence[NewJob]) -> list[Enqueued | PenstockError]:
        if not all(map(rows.is_plain, jobs)) or len({job.id for job in jobs}) < len(jobs):
            return await self._enqueue_by_rules(tenant, jobs)
        made = await self._enqueue_plain(tenant, jobs)
        if len(made) == len(jobs):
            return [Enqueued(job.id) for job in jobs]
        rest = await self._enqueue_by_rules(tenant, [job for job in jobs if job.id not in made])
        answers = iter(rest)
        return [Enqueued(job.id) if job.id in made else next(answers) for job in jobs]

    async def _enqueue_plain(self, tenant: str, jobs: Sequence[NewJob]) -> set[str]:
        unknown = {(tenant, job.queue, job.priority) for job in jobs} - self._lanes
        if unknown:

            async def know(connection: Any) -> None:
                session = Session(connection, tenant, await self._now(connection))
                await session.know_queues({(queue, priority) for _, queue, priority in unknown})

            await self._reach(know)
            self._lanes |= unknown
        # In one statement, whatever the number: two at a time are a tenth faster, but then ids do not come in order, index pages
        # split in the middle, and a job costs 50 bytes more of WAL.
        made = await self._fetch(
            sql("enqueue"), tenant, self._given_now(),
            [job.id for job in jobs], [job.queue for job in jobs], [job.type for job in jobs],
            [job.payload for job in jobs], [job.priority for job in jobs], [job.key for job in jobs],
            [job.run_at for job in jobs], [job.delay for job in jobs], [rows.to_options(job) for job in jobs],
        )  # fmt: skip
        self.wakeups.wake(tenant, {job.queue for job in jobs})
        return {str(row["id"]) for row in made}

    async def _enqueue_by_rules(self, tenant: str, jobs: Sequence[NewJob]) -> Answers:
        async def run(session: Session) -> Answers:
            await session.load_keys(jobs)
            await session.lock_orders(jobs)
            holders = session.rules.ledger.keys
            ids = {job.id for job in jobs} | {parent for job in jobs for parent in job.parents}
            await session.load([*ids, *(holder for job in jobs if (holder := holders.holder(job)))])
            await session.load_settings({job.queue for job in jobs})
            session.rules.advance(session.now)
            return each(session.rules.enqueue, jobs, session.now)

        return await self._by_rules(tenant, run)

    async def enqueue_in(
        self, connection: Any, tenant: str, jobs: Sequence[NewJob]
    ) -> list[Enqueued | PenstockError]:
        """Enqueue as part of the transaction that the caller's connection is in; see in_transaction.py."""
        if not all(map(rows.is_plain, jobs)):
            await self._catch_up(tenant)
        return await in_transaction.enqueue(connection, tenant, jobs, self._given_now())

    def enqueue_in_now(
        self, connection: Any, tenant: str, jobs: Sequence[NewJob]
    ) -> list[Enqueued | PenstockError]:
        return in_transaction.enqueue_now(connection, tenant, jobs, self._given_now())

    # ── Working ───────────────────────────────────────────────────────────────────────────────────

    async def lease(self, tenant: str, requests: Sequence[LeaseJobs]) -> list[list[Leased] | PenstockError]:
        return [await self._lease(tenant, request) for request in requests]

    async def _lease(self, tenant: str, request: LeaseJobs) -> list[Leased]:
        for _ in range(MOST_TRIES):
            found = await self._fetch(
                sql("lease"), tenant, request.queue, self._given_now(), request.limit,
                list(islice(self._tokens, request.limit)), request.worker, request.seconds, self._noticed_until(tenant),
                *self._window.of((tenant, request.queue)),
            )  # fmt: skip
            if found and found[0]["overdue"]:
                await self._catch_up(tenant)
                continue
            if found and found[0]["governed"]:
                self._governed.add((tenant, request.queue))
                return await self._by_rules(tenant, lambda session: self._lease_governed(session, request))
            jobs = await self._leased_jobs(tenant, request, found)
            jobs.sort(key=lambda job: (-job.priority, job.run_at, job.id))
            if found:
                self._noticed[tenant] = found[0]["now"] - MARGIN
            await self._raise_floor(tenant, request.queue, jobs)
            if any(job.asked.parents for job in jobs):
                return await self._with_parents(tenant, jobs)
            return [Leased(job, job.lease.token) for job in jobs if job.lease is not None]
        return []

    async def _leased_jobs(self, tenant: str, request: LeaseJobs, found: Sequence[Any]) -> list[Job]:
        queue, worker = request.queue, request.worker
        leased = [row for row in found if row["id"] is not None]
        outside = [row["id"] for row in leased if row["outside"]]
        if leased:
            self._window.saw((tenant, queue), leased[0]["now"], [row["id"] for row in leased], bool(outside))
        if not outside:
            return [rows.leased_job(row, tenant, queue, worker) for row in leased]
        asked = {row["id"]: row for row in await self._fetch(sql("asked"), tenant, outside)}
        return [rows.leased_job({**row, **asked.get(row["id"], {})}, tenant, queue, worker) for row in leased]

    def _noticed_until(self, tenant: str) -> datetime:
        """Up to when every lease that ran out is known to have been noticed, by us or by others."""
        noticed, now = self._noticed.get(tenant, _EVER), self._given_now()
        return noticed if now is None or noticed < now else _EVER

    async def _raise_floor(self, tenant: str, queue: str, leased: Sequence[Job]) -> None:
        """Let later claims start near where this one ended, at most once a second and lane."""
        if not leased:
            return
        last = leased[-1]
        lane, floor = (tenant, queue, last.priority), last.run_at - MARGIN
        if floor - self._floors.get(lane, _EVER) > MARGIN:
            self._floors[lane] = floor
            await self._reach(lambda connection: self._raise_floor_to(connection, lane, floor))

    @staticmethod
    async def _raise_floor_to(connection: Any, lane: tuple[str, str, int], floor: datetime) -> None:
        async with connection.transaction():
            # Held before the look below: who is about to put a job behind the floor holds it too (penstock.hold).
            held = await connection.fetchval(
                "SELECT true FROM penstock.lane WHERE tenant = $1 AND queue = $2 AND priority = $3 FOR UPDATE SKIP LOCKED",
                *lane,
            )
            if held:
                await connection.execute(sql("raise"), *lane, floor)

    async def _with_parents(self, tenant: str, jobs: Sequence[Job]) -> list[Leased]:
        ids = sorted({parent for job in jobs for parent in job.asked.parents})
        found = [rows.to_job(row) for row in await self._fetch(sql("load"), tenant, ids)]
        parents = Flow({job.id: job for job in found}).parents
        return [Leased(job, job.lease.token, parents(job.asked)) for job in jobs if job.lease is not None]

    async def _lease_governed(self, session: Session, request: LeaseJobs) -> list[Leased]:
        tenant, queue = session.tenant, request.queue
        await session.load_settings([queue], lock=True)  # one caller at a time from here on
        lane = session.rules.ledger.lane(queue)
        settings = lane.settings
        full_until, turn, keys = await session.load_use(queue, goes_on=self._clock is None)
        now = session.now
        lane.resume(full_until, turn, keys, now)
        if lane.is_barred(now):
            return []
        barred = [key for key in keys if key is not None and lane.is_key_barred(key, now)]
        candidates = await session.connection.fetch(
            sql("candidates"), tenant, queue, now, request.limit, barred, settings.fair
        )
        ids = await session.still_open([str(row["id"]) for row in candidates])
        await session.load_candidates(ids)
        leased = session.rules.lease(request, self._tokens, now)
        await session.save_use(queue, keys)
        return leased

    async def heartbeat(self, tenant: str, beats: Sequence[Heartbeat]) -> list[Beat | PenstockError]:
        answers: list[Beat | PenstockError] = []
        for batch in _distinct(beats):
            found = await self._fetch(
                sql("heartbeat"), tenant, self._given_now(), [beat.job_id for beat in batch],
                [beat.token for beat in batch], [beat.seconds for beat in batch], [beat.progress for beat in batch],
            )  # fmt: skip
            kept = {str(row["id"]): Beat(row["until"], row["cancel_requested"]) for row in found}
            # A lease that is missing may have been written anew by a cancel while we waited for it: the rules know.
            rest = [beat for beat in batch if beat.job_id not in kept]
            others = iter(await self._heartbeat_by_rules(tenant, rest) if rest else [])
            answers += [kept.get(beat.job_id) or next(others) for beat in batch]
        return answers

    async def _heartbeat_by_rules(self, tenant: str, beats: Sequence[Heartbeat]) -> Answers:
        return await self._on_jobs(
            tenant, [one.job_id for one in beats], lambda rules: rules.heartbeat, beats
        )

    async def settle(self, tenant: str, settles: Sequence[Settle]) -> list[Settled | PenstockError]:
        acked: set[str] = set()
        if all(type(settle) is Ack for settle in settles) and len({one.job_id for one in settles}) == len(
            settles
        ):
            acked = await self._ack(tenant, settles)  # type: ignore[arg-type]
        rest = [settle for settle in settles if settle.job_id not in acked]
        answers = iter(await self._settle_by_rules(tenant, rest) if rest else [])
        return [
            Settled(settle.job_id, Status.SUCCEEDED, None) if settle.job_id in acked else next(answers)
            for settle in settles
        ]

    async def _ack(self, tenant: str, acks: Sequence[Ack]) -> set[str]:
        found = await self._fetch(
            sql("ack"), tenant, self._given_now(), [ack.job_id for ack in acks], [ack.token for ack in acks],
            [ack.result for ack in acks], [ack.logs for ack in acks],
        )  # fmt: skip
        # Where there are limits, whoever waits for a free place may take this one.
        self.wakeups.wake(tenant, {row["queue"] for row in found if (tenant, row["queue"]) in self._governed})
        return {str(row["id"]) for row in found}

    async def _settle_by_rules(self, tenant: str, settles: Sequence[Settle]) -> Answers:
        return await self._on_jobs(
            tenant, [one.job_id for one in settles], lambda rules: rules.settle, settles
        )

    # ── Operating ─────────────────────────────────────────────────────────────────────────────────

    async def cancel(self, tenant: str, commands: Sequence[CancelJob]) -> list[Changed | PenstockError]:
        return await self._on_jobs(
            tenant, [one.job_id for one in commands], lambda rules: rules.cancel, commands
        )

    async def redrive(self, tenant: str, commands: Sequence[RedriveJob]) -> list[Changed | PenstockError]:
        async def run(session: Session) -> Answers:
            await session.load([one.job_id for one in commands])
            await session.load_keys([job.asked for job in session.rules.ledger.jobs.values()])
            session.rules.advance(session.now)
            return each(session.rules.redrive, commands, session.now)

        return await self._by_rules(tenant, run, repeatable=False)

    async def configure(
        self, tenant: str, commands: Sequence[ConfigureQueue]
    ) -> list[QueueSettings | PenstockError]:
        async def run(session: Session) -> Answers:
            queues = sorted({command.queue for command in commands})
            await session.know_queues({(queue, 0) for queue in queues})
            await session.load_settings(queues, lock=True)
            answers = []
            for command in commands:
                before = session.rules.ledger.lane(command.queue).settings
                [answer] = each(session.rules.configure, [command], session.now)
                answers.append(answer)
                if isinstance(answer, QueueSettings):
                    await self._save_settings(session, command.queue, before, answer)
            return answers

        return await self._by_rules(tenant, run)

    async def _save_settings(
        self, session: Session, queue: str, before: QueueSettings, after: QueueSettings
    ) -> None:
        limits = (after.max_concurrency, after.max_concurrency_per_key, after.rate, after.rate_per_key)
        await session.connection.execute(
            """UPDATE penstock.queue SET settings = $3, governed = $4, paused = $5, seconds = $6,
                      full_until = CASE WHEN $7 THEN NULL ELSE full_until END
               WHERE tenant = $1 AND name = $2""",
            session.tenant, queue, msgspec.json.encode(after).decode(),
            after.fair or any(limit is not None for limit in limits), after.paused, after.lease_seconds,
            before.rate != after.rate,
        )  # fmt: skip
        if before.rate_per_key != after.rate_per_key:
            await session.connection.execute(
                "UPDATE penstock.key_use SET full_until = NULL WHERE tenant = $1 AND queue = $2",
                session.tenant,
                queue,
            )

    # ── Inside ────────────────────────────────────────────────────────────────────────────────────

    async def _on_jobs(
        self,
        tenant: str,
        ids: Sequence[str],
        verb: Callable[[Any], Callable[[Any, datetime], Any]],
        commands: Sequence[Any],
    ) -> Answers:
        async def run(session: Session) -> Answers:
            await session.load(ids)
            session.rules.advance(session.now)
            return each(verb(session.rules), commands, session.now)

        return await self._by_rules(tenant, run)


def _distinct(beats: Sequence[Heartbeat]) -> list[list[Heartbeat]]:
    """Beats in their order, cut so that no job comes twice in one statement."""
    batches: list[list[Heartbeat]] = []
    seen: set[str] = set()
    for beat in beats:
        if not batches or beat.job_id in seen:
            batches.append([])
            seen = set()
        batches[-1].append(beat)
        seen.add(beat.job_id)
    return batches
