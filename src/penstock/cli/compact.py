"""`penstock compact`: one round of the compactor, for those who run it by cron instead of beside their workers."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import click
from msgspec import to_builtins

from penstock.cli.exits import refused
from penstock.cli.output import output_option, print_json
from penstock.core.errors import PenstockError
from penstock.stores.log.compacting import Compacted, Rhythm, compact_once
from penstock.stores.log.store import SHARD


@click.command("compact")
@click.argument("url", envvar="PENSTOCK_URL")
@click.option(
    "--retention-hours", default=24.0, show_default=True, type=click.FloatRange(min=0.1),
    help="How long entries stay: longer than any program may be suspended and go on.",
)  # fmt: skip
@output_option("table", "json")
def command(url: str, retention_hours: float, output: str) -> None:
    """Write a snapshot of a log, file:///…, s3://… and the like, and delete what nobody needs any more.

    It may be killed at any moment, and run at any time, also while others do the same.
    """
    rhythm = Rhythm(retention=timedelta(hours=retention_hours))
    try:
        done = asyncio.run(compact_once(url, SHARD, rhythm))
    except PenstockError as error:
        raise refused(error) from None
    if output == "json":
        print_json(to_builtins(done))
    else:
        click.echo(_told(done))


def _told(done: Compacted) -> str:
    wrote = (
        f"wrote a snapshot at entry {done.number:,}"
        if done.wrote
        else f"nothing new since entry {done.number:,}"
    )
    return f"{wrote}; entries up to {done.watermark:,} are gone, and {done.deleted:,} old segments with them"
