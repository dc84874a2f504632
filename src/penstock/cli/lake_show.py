"""A lake's hours as plots in a terminal: its worst day, its week, and its waits. Needs no Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from typing import Any

from penstock.cli.plots import bar, columns, shades
from penstock.cli.words import span
from penstock.core.histogram import Histogram, merge, percentile
from penstock.lake.manifest import Lake, here, whole

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
COLUMNS = ["tenant", "queue", "hour", "arrivals", "failed", "wait_hist"]
HEIGHT = 5
INDENT = 12

Row = dict[str, Any]


def hours(lake: Lake, days: int) -> list[Row]:
    """The rows of `hourly` of the last so many days."""
    import pyarrow.parquet as pq

    manifest = whole(lake)
    latest = manifest.days[-days:]
    rows: list[Row] = []
    for file in here(lake, manifest.folders("hourly", latest)):
        rows += pq.read_table(file, columns=COLUMNS, partitioning=None).to_pylist()
    return rows


def shown(rows: Sequence[Row]) -> Iterator[str]:
    """All plots, line by line."""
    yield from _worst_day(rows)
    yield ""
    yield from _week(rows)
    yield ""
    yield from _waits(rows)


def _worst_day(rows: Sequence[Row]) -> Iterator[str]:
    """The day on which most attempts failed, by hour."""
    failed: Counter[date] = Counter()
    for row in rows:
        failed[row["hour"].date()] += row["failed"]
    [(day, number)] = failed.most_common(1)
    of_day = [row for row in rows if row["hour"].date() == day]
    yield f"The day with most failures, {DAYS[day.weekday()]} {day}: {number:,} attempts failed (by hour, UTC)"
    for name in ("arrivals", "failed"):
        by_hour = [sum(row[name] for row in of_day if row["hour"].hour == hour) for hour in range(24)]
        lines = columns(by_hour, HEIGHT)
        yield from (f"{'':{INDENT}}{line}".rstrip() for line in lines[:-1])
        yield f"{name:<{INDENT}}{lines[-1]}  at most {max(by_hour):,}"
    yield _clock()


def _week(rows: Sequence[Row]) -> Iterator[str]:
    """How many jobs come in each hour of the week, on average."""
    totals: Counter[tuple[int, int]] = Counter()
    for row in rows:
        totals[row["hour"].weekday(), row["hour"].hour] += row["arrivals"]
    first, last = min(row["hour"].date() for row in rows), max(row["hour"].date() for row in rows)
    dates = [first + timedelta(days=n) for n in range((last - first).days + 1)]
    weeks = Counter(day.weekday() for day in dates)
    mean = {(day, hour): number / weeks[day] for (day, hour), number in totals.items()}
    most = max(mean.values())
    yield f"Jobs coming in by hour of the week (UTC); the darkest is {most:,.0f} an hour"
    for at, name in enumerate(DAYS):
        yield f"{name:<{INDENT}}{shades([mean.get((at, hour), 0) for hour in range(24)], most)}".rstrip()
    yield _clock()


def _waits(rows: Sequence[Row]) -> Iterator[str]:
    """How long the attempts of each queue waited, the longest first."""
    waits: dict[str, Histogram] = {}
    for row in rows:
        name = f"{row['tenant']}/{row['queue']}"
        waits[name] = merge(waits.get(name, {}), dict(row["wait_hist"] or ()))
    told = {
        name: [percentile(one, share) or 0.0 for share in (0.5, 0.95, 0.99)] for name, one in waits.items()
    }
    longest = max((tail for _, tail, _ in told.values()), default=0) or 1
    title = "Waits by queue"
    width = max(map(len, [title, *told]))
    yield f"{title:<{width}}{'p50':>9}{'p95':>9}{'p99':>9}"
    for name, times in sorted(told.items(), key=lambda one: one[1][1], reverse=True):
        each = "".join(f"{span(ms / 1000):>9}" for ms in times)
        yield f"{name:<{width}}{each}  {bar(times[1] / longest, 30)}".rstrip()


def _clock() -> str:
    return (
        " " * INDENT
        + "".join(f"{hour:<6}" for hour in ("00", "03", "06", "09", "12", "15", "18", "21")).rstrip()
    )
