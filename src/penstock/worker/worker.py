"""The worker: leases jobs, runs them side by side, settles them in batches, and gives everything back when it ends."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from functools import partial
from random import Random
from typing import Any

from penstock.core import bounds
from penstock.core.commands import Beat, Leased, LeaseJobs
from penstock.core.errors import LeaseLost, NotFound, PenstockError
from penstock.core.patterns import is_pattern, matching
from penstock.core.ports import cadence
from penstock.core.wakeups import CANCELS, Bell
from penstock.presence import MOST_DOING, Order
from penstock.queue import Queue
from penstock.stores.wakeups import Backoff
from penstock.stores.wakeups.loop import end
from penstock.stores.wakeups.polling import LONGEST_SECONDS
from penstock.telemetry import spans
from penstock.worker import execution
from penstock.worker.context import JobContext
from penstock.worker.execution import Ending, How
from penstock.worker.feeding import Pace, in_turn, parse_queues
from penstock.worker.hand import Hand, InHand, Stop
from penstock.worker.handlers import Handler, Runs
from penstock.worker.keeper import Keeper
from penstock.worker.metrics import Metrics
from penstock.worker.progress import Progress
from penstock.worker.settling import Settling
from penstock.worker.showing import Showing

logger = logging.getLogger("penstock.worker")

UNKNOWN = "(unknown)"
"""Stands in figures for types that nothing here runs."""
UNKNOWN_SECONDS = 30.0
MOST_UNKNOWN = 100
"""How many of them are told of by name."""
QUEUES_SECONDS = 10.0
RUNG_SECONDS = 10.0
"""The longest wait between two looks while wake-ups arrive."""
LAST_SECONDS = 5.0
MOST_AHEAD = bounds.MOST_LEASED


_OUTCOMES = {how: ("outcome", how.value) for how in How}


class Stopped(IntEnum):
    """How a worker ended; the exit code of `penstock worker`."""

    DRAINED = 0
    """Everything that had begun was finished."""
    CUT_OFF = 3
    """The grace period was over: some handlers were cancelled, and their jobs given back."""
    HURRIED = 4
    """It was asked twice: handlers were cancelled at once, and their jobs given back."""


def worker_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"[: bounds.NAME_CHARS]


class Worker:
    """Runs the jobs of some queues in this process.

    `connect` opens the store once more, for the keeper's own thread; without it, as for memory, leases are kept
    by this event loop.
    """

    def __init__(
        self,
        queue: Queue,
        handlers: Mapping[str, Handler],
        *,
        queues: str | Iterable[str] | Mapping[str, float] = "default",
        concurrency: int = 100,
        grace_seconds: float = 30.0,
        lease_seconds: float | None = None,
        ahead: int | None = None,
        name: str | None = None,
        connect: Callable[[], Queue] | None = None,
        random: Random | None = None,
    ) -> None:
        self.name = bounds.text("worker", name or worker_name(), bounds.NAME_CHARS, 1)
        self.queue = queue
        self.metrics = Metrics()
        self._handlers = handlers
        self._weights = parse_queues(queues)
        self._concurrency = bounds.integer("concurrency", concurrency, 1, 100_000)
        self._grace_seconds = bounds.number("grace_seconds", grace_seconds, 0, bounds.LONGEST_SECONDS)
        self._lease_seconds = lease_seconds
        self._random = random or Random()
        self._pace = Pace(MOST_AHEAD if ahead is None else ahead)
        self._hand = Hand()
        self._reserve: deque[InHand] = deque()
        self._ahead = 0
        self._running = 0
        self._room = asyncio.Event()
        self._idle = asyncio.Event()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._is_quiet = False
        self._unknown: set[str] = set()
        self._settling = Settling(queue, self.name, self.metrics, self._let_go)
        self._keeper = Keeper(self._hand, queue, self._on_beat, connect)
        self._progress = Progress(queue, self._on_beat)
        self._showing = Showing(
            queue,
            self.name,
            self._weights,
            concurrency,
            self._stopping,
            lambda: (self._running, len(self._reserve), self._hand.doing(MOST_DOING)),
            self._obey,
        )
        self._threads: ThreadPoolExecutor | None = None
        self._processes: Any = None
        self.fed_at = time.monotonic()
        """When it last asked for jobs, or knew that it had no room for any: proof that it is alive."""
        self.has_reached_store = False
        """Whether a call to the store has succeeded yet."""
        self._measure()

    def _measure(self) -> None:
        gauge, counter, wakeups = self.metrics.gauge, self.metrics.counter, self.queue.store.wakeups
        prefix, keeper, hand = "penstock_worker", self._keeper, self._hand
        # fmt: off
        gauge(f"{prefix}_info", "Always 1; which worker this is.", lambda: 1, worker=self.name, tenant=self.queue.tenant)
        gauge(f"{prefix}_running", "Handlers running now.", lambda: self._running)
        gauge(f"{prefix}_slots", "Handlers that may run at once.", lambda: self._concurrency)
        gauge(f"{prefix}_reserved", "Jobs leased and not begun.", lambda: len(self._reserve))
        gauge(f"{prefix}_settling", "Jobs that have ended, and wait to be settled.", lambda: sum(held.settling for held in hand))
        gauge(f"{prefix}_feeding_age_seconds", "Since it last asked for jobs, or had no room.", lambda: self.ages()["feeding"])
        gauge(f"{prefix}_keeper_age_seconds", "Since all leases were last looked after.", lambda: self.ages()["keeper"])
        gauge(f"{prefix}_wakeups_healthy", "Whether wake-ups arrive; without them pick-up is slower.", lambda: wakeups.status().healthy)
        gauge(f"{prefix}_ready", "Whether it has reached the store and is not stopping.", lambda: self.has_reached_store and not self.is_stopping)
        counter(f"{prefix}_loop_blocked_seconds_total", "How long the event loop was blocked.", lambda: keeper.blocked_seconds)
        counter(f"{prefix}_heartbeat_failures_total", "Times that leases could not be renewed.", lambda: keeper.failures)
        self.metrics.requests(self.queue.store)
        # fmt: on

    # ── Life ──────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> Stopped:
        """Work until `stop`; returns when nothing is left in hand."""
        self._keeper.start()
        self._progress.start()
        feeding = asyncio.create_task(self._keep_on(self._feed, "leasing"), name="penstock feeding")
        hearing = asyncio.create_task(
            self._keep_on(self._hear, "hearing of cancelled jobs"), name="penstock cancels"
        )
        showing = asyncio.create_task(self._showing.run(), name="penstock showing")
        try:
            await self._stopping.wait()
            return await self._wind_down(feeding)
        except asyncio.CancelledError:
            self.stop()
            self.stop()  # whoever cancels does not want to wait, but nothing must be kept from others
            await self._wind_down(feeding)
            raise
        finally:
            await end(feeding, hearing, showing)
            await self._keeper.stop()
            await self._progress.close()
            await self._settling.close()
            if self._processes is not None:
                await self._processes.close()
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)
            await self._showing.hide()

    def stop(self) -> None:
        """Lease no more and finish what has begun; called again, hurry."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    def _obey(self, order: Order) -> None:
        """Do what an operator wants of this worker."""
        self._is_quiet = order is not Order.WORK
        self._room.set()
        if order is Order.STOP and not self._stopping.is_set():
            self.stop()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def is_alive(self, patience_seconds: float = 60.0) -> bool:
        """Whether its loops have shown themselves lately."""
        return self._stopping.is_set() or not self.late(patience_seconds)

    def late(self, patience_seconds: float = 60.0) -> list[str]:
        """The loops that have not."""
        return [name for name, age in self.ages().items() if age >= patience_seconds]

    def ages(self) -> dict[str, float]:
        """How many seconds ago each of its loops has shown itself; from any thread."""
        now = time.monotonic()
        return {"feeding": now - self.fed_at, "keeper": now - self._keeper.passed_at}

    async def _wind_down(self, feeding: asyncio.Task[None]) -> Stopped:
        await end(feeding, patience_seconds=LAST_SECONDS)
        reserved = [self._reserve.popleft() for _ in range(len(self._reserve))]
        for held in reserved:
            self._give_back(held)
        hurrying = asyncio.create_task(self._hurry.wait())
        draining = asyncio.create_task(self._drained())
        try:
            await asyncio.wait(
                [hurrying, draining], timeout=self._grace_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if draining.done():
                return Stopped.DRAINED
            left = [held for held in self._hand if not held.settling]
            if not left:  # all have ended, and are only being settled
                await asyncio.wait([draining], timeout=LAST_SECONDS)
                return Stopped.DRAINED
            logger.warning(
                "%s: %d handlers are cancelled and their jobs given back",
                "asked twice" if self._hurry.is_set() else "the grace period is over", len(left),
            )  # fmt: skip
            for held in left:
                self._stop_job(held, Stop.SHUTDOWN)
            await asyncio.wait([draining], timeout=LAST_SECONDS)
            # What is deaf to that may go on, but not with its job.
            for held in self._hand:
                if not held.settling:
                    self._give_back(held)
            return Stopped.HURRIED if self._hurry.is_set() else Stopped.CUT_OFF
        finally:
            hurrying.cancel()
            draining.cancel()

    async def _drained(self) -> None:
        while len(self._hand):
            self._idle.clear()
            await self._idle.wait()

    # ── Leasing ───────────────────────────────────────────────────────────────────────────────────

    async def _keep_on(self, work: Callable[[], Awaitable[None]], what: str) -> None:
        """Do something for ever, however often it fails."""
        waits = Backoff(self._random, 0.05, 5.0)
        while True:
            try:
                await work()
            except PenstockError as error:
                pause = next(waits)
                logger.warning("%s failed, trying again in %.2f s: %s", what, pause, error)
                await asyncio.sleep(pause)
            except Exception:
                logger.exception("%s failed, trying again", what)
                await asyncio.sleep(next(waits))

    async def _hear(self) -> None:
        """Ask after all leases as soon as somebody cancels a running job, and not only when they are due."""
        async with self.queue.store.wakeups.listen(self.queue.tenant, [CANCELS]) as bell:
            while True:
                if await bell.wait(60.0):
                    self._keeper.beat_now()

    async def _feed(self) -> None:
        """Lease as long as the set of queues stays the same."""
        self.fed_at = time.monotonic()  # a store that is away is no reason to end this process
        weights = await self._queues()
        looked_at = time.monotonic()
        waits = Backoff(self._random)
        async with self.queue.store.wakeups.listen(self.queue.tenant, weights) as bell:
            while True:
                if any(map(is_pattern, self._weights)) and time.monotonic() - looked_at > QUEUES_SECONDS:
                    looked_at = time.monotonic()
                    if await self._queues() != weights:
                        return
                wanted = await self._until_room()
                self.fed_at = time.monotonic()
                waits.longest_seconds = self._longest_wait()
                if await self._lease(in_turn(weights, self._random), wanted) or await self._sleep(
                    bell, list(weights), next(waits)
                ):
                    waits.reset()

    async def _queues(self) -> dict[str, float]:
        known = (
            [view.name for view in await self.queue.queues()] if any(map(is_pattern, self._weights)) else []
        )
        return matching(self._weights, known)

    async def _until_room(self) -> int:
        """How many jobs to lease, once that is a number worth a call."""
        while True:
            ahead = self._ahead = self._pace.ahead(time.monotonic())
            # Settling counts: a slow store slows leasing, instead of filling memory.
            room = self._concurrency + ahead - len(self._hand)
            may_lease = room > 0 and not self._is_quiet
            if may_lease and (room >= ahead // 2 or self._running + len(self._reserve) < self._concurrency):
                return min(room, bounds.MOST_LEASED)
            self._room.clear()
            try:
                async with asyncio.timeout(1.0):
                    await self._room.wait()
            except TimeoutError:
                self.fed_at = time.monotonic()
                self._return_what_waits()

    async def _lease(self, queues: Iterable[str], wanted: int) -> int:
        got = 0
        for queue in queues:
            if wanted - got <= 0:
                break
            request = LeaseJobs(queue, self.name, wanted - got, self._lease_seconds)
            asked_at = spans().now()
            [answer] = await self._ask(request)
            if isinstance(answer, PenstockError):
                raise answer
            if answer:
                self.metrics.leased.add(len(answer), queue=queue)
                spans().received(queue, answer, self.name, asked_at)
            for leased in answer:
                self._take(leased)
            got += len(answer)
        self.has_reached_store = True
        return got

    async def _ask(self, request: LeaseJobs) -> list[list[Leased] | PenstockError]:
        leasing = asyncio.ensure_future(self.queue.store.lease(self.queue.tenant, [request]))
        try:
            return await asyncio.shield(leasing)
        except PenstockError:
            self.metrics.lease_failures.add()
            raise
        except asyncio.CancelledError:
            # The store may have leased us jobs by now. Unknown to us, they would be lost for the length of a lease.
            await asyncio.wait([leasing], timeout=LAST_SECONDS)
            if leasing.done() and not leasing.cancelled() and leasing.exception() is None:
                [answer] = leasing.result()
                if not isinstance(answer, PenstockError):
                    for leased in answer:
                        self._take(leased)  # into the reserve, which is given back
            raise

    def _take(self, leased: Leased) -> None:
        held = InHand(leased, time.monotonic())
        self._hand.add(held)
        if self._running < self._concurrency and not self._stopping.is_set():
            self._begin(held)
        else:
            self._reserve.append(held)

    def _return_what_waits(self) -> None:
        """Give back jobs that have waited here for a second: others may have time for them."""
        now = time.monotonic()
        late = [held for held in self._reserve if now - held.leased_at > 1.0]
        for held in late:
            self._reserve.remove(held)
            self._give_back(held)

    def _longest_wait(self) -> float:
        """Who is woken need not look often; bells that ring within one process only say nothing of the others."""
        status = self.queue.store.wakeups.status()
        if not status.healthy or status.driver in ("none", "memory"):
            return LONGEST_SECONDS
        return RUNG_SECONDS * cadence(self.queue.store)

    async def _sleep(self, bell: Bell, queues: list[str], wait: float) -> bool:
        """Wait until there may be something to lease; says whether somebody rang."""
        next_in = await self.queue.next_in(queues)
        if next_in is not None and next_in.total_seconds() > 0:  # what is due already we were just not given
            wait = min(wait, next_in.total_seconds())
        return bool(await bell.wait(wait))

    # ── Running ───────────────────────────────────────────────────────────────────────────────────

    def _begin(self, held: InHand) -> None:
        self._running += 1
        held.task = asyncio.create_task(self._attempt(held))

    def _ended(self) -> None:
        """A slot is free."""
        self._running -= 1
        self._pace.finished(time.monotonic())
        if self._reserve and not self._stopping.is_set():
            self._begin(self._reserve.popleft())
        if len(self._reserve) * 2 <= self._ahead:
            self._room.set()

    async def _attempt(self, held: InHand) -> None:
        handler = self._handlers.get(held.leased.job.type)
        started_at = time.perf_counter()
        try:
            if handler is None:
                ending: Ending | None = self._unknown_type(held)
            else:
                with spans().processing(held.leased) as span:
                    ending = span.ended(await self._ending(handler, held))
        except asyncio.CancelledError:
            self._hand.remove(held)  # the event loop itself is ending; the lease runs out
            raise
        finally:
            self._ended()
        if ending is not None:
            self._count(held, ending, time.perf_counter() - started_at)
            self._settling.put(held, ending)
        else:
            self._let_go(held)

    async def _ending(self, handler: Handler, held: InHand) -> Ending | None:
        """How the attempt ended; None if that is no longer ours to say."""
        context = JobContext(held.leased, partial(self._progress.report, held))
        try:
            if handler.timeout_seconds is None:
                ending = await self._run(handler, held, context)
            else:
                async with asyncio.timeout(handler.timeout_seconds):
                    ending = await self._run(handler, held, context)
        except TimeoutError:
            context.cancel()
            return Ending(
                How.NACK, error=f"timed out: it had not ended after {handler.timeout_seconds:g} seconds"
            )
        except asyncio.CancelledError:
            context.cancel()
            if held.stop is None:
                raise
            assert held.task is not None
            held.task.uncancel()
            ending = Ending(How.RELEASE)
        match held.stop:
            case None | Stop.SHUTDOWN:
                return ending
            case Stop.CANCELLED:
                return Ending(How.DISCARD, error="cancelled while it ran", logs=ending.logs)
            case Stop.LOST:
                return None

    async def _run(self, handler: Handler, held: InHand, context: JobContext) -> Ending:
        match handler.runs:
            case Runs.LOOP:
                return await execution.run(handler, context)
            case Runs.THREAD:
                return await self._run_in_thread(handler, held, context)
            case Runs.PROCESS:
                if self._processes is None:
                    from penstock.worker.processes import ProcessPool

                    self._processes = ProcessPool(most=min(self._concurrency, os.cpu_count() or 1))
                ending: Ending = await self._processes.run(
                    handler, spans().carried(held.leased), partial(self._progress.report, held)
                )
                return ending

    async def _run_in_thread(self, handler: Handler, held: InHand, context: JobContext) -> Ending:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._concurrency, "penstock handler")
        loop = asyncio.get_running_loop()
        call = partial(contextvars.copy_context().run, execution.run_blocking, handler, context)
        ends = loop.run_in_executor(self._threads, call)
        try:
            while True:
                try:
                    return await asyncio.shield(ends)
                except asyncio.CancelledError:
                    context.cancel()
                    if held.stop is not Stop.CANCELLED:
                        raise
                    # A thread cannot be stopped, only asked: it keeps its slot and its lease until it has ended.
                    assert held.task is not None
                    held.task.uncancel()
        finally:
            if not ends.done():
                self._running += 1  # what goes on running takes up a slot, whatever became of its job
                ends.add_done_callback(lambda _: self._ended())

    def _unknown_type(self, held: InHand) -> Ending:
        type = held.leased.job.type
        self.metrics.unknown.add()
        if type not in self._unknown and len(self._unknown) < MOST_UNKNOWN:
            self._unknown.add(type)
            logger.warning(
                "no handler here runs jobs of type %r; they are given back, for %g s at a time",
                type,
                UNKNOWN_SECONDS,
            )
        return Ending(How.RELEASE, delay_seconds=UNKNOWN_SECONDS * self._random.uniform(0.5, 1.5))

    # ── Stopping one ──────────────────────────────────────────────────────────────────────────────

    def _on_beat(self, held: InHand, answer: Beat | PenstockError) -> None:
        """What a heartbeat was answered, in the worker's own thread."""
        if held not in self._hand or held.settling:
            return
        if isinstance(answer, LeaseLost | NotFound):
            self.metrics.lost.add()
            logger.warning("the lease on job %s is lost; its handler is cancelled", held.id)
            self._stop_job(held, Stop.LOST)
        elif isinstance(answer, Beat) and answer.cancel_requested:
            self._stop_job(held, Stop.CANCELLED)

    def _stop_job(self, held: InHand, why: Stop) -> None:
        if held.stop is why or held.stop is Stop.LOST:
            return
        held.stop = why
        if held.task is not None:
            held.task.cancel()
        elif held in self._reserve:
            self._reserve.remove(held)
            if why is Stop.LOST:
                self._let_go(held)
            else:
                self._give_back(held)

    # ── Settling ──────────────────────────────────────────────────────────────────────────────────

    def _give_back(self, held: InHand) -> None:
        self._settling.put(held, Ending(How.RELEASE))

    def _let_go(self, held: InHand) -> None:
        self._hand.remove(held)
        if not len(self._hand):
            self._idle.set()
        if not self._reserve:
            self._room.set()

    def _count(self, held: InHand, ending: Ending, seconds: float) -> None:
        job = held.leased.job
        # Anybody can make up a type; a label for each would grow for ever.
        queue, type = ("queue", job.queue), ("type", job.type if job.type in self._handlers else UNKNOWN)
        self.metrics.ended.count((queue, type, _OUTCOMES[ending.how]))
        self.metrics.run_seconds.observe((type,), seconds)
        assert job.lease is not None
        waited = (job.lease.taken_at - job.run_at).total_seconds()
        self.metrics.wait_seconds.observe((queue,), waited if waited > 0 else 0.0)
