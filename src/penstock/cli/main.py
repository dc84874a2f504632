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


def logging_options(command: Callable[..., None]) -> Callable[..., None]:
    """How a command that runs for long logs."""

    @functools.wraps(command)
    def run(log_level: str, log_format: Any, **options: Any) -> None:
        from penstock.logs import set_up_logging

        set_up_logging(log_level, log_format)
        command(**options)

    levels = click.Choice(["debug", "info", "warning", "error"])
    level = click.option(
        "--log-level", default="info", show_default=True, type=levels, help="How much to log."
    )
    form = click.option(
        "--log-format", default="auto", show_default=True, type=click.Choice(["auto", "json", "text"]),
        help="Text for people (on a terminal), JSON for programs.",
    )  # fmt: skip
    return level(form(run))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(penstock.__version__, prog_name="penstock")
def main() -> None:
    """Penstock, a durable job queue."""


@main.command()
@click.option(
    "--jobs", default=2_000, show_default=True, type=click.IntRange(10, 100_000), help="How many jobs to run."
)
@click.option("--seed", default=1, show_default=True, help="Decides which jobs fail.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    help="Tables for people (on a terminal), JSON for programs (in a pipe).",
)
def demo(jobs: int, seed: int, output: str | None) -> None:
    """Run jobs through a queue in memory: retries, a crashed worker, limits, a flow; and tell what happened."""
    from penstock.cli.demo import run

    run(jobs, seed, as_json=output == "json" or (output is None and not sys.stdout.isatty()))


@main.command()
@click.option(
    "--url", envvar="PENSTOCK_URL", help="The store, postgresql://…; without it, the embedded server."
)
@click.option(
    "--sql", "as_sql", is_flag=True, help="Print the SQL instead of running it; without a URL, all of it."
)
@click.option(
    "--check", is_flag=True, help="Change nothing; list what is pending, and exit with 1 if anything is."
)
def migrate(url: str | None, as_sql: bool, check: bool) -> None:
    """Bring the PostgreSQL schema up to date. Any number of processes may do so at once.

    Exits with 0 when it is, 1 when migrations are pending, 2 on wrong usage, 3 without a connection, and 4 when
    the database is refused: a newer version of penstock has migrated it.
    """
    try:
        from penstock.cli.migrate import run
    except ModuleNotFoundError as error:
        raise click.UsageError(
            f'{error}; PostgreSQL needs its extra: pip install "penstock[postgres]"'
        ) from None
    if as_sql and check:
        raise click.UsageError("--sql and --check exclude each other")
    run(url, as_sql=as_sql, check=check)


@main.command()
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "-q",
    "--queues",
    help="Queues or patterns, with weights: emails=3,reports*. By default, those of the handlers.",
)
@click.option(
    "-c",
    "--concurrency",
    default=100,
    show_default=True,
    type=click.IntRange(1),
    help="Handlers at once, in each process.",
)
@click.option(
    "-p", "--processes", default=1, show_default=True, type=click.IntRange(1, 256), help="Worker processes."
)
@click.option(
    "--grace",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds that running handlers have to finish after SIGTERM.",
)
@click.option(
    "--lease", type=click.FloatRange(1), help="Seconds of a lease; by default, what each queue is set to."
)
@click.option(
    "--scheduler/--no-scheduler",
    default=True,
    show_default=True,
    help="Whether schedules may fire from here; of all who may, one does.",
)
@click.option(
    "--listen",
    metavar="[HOST]:PORT",
    help="Where to answer /livez, /readyz and /metrics; of several processes, the second on the next port, and so on.",
)
@click.option("--name", help="What this worker is called; by default, host and process.")
@logging_options
def worker(
    target: str,
    queues: str | None,
    concurrency: int,
    processes: int,
    grace: float,
    lease: float | None,
    scheduler: bool,
    listen: str | None,
    name: str | None,
) -> None:
    """Run the jobs of an app.

    SIGTERM or Ctrl-C: lease no more, give back what has not begun, let running handlers finish within the grace period, then
    cancel them and give their jobs back. A second signal hurries. Exits with 0 when all had finished, 3 when the grace
    period was over, 4 when it was hurried, 70 when a process crashed while it ended.
    """
    from penstock.cli.loading import load_app
    from penstock.cli.worker import Watch, leave, work

    app = load_app(target)
    if processes > 1:
        if name is not None:
            raise click.UsageError("--name is for one process: each worker has a name of its own")
        command = [sys.executable, "-m", "penstock", *sys.argv[1:], "--processes", "1"]
        leave(Watch(command, processes).run())
    leave(
        work(
            app,
            queues=queues,
            concurrency=concurrency,
            grace_seconds=grace,
            lease_seconds=lease,
            scheduler=scheduler,
            listen=listen,
            name=name,
        )
    )


@main.command()
@click.argument("target", metavar="MODULE:APP")
@logging_options
def scheduler(target: str) -> None:
    """Fire the schedules of an app and tidy up after time, without running jobs.

    Workers do this by themselves; run it alone where they should not. Any number may run: one leads, and another takes over
    within seconds when it is gone.
    """
    import asyncio

    from penstock.app.running import run_scheduler
    from penstock.cli.loading import load_app

    app = load_app(target)

    async def run() -> None:
        async with app:
            await run_scheduler(app)

    asyncio.run(run())
