"""Spans by the semantic conventions for messaging, as they stood in August 2026 (status: development).

    create {queue}    PRODUCER   a job made to be sent with others: the context in its headers
    send {queue}      PRODUCER   one job put in; for jobs that have a context already, CLIENT with links to theirs
    receive {queue}   CLIENT     a lease call that got jobs, with links to them
    process {queue}   CONSUMER   one attempt
    settle {queue}    CLIENT     one batch of settles, with links

A process span is the child of the job's creation context and links to it. The conventions make links the rule and
allow a parent where one span stands for one message and no other span is around it: both hold here, and a trace that
goes from the request through the queue into the handler is what people want to see. What surrounds the worker's own
loop is no part of any job, so receive, process and settle never look at it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from msgspec.structs import replace
from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from penstock.core import bounds
from penstock.core.codec import TRACE_HEADERS, JsonText, decode, encode
from penstock.core.commands import Leased
from penstock.core.errors import InvalidInput, PenstockError
from penstock.core.job import Job, NewJob
from penstock.telemetry import AnswerT, EndingT

MOST_LINKS = 128
"""What OpenTelemetry keeps of a span's links by default."""

_TYPE = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(: |\n|$)")
"""How an error's text begins if an exception is behind it."""

_NO_EXCEPTION = ("bad_arguments", "bad_result")


def is_set_up() -> bool:
    """Whether the program has said where spans go; the mere package, which others bring along, takes them nowhere."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


class OtelSpans:
    def __init__(self, tracer: trace.Tracer | None = None) -> None:
        self._tracer = trace.get_tracer("penstock") if tracer is None else tracer

    # ── Producing ─────────────────────────────────────────────────────────────────────────────────

    def created(self, job: NewJob, *, own_id: bool) -> NewJob:
        if own_id or _has_trace(job):
            return job
        attributes = _attributes("create", job.queue) | _about(job)
        with self._tracer.start_as_current_span(
            f"create {job.queue}", kind=SpanKind.PRODUCER, attributes=attributes
        ):
            return _injected(job)

    @contextmanager
    def sending(
        self, jobs: Sequence[NewJob], *, inject: bool = False, batch: bool = False
    ) -> Iterator[Sequence[NewJob]]:
        inject = inject and not any(map(_has_trace, jobs))
        queue = _one_of(job.queue for job in jobs)
        attributes = _attributes("send", queue)
        if batch:
            attributes["messaging.batch.message_count"] = len(jobs)
        elif jobs:
            attributes |= _about(jobs[0])
        with self._tracer.start_as_current_span(
            _name("send", queue),
            kind=SpanKind.PRODUCER if inject else SpanKind.CLIENT,
            attributes=attributes,
            links=[] if inject else _links(jobs),
        ) as span:
            try:
                yield [_injected(job) for job in jobs] if inject else jobs
            except Exception as error:
                span.set_attribute("error.type", _type_of(error))
                raise  # the span records it

    # ── Working ───────────────────────────────────────────────────────────────────────────────────

    def now(self) -> int:
        return time.time_ns()

    def received(self, queue: str, jobs: Sequence[Leased], worker: str, since: int) -> None:
        attributes = _attributes("receive", queue)
        attributes["messaging.batch.message_count"] = len(jobs)
        attributes["messaging.client.id"] = worker
        self._tracer.start_span(
            f"receive {queue}",
            Context(),
            SpanKind.CLIENT,
            attributes,
            _links(leased.job.asked for leased in jobs),
            since,
        ).end()

    def processing(self, leased: Leased) -> AbstractContextManager[_Process]:
        return _Process(self._tracer, leased.job)

    @contextmanager
    def settling(self, jobs: Iterable[Leased], worker: str) -> Iterator[_Settle]:
        asked = [leased.job.asked for leased in jobs]
        queue = _one_of(job.queue for job in asked)
        attributes = _attributes("settle", queue)
        attributes["messaging.batch.message_count"] = len(asked)
        attributes["messaging.client.id"] = worker
        with self._tracer.start_as_current_span(
            _name("settle", queue), Context(), SpanKind.CLIENT, attributes, _links(asked)
        ) as span:
            try:
                yield _Settle(span)
            except Exception as error:
                span.set_attribute("error.type", _type_of(error))
                raise

    def carried(self, leased: Leased) -> Leased:
        job = leased.job
        return replace(leased, job=replace(job, asked=_injected(job.asked)))

    # ── Logging ───────────────────────────────────────────────────────────────────────────────────

    def ids(self) -> tuple[str, str] | None:
        context = trace.get_current_span().get_span_context()
        if not context.is_valid:
            return None
        return trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)


class _Process:
    """The span of one attempt, current while that runs."""

    __slots__ = ("_job", "_span", "_token", "_tracer")

    def __init__(self, tracer: trace.Tracer, job: Job) -> None:
        self._tracer = tracer
        self._job = job

    def __enter__(self) -> _Process:
        job = self._job
        came_from = _extracted(job.asked)
        attributes = _attributes("process", job.queue) | _about(job.asked)
        attributes["penstock.job.attempt"] = job.attempts
        attributes["penstock.tenant"] = job.tenant
        if job.lease is not None:
            attributes["messaging.client.id"] = job.lease.worker
        self._span = self._tracer.start_span(
            f"process {job.queue}", came_from, SpanKind.CONSUMER, attributes, _links([job.asked])
        )
        self._token = otel_context.attach(trace.set_span_in_context(self._span, came_from))
        return self

    def ended(self, ending: EndingT) -> EndingT:
        span = self._span
        if ending is None:
            _fail(span, "lease_lost", "its lease was lost")
            return ending
        span.set_attribute("penstock.outcome", str(ending.how))
        if ending.how == "nack":
            self._failed(ending.error or "")
        return ending

    def _failed(self, text: str) -> None:
        """Record the failure from its text: all that is left of an exception, wherever the handler ran."""
        said, _, stack = text.partition("\n\n")
        found = _TYPE.match(said)
        has_type = found is not None and (stack.startswith("Traceback") or found["type"] in _NO_EXCEPTION)
        type = found["type"] if found is not None and has_type else "_OTHER"
        if stack:
            self._span.add_event(
                "exception",
                {
                    "exception.type": type,
                    "exception.message": said.removeprefix(f"{type}: "),
                    "exception.stacktrace": stack,
                },
            )
        _fail(self._span, "timeout" if said.startswith("timed out: ") else type, said)

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        otel_context.detach(self._token)
        if error is not None:  # the event loop is ending
            _fail(self._span, _type_of(error), "broken off")
        self._span.end()


class _Settle:
    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def answered(self, answers: list[AnswerT]) -> list[AnswerT]:
        refused = [answer for answer in answers if isinstance(answer, PenstockError)]
        if refused:
            self._span.set_attribute("penstock.refused_count", len(refused))
            _fail(self._span, refused[0].code, f"{len(refused)} of {len(answers)} were refused")
        return answers


def _attributes(operation: str, queue: str | None) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "messaging.system": "penstock",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }
    if queue is not None:
        attributes["messaging.destination.name"] = queue
    return attributes


def _about(job: NewJob) -> dict[str, Any]:
    return {"messaging.message.id": job.id, "penstock.job.type": job.type}


def _name(operation: str, queue: str | None) -> str:
    return operation if queue is None else f"{operation} {queue}"


def _one_of(queues: Iterable[str]) -> str | None:
    """The queue, if there is only one."""
    names = set(queues)
    return names.pop() if len(names) == 1 else None


def _fail(span: Span, type: str, said: str) -> None:
    span.set_attribute("error.type", type)
    span.set_status(Status(StatusCode.ERROR, said))


def _type_of(error: BaseException) -> str:
    return error.code if isinstance(error, PenstockError) else type(error).__qualname__


# ── Headers ───────────────────────────────────────────────────────────────────────────────────────


def _has_trace(job: NewJob) -> bool:
    """Whether somebody has said already which trace the job belongs to; that stays."""
    return job.headers is not None and not TRACE_HEADERS.isdisjoint(decode(job.headers))


def _injected(job: NewJob) -> NewJob:
    """The job with the current context in its headers, in the way the program's propagator writes it."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    # Others would make the repetition of a request another request: see `codec.fingerprint`.
    carrier = {name: value for name, value in carrier.items() if name in TRACE_HEADERS}
    if not carrier:
        return job
    headers = {} if job.headers is None else decode(job.headers)
    try:
        return replace(job, headers=_encoded({**headers, **carrier}))
    except InvalidInput:  # no room left; the job matters more than its trace
        return job


def _encoded(headers: dict[str, Any]) -> JsonText:
    return encode(headers, field="headers", limit=bounds.HEADERS_BYTES)


def _extracted(job: NewJob) -> Context:
    """The context in the job's headers; an empty one if there is none."""
    if job.headers is None:
        return Context()
    headers = decode(job.headers)
    carrier = {name: value for name, value in headers.items() if isinstance(value, str)}
    return propagate.extract(carrier, Context())


def _links(jobs: Iterable[NewJob]) -> list[Link]:
    links: list[Link] = []
    for job in jobs:
        if len(links) == MOST_LINKS:
            break
        if job.headers is None:
            continue
        came_from = trace.get_current_span(_extracted(job)).get_span_context()
        if came_from.is_valid:
            links.append(Link(came_from, {"messaging.message.id": job.id}))
    return links
