"""`penstock lake …`: everything that happened as tables, made by Spark and read by anything."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from penstock.cli.exits import Exit, Refused
from penstock.cli.main import logging_options
from penstock.cli.opening import EMBEDDED, actor, opened, tenant_option, url_option
from penstock.cli.output import console, facts, hint, output_option, print_json
from penstock.cli.sparking import on_spark, until_stopped
from penstock.cli.words import read_duration

if TYPE_CHECKING:
    from penstock.core.promises import Promise
    from penstock.lake.manifest import Lake
    from penstock.lake.pipeline import Report, Step

NEEDS = ("pyspark", "pyarrow", "pandas", "psycopg", "adbc_driver_postgresql")
LAKE = EMBEDDED / "lake"
DEMO = EMBEDDED / "demo-lake"
"""One of its own: a made-up history must not stand where that of a store belongs."""
LEAST_GRACE = timedelta(hours=1)
DAY = click.DateTime(["%Y-%m-%d"])
MOST_NAMED = 20


def lake_at(default: Path) -> Callable[[Any], Any]:
    return click.option(
        "--lake", "place", envvar="PENSTOCK_LAKE", show_envvar=True, default=str(default), show_default=True,
        metavar="PATH", help="Where the lake is: a folder, or a bucket such as s3://bucket/lake.",
    )  # fmt: skip


master_option = click.option(
    "--master", envvar="PENSTOCK_SPARK_MASTER", metavar="MASTER",
    help="The Spark to run on, such as local[4] or spark://…; without it, this machine.",
)  # fmt: skip
remote_option = click.option(
    "--remote", envvar="PENSTOCK_SPARK_REMOTE", metavar="URL", help="A Spark Connect server, sc://…, instead."
)


@click.group()
def lake() -> None:
    """Everything that ever happened, as tables that people can ask.

    They are plain Parquet, for Spark, DuckDB, Polars and whatever else reads it. Making them needs the extra:
    pip install "penstock[lake]".
    """


@lake.command("run")
@url_option
@lake_at(LAKE)
@master_option
@remote_option
@click.option("--once", is_flag=True, help="Take in what is new and end. It is what happens by default.")
@click.option("--continuous", is_flag=True, help="Go on until stopped.")
@click.option(
    "--every", default="60s", show_default=True, metavar="TIME", help="How often, with --continuous."
)
@click.option("--rebuild", is_flag=True, help="Make silver and gold anew from bronze.")
@click.option("--from", "first_day", type=DAY, help="Make these days anew, from this one on.")
@click.option("--to", "last_day", type=DAY, help="Make these days anew, up to this one.")
@click.option(
    "--check-all", is_flag=True, help="Compare all closed days with the store, not only those that grew."
)
@logging_options
def run(
    url: str | None, place: str, master: str | None, remote: str | None, once: bool, continuous: bool, every: str,
    rebuild: bool, first_day: datetime | None, last_day: datetime | None, check_all: bool,
) -> None:  # fmt: skip
    """Take what has happened in the store into the lake, make its tables, and publish the answers.

    It can be stopped at any moment and run again. Exits with 1 if the lake does not have what the store has.
    """
    if continuous and (once or rebuild or first_day or last_day or check_all):
        raise click.UsageError(
            "--continuous goes with none of --once, --rebuild, --from, --to and --check-all"
        )
    if master and remote:
        raise click.UsageError("--master and --remote exclude each other")
    said = click.get_current_context().get_parameter_source("every")
    if said is not ParameterSource.DEFAULT and not continuous:
        raise click.UsageError("--every says how often, with --continuous; say that too")
    every_seconds = read_duration(every)
    if every_seconds is None:
        raise click.UsageError(f"{every!r} is no time; say it as 30s, 5m or 1h")
    if first_day and last_day and first_day > last_day:
        raise click.UsageError(f"--from must not be after --to; got {_day(first_day)} and {_day(last_day)}")
    _need(NEEDS)
    from penstock.lake.continuing import run_continuously
    from penstock.lake.manifest import Lake
    from penstock.lake.pipeline import run_once
    from penstock.lake.reconcile import NotReconciled

    report: Report | None
    with _progress() as on_step, _source(url, Lake(place)) as address, on_spark(master, remote) as spark:
        if continuous:

            def tell(report: Report) -> None:
                _tell(report)
                on_step(f"the next run begins {every} after the last one did")

            with until_stopped() as stop:
                report = run_continuously(
                    spark, address, place, every_seconds=every_seconds, stop=stop, on_report=tell, on_step=on_step,
                )  # fmt: skip
        else:
            report = run_once(
                spark, address, place, rebuild=rebuild, check_all=check_all,
                first_day=_day(first_day), last_day=_day(last_day), on_step=on_step,
            )  # fmt: skip
    if report is not None and not continuous:
        _tell(report)
    if report is not None and report.mismatches:
        raise Refused(str(NotReconciled(report.mismatches)), Exit.FAILED)


@lake.command("demo")
@lake_at(DEMO)
@master_option
@click.option("--jobs", default=100_000, show_default=True, type=click.IntRange(1), help="How many jobs.")
@click.option("--days", default=30, show_default=True, type=click.IntRange(1), help="Over how many days.")
@click.option("--seed", default=1, show_default=True, help="Another number, another history.")
@click.option(
    "--publish", "publishes", is_flag=True, help="Put the answers into a store, as if it were its own."
)
@url_option
@tenant_option
@logging_options
def demo(
    place: str, master: str | None, jobs: int, days: int, seed: int, publishes: bool, url: str | None, tenant: str
) -> None:  # fmt: skip
    """Make up the history of a fleet and make a lake of it, without a store.

    A month with a rhythm of days and weeks, an incident, a bad deploy and a slow tenant. With --publish the answers go to the
    store, such as that of penstock dev: those of the largest of the fleet's tenants as those of --tenant. What a lake of the
    store itself has published since midnight stays.
    """
    _need(NEEDS)
    from penstock.lake import demo as fleet
    from penstock.lake.fleet import LARGEST
    from penstock.lake.manifest import Lake
    from penstock.lake.pipeline import made_up_name, run_frame
    from penstock.lake.tables import EVENTS, ddl

    # Midnight, so that the same arguments are the same history all day long.
    end = datetime.combine(datetime.now(UTC).date(), datetime.min.time(), UTC)
    name = made_up_name(jobs, days, end.date(), seed)
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        Lake(place).find()  # refused before anything is made up
        with _progress(f"{jobs:,} jobs are made up"):
            told = fleet.write(folder, jobs, days, seed, end)
        click.echo(f"{told:,} events of {jobs:,} jobs made up", err=True)
        with _progress() as on_step, on_spark(master, None) as spark:
            events = spark.read.schema(ddl(EVENTS)).parquet(folder)
            report = run_frame(spark, events, place, name=name, as_of=end, on_step=on_step)
    _tell(report)
    hint(f"the lake is in {place}: penstock lake show --lake {place}")
    if publishes:
        from penstock.lake.publish import publish_lake

        opened = Lake(place)
        with _store(url) as address:
            renamed = {LARGEST: tenant}
            _tell_published(
                publish_lake(address, opened, opened.manifest(), renamed=renamed, always=True), end
            )


@lake.command("publish")
@url_option
@lake_at(LAKE)
def publish(url: str | None, place: str) -> None:
    """Put the answers of the lake into its store again. Each run does it; it needs no Spark."""
    _need(("pyarrow", "psycopg"))
    from penstock.lake.leading import Leading
    from penstock.lake.manifest import Lake, whole
    from penstock.lake.publish import publish_lake
    from penstock.lake.source import open_reader

    opened = Lake(place)
    manifest = whole(opened)
    with _store(url) as address:
        opened.check_source(manifest, open_reader(address).horizon())
        with Leading(address):
            _tell_published(publish_lake(address, opened, manifest, always=True), manifest.data_as_of)


@lake.command("status")
@lake_at(LAKE)
@output_option("table", "json")
def status(place: str, output: str) -> None:
    """What the lake has, how old it is, and whether anything is wrong with it."""
    from penstock.lake.manifest import Lake, lacking

    opened = Lake(place)
    manifest = opened.manifest()
    days, gone, unnamed = manifest.days, lacking(opened, manifest), opened.unnamed(timedelta())
    told = {
        "lake": opened.place,
        "id": manifest.lake,
        "written_by": manifest.written_by,
        "batch": manifest.batch,
        "committed_at": manifest.committed_at,
        "data_as_of": manifest.data_as_of,
        "first_day": days[0] if days else None,
        "last_day": days[-1] if days else None,
        "events": sum(number for kinds in manifest.counts.values() for number in kinds.values()),
        "jobs": sum(kinds.get("job", 0) for kinds in manifest.counts.values()),
        "attempts": sum(kinds.get("attempt", 0) for kinds in manifest.counts.values()),
        "tables": sorted(manifest.tables),
        "stale_days": list(manifest.stale),
        "unchecked_days": list(manifest.unchecked),
        "days_in_doubt": list(manifest.doubts),
        "lacking": gone,
        "for_vacuum": len(unnamed),
    }
    if output == "json":
        print_json(told)
    else:
        console().print(facts({name.replace("_", " "): _shown(value) for name, value in told.items()}))
    if manifest.doubts or gone:
        sys.exit(Exit.FAILED)


@lake.command("show")
@lake_at(LAKE)
@click.option(
    "--days", default=30, show_default=True, type=click.IntRange(1), help="Of the last so many days."
)
@click.option("--tenant", metavar="NAME", help="Of this tenant alone.")
def show(place: str, days: int, tenant: str | None) -> None:
    """Plots of what the lake has: its worst day, its week, and the waits of its queues. Needs no Spark."""
    _need(("pyarrow",))
    from penstock.cli.lake_show import hours, shown
    from penstock.lake.manifest import Lake

    rows = hours(Lake(place), days)
    if not rows:
        raise Refused("there are no hours to show; penstock lake run takes in what has happened", Exit.FAILED)
    told = [row for row in rows if tenant is None or row["tenant"] == tenant]
    if not told:
        there = ", ".join(sorted({row["tenant"] for row in rows})[:MOST_NAMED])
        raise Refused(
            f"there are no hours of the tenant {tenant!r} to show; of others: {there}", Exit.NOT_FOUND
        )
    for line in shown(told):
        click.echo(line)


@lake.command("vacuum")
@lake_at(LAKE)
@click.option(
    "--grace", default="1d", show_default=True, metavar="TIME", help="How long it must have been of no use."
)
def vacuum(place: str, grace: str) -> None:
    """Remove files that are no part of the lake: replaced ones, and what runs that died have left.

    Runs do it by themselves, for what has been of no use for a day.
    """
    seconds = read_duration(grace)
    if seconds is None:
        raise click.UsageError(f"{grace!r} is no time; say it as 2h, 12h or 1d")
    if seconds < LEAST_GRACE.total_seconds():
        raise click.UsageError(
            "--grace must be an hour at the least: what a run at work has written is named nowhere yet"
        )
    from penstock.lake.manifest import Lake

    opened = Lake(place)
    gone = opened.vacuum(timedelta(seconds=seconds))
    for folder in gone:
        click.echo(folder)
    left = len(opened.unnamed(timedelta()))
    more = f"; {left} more that count for nothing are left until --grace has passed, {grace}" if left else ""
    click.echo(f"{len(gone)} folders removed{more}", err=True)


@lake.command("adopt")
@url_option
@lake_at(LAKE)
@click.option("--yes", is_flag=True, help="Do it; without, it is only told.")
def adopt(url: str | None, place: str, yes: bool) -> None:
    """Let a lake go on with its database, which has moved to another server.

    After pg_upgrade a server has another identity, and the lake takes its database for a copy. Say with this that it is not:
    that the server it came from is used no more. A database that lacks what the lake has read is refused.
    """
    _need(("pyarrow", "psycopg"))
    from penstock.lake.adopting import adopt
    from penstock.lake.manifest import Lake

    with _store(url) as address:
        moved = adopt(address, Lake(place), dry_run=not yes)
    if moved is None:
        click.echo("the lake is of this very database already")
        return
    click.echo(f"feed {moved.feed}: from the server {moved.before} to the server {moved.now}")
    if not yes:
        hint("nothing was changed; add --yes to let the lake go on there")


@lake.command("forget")
@url_option
@click.argument("lake_id", metavar="[ID]", required=False)
@click.option("--all", "everything", is_flag=True, help="The promises of all lakes.")
def forget(url: str | None, lake_id: str | None, everything: bool) -> None:
    """Lift a lake's promise: the store waits for it no longer, and lets go of history that it has not read.

    A lake is named by its id, which `penstock doctor` and `penstock lake status` tell. Its next run promises anew.
    """
    if everything == (lake_id is not None):
        raise click.UsageError("name a lake by its id, or say --all")
    from penstock.lake.keeping import forget

    async def lift() -> list[tuple[str, Promise]]:
        async with opened(url, "default") as queue:
            return await forget(queue.store, lake_id, actor())

    lifted = asyncio.run(lift())
    for name, promise in lifted:
        click.echo(f"{name} in {promise.place}: the store waits for it no longer")
    if not lifted:
        click.echo("no promise was held", err=True)


def _tell(report: Report) -> None:
    published = f"{report.published} answers published, " if report.published else ""
    click.echo(
        f"{report.events:,} events taken in, {len(report.days)} days made anew, {len(report.checked)} checked, "
        f"{published}in {report.seconds:.1f} s; {_as_of(report.data_as_of)}"
    )
    for one in report.mismatches:
        click.echo(str(one), err=True)


@contextmanager
def _progress(begun: str = "Spark is started") -> Iterator[Step]:
    """What it is at and for how long, for people alone: one line, which is gone when it ends."""
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    on_terminal = Console(stderr=True)
    with Progress(*columns, console=on_terminal, transient=True, redirect_stdout=sys.stdout.isatty()) as line:
        at = line.add_task(begun, total=None)
        yield lambda step: line.update(at, description=step)


def _tell_published(number: int, as_of: datetime | None) -> None:
    click.echo(f"{number} answers published, {_as_of(as_of)}")


def _as_of(moment: datetime | None) -> str:
    return "as of nothing yet" if moment is None else f"as of {moment:%Y-%m-%d %H:%M:%S} UTC"


def lacking_extra(names: Iterable[str] | None = None) -> str | None:
    """What to say where the lake's packages are not installed; None where they are."""
    lacking = [name for name in (NEEDS if names is None else names) if find_spec(name) is None]
    if not lacking:
        return None
    return (
        f'the lake is made by Spark, and {", ".join(lacking)} is not installed: pip install "penstock[lake]"'
    )


def _need(names: Iterable[str]) -> None:
    if lacking := lacking_extra(names):
        raise click.UsageError(lacking)


@contextmanager
def _store(url: str | None) -> Iterator[str]:
    """The store's URL, for as long as it is needed: the embedded one runs while it is."""
    from penstock.connecting import locate

    address = locate(url, EMBEDDED)
    try:
        if address.migrates:
            from penstock.stores.postgres.migrate import migrate

            asyncio.run(migrate(address.url))
        yield address.url
    finally:
        address.close()


@contextmanager
def _source(url: str | None, lake: Lake) -> Iterator[str]:
    """The same of a store whose history can be read, and that the lake is of: refused before Spark is started."""
    from penstock.lake.source import open_reader

    found = lake.find()
    with _store(url) as address:
        reader = open_reader(address)
        if found is not None:
            lake.check_source(found, reader.horizon())
        yield address


def _day(moment: datetime | None) -> date | None:
    return None if moment is None else moment.date()


def _shown(value: object) -> object:
    if isinstance(value, list):
        return ", ".join(value[:20]) + (f" and {len(value) - 20} more" if len(value) > 20 else "") or None
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S} UTC"
    return f"{value:,}" if isinstance(value, int) else value
