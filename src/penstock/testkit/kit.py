"""`TestKit`: an app on a store in memory with a clock that stands still, its jobs looked at and run by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import Any, Self

from penstock.app.declared import apply_queue_settings
from penstock.app.job_type import JobType
from penstock.app.penstock import Penstock
from penstock.core.commands import Fired, Leased
from penstock.core.errors import JobFailed
from penstock.core.job import Job, NewJob, Status
from penstock.queue import Queue, Span
from penstock.testing import START, FakeClock, Ran, attempt_until_idle
from penstock.testkit.attempts import Runner, at_once, attempt, in_loop, in_this_thread
from penstock.testkit.showing import Wanted, listed, shown
from penstock.testkit.store import KitStore
from penstock.worker.handlers import Handler, make_handler

MOST = 10_000
MOST_INLINE = 1_000


class TestKit:
    """What the fixture `penstock` gives to a test; without pytest, `with TestKit() as kit: kit.use(app)`.

    Jobs wait in memory until the test runs them with `drain`, or run where they are enqueued inside `inline`. Time stands
    still, from noon of 1 January 2026 on, until `clock` is moved.
    """

    __test__ = False  # pytest takes every class named Test… for tests

    def __init__(self, start: datetime = START) -> None:
        self.clock = FakeClock(start)
        self._store = KitStore(self.clock, self._here)
        self._apps: dict[Penstock, Queue] = {}
        self._stand_ins: dict[str, Handler] = {}
        self._put: set[tuple[str, str]] = set()
        self._until_close = ExitStack()

    # ── Apps ──────────────────────────────────────────────────────────────────────────────────────

    def use(self, app: Penstock) -> Penstock:
        """Put an app on the store of this kit, until the kit is closed. Several apps share it, each with its own tenant."""
        if app not in self._apps:
            queue = Queue(self._store, tenant=app.tenant, actor=app.name, entropy=lambda: 0.5)
            self._until_close.enter_context(app.using(queue, here=True))
            if app.portal.own_loop is None:  # then whoever starts it is the test
                self._until_close.callback(app.portal.close)
            self._apps[app] = queue
            self._put_schedules()
        return app

    def stand_in(self, type: JobType | str, function: Callable[..., Any]) -> None:
        """Run jobs of a type with another function: one that another program runs, or one whose real work is too much for a test."""
        name = _name(type)
        self._stand_ins[name] = make_handler(name, function)

    def close(self) -> None:
        """Give every app its own store back."""
        self._until_close.close()
        self._apps.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── Looking ───────────────────────────────────────────────────────────────────────────────────

    def enqueued(
        self,
        type: JobType | str | None = None,
        *,
        queue: str | None = None,
        status: Status | str | None = None,
    ) -> list[Job]:
        """The jobs that were enqueued, the oldest first, whatever became of them."""
        name = None if type is None else _name(type)
        return at_once(self._found(type=name, queue=queue, status=status))

    async def _found(self, **conditions: Any) -> list[Job]:
        jobs = [job for door in self._doors() async for job in door.find_all(**conditions)]
        return sorted(jobs, key=lambda job: (job.created_at, job.id))

    def assert_enqueued(
        self,
        type: JobType | str,
        /,
        *,
        queue: str | None = None,
        delay: Span | None = None,
        count: int | None = None,
        arguments: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> list[Job]:
        """Assert that such a job was enqueued: at least one, or `count`; returns them, the oldest first.

        Arguments that are not named may be anything. Those called `queue`, `delay` or `count` go into `arguments`.
        """
        __tracebackhide__ = True
        found, wanted, jobs = self._search(type, {**(arguments or {}), **named}, queue, delay)
        if not found if count is None else len(found) != count:
            times = "at least 1" if count is None else str(count)
            raise AssertionError(
                f"expected {times} × {wanted}, found {len(found)}; {listed(jobs, wanted, self.clock.now())}"
            )
        return found

    def assert_not_enqueued(
        self,
        type: JobType | str,
        /,
        *,
        queue: str | None = None,
        delay: Span | None = None,
        arguments: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> None:
        """Assert that no such job was enqueued."""
        __tracebackhide__ = True
        found, wanted, _ = self._search(type, {**(arguments or {}), **named}, queue, delay)
        if found:
            lines = [f"  {shown(job, self.clock.now())}" for job in found]
            raise AssertionError("\n".join([f"expected no {wanted}, found {len(found)}:", *lines]))

    def _search(
        self, type: JobType | str, arguments: Mapping[str, Any], queue: str | None, delay: Span | None
    ) -> tuple[list[Job], Wanted, list[Job]]:
        name = _name(type)
        handlers = (app.handlers[name] for app in self._apps if name in app.handlers)
        handler = type.handler if isinstance(type, JobType) else next(handlers, None)
        wanted = Wanted(name, handler, arguments, queue, delay)
        jobs = self.enqueued()
        return [job for job in jobs if wanted.matches(job)], wanted, jobs

    # ── Running ───────────────────────────────────────────────────────────────────────────────────

    async def drain(self, *, advance: bool = False, most: int = MOST) -> list[Ran]:
        """Run every job that is due, and what follows from it; returns the attempts, with what each job became.

        Handlers run as in a worker, one after the other; those for processes run in a thread. An attempt that fails does not
        raise: it is logged, and its `error` is there to be asked for. Declared limits and rates hold. With `advance`, the
        clock moves on to each delay, retry and snooze until nothing is left; more than `most` attempts raise.
        """
        return await self._drain(in_loop, advance, most)

    @property
    def sync(self) -> SyncKit:
        """The same for tests that are not async: `kit.sync.drain()`."""
        return SyncKit(self)

    async def _drain(self, run: Runner, advance: bool, most: int) -> list[Ran]:
        ran: list[Ran] = []
        while True:
            before = len(ran)
            for app, door in self._apps.items():
                await apply_queue_settings(door, app.queue_settings, app.name)
            for door in self._doors():
                ran += await attempt_until_idle(
                    door, self._attempts(door, run), clock=self.clock if advance else None, most=most
                )
            if (
                len(ran) == before or len(self._doors()) == 1
            ):  # else: one tenant's jobs may have put in another's
                return ran

    def _attempts(self, door: Queue, run: Runner) -> Any:
        async def run_one(leased: Leased) -> Ran:
            handlers = self._handlers(door.tenant)
            handler = handlers.get(leased.job.type)
            if handler is None:
                raise AssertionError(
                    f"no handler for {leased.job.type!r} among {', '.join(sorted(handlers)) or 'none'}; is its module "
                    f"imported? If another program runs it: kit.stand_in({leased.job.type!r}, lambda **payload: …)"
                )
            return await attempt(door, handler, leased, run)

        return run_one

    def _handlers(self, tenant: str) -> dict[str, Handler]:
        apps = [app.handlers for app in self._apps if app.tenant == tenant]
        return {name: handler for handlers in (*apps, self._stand_ins) for name, handler in handlers.items()}

    def _doors(self) -> list[Queue]:
        """One per tenant."""
        return list({door.tenant: door for door in self._apps.values()}.values())

    def _here(self) -> Runner:
        return in_this_thread(next(iter(self._apps)).portal)

    # ── Running at once ───────────────────────────────────────────────────────────────────────────

    @contextmanager
    def inline(self, *, raises: bool = True) -> Iterator[None]:
        """Inside the block a job runs where it is enqueued, before `.enqueue` returns; delays and waits are left out.

        What a handler says is done: after RetryAfter and Snooze it runs again at once; GiveUp and Discard end the job, and its
        `result()` raises JobFailed. Any other exception comes out of `.enqueue` itself, so that no test passes over it. With
        `raises=False` it does not, as in production: the job is tried again as often as it may be, and `result()` raises.
        What may not run yet (parents, a limit, a paused queue, a type without a handler here) waits for `drain`.
        """

        async def run_now(tenant: str, jobs: Sequence[NewJob], run: Runner) -> None:
            await self._run_now(tenant, jobs, run, raises)

        before, self._store.inline = self._store.inline, run_now
        try:
            yield
        finally:
            self._store.inline = before

    async def _run_now(self, tenant: str, jobs: Sequence[NewJob], run: Runner, raises: bool) -> None:
        door = next(door for door in self._doors() if door.tenant == tenant)
        attempts, again = 0, True
        while again:
            again = False
            for job in jobs:
                handler = self._handlers(tenant).get(job.type)
                leased = None if handler is None else self._store.take(tenant, job)
                if handler is None or leased is None:
                    continue
                ran = await attempt(door, handler, leased, run, waits=False)
                if raises and not ran.meant:
                    raise ran.error or JobFailed(job.id, ran.status, (await door.get(job.id)).error)
                attempts, again = attempts + 1, True
                if attempts > MOST_INLINE:
                    raise AssertionError(
                        f"{MOST_INLINE:,} attempts at once and no end: {ran.job.type} → {ran.status}"
                    )

    # ── Schedules ─────────────────────────────────────────────────────────────────────────────────

    def fire_due(self) -> list[Fired]:
        """Enqueue the jobs of all schedules that are due by the clock; `@app.cron` counts from when the app was first used."""
        self._put_schedules()
        return [fired for door in self._doors() for fired in at_once(door.fire_due())]

    def _put_schedules(self) -> None:
        for app, door in self._apps.items():
            for name, schedule in app.schedules.items():
                if (app.tenant, name) not in self._put:
                    self._put.add((app.tenant, name))
                    at_once(door.put_schedule(name, **schedule))


class SyncKit:
    """What of a kit has to be awaited, for tests that are not async."""

    def __init__(self, kit: TestKit) -> None:
        self._kit = kit

    def drain(self, *, advance: bool = False, most: int = MOST) -> list[Ran]:
        """`TestKit.drain`; plain handlers run in this thread, with the test's own database connection."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return at_once(self._kit._drain(self._kit._here(), advance, most))
        raise RuntimeError("an event loop runs in this thread: await kit.drain() instead of kit.sync.drain()")


def _name(type: JobType | str) -> str:
    return type.name if isinstance(type, JobType) else type
