"""Traces from the one who enqueues to the handler, by the conventions for messaging; and none where nobody traces."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from penstock import GiveUp, IdempotencyConflict, JobContext, JobHandle, NewJob, Penstock, Snooze, telemetry
from penstock.core import bounds
from penstock.core.codec import decode
from penstock.telemetry.otel import OtelSpans
from support.working import LONG, Work, until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass
class Traces:
    """The spans that have ended."""

    exporter: InMemorySpanExporter
    tracer: trace.Tracer

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span

    async def has(self, name: str, count: int = 1) -> None:
        async def ended() -> bool:
            return len(self.named(name)) == count

        await until(ended)


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Traces:
    """As if the program had set tracing up, for one test only."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("penstock")
    monkeypatch.setattr(telemetry, "_spans", OtelSpans(tracer))
    return Traces(exporter, tracer)


def is_child_of(span: ReadableSpan, other: ReadableSpan) -> bool:
    assert span.context is not None
    assert other.context is not None
    return (
        span.parent is not None
        and span.parent.span_id == other.context.span_id
        and span.context.trace_id == other.context.trace_id
    )


def linked(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def headers_of(job: NewJob) -> dict[str, Any]:
    headers: dict[str, Any] = {} if job.headers is None else decode(job.headers)
    return headers


def about(span: ReadableSpan, *names: str) -> dict[str, Any]:
    assert span.attributes is not None
    return {name: span.attributes.get(name) for name in names}


class TestOneJob:
    async def test_the_trace_goes_from_the_caller_through_the_queue_into_the_handler(
        self, app: Penstock, work: Work, traces: Traces
    ) -> None:
        @app.job(name="email.send", queue="emails")
        async def send() -> None:
            with traces.tracer.start_as_current_span("in the handler"):
                pass

        @app.job(name="email.send.plain", queue="plain")
        def send_plain() -> None:
            with traces.tracer.start_as_current_span("in the thread"):
                pass

        with traces.tracer.start_as_current_span("request"):
            first, second = await send.enqueue(), await send_plain.enqueue()
        async with work(name="w1"):
            await first.result(timeout=LONG)
            await second.result(timeout=LONG)
            await traces.has("process emails")
            await traces.has("process plain")
        sent, processed = traces.one("send emails"), traces.one("process emails")
        assert is_child_of(sent, traces.one("request"))
        assert is_child_of(processed, sent)
        assert linked(processed) == {id_of(sent)}
        assert is_child_of(traces.one("in the handler"), processed)
        assert is_child_of(traces.one("in the thread"), traces.one("process plain"))
        assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
        assert about(processed, *(processed.attributes or {})) == {
            "messaging.system": "penstock",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": "emails",
            "messaging.message.id": first.id,
            "messaging.client.id": "w1",
            "penstock.job.type": "email.send",
            "penstock.job.attempt": 1,
            "penstock.tenant": "default",
            "penstock.outcome": "ack",
        }
        assert processed.status.status_code is StatusCode.UNSET

    async def test_receiving_and_settling_link_to_what_was_sent(
        self, app: Penstock, work: Work, traces: Traces
    ) -> None:
        @app.job(name="a", queue="emails")
        async def a() -> None:
            pass

        handle = await a.enqueue()
        async with work(name="w1"):
            await handle.result(timeout=LONG)
            await traces.has("settle emails")
        sent = traces.one("send emails")
        for operation in ("receive", "settle"):
            span = traces.one(f"{operation} emails")
            assert span.kind is SpanKind.CLIENT
            assert span.parent is None
            assert linked(span) == {id_of(sent)}
            assert about(span, "messaging.operation.type", "messaging.batch.message_count", "messaging.client.id") == {
                "messaging.operation.type": operation, "messaging.batch.message_count": 1, "messaging.client.id": "w1",
            }  # fmt: skip

    async def test_jobs_of_one_worker_do_not_hang_on_each_other(
        self, app: Penstock, work: Work, traces: Traces
    ) -> None:
        @app.job(name="a")
        async def a() -> None:
            pass

        # As SQL may put it in: without a trace.
        handles = [(await app.queue.enqueue("a")).id for _ in range(3)]
        with traces.tracer.start_as_current_span("around the worker"):
            async with work(concurrency=1):
                for handle in handles:
                    await app.handle(handle).result(timeout=LONG)
                await traces.has("process default", 3)
        assert all(span.parent is None for span in traces.named("process default"))
        assert all(span.parent is None for span in traces.named("settle default"))

    async def test_a_trace_in_the_headers_is_the_callers_own_and_stays(
        self, app: Penstock, work: Work, traces: Traces
    ) -> None:
        seen: list[dict[str, Any]] = []

        @app.job(name="a")
        async def a(ctx: JobContext) -> None:
            seen.append(ctx.headers)

        given = {"traceparent": PARENT, "shop": 7}
        async with work():
            await (await a.options(headers=given).enqueue()).result(timeout=LONG)
            await traces.has("process default")
        assert seen == [given]
        processed = traces.one("process default").parent
        assert processed is not None
        assert trace.format_span_id(processed.span_id) == PARENT.split("-")[2]

    async def test_headers_of_the_callers_own_and_baggage_travel_along(
        self, app: Penstock, work: Work, traces: Traces
    ) -> None:
        seen: list[Any] = []

        @app.job(name="a")
        async def a(ctx: JobContext) -> None:
            seen.extend([ctx.headers["shop"], baggage.get_baggage("customer")])

        token = context.attach(baggage.set_baggage("customer", "c1"))
        try:
            handle = await a.options(headers={"shop": 7}).enqueue()
        finally:
            context.detach(token)
        async with work():
            await handle.result(timeout=LONG)
        assert seen == [7, "c1"]

    @pytest.mark.parametrize(
        "headers", [{"traceparent": 5}, {"traceparent": "nonsense"}, {"tracestate": "x"}]
    )
    async def test_a_trace_that_makes_no_sense_stops_no_job(
        self, app: Penstock, work: Work, traces: Traces, headers: dict[str, Any]
    ) -> None:
        @app.job(name="a")
        async def a() -> None:
            pass

        async with work():
            await (await a.options(headers=headers).enqueue()).result(timeout=LONG)
            await traces.has("process default")
        assert traces.one("process default").parent is None

    async def test_headers_that_are_full_stay_as_they_are(self, app: Penstock, traces: Traces) -> None:
        full = {"a": "x" * (bounds.HEADERS_BYTES - 8)}
        handle = await app.enqueue("a", headers=full)
        assert headers_of((await handle.job()).asked) == full


class TestManyJobs:
    async def test_each_has_a_creation_context_of_its_own(
        self, app: Penstock, work: Work, traces: Traces
    ) -> None:
        @app.job(name="a", queue="emails")
        async def a(n: int) -> None:
            pass

        with traces.tracer.start_as_current_span("request"):
            await app.enqueue_many([a.new(1), {"type": "a", "payload": {"n": 2}}])
        async with work():
            await traces.has("process emails", 2)
        created, sent = traces.named("create emails"), traces.one("send emails")
        assert all(is_child_of(span, traces.one("request")) for span in [*created, sent])
        assert {span.kind for span in created} == {SpanKind.PRODUCER}
        assert sent.kind is SpanKind.CLIENT
        assert linked(sent) == {id_of(span) for span in created}
        assert about(sent, "messaging.batch.message_count") == {"messaging.batch.message_count": 2}
        processed = traces.named("process emails")
        assert {span.parent.span_id for span in processed if span.parent} == {id_of(span) for span in created}

    async def test_a_flow_is_sent_as_one(self, app: Penstock, traces: Traces) -> None:
        flow = app.flow()
        flow.chain(app.new("a", queue="one"), app.new("b", queue="two"))
        await flow.enqueue()
        sent = traces.one("send")  # to no single queue
        assert linked(sent) == {id_of(traces.one("create one")), id_of(traces.one("create two"))}


class TestFailing:
    async def test_an_exception_is_an_error_with_its_stack(
        self, app: Penstock, work: Work, traces: Traces
    ) -> None:
        @app.job(name="a", max_attempts=1)
        async def a() -> None:
            raise ValueError("no such thing")

        async with work():
            await (await a.enqueue()).wait(timeout=LONG)
            await traces.has("process default")
        span = traces.one("process default")
        assert (span.status.status_code, span.status.description) == (
            StatusCode.ERROR, "ValueError: no such thing",
        )  # fmt: skip
        assert about(span, "error.type", "penstock.outcome") == {
            "error.type": "ValueError", "penstock.outcome": "nack",
        }  # fmt: skip
        [event] = span.events
        assert event.attributes is not None
        assert event.attributes["exception.type"] == "ValueError"
        assert event.attributes["exception.message"] == "no such thing"
        assert "in a" in str(event.attributes["exception.stacktrace"])

    @pytest.mark.parametrize(
        ("ends", "status", "error_type"),
        [
            (lambda: GiveUp("note: it never will"), StatusCode.ERROR, "_OTHER"),
            (lambda: Snooze(60), StatusCode.UNSET, None),
        ],
    )
    async def test_the_status_goes_by_how_the_attempt_ended(
        self,
        app: Penstock,
        work: Work,
        traces: Traces,
        ends: Callable[[], Exception],
        status: StatusCode,
        error_type: str | None,
    ) -> None:
        @app.job(name="a")
        async def a() -> None:
            raise ends()

        async with work():
            await a.enqueue()
            await traces.has("process default")
        span = traces.one("process default")
        assert span.status.status_code is status
        assert about(span, "error.type") == {"error.type": error_type}

    async def test_a_request_that_is_refused_is_an_error_of_sending(
        self, app: Penstock, traces: Traces
    ) -> None:
        await app.enqueue("a", {"n": 1}, idempotency_key="k")
        with pytest.raises(IdempotencyConflict):
            await app.enqueue("a", {"n": 2}, idempotency_key="k")
        _, second = traces.named("send default")
        assert second.status.status_code is StatusCode.ERROR
        assert about(second, "error.type") == {"error.type": "idempotency_conflict"}


class TestRepeating:
    """What is sent twice must be the same, although it comes from another trace."""

    async def test_a_request_with_an_idempotency_key(self, app: Penstock, traces: Traces) -> None:
        with traces.tracer.start_as_current_span("first"):
            first = await app.enqueue("a", {"n": 1}, idempotency_key="k", headers={"shop": 7})
        with traces.tracer.start_as_current_span("second"):
            second = await app.enqueue("a", {"n": 1}, idempotency_key="k", headers={"shop": 7})
            created = app.new("a", {"n": 1}, idempotency_key="k", headers={"shop": 7})
            [third] = await app.enqueue_many([created])
        assert {first.id, second.id, getattr(third, "id", third)} == {first.id}
        assert "traceparent" in headers_of((await first.job()).asked)

    async def test_a_request_that_was_first_sent_without_a_trace(
        self, app: Penstock, traces: Traces, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as untraced:
            untraced.setattr(telemetry, "_spans", telemetry._no_spans)
            first = await app.enqueue("a", idempotency_key="k")
        assert (await app.enqueue("a", idempotency_key="k")).id == first.id

    async def test_other_headers_still_make_another_request(self, app: Penstock, traces: Traces) -> None:
        await app.enqueue("a", idempotency_key="k", headers={"shop": 7})
        with pytest.raises(IdempotencyConflict):
            await app.enqueue("a", idempotency_key="k", headers={"shop": 8})

    async def test_the_same_job_sent_again(self, app: Penstock, traces: Traces) -> None:
        job = app.new("a")
        [first] = await app.enqueue_many([job])
        with traces.tracer.start_as_current_span("another"):
            [second] = await app.enqueue_many([job])
            third = await app.put(job)
        assert {getattr(first, "id", first), getattr(second, "id", second), third.id} == {job.id}

    async def test_a_job_with_an_id_of_the_callers_own(self, app: Penstock, traces: Traces) -> None:
        @app.job(name="typed")
        async def typed() -> None:
            pass

        ways: list[Callable[[str], Awaitable[JobHandle]]] = [
            lambda own: app.enqueue("a", id=own),
            lambda own: typed.options(id=own).enqueue(),
            lambda own: app.put(app.new("a", id=own)),
            lambda own: app.put(typed.options(id=own).new()),
        ]
        for put in ways:
            own = str(app.new("a").id)
            with traces.tracer.start_as_current_span("first"):
                first = await put(own)
            with traces.tracer.start_as_current_span("second"):
                assert (await put(own)).id == first.id == own


class TestOtherProcesses:
    async def test_the_headers_carry_the_span_of_the_attempt(self, app: Penstock, traces: Traces) -> None:
        await app.enqueue("a", headers={"shop": 7, "traceparent": PARENT})
        [leased] = await app.lease()
        with traces.tracer.start_as_current_span("process default") as span:
            headers = headers_of(telemetry.spans().carried(leased).job.asked)
        assert headers["shop"] == 7
        assert headers["traceparent"].split("-")[2] == trace.format_span_id(span.get_span_context().span_id)


class TestWithoutTracing:
    def run(self, code: str) -> None:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    LIFE = """
import asyncio
from penstock import Penstock
from penstock.app.running import run_worker
app = Penstock("memory://", name="test")
@app.job(name="a")
async def a(): pass
async def main():
    [made] = await app.enqueue_many([a.new()])
    handle = await a.enqueue()
    workers = []
    task = asyncio.create_task(run_worker(app, handle_signals=False, on_start=workers.append))
    await handle.result(timeout=20)
    await made.result(timeout=20)
    workers[0].stop()
    await task
    return (await handle.job()).asked.headers
"""

    def test_jobs_run_where_the_package_is_missing(self) -> None:
        self.run(
            "import sys\nsys.modules['opentelemetry'] = sys.modules['opentelemetry.trace'] = None\n"
            f"{self.LIFE}\nassert asyncio.run(main()) is None"
        )

    def test_the_package_is_not_even_imported(self) -> None:
        self.run(
            f"{self.LIFE}\nassert asyncio.run(main()) is None\nimport sys\n"
            "assert not any(name.startswith('opentelemetry') for name in sys.modules)"
        )

    def test_the_package_alone_changes_nothing(self) -> None:
        self.run(f"import opentelemetry.trace\n{self.LIFE}\nassert asyncio.run(main()) is None")

    def test_what_is_set_up_later_is_seen(self) -> None:
        self.run(
            f"{self.LIFE}\nassert asyncio.run(main()) is None\n"
            "from opentelemetry import trace\nfrom opentelemetry.sdk.trace import TracerProvider\n"
            "trace.set_tracer_provider(TracerProvider())\n"
            "app = Penstock('memory://', name='test')\na = app.job(name='a')(a.handler.function)\n"
            "assert 'traceparent' in asyncio.run(main())"
        )
