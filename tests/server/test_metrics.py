"""What the service tells Prometheus: its own counters, and what the store holds, looked at seldom."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

import penstock
from penstock.core.codec import JsonText
from penstock.core.commands import Ack, Discard, Nack, QueueView, Release, Settle, Settled
from penstock.core.errors import JobNotFound, LeaseLost, PenstockError, StoreUnavailable
from penstock.core.job import JobId, LeaseToken, Status
from penstock.core.ports import Store
from penstock.core.registry import Entry, PutEntry
from penstock.queue import Queue
from penstock.server import metrics as module
from penstock.server.metrics import ServiceMetrics
from penstock.stores.memory import MemoryStore
from penstock.testing import FakeClock
from support.postgres import EmptyPostgresStore

LONG = 30.0
ID, TOKEN = JobId("0198f0a0-0000-7000-8000-000000000001"), LeaseToken("t")

Sample = tuple[str, frozenset[tuple[str, str]]]


class Watched(MemoryStore):
    """A store that counts how often it is looked at, and answers when, and as, it is told to."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.looks = 0
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_answer.set()
        self.error: Exception | None = None

    async def queues(self, tenant: str) -> list[QueueView]:
        self.looks += 1
        self.asked.set()
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return await super().queues(tenant)


class Steady:
    """A monotonic clock that stands still until it is moved."""

    seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def steady() -> Steady:
    return Steady()


@pytest.fixture
async def store(clock: FakeClock) -> Watched:
    store = Watched(clock)
    await Queue(store).enqueue("a", queue="emails")
    return store


@pytest.fixture
async def metrics(steady: Steady) -> AsyncIterator[ServiceMetrics]:
    metrics = ServiceMetrics(clock=steady)
    yield metrics
    await metrics.close()


async def read(metrics: ServiceMetrics, store: Store) -> dict[Sample, float]:
    """What Prometheus makes of it; no sample may be there twice."""
    found: dict[Sample, float] = {}
    for family in text_string_to_metric_families((await metrics.render(store)).decode()):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found
            found[key] = sample.value
    return found


def key(name: str, **labels: str) -> Sample:
    return name, frozenset(labels.items())


DEPTH = key("penstock_queue_depth", tenant="default", queue="emails", status="queued")


class TestCounters:
    async def test_are_told_by_queue(self, metrics: ServiceMetrics, store: Store) -> None:
        metrics.submitted("emails", 3)
        metrics.submitted("emails")
        metrics.submitted("reports", 1_234_567)
        metrics.replayed("emails")
        metrics.leased("emails", 2)
        metrics.lease_lost("emails")
        found = await read(metrics, store)
        assert found[key("penstock_jobs_submitted_total", queue="emails")] == 4
        assert found[key("penstock_jobs_submitted_total", queue="reports")] == 1_234_567
        assert found[key("penstock_jobs_idempotent_replays_total", queue="emails")] == 1
        assert found[key("penstock_jobs_leased_total", queue="emails")] == 2
        assert found[key("penstock_jobs_lease_lost_total", queue="emails")] == 1

    @pytest.mark.parametrize("name", ['a"b\\c\nd', "\\n", '"', "été"])
    async def test_escape_what_people_call_things(
        self, metrics: ServiceMetrics, store: Store, name: str
    ) -> None:
        metrics.submitted(name)
        metrics.request("GET", name, 200, 0.1)
        found = await read(metrics, store)
        assert found[key("penstock_jobs_submitted_total", queue=name)] == 1
        assert found[key("penstock_http_request_seconds_count", method="GET", route=name)] == 1

    async def test_tell_a_bounded_number_of_queues_apart(self, metrics: ServiceMetrics, store: Store) -> None:
        for number in range(module.MOST_QUEUES + 20):
            metrics.submitted(f"q{number}")
        metrics.submitted("q0")
        found = await read(metrics, store)
        told = {
            labels: value
            for (name, labels), value in found.items()
            if name == "penstock_jobs_submitted_total"
        }
        assert len(told) == module.MOST_QUEUES + 1
        assert sum(told.values()) == module.MOST_QUEUES + 21, "none is lost"
        assert told[frozenset({("queue", "other")})] == 20
        assert told[frozenset({("queue", "q0")})] == 2

    @pytest.mark.parametrize(
        ("settle", "answer", "counted"),
        [
            (Ack(ID, TOKEN), Settled(ID, Status.SUCCEEDED, None), {"succeeded"}),
            (Nack(ID, TOKEN, "x"), Settled(ID, Status.QUEUED, None), {"failed", "retried"}),
            (Nack(ID, TOKEN, "x"), Settled(ID, Status.DEAD, None), {"failed", "dead"}),
            (Nack(ID, TOKEN, "x"), Settled(ID, Status.HELD, None), {"failed"}),
            (Release(ID, TOKEN), Settled(ID, Status.QUEUED, None), set()),
            (Discard(ID, TOKEN), Settled(ID, Status.CANCELLED, None), set()),
            (Ack(ID, TOKEN), LeaseLost(ID), {"lease_lost"}),
            (Nack(ID, TOKEN, "x"), LeaseLost(ID), {"lease_lost"}),
            (Ack(ID, TOKEN), JobNotFound(ID), set()),
        ],
    )
    async def test_tell_how_attempts_ended(
        self,
        metrics: ServiceMetrics,
        store: Store,
        settle: Settle,
        answer: Settled | PenstockError,
        counted: set[str],
    ) -> None:
        metrics.settled(settle, answer)
        metrics.settled(settle, answer, "emails")
        found = await read(metrics, store)
        jobs = {each: value for each, value in found.items() if each[0].startswith("penstock_jobs_")}
        assert jobs == {
            key(f"penstock_jobs_{name}_total", queue=queue): 1 for name in counted for queue in ("", "emails")
        }

    async def test_without_labels_are_there_before_the_first(
        self, metrics: ServiceMetrics, store: Store
    ) -> None:
        found = await read(metrics, store)
        assert found[key("penstock_rate_limited_total")] == 0
        assert found[key("penstock_overloaded_total")] == 0
        metrics.rate_limited()
        metrics.overloaded()
        metrics.overloaded()
        found = await read(metrics, store)
        assert found[key("penstock_rate_limited_total")] == 1
        assert found[key("penstock_overloaded_total")] == 2


class TestRequests:
    async def test_are_counted_and_measured(self, metrics: ServiceMetrics, store: Store) -> None:
        for status, seconds in ((201, 0.002), (201, 0.0025), (422, 0.2), (503, 90.0)):
            metrics.request("POST", "/v1/jobs", status, seconds)
        metrics.in_flight += 2
        found = await read(metrics, store)
        where = {"method": "POST", "route": "/v1/jobs"}
        assert found[key("penstock_http_requests_total", status="201", **where)] == 2
        assert found[key("penstock_http_requests_total", status="503", **where)] == 1
        assert found[key("penstock_http_in_flight")] == 2
        name = "penstock_http_request_seconds"
        assert found[key(f"{name}_count", **where)] == 4
        assert found[key(f"{name}_sum", **where)] == pytest.approx(90.2045)
        buckets = [
            found[key(f"{name}_bucket", le=str(bound), **where)] for bound in (*module.SECONDS, "+Inf")
        ]
        assert buckets == sorted(buckets), "each holds those below as well"
        assert found[key(f"{name}_bucket", le="0.001", **where)] == 0
        assert found[key(f"{name}_bucket", le="0.0025", **where)] == 2, "a bound belongs to its bucket"
        assert found[key(f"{name}_bucket", le="60.0", **where)] == 3
        assert buckets[-1] == 4

    async def test_of_unheard_of_methods_and_no_route_are_one(
        self, metrics: ServiceMetrics, store: Store
    ) -> None:
        for number in range(5):
            metrics.request(f"BREW{number}", None, 404, 0.001)
        found = await read(metrics, store)
        assert found[key("penstock_http_requests_total", method="other", route="other", status="404")] == 5

    async def test_over_many_routes_stay_bounded(
        self, store: Store, steady: Steady, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MOST_ROUTES", 2)
        metrics = ServiceMetrics(clock=steady)
        for number in range(5):
            metrics.request("GET", f"/{number}", 200, 1.0)
        found = await read(metrics, store)
        other = {"method": "other", "route": "other"}
        assert found[key("penstock_http_request_seconds_count", **other)] == 3
        assert found[key("penstock_http_request_seconds_sum", **other)] == 3.0
        assert found[key("penstock_http_requests_total", status="other", **other)] == 3


class PostgresWithWorkers(EmptyPostgresStore):
    async def entries(self, tenant: str | None, kind: str, names: object = None) -> list[Entry]:
        now = await self.now()
        return [Entry(kind, "default", name, 1, JsonText("{}"), now) for name in ("w1", "w2")]


class TestFigures:
    @pytest.fixture(params=["memory", "postgres"])
    async def held(self, request: pytest.FixtureRequest, clock: FakeClock) -> AsyncIterator[Store]:
        if request.param == "postgres":
            store: Store = PostgresWithWorkers(clock)
        else:
            store = MemoryStore(clock)
            put = [PutEntry("worker", name, JsonText("{}"), seconds=600) for name in ("w1", "w2")]
            await store.put_entries("default", put)
        yield store
        await store.close()

    async def test_tell_what_the_store_holds(
        self, metrics: ServiceMetrics, held: Store, clock: FakeClock
    ) -> None:
        queue, other = Queue(held), Queue(held, tenant="other-tenant")
        for number in range(3):
            await queue.enqueue("a", {"n": number}, queue="emails")
        await queue.enqueue("a", queue="later", delay=timedelta(hours=1))
        await other.enqueue("a", queue="emails")
        await other.pause("emails", "for a test")
        clock.advance(seconds=90)
        await queue.lease("emails", worker="w1")
        found = await read(metrics, held)

        def depth(tenant: str, queue: str, status: str) -> float:
            return found[key("penstock_queue_depth", tenant=tenant, queue=queue, status=status)]

        assert depth("default", "emails", "queued") == 2
        assert depth("default", "emails", "running") == 1
        assert depth("default", "emails", "dead") == 0, "so that the first dead job is an increase"
        assert depth("default", "later", "queued") == 1
        assert depth("other-tenant", "emails", "queued") == 1
        oldest = "penstock_queue_oldest_seconds"
        assert found[key(oldest, tenant="default", queue="emails")] == 90
        assert found[key(oldest, tenant="default", queue="later")] == 0, "not due yet"
        assert found[key("penstock_queue_paused", tenant="default", queue="emails")] == 0
        assert found[key("penstock_queue_paused", tenant="other-tenant", queue="emails")] == 1
        assert found[key("penstock_workers", tenant="default")] == 2
        assert found[key("penstock_workers", tenant="other-tenant")] == 0, "none is worth telling"

    async def test_sum_what_is_beyond_the_bounds(
        self, metrics: ServiceMetrics, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MOST_QUEUES", 2)
        monkeypatch.setattr(module, "MOST_TENANTS", 1)
        store = MemoryStore(clock)
        for tenant in ("a", "b", "c"):
            for name in ("p", "q"):
                await Queue(store, tenant=tenant).enqueue("a", queue=name)
            clock.advance(seconds=10)
        await Queue(store, tenant="c").pause("q", "for a test")
        found = await read(metrics, store)
        depths = {
            dict(labels)["tenant"] + "/" + dict(labels)["queue"]: value
            for (name, labels), value in found.items()
            if name == "penstock_queue_depth" and ("status", "queued") in labels
        }
        assert depths == {"a/p": 1, "a/q": 1, "other/other": 4}
        assert found[key("penstock_queue_oldest_seconds", tenant="other", queue="other")] == 20
        assert found[key("penstock_queue_paused", tenant="other", queue="other")] == 1
        assert {labels for name, labels in found if name == "penstock_workers"} == {
            frozenset({("tenant", "a")}),
            frozenset({("tenant", "other")}),
        }

    async def test_are_gathered_at_most_once_in_a_while(
        self, metrics: ServiceMetrics, store: Watched, steady: Steady
    ) -> None:
        for _ in range(5):
            assert (await read(metrics, store))[DEPTH] == 1
        assert store.looks == 1
        await Queue(store).enqueue("a", {"n": 2}, queue="emails")
        steady.seconds += module.GATHER_SECONDS - 0.1
        found = await read(metrics, store)
        assert found[DEPTH] == 1
        assert found[key("penstock_figures_age_seconds")] == pytest.approx(9.9)
        steady.seconds += 0.1
        found = await read(metrics, store)
        assert found[DEPTH] == 2
        assert found[key("penstock_figures_age_seconds")] == 0
        assert store.looks == 2

    async def test_are_gathered_once_for_all_who_ask_at_once(
        self, metrics: ServiceMetrics, store: Watched
    ) -> None:
        store.may_answer.clear()
        asking = [asyncio.create_task(read(metrics, store)) for _ in range(5)]
        await asyncio.wait_for(store.asked.wait(), LONG)
        asking[0].cancel()  # the one who began the look hangs up
        store.may_answer.set()
        for found in await asyncio.gather(*asking[1:]):
            assert found[DEPTH] == 1
        assert store.looks == 1

    async def test_hold_nobody_up(
        self, metrics: ServiceMetrics, store: Watched, steady: Steady, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await read(metrics, store)
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 0)
        store.may_answer.clear()
        await Queue(store).enqueue("a", {"n": 2}, queue="emails")
        steady.seconds += 60
        found = await read(metrics, store)
        assert found[DEPTH] == 1, "what was known before"
        assert found[key("penstock_figures_age_seconds")] == 60
        monkeypatch.setattr(module, "PATIENCE_SECONDS", LONG)
        store.may_answer.set()
        assert (await read(metrics, store))[DEPTH] == 2
        assert store.looks == 2

    async def test_rest_the_longer_the_longer_they_take(
        self, metrics: ServiceMetrics, store: Watched, steady: Steady
    ) -> None:
        store.may_answer.clear()
        asking = asyncio.create_task(read(metrics, store))
        await asyncio.wait_for(store.asked.wait(), LONG)
        steady.seconds += 20
        store.may_answer.set()
        await asking
        steady.seconds += 20 * module.REST - 1
        assert (await read(metrics, store))[DEPTH] == 1, "old, as their age says, but not wrong"
        assert store.looks == 1
        steady.seconds += 1
        await read(metrics, store)
        assert store.looks == 2

    async def test_that_cannot_be_gathered_take_no_counter_with_them(
        self,
        metrics: ServiceMetrics,
        store: Watched,
        steady: Steady,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        await read(metrics, store)
        metrics.submitted("emails")
        store.error = StoreUnavailable("the store", "it is away")
        steady.seconds += module.GATHER_SECONDS
        found = await read(metrics, store)
        assert found[key("penstock_jobs_submitted_total", queue="emails")] == 1
        assert found[key("penstock_figures_failures_total")] == 1
        assert found[DEPTH] == 1, "still shown for a while"
        assert "it is away" in caplog.text
        steady.seconds += module.STALE_SECONDS
        assert DEPTH not in await read(metrics, store), "a gap is better than a lie"
        store.error = None
        steady.seconds += module.GATHER_SECONDS
        assert (await read(metrics, store))[DEPTH] == 1

    async def test_give_up_a_look_that_takes_too_long(
        self, metrics: ServiceMetrics, store: Watched, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "LONGEST_SECONDS", 0.01)
        store.may_answer.clear()
        found = await read(metrics, store)
        assert found[key("penstock_figures_failures_total")] == 1
        assert found[key("penstock_figures_age_seconds")] == float("inf")

    async def test_end_with_the_service(self, store: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 0)
        monkeypatch.setattr(module, "LONGEST_SECONDS", 100 * LONG)
        metrics = ServiceMetrics()
        store.may_answer.clear()
        await metrics.render(store)
        await asyncio.wait_for(store.asked.wait(), LONG)
        await asyncio.wait_for(metrics.close(), LONG)
        assert "penstock figures" not in {task.get_name() for task in asyncio.all_tasks()}


class TestTheWhole:
    async def test_is_named_as_is_the_custom(self, metrics: ServiceMetrics, store: Store) -> None:
        text = (await metrics.render(store)).decode()
        kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        assert len(kinds) == text.count("# TYPE ") == text.count("# HELP "), "each is declared once"
        for name, kind in kinds.items():
            assert re.fullmatch(r"(penstock|process)_[a-z_]+", name)
            assert not name.startswith("penstock_worker_"), "those are a worker's own"
            assert name.endswith("_total") is (kind == "counter"), name

    async def test_says_what_runs_and_how_it_is(self, metrics: ServiceMetrics, store: Store) -> None:
        found = await read(metrics, store)
        [about] = [dict(labels) for name, labels in found if name == "penstock_build_info"]
        assert about["version"] == penstock.__version__
        assert found[key("penstock_wakeups_healthy")] == 1
        assert found[key("process_cpu_seconds_total")] > 0
