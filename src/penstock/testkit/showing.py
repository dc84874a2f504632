"""Jobs as a failing test shows them, and how one differs from what was expected."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from penstock.core import bounds
from penstock.core.codec import decode
from penstock.core.job import Job, Status
from penstock.queue import Span
from penstock.worker.arguments import to_json
from penstock.worker.handlers import Handler

MOST_SHOWN = 20


class Wanted:
    """What a job is expected to be."""

    def __init__(
        self,
        type: str,
        handler: Handler | None,
        arguments: Mapping[str, Any],
        queue: str | None,
        delay: Span | None,
    ) -> None:
        self.type = type
        self._queue = queue
        self._delay = None if delay is None else bounds.span("delay", delay)
        self._arguments: dict[str, Any] = decode(
            to_json(dict(arguments), field="arguments", limit=bounds.PAYLOAD_BYTES)
        )
        self._defaults = {} if handler is None else _defaults(handler, arguments)

    def differences(self, job: Job) -> list[str]:
        """In what a job of this type is not what was expected; nothing if it is."""
        payload = decode(job.payload)
        given = {**self._defaults, **payload} if isinstance(payload, dict) else {}
        found = [
            f"{name} is {given[name]!r}" if name in given else f"{name} was not given"
            for name, value in self._arguments.items()
            if name not in given or given[name] != value
        ]
        if self._queue is not None and job.queue != self._queue:
            found.append(f"the queue is {job.queue!r}")
        if self._delay is not None and (delay := job.scheduled_at - job.created_at) != self._delay:
            found.append(f"the delay is {delay}" if delay else "there is no delay")
        return found

    def matches(self, job: Job) -> bool:
        return job.type == self.type and not self.differences(job)

    def __str__(self) -> str:
        place = "" if self._queue is None else f" in queue {self._queue!r}"
        wait = "" if self._delay is None else f" with a delay of {self._delay}"
        return f"{self.type}({_named(self._arguments)}){place}{wait}"


def _defaults(handler: Handler, arguments: Iterable[str]) -> dict[str, Any]:
    """The defaults of the arguments a test asks for, as a payload has them. An argument that is none is refused."""
    parameters = inspect.signature(handler.function).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    defaults = {}
    for name in arguments:
        parameter = parameters.get(name)
        if parameter is None:
            if not takes_any:
                raise TypeError(
                    f"{handler.name} takes no argument {name!r}; it takes {', '.join(parameters)}"
                )
        elif parameter.default is not parameter.empty:
            defaults[name] = msgspec.json.decode(
                to_json(parameter.default, field=name, limit=bounds.PAYLOAD_BYTES)
            )
    return defaults


def listed(jobs: list[Job], wanted: Wanted, now: datetime) -> str:
    """What was enqueued, those of the type in question first, each with what is wrong about it."""
    if not jobs:
        return "nothing was enqueued"
    jobs = sorted(jobs, key=lambda job: job.type != wanted.type)
    lines = [
        f"  {shown(job, now)}{_remark(wanted.differences(job)) if job.type == wanted.type else ''}"
        for job in jobs[:MOST_SHOWN]
    ]
    if len(jobs) > MOST_SHOWN:
        lines.append(f"  … and {len(jobs) - MOST_SHOWN} more")
    return "\n".join(["what was enqueued:", *lines])


def _remark(differences: list[str]) -> str:
    return f"\n    ← {', '.join(differences)}" if differences else ""


def shown(job: Job, now: datetime) -> str:
    """A job as one line: what would be called, where it is, and when it is due."""
    payload = decode(job.payload)
    call = _named(payload) if isinstance(payload, dict) else repr(payload)
    waits = job.status is Status.QUEUED and job.run_at > now
    due = f", due in {timedelta(seconds=round((job.run_at - now).total_seconds()))}" if waits else ""
    return f"{job.type}({call})  [{job.queue}, {job.status}{due}]"


def _named(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())
