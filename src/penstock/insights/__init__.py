"""What the lake found out, as people ask for it. It needs neither Spark nor Arrow: the newest run's answers are in the store.

`penstock.lake.publish` puts them there, one body per tenant and gold table, all as of one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from penstock.core import bounds
from penstock.core.codec import JsonText
from penstock.core.errors import InvalidInput, NotFound
from penstock.core.histogram import Histogram, merge, percentile
from penstock.core.ports import Store

Row = dict[str, Any]
Rows = list[Row]
Tables = Mapping[str, Rows]

SUMMARY = "summary"
"""The name under which a run says what it has published."""
HOURS_OF_A_WEEK = 168


class Body(Struct, frozen=True):
    """A gold table of one tenant as it is published: the columns are named once, the most telling rows come first."""

    columns: list[str]
    rows: list[list[Any]]
    left_out: int = 0
    """Rows that were too many, or too old."""


class Summary(Struct, frozen=True):
    """What a run has published."""

    rows: dict[str, int]
    """By the name of the table."""


class InsightAnswer(Struct, frozen=True):
    """An answer, and as of when it is right: what happened later is not in it."""

    name: str
    as_of: datetime
    rows: Rows
    left_out: int = 0
    """Rows that are not in the answer: over its limit, or too many to be published."""


class InsightOffer(Struct, frozen=True):
    """What can be asked, and what is known about it."""

    name: str
    about: str
    rows: int
    """Published for it."""


class InsightOffers(Struct, frozen=True):
    as_of: datetime | None
    """None until a run of the lake has published something for this tenant."""
    insights: list[InsightOffer]


class _Question(Struct, frozen=True):
    about: str
    tables: tuple[str, ...]
    answer: Callable[[Tables], Rows]
    by: tuple[str, ...] = ("queue",)
    """What it can be narrowed down to."""


# ── Asking ────────────────────────────────────────────────────────────────────────────────────────


async def offers(store: Store, tenant: str) -> InsightOffers:
    """What there is, and as of when."""
    found = await store.insights(tenant, [SUMMARY])
    rows: dict[str, int] = {}
    if found:
        rows = msgspec.json.decode(found[0].body, type=Summary).rows
    listed = [
        InsightOffer(name, asked.about, rows.get(asked.tables[0], 0))
        for name, asked in sorted(QUESTIONS.items())
    ]
    return InsightOffers(found[0].as_of if found else None, listed)


async def ask(
    store: Store,
    tenant: str,
    name: str,
    *,
    queue: str | None = None,
    type: str | None = None,
    limit: int | None = None,
) -> InsightAnswer:
    """One of QUESTIONS, for all of a tenant or for one queue or job type; the most telling rows first."""
    asked = QUESTIONS.get(name)
    if asked is None:
        raise NotFound(f"there are no insights {name[:100]!r}; there are {', '.join(sorted(QUESTIONS))}")
    wanted = {
        field: bounds.name(field, given)
        for field, given in (("queue", queue), ("type", type))
        if given is not None
    }
    for field, given in wanted.items():
        if field not in asked.by:
            raise InvalidInput(field, f"not be given, because {name} are not kept by {field}", given)
    found = {one.name: one for one in await store.insights(tenant, asked.tables)}
    if asked.tables[0] not in found:
        raise NotFound("nothing is published for this tenant yet; `penstock lake run` does")
    bodies = {table: msgspec.json.decode(found[table].body, type=Body) for table in found}
    tables = {table: _narrowed(_rows(body), wanted) for table, body in bodies.items()}
    rows = asked.answer(tables)
    shown = rows if limit is None else rows[:limit]
    first = asked.tables[0]
    return InsightAnswer(name, found[first].as_of, shown, bodies[first].left_out + len(rows) - len(shown))


def encoded(value: Body | Summary) -> JsonText:
    return JsonText(msgspec.json.encode(value).decode())


def _rows(body: Body) -> Rows:
    return [dict(zip(body.columns, row, strict=True)) for row in body.rows]


def _narrowed(rows: Rows, wanted: Mapping[str, str]) -> Rows:
    """Those about a queue or a type."""
    return [row for row in rows if all(given in _about(row, field) for field, given in wanted.items())]


def _about(row: Row, field: str) -> Sequence[str]:
    """A failure has hit several queues and types; everything else is about one."""
    return row[f"{field}s"] if f"{field}s" in row else (row[field],)


# ── The answers ───────────────────────────────────────────────────────────────────────────────────


def _as_published(table: str) -> Callable[[Tables], Rows]:
    return lambda tables: list(tables[table])


def _latency(tables: Tables) -> Rows:
    """Percentiles by queue and hour, newest first: histograms of all types add up, their percentiles would not."""
    by_hour: dict[tuple[str, str], Rows] = {}
    for row in tables["hourly"]:
        by_hour.setdefault((row["hour"], row["queue"]), []).append(row)
    newest_first = sorted(
        sorted(by_hour, key=lambda place: place[1]), key=lambda place: place[0], reverse=True
    )
    return [_latency_of(queue, hour, by_hour[hour, queue]) for hour, queue in newest_first]


def _latency_of(queue: str, hour: str, rows: Rows) -> Row:
    waits, runs = (_merged(row[column] for row in rows) for column in ("wait_hist", "run_hist"))
    return {
        "queue": queue,
        "hour": hour,
        "attempts": sum(runs.values()),
        **_percentiles("wait", waits),
        **_percentiles("run", runs),
    }


def _merged(histograms: Iterable[Mapping[str, int] | None]) -> Histogram:
    """Histograms as JSON has them, whose buckets are texts."""
    return merge(*({int(place): count for place, count in (one or {}).items()} for one in histograms))


def _percentiles(what: str, histogram: Histogram) -> Row:
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {f"{what}_{name}_ms": _rounded(percentile(histogram, share)) for name, share in shares.items()}


def _rounded(ms: float | None) -> float | None:
    """A histogram is exact to one per cent: more digits would only pretend."""
    return None if ms is None else float(f"{ms:.4g}")


def _capacity(tables: Tables) -> Rows:
    """The plan of each queue, with its load (erlangs) in each hour of the week from Monday 00:00 UTC on."""
    loads: dict[str, list[float]] = {}
    for row in tables.get("capacity", []):
        week = loads.setdefault(row["queue"], [0.0] * HOURS_OF_A_WEEK)
        week[row["hour_of_week"]] = row["offered_load"] or 0.0
    return [{**row, "load": loads.get(row["queue"], [])} for row in tables["capacity_plan"]]


def _worst_first(rows: Rows, columns: Sequence[str]) -> Rows:
    return sorted(rows, key=lambda row: [row[column] or 0 for column in columns], reverse=True)


_BOTH = ("queue", "type")

QUESTIONS: Mapping[str, _Question] = {
    "failures": _Question(
        "Errors by what they have in common, those of the last day first",
        ("failures",), lambda tables: _worst_first(tables["failures"], ("count_24h", "count")), _BOTH,
    ),
    "capacity": _Question(
        "What to set each queue to, and its load by hour of the week", ("capacity_plan", "capacity"), _capacity
    ),
    "slo": _Question(
        "How many jobs began in time, and how fast the error budget burns", ("slo",), _as_published("slo")
    ),
    "anomalies": _Question(
        "Hours in which a queue was off its own weekly pattern", ("anomalies",), _as_published("anomalies")
    ),
    "latency": _Question("Percentiles of waits and runs by queue and hour", ("hourly",), _latency, _BOTH),
    "schedules": _Question(
        "How punctual schedules were, day by day", ("schedules",), _as_published("schedules"), ()
    ),
    "usage": _Question("Jobs, attempts and busy time by day", ("usage",), _as_published("usage"), _BOTH),
    "flows": _Question("Flows and their critical paths, the longest first", ("flows",), _as_published("flows"), ()),
    "hourly": _Question("Figures by hour, queue and type", ("hourly",), _as_published("hourly"), _BOTH),
    "daily": _Question("Figures by day, queue and type", ("daily",), _as_published("daily"), _BOTH),
}  # fmt: skip
