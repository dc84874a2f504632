"""What is logged, in which form, and what must never be."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from penstock import Penstock, telemetry
from penstock.app.running import run_worker
from penstock.logs import set_up_logging, without_passwords
from penstock.telemetry.otel import OtelSpans
from penstock.worker.worker import Worker


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


async def run_one(app: Penstock, handler: Any) -> None:
    """Enqueue a job for the handler and work until it has ended."""
    job = await handler.enqueue()
    workers: list[Worker] = []

    async def stop() -> None:
        await job.wait(timeout=20)
        workers[0].stop()

    await asyncio.gather(
        run_worker(app, handle_signals=False, name="w1", on_start=workers.append), asyncio.create_task(stop())
    )


class TestForm:
    def test_is_json_unless_a_person_reads_it(self, out: io.StringIO) -> None:
        terminal = Terminal()
        for stream in (out, terminal):
            set_up_logging(stream=stream)
            logging.getLogger("shop").warning("%d left", 3)
        [line] = lines(out)
        assert (line["level"], line["logger"], line["message"]) == ("warning", "shop", "3 left")
        assert line["time"].endswith("Z")
        assert terminal.getvalue().rstrip().endswith("WARNING shop: 3 left")

    @pytest.mark.parametrize(("format", "is_json"), [("json", True), ("text", False)])
    def test_can_be_said(self, out: io.StringIO, format: Any, is_json: bool) -> None:
        set_up_logging(format=format, stream=out)
        logging.getLogger("shop").warning("hello")
        assert out.getvalue().startswith("{") is is_json

    def test_called_again_it_replaces_what_it_did(self, out: io.StringIO) -> None:
        set_up_logging(stream=io.StringIO())
        set_up_logging("error", stream=out)
        logging.getLogger("shop").warning("not shown")
        logging.getLogger("shop").error("shown")
        assert [line["message"] for line in lines(out)] == ["shown"]

    def test_an_exception_is_one_field(self, out: io.StringIO) -> None:
        set_up_logging(stream=out)
        try:
            raise ValueError("no such thing")
        except ValueError:
            logging.getLogger("shop").exception("it failed")
        [line] = lines(out)
        assert line["exception"].startswith("Traceback")
        assert line["exception"].endswith("ValueError: no such thing")

    def test_extras_come_along_whatever_they_are(self, out: io.StringIO) -> None:
        class Broken:
            def __str__(self) -> str:
                raise RuntimeError

        loop: list[Any] = []
        loop.append(loop)
        set_up_logging(stream=out)
        for extra in (
            {"shop": 7},
            {"shop": {1, 2}},
            {"shop": Broken()},
            {"shop": loop},
            {"shop": float("nan")},
        ):
            logging.getLogger("shop").warning("hello", extra=extra)
        found = lines(out)
        assert len(found) == 5
        assert found[0]["shop"] == 7
        assert found[2]["shop"] == "<Broken>"
        assert all(line["message"] == "hello" for line in found)


class TestInsideAJob:
    @pytest.mark.parametrize("is_async", [True, False])
    async def test_a_record_says_which(self, out: io.StringIO, is_async: bool) -> None:
        app = Penstock("memory://", name="test", tenant="acme")

        async def in_loop() -> None:
            logging.getLogger("shop").info("working")

        def in_thread() -> None:
            logging.getLogger("shop").info("working")

        handler = app.job(name="email.send", queue="emails")(in_loop if is_async else in_thread)
        set_up_logging(stream=out)
        await run_one(app, handler)
        logging.getLogger("shop").info("outside")
        by_message = {line["message"]: line for line in lines(out)}
        working = by_message["working"]
        [job] = (await app.queue.find()).jobs
        assert (working["job_id"], working["job_type"], working["attempt"]) == (job.id, "email.send", 1)
        assert (working["tenant"], working["queue"], working["worker"]) == ("acme", "emails", "w1")
        assert "trace_id" not in working
        assert "job_id" not in by_message["outside"]

    async def test_and_in_which_trace(self, out: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(telemetry, "_spans", OtelSpans(TracerProvider().get_tracer("penstock")))
        app = Penstock("memory://", name="test")

        @app.job(name="a")
        async def a() -> None:
            logging.getLogger("shop").info("working")

        set_up_logging(stream=out)
        await run_one(app, a)
        [working] = [line for line in lines(out) if line["message"] == "working"]
        [job] = (await app.queue.find()).jobs
        assert job.asked.headers is not None
        assert json.loads(job.asked.headers)["traceparent"].split("-")[1] == working["trace_id"]
        assert len(working["span_id"]) == 16

    async def test_a_person_reads_it_behind_the_message(self) -> None:
        app, terminal = Penstock("memory://", name="test"), Terminal()

        @app.job(name="a")
        async def a() -> None:
            logging.getLogger("shop").info("working")

        set_up_logging(stream=terminal)
        await run_one(app, a)
        [line] = [line for line in terminal.getvalue().splitlines() if "working" in line]
        assert "shop: working  [job_id=" in line
        assert "job_type=a attempt=1 tenant=default queue=default worker=w1]" in line


class TestSecrets:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("postgresql://me:s3cret@db/x failed", "postgresql://me:***@db/x failed"),
            ("redis://:s3cret@cache:6379", "redis://:***@cache:6379"),
            ("postgresql://me:s3@cret@db", "postgresql://me:***@db"),
            ("postgresql+asyncpg://me:s3/cret@db", "postgresql+asyncpg://me:***@db"),
            ("postgresql://db/x?user=me&password=s3cret&a=1", "postgresql://db/x?user=me&password=***&a=1"),
            ("host=db password=s3cret dbname=x", "host=db password=*** dbname=x"),
            ("http://shop:8080/ is up, says me@shop", "http://shop:8080/ is up, says me@shop"),
            ("postgresql://me@db/x", "postgresql://me@db/x"),
            ("a=1", "a=1"),
        ],
    )
    def test_passwords_are_struck_out(self, text: str, shown: str) -> None:
        assert without_passwords(text) == shown

    @pytest.mark.parametrize("format", ["json", "text"])
    def test_wherever_they_stand(self, out: io.StringIO, format: Any) -> None:
        url = "postgresql://me:s3cret@db/x"
        set_up_logging(format=format, stream=out)
        try:
            raise ConnectionError(url)
        except ConnectionError:
            logging.getLogger("shop").exception("cannot open %s", url, extra={"url": url, "urls": {url}})
        assert "s3cret" not in out.getvalue()
        assert "me:***@db" in out.getvalue()

    async def test_a_job_that_fails_does_not_have_its_payload_logged(self, out: io.StringIO) -> None:
        app = Penstock("memory://", name="test")

        @app.job(name="a", max_attempts=1)
        async def a(card: str) -> None:
            raise ValueError("declined")

        set_up_logging("debug", stream=out)
        await run_one(app, _Bound(a, card="4111-1111"))
        assert (await app.queue.find(status="dead")).jobs
        assert "4111-1111" not in out.getvalue()


class _Bound:
    def __init__(self, job_type: Any, **arguments: Any) -> None:
        self._job_type, self._arguments = job_type, arguments

    async def enqueue(self) -> Any:
        return await self._job_type.enqueue(**self._arguments)


def test_nothing_is_set_up_by_importing_penstock() -> None:
    code = "import logging, penstock, penstock.logs; assert not logging.getLogger().handlers"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
