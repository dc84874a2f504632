"""What happened to a job, a queue or a schedule, line by line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from penstock.cli.output import clean, coloured
from penstock.cli.settings import told_setting
from penstock.cli.shapes import value
from penstock.cli.words import span
from penstock.core.job import Attempt, Change, Job, Outcome, Record, Status
from penstock.core.limits import Rate
from penstock.core.retry import Retry

Line = tuple[datetime, str, str]
"""When, what in one or two words, and the rest of the sentence."""


def of_job(job: Job, records: Sequence[Record]) -> Any:
    """A job's life from its creation on."""
    lines: list[Line] = [(job.created_at, "enqueued", f"in {job.queue}")]
    for record in records:
        lines += _attempt(record) if isinstance(record, Attempt) else [_change(record)]
    if job.lease is not None:
        lines.append((job.lease.taken_at, "running", f"attempt {job.leases}, by {job.lease.worker}"))
    return _grid(lines)


def of_changes(records: Iterable[Record]) -> Any:
    """Changes to a queue or a schedule. A schedule is always put whole: what was the same before is left out."""
    lines: list[Line] = []
    before: dict[str, Any] = {}
    for record in records:
        if not isinstance(record, Change):
            continue
        detail = value(record.detail) or {}
        new = {name: said for name, said in detail.items() if name not in before or before[name] != said}
        lines.append(_change(record, new))
        before = detail if record.verb == "put" else {}
    return _grid(lines)


def _attempt(attempt: Attempt) -> list[Line]:
    took = span(max(0.0, (attempt.ended_at - attempt.started_at).total_seconds()))
    again = ""
    if attempt.status is Status.QUEUED:
        wait = (attempt.run_at - attempt.ended_at).total_seconds()
        again = f"; again after {span(wait)}" if wait > 0 else "; again at once"
    elif attempt.outcome is not Outcome.SUCCEEDED:
        again = f"; the job is {attempt.status}"
    error = f"\n{attempt.error.strip().splitlines()[0]}" if attempt.error and attempt.error.strip() else ""
    ended = f"attempt {attempt.number} after {took}, by {attempt.worker}{again}{error}"
    return [(attempt.ended_at, str(attempt.outcome), ended)]


def _change(change: Change, detail: Mapping[str, Any] | None = None) -> Line:
    parts = [f"by {change.actor}"]
    if change.status is not None:
        parts.append(f"the job is {change.status}")
    if detail:
        parts.append(", ".join(f"{name} = {_set_to(name, said)}" for name, said in detail.items()))
    if change.reason:
        parts.append(f"because: {change.reason}")
    return change.at, change.verb, "; ".join(parts)


def _set_to(name: str, said: Any) -> str:
    """What something was set to, the way it can be typed."""
    kinds: dict[str, Any] = {"rate": Rate, "rate_per_key": Rate, "retry": Retry}
    if name in kinds and isinstance(said, dict):
        said = msgspec.convert(said, kinds[name])
    return told_setting(said)


def _grid(lines: Sequence[Line]) -> Any:
    """Local times with the date where it changes, what happened in its colour, and the rest."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    day = ""
    for at, what, rest in lines:
        here = at.astimezone()
        today = here.strftime("%Y-%m-%d ")
        shown = here.strftime("%H:%M:%S.") + f"{here.microsecond // 1000:03}"
        grid.add_row((today if today != day else " " * 11) + shown, coloured(what), Text(clean(rest)))
        day = today
    return Padding(grid, (0, 0, 0, 2), expand=False)
