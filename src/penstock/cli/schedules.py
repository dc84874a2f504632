"""`penstock schedules`: jobs that are made by the clock."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import click
from msgspec.structs import replace

from penstock.cli import timeline
from penstock.cli.asking import job_asked, job_options
from penstock.cli.opening import on_store, on_store_or_new
from penstock.cli.output import (
    Column,
    console,
    facts,
    heading,
    hint,
    indented,
    now,
    output_option,
    pretty,
    print_json,
    show_list,
)
from penstock.cli.shapes import asked_plain, record_plain, schedule_plain, value
from penstock.cli.words import Json, ago, when
from penstock.core.cron import next_fires
from penstock.core.errors import PenstockError, ScheduleNotFound
from penstock.core.job import NewJob
from penstock.core.schedule import Missed, Schedule
from penstock.queue import Queue, new_id

RUNS_SHOWN = 5
_MADE_AT_EACH_FIRE = ("id", "run_at", "delay", "expires_at", "idempotency_key", "parents", "schedule")


@click.group()
def schedules() -> None:
    """Look at schedules, make them, pause them, run them now."""


@schedules.command("list")
@output_option()
@on_store
async def list_(queue: Queue, /, output: str) -> None:
    """List schedules and when they next fire."""
    at = now()
    columns = [
        Column("schedule", lambda schedule: schedule.name),
        Column("", lambda schedule: "paused" if schedule.paused else ""),
        Column("cron", lambda schedule: schedule.cron, whole=True),
        Column("zone", lambda schedule: schedule.tz, spare=2),
        Column("type", lambda schedule: schedule.job.type, spare=1),
        Column("queue", lambda schedule: schedule.job.queue, spare=3),
        Column("next", lambda schedule: _when_next(schedule, at)),
        Column("last", lambda schedule: ago(schedule.last_fire_at, at) if schedule.last_fire_at else "never", wide=True),
        Column("missed", lambda schedule: schedule.missed, wide=True),
        Column("declared by", lambda schedule: schedule.declared_by, wide=True),
    ]  # fmt: skip
    show_list(await queue.schedules(), output, columns, empty="no schedules yet", as_plain=schedule_plain)


def _when_next(schedule: Schedule, at: datetime) -> str:
    return "never" if schedule.next_fire_at is None else ago(schedule.next_fire_at, at)


@schedules.command()
@click.argument("name")
@output_option("table", "json")
@on_store
async def show(queue: Queue, /, name: str, output: str) -> None:
    """Tell everything about a schedule: its job, its next runs, and who changed it."""
    schedule = await queue.schedule(name)
    records = (await queue.history(name, "schedule")).records
    if output == "json":
        history = [record_plain(record) for record in records]
        print_json({**schedule_plain(schedule), "next": next_runs(schedule), "history": history})
        return
    _tell(schedule)
    if records:
        console().print(heading("changes"))
        console().print(timeline.of_changes(records))


def next_runs(schedule: Schedule) -> list[datetime]:
    """The next few fire times; none while it is paused."""
    at = schedule.next_fire_at
    return [] if at is None else [at, *next_fires(schedule.cron, schedule.tz, at, RUNS_SHOWN - 1)]


def _tell(schedule: Schedule) -> None:
    at, screen, asked = now(), console(), schedule.job
    screen.print(heading(f"{schedule.name}{' (paused)' if schedule.paused else ''}"))
    screen.print(
        facts(
            {
                "cron": f"{schedule.cron}   {schedule.tz}",
                "job": f"{asked.type} in {asked.queue}",
                "missed": f"{schedule.missed} of the times that pass while no scheduler runs",
                "priority": asked.priority or None,
                "key": asked.key,
                "unique key": asked.unique_key,
                "max attempts": asked.max_attempts,
                "last": when(schedule.last_fire_at, at),
                "declared by": schedule.declared_by and f"the code of {schedule.declared_by}",
            }
        )
    )
    if asked.payload != "{}":
        screen.print(heading("payload"))
        screen.print(indented(pretty(value(asked.payload))))
    runs = next_runs(schedule)
    screen.print(heading("next runs"))
    screen.print(indented("\n".join(_told(run, schedule.tz, at) for run in runs) if runs else "none"))


def _told(run: datetime, tz: str, at: datetime) -> str:
    """A fire time here, and in the schedule's zone if that is another."""
    there = run.astimezone(ZoneInfo(tz))
    same = there.utcoffset() == run.astimezone().utcoffset()
    return when(run, at) if same else f"{when(run, at)}, {there:%a %H:%M} in {tz}"


@schedules.command()
@click.argument("name")
@click.option("--cron", help="Five fields, or six with seconds first: '0 9 * * 1-5'.")
@click.option("--tz", help="A time zone of the IANA database; UTC unless given.")
@click.option("-t", "--type", metavar="NAME", help="The type of its job.")
@click.option("--payload", type=Json(), help="JSON; `-` reads it from standard input.")
@job_options
@click.option(
    "--missed",
    type=click.Choice([*map(str, Missed)]),
    help="What of times that pass while no scheduler runs.",
)
@click.option("--paused/--not-paused", default=None, help="Whether it rests.")
@click.option("--reason", help="Why; it is kept in the audit trail.")
@output_option("table", "json")
@on_store_or_new
async def put(
    queue: Queue,
    /,
    name: str,
    cron: str | None,
    tz: str | None,
    payload: tuple[Any] | None,
    missed: str | None,
    paused: bool | None,
    reason: str | None,
    output: str,
    **options: Any,
) -> None:
    """Make a schedule, or change the one of that name: what is not given stays as it is.

    penstock schedules put morning --cron '0 9 * * 1-5' --tz Europe/Paris --type report.write
    """
    asked = job_asked(payload, **options)
    timing = {"cron": cron, "tz": tz, "missed": missed, "paused": paused}
    try:
        old = await queue.schedule(name)
    except ScheduleNotFound:
        if cron is None or "type" not in asked:
            raise click.UsageError(f"{name} is new: --cron and --type are needed") from None
    else:
        asked = _asked(old.job) | asked
        timing = {part: getattr(old, part) if new is None else new for part, new in timing.items()}
    schedule = await queue.put_schedule(name, timing.pop("cron"), asked, reason=reason, **timing)  # type: ignore[arg-type]
    if output == "json":
        print_json({**schedule_plain(schedule), "next": next_runs(schedule)})
    else:
        _tell(schedule)


def _asked(job: NewJob) -> dict[str, Any]:
    """What a schedule's job was asked to be, as it would be asked again."""
    fields = {name: getattr(job, name) for name in job.__struct_fields__ if name not in _MADE_AT_EACH_FIRE}
    told = asked_plain(job)
    return fields | {"payload": told["payload"], "headers": told["headers"]}


@schedules.command()
@click.argument("name")
@click.option("--reason", help="Why; it is kept in the audit trail.")
@on_store
async def pause(queue: Queue, /, name: str, reason: str | None) -> None:
    """Let a schedule rest."""
    await queue.pause_schedule(name, reason)
    click.echo(f"{name} is paused")


@schedules.command()
@click.argument("name")
@click.option("--reason", help="Why; it is kept in the audit trail.")
@on_store
async def resume(queue: Queue, /, name: str, reason: str | None) -> None:
    """Let a schedule fire again, from now on."""
    schedule = await queue.resume_schedule(name, reason)
    click.echo(f"{name} fires {_when_next(schedule, now())}")


@schedules.command()
@click.argument("name")
@click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True,
    help="The id alone, or all there is to know.",
)  # fmt: skip
@on_store
async def run(queue: Queue, /, name: str, output: str) -> None:
    """Put the job of a schedule in now, once; its next fire time stays. Prints the job's id."""
    schedule = await queue.schedule(name)
    job = replace(schedule.job, id=new_id(), schedule=name)
    [answer] = await queue.enqueue_many([job])
    if isinstance(answer, PenstockError):
        raise answer
    if output == "json":
        print_json(answer)
    else:
        click.echo(answer.id)
    if answer.duplicate is not None:
        click.echo(f"penstock: no new job: one with the same {answer.duplicate} stands for it", err=True)


@schedules.command()
@click.argument("name")
@click.option("--reason", help="Why; it is kept in the audit trail.")
@on_store
async def drop(queue: Queue, /, name: str, reason: str | None) -> None:
    """Remove a schedule. Jobs that it has made stay."""
    schedule = await queue.drop_schedule(name, reason)
    click.echo(f"{name} is gone")
    if schedule.declared_by is not None:
        hint(f"the code of {schedule.declared_by} declares it, and will make it again when it starts")
