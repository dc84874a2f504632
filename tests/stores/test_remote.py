"""A service as a store: what goes over HTTP, what is asked again, who may do what, and a worker on it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from random import Random
from typing import Any

import aiohttp
import pytest

from penstock import JobContext, Penstock
from penstock.access import Access, Scope
from penstock.connecting import connect
from penstock.core.codec import JsonText
from penstock.core.commands import (
    Ack,
    CancelJob,
    ConfigureQueue,
    DropSchedule,
    Enqueued,
    Fire,
    Heartbeat,
    Leased,
    LeaseJobs,
    PutSchedule,
    RedriveJob,
    Swept,
)
from penstock.core.errors import (
    Forbidden,
    InvalidInput,
    JobNotFound,
    Overloaded,
    PenstockError,
    RateLimited,
    StoreUnavailable,
    Unauthorized,
    UnknownStore,
)
from penstock.core.job import JobId, LeaseToken, NewJob, Status
from penstock.core.limits import Rate
from penstock.core.registry import Audited, PutEntry, Spend
from penstock.core.requests import new_schedule
from penstock.core.retry import Retry
from penstock.core.wakeups import CANCELS, EVERYONE, OFFICES, SCHEDULES
from penstock.queue import Queue, new_id
from penstock.server.port import OPERATIONS
from penstock.server.rings import Rings
from penstock.stores.memory import MemoryStore
from penstock.stores.remote.store import RemoteStore
from penstock.stores.remote.wire import BODIES
from penstock.stores.wakeups.bells import Topic
from penstock.testing import FakeClock
from support.service import ADMIN, KnownTokens, Swift, swiftly, token
from support.working import LONG, until

NOW = datetime(2026, 5, 1, tzinfo=UTC)
ID = JobId("01890a5d-ac96-774b-bcce-b302099a8057")
SECRETS = {
    ADMIN: token("root", "*", Scope.ADMIN),
    "of-acme": token("acme", "acme", *Scope),
    "of-zeta": token("zeta", "zeta", *Scope),
    **{f"may-{scope}": token(scope, "acme", scope) for scope in Scope},
}


class Watched(MemoryStore):
    """Remembers how many jobs each call puts in; while its gate is shut, none goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.put: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def enqueue(self, tenant: str, jobs: Sequence[NewJob]) -> list[Enqueued | PenstockError]:
        self.put.append(len(jobs))
        await self.gate.wait()
        return await super().enqueue(tenant, jobs)


@pytest.fixture
def memory() -> Watched:
    return Watched()


@pytest.fixture
async def url(memory: MemoryStore) -> AsyncIterator[str]:
    async with swiftly(memory, KnownTokens(SECRETS)) as url:
        yield url


Opened = Callable[[str], RemoteStore]


@pytest.fixture
async def opened(url: str) -> AsyncIterator[Opened]:
    """`opened("of-acme")` is the store as whoever has this token sees it."""
    async with AsyncExitStack() as stack:

        def open(secret: str) -> RemoteStore:
            store = RemoteStore(url, secret)
            stack.push_async_callback(store.close)
            return store

        yield open


async def post(
    url: str, verb: str, body: Any, secret: str | None = "of-acme", **headers: str
) -> tuple[int, Any]:
    """What the service says to a client that is not ours."""
    if secret is not None:
        headers["Authorization"] = f"Bearer {secret}"
    data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/store/{verb}", data=data, headers=headers) as response,
    ):
        return response.status, json.loads(await response.read())


class Moody:
    """A server that answers each request as it was told to, or hangs up; it remembers what was asked."""

    def __init__(self, *moods: bytes) -> None:
        self._moods = list(moods)
        self.asked: list[str] = []
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
        )
        await reader.readexactly(length)
        self.asked.append(head.decode().split()[1].removeprefix("/v1/store/"))
        mood = self._moods.pop(0) if len(self._moods) > 1 else self._moods[0]
        writer.write(mood)
        writer.close()


HANGS_UP = b""


def says(status: int, body: Any, *headers: str) -> bytes:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(sent)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + sent


def refuses(status: int, code: str, *headers: str, **facts: Any) -> bytes:
    return says(status, {"code": code, "detail": f"it is {code}", "facts": facts}, *headers)


NOT_NOW = refuses(503, "store_unavailable", "Retry-After: 0")
LATER = refuses(503, "store_unavailable", "Retry-After: 3600")


@asynccontextmanager
async def on(*moods: bytes, patience_seconds: float = LONG) -> AsyncIterator[tuple[RemoteStore, Moody]]:
    server = Moody(*moods)
    store = RemoteStore(await server.start(), "hush", patience_seconds=patience_seconds, random=Random(1))
    try:
        yield store, server
    finally:
        await store.close()
        await server.stop()


Ask = Callable[[RemoteStore], Any]
SCHEDULE = new_schedule("s", "* * * * *", {"type": "a"})

ASKED: dict[str, tuple[Ask, bool]] = {
    "enqueue": (lambda store: store.enqueue("default", [NewJob(ID, "a")]), True),
    "lease": (lambda store: store.lease("default", [LeaseJobs("q", "w")]), False),
    "heartbeat": (lambda store: store.heartbeat("default", [Heartbeat(ID, LeaseToken("t"))]), True),
    "settle": (lambda store: store.settle("default", [Ack(ID, LeaseToken("t"))]), True),
    "cancel": (lambda store: store.cancel("default", [CancelJob(ID, "ada")]), True),
    "redrive": (lambda store: store.redrive("default", [RedriveJob(ID, "ada")]), False),
    "configure": (lambda store: store.configure("default", [ConfigureQueue("q", {}, "ada")]), False),
    "put_schedules": (lambda store: store.put_schedules("default", [PutSchedule(SCHEDULE, "ada")]), False),
    "drop_schedules": (lambda store: store.drop_schedules("default", [DropSchedule("s", "ada")]), False),
    "fire": (lambda store: store.fire("default", [Fire("s", NOW, (NOW,), None)]), True),
    "get": (lambda store: store.get("default", [ID]), True),
    "history": (lambda store: store.history("default", [("job", ID)]), True),
    "put_entries": (lambda store: store.put_entries("default", [PutEntry("worker", "w", JsonText("1"))]), True),
    "lead": (lambda store: store.lead("scheduler", "me", 1), True),
    "spend": (lambda store: store.spend("default", [Spend("a", 1, 1, 1)]), False),
}  # fmt: skip
"""A call of each verb that changes something, and whether it may be sent again when its answer stayed away."""

GUARDED = PutEntry("worker", "w", JsonText("1"), version=1)
TOLD = PutEntry("worker", "w", JsonText("1"), audit=Audited("w", "put", "ada"))
ONE = says(
    200, {"answers": [{"error": {"code": "job_not_found", "message": "gone", "facts": {"job_id": ID}}}]}
)
GOOD = {"lead": says(200, True), "spend": says(200, [])}


class TestAskingAgain:
    @pytest.mark.parametrize("verb", ASKED)
    async def test_what_may_be_repeated_is_sent_again_when_the_connection_breaks(self, verb: str) -> None:
        ask, is_repeatable = ASKED[verb]
        async with on(HANGS_UP, GOOD.get(verb, ONE)) as (store, server):
            if is_repeatable:
                await ask(store)
                assert server.asked == [verb, verb]
            else:
                with pytest.raises(StoreUnavailable):
                    await ask(store)
                assert server.asked == [verb], "nobody knows whether it was heard"

    @pytest.mark.parametrize("command", [GUARDED, TOLD], ids=["guarded", "told"])
    async def test_an_entry_with_a_guard_or_a_line_in_the_audit_trail_is_not(self, command: PutEntry) -> None:
        async with on(HANGS_UP, ONE) as (store, server):
            with pytest.raises(StoreUnavailable):
                await store.put_entries("default", [command])
            assert len(server.asked) == 1

    @pytest.mark.parametrize("verb", ASKED)
    async def test_whoever_has_used_up_its_allowance_waits_and_asks_again(self, verb: str) -> None:
        async with on(refuses(429, "rate_limited", "Retry-After: 0"), GOOD.get(verb, ONE)) as (store, server):
            await ASKED[verb][0](store)
            assert server.asked == [verb, verb]

    async def test_a_store_that_is_away_for_a_while_is_waited_for(self) -> None:
        async with on(NOT_NOW, says(502, b"<html>"), says(504, b""), ONE) as (store, server):
            [answer] = await store.get("default", [ID])
            assert len(server.asked) == 4
        assert type(answer) is JobNotFound
        assert (answer.message, answer.facts) == ("gone", {"job_id": ID})

    async def test_a_wait_longer_than_its_patience_is_not_begun(self) -> None:
        async with asyncio.timeout(LONG), on(LATER, ONE) as (store, server):
            with pytest.raises(StoreUnavailable, match="it is store_unavailable"):
                await store.get("default", [ID])
            assert len(server.asked) == 1

    async def test_whoever_is_told_to_slow_down_for_too_long_learns_how_long(self) -> None:
        told = refuses(429, "rate_limited", "Retry-After: 3600", policy="token", retry_after=3600)
        async with asyncio.timeout(LONG), on(told) as (store, _):
            with pytest.raises(RateLimited) as raised:
                await store.get("default", [ID])
        assert raised.value.facts == {"policy": "token", "retry_after": 3600}

    async def test_patience_ends(self) -> None:
        async with on(HANGS_UP, patience_seconds=0.1) as (store, server):
            with pytest.raises(StoreUnavailable):
                await store.get("default", [ID])
            assert len(server.asked) > 1

    @pytest.mark.parametrize("verb", ["lease", "redrive", "get"])
    async def test_a_service_that_is_not_there_yet_is_waited_for(self, verb: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server, store = Moody(ONE), RemoteStore(f"http://127.0.0.1:{port}", "hush", patience_seconds=LONG)
        asking = asyncio.create_task(ASKED[verb][0](store))
        try:
            await asyncio.wait([asking], timeout=0.1)  # it has been refused by now, or will be served at once
            await server.start(port)
            await asking
        finally:
            await store.close()
            await server.stop()

    async def test_what_is_no_penstock_says_so(self) -> None:
        async with on(says(404, b"<html>not here</html>")) as (store, server):
            with pytest.raises(StoreUnavailable, match="404, and not as a Penstock service does"):
                await store.now()
            assert len(server.asked) == 1

    async def test_an_answer_that_makes_no_sense_is_not_taken_for_one(self) -> None:
        async with on(says(200, {"answers": []})) as (store, _):
            with pytest.raises(StoreUnavailable, match="1 items got 0 answers"):
                await store.get("default", [ID])
            with pytest.raises(StoreUnavailable, match="its answer to now cannot be read"):
                await store.now()

    async def test_the_token_follows_no_redirect(self) -> None:
        async with on(says(200, "2026-01-01T00:00:00Z")) as (other, elsewhere):
            async with on(says(307, b"", f"Location: {other._http.url}/v1/store/now")) as (store, _):
                with pytest.raises(StoreUnavailable, match="307"):
                    await store.now()
            assert elsewhere.asked == []


class TestSecrets:
    SECRET = "pst_never-to-be-seen"

    async def test_the_token_is_in_no_error_log_line_or_repr(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        told: list[str] = []
        for moods in ([HANGS_UP], [NOT_NOW], [says(500, b"?")], [refuses(401, "unauthorized")]):
            server = Moody(*moods)
            store = RemoteStore(await server.start(), self.SECRET, patience_seconds=0.1)
            told += [repr(store), repr(store._http), repr(store.wakeups), str(store.wakeups.status())]
            for verb in ("lease", "get"):
                with pytest.raises(PenstockError) as raised:
                    await ASKED[verb][0](store)
                told += [repr(raised.value), str(raised.value), str(raised.value.facts)]
                told += [repr(raised.value.__cause__), repr(raised.value.__context__)]
            await store.wakeups.start()
            told.append(str(store.wakeups.status()))
            await store.close()
            await server.stop()
        assert not any(self.SECRET in line for line in [*told, caplog.text])

    @pytest.mark.parametrize("secret", ["", "two words", "line\nbreak", "é", "x" * 2_000])
    def test_a_token_that_is_none_is_refused_and_not_repeated(self, secret: str) -> None:
        with pytest.raises(InvalidInput) as raised:
            RemoteStore("https://host", secret)
        assert not secret or secret not in str(raised.value)

    @pytest.mark.parametrize(
        "url",
        ["https://ada:hush@host", "https://hush@host/x", "https://host?token=hush", "https://host#hush"],
    )
    def test_secrets_have_no_place_in_the_url(self, url: str) -> None:
        with pytest.raises(InvalidInput, match="PENSTOCK_TOKEN") as raised:
            RemoteStore(url, "t")
        assert "hush" not in str(raised.value)


class TestConnect:
    async def test_a_url_and_the_token_of_the_environment_open_it(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PENSTOCK_TOKEN", "of-acme")
        async with connect(url) as queue:
            job = await queue.enqueue("a", {"n": 1})
            assert (await queue.get(job.id)).tenant == "acme"

    def test_without_a_token_it_says_what_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
        with pytest.raises(InvalidInput, match="PENSTOCK_TOKEN must be set"):
            connect("https://penstock.example.com")

    def test_without_its_package_it_says_how_to_get_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "penstock.stores.remote.store", None)
        with pytest.raises(UnknownStore, match=r"penstock\[remote\]"):
            connect("https://penstock.example.com")

    async def test_a_program_that_just_ends_leaves_no_complaints(self, url: str) -> None:
        program = "from penstock import Penstock; Penstock().sync.enqueue('a')"
        running = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, env={"PENSTOCK_URL": url, "PENSTOCK_TOKEN": "of-acme"},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        told, _ = await running.communicate()
        assert (running.returncode, told) == (0, b"")


class TestWhatGoesOver:
    """What the conformance suite does not look at closely enough."""

    async def test_numbers_in_settings_stay_as_they_were_written(
        self, memory: MemoryStore, opened: Opened
    ) -> None:
        """The audit trail shows them, and declarations in code are compared with it."""
        changes: dict[str, Any] = {
            "retry": Retry.fixed(5),
            "lease_seconds": 10,
            "rate": Rate(5, per=60),
            "retention_seconds": 0.5,
            "max_depth": None,
        }
        direct = Queue(MemoryStore())
        await direct.configure("q", **changes)
        await Queue(opened("of-acme")).configure("q", **changes)
        [own] = (await direct.history("q", "queue")).changes
        [remote] = (await Queue(memory, tenant="acme").history("q", "queue")).changes
        assert remote.detail == own.detail

    async def test_a_payload_stays_as_it_was_written(self, memory: MemoryStore, opened: Opened) -> None:
        text = JsonText('{ "b" : 1.50,\n "a": "\\u00e9" }')
        await opened("of-acme").enqueue("default", [NewJob(ID, "a", payload=text)])
        assert (await Queue(memory, tenant="acme").get(ID)).payload == text

    async def test_more_than_fits_into_one_request_goes_in_several(
        self, memory: Watched, opened: Opened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("penstock.stores.remote.store.MOST_SENT", 50)
        monkeypatch.setattr("penstock.stores.remote.store.MOST_BYTES", 10_000)
        jobs = [NewJob(new_id(), "a", priority=number) for number in range(210)]
        answers = await Queue(opened("of-acme")).enqueue_many(jobs)
        assert [answer.id for answer in answers if isinstance(answer, Enqueued)] == [job.id for job in jobs]
        assert sum(memory.put) == 210
        assert len(memory.put) > 4

    async def test_a_full_queue_refuses_its_own_jobs_only(self, memory: MemoryStore, opened: Opened) -> None:
        door = Queue(memory, tenant="acme")
        await door.configure("full", max_depth=1)
        await door.enqueue("a", queue="full")
        queue = Queue(opened("of-acme"))
        full, free = await queue.enqueue_many([{"type": "a", "queue": "full"}, {"type": "a"}])
        assert isinstance(full, Overloaded)
        assert not isinstance(free, PenstockError)


class TestGrouping:
    async def test_calls_at_once_are_one_request(self, memory: Watched, opened: Opened) -> None:
        queue = Queue(opened("of-acme"))
        await asyncio.gather(*(queue.enqueue("a") for _ in range(50)))
        assert memory.put == [50]

    async def test_requests_at_once_are_one_call_to_the_store(self, memory: Watched) -> None:
        """Two are on their way, and whoever comes meanwhile goes together."""
        memory.gate.clear()
        server = Swift(memory, KnownTokens(SECRETS))
        url = await server.start()
        stores = [RemoteStore(url, "of-acme") for _ in range(20)]
        asking = [asyncio.create_task(Queue(store).enqueue_many([{"type": "a"}] * 3)) for store in stores]

        async def are_all_there() -> bool:
            group = server.service.enqueue._groups.get("acme")
            return group is not None and sum(memory.put) + 3 * len(group._pending) == 60

        await until(are_all_there)
        memory.gate.set()
        assert [len(answers) for answers in await asyncio.gather(*asking)] == [3] * 20
        assert sum(memory.put) == 60
        assert len(memory.put) <= 3
        for store in stores:
            await store.close()
        await server.stop()

    async def test_one_callers_bad_value_is_not_its_neighbours(self, opened: Opened) -> None:
        store = opened("of-acme")
        good, bad = await asyncio.gather(
            store.enqueue("default", [NewJob(ID, "a")]),
            store.enqueue("default", [NewJob(new_id(), "not a name")]),
            return_exceptions=True,
        )
        assert isinstance(bad, InvalidInput)
        assert not isinstance(good, BaseException)
        assert [type(answer).__name__ for answer in good] == ["Enqueued"]


# ── Who may do what ───────────────────────────────────────────────────────────────────────────────

BODY: dict[str, Any] = {
    "find": {"filter": {}, "limit": 1},
    "next_at": {"queues": ["q"]},
    "lead": {"office": "o", "holder": "h", "seconds": 1},
    "sweep": {"limit": 1},
    "put_entries": {"items": [{"kind": "worker", "name": "w", "body": "1"}]},
    "entries": {"kind": "worker"},
    "audit": {"limit": 1},
    "events": {"limit": 1},
    "due_schedules": {},
    "insights": {"names": []},
    "wakeups": {"topics": [], "seconds": 0},
}
"""Bodies that the verbs take; where none is given, no items at all are fine."""

MAY: dict[str, str] = {
    "enqueue": "produce",
    "lease": "work",
    "heartbeat": "work",
    "settle": "work",
    "next_at": "work",
    "wakeups": "work operate",
    "now": "produce work read operate",
    "cancel": "produce operate",
    "redrive": "operate",
    "configure": "operate",
    "put_schedules": "operate",
    "drop_schedules": "operate",
    "fire": "operate",
    "due_schedules": "operate",
    "lead": "operate",
    "sweep": "operate",
    "tenants": "read operate",
    "get": "produce work read operate",
    "history": "read operate",
    "find": "read operate",
    "queues": "work read operate",
    "schedules": "read operate",
    "audit": "read operate",
    "events": "read operate",
    "put_entries": "work",
    "entries": "work read",
    "spend": "",
    "put_insights": "",
    "insights": "read operate",
}


class TestWhoMayDoWhat:
    def test_all_verbs_are_in_these_tables(self) -> None:
        assert MAY.keys() == BODIES.keys() == {one.path.rpartition("/")[2] for one in OPERATIONS}

    @pytest.mark.parametrize("verb", MAY)
    async def test_nobody_gets_in_without_a_token_that_is_known(self, url: str, verb: str) -> None:
        for secret in (None, "unheard-of", "of-acm"):
            status, told = await post(url, verb, BODY.get(verb, {"items": []}), secret)
            assert (status, told["code"]) == (401, "unauthorized")

    @pytest.mark.parametrize("verb", MAY)
    async def test_each_verb_needs_its_scope(self, url: str, verb: str) -> None:
        for scope in Scope:
            status, told = await post(url, verb, BODY.get(verb, {"items": []}), f"may-{scope}")
            if scope == Scope.ADMIN or scope in MAY[verb].split():
                assert status == 200, (scope, told)
            else:
                assert (status, told["code"]) == (403, "forbidden"), scope

    async def test_real_tokens_of_the_store_count(self, memory: MemoryStore) -> None:
        access = Access(memory, remember_seconds=0)
        made, secret = await access.create("acme", "ci", ["produce"], actor="tests")
        async with swiftly(memory, access) as url:
            store, stranger = RemoteStore(url, secret), RemoteStore(url, "pst_unheard-of")
            await Queue(store).enqueue("a")
            with pytest.raises(Forbidden) as refused:
                await store.queues("default")
            assert refused.value.facts["scopes"] == "produce"
            with pytest.raises(Unauthorized):
                await Queue(stranger).enqueue("a")
            await access.revoke("acme", made.id, actor="tests")
            with pytest.raises(Unauthorized):
                await Queue(store).enqueue("a")
            await store.close()
            await stranger.close()
            await access.close()

    @pytest.mark.parametrize("kind", ["bulk", "token"])
    async def test_workers_see_to_their_own_entries_only(self, url: str, kind: str) -> None:
        for verb, body in {
            "put_entries": {"items": [{"kind": kind, "name": "n", "body": "1"}]},
            "entries": {"kind": kind},
        }.items():
            for secret in ("may-work", "may-read"):
                status, told = await post(url, verb, body, secret)
                assert (status, told["code"]) == (403, "forbidden")
            status, _ = await post(url, verb, body, "may-admin")
            assert status == (403 if kind == "token" else 200), (
                "tokens are let in by the service itself alone"
            )
            status, _ = await post(url, verb, body, ADMIN)
            assert status == 200

    async def test_the_service_itself_alone_publishes_insights(self, url: str) -> None:
        body = {"items": [{"tenant": "acme", "name": "slo", "as_of": "2026-01-01T00:00:00Z", "body": "{}"}]}
        status, told = await post(url, "put_insights", body, "may-admin")
        assert (status, told["code"]) == (403, "forbidden")
        status, told = await post(url, "put_insights", body, ADMIN)
        assert (status, told) == (200, 1)


class TestTenants:
    async def test_each_token_has_its_own_jobs(self, opened: Opened) -> None:
        acme, zeta = Queue(opened("of-acme")), Queue(opened("of-zeta"))
        job = await acme.enqueue("a")
        assert (await acme.get(job.id)).tenant == "acme"
        with pytest.raises(JobNotFound):
            await zeta.get(job.id)
        assert await zeta.lease(worker="w") == []
        assert (await zeta.find()).jobs == ()

    async def test_no_token_names_another_tenant(self, opened: Opened) -> None:
        with pytest.raises(Forbidden):
            await Queue(opened("of-acme"), tenant="zeta").enqueue("a")
        await Queue(opened("of-acme"), tenant="acme").enqueue("a")

    async def test_the_service_itself_names_the_tenant(self, memory: MemoryStore, opened: Opened) -> None:
        root = opened(ADMIN)
        job = await Queue(root, tenant="zeta").enqueue("a")
        assert (await Queue(memory, tenant="zeta").get(job.id)).tenant == "zeta"
        own = await Queue(root).enqueue("a")
        assert (await Queue(memory).get(own.id)).tenant == "default"

    async def test_what_is_about_the_whole_store_is_about_ones_own_tenant(
        self, memory: MemoryStore, opened: Opened
    ) -> None:
        clock = memory._clock = FakeClock()
        for tenant in ("acme", "zeta"):
            await Queue(memory, tenant=tenant).put_schedule("s", "* * * * *", {"type": "a"})
            await memory.put_entries(tenant, [PutEntry("worker", tenant, JsonText("1"))])
        clock.advance(minutes=2)
        acme, root = opened("of-acme"), opened(ADMIN)
        assert await acme.tenants() == ["acme"]
        assert await root.tenants() == ["acme", "zeta"]
        assert [entry.tenant for entry in await acme.entries(None, "worker")] == ["acme"]
        assert [entry.tenant for entry in await root.entries(None, "worker")] == ["acme", "zeta"]
        with pytest.raises(Forbidden):
            await acme.entries("*", "worker")
        assert (await acme.due_schedules()).tenants == ("acme",)
        assert (await root.due_schedules()).tenants == ("acme", "zeta")
        assert (await root.due_schedules("zeta")).tenants == ("zeta",)

    async def test_offices_are_kept_apart(self, memory: MemoryStore, opened: Opened) -> None:
        assert await memory.lead("scheduler", "the service", 60)
        assert await opened("of-acme").lead("scheduler", "ada", 60)
        assert await opened("of-zeta").lead("scheduler", "zoe", 60)
        assert not await opened("of-acme").lead("scheduler", "another", 60)
        assert not await opened(ADMIN).lead("scheduler", "another", 60)

    async def test_only_the_service_itself_sweeps(self, memory: MemoryStore, opened: Opened) -> None:
        door = Queue(memory, tenant="acme")
        await door.configure("default", retention_seconds=0)
        job = await door.enqueue("a")
        await door.cancel(job.id)
        assert await opened("of-acme").sweep(limit=10) == Swept()
        assert (await opened(ADMIN).sweep(limit=10)).pruned == 1

    async def test_no_bell_rings_for_another_tenant(self, url: str) -> None:
        for topic in ({"tenant": "zeta", "queue": "q"}, {"tenant": "zeta", "queue": CANCELS}):
            status, told = await post(url, "wakeups", {"topics": [topic], "seconds": 0})
            assert (status, told["code"]) == (403, "forbidden")
        everyone = [{"tenant": EVERYONE, "queue": queue} for queue in (SCHEDULES, OFFICES)]
        _, told = await post(url, "wakeups", {"topics": everyone, "seconds": 0})
        assert told["rung"] == []


class TestActors:
    async def test_a_token_cannot_speak_for_somebody_else(self, memory: MemoryStore, opened: Opened) -> None:
        queue, door = Queue(opened("of-acme"), actor="ada"), Queue(memory, tenant="acme")
        job = await queue.enqueue("a")
        await queue.cancel(job.id, "enough")
        await queue.redrive(job.id)
        await queue.configure("default", fair=True)
        await queue.put_schedule("s", "* * * * *", {"type": "a"})
        await queue.drop_schedule("s")
        await queue.store.put_entries(
            "default", [PutEntry("note", "n", JsonText("1"), audit=Audited("n", "put", "ada"))]
        )
        trails = [await door.history(job.id)]
        trails += [await door.history(name, kind) for name, kind in
                   (("default", "queue"), ("s", "schedule"), ("n", "note"))]  # fmt: skip
        changes = [change for trail in trails for change in trail.changes]
        assert len(changes) == 6
        assert {change.actor for change in changes} == {"token:acme"}

    async def test_the_service_itself_says_who_it_acts_for(self, memory: MemoryStore, opened: Opened) -> None:
        await Queue(opened(ADMIN), actor="ada").configure("default", fair=True)
        [change] = (await Queue(memory).history("default", "queue")).changes
        assert change.actor == "ada"


# ── What others send ──────────────────────────────────────────────────────────────────────────────

NAME = "x" * 200
JOB = {"id": ID, "type": "a"}
HELD = {"job_id": ID, "token": "t"}

BAD: list[tuple[str, Any]] = [
    ("enqueue", {"items": [{**JOB, **wrong}]})
    for wrong in (
        {"type": NAME},
        {"type": "a b"},
        {"queue": NAME},
        {"queue": ""},
        {"id": "1"},
        {"id": ID.upper()},
        {"payload": "{"},
        {"payload": "NaN"},
        {"payload": '"\\ud800"'},
        {"payload": "[" * 5_000 + "]" * 5_000},
        {"payload": json.dumps("x" * 1_100_000)},
        {"payload": {"not": "text"}},
        {"headers": "[]"},
        {"headers": json.dumps({"x": "x" * 20_000})},
        {"priority": 40_000},
        {"priority": 10**30},
        {"priority": "1"},
        {"run_at": "2026-01-01T00:00:00"},
        {"run_at": "1900-01-01T00:00:00Z"},
        {"delay": "-PT1S"},
        {"delay": "P9999999D"},
        {"run_at": "2026-01-01T00:00:00Z", "delay": "PT1S"},
        {"max_attempts": 0},
        {"retry": {"kind": "fixed", "base": -1}},
        {"retry": {"kind": "never", "base": 1}},
        {"key": ""},
        {"key": "a\u0000b"},
        {"unique_key": "x" * 600},
        {"idempotency_window": "PT0S"},
        {"parents": [ID, ID]},
        {"parents": ["x"]},
        {"schedule": "no name"},
        {"on_exhausted": "explode"},
    )
]  # fmt: skip
BAD += [
    ("lease", {"items": [{"queue": "q", "worker": "w", **wrong}]})
    for wrong in (
        {"limit": -1},
        {"limit": 0},
        {"limit": 1_001},
        {"limit": 1.5},
        {"seconds": 0},
        {"seconds": 1e300},
        {"queue": NAME},
        {"worker": ""},
        {"worker": NAME},
    )
]
BAD += [
    ("settle", {"items": [wrong]})
    for wrong in (
        {},
        {"ack": HELD, "nack": {**HELD, "error": "x"}},
        {"finish": HELD},
        {"ack": {"job_id": ID}},
        {"ack": {**HELD, "result": "{"}},
        {"ack": {**HELD, "token": "x" * 600}},
        {"ack": {**HELD, "logs": "x" * 20_000}},
        {"nack": {**HELD, "error": "x" * 5_000}},
        {"nack": {**HELD, "error": "a\u0000b"}},
        {"nack": {**HELD, "error": "x", "entropy": 1}},
        {"nack": {**HELD, "error": "x", "entropy": -0.1}},
        {"nack": {**HELD, "error": "x", "delay": "-PT1S"}},
        {"snooze": HELD},
        {"snooze": {**HELD, "delay": "P9999D"}},
        {"discard": {**HELD, "reason": "x" * 5_000}},
    )
]
BAD += [
    ("heartbeat", {"items": [{**HELD, "seconds": 0}]}),
    ("heartbeat", {"items": [{**HELD, "progress": json.dumps("x" * 5_000)}]}),
    ("cancel", {"items": [{"job_id": "x", "actor": "ada"}]}),
    ("cancel", {"items": [{"job_id": ID, "actor": ""}]}),
    ("cancel", {"items": [{"job_id": ID, "actor": "ada", "reason": "x" * 2_000}]}),
    ("redrive", {"items": [{"job_id": ID, "actor": NAME}]}),
]
SETTINGS: list[dict[str, Any]] = [
    {"unheard_of": 1},
    {"max_concurrency": 0},
    {"max_concurrency": 10**9},
    {"rate": 5},
    {"rate": {"limit": 0}},
    {"rate": {"limit": 1, "unheard_of": 1}},
    {"rate": {}},
    {"rate": {"limit": "many"}},
    {"retry": {"kind": "fixed"}},
    {"retry": {"kind": "fixed", "base": "x"}},
    {"retry": None},
    {"paused": "yes"},
    {"lease_seconds": 0},
]
BAD += [("configure", {"items": [{"queue": "q", "actor": "ada", "changes": wrong}]}) for wrong in SETTINGS]
BAD += [
    ("put_schedules", {"items": [{"schedule": {"name": "s", "cron": "* * * * *", "job": JOB, **wrong}, "actor": "ada"}]})
    for wrong in (
        {"name": NAME},
        {"cron": "every day"},
        {"tz": "Europe/Atlantis"},
        {"missed": "sometimes"},
        {"declared_by": "x" * 600},
        {"job": {**JOB, "queue": NAME}},
        {"job": {**JOB, "payload": "{"}},
        {"job": {**JOB, "delay": "PT1S"}},
        {"job": {**JOB, "parents": [ID]}},
    )
]  # fmt: skip
BAD += [
    ("drop_schedules", {"items": [{"name": NAME, "actor": "ada"}]}),
    ("fire", {"items": [{"name": "s", "due_at": "2026-01-01T00:00:00", "at": [], "next_fire_at": None}]}),
    ("fire", {"items": [{"name": "s", "due_at": "2026-01-01T00:00:00Z", "at": ["1900-01-01T00:00:00Z"], "next_fire_at": None}]}),
    ("get", {"items": ["x"]}),
    ("history", {"items": [["job", "x"]]}),
    ("history", {"items": [["no kind", "x"]]}),
    ("history", {"items": [["queue"]]}),
    ("find", {"filter": {"queue": NAME}, "limit": 1}),
    ("find", {"filter": {"statuses": ["lost"]}, "limit": 1}),
    ("find", {"filter": {}, "limit": 0}),
    ("find", {"filter": {}, "limit": -5}),
    ("find", {"filter": {}, "limit": 5_000}),
    ("find", {"filter": {}, "limit": 1, "after": "x"}),
    ("next_at", {"queues": [NAME]}),
    ("next_at", {"queues": ["q"] * 5_000}),
    ("lead", {"office": "", "holder": "h", "seconds": 1}),
    ("lead", {"office": "o", "holder": "h" * 600, "seconds": 1}),
    ("lead", {"office": "o", "holder": "h", "seconds": -1}),
    ("lead", {"office": "o", "holder": "h", "seconds": 1e9}),
    ("sweep", {"limit": -1}),
    ("put_entries", {"items": [{"kind": NAME, "name": "n", "body": "1"}]}),
    ("put_entries", {"items": [{"kind": "worker", "name": "", "body": "1"}]}),
    ("put_entries", {"items": [{"kind": "worker", "name": "n", "body": "{"}]}),
    ("put_entries", {"items": [{"kind": "worker", "name": "n", "body": "1", "version": -1}]}),
    ("put_entries", {"items": [{"kind": "worker", "name": "n", "body": "1", "seconds": -1}]}),
    ("put_entries", {"items": [{"kind": "worker", "name": "n", "body": "1", "audit": {"name": "n", "verb": "no verb", "actor": "a"}}]}),
    ("put_entries", {"items": [], "whose": "everyone's"}),
    ("entries", {"kind": "no kind"}),
    ("spend", {"items": [{"name": "n", "cost": -1, "rate": 1, "burst": 1}]}),
    ("spend", {"items": [{"name": "n", "cost": 1, "rate": 0, "burst": 1}]}),
    ("audit", {"limit": 0}),
    ("audit", {"limit": 1, "before": "é"}),
    ("events", {"limit": 1, "after": "x" * 300}),
    ("events", {"limit": 1, "after": "no cursor"}),
    ("events", {"limit": 5_000}),
    ("wakeups", {"topics": [{"queue": "no queue"}], "seconds": 0}),
    ("wakeups", {"topics": [{"queue": "!unheard-of"}], "seconds": 0}),
    ("wakeups", {"topics": [], "seconds": 1e6}),
    ("enqueue", {"jobs": []}),
    ("enqueue", []),
    ("enqueue", {"items": [None]}),
]  # fmt: skip


class TestWhatOthersSend:
    """Nobody needs our client to send a request, so nothing rests on what it has checked."""

    async def test_nothing_out_of_bounds_comes_through(self, memory: MemoryStore, url: str) -> None:
        for verb, body in BAD:
            status, told = await post(url, verb, body)
            assert (status, told["code"]) == (422, "invalid_input"), (verb, str(body)[:200], told)
        door = Queue(memory, tenant="acme")
        assert (await door.find()).jobs == ()
        assert await door.queues() == []
        assert await door.schedules() == []
        assert await memory.entries("acme", "worker") == []

    async def test_a_bad_item_keeps_its_good_neighbours_out_too(self, memory: MemoryStore, url: str) -> None:
        body = {"items": [JOB, {**JOB, "id": new_id(), "queue": NAME}]}
        status, _ = await post(url, "enqueue", body)
        assert status == 422
        assert (await Queue(memory, tenant="acme").find()).jobs == ()

    @pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe"])
    async def test_what_is_no_json_is_a_bad_request(self, url: str, body: bytes) -> None:
        status, told = await post(url, "enqueue", body)
        assert (status, told["code"]) == (400, "bad_request")

    async def test_what_is_too_large_is_not_read(self, url: str) -> None:
        status, told = await post(url, "enqueue", b" " * (17 * 1_048_576))
        assert (status, told["code"]) == (413, "too_large")


# ── Leases ────────────────────────────────────────────────────────────────────────────────────────


class SlowToLease(MemoryStore):
    """Leases at once, and takes its time to say so."""

    def __init__(self) -> None:
        super().__init__()
        self.leased = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def lease(self, tenant: str, requests: Sequence[LeaseJobs]) -> list[list[Leased] | PenstockError]:
        answers = await super().lease(tenant, requests)
        self.leased.set()
        await self.may_answer.wait()
        return answers


class TestLeases:
    async def test_what_was_leased_for_a_client_that_has_hung_up_goes_back(self) -> None:
        memory = SlowToLease()
        door = Queue(memory)
        job = await door.enqueue("a")
        async with swiftly(memory, KnownTokens(SECRETS)) as url:
            store = RemoteStore(url, ADMIN)
            asking = asyncio.create_task(Queue(store).lease(worker="w"))
            await memory.leased.wait()
            assert (await door.get(job.id)).status is Status.RUNNING
            asking.cancel()
            await asyncio.wait([asking])
            await store.close()
            await asyncio.sleep(0.05)  # the server's end of the connection learns of it on the way
            memory.may_answer.set()

            async def is_back() -> bool:
                return (await door.get(job.id)).status is Status.QUEUED

            await until(is_back)
        [attempt] = (await door.history(job.id)).attempts
        assert attempt.outcome == "released"


# ── Wake-ups ──────────────────────────────────────────────────────────────────────────────────────


class TestWakeups:
    async def test_whoever_heard_of_nothing_yet_is_told_of_all(self, memory: MemoryStore) -> None:
        rings = Rings(memory)
        topics = [Topic("acme", "a"), Topic("acme", "b")]
        heard, rung = await rings.wait(topics, 0, None)
        assert rung == topics
        assert await rings.wait(topics, 0, heard) == (heard, [])
        for unknown in ("", "x", "another-7", heard.partition("-")[0], f"{heard}x"):
            _, rung = await rings.wait(topics, 0, unknown)
            assert rung == topics
        await rings.close()

    async def test_what_rang_between_two_requests_is_told(self, memory: MemoryStore) -> None:
        rings = Rings(memory)
        a, b = Topic("acme", "a"), Topic("acme", "b")
        heard, _ = await rings.wait([a, b], 0, None)
        await Queue(memory, tenant="acme").enqueue("x", queue="b")
        heard, rung = await rings.wait([a, b], LONG, heard)
        assert rung == [b]
        heard, rung = await rings.wait([a, b, Topic("acme", "c")], LONG, heard)
        assert rung == [Topic("acme", "c")], "what begins to be heard rings, and what was told does not"
        await rings.close()

    async def test_whoever_waits_is_let_go_when_the_service_stops(self, memory: MemoryStore) -> None:
        rings = Rings(memory)
        heard, _ = await rings.wait([Topic("acme", "a")], 0, None)
        waiting = asyncio.create_task(rings.wait([Topic("acme", "a")], 3_600, heard))
        await asyncio.sleep(0)
        rings.leave()
        assert await asyncio.wait_for(waiting, LONG) == (heard, [])
        assert await asyncio.wait_for(rings.wait([Topic("acme", "a")], 3_600, heard), LONG) == (heard, [])
        await rings.close()

    async def test_what_is_asked_for_no_more_is_forgotten(
        self, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("penstock.server.rings.LINGER_SECONDS", 0.01)
        rings = Rings(memory)
        await rings.wait([Topic("acme", "a")], 0, None)

        async def is_gone() -> bool:
            return not rings._hearings

        await until(is_gone)
        await rings.close()

    async def test_a_bell_hung_beside_others_is_heard(self, memory: MemoryStore, opened: Opened) -> None:
        wakeups, door = opened("of-acme").wakeups, Queue(memory, tenant="acme")
        async with wakeups.listen("default", ["a"]) as first, wakeups.listen("default", ["b"]) as second:
            await door.enqueue("x", queue="a")
            assert await first.wait(LONG) == {"a"}
            await door.enqueue("x", queue="b")
            assert await second.wait(LONG) == {"b"}
            assert wakeups.status().healthy

    async def test_everyones_topics_do_not_keep_an_ordinary_token_waiting(self, opened: Opened) -> None:
        async with asyncio.timeout(4), opened("of-acme").wakeups.listen(EVERYONE, [SCHEDULES]) as bell:
            assert not await bell.wait(0)

    async def test_healed_means_rung(self, memory: MemoryStore) -> None:
        first = Swift(memory, KnownTokens(SECRETS))
        url = await first.start()
        store = RemoteStore(url, "of-acme")
        async with store.wakeups.listen("default", ["a"]) as bell:
            await first.stop()

            async def is_down() -> bool:
                return not store.wakeups.status().healthy

            await until(is_down)
            second = Swift(memory, KnownTokens(SECRETS))
            await second.start(int(url.rpartition(":")[2]))
            assert await bell.wait(LONG) == {"a"}
            assert store.wakeups.status().healthy
            await Queue(memory, tenant="acme").enqueue("x", queue="a")
            assert await bell.wait(LONG) == {"a"}
        await store.close()
        await second.stop()

    async def test_a_token_that_may_not_listen_is_not_tried_again_and_again(
        self, opened: Opened, caplog: pytest.LogCaptureFixture
    ) -> None:
        wakeups = opened("may-produce").wakeups
        await wakeups.start()
        assert not wakeups.status().healthy
        assert [record.getMessage().endswith("60.00 s") for record in caplog.records] == [True]

    async def test_waking_rings_the_bells_of_this_process_and_asks_nobody(self) -> None:
        async with on(HANGS_UP, patience_seconds=0) as (store, server):
            with store.wakeups._switchboard.bell("default", ["a"]) as bell:
                store.wakeups.wake("default", ["a"])
                assert await bell.wait(0) == {"a"}
            assert server.asked == []


# ── The worker library ────────────────────────────────────────────────────────────────────────────


class TestAWorker:
    async def test_it_runs_jobs_and_tells_progress(
        self, url: str, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PENSTOCK_TOKEN", "of-acme")
        go = asyncio.Event()
        async with Penstock(url, name="test") as app:

            @app.job(name="add")
            async def add(a: int, b: int, ctx: JobContext) -> int:
                ctx.progress({"done": 50})
                await go.wait()
                return a + b

            async with app.worker():
                handle = await add.enqueue(a=1, b=2)
                door = Queue(memory, tenant="acme")

                async def is_half_done() -> bool:
                    return (await door.get(handle.id)).progress == '{"done":50}'

                await until(is_half_done)
                go.set()
                assert await handle.result(timeout=LONG) == 3

    async def test_a_job_that_is_cancelled_while_it_runs_is_told_at_once(
        self, url: str, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its lease is so long that no heartbeat would tell within the test."""
        monkeypatch.setenv("PENSTOCK_TOKEN", "of-acme")
        begun, stopped = asyncio.Event(), asyncio.Event()
        async with Penstock(url, name="test") as app:

            @app.job(name="sleep")
            async def sleep() -> None:
                begun.set()
                try:
                    await asyncio.sleep(LONG * 10)
                finally:
                    stopped.set()

            async with app.worker(lease_seconds=3_600):
                handle = await sleep.enqueue()
                await asyncio.wait_for(begun.wait(), LONG)
                await Queue(memory, tenant="acme").cancel(handle.id)
                await asyncio.wait_for(stopped.wait(), LONG)
                job = await handle.wait(timeout=LONG)
                assert job.status is Status.CANCELLED

    async def test_a_token_for_work_alone_is_enough(
        self, url: str, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("PENSTOCK_TOKEN", "may-work")
        caplog.set_level(logging.INFO)
        done = asyncio.Event()
        door = Queue(memory, tenant="acme")
        async with Penstock(url, name="test") as app:

            @app.job(name="a")
            async def a() -> None:
                done.set()

            async with app.worker(queues="def*"):
                await door.enqueue("a")
                await asyncio.wait_for(done.wait(), LONG)
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
        assert "holds the office" not in caplog.text

    async def test_declarations_that_its_token_may_not_apply_are_told_once(
        self, url: str, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("PENSTOCK_TOKEN", "may-work")
        async with Penstock(url, name="test") as app:

            @app.cron("* * * * *")
            @app.job(name="a")
            async def a() -> None: ...

            async with app.worker():
                pass
        [told] = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert "was not applied" in told.getMessage()
        assert await Queue(memory, tenant="acme").schedules() == []

    async def test_what_people_have_changed_stays_when_it_starts_again(
        self, url: str, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The service writes down whose token it was, not the program: the declaration is known again all the same."""
        monkeypatch.setenv("PENSTOCK_TOKEN", "of-acme")
        door = Queue(memory, tenant="acme", actor="ada")
        async with Penstock(url, name="test") as app:
            app.declare_queue("default", max_concurrency=5, lease_seconds=20)
            async with app.worker():
                assert (await door.queue("default")).settings.max_concurrency == 5
            await door.configure("default", max_concurrency=7)
            async with app.worker():
                assert (await door.queue("default")).settings.max_concurrency == 7

    async def test_it_lives_through_a_service_that_is_restarted(
        self, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PENSTOCK_TOKEN", "of-acme")
        server = Swift(memory, KnownTokens(SECRETS))
        url = await server.start()
        done: asyncio.Queue[int] = asyncio.Queue()
        door = Queue(memory, tenant="acme")
        async with Penstock(url, name="test") as app:

            @app.job(name="a")
            async def a(number: int) -> None:
                done.put_nowait(number)

            async with app.worker() as worker:
                await door.enqueue("a", {"number": 1})
                assert await asyncio.wait_for(done.get(), LONG) == 1
                await server.stop()
                await door.enqueue("a", {"number": 2})
                server = Swift(memory, KnownTokens(SECRETS))
                await server.start(int(url.rpartition(":")[2]))
                assert await asyncio.wait_for(done.get(), LONG) == 2

                async def is_settled() -> bool:
                    return all(job.status is Status.SUCCEEDED for job in (await door.find()).jobs)

                await until(is_settled)
                worker.stop()
        await server.stop()
