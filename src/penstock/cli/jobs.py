"""`penstock jobs`: look at jobs, cancel them, bring them back."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from importlib.util import find_spec
from typing import Any

import click

from penstock.cli import timeline
from penstock.cli.exits import Exit, exit_of, told
from penstock.cli.filters import filter_options, in_words, taken
from penstock.cli.opening import EMBEDDED, on_store
from penstock.cli.output import (
    Column,
    clean,
    coloured,
    console,
    facts,
    heading,
    hint,
    indented,
    now,
    output_option,
    plain,
    pretty,
    print_json,
    show_list,
    stream,
)
from penstock.cli.shapes import job_plain, record_plain, value
from penstock.cli.words import ago, local, span, when
from penstock.core.archive import NOT_ARCHIVED, Archived
from penstock.core.bounds import MOST_LISTED
from penstock.core.commands import Bulk, Changed
from penstock.core.errors import JobNotFound, PenstockError
from penstock.core.job import Cause, Job, JobId, Status
from penstock.core.settings import QueueSettings
from penstock.explain import explain
from penstock.queue import Queue

CANCELLABLE = (Status.WAITING, Status.QUEUED, Status.RUNNING, Status.HELD)
FAILED = (Status.DEAD, Status.HELD)
"""What `redrive` takes by itself; what somebody has cancelled comes back only when asked for by its state."""


@click.group()
def jobs() -> None:
    """Look at jobs, cancel them, bring them back."""


# ── Looking ───────────────────────────────────────────────────────────────────────────────────────


@jobs.command("list")
@filter_options
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1), help="At most so many.")
@click.option("--after", metavar="ID", help="Go on below this id.")
@click.option("--all", "everything", is_flag=True, help="All that match, however many.")
@output_option()
@on_store
async def list_(
    queue: Queue, /, limit: int, after: str | None, everything: bool, output: str, **options: Any
) -> None:
    """List jobs, newest first."""
    conditions = taken(options)
    found = _found(queue, conditions, after, None if everything else limit + 1)
    if everything and output not in ("table", "wide"):
        await stream(found, output, job_plain)
        return
    listed = [job async for job in found]
    shown = listed if everything else listed[:limit]
    empty = f"no jobs {in_words(conditions)}".rstrip()
    show_list(shown, output, _columns(), empty=empty, as_plain=job_plain)
    if len(listed) > len(shown):
        hint(f"there are more: --after {shown[-1].id}, or --all")


async def _found(
    queue: Queue, conditions: dict[str, Any], after: str | None, most: int | None
) -> AsyncIterator[Job]:
    count = 0
    while most is None or count < most:
        size = MOST_LISTED if most is None else min(most - count, MOST_LISTED)
        page = await queue.find(after=after, limit=size, **conditions)
        for job in page.jobs:
            yield job
        count += len(page.jobs)
        if page.next is None:
            return
        after = page.next


def _columns() -> list[Column]:
    at = now()

    def moved(job: Job) -> str:
        """What its state makes one ask: since when, for how long, until when."""
        match job.status:
            case Status.RUNNING if job.lease is not None:
                return f"for {span((at - job.lease.taken_at).total_seconds())}"
            case Status.QUEUED if job.run_at > at:
                return ago(job.run_at, at)
            case Status.QUEUED:
                return f"due for {span((at - job.run_at).total_seconds())}"
            case _:
                return ago(job.ended_at or job.created_at, at)

    return [
        Column("id", lambda job: job.id, whole=True),
        Column("type", lambda job: job.type, spare=1),
        Column("queue", lambda job: job.queue, spare=3),
        Column("status", lambda job: job.status, whole=True),
        Column("attempts", lambda job: job.attempts, right=True, spare=4),
        Column("when", moved, spare=2),
        Column("created", lambda job: local(job.created_at), wide=True),
        Column("run at", lambda job: local(job.run_at), wide=True),
        Column("priority", lambda job: job.priority, wide=True, right=True),
        Column("key", lambda job: job.asked.key, wide=True),
        Column("worker", lambda job: job.lease.worker if job.lease else None, wide=True),
        Column("cause", lambda job: job.cause, wide=True),
        Column("error", lambda job: _first_line(job.error), wide=True),
    ]


def _first_line(text: str | None, most: int = 80) -> str | None:
    if not text:
        return None
    first = text.strip().splitlines()[0]
    return first if len(first) <= most else f"{first[:most]}…"


@jobs.command()
@click.argument("id")
@click.option(
    "--lake",
    envvar="PENSTOCK_LAKE",
    show_envvar=True,
    metavar="PATH",
    help="Where the lake is, for a job that has left the store; without it, ./.penstock/lake.",
)
@output_option("table", "json")
@on_store
async def show(queue: Queue, /, id: str, lake: str | None, output: str) -> None:
    """Tell everything about a job: what was asked, what became of it, and every step on the way.

    Of one that has left the store, what the lake has.
    """
    archived = None
    try:
        job, history = await queue.get(id), await queue.history(id)
    except JobNotFound:
        archived = await _archived(queue, JobId(id), lake)
        if archived is None:
            raise
        job, history = archived.job, archived.history
    if output == "json":
        told = {**job_plain(job), "history": [record_plain(record) for record in history.records]}
        if archived is not None:
            kept = {name: said for name, said in told.items() if name not in NOT_ARCHIVED}
            told = {
                **kept,
                "source": "lake",
                "data_as_of": plain(archived.data_as_of),
                "lacking": list(NOT_ARCHIVED),
            }
        print_json(told)
        return
    settings = (await queue.queue(job.queue)).settings
    screen = console()
    screen.print(heading(f"{job.type} {job.id}"))
    screen.print(facts({**_facts(job, settings), "source": archived and _source(archived)}))
    for title, text in (("payload", job.payload), ("progress", job.progress), ("result", job.result)):
        if text is not None and archived is None:
            screen.print(heading(title))
            screen.print(indented(pretty(value(text))))
    if job.error is not None:
        screen.print(heading("error"))
        screen.print(indented(job.error))
    if logs := next((attempt.logs for attempt in reversed(history.attempts) if attempt.logs), None):
        screen.print(heading("logs of the last attempt that has some"))
        screen.print(indented(logs.rstrip()))
    screen.print(heading("timeline"))
    screen.print(timeline.of_job(job, history.records))


def _source(archived: Archived) -> str:
    *some, last = NOT_ARCHIVED
    return f"the lake as of {when(archived.data_as_of, now())}: no {', '.join(some)} or {last} any more"


async def _archived(queue: Queue, job_id: JobId, lake: str | None) -> Archived | None:
    """A job in the lake that is named, or in the one beside the embedded store."""
    if lake is None and not (EMBEDDED / "lake").exists():
        return None
    if find_spec("pyarrow") is None:
        hint('it may be in the lake, but pyarrow is not installed to read it: pip install "penstock[lake]"')
        return None
    from penstock.lake.archive import LakeArchive

    # A service asks in its own lake. Only of one that was named is it known that it belongs to this store.
    archive = LakeArchive(lake or EMBEDDED / "lake", None if lake is None else queue.store)
    try:
        return await archive.find(queue.tenant, job_id)
    finally:
        await archive.close()


def _facts(job: Job, settings: QueueSettings) -> dict[str, object]:
    at, asked = now(), job.asked
    state = str(job.status) if job.cause in (None, Cause.CANCELLED) else f"{job.status} ({job.cause})"
    asked_to_stop = job.cancel_requested and job.status is Status.RUNNING
    return {
        "status": f"{state}, asked to stop" if asked_to_stop else state,
        "queue": f"{job.queue} (paused)" if settings.paused else job.queue,
        "attempts": f"{job.attempts} of {settings.policy(asked).max_attempts}",
        "priority": job.priority or None,
        "created": when(job.created_at, at),
        "runs": when(job.run_at, at) if job.status is Status.QUEUED else None,
        "expires": None if job.expires_at is None else when(job.expires_at, at),
        "worker": job.lease and f"{job.lease.worker}, lease until {when(job.lease.expires_at, at)}",
        "ended": None if job.ended_at is None else when(job.ended_at, at),
        "key": asked.key,
        "ordering key": asked.ordering_key,
        "unique key": asked.unique_key,
        "idempotency key": asked.idempotency_key,
        "schedule": asked.schedule,
        "parents": "\n".join(asked.parents) or None,
        "headers": asked.headers,
        "tenant": None if job.tenant == "default" else job.tenant,
    }


@jobs.command("explain")
@click.argument("id")
@output_option("table", "json")
@on_store
async def explain_(queue: Queue, /, id: str, output: str) -> None:
    """Say why a job is where it is, and what keeps it from running."""
    explanation = await explain(queue, id)
    if output == "json":
        print_json(explanation)
        return
    screen = console()
    screen.print(heading(explanation.summary))
    screen.print(facts({"job": explanation.job_id, "status": coloured(explanation.status)}))
    for reason in explanation.reasons:
        if reason.message not in explanation.summary:
            screen.print(indented(f"also: {reason.message}"))


# ── Changing ──────────────────────────────────────────────────────────────────────────────────────


def change_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A change to jobs that are named, or (with --yes) to all that match."""
    for option in reversed(
        (
            click.argument("ids", nargs=-1, metavar="[ID]..."),
            filter_options,
            click.option("--reason", help="Why; it is kept in the audit trail."),
            click.option("--yes", is_flag=True, help="Do it; without, a filter only counts."),
            output_option("table", "json"),
        )
    ):
        command = option(command)
    return command


@jobs.command()
@change_options
@on_store
async def cancel(
    queue: Queue, /, ids: tuple[str, ...], reason: str | None, yes: bool, output: str, **options: Any
) -> int:
    """Cancel jobs: those named, or all that match a filter.

    A job that runs is asked to stop. A filter alone only says what it would do; add --yes to do it.

    \b
    penstock jobs cancel --queue emails --type email.send --before 7d --yes
    """
    conditions = _chosen(ids, taken(options), CANCELLABLE)
    if ids:
        return await _each(ids, lambda job_id: queue.cancel(job_id, reason), output)
    return await _matching(queue.cancel_matching, "cancel", "cancelled", conditions, reason, yes, output)


@jobs.command()
@change_options
@click.option(
    "--descendants/--alone", default=True, show_default=True,
    help="Also those that were cancelled because a job named here failed.",
)  # fmt: skip
@on_store
async def redrive(
    queue: Queue,
    /,
    ids: tuple[str, ...],
    reason: str | None,
    yes: bool,
    output: str,
    descendants: bool,
    **options: Any,
) -> int:
    """Bring jobs back that are dead, held or cancelled: those named, or all that match a filter.

    A filter alone only says what it would do; add --yes to do it. Without --status it takes what is dead or held.

    \b
    penstock jobs redrive --queue emails --status dead --since 2h --yes
    """
    conditions = _chosen(ids, taken(options), FAILED)
    if ids:
        return await _each(ids, lambda job_id: queue.redrive(job_id, reason, descendants=descendants), output)
    return await _matching(queue.redrive_matching, "redrive", "redriven", conditions, reason, yes, output)


def _chosen(ids: Sequence[str], conditions: dict[str, Any], statuses: tuple[Status, ...]) -> dict[str, Any]:
    """The filter, if no ids are given; without a state, those in which the change makes sense."""
    if ids and conditions:
        raise click.UsageError("name jobs by id or say which by a filter, not both")
    if not ids and not conditions:
        raise click.UsageError("name jobs by id, or say which: --queue, --type, --status, …")
    return {"statuses": tuple(map(str, statuses)), **conditions}


async def _each(ids: Sequence[str], change: Callable[[str], Awaitable[Changed]], output: str) -> int:
    done: list[Changed] = []
    errors: list[PenstockError] = []
    for job_id in ids:
        try:
            done.append(await change(job_id))
        except PenstockError as error:
            errors.append(error)
    if done or output == "json":
        show_list(done, output, _CHANGED, empty="nothing was changed")
    for refusal in errors:
        click.echo(f"penstock: {told(refusal)}", err=True)
    return max(map(exit_of, errors), default=Exit.OK)


_CHANGED = [
    Column("id", lambda changed: changed.job_id, whole=True),
    Column(
        "status",
        lambda changed: f"{changed.status}, asked to stop" if changed.cancel_requested else changed.status,
    ),
    Column("with it", lambda changed: "\n".join(changed.others), whole=True),
]


async def _matching(
    change: Callable[..., Awaitable[Bulk]],
    verb: str,
    past: str,
    conditions: dict[str, Any],
    reason: str | None,
    yes: bool,
    output: str,
) -> int:
    counted = await change(dry_run=True, **conditions)
    jobs = f"{counted.matched:,} job{'' if counted.matched == 1 else 's'} {in_words(conditions)}"
    if not yes or not counted.matched:
        if output == "json":
            print_json(_bulk_plain(verb, conditions, counted, dry_run=not yes))
        else:
            click.echo(
                clean(
                    f"would {verb} {jobs}" if counted.matched else f"there are no jobs {in_words(conditions)}"
                )
            )
            if counted.matched:
                hint(f"nothing was changed; add --yes to {verb} them")
        return Exit.OK
    bulk = await _with_progress(change, verb, conditions, reason, counted.matched)
    if output == "json":
        print_json(_bulk_plain(verb, conditions, bulk, dry_run=False))
    else:
        click.echo(clean(f"{past} {bulk.changed:,} of {jobs}"))
    for error in bulk.refused[:10]:
        click.echo(f"penstock: {told(error)}", err=True)
    refused = bulk.matched - bulk.changed
    if refused > 10:
        click.echo(f"penstock: … and {refused - 10:,} more were refused", err=True)
    return Exit.REFUSED if refused else Exit.OK


async def _with_progress(
    change: Callable[..., Awaitable[Bulk]],
    verb: str,
    conditions: dict[str, Any],
    reason: str | None,
    total: int,
) -> Bulk:
    if not sys.stderr.isatty():
        return await change(reason, **conditions)
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn(verb), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task(verb, total=total)
        return await change(reason, progress=lambda done: bar.update(task, completed=done), **conditions)


def _bulk_plain(verb: str, conditions: dict[str, Any], bulk: Bulk, *, dry_run: bool) -> dict[str, Any]:
    return {
        "action": verb,
        "filter": conditions,
        "in_words": f"jobs {in_words(conditions)}",
        "dry_run": dry_run,
        "matched": bulk.matched,
        "changed": bulk.changed,
        "refused": [{"code": error.code, "message": error.message} for error in bulk.refused],
    }
