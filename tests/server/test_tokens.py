"""Tenants and tokens over HTTP: who gets in, who sees what, and what is written down about it."""

from __future__ import annotations

import asyncio

import httpx

from penstock.access import Access
from penstock.core.limits import Rate
from penstock.core.ports import Store
from penstock.queue import Queue
from support.service import ADMIN, serving


def client(url: str, secret: str, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=url, headers={"Authorization": f"Bearer {secret}", **headers}, timeout=30
    )


async def test_a_token_is_shown_once_and_works_until_it_is_revoked(api: httpx.AsyncClient, url: str) -> None:
    made = await api.post("/v1/tokens", json={"name": "ci", "scopes": ["produce"]})
    assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
    secret, id = made.json()["secret"], made.json()["token"]["id"]
    listed = await api.get("/v1/tokens")
    assert secret not in listed.text
    assert {token["name"] for token in listed.json()["tokens"]} == {"ada", "ci"}
    async with client(url, secret) as ci:
        assert (await ci.post("/v1/jobs", json={"type": "t"})).status_code == 201
        refused = await ci.get("/v1/tokens")
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert refused.json()["facts"]["needed"] == "admin"
        assert (await api.delete(f"/v1/tokens/{id}")).status_code == 204
        gone = await ci.post("/v1/jobs", json={"type": "t"})
        assert (gone.status_code, gone.json()["code"]) == (401, "unauthorized")
        assert gone.headers["www-authenticate"].startswith("Bearer")


async def test_a_rotated_token_works_beside_its_successor(api: httpx.AsyncClient, url: str) -> None:
    made = (await api.post("/v1/tokens", json={"name": "ci", "scopes": ["read"]})).json()
    turned = (
        await api.post(f"/v1/tokens/{made['token']['id']}/rotate", json={"overlap_seconds": 3600})
    ).json()
    for secret in (made["secret"], turned["secret"]):
        async with client(url, secret) as either:
            assert (await either.get("/v1/jobs")).status_code == 200
    at_once = (
        await api.post(f"/v1/tokens/{turned['token']['id']}/rotate", json={"overlap_seconds": 0})
    ).json()
    async with client(url, turned["secret"]) as old, client(url, at_once["secret"]) as new:
        assert (await old.get("/v1/jobs")).status_code == 401
        assert (await new.get("/v1/jobs")).status_code == 200


async def test_every_change_is_written_down(api: httpx.AsyncClient) -> None:
    made = (await api.post("/v1/tokens", json={"name": "ci", "scopes": ["read"]})).json()
    await api.post("/v1/queues/emails/pause", json={"reason": "incident"})
    await api.delete(f"/v1/tokens/{made['token']['id']}")
    lines = (await api.get("/v1/audit?limit=3")).json()
    told = [
        (line["kind"], line["name"], line["change"]["verb"], line["change"]["actor"])
        for line in lines["changes"]
    ]
    id = made["token"]["id"]
    assert told == [
        ("token", id, "revoked", "token:ada"), ("queue", "emails", told[1][2], "token:ada"), ("token", id, "created", "token:ada"),
    ]  # fmt: skip
    assert lines["changes"][1]["change"]["reason"] == "incident"
    assert made["secret"] not in str(lines)
    rest = (await api.get("/v1/audit", params={"before": lines["next"]})).json()
    assert [line["name"] for line in rest["changes"]] != [line["name"] for line in lines["changes"]]


async def test_no_tenant_sees_another(url: str, store: Store) -> None:
    access = Access(store)
    _, ours = await access.create("ours", "a", ["admin"], actor="tests")
    _, theirs = await access.create("theirs", "b", ["admin"], actor="tests")
    async with client(url, ours) as us, client(url, theirs) as them:
        id = (await us.post("/v1/jobs", json={"type": "secret", "queue": "q"})).json()["id"]
        await us.put("/v1/schedules/s", json={"cron": "* * * * *", "job": {"type": "t"}})
        absent = id[:-1] + ("0" if id[-1] != "0" else "1")
        for path in ("", "/attempts", "/result", "/explain"):
            seen, unseen = await them.get(f"/v1/jobs/{id}{path}"), await them.get(f"/v1/jobs/{absent}{path}")
            assert seen.status_code == unseen.status_code == 404
            assert seen.text.replace(id, absent) == unseen.text, "nothing tells that it exists"
        assert (await them.get("/v1/jobs")).json()["jobs"] == []
        assert (await them.get("/v1/queues")).json()["queues"] == []
        assert (await them.get("/v1/schedules")).json()["schedules"] == []
        assert (await them.post("/v1/queues/q/lease", json={"worker_id": "w"})).json()["jobs"] == []
        assert [token["name"] for token in (await them.get("/v1/tokens")).json()["tokens"]] == ["b"]
        forbidden = await them.get("/v1/jobs", headers={"Penstock-Tenant": "ours"})
        assert forbidden.status_code == 403
    async with client(url, ADMIN, **{"Penstock-Tenant": "ours"}) as service:
        assert [job["id"] for job in (await service.get("/v1/jobs")).json()["jobs"]] == [id]


class TestRateLimits:
    async def test_they_hold_across_instances_and_are_told(self, store: Store) -> None:
        _, secret = await Access(store).create(
            "default", "busy", ["read"], actor="tests", rate=Rate(20, per=3600)
        )
        async with (
            serving(store) as one,
            serving(store) as two,
            client(one, secret) as first,
            client(two, secret) as second,
        ):
            answers = await asyncio.gather(*((first, second)[n % 2].get("/v1/queues") for n in range(60)))
        let_in = [answer for answer in answers if answer.status_code == 200]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert (len(let_in), len(refused)) == (20, 40)
        assert let_in[0].headers["ratelimit-policy"] == '"token";q=20;w=3600'
        assert let_in[0].headers["ratelimit"].startswith('"token";r=')
        assert refused[0].json()["code"] == "rate_limited"
        assert refused[0].headers["ratelimit"].startswith('"token";r=0;t=')
        assert int(refused[0].headers["retry-after"]) >= 1

    async def test_a_tenant_has_one_too(self, store: Store) -> None:
        access = Access(store)
        async with serving(store, tenant_rate=Rate(10, per=3600)) as url:
            counts = {}
            for tenant in ("a", "b"):
                _, secret = await access.create(tenant, "t", ["read"], actor="tests")
                async with client(url, secret) as api:
                    answers = [await api.get("/v1/queues") for _ in range(12)]
                counts[tenant] = sum(answer.status_code == 200 for answer in answers)
        assert counts == {"a": 10, "b": 10}


async def test_who_did_it_is_kept(api: httpx.AsyncClient, store: Store) -> None:
    id = (await api.post("/v1/jobs", json={"type": "t"})).json()["id"]
    await api.post(f"/v1/jobs/{id}/cancel", json={"reason": "no longer needed"})
    [change] = (await Queue(store).history(id)).changes
    assert (change.actor, change.reason) == ("token:ada", "no longer needed")
