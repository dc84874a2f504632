"""`penstock scheduler`: schedules fired without running jobs."""

from __future__ import annotations

import asyncio

import click

from penstock.app.running import run_scheduler
from penstock.cli.loading import load_app
from penstock.cli.main import logging_options


@click.command()
@click.argument("target", metavar="MODULE:APP")
@logging_options
def scheduler(target: str) -> None:
    """Fire the schedules of an app and tidy up after time, without running jobs.

    Workers do this by themselves; run it alone where they should not. Any number may run: one leads, and another takes over
    within seconds when it is gone.
    """
    app = load_app(target)

    async def run() -> None:
        async with app:
            await run_scheduler(app)

    asyncio.run(run())
