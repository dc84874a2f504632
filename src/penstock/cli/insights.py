"""`penstock insights`: what the lake found out, and what follows from it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import click
from msgspec.structs import replace

from penstock.cli.exits import Exit, told
from penstock.cli.opening import on_store
from penstock.cli.output import (
    Column,
    clean,
    console,
    facts,
    heading,
    hint,
    now,
    output_option,
    plain,
    print_json,
    table,
)
from penstock.cli.plots import bar, sparkline
from penstock.cli.tables import GAP
from penstock.cli.words import ago, local, span
from penstock.insights import InsightAnswer, Row, acting, ask
from penstock.insights.acting import PER_SECOND, AppliedPlan
from penstock.queue import Queue

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@click.group()
def insights() -> None:
    """What the lake found out, as of its newest run, and what follows from it."""


# ── Looking ───────────────────────────────────────────────────────────────────────────────────────


def _question(
    name: str, about: str, columns: Sequence[Column], *, by: Sequence[str] = ("queue",), plot: Callable[[list[Row]], Any] | None = None
) -> None:  # fmt: skip
    """A command that asks one question; its plot is for people alone."""

    @insights.command(name, help=about)
    @click.option(
        "--limit", default=50, show_default=True, type=click.IntRange(1), help="At most so many rows."
    )
    @output_option("table", "wide", "json")
    @on_store
    async def command(queue: Queue, /, limit: int, output: str, **wanted: Any) -> None:
        answer = await ask(queue.store, queue.tenant, name, **wanted)
        if output == "json":
            print_json(_cut(answer, limit))
            return
        _show(_cut(answer, limit), columns, wide=output == "wide")
        if plot is not None and answer.rows:
            console().print("", plot(answer.rows), sep="\n")

    for field in reversed(by):
        option = click.Option(
            [f"--{field}"], help=f"Of this {'job type' if field == 'type' else field} alone."
        )
        command.params.insert(0, option)


def _cut(answer: InsightAnswer, limit: int) -> InsightAnswer:
    left_out = answer.left_out + max(0, len(answer.rows) - limit)
    return replace(answer, rows=answer.rows[:limit], left_out=left_out)


def _show(answer: InsightAnswer, columns: Sequence[Column], *, wide: bool) -> None:
    if answer.rows:
        console().print(table(columns, answer.rows, wide=wide))
    else:
        click.echo(f"nothing to tell of {answer.name}", err=True)
    click.echo(f"as of {local(answer.as_of)} ({ago(answer.as_of, now())})", err=True)
    if answer.left_out:
        hint(f"{answer.left_out:,} more rows are left out; --limit shows more, the lake has all")


def _field(name: str, title: str | None = None, **options: Any) -> Column:
    return Column(title or name.replace("_", " "), lambda row: row[name], **options)


def _count(name: str, title: str | None = None, **options: Any) -> Column:
    return Column(title or name.replace("_", " "), lambda row: f"{row[name]:,}", right=True, **options)


def _ms(name: str, title: str, **options: Any) -> Column:
    return Column(
        title, lambda row: "·" if row[name] is None else span(row[name] / 1000), right=True, **options
    )


def _number(name: str, title: str | None = None, **options: Any) -> Column:
    return Column(
        title or name, lambda row: "·" if row[name] is None else f"{row[name]:.3g}", right=True, **options
    )


def _share(name: str, title: str | None = None, **options: Any) -> Column:
    return Column(
        title or name, lambda row: "·" if row[name] is None else f"{row[name]:.2%}", right=True, **options
    )


def _moment(name: str, title: str | None = None, **options: Any) -> Column:
    return Column(
        title or name.replace("_", " "),
        lambda row: "·" if row[name] is None else local(datetime.fromisoformat(row[name])),
        whole=True, **options,
    )  # fmt: skip


def _hour_of_week(hour: int) -> str:
    return f"{DAYS[hour // 24]} {hour % 24:02}:00 UTC"


def _weeks(rows: list[Row]) -> Any:
    """The load of each queue through the week, a block for each two hours, or more where there is less room."""
    loads = {row["queue"]: row["load"] for row in rows if row["load"]}
    hours = _hours_a_block(7 * 24, ["load", *loads], (2, 3, 4, 6, 8))
    week = "".join(f"{day:<{24 // hours}}" for day in DAYS)
    return facts({"load": week, **{queue: _blocks(load, hours) for queue, load in loads.items()}})


def _hours(rows: list[Row]) -> Any:
    """The 95th percentile of waits of each queue in the last three days, a block for each hour, or for more of them."""
    waits = {(row["queue"], datetime.fromisoformat(row["hour"])): row["wait_p95_ms"] or 0 for row in rows}
    newest = max(hour for _, hour in waits)
    hours = [newest - timedelta(hours=back) for back in reversed(range(72))]
    queues = sorted({queue for queue, _ in waits})
    in_a_block = _hours_a_block(len(hours), ["wait p95", *queues], (1, 2, 3, 4, 6))
    lines = {queue: _blocks([waits.get((queue, hour), 0) for hour in hours], in_a_block) for queue in queues}
    return facts({"wait p95": f"{local(hours[0])} → {local(newest)}", **lines})


def _hours_a_block(hours: int, labels: Sequence[str], steps: Sequence[int]) -> int:
    """How many hours each block stands for, so that no line is wider than the terminal: half of it would be elsewhere."""
    room = console().width - max(map(len, labels)) - GAP
    return next((step for step in steps if hours // step <= room), steps[-1])


def _blocks(values: Sequence[float], hours: int) -> str:
    # No shape is lost by it: of several hours the fullest is shown.
    return sparkline([max(values[at : at + hours]) for at in range(0, len(values), hours)])


def _seen(row: Row) -> str:
    last = ago(datetime.fromisoformat(row["last_seen"]), now())
    return f"{last}, new" if row["is_new"] else last


_question(
    "failures", "Errors by what they have in common, those of the last day first.",
    [
        _field("fingerprint", whole=True), _count("count_24h", "24 h"), _count("count", "90 days"),
        Column("trend", lambda row: "·" if row["trend"] is None else f"×{row['trend']:.1f}", right=True),
        Column("last seen", _seen), Column("queues", lambda row: ", ".join(row["queues"])),
        _field("text", "error"), _field("top_frame", "raised in", wide=True),
        Column("types", lambda row: ", ".join(row["types"]), wide=True),
        Column("sample jobs", lambda row: "\n".join(row["sample_jobs"]), wide=True, whole=True),
    ],
    by=("queue", "type"),
)  # fmt: skip
_question(
    "capacity", "What to set each queue to, and its load through the week.",
    [
        _field("queue"), _count("concurrency"),
        Column("lease", lambda row: span(row["lease_seconds"]), right=True),
        Column("heartbeat", lambda row: span(row["heartbeat_seconds"]), right=True, wide=True),
        Column("used at the peak", lambda row: f"{bar(row['utilisation'], 10)} {row['utilisation']:.0%}"),
        _ms("expected_wait_ms", "expected wait"),
        Column("peak", lambda row: _hour_of_week(row["peak_hour_of_week"])), _field("why", wide=True),
    ],
    plot=_weeks,
)  # fmt: skip
_question(
    "slo", "How many jobs began in time, and how fast the error budget burns.",
    [
        _field("queue"), _field("window"), _ms("target_wait_ms", "target wait"), _share("objective"),
        _share("attainment"), _number("burn_rate", "burn rate"),
        Column("", lambda row: bar((row["burn_rate"] or 0) / 10, 10)), _count("good", wide=True), _count("total", wide=True),
    ],
)  # fmt: skip
_question(
    "anomalies", "Hours in which a queue was off its own weekly pattern.",
    [
        _moment("hour"), _field("queue"), _field("metric"), _field("direction", ""), _number("value"),
        _number("expected"), _number("score"),
    ],
)  # fmt: skip
_question(
    "latency", "Percentiles of waits and runs by queue and hour.",
    [
        _moment("hour"), _field("queue"), _count("attempts"),
        *(_ms(f"{what}_{name}_ms", f"{what} {name}") for what in ("wait", "run") for name in ("p50", "p95", "p99")),
    ],
    by=("queue", "type"), plot=_hours,
)  # fmt: skip
_question(
    "schedules", "How punctual schedules were, day by day.",
    [
        _field("day", whole=True), _field("schedule"), _count("fires"), _count("missed"), _ms("p50_ms", "late p50"),
        _ms("p99_ms", "late p99"), _ms("max_ms", "at most"),
    ],
    by=(),
)  # fmt: skip
_question(
    "usage", "Jobs, attempts and busy time by day.",
    [
        _field("day", whole=True), _field("queue"), _field("type"), _count("jobs"), _count("attempts"),
        _ms("busy_ms", "busy"),
    ],
    by=("queue", "type"),
)  # fmt: skip
_question(
    "flows", "Flows and their critical paths, the longest first.",
    [
        _field("root_id", "first job", whole=True), _field("status"), _count("jobs"), _ms("critical_ms", "critical path"),
        _moment("began_at"), _moment("ended_at", wide=True),
        Column("path", lambda row: "\n".join(row["critical_path"]), wide=True, whole=True),
    ],
    by=(),
)  # fmt: skip


# ── Acting ────────────────────────────────────────────────────────────────────────────────────────


@insights.command()
@click.argument("fingerprint")
@click.option("--yes", is_flag=True, help="Do it; without, they are only counted.")
@click.option(
    "--per-second", default=PER_SECOND, show_default=True, help="How many jobs come back in a second."
)
@click.option("--reason", help="Why; it is kept in the audit trail.")
@output_option("table", "json")
@on_store
async def redrive(
    queue: Queue, /, fingerprint: str, yes: bool, per_second: float, reason: str | None, output: str
) -> int:
    """Bring back all dead and held jobs of a failure, so many a second."""
    if not yes:
        matched, is_exact = await acting.count_failure(queue, fingerprint)
        if output == "json":
            print_json({"dry_run": True, "matched": matched, "is_exact": is_exact})
            return Exit.OK
        more = "" if is_exact else "more than "
        click.echo(
            f"would redrive {more}{matched:,} job{'' if matched == 1 else 's'} of {clean(fingerprint)}"
        )
        hint("nothing was changed; add --yes to redrive them")
        return Exit.OK
    done = await acting.redrive(queue, fingerprint, per_second=per_second, reason=reason, progress=_progress)
    if output == "json":
        print_json({"dry_run": False, "matched": done.matched, "changed": done.changed})
    else:
        click.echo(f"redriven {done.changed:,} of {done.matched:,} jobs of {clean(fingerprint)}")
    for error in done.refused[:10]:
        click.echo(f"penstock: {told(error)}", err=True)
    return Exit.REFUSED if done.matched > done.changed else Exit.OK


def _progress(changed: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{changed:,} so far\x1b[K", err=True, nl=False)


@insights.command("apply")
@click.argument("name", metavar="QUEUE")
@click.option("--yes", is_flag=True, help="Set it; without, it is only told.")
@output_option("table", "json")
@on_store
async def apply_(queue: Queue, /, name: str, yes: bool, output: str) -> None:
    """Set a queue's concurrency and lease as its capacity plan says."""
    applied = await acting.apply(queue, name, dry_run=not yes)
    if output == "json":
        print_json(applied)
        return
    screen = console()
    screen.print(heading(f"{name}, by the plan of {local(applied.as_of)}"))
    screen.print(facts(_changes(applied)))
    if not yes:
        hint("nothing was set; add --yes to set it")


def _changes(applied: AppliedPlan) -> dict[str, object]:
    before, after = plain(applied.before), plain(applied.after)
    changes = {setting: f"{_told(before[setting])} → {_told(after[setting])}" for setting in before}
    return {**changes, "why": applied.why or None}


def _told(value: object) -> str:
    return "none" if value is None else f"{value:g}"
