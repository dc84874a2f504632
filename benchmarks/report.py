"""Figures as a table for people: what was measured, how Penstock compares, which gates hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Figures = dict[str, float]


class Row(NamedTuple):
    """One thing measured of every system."""

    key: str
    label: str
    form: str
    more_is_better: bool


ROWS = (
    Row("bulk", "bulk enqueue, jobs/s", ",.0f", True),
    Row("callers", "32 single callers, jobs/s", ",.0f", True),
    Row("drain", "drain of no-ops, jobs/s", ",.0f", True),
    Row("bulk_cpu", "bulk, µs of client CPU a job", ",.1f", False),
    Row("drain_cpu", "drain, µs of client CPU a job", ",.1f", False),
    Row("idle_p50", "pick-up idle, p50 ms", ",.1f", False),
    Row("idle_p99", "pick-up idle, p99 ms", ",.1f", False),
    Row("idle_call_p50", "  from the call on, p50 ms", ",.1f", False),
    Row("loaded_p50", "pick-up under load, p50 ms", ",.1f", False),
    Row("loaded_p99", "pick-up under load, p99 ms", ",.1f", False),
    Row("loaded_call_p99", "  from the call on, p99 ms", ",.1f", False),
    Row("wal", "WAL per job, bytes", ",.0f", False),
    Row("dead", "dead rows per job", ",.2f", False),
)


class Gate(NamedTuple):
    """Something that must hold; `value` may find that it was not measured."""

    label: str
    value: Callable[[Mapping[str, Any]], float]
    limit: float
    at_least: bool

    def line(self, result: Mapping[str, Any]) -> str:
        sign = "≥" if self.at_least else "≤"
        try:
            value = self.value(result)
        except KeyError:
            return f"  not run  {self.label} {sign} {self.limit:g}"
        holds = value >= self.limit if self.at_least else value <= self.limit
        return f"  {'holds ' if holds else 'BROKEN'}   {self.label} {sign} {self.limit:g}: {value:,.2f}"


def _ratio(key: str, system: str) -> Callable[[Mapping[str, Any]], float]:
    return lambda result: result["figures"]["penstock"][key] / result["figures"][system][key]


def _own(key: str) -> Callable[[Mapping[str, Any]], float]:
    return lambda result: result["figures"]["penstock"][key]


GATES = (
    Gate("drain, times PGQueuer", _ratio("drain", "pgqueuer"), 4, True),
    Gate("drain, times the floor", _ratio("drain", "floor"), 0.8, True),
    Gate("bulk enqueue, times PGQueuer", _ratio("bulk", "pgqueuer"), 2, True),
    Gate("32 single callers, times PGQueuer", _ratio("callers", "pgqueuer"), 3, True),
    Gate("idle pick-up p50, times PGQueuer", _ratio("idle_p50", "pgqueuer"), 0.6, False),
    Gate("pick-up p99 under load, ms", _own("loaded_p99"), 25, False),
    Gate("WAL of a whole life, bytes", _own("wal"), 2048, False),
    Gate("lease of 100 before a deep backlog, ms", lambda result: result["deep"]["lease_ms"], 2, False),
    Gate("its buffers, for finding them", lambda result: result["deep"]["finding_buffers"], 200, False),
    Gate("lease + ack p99 under a pinned snapshot, ms", lambda result: result["pinned"]["p99_ms"], 25, False),
    Gate("its backlog at the end, jobs", lambda result: result["pinned"]["left"], 300, False),
)


def report(result: Mapping[str, Any]) -> str:
    return "\n".join([*_heading(result), "", *_table(result["figures"]), "", *_gates(result)])


def _heading(result: Mapping[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    sizes = result["sizes"]
    return [
        "",
        f"{result['machine']}; PostgreSQL {result['postgresql']}, fsync and synchronous_commit on; "
        f"Python {result['python']}, {result['event_loop']} for all",
        versions,
        f"median of {sizes['rounds']} rounds; {sizes['drained']:,} jobs drained ({sizes['drained_slow']:,} by Procrastinate and "
        f"SAQ); under load: {sizes['rate']:,} jobs/s for {sizes['rate_seconds']} s",
    ]


def _table(figures: Mapping[str, Figures]) -> list[str]:
    """One line a measurement, one column a system; behind each other system's figure Penstock's divided by it."""
    systems = list(figures)
    own = figures.get("penstock", {})
    lines = [f"{'':<30}" + "".join(f"{system:>20}" for system in systems)]
    for row in ROWS:
        cells = [_cell(row, own, system, figures[system]) for system in systems]
        lines.append(f"{row.label:<30}" + "".join(f"{cell:>20}" for cell in cells))
    lines.append("(Penstock ÷ other; ◀ where Penstock loses)")
    return lines


def _cell(row: Row, own: Figures, system: str, figures: Figures) -> str:
    if row.key not in figures:
        return "–"
    value = figures[row.key]
    text = format(value, row.form)
    if system == "penstock" or row.key not in own or not value:
        return text
    ratio = round(own[row.key] / value, 2)
    loses = ratio < 1 if row.more_is_better else ratio > 1
    return f"{text} ({ratio:.2f}×){' ◀' if loses else ''}"


def _gates(result: Mapping[str, Any]) -> list[str]:
    deep, pinned = result["deep"], result["pinned"]
    return [
        f"lease of 100 before {deep['ready']:,} ready and {deep['scheduled']:,} scheduled: {deep['lease_ms']:.2f} ms on the server "
        f"({deep['lease_ms_shallow']:.2f} in an empty line), {deep['finding_buffers']:,.0f} buffers for finding and "
        f"{deep['buffers']:,.0f} in all ({deep['buffers_shallow']:,.0f}), "
        f"{deep['as_the_caller_sees_it_ms']:.1f} ms as the caller sees it",
        f"lease + ack of up to 100 under a pinned snapshot: p50 {pinned['p50_ms']:.1f} ms, p99 {pinned['p99_ms']:.1f} ms",
        "",
        "gates",
        *(gate.line(result) for gate in GATES),
    ]
