"""`Penstock(url)`: the one object users hold. It knows the handlers, and opens the store where it is needed."""

from __future__ import annotations

import asyncio
import atexit
import re
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Self, overload

from msgspec.structs import replace

from penstock.app.flow import Flow
from penstock.app.handle import JobHandle
from penstock.app.job_type import JobType
from penstock.app.sync import Portal, Sync
from penstock.coalesce import Coalesce
from penstock.connecting import Address, connect, locate
from penstock.core import bounds, codec
from penstock.core.codec import JsonText
from penstock.core.commands import Beat, Enqueued, Leased, Settled
from penstock.core.errors import InvalidInput, LeaseLost, PenstockError
from penstock.core.job import JobId, NewJob
from penstock.core.ports import Store
from penstock.core.requests import new_job
from penstock.core.settings import checked_settings
from penstock.queue import Held, Queue, Span, new_id
from penstock.telemetry import spans
from penstock.worker.handlers import Handler, Runs, make_handler
from penstock.worker.worker import Worker, worker_name

_LIMITS = ("max_concurrency", "max_concurrency_per_key", "rate", "rate_per_key", "fair")


class Penstock:
    """A program's jobs, and its way to the store.

    Without a URL it takes the variable PENSTOCK_URL, and without that a PostgreSQL of its own under ./.penstock.
    Nothing is opened before it is needed. It may be used from several event loops and, by `.sync`, from threads.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        tenant: str = "default",
        name: str | None = None,
        store: Store | None = None,
        data_dir: str | Path = ".penstock",
    ) -> None:
        """`name` says which program this is: who did what, and whose schedules are whose. By default, the module it is made in."""
        self.name = bounds.name("name", name or _caller())
        self.tenant = bounds.name("tenant", tenant)
        self.handlers: dict[str, Handler] = {}
        self.schedules: dict[str, dict[str, Any]] = {}
        """Schedules declared in code, by name: cron, job and options."""
        self.queue_settings: dict[str, dict[str, Any]] = {}
        """Settings of queues declared in code."""
        self.included: list[Penstock] = []
        """Apps whose jobs the workers of this one run."""
        self.url = url
        self.data_dir = Path(data_dir)
        self._given_store = store
        self._address: Address | None = None
        self._queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Queue] = (
            weakref.WeakKeyDictionary()
        )
        self._puts: weakref.WeakKeyDictionary[Queue, Coalesce[NewJob, Enqueued]] = weakref.WeakKeyDictionary()
        self._memory: Queue | None = None
        self._here: Queue | None = None
        self._lent_here = False
        self._home: weakref.ref[asyncio.AbstractEventLoop] | None = None
        self.portal = Portal(self._home_loop)

    def __repr__(self) -> str:
        return f"<Penstock {self.name!r}>"

    # ── Declaring ─────────────────────────────────────────────────────────────────────────────────

    @overload
    def job(self, function: Callable[..., Any], /) -> JobType: ...

    @overload
    def job(self, function: None = None, /, **options: Any) -> Callable[[Callable[..., Any]], JobType]: ...

    def job(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Make a function the handler of a type of job.

        `name`: the type; by default module and function. `queue`, `priority`, `retry`, `max_attempts`, `on_exhausted`, `expires_in`
        and other fields of NewJob: what its jobs ask for. `timeout`: seconds. `runs`: "loop", "thread" or "process"; by default async
        functions run in the loop and others in threads. `memory_mb`, `max_jobs_per_child`: for processes. `max_concurrency`,
        `max_concurrency_per_key`, `rate`, `rate_per_key`, `fair`: settings of its queue, as with `declare_queue`.
        """

        def decorate(function: Callable[..., Any]) -> JobType:
            return self._job(function, **options)

        return decorate if function is None else decorate(function)

    def _job(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        runs: Runs | str | None = None,
        timeout: Span | None = None,
        memory_mb: int | None = None,
        max_jobs_per_child: int | None = None,
        **options: Any,
    ) -> JobType:
        if isinstance(function, JobType):
            function = function.handler.function
        # Without the functions it is defined in, which no other module can name either.
        own_name = function.__qualname__.rpartition("<locals>.")[2]
        type = bounds.name("name", f"{function.__module__}.{own_name}" if name is None else name)
        if type in self.handlers:
            raise InvalidInput("name", "be given to one handler only", type)
        limits = {limit: options.pop(limit) for limit in _LIMITS if limit in options}
        seconds = None if timeout is None else bounds.span("timeout", timeout).total_seconds()
        handler = make_handler(
            type, function, runs=runs, timeout_seconds=seconds, memory_mb=memory_mb,
            max_jobs_per_child=max_jobs_per_child, options=options,
        )  # fmt: skip
        asked = self.new_job(type, codec.EMPTY_OBJECT, options)  # wrong options are wrong from the start
        if limits:
            self.declare_queue(asked.queue, **limits)
        self.handlers[type] = handler
        return JobType(self, handler)

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        missed: str = "one",
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Callable[[Callable[..., Any]], JobType]:
        """Run a function at the times of a cron expression. On top of `@app.job`, or alone, then with its options."""

        def decorate(function: Callable[..., Any]) -> JobType:
            job_type = function if isinstance(function, JobType) else self._job(function, **options)
            job_type.handler.arguments.payload((), args or {})  # they must fit
            schedule = bounds.name("name", name or job_type.name)
            if schedule in self.schedules:
                raise InvalidInput("name", "be given to one schedule only", schedule)
            job = {**job_type.handler.options, "type": job_type.name, "payload": dict(args or {})}
            self.schedules[schedule] = {"cron": expression, "job": job, "tz": tz, "missed": missed}
            return job_type

        return decorate

    def declare_queue(self, queue: str, **settings: Any) -> None:
        """Settings a queue is to have: applied when a worker starts, and left alone where people have changed them since."""
        declared = self.queue_settings.setdefault(bounds.name("queue", queue), {})
        for name, value in checked_settings(settings).items():
            if declared.get(name, value) != value:
                raise InvalidInput(
                    f"{name} of queue {queue}", f"be declared once (it was {declared[name]!r})", value
                )
            declared[name] = value

    def include(self, other: Penstock) -> None:
        """Have this app's workers run the jobs of another. What that one declares stays declared under its own name."""
        for type, handler in other.handlers.items():
            if type in self.handlers:
                raise InvalidInput("name", "be given to one handler only", type)
            self.handlers[type] = handler
        self.included.append(other)

    # ── The store ─────────────────────────────────────────────────────────────────────────────────

    @property
    def queue(self) -> Queue:
        """The door to the store, as this event loop may use it."""
        loop = asyncio.get_running_loop()
        self._home = self._home if self._home_loop() is not None else weakref.ref(loop)
        if self._memory is not None:
            return self._memory
        found = self._queues.get(loop)
        if found is None:
            found = self.open()
            if self.is_memory:
                self._memory = found
            else:
                self._queues[loop] = found
        return found

    @property
    def is_memory(self) -> bool:
        return self._given_store is not None or self.address.url.startswith("memory:")

    @property
    def address(self) -> Address:
        """Where the store is; the embedded server is started by asking."""
        if self._address is None:
            self._address = locate(self.url, self.data_dir)
            atexit.register(self._address.close)
        return self._address

    def open(self) -> Queue:
        """One more door to the store, to be closed by the caller."""
        if self._given_store is not None:
            return Queue(self._given_store, tenant=self.tenant, actor=self.name)
        return connect(self.address.url, tenant=self.tenant, actor=self.name, migrates=self.address.migrates)

    @contextmanager
    def using(self, queue: Queue, *, here: bool = False) -> Iterator[Self]:
        """Use this door instead of its own while the block runs: how tests put an app on a store in memory.

        With `here`, `.sync` puts jobs in from the caller's own thread; the store must allow that, as for `conn`.
        """
        own = self._given_store, self._memory, self._here, self._lent_here
        self._given_store, self._memory, self._here, self._lent_here = queue.store, queue, queue, here
        try:
            yield self
        finally:
            self._given_store, self._memory, self._here, self._lent_here = own

    def _home_loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop this app is used in, if one runs; not the one behind `.sync`."""
        loop = None if self._home is None else self._home()
        return loop if loop is not None and loop.is_running() and loop is not self.portal.own_loop else None

    async def close(self) -> None:
        """Close what this event loop has opened."""
        queue = self._memory or self._queues.pop(asyncio.get_running_loop(), None)
        if queue is not None and self._given_store is None:
            await queue.close()
            self._memory = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def sync(self) -> Any:
        """The same verbs for code that is not async: `app.sync.enqueue(…)`, `app.sync.lease(…)`, …"""
        return Sync(self, self.portal)

    # ── Producing ─────────────────────────────────────────────────────────────────────────────────

    def new(self, type: str, payload: object = codec.MISSING, **options: Any) -> NewJob:
        """A job that is not put in yet, by name; where its handler is known, its arguments are checked and its options hold."""
        return spans().created(self._new(type, payload, options), own_id="id" in options)

    def _new(self, type: str, payload: object, options: Mapping[str, Any]) -> NewJob:
        handler = self.handlers.get(type)
        if handler is None:
            given = {} if payload is codec.MISSING else {"payload": payload}
            return new_job(new_id(), {"type": type, **given, **options})
        arguments = {} if payload is codec.MISSING else payload
        if not isinstance(arguments, Mapping):
            raise InvalidInput("payload", "be an object that names the handler's arguments", payload)
        return self.new_job(type, handler.arguments.payload((), arguments), {**handler.options, **options})

    def new_job(self, type: str, payload: JsonText, options: Mapping[str, Any]) -> NewJob:
        """A job whose payload is JSON text already, and checked."""
        return replace(new_job(new_id(), {"type": type, **options}), payload=payload)

    async def enqueue(
        self, type: str, payload: object = codec.MISSING, *, conn: object = None, **options: Any
    ) -> JobHandle:
        """Put a job in by name; no handler needs to be here."""
        return await self.put(self._new(type, payload, options), conn, inject="id" not in options)

    def enqueue_here(
        self, type: str, payload: object = codec.MISSING, *, conn: object = None, **options: Any
    ) -> JobHandle | None:
        """For `.sync`: in the caller's thread, if it belongs there."""
        if not self.puts_here(conn):
            return None
        return self.put_here(self._new(type, payload, options), conn, inject="id" not in options)

    async def enqueue_many(
        self, items: Iterable[NewJob | Mapping[str, Any]], *, conn: object = None
    ) -> list[JobHandle | PenstockError]:
        """Put many jobs in with one call; each item gets its own handle or its own error."""
        jobs = [item if isinstance(item, NewJob) else self._item(item) for item in items]
        good = [job for job in jobs if isinstance(job, NewJob)]
        with spans().sending(good, batch=True):
            answers = iter(await self.queue.enqueue_many(good, conn=conn))
        return [self._handle(next(answers)) if isinstance(job, NewJob) else job for job in jobs]

    async def put(self, job: NewJob, conn: object = None, *, inject: bool = False) -> JobHandle:
        """Put in a job that was made before. Calls made at the same time go to the store together.

        `inject`, for a job that nobody can send again, gives it the trace of this call.
        """
        with spans().sending([job], inject=inject) as jobs:
            if conn is None:
                return self._handle_of(await self._gathered(self.queue)(jobs[0]))
            [answer] = await self.queue.enqueue_many(jobs, conn=conn)
            return self._handle_of(answer)

    def _gathered(self, queue: Queue) -> Coalesce[NewJob, Enqueued]:
        """What gathers the single calls of one event loop."""
        found = self._puts.get(queue)
        if found is None:

            async def put_batch(jobs: list[NewJob]) -> list[Enqueued | PenstockError]:
                return await queue.enqueue_many(jobs)

            found = self._puts[queue] = Coalesce(put_batch, at_once=2)
        return found

    def puts_here(self, conn: object) -> bool:
        """Whether `.sync` is to put a job in from the caller's thread, not by an event loop."""
        return conn is not None or (self._lent_here and self._home_loop() is None)

    def put_here(self, job: NewJob, conn: object, *, inject: bool = False) -> JobHandle:
        if self._here is None:
            self._here = self.open()  # it opens no connection as long as it uses the caller's
        with spans().sending([job], inject=inject) as jobs:
            [answer] = self._here.enqueue_now(jobs, conn=conn)
            return self._handle_of(answer)

    def flow(self) -> Flow:
        """Begin a flow: jobs that wait for other jobs."""
        return Flow(self)

    def handle(self, job_id: str) -> JobHandle:
        """A handle on a job that was put in before, here or elsewhere."""
        return JobHandle(self, JobId(bounds.job_id("job id", job_id)))

    def _item(self, item: Mapping[str, Any]) -> NewJob | PenstockError:
        try:
            return self.new(**item)
        except TypeError:  # no mapping, or without a type
            return InvalidInput("a job", "be an object with at least a type", item)
        except PenstockError as error:
            return error

    def _handle(self, answer: Enqueued | PenstockError) -> JobHandle | PenstockError:
        return answer if isinstance(answer, PenstockError) else JobHandle(self, answer.id, answer.duplicate)

    def _handle_of(self, answer: Enqueued | PenstockError) -> JobHandle:
        if isinstance(answer, PenstockError):
            raise answer
        return JobHandle(self, answer.id, answer.duplicate)

    # ── Bringing your own loop ────────────────────────────────────────────────────────────────────

    async def lease(
        self,
        queue: str = "default",
        *,
        limit: int = 1,
        lease_seconds: float | None = None,
        worker_id: str | None = None,
    ) -> list[Leased]:
        """Lease jobs to run them yourself. Settle each, and keep those alive that take longer than their lease."""
        return await self.queue.lease(
            queue, worker=worker_id or worker_name(), limit=limit, lease_seconds=lease_seconds
        )

    async def ack(self, held: Held, result: object = None) -> Settled:
        """The job succeeded."""
        return await self.queue.ack(held, result)

    async def nack(
        self, held: Held, error: object, *, retry: bool = True, retry_in: Span | None = None
    ) -> Settled:
        """The attempt failed: try again by the retry policy, in `retry_in`, or (retry=False) never."""
        return await self.queue.nack(held, error, retry=retry, retry_in=retry_in)

    async def heartbeat(
        self, held: Held, *, lease_seconds: float | None = None, progress: object = None
    ) -> Beat:
        """Keep a lease for its length from now on."""
        return await self.queue.heartbeat(held, lease_seconds=lease_seconds, progress=progress)

    async def release(self, held: Held, *, delay: Span | None = None) -> Settled:
        """Give the job back; the attempt does not count."""
        return await self.queue.release(held, delay=delay)

    async def snooze(self, held: Held, delay: Span) -> Settled:
        """Run the job again after a while; the attempt does not count."""
        return await self.queue.snooze(held, delay)

    async def discard(self, held: Held, reason: str | None = None) -> Settled:
        """End the job as cancelled."""
        return await self.queue.discard(held, reason)

    @asynccontextmanager
    async def keep_alive(self, leased: Leased) -> AsyncIterator[None]:
        """Heartbeats while the block runs. The block is cancelled, and LeaseLost raised, when the lease is lost or the job cancelled."""
        lease = leased.job.lease
        assert lease is not None
        owner, lost = asyncio.current_task(), asyncio.Event()
        assert owner is not None

        async def beat() -> None:
            while True:
                await asyncio.sleep(lease.seconds / 3)
                try:
                    if not (await self.heartbeat(leased)).cancel_requested:
                        continue
                except LeaseLost:
                    pass
                except PenstockError:
                    continue  # out of reach for now; the lease has two thirds left
                lost.set()
                owner.cancel()
                return

        beating = asyncio.create_task(beat())
        try:
            yield
        except asyncio.CancelledError:
            if not lost.is_set():
                raise
            owner.uncancel()
            raise LeaseLost(leased.id) from None
        finally:
            beating.cancel()
            await asyncio.wait([beating])

    # ── Working ───────────────────────────────────────────────────────────────────────────────────

    def worker(self, **options: Any) -> AbstractAsyncContextManager[Worker]:
        """A worker beside other code, while the block runs: `async with app.worker(): …`. Options as for `run_worker`."""
        from penstock.app.running import worker_beside

        return worker_beside(self, options)

    async def run_worker(self, **options: Any) -> int:
        """Run jobs in this process until SIGTERM or SIGINT; see `penstock.app.running.run_worker` for the options."""
        from penstock.app.running import run_worker

        return await run_worker(self, **options)


def _caller() -> str:
    """The module in which the app is made, or the file it is in."""
    frame = sys._getframe(2)
    name: str = frame.f_globals.get("__name__", "")
    if not re.fullmatch(r"\w[\w.]*", name, re.ASCII) or name == "__main__":
        name = re.sub(r"\W", "_", Path(frame.f_globals.get("__file__", "app")).stem, flags=re.ASCII)
    return name
