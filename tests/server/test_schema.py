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
from schemathesis import Case, CheckFunction
from schemathesis.core import NotSet
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from penstock.server.app import OPERATIONS, openapi
from penstock.server.openapi import as_text
from penstock.stores.memory import MemoryStore
from support.service import ADMIN, serving

# What JSON Schema cannot say, and so Schemathesis cannot know.
BEYOND_THE_DOCUMENT = {
    "GET /v1/jobs": "times lie between the years 1970 and 9000",
    "POST /v1/bulk": "the same",
    "POST /v1/jobs": "run_at and delay are not given together, nor are expires_at and expires_in",
    "PUT /v1/schedules/{name}": "cron expressions and names of time zones",
    "GET /v1/audit": "a cursor is the `next` of another page",
    "POST /jobs": "the same idempotency key comes with the same body",
    "POST /jobs/batch": "within a list, text of any kind passes for a date-time",
}
LENIENT = {"GET /jobs": "OpenQueue leaves parameters unread that it does not know"}


LEFT_UNCHECKED: dict[str, list[CheckFunction]] = {
    **{name: [positive_data_acceptance] for name in BEYOND_THE_DOCUMENT},
    **{name: [negative_data_rejection] for name in LENIENT},
}

schema = schemathesis.openapi.from_dict(
    openapi(),
    config=schemathesis.Config.from_dict({"generation": {"max-examples": 10, "deterministic": True}}),
)


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


def held_to_the_document(operation: str) -> Callable[..., None]:
    """A test of one operation, under its own name."""

    @schema.include(operation_id=operation).parametrize()
    def test(case: Case[Any], url: str) -> None:
        if not isinstance(case.body, NotSet):
            case.body = _whole(case.body)
        for place in (case.body, case.query):  # nobody waits for jobs here
            if (
                isinstance(place, dict)
                and isinstance(wait := place.get("wait"), int | float)
                and 0 < wait <= 60
            ):
                place["wait"] = 0
        case.call_and_validate(
            base_url=url,
            headers={"Authorization": f"Bearer {ADMIN}"},
            excluded_checks=LEFT_UNCHECKED.get(case.operation.label, []),
        )

    return test  # type: ignore[no-any-return]


for operation in OPERATIONS:
    if operation.path != "/v1/events":  # it never ends; test_events.py follows it
        globals()[f"test_{operation.name}"] = held_to_the_document(operation.name)


def test_the_checked_in_document_is_the_one_that_is_served(url: str) -> None:
    checked_in = (Path(__file__).parents[2] / "docs" / "openapi.json").read_text()
    assert checked_in == as_text(openapi()), "run `make openapi` and look at the difference"
    assert httpx.get(f"{url}/openapi.json").json() == json.loads(checked_in)


def test_every_exception_is_about_an_operation_there_is() -> None:
    assert LEFT_UNCHECKED.keys() <= {f"{operation.method} {operation.path}" for operation in OPERATIONS}
