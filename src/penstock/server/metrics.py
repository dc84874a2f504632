"""What this instance of the service counts, and what the store holds, as Prometheus reads it.

Counters are this instance's own: sum them over instances. What the store holds is the same wherever one asks: take the
maximum over instances.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from math import inf

import penstock
from penstock.core.commands import Ack, Duplicate, Enqueued, Nack, QueueView, Settle, Settled
from penstock.core.errors import LeaseLost, PenstockError
from penstock.core.job import Status
from penstock.core.ports import Store
from penstock.telemetry.prometheus import (
    OTHER,
    Counter,
    Histogram,
    Labels,
    Reading,
    render,
    samples,
    store_requests,
)
from penstock.worker import proc

logger = logging.getLogger("penstock.server")

GATHER_SECONDS = 10.0
"""The least time between two looks at what the store holds, whoever asks and however often."""
PATIENCE_SECONDS = 2.0
"""How long an answer waits for such a look; a slower one is for those who ask later."""
LONGEST_SECONDS = 30.0
"""A look that takes longer is given up."""
REST = 9
"""Times as long as it took, it then rests: many tenants or a slow store make it seldom instead of constant."""
STALE_SECONDS = 120.0
"""While the store cannot be asked, old figures are shown for so long: a gap is better than a lie."""

MOST_QUEUES = 1_000
"""Told apart by name, in counters and in figures; the rest is summed under `other`."""
MOST_TENANTS = 1_000
MOST_ROUTES = 1_000

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Of a request; the long ones are those that wait for a job, a result or events."""


class ServiceMetrics:
    """Everything the service tells about itself and its store. It belongs to one event loop."""

    def __init__(
        self, *, gather_seconds: float = GATHER_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.in_flight = 0
        """Requests being answered; whoever takes one in counts it up, and down again."""
        self._figures = _Figures(gather_seconds, clock)
        by_queue = partial(Counter, most=MOST_QUEUES)
        self._submitted = by_queue("penstock_jobs_submitted_total", "Jobs taken in, by queue.")
        self._replays = by_queue(
            "penstock_jobs_idempotent_replays_total",
            "Requests answered with the job that an earlier one had made, by queue.",
        )
        self._leased = by_queue("penstock_jobs_leased_total", "Jobs leased, by queue.")
        self._succeeded = by_queue("penstock_jobs_succeeded_total", "Attempts that succeeded.")
        self._failed = by_queue("penstock_jobs_failed_total", "Attempts that failed.")
        self._retried = by_queue("penstock_jobs_retried_total", "Failed attempts whose job is tried again.")
        self._dead = by_queue("penstock_jobs_dead_total", "Failed attempts that left their job dead.")
        self._lost = by_queue(
            "penstock_jobs_lease_lost_total", "Settles and heartbeats refused because the lease was lost."
        )
        self._requests = Counter(
            "penstock_http_requests_total",
            "Requests answered, by method, route and status.",
            most=MOST_ROUTES,
        )
        self._seconds = Histogram(
            "penstock_http_request_seconds",
            "How long requests took, by method and route.",
            buckets=SECONDS,
            most=MOST_ROUTES,
        )
        self._rate_limited = Counter(
            "penstock_rate_limited_total", "Requests refused because of a rate limit.", labelled=False
        )
        self._overloaded = Counter(
            "penstock_overloaded_total", "Requests refused because too many were waiting.", labelled=False
        )

    # ── Jobs ──────────────────────────────────────────────────────────────────────────────────────

    def enqueued(self, queue: str, answer: Enqueued) -> None:
        """Count what came of an enqueue."""
        if answer.duplicate is None:
            self.submitted(queue)
        elif answer.duplicate is Duplicate.IDEMPOTENCY_KEY:
            self.replayed(queue)

    def submitted(self, queue: str, n: int = 1) -> None:
        self._submitted.count((("queue", queue),), n)

    def replayed(self, queue: str, n: int = 1) -> None:
        """An idempotency key was seen before, and its first answer was given again."""
        self._replays.count((("queue", queue),), n)

    def leased(self, queue: str, n: int = 1) -> None:
        self._leased.count((("queue", queue),), n)

    def settled(self, settle: Settle, answer: Settled | PenstockError, queue: str | None = None) -> None:
        """Count how an attempt ended; the queue only where it is known, because a settle does not name it."""
        if isinstance(answer, PenstockError):
            if isinstance(answer, LeaseLost):
                self.lease_lost(queue)
            return
        labels = _queue(queue)
        if isinstance(settle, Ack):
            self._succeeded.count(labels)
        elif isinstance(settle, Nack):
            self._failed.count(labels)
            if answer.status is Status.QUEUED:
                self._retried.count(labels)
            elif answer.status is Status.DEAD:
                self._dead.count(labels)

    def lease_lost(self, queue: str | None = None, n: int = 1) -> None:
        self._lost.count(_queue(queue), n)

    # ── Requests ──────────────────────────────────────────────────────────────────────────────────

    def request(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """Count an answered request. `route` is the pattern, such as /v1/jobs/{id}; None for what has no route."""
        where = (("method", method if method in METHODS else OTHER), ("route", route or OTHER))
        self._requests.count((*where, ("status", str(status))))
        self._seconds.observe(where, seconds)

    def rate_limited(self) -> None:
        self._rate_limited.count(())

    def overloaded(self) -> None:
        self._overloaded.count(())

    # ── Telling ───────────────────────────────────────────────────────────────────────────────────

    async def render(self, store: Store) -> bytes:
        """All of it, in Prometheus' text format; CONTENT_TYPE of telemetry.prometheus goes with it."""
        figures = await self._figures.text(store)
        about = (("version", penstock.__version__), ("python", platform.python_version()))
        own = render((
            self._submitted, self._replays, self._leased, self._succeeded, self._failed, self._retried, self._dead,
            self._lost, self._requests, self._seconds, self._rate_limited, self._overloaded,
            Reading("penstock_http_in_flight", "Requests being answered now.", lambda: self.in_flight),
            Reading("penstock_build_info", "Always 1; what runs here.", lambda: 1, labels=about),
            Reading(
                "penstock_wakeups_healthy", "Whether wake-ups arrive; without them pick-up is slower.",
                lambda: store.wakeups.status().healthy,
            ),
            Reading("penstock_figures_age_seconds", "Since the figures of the queues were gathered.", self._figures.age),
            Reading(
                "penstock_figures_failures_total", "Times that the figures of the queues could not be gathered.",
                lambda: self._figures.failures, "counter",
            ),
            *store_requests(store),
            *(Reading(name, help, partial(float, value), kind) for name, help, value, kind in proc.readings()),
        ))  # fmt: skip
        return (own + figures).encode()

    async def close(self) -> None:
        """Stop looking at the store, which is about to be closed."""
        await self._figures.close()


def _queue(name: str | None) -> Labels:
    return (("queue", name or ""),)  # to Prometheus an empty label is one that is not there


class _Figures:
    """What the store holds, as text. Of all who ask at once one looks, and the others get what it found."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.failures = 0
        self._seconds = seconds
        self._clock = clock
        self._again_at = -inf
        self._gathered_at: float | None = None
        self._failing = False
        self._text = ""
        self._looking: asyncio.Task[None] | None = None

    async def text(self, store: Store) -> str:
        if self._looking is None and self._clock() >= self._again_at:
            self._looking = asyncio.create_task(self._look(store), name="penstock figures")
        if self._looking is not None:
            # Whoever asked may hang up; the look goes on for the others.
            await asyncio.wait([self._looking], timeout=PATIENCE_SECONDS)
        return "" if self._failing and not self.age() <= STALE_SECONDS else self._text

    def age(self) -> float:
        return inf if self._gathered_at is None else self._clock() - self._gathered_at

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    async def _look(self, store: Store) -> None:
        began_at = self._clock()
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                self._text = await gather(store)
            self._gathered_at, self._failing = self._clock(), False
        except Exception as error:  # a store that is away must not take the counters with it
            self.failures += 1
            self._failing = True
            logger.warning(
                "the figures of the queues could not be gathered: %s", str(error) or type(error).__name__
            )
        finally:
            ended_at = self._clock()
            self._again_at = max(began_at + self._seconds, ended_at + REST * (ended_at - began_at))
            self._looking = None


async def gather(store: Store) -> str:
    """The figures of all queues of all tenants. One tenant after the other: nobody is in a hurry here."""
    tenants = await store.tenants()
    figures = _Sums()
    for worker in await store.entries(None, "worker"):
        figures.workers[figures.tenant(worker.tenant)] += 1
    for tenant in tenants:
        figures.workers[figures.tenant(tenant)] += 0  # that there is none is worth telling
        views = await store.queues(tenant)
        now = (await store.now()).timestamp()
        for view in views:
            figures.add(tenant, view, now)
    return figures.text()


class _Sums:
    """Figures by tenant and queue. The first in the order of their names are told apart, so all instances tell the same."""

    def __init__(self) -> None:
        self.workers: dict[Labels, float] = defaultdict(float)
        self._depth: dict[Labels, float] = defaultdict(float)
        self._oldest: dict[Labels, float] = defaultdict(float)
        self._paused: dict[Labels, float] = defaultdict(float)

    def tenant(self, name: str) -> Labels:
        labels = (("tenant", name),)
        return labels if labels in self.workers or len(self.workers) < MOST_TENANTS else (("tenant", OTHER),)

    def add(self, tenant: str, view: QueueView, now: float) -> None:
        place: Labels = (("tenant", tenant), ("queue", view.name))
        if len(self._oldest) >= MOST_QUEUES:
            place = (("tenant", OTHER), ("queue", OTHER))
        for status in Status:
            self._depth[(*place, ("status", status.value))] += view.counts.get(status, 0)
        due_for = 0.0 if view.oldest_run_at is None else now - view.oldest_run_at.timestamp()
        self._oldest[place] = max(self._oldest[place], due_for, 0.0)
        self._paused[place] = max(self._paused[place], view.settings.paused)

    def text(self) -> str:
        lines = (
            *samples("penstock_queue_depth", "Jobs in the store, by tenant, queue and status.", "gauge", self._depth.items()),
            *samples("penstock_queue_oldest_seconds", "How long the oldest queued job has been due.", "gauge", self._oldest.items()),
            *samples("penstock_queue_paused", "Whether the queue is paused.", "gauge", self._paused.items()),
            *samples("penstock_workers", "Workers that show themselves, by tenant.", "gauge", self.workers.items()),
        )  # fmt: skip
        return "\n".join(lines) + "\n"
