"""Traces: where spans begin and end, and nothing at all where nobody traces.

The package of OpenTelemetry is not imported for its own sake: only a program that has imported it can have set tracing
up, so that is what is looked for. Until it has, everything below does nothing, and costs next to nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from penstock.core.commands import Leased
from penstock.core.job import NewJob

_API = "opentelemetry.trace"


class HowItEnded(Protocol):
    """What the worker knows about an attempt that is over; see `worker.execution.Ending`."""

    @property
    def how(self) -> str: ...
    @property
    def error(self) -> str | None: ...


EndingT = TypeVar("EndingT", bound=HowItEnded | None)
AnswerT = TypeVar("AnswerT")


class ProcessSpan(Protocol):
    def ended(self, ending: EndingT) -> EndingT:
        """How the attempt ended; None if that was no longer ours to say."""
        ...


class SettleSpan(Protocol):
    def answered(self, answers: list[AnswerT]) -> list[AnswerT]:
        """What the store said, one answer or error per job."""
        ...


class Spans(Protocol):
    """What is traced. `penstock.telemetry.otel` has the conventions."""

    def created(self, job: NewJob, *, own_id: bool) -> NewJob:
        """A job that was made to be sent later, with the trace it belongs to in its headers.

        With `own_id` the caller chose the id and may make the same job again: nothing is added that would differ then.
        """
        ...

    def sending(
        self, jobs: Sequence[NewJob], *, inject: bool = False, batch: bool = False
    ) -> AbstractContextManager[Sequence[NewJob]]:
        """Around the call that puts jobs in; gives the jobs to put in. `inject` puts this span's context in their headers."""
        ...

    def now(self) -> int:
        """The time, for `received`."""
        ...

    def received(self, queue: str, jobs: Sequence[Leased], worker: str, since: int) -> None:
        """A lease call that began at `since` got these jobs."""
        ...

    def processing(self, leased: Leased) -> AbstractContextManager[ProcessSpan]:
        """Around an attempt."""
        ...

    def settling(self, jobs: Iterable[Leased], worker: str) -> AbstractContextManager[SettleSpan]:
        """Around the call that settles these jobs."""
        ...

    def carried(self, leased: Leased) -> Leased:
        """The same for another process: its headers carry the span of the attempt."""
        ...

    def ids(self) -> tuple[str, str] | None:
        """The ids of the current trace and span, as logs show them."""
        ...


class _Nothing:
    """Stands for every span where nobody traces."""

    __slots__ = ()

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ended(self, ending: EndingT) -> EndingT:
        return ending

    def answered(self, answers: list[AnswerT]) -> list[AnswerT]:
        return answers


class _Jobs:
    """The jobs as they are."""

    __slots__ = ("_jobs",)

    def __init__(self, jobs: Sequence[NewJob]) -> None:
        self._jobs = jobs

    def __enter__(self) -> Sequence[NewJob]:
        return self._jobs

    def __exit__(self, *_: object) -> None:
        pass


_NOTHING = _Nothing()


class NoSpans:
    """Nobody traces."""

    def created(self, job: NewJob, *, own_id: bool) -> NewJob:
        return job

    def sending(self, jobs: Sequence[NewJob], *, inject: bool = False, batch: bool = False) -> _Jobs:
        return _Jobs(jobs)

    def now(self) -> int:
        return 0

    def received(self, queue: str, jobs: Sequence[Leased], worker: str, since: int) -> None:
        pass

    def processing(self, leased: Leased) -> _Nothing:
        return _NOTHING

    def settling(self, jobs: Iterable[Leased], worker: str) -> _Nothing:
        return _NOTHING

    def carried(self, leased: Leased) -> Leased:
        return leased

    def ids(self) -> tuple[str, str] | None:
        return None


_no_spans: Spans = NoSpans()
_spans: Spans | None = None
_otel: Any = None
_modules = sys.modules


def spans() -> Spans:
    """The spans of OpenTelemetry once the program has set it up, until then none."""
    if _spans is not None:
        return _spans
    return _look() if _API in _modules else _no_spans


def _look() -> Spans:
    global _spans, _otel
    if _otel is None:
        if _modules[_API] is None:  # somebody forbids the import
            return _no_spans
        from penstock.telemetry import otel

        _otel = otel
    if _otel.is_set_up():
        _spans = _otel.OtelSpans()
    return _spans or _no_spans
