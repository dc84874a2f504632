"""OpenQueue's published client, unchanged, against a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import httpx
import pytest
import pytest_asyncio
from openqueue import (
    AuthenticationError,
    JobNotFoundError,
    LeaseTokenError,
    OpenQueue,
    OpenQueueError,
    RateLimitError,
)
from openqueue.models import JobStatus

from penstock.core import bounds
from penstock.core.job import Status
from penstock.core.ports import Store
from penstock.queue import Queue
from penstock.testing import START, FakeClock
from support.service import ADMIN, serving
from support.stores import STORES

NO_JOB = "01890a5d-ac96-774b-bcce-b302099a8057"
ALL = ("produce", "work", "read")
"""What a token needs that does all that OpenQueue's did."""


class Client:
    """The published client, off the event loop: `await client("enqueue", …)`."""

    def __init__(self, url: str, token: str) -> None:
        self.published = OpenQueue(url, token)

    async def __call__(self, method: str, *given: Any, **named: Any) -> Any:
        return await asyncio.to_thread(getattr(self.published, method), *given, **named)


pytestmark = pytest.mark.asyncio(loop_scope="module")
the_module = pytest_asyncio.fixture(scope="module", loop_scope="module")
the_test = pytest_asyncio.fixture(loop_scope="module")
"""One server for all tests; each has a tenant of its own, and a clock that only goes forward."""


@pytest.fixture(scope="module")
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def now(clock: FakeClock) -> datetime:
    """The time at which the test begins."""
    return clock.now()


@pytest.fixture(scope="module", params=["memory", "postgres"])
def store_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@the_module
async def store(store_name: str, clock: FakeClock) -> AsyncIterator[Store]:
    store = STORES[store_name](clock)
    yield store
    await store.close()


@the_module
async def url(store: Store) -> AsyncIterator[str]:
    async with serving(store) as url:
        yield url


@pytest.fixture
def tenant(numbers: Iterator[int] = count()) -> str:  # noqa: B008
    return f"tenant-{next(numbers)}"


@pytest.fixture
def queue(store: Store, tenant: str) -> Queue:
    """The same jobs, as Python sees them."""
    return Queue(store, tenant=tenant)


@the_test
async def http(url: str, tenant: str) -> AsyncIterator[httpx.AsyncClient]:
    """The same service without the client."""
    headers = {"Authorization": f"Bearer {ADMIN}", "Penstock-Tenant": tenant}
    async with httpx.AsyncClient(base_url=url, headers=headers) as http:
        yield http


NewClient = Callable[..., Awaitable[Client]]


@the_test
async def new_client(url: str, http: httpx.AsyncClient) -> AsyncIterator[NewClient]:
    """Makes clients with tokens of their own."""
    made = []

    async def new_client(*scopes: str, tenant: str | None = None, **more: Any) -> Client:
        headers = {} if tenant is None else {"Penstock-Tenant": tenant}
        body = {"name": "client", "scopes": scopes or ALL, **more}
        answer = await http.post("/v1/tokens", json=body, headers=headers)
        assert answer.status_code == 201, answer.text
        made.append(Client(url, answer.json()["secret"]))
        return made[-1]

    yield new_client
    for client in made:
        client.published.close()


@the_test
async def client(new_client: NewClient) -> Client:
    return await new_client()


class TestProducing:
    async def test_enqueues_a_job(self, client: Client, queue: Queue) -> None:
        id = await client("enqueue", "emails", {"to": "ada"}, priority=7, max_retries=2)
        asked = (await queue.get(id)).asked
        assert (asked.queue, asked.payload, asked.priority) == ("emails", '{"to":"ada"}', 7)
        assert (asked.max_attempts, asked.type) == (3, "openqueue")

    @pytest.mark.parametrize(
        "run_at", ["2026-01-02T12:00:00Z", "2026-01-02T12:00:00", "2026-01-02T14:00:00+02:00"]
    )
    async def test_takes_a_time_to_run_at(self, client: Client, queue: Queue, run_at: str) -> None:
        id = await client("enqueue", "emails", {}, run_at=run_at)
        assert (await queue.get(id)).run_at == START + timedelta(days=1)
        assert await client("lease", "emails", "w") is None

    async def test_enqueues_many_in_order(self, client: Client, queue: Queue) -> None:
        jobs = [
            {"queue_name": f"q{n}", "payload": {"n": n}, "run_at": "2026-01-03T00:00:00Z"} for n in range(3)
        ]
        ids = await client("enqueue_batch", [*jobs, {"queue_name": "q3", "payload": {"n": 3}}])
        assert [(await queue.get(id)).payload for id in ids] == [f'{{"n":{n}}}' for n in range(4)]
        assert await client("enqueue_batch", []) == []

    async def test_refuses_a_whole_batch_for_one_bad_job(self, client: Client, queue: Queue) -> None:
        good = {"queue_name": "emails", "payload": {}}
        for bad in ({"queue_name": "no spaces", "payload": {}}, {"queue_name": "emails", "payload": "text"}):
            with pytest.raises(httpx.HTTPStatusError) as refused:
                await client("enqueue_batch", [good, bad])
            assert refused.value.response.status_code == 422
        assert (await queue.find()).jobs == ()

    @pytest.mark.parametrize(
        "bad",
        [
            {"queue_name": "no spaces"},
            {"payload": []},
            {"priority": 10**6},
            {"max_retries": -1},
            {"run_at": "tomorrow"},
            {"run_at": "1900-01-01T00:00:00Z"},
        ],
        ids=str,
    )
    async def test_answers_422_to_what_cannot_be_a_job(
        self, client: Client, queue: Queue, bad: dict[str, Any]
    ) -> None:
        with pytest.raises(httpx.HTTPStatusError) as refused:
            await client("enqueue", **{"queue_name": "emails", "payload": {}, **bad})
        assert refused.value.response.status_code == 422
        assert refused.value.response.json()["detail"]
        assert (await queue.find()).jobs == ()

    async def test_leaves_unread_what_it_does_not_know(self, http: httpx.AsyncClient) -> None:
        answer = await http.post("/jobs", json={"payload": {}, "colour": "green"})
        assert answer.status_code == 201
        assert answer.json()["status"] == "queued"

    async def test_takes_a_job_type_for_our_own_workers(self, http: httpx.AsyncClient, queue: Queue) -> None:
        answer = await http.post("/jobs", json={"payload": {}, "type": "email.send"})
        assert (await queue.get(answer.json()["job_id"])).type == "email.send"

    async def test_answers_with_the_same_job_to_the_same_key(self, http: httpx.AsyncClient) -> None:
        answers = [
            await http.post("/jobs", json={"payload": {}}, headers={"Idempotency-Key": "k"}) for _ in "ab"
        ]
        assert answers[0].json()["job_id"] == answers[1].json()["job_id"]

    async def test_cancels_a_pending_job(self, client: Client, queue: Queue) -> None:
        id = await client("enqueue", "emails", {})
        assert await client("cancel_job", id) is True
        assert await client("get_status", id) == "cancelled"
        assert (await queue.history(id)).changes[0].actor == "token:client"

    async def test_cancels_nothing_that_is_not_pending(self, client: Client, queue: Queue) -> None:
        id = await client("enqueue", "emails", {})
        leased = await client("lease", "emails", "w")
        assert await client("cancel_job", id) is False
        assert not (await queue.get(id)).cancel_requested
        await client("ack", id, leased.lease_token)
        assert await client("cancel_job", id) is False
        assert await client("cancel_job", NO_JOB) is False
        assert await client("get_status", id) == "completed"


class TestWorking:
    async def test_leases_null_from_an_empty_queue(self, client: Client, http: httpx.AsyncClient) -> None:
        assert await client("lease", "emails", "w") is None
        answer = await http.post("/queues/emails/lease", json={"worker_id": "w"})
        assert (answer.status_code, answer.text) == (200, "null")

    async def test_leases_a_job_and_completes_it(
        self, client: Client, clock: FakeClock, now: datetime
    ) -> None:
        id = await client("enqueue", "emails", {"to": "ada"})
        leased = await client("lease", "emails", "worker-1", lease_seconds=60)
        assert (leased.job.id, leased.job.queue_name) == (id, "emails")
        assert leased.job.payload == {"to": "ada"}
        assert leased.job.status is JobStatus.PROCESSING
        assert leased.lease_expires_at == now + timedelta(seconds=60)
        clock.advance(seconds=1)
        assert await client("ack", id, leased.lease_token, result={"sent": True})
        job = await client("get_job", id)
        assert (job.status, job.result, job.error_text) == (JobStatus.COMPLETED, {"sent": True}, None)
        assert (job.retry_count, job.max_retries) == (0, 3)
        assert (job.created_at, job.started_at) == (now, now)
        assert job.finished_at == job.updated_at == now + timedelta(seconds=1)

    async def test_leases_by_priority_then_age(self, client: Client) -> None:
        ids = [await client("enqueue", "emails", {}, priority=p) for p in (1, 5, 5)]
        got = [(await client("lease", "emails", "w")).job.id for _ in ids]
        assert got == [ids[1], ids[2], ids[0]]

    async def test_leases_jobs_of_any_type(self, client: Client, queue: Queue) -> None:
        enqueued = await queue.enqueue("email.send", {"to": "ada"}, queue="a/b")
        leased = await client("lease", "a/b", "w")
        assert leased.job.id == enqueued.id
        assert leased.job.max_retries is None

    async def test_acks_without_a_result(self, client: Client) -> None:
        id = await client("enqueue", "emails", {})
        leased = await client("lease", "emails", "w")
        assert await client("ack", id, leased.lease_token)
        assert (await client("get_job", id)).result is None

    async def test_tries_again_after_one_two_four_seconds(
        self, client: Client, clock: FakeClock, now: datetime
    ) -> None:
        id = await client("enqueue", "emails", {}, max_retries=3)
        for number, wait in enumerate((1, 2, 4)):
            leased = await client("lease", "emails", "w")
            assert leased.job.retry_count == number
            assert await client("nack", id, leased.lease_token, f"boom {number}")
            job = await client("get_job", id)
            assert (job.status, job.retry_count) == (JobStatus.PENDING, number + 1)
            assert (job.error_text, job.finished_at) == (f"boom {number}", None)
            assert job.started_at == now
            clock.advance(seconds=wait - 0.001)
            assert await client("lease", "emails", "w") is None
            clock.advance(seconds=0.001)
        leased = await client("lease", "emails", "w")
        await client("nack", id, leased.lease_token, "boom for good")
        job = await client("get_job", id)
        assert (job.status, job.retry_count, job.max_retries) == (JobStatus.DEAD, 3, 3)
        assert (job.error_text, job.finished_at) == ("boom for good", clock.now())

    async def test_says_why_a_job_is_dead(self, client: Client, http: httpx.AsyncClient) -> None:
        told = []
        for retry in (True, False):
            id = await client("enqueue", "emails", {}, max_retries=0 if retry else 3)
            leased = await client("lease", "emails", "w")
            await client("nack", id, leased.lease_token, "no", retry=retry)
            detail = (await http.get(f"/jobs/{id}/detail")).json()
            assert detail["dead_at"] == detail["finished_at"]
            told.append((detail["status"], detail["dead_reason"]))
        assert told == [("dead", "max_retries_exhausted"), ("dead", "retry_disabled")]

    async def test_shows_held_jobs_as_dead(self, client: Client, queue: Queue) -> None:
        enqueued = await queue.enqueue("t", queue="emails", max_attempts=1, on_exhausted="hold")
        leased = await client("lease", "emails", "w")
        await client("nack", enqueued.id, leased.lease_token, "no")
        assert (await queue.get(enqueued.id)).status is Status.HELD
        assert await client("get_status", enqueued.id) == "dead"
        assert [job.id for job in (await client("list_jobs", status="dead")).items] == [enqueued.id]

    async def test_a_heartbeat_keeps_the_lease(self, client: Client, clock: FakeClock) -> None:
        id = await client("enqueue", "emails", {})
        leased = await client("lease", "emails", "w", lease_seconds=10)
        clock.advance(seconds=9)
        assert await client("heartbeat", id, leased.lease_token, lease_seconds=20)
        clock.advance(seconds=19)
        assert await client("lease", "emails", "other") is None
        assert await client("ack", id, leased.lease_token)

    async def test_a_stale_token_changes_nothing(
        self, client: Client, clock: FakeClock, http: httpx.AsyncClient
    ) -> None:
        id = await client("enqueue", "emails", {})
        first = await client("lease", "emails", "first", lease_seconds=10)
        clock.advance(seconds=10)
        second = await client("lease", "emails", "second")
        assert second.job.id == id
        assert second.lease_token != first.lease_token
        for token in (first.lease_token, "not-a-uuid", ""):
            with pytest.raises(LeaseTokenError):
                await client("ack", id, token, result={"by": "first"})
            with pytest.raises(LeaseTokenError):
                await client("nack", id, token, "boom")
            with pytest.raises(LeaseTokenError):
                await client("heartbeat", id, token)
        detail = (await http.get(f"/jobs/{id}/detail")).json()
        assert (detail["status"], detail["locked_by"], detail["lease_lost_count"]) == (
            "processing",
            "second",
            1,
        )
        assert "lease_token" not in detail  # it is the holder's alone

    async def test_a_lease_of_no_job_is_as_lost_as_any(self, client: Client) -> None:
        for method, *more in (("ack",), ("nack", "boom"), ("heartbeat",)):
            with pytest.raises(LeaseTokenError):
                await client(method, NO_JOB, "token", *more)

    @pytest.mark.parametrize("lease_seconds", [0, 3601, "soon"])
    async def test_answers_422_to_a_bad_lease_length(self, client: Client, lease_seconds: object) -> None:
        with pytest.raises(httpx.HTTPStatusError) as refused:
            await client("lease", "emails", "w", lease_seconds=lease_seconds)
        assert refused.value.response.status_code == 422


class TestLooking:
    async def test_knows_no_job_that_is_not_there(self, client: Client) -> None:
        for method in ("get_status", "get_job"):
            with pytest.raises(JobNotFoundError):
                await client(method, NO_JOB)

    async def test_answers_422_to_what_is_no_id(self, client: Client) -> None:
        for method, *more in (
            ("get_status",),
            ("get_job",),
            ("ack", "t"),
            ("nack", "t", "e"),
            ("cancel_job",),
        ):
            with pytest.raises(httpx.HTTPStatusError) as refused:
                await client(method, "not-a-valid-uuid", *more)
            assert refused.value.response.status_code == 422

    async def test_lists_by_queue_and_status(self, client: Client) -> None:
        ids = [await client("enqueue", queue, {}) for queue in ("a", "a", "b", "a")]
        leased = await client("lease", "a", "w")
        listed = await client("list_jobs", queue_name="a")
        assert [job.id for job in listed.items] == [ids[3], ids[1], ids[0]]
        assert (listed.total, listed.limit, listed.offset) == (3, 50, 0)
        pending = await client("list_jobs", queue_name="a", status="pending")
        assert ([job.id for job in pending.items], pending.total) == ([ids[3], ids[1]], 2)
        processing = await client("list_jobs", status="processing")
        assert ([job.id for job in processing.items], processing.total) == ([leased.job.id], 1)
        assert (await client("list_jobs")).total == 4
        assert (await client("list_jobs", status="failed")).items == []
        assert (await client("list_jobs", queue_name="null")).items == []

    async def test_pages_by_offset(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bounds, "MOST_LISTED", 2)  # so that a page is read in several goes
        ids = await client("enqueue_batch", [{"queue_name": "a", "payload": {"n": n}} for n in range(7)])
        newest_first = ids[::-1]
        for offset in range(8):
            page = await client("list_jobs", queue_name="a", limit=3, offset=offset)
            assert [job.id for job in page.items] == newest_first[offset : offset + 3]
            assert (page.total, page.offset) == (7, offset)

    @pytest.mark.parametrize(
        "bad",
        [{"limit": 201}, {"limit": 0}, {"offset": -1}, {"offset": 10_001}, {"status": "asleep"}],
        ids=str,
    )
    async def test_answers_422_to_a_page_it_does_not_turn_to(
        self, client: Client, bad: dict[str, Any]
    ) -> None:
        with pytest.raises(httpx.HTTPStatusError) as refused:
            await client("list_jobs", **bad)
        assert refused.value.response.status_code == 422

    async def test_counts_by_queue(
        self, client: Client, http: httpx.AsyncClient, clock: FakeClock, now: datetime
    ) -> None:
        ids = [await client("enqueue", "a", {}, max_retries=0) for _ in range(5)]
        await client("enqueue", "b", {}, run_at="2026-06-01T00:00:00Z")
        for act in ("ack", "nack", "keep"):
            leased = await client("lease", "a", "w")
            if act == "ack":
                await client("ack", leased.job.id, leased.lease_token)
            elif act == "nack":
                await client("nack", leased.job.id, leased.lease_token, "boom")
        await client("cancel_job", ids[3])
        clock.advance(seconds=5)
        a, b = await client("get_queue_stats")
        assert (a.queue_name, a.pending, a.processing, a.completed) == ("a", 1, 1, 1)
        assert (a.failed, a.cancelled, a.total) == (0, 1, 5)
        assert a.oldest_pending_created_at == now
        assert (b.queue_name, b.pending, b.total) == ("b", 1, 1)
        assert b.oldest_pending_created_at == clock.now()
        # The published client leaves `dead` unread.
        assert [told["dead"] for told in (await http.get("/dashboard/queues")).json()] == [1, 0]


class TestRefusals:
    CALLS: tuple[tuple[Any, ...], ...] = (
        ("enqueue", "q", {}), ("enqueue_batch", []), ("get_status", NO_JOB), ("get_job", NO_JOB), ("list_jobs",),
        ("cancel_job", NO_JOB), ("lease", "q", "w"), ("ack", NO_JOB, "t"), ("nack", NO_JOB, "t", "e"),
        ("heartbeat", NO_JOB, "t"), ("get_queue_stats",),
    )  # fmt: skip

    async def test_lets_nobody_in_without_a_good_token(self, url: str) -> None:
        stranger = Client(url, "pst_nobody")
        for call in self.CALLS:
            with pytest.raises(AuthenticationError):
                await stranger(*call)
        stranger.published.close()

    async def test_answers_403_without_the_scope(self, new_client: NewClient) -> None:
        producer = await new_client("produce")
        with pytest.raises(httpx.HTTPStatusError) as refused:
            await producer("lease", "emails", "w")
        assert refused.value.response.status_code == 403

    async def test_keeps_to_the_rate_of_a_token(self, new_client: NewClient) -> None:
        client = await new_client(rate={"limit": 2, "per": 3600, "burst": 2})
        for _ in range(2):
            await client("enqueue", "emails", {})
        with pytest.raises(RateLimitError):
            await client("enqueue", "emails", {})

    async def test_hides_the_jobs_of_other_tenants(self, client: Client, new_client: NewClient) -> None:
        id = await client("enqueue", "emails", {})
        leased = await client("lease", "emails", "w")
        other = await new_client(tenant="globex")
        for method in ("get_status", "get_job"):
            with pytest.raises(JobNotFoundError):
                await other(method, id)
        with pytest.raises(LeaseTokenError):
            await other("ack", id, leased.lease_token)
        assert await other("cancel_job", id) is False
        assert (await other("list_jobs")).total == 0
        assert await other("get_queue_stats") == []

    async def test_says_that_the_service_fails(
        self, client: Client, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def broken(*_: object) -> Any:
            raise RuntimeError("planted")

        monkeypatch.setattr(store, "queues", broken)
        with pytest.raises(OpenQueueError, match="Server error: 500"):
            await client("get_queue_stats")


async def test_every_error_of_the_client_is_raised_here() -> None:
    """So that a new version of it with more of them is noticed."""
    assert {kind.__name__ for kind in OpenQueueError.__subclasses__()} == {
        "AuthenticationError", "JobNotFoundError", "LeaseTokenError", "RateLimitError",
    }  # fmt: skip
