"""`penstock dev` on the command line."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from penstock.cli.main import lake_options, logging_options


@click.command()
@click.argument("target", metavar="[MODULE:APP]", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port",
    default=8080,
    show_default=True,
    type=click.IntRange(0, 65_535),
    help="0 takes any that is free.",
)
@click.option(
    "--data",
    default=".penstock",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where the database lives.",
)
@click.option("--token", help="The token to use; by default one is made for this folder and kept.")
@click.option("--no-worker", is_flag=True, help="Run no jobs here.")
@lake_options
@partial(logging_options, default="warning")
def dev(
    target: str | None, host: str, port: int, data: Path, token: str | None, no_worker: bool, lake: str | None,
    lake_every: str,
) -> None:  # fmt: skip
    """Everything in one command: database, service, worker and scheduler, for your own machine.

    With MODULE:APP its handlers run, and start again when you save a file in this folder; without, a few to play with.
    PENSTOCK_URL names another store than the embedded one. Ctrl-C ends it all.
    """
    import os

    from penstock.cli.developing import run
    from penstock.connecting import Address

    if lake is not None:  # for the worker, which is a process of its own
        os.environ |= {"PENSTOCK_LAKE": lake, "PENSTOCK_LAKE_EVERY": lake_every}
    url = os.environ.get("PENSTOCK_URL")
    run(
        target,
        None if url is None else Address(url),
        data=data,
        host=host,
        port=port,
        token=token,
        worker=not no_worker,
    )
