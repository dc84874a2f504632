"""The HTTP API, call by call."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from penstock.core.commands import Enqueued
from penstock.core.errors import PenstockError
from penstock.core.job import NewJob
from penstock.core.ports import Store
from penstock.queue import new_id


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem document of a refused request."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    told: dict[str, Any] = answer.json()
    assert (told["status"], told["code"]) == (status, code)
    assert told["type"] == f"urn:penstock:problem:{code}"
    assert told["detail"]
    return told


async def enqueue(api: httpx.AsyncClient, type: str = "t", **options: Any) -> str:
    answer = await api.post("/v1/jobs", json={"type": type, **options})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def lease(api: httpx.AsyncClient, queue: str = "default", **options: Any) -> list[dict[str, Any]]:
    answer = await api.post(f"/v1/queues/{queue}/lease", json={"worker_id": "w", **options})
    assert answer.status_code == 200, answer.text
    jobs: list[dict[str, Any]] = answer.json()["jobs"]
    return jobs


class TestEnqueue:
    async def test_a_job_goes_in_and_can_be_looked_at(self, api: httpx.AsyncClient) -> None:
        answer = await api.post(
            "/v1/jobs",
            json={"type": "email.send", "payload": {"to": "ada"}, "queue": "emails", "priority": 5},
        )
        assert answer.status_code == 201
        made = answer.json()
        assert made["duplicate"] is None
        assert answer.headers["location"] == f"/v1/jobs/{made['id']}"
        job = (await api.get(answer.headers["location"])).json()
        told = {
            name: job[name] for name in ("id", "type", "queue", "status", "attempts", "priority", "payload")
        }
        assert told == {
            "id": made["id"], "type": "email.send", "queue": "emails", "status": "queued", "attempts": 0, "priority": 5,
            "payload": {"to": "ada"},
        }  # fmt: skip

    async def test_the_same_idempotency_key_is_the_same_job(self, api: httpx.AsyncClient) -> None:
        key = {"Idempotency-Key": '"order-1"'}
        first = await api.post("/v1/jobs", json={"type": "t"}, headers=key)
        again = await api.post("/v1/jobs", json={"type": "t"}, headers={"Idempotency-Key": "order-1"})
        assert (first.status_code, again.status_code) == (201, 200)
        assert again.json() == {"id": first.json()["id"], "duplicate": "idempotency_key"}
        other = await api.post("/v1/jobs", json={"type": "u"}, headers=key)
        problem(other, 422, "idempotency_conflict")
        differs = await api.post("/v1/jobs", json={"type": "t", "idempotency_key": "b"}, headers=key)
        problem(differs, 422, "invalid_input")

    async def test_many_at_once_each_get_their_own_answer(self, api: httpx.AsyncClient) -> None:
        answer = await api.post(
            "/v1/jobs/batch",
            json={"jobs": [{"type": "a"}, {"typ": "b"}, {"type": "c", "priority": 10**9}, {"type": "d", "parents": [new_id()]}, 7]},
        )  # fmt: skip
        assert answer.status_code == 200
        good, *bad = answer.json()["jobs"]
        assert (await api.get(f"/v1/jobs/{good['id']}")).json()["type"] == "a"
        assert [item["error"]["code"] for item in bad] == [
            "invalid_input", "invalid_input", "parent_not_found", "invalid_input",
        ]  # fmt: skip
        assert (await api.get("/v1/jobs")).json()["jobs"][0]["id"] == good["id"], "nothing else went in"

    async def test_single_calls_are_grouped(self, api: httpx.AsyncClient, store: Store) -> None:
        """While one batch is on its way, all who come gather for the next."""
        sizes: list[int] = []
        ask = store.enqueue

        async def counting(tenant: str, jobs: list[NewJob]) -> list[Enqueued | PenstockError]:
            sizes.append(len(jobs))
            await asyncio.sleep(0.05)
            return await ask(tenant, jobs)

        # The service has bound the store's own method; only a new instance sees another.
        from support.service import serving

        store.enqueue = counting  # type: ignore[method-assign, assignment]
        async with (
            serving(store) as url,
            httpx.AsyncClient(base_url=url, headers=api.headers, timeout=30) as fresh,
        ):
            answers = await asyncio.gather(*(fresh.post("/v1/jobs", json={"type": "t"}) for _ in range(40)))
        assert {answer.status_code for answer in answers} == {201}
        assert sum(sizes) == 40
        assert len(sizes) < 20

    async def test_a_full_queue_takes_no_more(self, api: httpx.AsyncClient) -> None:
        await api.put("/v1/queues/small", json={"max_depth": 2})
        await enqueue(api, queue="small")
        await enqueue(api, queue="small")
        async with asyncio.timeout(20):
            while (  # noqa: ASYNC110
                refused := await api.post("/v1/jobs", json={"type": "t", "queue": "small"})
            ).status_code == 201:
                await asyncio.sleep(0.1)  # the service looks once a second
        told = problem(refused, 503, "overloaded")
        assert told["facts"]["max_depth"] == 2
        assert int(refused.headers["retry-after"]) >= 1
        await enqueue(api, queue="other")


class TestWork:
    async def test_lease_and_ack(self, api: httpx.AsyncClient) -> None:
        id = await enqueue(api, payload={"n": 1})
        [held] = await lease(api, limit=10)
        assert (held["job"]["id"], held["job"]["status"], held["job"]["payload"]) == (id, "running", {"n": 1})
        beat = await api.post(
            f"/v1/jobs/{id}/heartbeat", json={"token": held["token"], "progress": {"done": 1}}
        )
        assert beat.json()["cancel_requested"] is False
        assert (await api.get(f"/v1/jobs/{id}")).json()["progress"] == {"done": 1}
        done = await api.post(
            f"/v1/jobs/{id}/ack", json={"token": held["token"], "result": [1], "logs": "said so"}
        )
        assert done.json() == {"id": id, "status": "succeeded", "run_at": None}
        again = await api.post(
            f"/v1/jobs/{id}/ack", json={"token": held["token"], "result": [1], "logs": "said so"}
        )
        assert again.json() == done.json(), "a settle may be repeated"
        result = await api.get(f"/v1/jobs/{id}/result")
        assert (result.status_code, result.json()["result"]) == (200, [1])
        [attempt] = (await api.get(f"/v1/jobs/{id}/attempts")).json()["attempts"]
        assert (attempt["outcome"], attempt["worker"], attempt["logs"]) == ("succeeded", "w", "said so")

    async def test_a_stale_token_changes_nothing(self, api: httpx.AsyncClient) -> None:
        id = await enqueue(api)
        await lease(api)
        needed: dict[str, dict[str, Any]] = {"nack": {"error": "e"}, "snooze": {"delay": 1}}
        for verb in ("ack", "nack", "heartbeat", "release", "snooze", "discard"):
            body = needed.get(verb, {})
            refused = await api.post(f"/v1/jobs/{id}/{verb}", json={"token": "stale", **body})
            assert problem(refused, 409, "lease_lost")["facts"] == {"job_id": id}
        assert (await api.get(f"/v1/jobs/{id}")).json()["status"] == "running"

    async def test_every_way_to_settle(self, api: httpx.AsyncClient) -> None:
        ids = [await enqueue(api, max_attempts=1) for _ in range(5)]
        held = {one["job"]["id"]: one["token"] for one in await lease(api, limit=5)}
        bodies: list[tuple[str, dict[str, Any], str]] = [
            ("nack", {"error": "broke"}, "dead"),
            ("nack", {"error": "broke", "retry": False}, "dead"),
            ("release", {"delay": 60}, "queued"),
            ("snooze", {"delay": 60}, "queued"),
            ("discard", {"reason": "void"}, "cancelled"),
        ]
        for id, (verb, body, status) in zip(ids, bodies, strict=True):
            answer = await api.post(f"/v1/jobs/{id}/{verb}", json={"token": held[id], **body})
            assert answer.json()["status"] == status, answer.text

    async def test_many_settles_each_get_their_own_answer(self, api: httpx.AsyncClient) -> None:
        first, second = [await enqueue(api) for _ in range(2)]
        held = {one["job"]["id"]: one["token"] for one in await lease(api, limit=2)}
        answer = await api.post(
            "/v1/settle",
            json={"settles": [
                {"verb": "ack", "id": first, "token": held[first]},
                {"verb": "dance", "id": second, "token": "x"},
                {"verb": "ack", "id": second, "token": "stale"},
                {"verb": "nack", "id": second, "token": held[second], "error": "e"},
            ]},
        )  # fmt: skip
        told = answer.json()["settles"]
        assert (told[0]["status"], told[3]["status"]) == ("succeeded", "queued")
        assert [told[1]["error"]["code"], told[2]["error"]["code"]] == ["invalid_input", "lease_lost"]

    async def test_a_lease_waits_for_a_job(self, api: httpx.AsyncClient) -> None:
        waiting = asyncio.create_task(lease(api, wait=20))
        await asyncio.sleep(0.2)
        id = await enqueue(api)
        [held] = await asyncio.wait_for(waiting, 15)
        assert held["job"]["id"] == id

    async def test_those_who_wait_get_one_each_in_turn(self, api: httpx.AsyncClient) -> None:
        waiting = [asyncio.create_task(lease(api, wait=20, worker_id=f"w{n}")) for n in range(5)]
        await asyncio.sleep(0.2)
        ids = {await enqueue(api) for _ in range(5)}
        got = await asyncio.wait_for(asyncio.gather(*waiting), 15)
        assert {held["job"]["id"] for [held] in got} == ids

    async def test_a_wait_in_vain_ends_with_nothing(self, api: httpx.AsyncClient) -> None:
        assert await lease(api, wait=0.1) == []

    async def test_one_that_left_takes_no_job_along(self, url: str, api: httpx.AsyncClient) -> None:
        """The connection of a waiting worker is cut; the job that comes then is there for others at once."""
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        body = b'{"worker_id": "gone", "wait": 30, "lease_seconds": 600}'
        writer.write(
            b"POST /v1/queues/default/lease HTTP/1.1\r\nHost: x\r\nAuthorization: %b\r\nContent-Length: %d\r\n\r\n%b"
            % (api.headers["authorization"].encode(), len(body), body)
        )
        await writer.drain()
        await asyncio.sleep(0.3)
        writer.close()
        await writer.wait_closed()
        id = await enqueue(api)
        [held] = await lease(api, wait=20)
        assert held["job"]["id"] == id


class TestLook:
    async def test_pages_follow_each_other(self, api: httpx.AsyncClient) -> None:
        ids = [await enqueue(api, "even" if n % 2 == 0 else "odd") for n in range(7)]
        seen: list[str] = []
        path: str | None = "/v1/jobs?limit=3"
        while path is not None:
            answer = await api.get(path)
            page = answer.json()
            seen += [job["id"] for job in page["jobs"]]
            assert ("next" in page) == ("link" in answer.headers)
            path = answer.links["next"]["url"] if "link" in answer.headers else None
        assert seen == ids[::-1]
        odd = (
            await api.get("/v1/jobs", params={"type": "odd", "status": ["queued", "running"], "count": True})
        ).json()
        assert [job["id"] for job in odd["jobs"]] == ids[1::2][::-1]
        assert (odd["count"], odd["count_is_exact"]) == (3, True)

    async def test_a_result_is_waited_for(self, api: httpx.AsyncClient) -> None:
        id = await enqueue(api)
        early = await api.get(f"/v1/jobs/{id}/result")
        assert (early.status_code, early.json()["status"]) == (202, "queued")
        waiting = asyncio.create_task(api.get(f"/v1/jobs/{id}/result?wait=20"))
        [held] = await lease(api)
        await api.post(f"/v1/jobs/{id}/ack", json={"token": held["token"], "result": "done"})
        answer = await asyncio.wait_for(waiting, 15)
        assert (answer.status_code, answer.json()["result"]) == (200, "done")

    async def test_what_is_not_there(self, api: httpx.AsyncClient) -> None:
        absent = new_id()
        for path in ("", "/attempts", "/result", "/explain"):
            problem(await api.get(f"/v1/jobs/{absent}{path}"), 404, "job_not_found")
        problem(await api.post(f"/v1/jobs/{absent}/cancel"), 404, "job_not_found")
        problem(await api.get("/v1/jobs/17"), 422, "invalid_input")
        problem(await api.get("/v1/nothing"), 404, "no_such_page")
        refused = await api.delete("/v1/jobs")
        problem(refused, 405, "method_not_allowed")
        assert "GET" in refused.headers["allow"] or "POST" in refused.headers["allow"]

    async def test_why_a_job_does_not_run(self, api: httpx.AsyncClient) -> None:
        await api.post("/v1/queues/default/pause", json={"reason": "incident 42"})
        id = await enqueue(api)
        told = (await api.get(f"/v1/jobs/{id}/explain")).json()
        assert told["reasons"][0]["code"] == "paused"
        assert "incident 42" in json.dumps(told)


class TestOperate:
    async def test_a_queue_is_set_paused_and_resumed(self, api: httpx.AsyncClient) -> None:
        await enqueue(api, queue="a/b")
        answer = await api.put(
            "/v1/queues/a/b", json={"max_concurrency": 3, "rate": {"limit": 5, "per": 60}, "reason": "slow"}
        )
        settings = answer.json()["settings"]
        assert (settings["max_concurrency"], settings["rate"]["limit"]) == (3, 5)
        assert (await api.post("/v1/queues/a/b/pause", json={"reason": "x"})).json()["settings"][
            "paused"
        ] is True
        assert await lease(api, "a/b") == []
        assert (await api.post("/v1/queues/a/b/resume")).json()["settings"]["paused"] is False
        assert len(await lease(api, "a/b")) == 1
        [queue] = (await api.get("/v1/queues")).json()["queues"]
        assert (queue["name"], queue["counts"]["running"]) == ("a/b", 1)
        changes = (await api.get("/v1/queues/a/b/history")).json()["changes"]
        assert [(change["actor"], change["reason"]) for change in changes] == [
            ("token:ada", "slow"), ("token:ada", "x"), ("token:ada", None),
        ]  # fmt: skip
        problem(await api.put("/v1/queues/a/b", json={"max_concurrency": 0}), 422, "invalid_input")

    async def test_cancel_and_redrive(self, api: httpx.AsyncClient) -> None:
        id = await enqueue(api)
        assert (await api.post(f"/v1/jobs/{id}/cancel", json={"reason": "twice"})).json()[
            "status"
        ] == "cancelled"
        assert (await api.post(f"/v1/jobs/{id}/redrive")).json()["status"] == "queued"
        problem(await api.post(f"/v1/jobs/{id}/redrive"), 409, "not_allowed")

    async def test_many_jobs_first_counted_then_changed(self, api: httpx.AsyncClient) -> None:
        for _ in range(5):
            await enqueue(api, queue="bulk")
        await enqueue(api, queue="other")
        wanted = {
            "action": "cancel",
            "filter": {"queue": "bulk", "status": ["queued"]},
            "reason": "all of it",
        }
        counted = await api.post("/v1/bulk", json=wanted)
        assert counted.json() == {"dry_run": {"matched": 5, "is_exact": True}}
        begun = await api.post("/v1/bulk", json={**wanted, "dry_run": False})
        assert begun.status_code == 202
        async with asyncio.timeout(20):
            while (operation := (await api.get(begun.headers["location"])).json())["state"] == "running":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (operation["state"], operation["changed"]) == ("done", 5)
        stats = (await api.get("/v1/stats")).json()
        assert (stats["counts"]["cancelled"], stats["counts"]["queued"]) == (5, 1)
        assert (await api.get("/v1/bulk")).json()["operations"][0]["id"] == operation["id"]

    async def test_schedules(self, api: httpx.AsyncClient) -> None:
        body = {"cron": "0 9 * * 1-5", "tz": "Europe/Paris", "job": {"type": "report", "payload": {"n": 1}}}
        made = (await api.put("/v1/schedules/daily/report", json=body)).json()
        assert (made["name"], made["tz"], made["payload"]) == ("daily/report", "Europe/Paris", {"n": 1})
        assert made["next_fire_at"] is not None
        run = await api.post("/v1/schedules/daily/report/run")
        assert run.status_code == 201
        assert (await api.get(f"/v1/jobs/{run.json()['id']}")).json()["schedule"] == "daily/report"
        assert (await api.post("/v1/schedules/daily/report/pause")).json()["paused"] is True
        assert (await api.post("/v1/schedules/daily/report/resume")).json()["paused"] is False
        assert (await api.delete("/v1/schedules/daily/report")).status_code == 204
        problem(await api.get("/v1/schedules/daily/report"), 404, "schedule_not_found")
        problem(
            await api.put("/v1/schedules/x", json={"cron": "nonsense", "job": {"type": "t"}}),
            422,
            "invalid_input",
        )


class TestProbes:
    async def test_they_need_no_token(self, url: str) -> None:
        async with httpx.AsyncClient(base_url=url) as anyone:
            assert (await anyone.get("/livez")).json() == {"status": "ok"}
            assert (await anyone.get("/health")).json() == {"status": "ok"}
            assert (await anyone.get("/readyz")).json()["status"] == "ready"
            assert (await anyone.get("/ready")).json()["status"] == "ready"
            assert (await anyone.get("/openapi.json")).json()["info"]["title"] == "Penstock"

    async def test_what_was_done_is_counted(self, api: httpx.AsyncClient) -> None:
        id = await enqueue(api, queue="counted")
        [held] = await lease(api, "counted")
        await api.post(f"/v1/jobs/{id}/ack", json={"token": held["token"]})
        text = (await api.get("/metrics")).text
        assert 'penstock_jobs_submitted_total{queue="counted"} 1' in text
        assert 'penstock_http_requests_total{method="POST",route="/v1/jobs/{id}/ack",status="200"} 1' in text
