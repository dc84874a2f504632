"""What the lake found out, over HTTP, and what is done about it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from penstock.access import Access
from penstock.core.ports import Store
from penstock.queue import Queue
from support.insights import FINGERPRINT, REFUSED, published
from support.working import until


@pytest.fixture(autouse=True)
async def run_of_the_lake(store: Store) -> None:
    await published(store)


async def fail(store: Store, error: str, count: int = 1) -> list[str]:
    """Jobs that are dead of an error."""
    queue = Queue(store)
    ids = []
    for _ in range(count):
        made = await queue.enqueue("email.send", queue="emails", max_attempts=1)
        [held] = await queue.lease("emails", worker="w")
        await queue.nack(held, error, retry=False)
        ids.append(str(made.id))
    return ids


async def statuses(store: Store, ids: list[str]) -> set[str]:
    return {str((await Queue(store).get(job_id)).status) for job_id in ids}


class TestLooking:
    async def test_says_what_there_is_and_as_of_when(self, api: httpx.AsyncClient) -> None:
        told = (await api.get("/v1/insights")).json()
        assert told["as_of"] == "2026-03-02T12:00:00Z"
        assert {one["name"]: one["rows"] for one in told["insights"]}["latency"] == 3

    async def test_latency_is_by_queue_and_hour_and_may_be_of_one_type(self, api: httpx.AsyncClient) -> None:
        told = (await api.get("/v1/insights/latency", params={"queue": "emails"})).json()
        assert told["as_of"] == "2026-03-02T12:00:00Z"
        [row] = told["rows"]
        assert (row["queue"], row["attempts"]) == ("emails", 8)
        both = row["wait_p50_ms"]
        told = (
            await api.get("/v1/insights/latency", params={"queue": "emails", "type": "email.send"})
        ).json()
        assert told["rows"][0]["wait_p50_ms"] < both

    async def test_a_limit_says_how_much_it_leaves_out(self, api: httpx.AsyncClient) -> None:
        told = (await api.get("/v1/insights/hourly", params={"limit": 1})).json()
        assert (len(told["rows"]), told["left_out"]) == (1, 2)

    async def test_what_nobody_knows_is_404_and_what_makes_no_sense_422(self, api: httpx.AsyncClient) -> None:
        assert (await api.get("/v1/insights/weather")).status_code == 404
        assert (await api.get("/v1/insights/flows", params={"queue": "emails"})).status_code == 422

    async def test_a_tenant_sees_its_own(self, store: Store, url: str) -> None:
        _, secret = await Access(store).create("other", "bob", ["read"], actor="tests")
        async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {secret}"}) as api:
            assert (await api.get("/v1/insights")).json()["as_of"] is None
            assert (await api.get("/v1/insights/slo")).status_code == 404


class TestRedrive:
    PATH = f"/v1/insights/failures/{FINGERPRINT}/redrive"

    async def test_counts_the_jobs_of_that_failure_alone(self, api: httpx.AsyncClient, store: Store) -> None:
        dead = [*await fail(store, REFUSED.replace("42", "43"), 3), *await fail(store, "ValueError: no", 2)]
        told = (await api.post(self.PATH)).json()
        assert told == {"dry_run": {"matched": 3, "is_exact": True}}
        assert await statuses(store, dead) == {"dead"}

    async def test_brings_them_back_and_leaves_the_others(self, api: httpx.AsyncClient, store: Store) -> None:
        ours, others = await fail(store, REFUSED, 3), await fail(store, "ValueError: no", 2)
        begun = await api.post(self.PATH, json={"dry_run": False, "per_second": 1000})
        assert begun.status_code == 202

        async def told() -> dict[str, Any]:
            answer: dict[str, Any] = (await api.get(begun.headers["location"])).json()
            return answer

        async def is_done() -> bool:
            return bool((await told())["state"] == "done")

        await until(is_done)
        operation = await told()
        assert (operation["matched"], operation["changed"]) == (3, 3)
        assert FINGERPRINT in operation["reason"]
        assert await statuses(store, ours) == {"queued"}
        assert await statuses(store, others) == {"dead"}

    async def test_a_failure_that_nobody_knows_is_404(self, api: httpx.AsyncClient) -> None:
        assert (await api.post("/v1/insights/failures/0123456789abcdef/redrive")).status_code == 404


class TestApply:
    PATH = "/v1/insights/capacity/emails/apply"

    async def test_a_dry_run_tells_and_sets_nothing(self, api: httpx.AsyncClient, store: Store) -> None:
        told = (await api.post(self.PATH)).json()
        assert told["before"] == {"max_concurrency": None, "lease_seconds": 30}
        assert told["after"] == {"max_concurrency": 20, "lease_seconds": 45}
        assert told["dry_run"]
        assert (await Queue(store).queue("emails")).settings.max_concurrency is None

    async def test_sets_the_queue_and_says_why_in_its_trail(
        self, api: httpx.AsyncClient, store: Store
    ) -> None:
        assert (await api.post(self.PATH, json={"dry_run": False})).status_code == 200
        settings = (await Queue(store).queue("emails")).settings
        assert (settings.max_concurrency, settings.lease_seconds) == (20, 45)
        [change] = (await Queue(store).history("emails", "queue")).changes
        assert change.reason == "capacity plan of 2026-03-02T12:00:00+00:00"

    async def test_a_queue_without_a_plan_is_404(self, api: httpx.AsyncClient) -> None:
        assert (await api.post("/v1/insights/capacity/nowhere/apply")).status_code == 404

    async def test_to_act_takes_more_than_to_look(self, store: Store, url: str) -> None:
        _, secret = await Access(store).create("default", "bob", ["read"], actor="tests")
        async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {secret}"}) as api:
            assert (await api.get("/v1/insights/capacity")).status_code == 200
            answers = await asyncio.gather(api.post(self.PATH), api.post(TestRedrive.PATH))
        assert [answer.status_code for answer in answers] == [403, 403]
