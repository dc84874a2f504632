"""The app of `worker_app`, in a worker whose compactor is always at work.

A snapshot for every entry, entries let go after a second, an office that changes hands within one: what a day brings,
in seconds. It is set here, and not by an option, because nobody should run a queue like this.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from penstock import connecting
from penstock.app import running
from penstock.scheduler.scheduler import Scheduler
from penstock.stores.log import compacting
from support.worker_app import app

RHYTHM = compacting.Rhythm(entries=1, seconds=0, retention=timedelta(seconds=1), poll_seconds=0.001)


def _scheduler(*given: Any, **options: Any) -> Scheduler:
    return Scheduler(*given, **{**options, "lead_seconds": 1.0, "sweep_seconds": 0.05})


connecting.SLOWLY["file"] = 1.0
setattr(compacting, "Tended", partial(compacting.Tended, rhythm=RHYTHM))  # noqa: B010 (mypy would mind)
setattr(running, "Scheduler", _scheduler)  # noqa: B010

__all__ = ["app"]
