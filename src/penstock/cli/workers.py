"""`penstock workers`: who is at work."""

from __future__ import annotations

import click

from penstock.cli.opening import on_store
from penstock.cli.output import Column, now, output_option, show_list
from penstock.cli.words import ago
from penstock.presence import Presence
from penstock.presence import workers as present
from penstock.queue import Queue


@click.group()
def workers() -> None:
    """Look at the workers that have shown themselves lately."""


@workers.command("list")
@output_option()
@on_store
async def list_(queue: Queue, /, output: str) -> None:
    """List workers, what they serve and how busy they are. Whoever leases by hand or over HTTP is not among them."""
    at = now()
    columns = [
        Column("worker", lambda worker: worker.worker),
        Column("queues", _served),
        Column("running", lambda worker: f"{worker.running}/{worker.slots}", right=True),
        Column("up for", lambda worker: ago(worker.started_at, at).removesuffix(" ago"), right=True, spare=2),
        Column("seen", lambda worker: ago(worker.seen_at, at) if worker.seen_at else "never", spare=1),
        Column("", lambda worker: "stopping" if worker.stopping else ""),
        Column("reserved", lambda worker: worker.reserved, wide=True, right=True),
        Column("memory", _memory, wide=True, right=True),
        Column("host", lambda worker: worker.host, wide=True),
        Column("pid", lambda worker: worker.pid, wide=True, right=True),
        Column("version", lambda worker: worker.version, wide=True),
    ]
    found = await present(queue.store, queue.tenant)
    show_list(found, output, columns, empty="no workers: penstock worker module:app")


def _served(worker: Presence) -> str:
    return " ".join(
        name if weight == 1 else f"{name}={weight:g}" for name, weight in sorted(worker.queues.items())
    )


def _memory(worker: Presence) -> str | None:
    return None if worker.memory_bytes is None else f"{worker.memory_bytes / 1_048_576:,.0f} MB"
