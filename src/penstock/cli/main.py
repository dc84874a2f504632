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
