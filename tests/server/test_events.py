"""Server-sent events: what happens is told, in order, once, and from where one left off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx


@asynccontextmanager
async def following(api: httpx.AsyncClient, **params: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    headers = {"Last-Event-ID": params.pop("last")} if "last" in params else {}
    async with api.stream("GET", "/v1/events", params=params, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.aiter_lines()
        assert (await anext(lines)).startswith(":")  # it has begun
        yield _events(lines)


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, Any]]:
    id = ""
    async for line in lines:
        if line.startswith("id: "):
            id = line[4:]
        elif line.startswith("data: "):
            yield {"id": id, **json.loads(line[6:])}


async def take(events: AsyncIterator[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(20):
        return [await anext(events) for _ in range(count)]


async def live(api: httpx.AsyncClient, id: str) -> None:
    """A whole life of a job."""
    await api.post("/v1/jobs", json={"type": "t", "id": id, "queue": "q"})
    [held] = (await api.post("/v1/queues/q/lease", json={"worker_id": "w"})).json()["jobs"]
    await api.post(f"/v1/jobs/{id}/ack", json={"token": held["token"]})


async def test_what_happens_is_told_as_it_happens(api: httpx.AsyncClient) -> None:
    from penstock.queue import new_id

    id = new_id()
    async with following(api) as events:
        await asyncio.sleep(0.2)
        await live(api, id)
        await api.post("/v1/queues/q/pause", json={"reason": "now"})
        told = await take(events, 3)
    assert [(event["kind"], event["name"], event["what"]) for event in told[:2]] == [
        ("job", id, "enqueued"), ("job", id, "succeeded"),
    ]  # fmt: skip
    assert (told[2]["kind"], told[2]["name"], told[2]["actor"]) == ("queue", "q", "token:ada")
    assert (told[1]["queue"], told[1]["type"], told[1]["worker"]) == ("q", "t", "w")


async def test_one_that_comes_back_has_missed_nothing(api: httpx.AsyncClient) -> None:
    from penstock.queue import new_id

    async with following(api) as events:
        await asyncio.sleep(0.2)
        await live(api, new_id())
        first = (await take(events, 1))[0]
    ids = [new_id() for _ in range(3)]
    for id in ids:
        await live(api, id)
    async with following(api, last=first["id"]) as events:
        missed = await take(events, 7)
        await live(api, last := new_id())
        fresh = await take(events, 2)
    assert [event["what"] for event in missed] == ["succeeded", *["enqueued", "succeeded"] * 3]
    assert [event["name"] for event in fresh] == [last, last]
    assert len({event["id"] for event in [first, *missed, *fresh]}) == 10


async def test_only_what_was_asked_for(api: httpx.AsyncClient) -> None:
    async with following(api, queue="wanted") as events:
        await asyncio.sleep(0.2)
        await api.post(
            "/v1/jobs/batch",
            json={"jobs": [{"type": "a", "queue": "other"}, {"type": "b", "queue": "wanted"}]},
        )
        [event] = await take(events, 1)
    assert (event["type"], event["queue"]) == ("b", "wanted")


async def test_a_cursor_of_elsewhere_is_refused(api: httpx.AsyncClient) -> None:
    answer = await api.get("/v1/events", headers={"Last-Event-ID": "nonsense"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
