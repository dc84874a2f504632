"""What happened lately, counted while it happens: figures by minute, and failures by what they have in common.

Nothing is counted when somebody asks. A historian (`figures.historian`) follows the feed and keeps sums as entries of the
store, in three grains that lapse by themselves; to ask is to read a bounded number of them. Figures are for people to
look at: a historian that dies between two writes may leave a few seconds out. What must be exact is the lake's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import msgspec
from msgspec import Struct

from penstock.core.histogram import GROWTH, Histogram, bucket, merge
from penstock.core.ports import Store

COUNTS = "figures"
FAILURES = "failure"
PLACES = "figures-place"
"""Kinds of entries."""
PLACE, CATALOGUE = "feed", "types"
"""Names of entries: how far the historian has come, and the types of jobs it has met."""

COARSE = 5
"""Buckets of the lake's histograms that are one here: 10 % wide, which keeps a minute small."""


class Grain(Struct, frozen=True):
    """How finely time is cut, and for how long that is kept."""

    seconds: int
    kept_seconds: int


MINUTE, FIVE, HOUR = Grain(60, 3 * 3600), Grain(300, 26 * 3600), Grain(3600, 8 * 86_400)
GRAINS = (MINUTE, FIVE, HOUR)


class Span(StrEnum):
    """How far back to look."""

    QUARTER = "15m"
    HOUR = "1h"
    WATCH = "6h"
    DAY = "24h"
    WEEK = "7d"


_SPANS: Mapping[Span, tuple[Grain, int]] = {
    Span.QUARTER: (MINUTE, 15),
    Span.HOUR: (MINUTE, 60),
    Span.WATCH: (FIVE, 72),
    Span.DAY: (FIVE, 288),
    Span.WEEK: (HOUR, 168),
}


class Counts(Struct, array_like=True):
    """What happened in one queue in one piece of time."""

    arrived: int = 0
    succeeded: int = 0
    failed: int = 0
    lost: int = 0
    dead: int = 0
    """Jobs that became dead or held."""
    cancelled: int = 0
    busy_ms: int = 0
    waits: Histogram = {}
    """Of first attempts, from when they could have begun."""
    runs: Histogram = {}

    @property
    def ended(self) -> int:
        """Attempts that came to their own end."""
        return self.succeeded + self.failed

    def add(self, other: Counts) -> None:
        self.arrived += other.arrived
        self.succeeded += other.succeeded
        self.failed += other.failed
        self.lost += other.lost
        self.dead += other.dead
        self.cancelled += other.cancelled
        self.busy_ms += other.busy_ms
        self.waits, self.runs = merge(self.waits, other.waits), merge(self.runs, other.runs)


Piece = dict[str, Counts]
"""A piece of time, by queue."""


class FailureGroup(Struct, frozen=True, kw_only=True):
    """Failures that have one cause, as far as their errors tell."""

    fingerprint: str
    error_type: str
    top_frame: str
    text: str
    first_seen: datetime
    last_seen: datetime
    count: int = 0
    dead: int = 0
    """How many of them left their job dead or held."""
    hours: dict[str, int] = {}
    """By hour (2026-11-16T21), of the last two days."""
    queues: list[str] = []
    types: list[str] = []
    sample_jobs: list[str] = []
    """The latest first."""
    sample_error: str = ""


class Series(Struct, frozen=True):
    """One figure after the other, a step apart."""

    arrived: list[int]
    succeeded: list[int]
    failed: list[int]
    lost: list[int]
    dead: list[int]
    cancelled: list[int]
    wait_p50_ms: list[float | None]
    wait_p95_ms: list[float | None]
    run_p50_ms: list[float | None]
    run_p95_ms: list[float | None]


class Latency(Struct, frozen=True):
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


class Totals(Struct, frozen=True):
    """A queue over the whole span."""

    queue: str
    arrived: int
    succeeded: int
    failed: int
    lost: int
    dead: int
    cancelled: int
    busy_ms: int
    wait: Latency
    run: Latency
    arrived_by_step: list[int]
    ended_by_step: list[int]


class Figures(Struct, frozen=True):
    """What happened, a step at a time."""

    at: datetime
    """By the store's clock."""
    first_at: datetime
    """When the first step begins. The last one is still going on."""
    step_seconds: int
    counted_since: datetime | None
    """Nothing before was counted; None if nothing has been counted yet."""
    series: Series
    queues: list[Totals]


class TypeName(Struct, frozen=True):
    """A type of jobs that was met lately, and where."""

    type: str
    queues: list[str]


class Place(Struct, frozen=True):
    """How far the historian has come."""

    cursor: str
    since: datetime


def piece_name(grain: Grain, at: datetime) -> str:
    """What a piece of time is called: its grain and its beginning."""
    return f"{grain.seconds}:{begin(grain, at):%Y-%m-%dT%H:%M}"


def begin(grain: Grain, at: datetime) -> datetime:
    seconds = int(at.timestamp())
    return datetime.fromtimestamp(seconds - seconds % grain.seconds, UTC)


def coarse(ms: float) -> int:
    return bucket(ms) // COARSE


def percentile(histogram: Mapping[int, int], share: float) -> float | None:
    """As the lake reads it, from wider buckets."""
    total = sum(histogram.values())
    if not total:
        return None
    seen = 0
    for place in sorted(histogram):
        seen += histogram[place]
        if seen >= share * total:
            break
    return round(float(GROWTH ** (place * COARSE + COARSE / 2)), 2)


async def figures(store: Store, tenant: str, span: Span, queue: str | None = None) -> Figures:
    """What happened over a span, in all or in one queue."""
    grain, steps = _SPANS[span]
    now = await store.now()
    first_at = begin(grain, now) - timedelta(seconds=grain.seconds * (steps - 1))
    names = [piece_name(grain, first_at + timedelta(seconds=grain.seconds * step)) for step in range(steps)]
    found = {entry.name: entry.body for entry in await store.entries(tenant, COUNTS, names)}
    pieces = [msgspec.json.decode(found[name], type=Piece) if name in found else Piece() for name in names]
    if queue is not None:
        pieces = [{queue: piece[queue]} if queue in piece else {} for piece in pieces]
    place = await read_place(store, tenant)
    return Figures(
        now, first_at, grain.seconds, None if place is None else place.since,
        _series([_sum(piece.values()) for piece in pieces]),
        [_totals(name, pieces) for name in sorted({name for piece in pieces for name in piece})],
    )  # fmt: skip


async def read_place(store: Store, tenant: str) -> Place | None:
    entries = await store.entries(tenant, PLACES, [PLACE])
    return msgspec.json.decode(entries[0].body, type=Place) if entries else None


async def failure_groups(store: Store, tenant: str) -> list[FailureGroup]:
    """Failures of the last week, those that were seen last first."""
    entries = await store.entries(tenant, FAILURES)
    groups = [msgspec.json.decode(entry.body, type=FailureGroup) for entry in entries]
    return sorted(groups, key=lambda group: group.last_seen, reverse=True)


async def failure_group(store: Store, tenant: str, fingerprint: str) -> FailureGroup | None:
    entries = await store.entries(tenant, FAILURES, [fingerprint])
    return msgspec.json.decode(entries[0].body, type=FailureGroup) if entries else None


async def types(store: Store, tenant: str) -> list[TypeName]:
    """The types of jobs that were met lately, by name."""
    entries = await store.entries(tenant, PLACES, [CATALOGUE])
    if not entries:
        return []
    known = msgspec.json.decode(entries[0].body, type=dict[str, list[str]])
    return [TypeName(name, sorted(queues)) for name, queues in sorted(known.items())]


def recent(group: FailureGroup, now: datetime, hours: int) -> int:
    """How often it was seen in the last hours, the one that goes on included."""
    return sum(group.hours.get(hour_name(now - timedelta(hours=back)), 0) for back in range(hours))


def last_hour(group: FailureGroup, now: datetime) -> int:
    """About how often it was seen within the last sixty minutes: this hour, and of the one before as much as is missing."""
    this, before = recent(group, now, 1), recent(group, now, 2) - recent(group, now, 1)
    return this + round(before * (1 - now.minute / 60))


def is_rising(group: FailureGroup, now: datetime) -> bool:
    """Whether it is seen far more often than in the day before."""
    latest = last_hour(group, now)
    usually = (recent(group, now, 26) - recent(group, now, 2)) / 24
    return latest >= 5 and latest > 3 * usually


def hour_name(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H}"


def _sum(all_counts: Iterable[Counts]) -> Counts:
    total = Counts()
    for counts in all_counts:
        total.add(counts)
    return total


def _series(steps: list[Counts]) -> Series:
    return Series(
        [one.arrived for one in steps], [one.succeeded for one in steps], [one.failed for one in steps],
        [one.lost for one in steps], [one.dead for one in steps], [one.cancelled for one in steps],
        [percentile(one.waits, 0.5) for one in steps], [percentile(one.waits, 0.95) for one in steps],
        [percentile(one.runs, 0.5) for one in steps], [percentile(one.runs, 0.95) for one in steps],
    )  # fmt: skip


def _totals(queue: str, pieces: list[Piece]) -> Totals:
    total = _sum(piece[queue] for piece in pieces if queue in piece)
    return Totals(
        queue, total.arrived, total.succeeded, total.failed, total.lost, total.dead, total.cancelled,
        total.busy_ms, _latency(total.waits), _latency(total.runs),
        [piece[queue].arrived if queue in piece else 0 for piece in pieces],
        [piece[queue].ended if queue in piece else 0 for piece in pieces],
    )  # fmt: skip


def _latency(histogram: Histogram) -> Latency:
    return Latency(percentile(histogram, 0.5), percentile(histogram, 0.95), percentile(histogram, 0.99))
