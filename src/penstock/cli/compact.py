"""`penstock compact`: a round of the compactor, for those who run it by cron instead of beside their workers."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import click
from msgspec import to_builtins

from penstock.cli.exits import refused
from penstock.cli.opening import found_log
from penstock.cli.output import output_option, print_json
from penstock.core.errors import PenstockError
from penstock.stores.log.backings.numbered import RETENTION_SECONDS
from penstock.stores.log.compacting import Compacted, Rhythm, compact_once
from penstock.stores.log.layout import shard_name
from penstock.stores.log.options import read_options


@click.command("compact")
@click.argument("url", envvar="PENSTOCK_URL")
@click.option(
    "--retention-hours", default=RETENTION_SECONDS / 3600, show_default=True,
    type=click.FloatRange(min=RETENTION_SECONDS / 3600),  # programs rely on it: see `numbered`
    help="How long entries stay: longer than any program may be suspended and go on.",
)  # fmt: skip
@output_option("table", "json")
def command(url: str, retention_hours: float, output: str) -> None:
    """Write a snapshot of each log in a place, file:///…, s3://… and the like, and delete what nobody needs any more.

    It may be killed at any moment, and run at any time, also while others do the same.
    """
    rhythm = Rhythm(retention=timedelta(hours=retention_hours))
    try:
        done = asyncio.run(_compacted(url, rhythm))
    except PenstockError as error:
        raise refused(error) from None
    if output == "json":
        print_json([{"log": log, **to_builtins(one)} for log, one in done.items()])
        return
    for log, one in done.items():
        click.echo(f"{log}: {_told(one)}" if len(done) > 1 else _told(one))


async def _compacted(url: str, rhythm: Rhythm) -> dict[str, Compacted]:
    """What came of each log of a place, one after the other."""
    found = await found_log(url)
    address, _ = read_options(url)
    logs = [shard_name(number) for number in range(found.shards)]
    return {log: await compact_once(address, log, rhythm) for log in logs}


def _told(done: Compacted) -> str:
    wrote = (
        f"wrote a snapshot at entry {done.number:,}"
        if done.wrote
        else f"nothing new since entry {done.number:,}"
    )
    return f"{wrote}; entries up to {done.watermark:,} are gone, and {done.deleted:,} old segments with them"
