"""What a log asks of its storage, and what that costs at list prices."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from penstock.stores.log.backings import Tape
from penstock.stores.log.entry import LogEntry, read
from penstock.stores.log.errors import Truncated
from penstock.stores.wakeups.polling import LONGEST_SECONDS

PRICES_OF = "2026-11"
MOST_ENTRIES = 1_000
OF_JOBS = frozenset({"enqueue", "deliver", "lease", "heartbeat", "settle", "cancel", "redrive", "fire"})
"""What is written because there are jobs. The rest is written at rest too."""
HOURS_A_MONTH = 730.0


class Price(Struct, frozen=True):
    """Dollars for a million requests. Deleting is free everywhere."""

    name: str
    put: float
    get: float


S3_STANDARD = Price("S3 Standard, us-east-1", put=5.0, get=0.4)
S3_EXPRESS = Price("S3 Express One Zone", put=1.13, get=0.03)


class Usage(Struct, frozen=True):
    """What the newest entries of a log were about."""

    entries: int = 0
    at_rest: int = 0
    """Those that no job had a part in: offices kept, workers showing themselves, time passing."""
    jobs: int = 0
    """Jobs that were put in by them."""
    writers: int = 0
    hours: float = 0.0

    @property
    def puts_per_job(self) -> float:
        return (self.entries - self.at_rest) / self.jobs if self.jobs else 0.0

    @property
    def gets_per_job(self) -> float:
        """Every process reads what the others wrote, one request each."""
        return self.puts_per_job * max(self.writers - 1, 0)

    @property
    def puts_per_idle_hour(self) -> float:
        return self.at_rest / self.hours if self.hours else 0.0

    @property
    def gets_per_idle_hour(self) -> float:
        """Every process looks for what is new, and in between for what the others wrote at rest."""
        return self.writers * 3600 / LONGEST_SECONDS + self.puts_per_idle_hour * max(self.writers - 1, 0)

    def per_million_jobs(self, price: Price) -> float:
        return self.puts_per_job * price.put + self.gets_per_job * price.get

    def idle_month(self, price: Price) -> float:
        hour = self.puts_per_idle_hour * price.put + self.gets_per_idle_hour * price.get
        return hour * HOURS_A_MONTH / 1e6


async def measured(name: str, tape: Tape) -> Usage:
    """What the newest entries tell. The log is only read."""
    after = max(await tape.last() - MOST_ENTRIES, 0)
    try:
        found = await tape.read(after, MOST_ENTRIES)
    except Truncated as error:
        found = await tape.read(error.first - 1, MOST_ENTRIES)
    return usage(entry for number, data in found if (entry := read(name, number, data)) is not None)


def usage(entries: Iterable[LogEntry]) -> Usage:
    count = at_rest = jobs = 0
    writers: set[bytes] = set()
    times: list[datetime] = []
    for entry in entries:
        count += 1
        writers.add(entry.writer)
        times.append(entry.ts)
        at_rest += OF_JOBS.isdisjoint(op.verb for op in entry.ops)
        jobs += sum(len(op.given) for op in entry.ops if op.verb in {"enqueue", "deliver"})
    hours = (max(times) - min(times)).total_seconds() / 3600 if times else 0.0
    return Usage(count, at_rest, jobs, len(writers), hours)
