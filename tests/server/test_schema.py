"""The OpenAPI document, held against the service by Schemathesis, and against the copy that is checked in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from schemathesis import BaseSchema, Case, CheckFunction
from schemathesis.core import NotSet
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from penstock.server import port
from penstock.server.app import OPERATIONS, openapi
from penstock.server.openapi import as_text
from penstock.stores.memory import MemoryStore
from support.service import ADMIN, serving

LABELS = [f"{operation.method} {operation.path}" for operation in OPERATIONS]

# What JSON Schema cannot say, and so Schemathesis cannot know.
BEYOND_THE_DOCUMENT = {
    "GET /v1/jobs": "times lie between the years 1970 and 9000",
    "POST /v1/bulk": "the same",
    "POST /v1/jobs": "run_at and delay are not given together, nor are expires_at and expires_in",
    "PUT /v1/queues/{queue}": "the burst of a rate is worth at most ten years of it",
    "POST /v1/tokens": "the same",
    "PUT /v1/schedules/{name}": "cron expressions and names of time zones",
    "GET /v1/cron": "the same",
    "GET /v1/audit": "a cursor is the `next` of another page",
    "GET /v1/insights/{table}": "schedules and flows are not asked by queue, nor most others by type",
    "POST /jobs": "the same idempotency key comes with the same body",
    "POST /jobs/batch": "within a list, text of any kind passes for a date-time",
}
BEYOND_THE_DOCUMENT |= {
    f"{operation.method} {operation.path}": "the limits of what Penstock's own clients send are in server/checks.py"
    for operation in port.OPERATIONS
}
LENIENT = {"GET /jobs": "OpenQueue leaves parameters unread that it does not know"}


LEFT_UNCHECKED: dict[str, list[CheckFunction]] = {
    **{name: [positive_data_acceptance] for name in BEYOND_THE_DOCUMENT},
    **{name: [negative_data_rejection] for name in LENIENT},
}


@pytest.fixture(scope="module")
def schema() -> BaseSchema:
    config = schemathesis.Config.from_dict({"generation": {"max-examples": 8, "deterministic": True}})
    return schemathesis.openapi.from_dict(openapi(), config=config)


def _whole(value: Any) -> Any:
    """To JSON Schema 3.0 is a whole number; we take it for what it is not."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {name: _whole(one) for name, one in value.items()}
        case list():
            return [_whole(one) for one in value]
    return value


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A service on a thread of its own: Schemathesis waits where it calls."""
    up: Future[tuple[str, Callable[[], object]]] = Future()

    async def serve() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        async with serving(MemoryStore()) as url:
            up.set_result((url, lambda: loop.call_soon_threadsafe(stop.set)))
            await stop.wait()

    with ThreadPoolExecutor(1) as thread:
        served = thread.submit(lambda: asyncio.run(serve()))
        url, stop = up.result(10)
        yield url
        stop()
        served.result()


@pytest.mark.parametrize(
    "label", [label for label in LABELS if label != "GET /v1/events"]
)  # that one never ends
def test_answers_as_the_document_says(label: str, schema: BaseSchema, url: str) -> None:
    def ask(case: Case[Any]) -> None:
        if not isinstance(case.body, NotSet):
            case.body = _whole(case.body)
        for place in (case.body, case.query):
            if isinstance(place, dict):
                _do_not_wait(place)
        case.call_and_validate(
            base_url=url,
            headers={"Authorization": f"Bearer {ADMIN}"},
            excluded_checks=LEFT_UNCHECKED.get(label, []),
        )

    # What `schema.parametrize` does for all operations at collection, in every process that runs tests.
    operation = schema.find_operation_by_label(label)
    assert operation is not None
    build_operation_test(
        config=schema.config, operation=operation, test_func=ask, given_kwargs={}, feedback=FeedbackSources()
    )()


def _do_not_wait(place: dict[str, Any]) -> None:
    for name in place.keys() & {"wait", "seconds"}:
        if isinstance(place[name], int | float) and 0 < place[name] <= 60:
            place[name] = 0


def test_the_checked_in_document_is_the_one_that_is_served(url: str) -> None:
    checked_in = (Path(__file__).parents[2] / "docs" / "openapi.json").read_text()
    assert checked_in == as_text(openapi()), "run `make openapi` and look at the difference"
    assert httpx.get(f"{url}/openapi.json").json() == json.loads(checked_in)


def test_every_exception_is_about_an_operation_there_is() -> None:
    assert LEFT_UNCHECKED.keys() <= set(LABELS)
