"""`penstock queues`: look at queues, pause them, set them."""

from __future__ import annotations

from datetime import datetime

import click

from penstock.cli import timeline
from penstock.cli.opening import on_store, on_store_or_new
from penstock.cli.output import (
    Column,
    console,
    facts,
    heading,
    now,
    output_option,
    plain,
    print_json,
    show_list,
)
from penstock.cli.settings import read_settings, told_setting, told_settings
from penstock.cli.shapes import queue_plain, record_plain
from penstock.cli.words import span
from penstock.core.commands import QueueView
from penstock.core.errors import NotFound
from penstock.core.job import Status
from penstock.core.settings import QueueSettings
from penstock.queue import Queue


@click.group()
def queues() -> None:
    """Look at queues, pause them, set them."""


@queues.command("list")
@output_option()
@on_store
async def list_(queue: Queue, /, output: str) -> None:
    """List queues: how many jobs are in each state, and how long the oldest has been due."""
    show_list(await queue.queues(), output, columns(now()), empty="no queues yet", as_plain=queue_plain)


def columns(at: datetime) -> list[Column]:
    """A queue in a line; `top` has the same ones."""

    def count(status: Status, *, wide: bool = False, spare: int = 0) -> Column:
        return Column(
            str(status), lambda view: view.counts.get(status, 0) or "·", wide=wide, right=True, spare=spare
        )

    return [
        Column("queue", lambda view: view.name),
        Column("", lambda view: "paused" if view.settings.paused else ""),
        count(Status.QUEUED),
        Column("oldest due", lambda view: oldest(view, at), right=True),
        count(Status.RUNNING),
        count(Status.WAITING, wide=True),
        count(Status.SUCCEEDED, spare=2),
        count(Status.DEAD),
        count(Status.HELD, spare=1),
        count(Status.CANCELLED, wide=True),
        Column(
            "concurrency", lambda view: told_setting(view.settings.max_concurrency), wide=True, right=True
        ),
        Column("rate", lambda view: told_setting(view.settings.rate), wide=True),
    ]


def oldest(view: QueueView, at: datetime) -> str:
    """How long the oldest queued job has been due."""
    run_at = view.oldest_run_at
    if run_at is None:
        return "·"
    late = (at - run_at).total_seconds()
    return span(late) if late > 0 else f"in {span(-late)}"


@queues.command()
@click.argument("name")
@output_option("table", "json")
@on_store
async def show(queue: Queue, /, name: str, output: str) -> None:
    """Tell everything about a queue: its jobs, its settings, and who changed them."""
    view = await _known(queue, name)
    records = (await queue.history(name, "queue")).records
    if output == "json":
        print_json({**queue_plain(view), "history": [record_plain(record) for record in records]})
        return
    screen = console()
    screen.print(heading(f"{view.name}{' (paused)' if view.settings.paused else ''}"))
    counts: dict[str, object] = {str(status): f"{view.counts.get(status, 0):,}" for status in Status}
    screen.print(facts({**counts, "oldest due": None if view.oldest_run_at is None else oldest(view, now())}))
    screen.print(heading("settings"))
    _print_settings(view.settings)
    if records:
        screen.print(heading("changes"))
        screen.print(timeline.of_changes(records))


async def _known(queue: Queue, name: str) -> QueueView:
    """A queue that was used or set; the library takes any name for one, but a person may have mistyped it."""
    views = {view.name: view for view in await queue.queues()}
    if name not in views:
        there = f"; there are {', '.join(list(views)[:20])}" if views else ""
        raise NotFound(f"no queue {name!r} in this tenant{there}")
    return views[name]


async def _tell_if_new(queue: Queue, *names: str) -> None:
    """A queue may be set before it has a job; but a person may have mistyped it."""
    there = [view.name for view in await queue.queues()]
    for name in names:
        if there and name not in there:
            known = ", ".join(there[:20])
            click.echo(f"penstock: there was no queue {name!r} until now; there are {known}", err=True)


@queues.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--reason", help="Why; it is kept in the audit trail.")
@on_store_or_new
async def pause(queue: Queue, /, names: tuple[str, ...], reason: str | None) -> None:
    """Let out no more jobs of a queue. Those that run finish; new ones are taken in."""
    await _tell_if_new(queue, *names)
    for name in names:
        await queue.pause(name, reason)
        click.echo(f"{name} is paused")


@queues.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--reason", help="Why; it is kept in the audit trail.")
@on_store
async def resume(queue: Queue, /, names: tuple[str, ...], reason: str | None) -> None:
    """Let jobs of a paused queue out again."""
    await _tell_if_new(queue, *names)
    for name in names:
        await queue.resume(name, reason)
        click.echo(f"{name} is not paused")


@queues.command("set")
@click.argument("name")
@click.argument("settings", nargs=-1, required=True, metavar="SETTING=VALUE...")
@click.option("--reason", help="Why; it is kept in the audit trail.")
@output_option("table", "json")
@on_store_or_new
async def set_(
    queue: Queue, /, name: str, settings: tuple[str, ...], reason: str | None, output: str
) -> None:
    """Set some of a queue's settings; the rest stay. They hold from the next lease on, everywhere.

    \b
    max_concurrency=5  max_concurrency_per_key=1  rate=100/60s  rate_per_key=5/s,burst=10
    fair=true  max_attempts=8  retry=exponential,base=5s,factor=2,cap=1h,jitter=0.1
    on_exhausted=hold  lease_seconds=60  retention_seconds=30d  max_depth=100000
    target_seconds=60  paused=false

    `none` takes a limit away.
    """
    changes = read_settings(settings)
    await _tell_if_new(queue, name)
    configured = await queue.configure(name, reason=reason, **changes)
    if output == "json":
        print_json({"name": name, "settings": plain(configured)})
        return
    console().print(heading(name))
    _print_settings(configured)


def _print_settings(settings: QueueSettings) -> None:
    """All settings; those that differ from the defaults stand out."""
    from rich.text import Text

    defaults = told_settings(QueueSettings())
    console().print(
        facts(
            {
                name: Text(told, style="bold" if told != defaults[name] else "dim")
                for name, told in told_settings(settings).items()
            }
        )
    )
