"""Bad input and bad people: each gets a clear problem document, and nothing is changed."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest
import pytest_asyncio

from penstock.access import Access, Scope
from penstock.core.ports import Store
from penstock.queue import Queue, new_id
from penstock.server.app import OPERATIONS
from penstock.server.operation import Operation
from penstock.server.protocol import Protocol
from penstock.stores.memory import MemoryStore
from penstock.stores.postgres.store import PostgresStore
from support.postgres import emptied, server_url
from support.service import ADMIN, serving

MOST_BYTES = 262_144
NO_JOB = "01890a5d-ac96-774b-bcce-b302099a8057"
GUARDED = [operation for operation in OPERATIONS if operation.scope is not None]

pytestmark = pytest.mark.asyncio(loop_scope="module")
the_module = pytest_asyncio.fixture(scope="module", loop_scope="module")
the_test = pytest_asyncio.fixture(loop_scope="module")
"""One server for all tests on a store; each test has a tenant of its own."""


def named(operation: Operation) -> str:
    return operation.name


@pytest.fixture(scope="module", params=["memory", "postgres"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@the_module
async def store(store_name: str) -> AsyncIterator[Store]:
    if store_name == "postgres":
        await emptied()
        store: Store = PostgresStore(server_url(), connections=4)
    else:
        store = MemoryStore()
    yield store
    await store.close()


@the_module
async def url(store: Store) -> AsyncIterator[str]:
    async with serving(store, most_bytes=MOST_BYTES) as url:
        yield url


@the_module
async def small() -> AsyncIterator[str]:
    """A service in memory for what never comes to a store."""
    async with serving(MemoryStore(), most_bytes=MOST_BYTES, body_seconds=0.2) as url:
        yield url


@pytest.fixture
def tenant(numbers: Iterator[int] = count()) -> str:  # noqa: B008
    return f"tenant-{next(numbers)}"


@pytest.fixture
def queue(store: Store, tenant: str) -> Queue:
    return Queue(store, tenant=tenant)


@asynccontextmanager
async def asking(url: str, secret: str | None, tenant: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
    if tenant is not None:
        headers["Penstock-Tenant"] = tenant
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=20) as client:
        yield client


@the_test
async def api(url: str, tenant: str) -> AsyncIterator[httpx.AsyncClient]:
    async with asking(url, ADMIN, tenant) as client:
        yield client


PLACES = {
    "id": NO_JOB, "queue": "emails", "name": "nightly", "token": "tok_0123456789abcdef", "table": "failures",
    "fingerprint": "0123456789abcdef", "worker": "0" * 32,
}  # fmt: skip
"""For every word that an address may have in it, something that is not there."""

QUICK = {"lease_jobs": {"worker_id": "w"}, "store_wakeups": {"topics": [], "seconds": 0}}
"""Bodies that keep nobody waiting."""


async def ask(
    client: httpx.AsyncClient, operation: Operation, body: Any = None, **path: str
) -> tuple[int, str]:
    """Call an operation; of one that never ends only the beginning is read."""
    told = {**PLACES, **path}
    if body is None:
        body = QUICK.get(operation.name, operation.example or {})
    request = client.build_request(
        operation.method, operation.path.format(**told), content=json.dumps(body) if operation.body else None
    )
    answer = await client.send(request, stream=True)
    try:
        is_a_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
        return answer.status_code, "" if is_a_stream else (await answer.aread()).decode()
    finally:
        await answer.aclose()


def problem(answer: httpx.Response, *statuses: int) -> dict[str, Any]:
    """The problem document of an answer, which must be one."""
    assert answer.status_code in statuses, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    told: dict[str, Any] = answer.json()
    assert told["status"] == answer.status_code
    assert re.fullmatch(r"[a-z_]+", told["code"])
    assert told["detail"]
    return told


async def everything(queue: Queue) -> Any:
    """All that a tenant has, as far as bad input could change it."""
    audit = await queue.store.audit(queue.tenant, limit=1000)
    return (await queue.find(limit=1000)).jobs, await queue.queues(), await queue.schedules(), audit.lines


@asynccontextmanager
async def unchanged(queue: Queue) -> AsyncIterator[None]:
    before = await everything(queue)
    yield
    assert await everything(queue) == before


# ── Who may do what ───────────────────────────────────────────────────────────────────────────────


class TestTokens:
    async def test_nobody_gets_in_without_one(self, url: str) -> None:
        async with asking(url, None) as client:
            for operation in GUARDED:
                status, told = await ask(client, operation)
                assert (status, json.loads(told)["code"]) == (401, "unauthorized"), operation.name

    @pytest.mark.parametrize(
        "sent",
        ["", "Bearer", "Basic dXNlcjpwYXNz", "pst_secret", "Bearer pst_nobody", f"Bearer {'x' * 5_000}",
         "Bearer pst_' OR '1'='1", "Bearer pst_ä", f"Bearer {ADMIN[:-1]}"],
    )  # fmt: skip
    async def test_nobody_gets_in_with_a_bad_one(self, url: str, sent: str) -> None:
        async with httpx.AsyncClient(
            base_url=url, headers={b"Authorization": sent.encode("latin-1")}
        ) as client:
            answer = await client.get("/v1/jobs")
        told = problem(answer, 401)
        assert answer.headers["www-authenticate"].startswith("Bearer")
        secret = sent.partition(" ")[2] or sent
        assert len(secret) < 8 or secret not in json.dumps(told)

    @pytest.mark.parametrize("scope", [scope for scope in Scope if scope is not Scope.ADMIN])
    async def test_each_scope_opens_what_it_should_and_nothing_else(
        self, url: str, store: Store, tenant: str, scope: Scope
    ) -> None:
        _, secret = await Access(store).create(tenant, "one", [scope], actor="tests")
        async with asking(url, secret) as client:
            for operation in GUARDED:
                needed = (operation.scope,) if isinstance(operation.scope, Scope) else operation.scope
                status, told = await ask(client, operation)
                if scope in (needed or ()):
                    assert status not in (401, 403), (operation.name, told)
                else:
                    assert (status, json.loads(told)["code"]) == (403, "forbidden"), operation.name
                    assert secret not in told

    async def test_the_table_of_scopes_is_as_people_are_told(self) -> None:
        """By hand, for what would hurt: the test above believes the operations."""
        opened = {
            scope: {
                operation.name
                for operation in GUARDED
                if scope == operation.scope
                or (isinstance(operation.scope, tuple) and scope in operation.scope)
            }
            for scope in Scope
        }
        tokens = {"create_token", "list_tokens", "rotate_token", "revoke_token"}
        changes = {"set_queue", "pause_queue", "resume_queue", "put_schedule", "drop_schedule", "pause_schedule",
                   "resume_schedule", "run_schedule", "redrive_job", "begin_bulk", "abort_bulk", "redrive_failure",
                   "apply_plan"}  # fmt: skip
        settles = {"lease_jobs", "ack_job", "nack_job", "release_job", "snooze_job", "discard_job", "heartbeat_job",
                   "settle_jobs", "openqueue_lease", "openqueue_ack", "openqueue_nack", "openqueue_heartbeat"}  # fmt: skip
        produces = {"enqueue_job", "enqueue_batch", "openqueue_enqueue", "openqueue_enqueue_batch"}
        for scope, its in (
            (Scope.ADMIN, tokens), (Scope.OPERATE, changes), (Scope.WORK, settles), (Scope.PRODUCE, produces),
        ):  # fmt: skip
            assert its <= opened[scope]
            for other in {*Scope} - {scope}:
                assert not its & opened[other], other
        assert not {name for name in opened[Scope.READ] if not name.startswith(("get_", "list_"))} - {
            "follow_events", "explain_job", "openqueue_get_job", "openqueue_get_status", "openqueue_list_jobs",
            "openqueue_get_stats", "store_now", "store_tenants", "store_get", "store_history", "store_find",
            "store_queues", "store_schedules", "store_audit", "store_events", "store_entries", "store_insights",
        }  # fmt: skip

    async def test_a_tenants_token_names_no_other_tenant(self, url: str, store: Store, tenant: str) -> None:
        _, secret = await Access(store).create(tenant, "one", ["admin"], actor="tests")
        async with asking(url, secret, "another") as client:
            problem(await client.get("/v1/jobs"), 403)


class TestOtherTenants:
    """What is another's looks just as what is not there: same status, same words, but for the id itself."""

    async def test_jobs_bulk_operations_schedules_and_tokens(
        self, url: str, api: httpx.AsyncClient, queue: Queue, store: Store, tenant: str
    ) -> None:
        job = (await queue.enqueue("t", queue="theirs")).id
        [leased] = await queue.lease("theirs", worker="w", limit=1)
        await queue.put_schedule("theirs", "0 9 * * *", {"type": "t"})
        bulk = {"action": "redrive", "filter": {"queue": "theirs"}, "dry_run": False}
        bulk_id = (await api.post("/v1/bulk", json=bulk)).json()["operation"]["id"]
        token, _ = await Access(store).create(tenant, "theirs", ["read"], actor="tests")
        _, secret = await Access(store).create(f"{tenant}.other", "mine", ["admin"], actor="tests")
        others = {
            "id": (job, new_id()),
            "name": ("theirs", "nobodys"),
            "token": (token.id, f"tok_{'0' * 16}"),
        }
        asked = 0
        async with unchanged(queue), asking(url, secret) as client:
            for operation in GUARDED:
                fields = set(re.findall(r"\{(id|name|token)\}", operation.path))
                if not fields or (operation.method, operation.path) == ("PUT", "/v1/schedules/{name}"):
                    continue
                [field] = fields
                theirs, nobodys = (bulk_id, new_id()) if "/bulk/" in operation.path else others[field]
                body = dict(operation.example or {})
                body.update(dict.fromkeys(body.keys() & {"token", "lease_token"}, leased.token))
                told = [
                    (status, text.replace(one, "ID"))
                    for one in (theirs, nobodys)
                    for status, text in [await ask(client, operation, body, **{field: one})]
                ]
                assert told[0] == told[1], operation.name
                assert told[0][0] == (409 if operation.name in HIDE_AS_LOST else 404), operation.name
                asked += 1
        assert asked > 25

    async def test_ids_within_a_body(self, url: str, queue: Queue, store: Store, tenant: str) -> None:
        job = (await queue.enqueue("t", queue="theirs")).id
        [leased] = await queue.lease("theirs", worker="w", limit=1)
        _, secret = await Access(store).create(f"{tenant}.other", "mine", ["admin"], actor="tests")

        def bodies(id: str) -> Iterator[tuple[str, Any]]:
            yield "/v1/settle", {"settles": [{"verb": "ack", "id": id, "token": leased.token}]}
            yield "/v1/jobs", {"type": "t", "parents": [id], "id": NO_JOB}
            yield "/v1/store/get", {"items": [id]}
            yield "/v1/store/history", {"items": [["job", id]]}
            yield "/v1/store/cancel", {"items": [{"job_id": id, "actor": "me"}]}
            yield "/v1/store/redrive", {"items": [{"job_id": id, "actor": "me"}]}
            yield "/v1/store/heartbeat", {"items": [{"job_id": id, "token": leased.token}]}

        nobodys = new_id()
        async with unchanged(queue), asking(url, secret) as client:
            for (path, theirs), (_, other) in zip(bodies(job), bodies(nobodys), strict=True):
                told = [
                    (
                        (answer := await client.post(path, json=body)).status_code,
                        answer.text.replace(id, "ID"),
                    )
                    for id, body in ((job, theirs), (nobodys, other))
                ]
                assert told[0] == told[1], path
                assert "not_found" in told[0][1], told

    async def test_queues_keys_and_lists(self, url: str, queue: Queue, store: Store, tenant: str) -> None:
        await queue.enqueue("t", queue="theirs", unique_key="u", idempotency_key="i")
        await queue.pause("theirs")
        _, secret = await Access(store).create(f"{tenant}.other", "mine", ["admin"], actor="tests")
        async with asking(url, secret) as client:
            looked = [(await client.get(f"/v1/queues/{name}")).text for name in ("theirs", "nobody")]
            assert looked[0].replace("theirs", "nobody") == looked[1]
            for path in (
                "/v1/jobs",
                "/v1/queues",
                "/v1/schedules",
                "/v1/bulk",
                "/v1/workers",
                "/jobs",
                "/dashboard/queues",
            ):
                assert "theirs" not in (await client.get(path)).text
            body = {"type": "t", "unique_key": "u", "idempotency_key": "i"}
            assert (await client.post("/v1/jobs", json=body)).status_code == 201


HIDE_AS_LOST = {"openqueue_ack", "openqueue_nack", "openqueue_heartbeat"}
"""OpenQueue answers these with 409 where there is no such job."""


# ── Bodies ────────────────────────────────────────────────────────────────────────────────────────

DEEP = 100_000
BODIES: dict[str, bytes] = {
    "empty": b"",
    "not JSON": b"type=t",
    "half": b'{"type": "t"',
    "two": b'{"type": "t"} {"type": "t"}',
    "a list": b"[]",
    "null": b"null",
    "not UTF-8": b'{"type": "t", "payload": "\xff\xfe"}',
    "overlong UTF-8": b'{"type": "t", "payload": "\xc0\xaf"}',
    "a surrogate in UTF-8": b'{"type": "t", "payload": "\xed\xa0\x80"}',
    "UTF-16": '{"type": "t"}'.encode("utf-16"),
    "compressed": gzip.compress(b'{"type": "t"}'),
    "deep": b"[" * DEEP,
    "deep and whole": b"[" * DEEP + b"]" * DEEP,
    "a deep payload": b'{"type": "t", "payload": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "a payload a little too deep": b'{"type": "t", "payload": ' + b"[" * 201 + b"]" * 201 + b"}",
    "a deep unknown field": b'{"type": "t", "x": ' + b'{"a":' * 30_000 + b"1" + b"}" * 30_000 + b"}",
    "half a surrogate pair": b'{"type": "t", "payload": "\\ud800"}',
    "half a surrogate pair as a key": b'{"type": "t", "key": "\\udc00"}',
    "NUL in a name": b'{"type": "a\\u0000b"}',
    "NUL in a key": b'{"type": "t", "key": "a\\u0000b"}',
    "NUL itself": b'{"type": "t\0"}',
    "not a number": b'{"type": "t", "payload": NaN}',
    "infinite": b'{"type": "t", "delay": Infinity}',
    "too large a float": b'{"type": "t", "payload": 1e999}',
    "too large an int": b'{"type": "t", "priority": ' + b"9" * 400 + b"}",
    "an int of many digits": b'{"type": "t", "max_attempts": ' + b"9" * 5_000 + b"}",
    "too small an int": b'{"type": "t", "priority": -' + b"9" * 40 + b"}",
    "a long delay": b'{"type": "t", "delay": 1e300}',
    "a negative delay": b'{"type": "t", "delay": -1}',
    "a time without a zone": b'{"type": "t", "run_at": "2026-01-01T00:00:00"}',
    "a time out of time": b'{"type": "t", "run_at": "9999-12-31T23:59:59Z"}',
    "a time that is none": b'{"type": "t", "run_at": "2026-02-30T00:00:00Z"}',
    "an unknown field": b'{"type": "t", "colour": "green"}',
    "wrong types": b'{"type": 1}',
    "a bool for a number": b'{"type": "t", "priority": true}',
    "long names": b'{"type": "' + b"a" * 129 + b'"}',
    "many parents": json.dumps({"type": "t", "parents": [NO_JOB] * 1001}).encode(),
    "the same parent twice": json.dumps({"type": "t", "parents": [NO_JOB] * 2}).encode(),
    "headers that are a list": b'{"type": "t", "headers": []}',
    "large headers": json.dumps({"type": "t", "headers": {"x": "x" * 20_000}}).encode(),
    "a retry with no sense": b'{"type": "t", "retry": {"kind": "fixed", "base": -1}}',
}


class TestBodies:
    @pytest.mark.parametrize("name", BODIES)
    async def test_what_cannot_be_a_job(self, api: httpx.AsyncClient, queue: Queue, name: str) -> None:
        async with unchanged(queue):
            told = problem(await api.post("/v1/jobs", content=BODIES[name]), 400, 422)
        assert len(json.dumps(told)) < 2_000

    @pytest.mark.parametrize("name", list(BODIES)[: list(BODIES).index("infinite")])
    async def test_what_can_be_no_body_of_any_operation(self, small: str, name: str) -> None:
        async with asking(small, ADMIN) as client:
            for operation in OPERATIONS:
                if operation.body is None or (name == "empty" and operation.body_is_optional):
                    continue
                path = operation.path.format(**PLACES)
                answer = await client.request(operation.method, path, content=BODIES[name])
                if answer.status_code == 201:  # OpenQueue leaves fields unread that it does not know
                    assert operation.tag == "OpenQueue"
                else:
                    problem(answer, 400, 404, 409, 422)

    async def test_a_batch_with_bad_jobs_takes_the_good_ones(
        self, api: httpx.AsyncClient, queue: Queue
    ) -> None:
        good = ["an unknown field", "wrong types", "NUL in a key", "a long delay"]
        items = b",".join([b'{"type": "t"}', *(BODIES[name] for name in good), b'{"type": "t"}'])
        answer = await api.post("/v1/jobs/batch", content=b'{"jobs": [' + items + b"]}")
        assert answer.status_code == 200
        assert [item.get("error", {}).get("status") for item in answer.json()["jobs"]] == [
            None,
            *[422] * 4,
            None,
        ]
        assert len((await queue.find()).jobs) == 2

    async def test_a_body_that_is_announced_as_too_large(self, small: str) -> None:
        head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\nContent-Length: {10**12}\r\n\r\n"
        told = await raw(small, head.encode())
        assert told.startswith(b"HTTP/1.1 413 ")
        assert b'"code":"too_large"' in told

    async def test_a_body_that_turns_out_too_large(self, api: httpx.AsyncClient, queue: Queue) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield b'{"type": "t", "payload": "'
            for _ in range(2 * MOST_BYTES // 65_536):
                yield b"x" * 65_536
            yield b'"}'

        async with unchanged(queue):
            assert (
                problem(await api.post("/v1/jobs", content=pieces()), 413)["facts"]["most_bytes"]
                == MOST_BYTES
            )
        assert (await api.get("/v1/jobs")).status_code == 200

    async def test_too_many_in_a_batch(self, api: httpx.AsyncClient, queue: Queue) -> None:
        async with unchanged(queue):
            problem(await api.post("/v1/jobs/batch", content=b'{"jobs": [' + b"{}," * 10_000 + b"{}]}"), 422)
            problem(await api.post("/v1/settle", content=b'{"settles": [' + b"{}," * 10_000 + b"{}]}"), 422)

    async def test_a_client_that_goes_away_half_way(self, small: str) -> None:
        _, writer = await connected(small)
        writer.write(f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\n".encode())
        writer.write(b'Content-Length: 100\r\n\r\n{"type": ')
        await writer.drain()
        writer.transport.abort()
        async with asking(small, ADMIN) as client:
            assert (await client.get("/v1/jobs")).json()["jobs"] == []


# ── Values ────────────────────────────────────────────────────────────────────────────────────────

HUGE = ["-1", "0", "1001", "9" * 30, "9" * 5_000, "0x10", "", "NaN", "true", "1,000", "１"]
STRANGE = [
    "'; DROP TABLE penstock.job; --",
    "1' OR '1'='1",
    "$1; SELECT pg_sleep(10)",
    "%s %d {0} ${jndi:ldap://x}",
    "a\r\nSet-Cookie: x=1",
    "a\nX-Injected: 1",
    "../../etc/passwd",
    "<script>alert(1)</script>",
    "\u202e\u2066abc",
    "\x1b[31m",
    "\U0001f600",
    "\\x00\\u0000",
    "\x7f",
    " ",
]


class TestValues:
    @pytest.mark.parametrize("value", HUGE, ids=lambda value: value[:10] or "empty")
    async def test_limits_that_are_none(self, api: httpx.AsyncClient, value: str) -> None:
        for path in ("/v1/jobs", "/v1/audit", "/jobs"):
            problem(await api.get(path, params={"limit": value}), 422)

    @pytest.mark.parametrize(
        "query", ["offset=-1", "offset=10001", "offset=9" + "9" * 400, "limit=1&limit=2"]
    )
    async def test_pages_that_are_none(self, api: httpx.AsyncClient, query: str) -> None:
        problem(await api.get(f"/jobs?{query}"), 422)

    @pytest.mark.parametrize(
        "query",
        ["status=asleep", "status=queued&status=queued", "cause=x", "after=x", "after=" + NO_JOB.upper(), "key=",
         "key=a%00b", "key=%ff%fe", "queue=%00", "queue=a%0d%0ab", "created_from=yesterday", "created_from=1700000000",
         "created_from=2026-01-01T00:00:00", "count=maybe", "colour=green", "%00=1", "limit=%31%30%30%31"],
    )  # fmt: skip
    async def test_queries_that_mean_nothing(self, api: httpx.AsyncClient, query: str) -> None:
        answer = await api.get(f"/v1/jobs?{query}")
        if query == "key=%ff%fe":  # read as the sign for what cannot be read, which is a key like any other
            assert answer.json() == {"jobs": []}
        else:
            problem(answer, 422)

    @pytest.mark.parametrize("value", STRANGE, ids=repr)
    async def test_strange_names_are_refused(self, api: httpx.AsyncClient, queue: Queue, value: str) -> None:
        sent = quote(value, safe="")
        async with unchanged(queue):
            for body in (
                {"type": value}, {"type": "t", "queue": value}, {"type": "t", "id": value}, {"type": "t", "parents": [value]},
            ):  # fmt: skip
                problem(await api.post("/v1/jobs", json=body), 422)
            problem(await api.post("/jobs", json={"payload": {}, "queue_name": value}), 422)
            problem(await api.post("/v1/tokens", json={"name": value, "scopes": ["read"]}), 422)
            problem(await api.post("/v1/tokens", json={"name": "x", "scopes": [value]}), 422)
            problem(await api.post("/v1/bulk", json={"action": value}), 422)
            problem(await api.post("/v1/bulk", json={"action": "cancel", "filter": {"queue": value}}), 422)
            schedule = {"cron": "0 9 * * *", "job": {"type": "t"}}
            problem(await api.put("/v1/schedules/s", json=schedule | {"cron": value}), 422)
            problem(await api.put("/v1/schedules/s", json=schedule | {"tz": value}), 422)
            problem(await api.put("/v1/schedules/s", json=schedule | {"job": {"type": value}}), 422)
            for path in (f"/v1/queues/{sent}", f"/v1/jobs/{sent}", f"/jobs/{sent}", f"/v1/bulk/{sent}"):
                answer = await api.get(path)
                problem(answer, 404, 422)
                assert "x-injected" not in answer.headers
                assert "set-cookie" not in answer.headers
            problem(await api.put(f"/v1/queues/{sent}", json={"paused": True}), 404, 422)
            problem(await api.put(f"/v1/schedules/{sent}", json=schedule), 404, 422)
            problem(await api.post(f"/v1/queues/{sent}/lease", json={"worker_id": "w"}), 404, 422)
            problem(await api.delete(f"/v1/tokens/{sent}"), 404)

    @pytest.mark.parametrize("value", STRANGE, ids=repr)
    async def test_strange_texts_are_kept_as_they_are(self, api: httpx.AsyncClient, value: str) -> None:
        keys = dict.fromkeys(("key", "ordering_key", "unique_key", "idempotency_key"), value)
        body = {"type": "t", "queue": "q", "payload": {value: value}, "headers": {value: value}, **keys}
        answer = await api.post("/v1/jobs", json=body)
        assert answer.status_code == 201, answer.text
        job = (await api.get(f"/v1/jobs/{answer.json()['id']}")).json()
        assert {name: job[name] for name in body} == body
        found = await api.get("/v1/jobs", params={"key": value})
        assert [one["id"] for one in found.json()["jobs"]] == [job["id"]]
        leased = await api.post("/v1/queues/q/lease", json={"worker_id": value})
        [lease] = leased.json()["jobs"]
        assert lease["job"]["worker"] == value
        nack = {"token": lease["token"], "error": value, "logs": value, "retry_in": 0}
        assert (await api.post(f"/v1/jobs/{job['id']}/nack", json=nack)).status_code == 200
        assert (await api.post(f"/v1/jobs/{job['id']}/cancel", json={"reason": value})).status_code == 200
        history = (await api.get(f"/v1/jobs/{job['id']}/attempts")).json()
        assert (history["attempts"][0]["error"], history["attempts"][0]["logs"]) == (value, value)
        assert history["changes"][-1]["reason"] == value
        stale = {"token": value, "result": value}
        problem(await api.post(f"/v1/jobs/{job['id']}/ack", json=stale), 409)

    async def test_nul_where_texts_are_kept(self, api: httpx.AsyncClient, queue: Queue) -> None:
        """PostgreSQL can hold it in no text. In JSON it is a value like any other; in errors and logs it is shown."""
        answer = await api.post("/v1/jobs", json={"type": "t", "queue": "q", "payload": {"\0": "a\0b"}})
        id = answer.json()["id"]
        assert (await api.get(f"/v1/jobs/{id}")).json()["payload"] == {"\0": "a\0b"}
        problem(await api.post("/v1/queues/q/lease", json={"worker_id": "a\0b"}), 422)
        leased = await api.post("/v1/queues/q/lease", json={"worker_id": "w"})
        token = leased.json()["jobs"][0]["token"]
        async with unchanged(queue):
            problem(await api.post(f"/v1/jobs/{id}/ack", json={"token": f"{token}\0"}), 409, 422)
            problem(await api.post(f"/jobs/{id}/ack", json={"lease_token": f"{token}\0"}), 409, 422)
            problem(await api.post(f"/v1/jobs/{id}/heartbeat", json={"token": "\0"}), 409, 422)
            problem(await api.post(f"/v1/jobs/{id}/cancel", json={"reason": "\0"}), 422)
            problem(await api.put("/v1/queues/q", json={"reason": "\0"}), 422)
        for path in (f"/v1/jobs/{id}/nack",):
            answer = await api.post(
                path, json={"token": token, "error": "a\0b", "logs": "c\0d", "retry": False}
            )
            assert answer.status_code == 200
        [attempt] = (await api.get(f"/v1/jobs/{id}/attempts")).json()["attempts"]
        assert (attempt["error"], attempt["logs"]) == ("a\\x00b", "c\\x00d")

    @pytest.mark.parametrize("value", ["", "a b", "*", "x" * 129, "é", "../x", "default\x01"], ids=repr)
    async def test_tenants_that_cannot_be(self, url: str, value: str) -> None:
        headers = {b"Authorization": f"Bearer {ADMIN}".encode(), b"Penstock-Tenant": value.encode("latin-1")}
        async with httpx.AsyncClient(base_url=url, headers=headers) as client:
            answer = await client.get("/v1/jobs")
        if value:
            problem(answer, 400, 422)
        else:
            assert answer.status_code == 200  # left empty, it is as if it were left out

    async def test_request_ids_are_taken_only_if_they_are_harmless(self, url: str) -> None:
        async with httpx.AsyncClient(base_url=url) as client:
            for sent, is_kept in (
                ("abc-1", True),
                ("x" * 65, False),
                ("a b", False),
                ("<b>", False),
                ("é", False),
            ):
                answer = await client.get("/livez", headers={b"X-Request-Id": sent.encode("latin-1")})
                assert (answer.headers["x-request-id"] == sent) is is_kept

    async def test_idempotency_keys(self, api: httpx.AsyncClient, queue: Queue) -> None:
        async with unchanged(queue):
            for sent in ("", '""', "x" * 513):
                answer = await api.post("/v1/jobs", json={"type": "t"}, headers={"Idempotency-Key": sent})
                problem(answer, 422)
            both = {"type": "t", "idempotency_key": "a"}
            problem(await api.post("/v1/jobs", json=both, headers={"Idempotency-Key": "b"}), 422)


# ── HTTP itself ───────────────────────────────────────────────────────────────────────────────────


async def connected(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    where = urlsplit(url)
    return await asyncio.open_connection(where.hostname, where.port)


async def raw(url: str, sent: bytes) -> bytes:
    """What comes back for these bytes: all of it where the server ends the connection, or else one answer."""
    reader, writer = await connected(url)
    try:
        writer.write(sent)
        async with asyncio.timeout(10):
            await writer.drain()  # a server that has heard enough hears it out, or its answer would be lost
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            assert length is not None
            return head + await reader.readexactly(int(length[1]))
    finally:
        writer.close()


def refused(told: bytes, status: int, code: str) -> None:
    assert told.startswith(f"HTTP/1.1 {status} ".encode()), told
    assert b"content-type: application/problem+json" in told
    assert json.loads(told.partition(b"\r\n\r\n")[2])["code"] == code


class TestHTTP:
    @pytest.mark.parametrize("method", ["PATCH", "OPTIONS", "TRACE", "PROPFIND", "DELETE", "PUT"])
    async def test_methods_that_an_address_has_not(self, small: str, method: str) -> None:
        async with asking(small, ADMIN) as client:
            answer = await client.request(method, "/v1/jobs")
        problem(answer, 405)
        assert answer.headers["allow"] == "GET, HEAD, POST"

    async def test_a_name_with_a_slash_swallows_no_other_address(self, small: str) -> None:
        async with asking(small, ADMIN) as client:
            problem(await client.put("/v1/queues/q/pause", json={}), 405)
            problem(await client.get("/v1/jobs/batch"), 405)
            assert (await client.get("/v1/queues")).json() == {"queues": []}
            assert (await client.put("/v1/queues/a/b", json={"paused": True})).json()["name"] == "a/b"

    @pytest.mark.parametrize(
        "path", ["/v1", "/v1/", "/v2/jobs", "/v1/jobs/", "/V1/JOBS", "/v1/jobs/x/y/z", "/.env", "/%00"]
    )
    async def test_addresses_where_nothing_is(self, small: str, path: str) -> None:
        async with asking(small, ADMIN) as client:
            problem(await client.get(path), 404, 422)

    @pytest.mark.parametrize(
        "sent",
        [
            b"FROB / HTTP/1.1\r\n\r\n",
            b"GET /livez HTTP/9.9\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"GET /livez HTTP/1.1\r\nbad header\r\n\r\n",
            b"GET /livez HTTP/1.1\r\nX: a\x00b\r\n\r\n",
            b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
            b"POST /v1/jobs HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            b"POST /v1/jobs HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            b"POST /v1/jobs HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"POST /v1/jobs HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"GET /livez HTTP/1.1\r\nHost: x\nEvil: 1\r\n : x\r\n\r\n",
        ],
        ids=lambda sent: sent[:40].decode("latin-1"),
    )
    async def test_what_is_no_http(self, small: str, sent: bytes) -> None:
        refused(await raw(small, sent), 400, "bad_request")

    async def test_http_1_0(self, small: str) -> None:
        reader, writer = await connected(small)
        writer.write(b"GET /livez HTTP/1.0\r\n\r\n")
        told = await reader.read()  # to the end: it is not kept open
        writer.close()
        assert told.startswith(b"HTTP/1.1 200 OK")
        assert told.endswith(b'{"status":"ok"}')

    async def test_thousands_of_headers(self, small: str) -> None:
        lines = b"".join(b"X-%d: %d\r\n" % (n, n) for n in range(2_000))
        told = await raw(small, b"GET /livez HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n")
        assert told.startswith(b"HTTP/1.1 200")
        lines = b"".join(b"X-%d: %d\r\n" % (n, n) for n in range(8_000))
        told = await raw(small, b"GET /livez HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n")
        refused(told, 431, "headers_too_large")

    async def test_a_header_without_an_end(self, small: str) -> None:
        told = await raw(small, b"GET /livez HTTP/1.1\r\nX: " + b"x" * 10_000_000)
        refused(told, 431, "headers_too_large")

    async def test_an_address_without_an_end(self, small: str) -> None:
        refused(await raw(small, b"GET /" + b"x" * 1_000_000), 431, "headers_too_large")

    async def test_headers_that_do_not_come(self, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Protocol, "head_seconds", 0.1)
        refused(await raw(small, b"GET /livez HTTP/1.1\r\nHost: "), 408, "client_too_slow")

    async def test_a_connection_on_which_nothing_comes(
        self, small: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Protocol, "head_seconds", 0.1)
        reader, writer = await connected(small)
        assert await reader.read() == b""
        writer.close()

    async def test_a_later_request_on_a_connection_has_its_own_time(
        self, small: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Protocol, "head_seconds", 0.1)
        reader, writer = await connected(small)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b'{"status":"ok"}')
        writer.write(b"GET /livez HTTP/1.1\r\nHost")
        refused(await reader.read(), 408, "client_too_slow")
        writer.close()

    async def test_a_body_that_does_not_come_holds_up_nobody(self, small: str) -> None:
        reader, writer = await connected(small)
        writer.write(f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\n".encode())
        writer.write(b'Content-Length: 100\r\n\r\n{"type": ')
        await writer.drain()
        async with asking(small, ADMIN) as client:
            assert (await client.get("/livez")).status_code == 200
        async with asyncio.timeout(8):
            told = await reader.read()  # to the end: the connection is over
        refused(told, 408, "client_too_slow")
        assert b"\r\nconnection: close\r\n" in told
        writer.close()


# ── Secrets ───────────────────────────────────────────────────────────────────────────────────────


class TestSecrets:
    async def test_tokens_are_in_no_log_and_no_answer(
        self,
        url: str,
        store: Store,
        tenant: str,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        _, good = await Access(store).create(tenant, "good", ["admin"], actor="tests")
        bad = "pst_a-bad-one-that-nobody-should-see"
        caplog.set_level(1)
        for name in (
            "uvicorn",
            "uvicorn.error",
            "uvicorn.access",
            "uvicorn.asgi",
            "penstock",
            "penstock.server",
        ):
            monkeypatch.setattr(logging.getLogger(name), "disabled", False)
            caplog.set_level(1, logger=name)
        told = []
        for secret in (good, bad):
            async with asking(url, secret) as client:
                told += [(await ask(client, operation))[1] for operation in OPERATIONS]
        sent = f"GET /v1/jobs HTTP/1.1\r\nAuthorization: Bearer {good}\r\nno header\r\n\r\n"
        told.append((await raw(url, sent.encode())).decode())

        async def broken(*_: object, **__: object) -> Any:
            raise RuntimeError("planted")

        monkeypatch.setattr(store, "find", broken)
        async with asking(url, good) as client:
            answer = await client.get("/v1/jobs")
        problem(answer, 500)
        ours = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
        logged = "\n".join(
            map(repr, (one for record in ours for one in (caplog.handler.format(record), vars(record))))
        )
        assert "planted" in logged
        assert answer.headers["x-request-id"] in logged
        assert {"penstock.server", "uvicorn.error", "uvicorn.access"} <= {record.name for record in ours}
        for secret in (good, bad, ADMIN):
            assert secret not in logged
            assert not any(secret in one for one in [*told, answer.text])
