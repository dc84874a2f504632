"""The `penstock` command. Each command's own module is imported when it is called, so that help comes at once."""

from __future__ import annotations

import sys

try:
    import click
except ModuleNotFoundError:
    sys.exit('The penstock command needs its extra: pip install "penstock[cli]"')

import penstock


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
