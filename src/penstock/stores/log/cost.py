"""What a log asks of its storage, and what that costs at list prices."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from math import exp

from msgspec import Struct
from msgspec.structs import replace

from penstock.stores.log.backings import Tape
from penstock.stores.log.entry import LogEntry, read
from penstock.stores.log.errors import Truncated
from penstock.stores.log.options import REST
from penstock.stores.wakeups.polling import LONGEST_SECONDS

PRICES_OF = "2026-11"
MOST_ENTRIES = 1_000
OF_JOBS = frozenset({"enqueue", "deliver", "lease", "heartbeat", "settle", "cancel", "redrive", "fire"})
"""What is written because there are jobs. The rest is written at rest too."""
HOURS_A_MONTH = 730.0
PUT_SECONDS = 0.04
"""What a write to a bucket takes in the median: so long calls gather by themselves."""


class Price(Struct, frozen=True):
    """Dollars for a million requests. Deleting is free everywhere."""

    name: str
    put: float
    get: float


S3_STANDARD = Price("S3 Standard, us-east-1", put=5.0, get=0.4)


S3_EXPRESS = Price("S3 Express One Zone", put=1.13, get=0.03)


# ── What to expect ────────────────────────────────────────────────────────────────────────────────

OPERATIONS_PER_JOB = 3
"""Put in, leased, ended."""
LOST = {1: 0.0, 2: 0.02, 4: 0.12, 8: 0.33}
"""By committing processes: the share of writes whose number another had taken, who then tries the next."""
OFFICE_AN_HOUR, SHOWN_AN_HOUR = 68, 22.5
"""Entries at rest: the scheduler's office is kept, and each worker shows itself."""
CLOCK_AN_HOUR = 4
OTHER_LOOKS_AN_HOUR = 270
"""By a worker, besides those for what is new: for orders, for jobs whose time has come, for lost leases."""
PUT_OFF = 0.25
"""By these, so many of the looks for what is new."""
ABOVE_AN_HOUR = 6
"""A worker's listings of what stands above the end."""
COMPACTOR_PUTS, COMPACTOR_PUTS_PER_ENTRY, COMPACTOR_GETS = 30, 0.4, 80
"""By the hour at rest, listings among the first, reading the entries not among the last. See `test_idle`."""
LEAST_HOURS = 1.0
"""Of less than that of a log it cannot be said what an hour of rest is like."""


class Requests(Struct, frozen=True):
    """So many, by what costs alike. A listing costs as much as a write."""

    puts: float
    gets: float

    def cost(self, price: Price) -> float:
        return (self.puts * price.put + self.gets * price.get) / 1e6


def of_jobs(jobs: int, per_commit: float, processes: int = 1) -> Requests:
    """For jobs that are put in, leased and ended, where so many are in each commit, by so many processes."""
    entries = jobs * OPERATIONS_PER_JOB / per_commit
    return Requests(entries / (1 - LOST[processes]), entries * (processes - 1))


def at_rest(workers: int, hours: float = HOURS_A_MONTH, poll_seconds: float = LONGEST_SECONDS) -> Requests:
    """For workers that wait, with their scheduler and compactor."""
    hour = resting(OFFICE_AN_HOUR + workers * SHOWN_AN_HOUR, workers, poll_seconds)
    return Requests(hour.puts * hours, hour.gets * hours)


def resting(entries: float, processes: int, poll_seconds: float) -> Requests:
    """An hour in which so many entries are written at rest; every process reads each, and so does the compactor."""
    puts = entries * (1 + COMPACTOR_PUTS_PER_ENTRY) + COMPACTOR_PUTS
    puts += (processes + 1) * CLOCK_AN_HOUR + processes * ABOVE_AN_HOUR
    return Requests(puts, processes * (looks_an_hour(poll_seconds) + entries) + COMPACTOR_GETS)


def commits_a_second(calls: float, window_seconds: float = 0.0) -> float:
    """Of so many calls a second, made one by one and at random times."""
    if window_seconds:
        return min(1 / (window_seconds + 1 / calls), 1 / PUT_SECONDS)
    return 1 / (PUT_SECONDS + exp(-calls * PUT_SECONDS) / calls)  # who came meanwhile goes at once


def looks_an_hour(poll_seconds: float) -> float:
    return (1 - PUT_OFF) * 3600 / (REST * poll_seconds) + OTHER_LOOKS_AN_HOUR


# ── What was measured ─────────────────────────────────────────────────────────────────────────────


class Usage(Struct, frozen=True):
    """What the newest entries of a log were about."""

    entries: int = 0
    at_rest: int = 0
    """Those that no job had a part in: offices kept, workers showing themselves, time passing."""
    jobs: int = 0
    """Jobs that were put in by them."""
    writers: int = 0
    """Processes that were at work at once, on average. One that came, wrote and went is none of them."""
    hours: float = 0.0
    poll_seconds: float = LONGEST_SECONDS

    @property
    def puts_per_job(self) -> float:
        return (self.entries - self.at_rest) / self.jobs if self.jobs else 0.0

    @property
    def gets_per_job(self) -> float:
        """Every process reads what the others wrote, one request each."""
        return self.puts_per_job * max(self.writers - 1, 0)

    @property
    def tells_of_rest(self) -> bool:
        """Whether it was long enough, with somebody there, to say what an hour of rest is."""
        return self.hours >= LEAST_HOURS and self.writers > 0

    @property
    def idle_hour(self) -> Requests:
        """With the compactor's. Nothing where the entries do not tell of rest."""
        return (
            resting(self.at_rest / self.hours, self.writers, self.poll_seconds)
            if self.tells_of_rest
            else Requests(0, 0)
        )

    def per_million_jobs(self, price: Price) -> float:
        return self.puts_per_job * price.put + self.gets_per_job * price.get

    def idle_month(self, price: Price) -> float:
        return self.idle_hour.cost(price) * HOURS_A_MONTH


async def measured(name: str, tape: Tape, poll_seconds: float = LONGEST_SECONDS) -> Usage:
    """What the newest entries tell. The log is only read."""
    after = max(await tape.last() - MOST_ENTRIES, 0)
    try:
        found = await tape.read(after, MOST_ENTRIES)
    except Truncated as error:
        found = await tape.read(error.first - 1, MOST_ENTRIES)
    entries = (entry for number, data in found if (entry := read(name, number, data)) is not None)
    return replace(usage(entries), poll_seconds=poll_seconds)


def usage(entries: Iterable[LogEntry]) -> Usage:
    count = at_rest = jobs = 0
    there: dict[bytes, tuple[datetime, datetime]] = {}
    for entry in entries:
        count += 1
        first, last = there.get(entry.writer, (entry.ts, entry.ts))
        there[entry.writer] = min(first, entry.ts), max(last, entry.ts)
        at_rest += OF_JOBS.isdisjoint(op.verb for op in entry.ops)
        jobs += sum(len(op.given) for op in entry.ops if op.verb in {"enqueue", "deliver"})
    if not there:
        return Usage()
    seconds = _seconds(min(first for first, _ in there.values()), max(last for _, last in there.values()))
    # From its first entry to its last: who works on shows itself every few minutes, and a command's are all of one moment.
    present = sum(_seconds(first, last) for first, last in there.values())
    return Usage(count, at_rest, jobs, round(present / seconds) if seconds else 1, seconds / 3600)


def _seconds(first: datetime, last: datetime) -> float:
    return (last - first).total_seconds()
