"""The pipeline as a job like any other: a schedule fires it, a worker runs it, and its runs and failures are seen.

    from penstock.lake.job import run_itself
    run_itself(app, ".penstock/lake", every="hourly")

It runs in a process of its own, so that Spark's JVM neither holds up the worker nor outlives the job: whatever ends that
process (a cancel, a timeout, the worker's own end) ends what it has started.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from penstock.app.penstock import Penstock
from penstock.connecting import locate
from penstock.core.errors import InvalidInput, UnknownStore
from penstock.core.retry import Retry
from penstock.lake.errors import LakeError
from penstock.lake.java import JavaMissing
from penstock.lake.leading import LakeBusy, Leading, OfficeLost
from penstock.lake.manifest import Lake
from penstock.lake.reconcile import NotReconciled
from penstock.lake.source.asking import KNOWN, SCHEMES
from penstock.worker.context import GiveUp, JobContext, Snooze

NAME = "penstock-lake"
"""Of the queue, of the schedule, and of the program that declares them: no worker without a lake drops them."""
TYPE = "penstock.lake.run"
EVERY = {"nightly": "23 2 * * *", "hourly": "7 * * * *"}
MOST = timedelta(hours=12)
BUSY_SECONDS, LONGEST_SECONDS = 60.0, 3600.0

_TOLD = "PENSTOCK_LAKE_JOB"


class _Told(Struct, frozen=True):
    """What the job's process is told, by its environment: it has nothing else of the worker's.

    Not by the job, or whoever may enqueue could have any folder written to.
    """

    lake: str
    url: str | None
    data_dir: str


def run_itself(app: Penstock, lake: str | Path, *, every: str = "nightly") -> None:
    """Have this app's workers bring the lake up to date, every night or every hour.

    The schedule stays when no worker is told of a lake any more: pause it, or drop it.
    """
    if every not in EVERY:
        raise InvalidInput("every", f"be one of {', '.join(EVERY)}", every)
    url = app.url or os.environ.get("PENSTOCK_URL")
    if url is not None and urlsplit(url).scheme not in SCHEMES:
        raise UnknownStore(url, f"{KNOWN} as a source of the lake")
    told = _Told(Lake(lake).place, app.url, str(app.data_dir.absolute()))
    os.environ[_TOLD] = msgspec.json.encode(told).decode()
    own = Penstock(name=NAME)
    declare = own.job(
        name=TYPE, queue=NAME, runs="process", max_jobs_per_child=1, timeout=MOST, max_attempts=3,
        retry=Retry.exponential(base=60), unique_key=TYPE, max_concurrency=1,
    )  # fmt: skip
    own.cron(EVERY[every], name=NAME)(declare(run))
    app.include(own)


def run(ctx: JobContext, rebuild: bool = False, check_all: bool = False) -> dict[str, Any]:
    """Take in what is new, make the tables and publish the answers. Fails if the lake lacks what the store has."""
    given = os.environ.get(_TOLD)
    if given is None:
        raise GiveUp("this worker has no lake; start it with --lake or PENSTOCK_LAKE")
    told = msgspec.json.decode(given, type=_Told)
    address = locate(told.url, Path(told.data_dir))
    try:
        with Leading(address.url) as office:  # first, since asking costs little and Spark does not
            ctx.progress({"step": "Spark is started"})
            from penstock.lake.pipeline import run_once

            with _spark() as spark:
                report = run_once(
                    spark, address.url, told.lake, rebuild=rebuild, check_all=check_all, office=office,
                    on_step=lambda step: ctx.progress({"step": step}),
                )  # fmt: skip
    except (LakeBusy, OfficeLost):
        # Ever more seldom: somebody may be at it for good, with --continuous.
        raise Snooze(min(BUSY_SECONDS * 2 ** min(ctx.fence - 1, 6), LONGEST_SECONDS)) from None
    except (LakeError, JavaMissing) as error:
        raise GiveUp(str(error)) from error  # no better by being tried again
    finally:
        address.close()
    if report.mismatches:
        raise NotReconciled(report.mismatches)
    return {
        "events": report.events,
        "days": len(report.days),
        "checked": len(report.checked),
        "published": report.published,
        "data_as_of": report.data_as_of,
    }


@contextmanager
def _spark() -> Iterator[Any]:
    from penstock.lake.session import end, session

    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of every connection
    spark = session(
        os.environ.get("PENSTOCK_SPARK_MASTER"), os.environ.get("PENSTOCK_SPARK_REMOTE"), app_name=NAME
    )
    try:
        yield spark
    finally:
        end(spark)
