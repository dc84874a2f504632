"""The overview, figures, failures, flows, markers and the system over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from penstock.core.ports import Store
from penstock.queue import Queue
from penstock.worker.worker import Worker
from support.service import serving
from support.working import until

ERROR = "ValueError: no user 17"


@pytest.fixture
async def url(store: Store) -> AsyncIterator[str]:
    """A service whose figures follow at once."""
    await Queue(store).enqueue("warm.up", queue="emails")
    async with serving(store, figures_seconds=0.02) as url:
        yield url


@pytest.fixture
async def watched(api: httpx.AsyncClient, store: Store) -> httpx.AsyncClient:
    """Once the historian follows this tenant."""
    await until(lambda: _is_counting(api))
    return api


async def _is_counting(api: httpx.AsyncClient) -> bool:
    return (await api.get("/v1/figures")).json()["counted_since"] is not None


async def fail(store: Store, count: int = 1) -> None:
    queue = Queue(store)
    for _ in range(count):
        await queue.enqueue("email.send", queue="emails", max_attempts=1, priority=5)
        [held] = await queue.lease("emails", worker="w")
        await queue.nack(held, ERROR)


async def told(api: httpx.AsyncClient, path: str, **params: Any) -> Any:
    answer = await api.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_figures_follow_what_happens(watched: httpx.AsyncClient, store: Store) -> None:
    await fail(store)

    async def is_told() -> bool:
        return bool(sum((await told(watched, "/v1/figures", span="15m"))["series"]["failed"]) == 1)

    await until(is_told)
    assert [one["type"] for one in (await told(watched, "/v1/types"))["types"]] == ["email.send"]


async def test_a_failure_is_seen_and_its_jobs_come_back(watched: httpx.AsyncClient, store: Store) -> None:
    await fail(store, 6)

    async def seen() -> bool:
        return [one["last_hour"] for one in (await told(watched, "/v1/failures"))["failures"]] == [6]

    await until(seen)
    [failure] = (await told(watched, "/v1/failures", queue="emails"))["failures"]
    assert failure["is_new"]
    assert failure["is_rising"]
    assert (await told(watched, "/v1/failures", type="other"))["failures"] == []
    fingerprint = failure["group"]["fingerprint"]
    assert (await told(watched, f"/v1/failures/{fingerprint}"))["group"]["sample_error"] == ERROR
    attention = (await told(watched, "/v1/overview"))["attention"]
    assert ("rising", fingerprint) in [(one["kind"], one["subject"]) for one in attention]

    count = (await watched.post(f"/v1/failures/{fingerprint}/redrive")).json()
    assert count == {"dry_run": {"matched": 6, "is_exact": True}}
    begun = await watched.post(
        f"/v1/failures/{fingerprint}/redrive", json={"dry_run": False, "per_second": 1000}
    )
    assert begun.status_code == 202

    async def back() -> bool:
        return not (await Queue(store).find(status="dead")).jobs

    await until(back)


async def test_failures_say_since_when_they_are_counted(watched: httpx.AsyncClient) -> None:
    figures = await told(watched, "/v1/figures")
    failures = await told(watched, "/v1/failures")
    assert failures["counted_since"] == figures["counted_since"] < failures["at"]


async def test_a_failure_that_nobody_has_seen_is_404(watched: httpx.AsyncClient) -> None:
    assert (await watched.get("/v1/failures/0123456789abcdef")).status_code == 404


async def test_the_overview_says_what_needs_a_person(watched: httpx.AsyncClient, store: Store) -> None:
    calm = await told(watched, "/v1/overview")
    assert calm["level"] in ("ok", "problem")
    [emails] = calm["queues"]
    assert (emails["name"], emails["workers"], emails["counts"]["queued"]) == ("emails", 0, 1)
    await Queue(store).configure("emails", max_depth=1, target_seconds=0.001)
    full = await told(watched, "/v1/overview")
    assert {"late", "full"} <= {one["kind"] for one in full["attention"]}
    assert full["level"] == "problem"
    assert "late" in full["sentence"]


async def test_a_flow_as_a_whole(api: httpx.AsyncClient, store: Store) -> None:
    queue = Queue(store)
    first = await queue.enqueue("fetch")
    middle = [await queue.enqueue("part", parents=[first.id]) for _ in range(3)]
    last = await queue.enqueue("join", parents=[one.id for one in middle])
    alone = await queue.enqueue("alone")
    flow = await told(api, f"/v1/jobs/{middle[1].id}/flow")
    assert flow["id"] == first.id
    assert [one["id"] for one in flow["jobs"]] == [first.id, *(one.id for one in middle), last.id]
    assert flow["is_complete"]
    listed = await told(api, "/v1/flows")
    assert [(one["id"], one["counts"]) for one in listed["flows"]] == [
        (first.id, {"queued": 1, "waiting": 4})
    ]
    assert [one["id"] for one in (await told(api, f"/v1/jobs/{alone.id}/flow"))["jobs"]] == [alone.id]
    children = (await told(api, "/v1/jobs", parents=first.id))["jobs"]
    assert {one["id"] for one in children} == {one.id for one in middle}


async def test_markers_are_deploys_pauses_and_operations(api: httpx.AsyncClient) -> None:
    assert (await api.post("/v1/markers", json={"text": "deployed 4f2a91c"})).status_code == 201
    await api.post("/v1/queues/emails/pause", json={"reason": "incident 42"})
    await api.post("/v1/queues/emails/resume")
    await api.put("/v1/queues/emails", json={"max_concurrency": 3})
    await api.post("/v1/bulk", json={"action": "cancel", "filter": {"queue": "none"}, "dry_run": False})
    markers = (await told(api, "/v1/markers"))["markers"]
    assert [one["kind"] for one in markers] == ["bulk", "configure", "resume", "pause", "deploy"]
    assert markers[3]["text"] == "emails paused: incident 42"


async def test_a_cron_expression_in_words(api: httpx.AsyncClient) -> None:
    said = await told(api, "/v1/cron", cron="0 9 * * 1-5", tz="Europe/Paris")
    assert said["words"] == "At 09:00 on Monday through Friday"
    assert len(said["next"]) == 5
    assert (await api.get("/v1/cron", params={"cron": "nonsense"})).status_code == 422


async def test_the_system_tells_of_its_database(api: httpx.AsyncClient, store: Store) -> None:
    system = await told(api, "/v1/system")
    if system["store"] == "postgres":
        assert "job" in {table["name"].removeprefix("penstock.") for table in system["database"]["tables"]}
    else:
        assert system["database"] is None


async def test_a_worker_does_as_it_is_told(api: httpx.AsyncClient, store: Store) -> None:
    worker = Worker(Queue(store), {}, queues=["emails"], name="w1")
    running = asyncio.create_task(worker.run())
    try:

        async def shown() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = (await told(api, "/v1/workers"))["workers"]
            return found

        async def is_shown() -> bool:
            return bool(await shown())

        await until(is_shown)
        [one] = await shown()
        assert (await api.post(f"/v1/workers/{one['id']}/order", json={"order": "quiet"})).status_code == 200

        async def quiet() -> bool:
            return bool((await shown())[0]["quiet"])

        await until(quiet)
        await Queue(store).enqueue("never.begun", queue="emails")
        assert (await api.post(f"/v1/workers/{one['id']}/order", json={"order": "stop"})).status_code == 200
        async with asyncio.timeout(20):
            await running
        assert (await api.post(f"/v1/workers/{'0' * 32}/order", json={"order": "stop"})).status_code == 404
    finally:
        running.cancel()
        await asyncio.wait([running])
