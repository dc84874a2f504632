"""`penstock demo`: a few seconds of a queue's life, and what its history says afterwards."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from penstock import Leased, NewJob, Queue, Retry, Status, connect
from penstock.cli.output import output_option
from penstock.core.codec import decode
from penstock.core.commands import Settle
from penstock.core.job import Attempt, Change, Job, Record

WORKERS = 4
BATCH = 20
QUEUES = ("emails", "payments", "reports")
DONE = (Status.SUCCEEDED, Status.DEAD, Status.CANCELLED)


@dataclass
class Story:
    """The jobs the demo looks at again at the end."""

    flaky: str
    orphan: str
    report: str


@click.command()
@click.option(
    "--jobs", default=2_000, show_default=True, type=click.IntRange(10, 100_000), help="How many jobs to run."
)
@click.option("--seed", default=1, show_default=True, help="Decides which jobs fail.")
@output_option("table", "json")
def demo(jobs: int, seed: int, output: str) -> None:
    """Run jobs through a queue in memory: retries, a crashed worker, limits, a flow; and tell what happened."""
    asyncio.run(_run(jobs, seed, output == "json"))


async def _run(jobs: int, seed: int, as_json: bool) -> None:
    console = Console(stderr=as_json)
    queue = connect("memory://", actor="demo")
    await queue.configure("emails", retry=Retry.exponential(base=0.05, cap=0.4), max_attempts=4)
    await queue.configure("payments", max_concurrency_per_key=1, fair=True)
    story, total = await _enqueue(queue, jobs, random.Random(seed))
    console.print(
        f"Enqueued [bold]{total:,}[/] jobs into {', '.join(QUEUES)}; {WORKERS} workers lease them, {BATCH} at a time."
    )
    await _crash(queue)
    console.print("A fifth worker leased a job of emails and vanished; its lease runs out in a second.")
    with Progress(
        TextColumn("working"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    ) as progress:
        task = progress.add_task("working", total=total)
        await asyncio.gather(
            *(
                _work(queue, f"worker-{n}", total, lambda done: progress.update(task, completed=done))
                for n in range(1, WORKERS + 1)
            )
        )
    dead = [job async for job in queue.find_all(status="dead")]
    summary = await _summary(queue, story, dead)
    if as_json:
        json.dump(summary, sys.stdout, indent=2)
        print()
    else:
        _tell(console, summary)


async def _enqueue(queue: Queue, jobs: int, dice: random.Random) -> tuple[Story, int]:
    """Mail of which some fails, payments of three customers in fair turns, and a report that waits for both."""
    flaky = queue.new("email.send", {"to": "ada@example.com", "fails": 2}, queue="emails")
    orphan = queue.new("email.send", {"to": "bob@example.com", "fails": 0}, queue="emails", priority=9)
    payment = queue.new("payment.collect", {"customer": "acme", "fails": 0}, queue="payments", key="acme")
    report = queue.new("report.write", {"fails": 0}, queue="reports", parents=[flaky.id, payment.id])
    mixed: list[NewJob] = [flaky, orphan, payment, report]
    for number in range(jobs - len(mixed)):
        if number % 10 == 0:
            customer = dice.choice(["acme", "acme", "acme", "zeta", "ohm"])
            mixed.append(
                queue.new(
                    "payment.collect", {"customer": customer, "fails": 0}, queue="payments", key=customer
                )
            )
        else:
            fails = dice.choices([0, 1, 9], weights=[940, 55, 5])[0]
            mixed.append(
                queue.new("email.send", {"to": f"user{number}@example.com", "fails": fails}, queue="emails")
            )
    await queue.enqueue_many(mixed)
    return Story(flaky.id, orphan.id, report.id), len(mixed)


async def _crash(queue: Queue) -> None:
    """Lease one job and never come back."""
    await queue.lease("emails", worker="worker-5", lease_seconds=1)


async def _work(queue: Queue, worker: str, total: int, show: Callable[[int], None]) -> None:
    """Lease, run, settle, until every job has ended."""
    while True:
        leased = [one for name in QUEUES for one in await queue.lease(name, worker=worker, limit=BATCH)]
        if leased:
            await asyncio.sleep(0.01)  # the work itself
            await queue.settle_many([_handle(queue, one) for one in leased])
        done = sum(view.counts[status] for view in await queue.queues() for status in DONE)
        show(done)
        if done == total:
            return
        if not leased:
            await asyncio.sleep(0.02)


def _handle(queue: Queue, leased: Leased) -> Settle:
    payload = decode(leased.job.payload)
    if leased.job.attempts <= payload["fails"]:
        return queue.nacked(leased, "SMTPServerDisconnected: connection unexpectedly closed")
    if leased.parents:
        return queue.acked(leased, {"parents": [parent.status for parent in leased.parents]})
    return queue.acked(leased)


async def _summary(queue: Queue, story: Story, dead: Sequence[Job]) -> dict[str, Any]:
    return {
        "queues": {
            view.name: {status: n for status, n in view.counts.items() if n} for view in await queue.queues()
        },
        "failed_twice_then_sent": await _told(queue, story.flaky),
        "worker_vanished": await _told(queue, story.orphan),
        "waited_for_two_jobs": await _told(queue, story.report),
        "dead": [
            {"id": job.id, "type": job.type, "payload": decode(job.payload), "error": job.error}
            for job in dead
        ],
    }


async def _told(queue: Queue, job_id: str) -> list[str]:
    job = await queue.get(job_id)
    lines = [f"{job.created_at:%H:%M:%S.%f} enqueued in {job.queue}"]
    return lines + [_line(record) for record in (await queue.history(job_id)).records]


def _line(record: Record) -> str:
    if isinstance(record, Attempt):
        again = f", again at {record.run_at:%H:%M:%S.%f}" if record.status is Status.QUEUED else ""
        error = f": {record.error}" if record.error else ""
        return f"{record.ended_at:%H:%M:%S.%f} attempt {record.number} by {record.worker} {record.outcome}{again}{error}"
    assert isinstance(record, Change)
    return f"{record.at:%H:%M:%S.%f} {record.verb} by {record.actor}: {record.reason}"


def _tell(console: Console, summary: dict[str, Any]) -> None:
    table = Table("queue", *DONE, title="What became of them", title_justify="left")
    for name, counts in summary["queues"].items():
        table.add_row(name, *(str(counts.get(status, 0)) for status in DONE))
    console.print(table)
    for title, lines in (
        ("A job that failed twice, with back-off, then succeeded", summary["failed_twice_then_sent"]),
        ("A job whose worker vanished", summary["worker_vanished"]),
        ("A job that waited for two others", summary["waited_for_two_jobs"]),
    ):
        console.print(f"\n[bold]{title}[/]")
        for line in lines:
            console.print(f"  {line}", highlight=False)
    dead = summary["dead"]
    if dead:
        console.print(
            f"\n[bold]{len(dead)} jobs are dead[/]; the first: {dead[0]['payload']['to']}, {dead[0]['error']}"
        )
        console.print(
            "  `await queue.redrive_matching(status='dead')` would bring them all back, history kept.",
            highlight=False,
        )
