"""The OpenAPI document, held against the service by Schemathesis, and against the copy that is checked in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import schemathesis
from schemathesis import Case

from penstock.server.app import openapi
from penstock.stores.memory import MemoryStore
from support.service import ADMIN, serving

LEFT_OUT = r"^/v1/(bulk|audit|events)|/explain$"

config = schemathesis.Config()
config.projects.get_default().generation.update(max_examples=15, deterministic=True)
schema = schemathesis.openapi.from_dict(openapi(), config=config).exclude(path_regex=LEFT_OUT)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A service on a thread of its own: Schemathesis waits where it calls."""
    told: list[str] = []
    up, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        async with serving(MemoryStore()) as url:
            told.append(url)
            up.set()
            await stop.wait()

    loop: asyncio.AbstractEventLoop | None = None
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert up.wait(10)
    yield told[0]
    assert loop is not None
    loop.call_soon_threadsafe(stop.set)
    thread.join()


@schema.parametrize()
def test_answers_as_the_document_says(case: Case, url: str) -> None:
    case.call_and_validate(base_url=url, headers={"Authorization": f"Bearer {ADMIN}"})
