"""`penstock enqueue`: put one job in, and wait for what becomes of it if asked to."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from math import inf
from typing import Any

import click

from penstock.app.handle import ended
from penstock.cli.asking import job_asked, job_options
from penstock.cli.exits import Exit
from penstock.cli.opening import on_store_or_new
from penstock.cli.output import clean, hint, print_json
from penstock.cli.shapes import job_plain
from penstock.cli.words import Duration, Json, Moment
from penstock.core.commands import Enqueued
from penstock.core.errors import JobFailed, PenstockError
from penstock.core.job import Job, Status
from penstock.explain import explain
from penstock.queue import Queue

FOR_EVER = inf
"""What `--wait` alone stands for."""


@click.command()
@click.argument("type")
@click.argument("payload", required=False, type=Json())
@job_options
@click.option("--delay", type=Duration(), help="Not before this has passed: 30s, 5m, 2h.")
@click.option(
    "--run-at", type=Moment(), help="Not before this time: 2030-01-31T09:00, local unless it has a zone."
)
@click.option("--idempotency-key", help="The same request with it is not repeated within 24 hours.")
@click.option("--parent", "parents", multiple=True, metavar="ID", help="Wait until this job has succeeded.")
@click.option(
    "--wait", "patience", type=Duration(), is_flag=False, flag_value=FOR_EVER, metavar="[SECONDS]",
    help="Wait for its end, at most so long: prints its result, or exits with 1 and its error.",
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True,
    help="The id (or with --wait the result) alone, or all there is to know.",
)  # fmt: skip
@on_store_or_new
async def enqueue(
    queue: Queue,
    /,
    type: str,
    payload: tuple[Any] | None,
    parents: tuple[str, ...],
    patience: float | None,
    output: str,
    **options: Any,
) -> int:
    """Put a job of TYPE in and print its id.

    PAYLOAD is JSON, the handler's arguments by name; `-` reads it from standard input.

    The code of the handler is not looked at: the queue and all else that `@app.job(…)` declares hold for jobs that the code puts
    in. Say here what is to differ from the defaults and from what the queue is set to.

    \b
    penstock enqueue email.send '{"to": "ada@example.com"}' --queue emails --delay 5m

    \b
    penstock enqueue report.write - --wait 60 < report.json
    """
    asked = job_asked(payload, **options)
    answer = await queue.enqueue(type, **asked, **({"parents": parents} if parents else {}))
    if answer.duplicate is not None:
        click.echo(f"penstock: no new job: one with the same {answer.duplicate} stands for it", err=True)
    if patience is None:
        _print_id(answer, output)
        return Exit.OK
    hint(f"waiting for {answer.id}")
    await _tell_if_unserved(queue, answer.id)
    return await _waited(queue, answer, None if patience == FOR_EVER else patience, output)


async def _tell_if_unserved(queue: Queue, id: str) -> None:
    """A job in a queue that no worker takes may be waited for until the end of days."""
    with suppress(PenstockError):  # a token may not be allowed to look; then we wait without it
        for reason in (await explain(queue, id)).reasons:
            if reason.code == "no_worker":
                click.echo(f"penstock: {reason.message}; --queue names another", err=True)


def _print_id(answer: Enqueued, output: str) -> None:
    if output == "json":
        print_json(answer)
    else:
        click.echo(answer.id)


async def _waited(queue: Queue, answer: Enqueued, patience: float | None, output: str) -> Exit:
    try:
        job = await ended(queue, answer.id, patience)
    except TimeoutError as error:
        click.echo(f"penstock: {error}", err=True)
        return Exit.FAILED
    except asyncio.CancelledError:
        click.echo(f"penstock: job {answer.id} goes on without us", err=True)
        raise
    _print_end(job, output)
    if job.status is Status.SUCCEEDED:
        return Exit.OK
    click.echo(f"penstock: {JobFailed(job.id, job.status, None, job.cause)} (job_failed)", err=True)
    if job.error is not None:
        click.echo(clean(job.error), err=True)
    return Exit.FAILED


def _print_end(job: Job, output: str) -> None:
    if output == "json":
        print_json(job_plain(job))
    elif job.status is Status.SUCCEEDED:
        click.echo(json.dumps(job_plain(job)["result"], ensure_ascii=False))
