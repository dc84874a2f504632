"""The `penstock` command. Each command's own module is imported when it is called, so that help comes at once."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

try:
    import click
except ModuleNotFoundError:
    sys.exit('The penstock command needs its extra: pip install "penstock[cli]"')

import penstock
from penstock.cli.lazy import LazyGroup, Sections

COMMANDS: Sections = {
    "Running": {
        "dev": ("penstock.cli.dev:dev", "Everything in one command, on your own machine."),
        "serve": ("penstock.cli.serve:serve", "The queue over HTTP."),
        "worker": ("penstock.cli.worker:worker", "Run the jobs of an app."),
        "scheduler": (
            "penstock.cli.scheduler:scheduler",
            "Fire the schedules of an app, without running jobs.",
        ),
        "migrate": ("penstock.cli.migrate:command", "Bring the PostgreSQL schema up to date."),
        "demo": ("penstock.cli.demo:demo", "Show a queue at work, in memory."),
    },
    "Jobs and queues": {
        "enqueue": ("penstock.cli.enqueue:enqueue", "Put a job in; wait for its result."),
        "jobs": ("penstock.cli.jobs:jobs", "Look at jobs, cancel them, bring them back."),
        "queues": ("penstock.cli.queues:queues", "Look at queues, pause them, set them."),
        "schedules": ("penstock.cli.schedules:schedules", "Jobs that are made by the clock."),
        "tokens": ("penstock.cli.tokens:tokens", "Who may use the HTTP service."),
        "workers": ("penstock.cli.workers:workers", "Who is at work."),
    },
    "Lake": {
        "lake": ("penstock.cli.lake:lake", "Everything that happened, as tables to ask."),
    },
    "Looking after it": {
        "top": ("penstock.cli.top:top", "Watch the queues, live."),
        "insights": ("penstock.cli.insights:insights", "What the lake found out, and what follows from it."),
        "compact": (
            "penstock.cli.compact:command",
            "Write a snapshot of a log, and delete what it makes needless.",
        ),
        "doctor": ("penstock.cli.doctor:doctor", "Look for what is wrong, and say what to do."),
        "completion": ("penstock.cli.completion:completion", "Completion for bash, zsh and fish."),
    },
}


def logging_options(command: Callable[..., None], *, default: str = "info") -> Callable[..., None]:
    """How a command that runs for long logs."""

    @functools.wraps(command)
    def run(log_level: str, log_format: Any, **options: Any) -> None:
        from penstock.logs import set_up_logging

        set_up_logging(log_level, log_format)
        command(**options)

    levels = click.Choice(["debug", "info", "warning", "error"])
    level = click.option(
        "--log-level", default=default, show_default=True, type=levels, help="How much to log."
    )
    form = click.option(
        "--log-format", default="auto", show_default=True, type=click.Choice(["auto", "json", "text"]),
        help="Text for people (on a terminal), JSON for programs.",
    )  # fmt: skip
    return level(form(run))


def lake_options(command: Callable[..., None]) -> Callable[..., None]:
    """Whether a worker brings a lake up to date."""
    lake = click.option(
        "--lake", envvar="PENSTOCK_LAKE", show_envvar=True, metavar="PATH",
        help="Bring this lake up to date, as a job of its own; needs Spark.",
    )  # fmt: skip
    every = click.option(
        "--lake-every", envvar="PENSTOCK_LAKE_EVERY", show_envvar=True, default="nightly", show_default=True,
        type=click.Choice(["nightly", "hourly"]), help="How often, with --lake.",
    )  # fmt: skip
    return lake(every(command))


@click.group(cls=LazyGroup, sections=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(penstock.__version__, prog_name="penstock")
def main() -> None:
    """Penstock, a durable job queue."""
