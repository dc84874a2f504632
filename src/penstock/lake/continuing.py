"""Run after run of the pipeline in one warm session, whatever becomes of the store meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.core.errors import PenstockError, StoreUnavailable
from penstock.lake.leading import Leading, OfficeLost, new_holder
from penstock.lake.pipeline import Report, Step, run_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("penstock.lake")

MOST_FAILURES = 10
"""So many runs in a row that failed, though the store is there, end it."""
SHORTEST_REST_SECONDS = 1.0


def run_continuously(
    spark: SparkSession,
    url: str,
    lake: str | Path,
    *,
    every_seconds: float,
    stop: threading.Event,
    on_report: Callable[[Report], None] = lambda report: None,
    on_step: Step = lambda name: None,
) -> Report | None:
    """Run again and again in one warm session, holding the office all the while, until asked to stop; the last report.

    A store that is away is waited for, and a run that failed is made again. What Penstock refuses ends it.
    """
    report: Report | None = None
    failures, holder = 0, new_holder()
    while not stop.is_set():
        try:
            with Leading(url, holder=holder) as office:
                while not stop.is_set():
                    began = time.monotonic()
                    report = run_once(spark, url, lake, on_step=on_step, office=office)
                    failures = 0
                    on_report(report)
                    stop.wait(max(0.0, began + every_seconds - time.monotonic()))
        except Exception as error:
            # What a lost connection becomes in a driver of databases, or in a task of Spark's, is an error of theirs.
            # An office that was lost is sought again: whether somebody else holds it by now is then said.
            is_away = isinstance(error, StoreUnavailable | OfficeLost)
            failures += not is_away
            is_refused = isinstance(error, PenstockError) and not is_away
            if is_refused or failures == MOST_FAILURES:
                raise
            logger.warning("a run of the lake failed and is made again: %s: %s", type(error).__name__, error)
            stop.wait(max(every_seconds, SHORTEST_REST_SECONDS))
    return report
