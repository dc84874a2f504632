"""Several stores on one PostgreSQL, each with its own connections, all working at once: the rules hold between them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import asyncpg
import pytest

from penstock import LeaseLost, Queue, Rate
from penstock.core.job import Outcome, Status
from penstock.stores.postgres.store import PostgresStore
from support.postgres import TABLES, server_url

STORES = 3
WORKERS = 4


@pytest.fixture
async def queues() -> AsyncIterator[list[Queue]]:
    """The same tenant seen through several stores."""
    connection = await asyncpg.connect(server_url())
    await connection.execute("; ".join(f"DELETE FROM penstock.{table}" for table in TABLES))
    await connection.close()
    stores = [PostgresStore(server_url(), connections=WORKERS + 1) for _ in range(STORES)]
    yield [Queue(store) for store in stores]
    for store in stores:
        await store.close()


@pytest.fixture
async def database() -> AsyncIterator[Any]:
    connection = await asyncpg.connect(server_url())
    yield connection
    await connection.close()


class Crew:
    """Workers on every store that lease, settle at random, and note what they saw."""

    def __init__(self, queues: list[Queue], seed: int, name: str = "work") -> None:
        self.queues = queues
        self.dice = Random(seed)
        self.name = name
        self.most_running = Counter[str]()
        self.running = Counter[str]()
        self.ran: list[str] = []
        self.tokens: set[str] = set()

    async def work(self, ways: list[str]) -> None:
        await asyncio.gather(
            *(self._worker(queue, f"{number}", ways) for queue in self.queues for number in range(WORKERS))
        )

    async def _worker(self, queue: Queue, name: str, ways: list[str]) -> None:
        idle = 0
        while idle < 3:
            leased = await queue.lease(self.name, worker=name, limit=self.dice.randint(1, 5))
            idle = 0 if leased else idle + 1
            for one in leased:
                assert one.token not in self.tokens
                self.tokens.add(one.token)
                self._start(one.job.asked.key, one.job.asked.ordering_key)
            for one in leased:
                way = self.dice.choice(ways)
                self.ran.append(one.id)
                # Counted as ended before the store knows: what the store lets run must never exceed what we count.
                self._stop(one.job.asked.key, one.job.asked.ordering_key)
                if way == "ack":
                    await queue.ack(one)
                elif way == "nack":
                    await queue.nack(one, "no", retry_in=0)
                elif way == "release":
                    await queue.release(one)
                elif way == "discard":
                    await queue.discard(one)
            if not leased:
                await asyncio.sleep(0)

    def _start(self, key: str | None, ordering_key: str | None) -> None:
        for name in ("all", f"key {key}", f"order {ordering_key}"):
            self.running[name] += 1
            self.most_running[name] = max(self.most_running[name], self.running[name])

    def _stop(self, key: str | None, ordering_key: str | None) -> None:
        for name in ("all", f"key {key}", f"order {ordering_key}"):
            self.running[name] -= 1


async def everything_ended(queue: Queue, database: Any, jobs: int) -> None:
    """Each job is in exactly one table, what was counted is what is there, and trails have no gap."""
    view = await queue.queue("work")
    actual: Counter[str] = Counter()
    for table in ("ready", "lease", "parked", "done"):
        status = {"ready": "'queued'", "lease": "'running'"}.get(table, "status")
        for row in await database.fetch(
            f"SELECT {status} AS status, count(*) AS n FROM penstock.{table} GROUP BY 1"
        ):
            actual[row["status"]] += row["n"]
    assert {status: number for status, number in view.counts.items() if number} == actual
    assert sum(actual.values()) == jobs
    assert set(actual) <= {Status.SUCCEEDED, Status.DEAD, Status.CANCELLED}
    async for job in queue.find_all():
        attempts = (await queue.history(job.id)).attempts
        assert [attempt.number for attempt in attempts] == list(range(1, job.leases + 1))
        final = [attempt for attempt in attempts if attempt.status is not Status.QUEUED]
        assert len(final) <= 1


class TestManyStores:
    async def test_every_job_runs_and_ends_once_when_all_goes_well(
        self, queues: list[Queue], database: Any
    ) -> None:
        await queues[0].enqueue_many([{"type": "t", "queue": "work"} for _ in range(300)])
        crew = Crew(queues, 1)
        await crew.work(["ack"])
        assert len(crew.ran) == len(set(crew.ran)) == 300
        await everything_ended(queues[0], database, 300)

    async def test_nothing_is_lost_or_counted_wrong_in_a_mixed_life(
        self, queues: list[Queue], database: Any
    ) -> None:
        dice = Random(2)
        for queue in queues:
            await queue.enqueue_many(
                [{"type": "t", "queue": "work", "priority": dice.choice([0, 5])} for _ in range(80)]
            )
        crew = Crew(queues, 2)
        await crew.work(["ack", "ack", "ack", "nack", "release", "discard"])
        await everything_ended(queues[0], database, 240)

    async def test_a_queue_never_runs_more_than_its_limit(self, queues: list[Queue], database: Any) -> None:
        await queues[0].configure("work", max_concurrency=3)
        await queues[0].enqueue_many([{"type": "t", "queue": "work"} for _ in range(100)])
        crew = Crew(queues, 3)
        await crew.work(["ack", "nack", "release"])
        await crew.work(["ack"])
        assert crew.most_running["all"] <= 3
        await everything_ended(queues[0], database, 100)

    async def test_a_key_never_runs_more_than_its_limit(self, queues: list[Queue], database: Any) -> None:
        await queues[0].configure("work", max_concurrency_per_key=1, fair=True)
        items = [{"type": "t", "queue": "work", "key": f"k{number % 5}"} for number in range(100)]
        await queues[0].enqueue_many(items)
        crew = Crew(queues, 4)
        await crew.work(["ack", "ack", "nack", "release"])
        await crew.work(["ack"])
        assert all(crew.most_running[f"key k{number}"] == 1 for number in range(5))
        await everything_ended(queues[0], database, 100)

    async def test_an_ordering_key_runs_one_at_a_time_and_in_order(
        self, queues: list[Queue], database: Any
    ) -> None:
        items = [{"type": "t", "queue": "work", "ordering_key": f"o{number % 4}"} for number in range(60)]
        asked = [queues[0].new(**item) for item in items]
        await asyncio.gather(
            *(queues[number % STORES].enqueue_many([job]) for number, job in enumerate(asked))
        )
        crew = Crew(queues, 5)
        await crew.work(["ack"])
        assert all(crew.most_running[f"order o{number}"] == 1 for number in range(4))
        jobs = {job.id: job async for job in queues[0].find_all()}
        for number in range(4):
            ran = [jobs[job_id] for job_id in crew.ran if jobs[job_id].asked.ordering_key == f"o{number}"]  # type: ignore[index]
            assert [job.id for job in ran] == [
                job.id for job in sorted(ran, key=lambda job: (job.scheduled_at, job.id))
            ]
        await everything_ended(queues[0], database, 60)

    async def test_a_job_is_left_alone_while_its_ordering_key_is_being_changed(
        self, queues: list[Queue], database: Any
    ) -> None:
        await queues[0].enqueue("t", queue="work", ordering_key="o")
        await queues[0].enqueue("t", queue="work", priority=-1)
        async with database.transaction():
            # What everyone holds who may let another job of the key in.
            await database.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended('default order work o', 0))"
            )
            [other] = await queues[1].lease("work", worker="w", limit=5)
            assert other.job.asked.ordering_key is None
        [ordered] = await queues[1].lease("work", worker="w", limit=5)
        assert ordered.job.asked.ordering_key == "o"

    async def test_a_job_that_a_claim_left_alone_is_not_hidden_from_the_next(
        self, queues: list[Queue], database: Any
    ) -> None:
        now = datetime.now(UTC)
        await queues[0].enqueue("t", queue="work", ordering_key="o", run_at=now - timedelta(hours=1))
        await queues[0].enqueue("t", queue="work", run_at=now - timedelta(minutes=1))
        async with database.transaction():
            await database.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended('default order work o', 0))"
            )
            [other] = await queues[1].lease("work", worker="w", limit=5)
            assert other.job.asked.ordering_key is None
        [ordered] = await queues[2].lease("work", worker="w", limit=5)
        assert ordered.job.asked.ordering_key == "o"

    async def test_a_claim_does_not_raise_the_floor_over_a_job_that_is_coming_in(
        self, queues: list[Queue], database: Any
    ) -> None:
        now = datetime.now(UTC)
        await queues[0].enqueue("t", queue="work", run_at=now - timedelta(minutes=1))
        async with database.transaction():
            # What everyone does who brings a job that is late, as the last thing before the commit.
            await database.execute(
                "SELECT penstock.hold($1, $2, $3, $4)", "default", ["work"], [0], [now - timedelta(hours=1)]
            )
            assert len(await queues[1].lease("work", worker="w")) == 1
        [floor] = await database.fetch(
            "SELECT floor <= $1 AS low FROM penstock.lane", now - timedelta(hours=1)
        )
        assert floor["low"]

    async def test_a_heartbeat_that_waited_for_a_cancel_is_heard(self, queues: list[Queue]) -> None:
        for _ in range(20):
            await queues[0].enqueue("t", queue="work")
            [leased] = await queues[0].lease("work", worker="w")
            await asyncio.gather(queues[1].cancel(leased.id), queues[2].heartbeat(leased))
            assert (await queues[2].heartbeat(leased)).cancel_requested
            await queues[0].discard(leased)

    async def test_a_child_that_comes_in_while_its_parent_is_cancelled_does_not_wait_for_ever(
        self, queues: list[Queue]
    ) -> None:
        for number in range(20):
            parent = await queues[0].enqueue("parent", queue="work")
            child, _ = await asyncio.gather(
                queues[1].enqueue("child", queue=f"children-{number}", parents=[parent.id]),
                queues[2].cancel(parent.id),
            )
            assert (await queues[0].get(child.id)).status is Status.CANCELLED

    async def test_a_unique_key_has_one_active_job_however_many_ask(self, queues: list[Queue]) -> None:
        answers = await asyncio.gather(
            *(queues[number % STORES].enqueue("t", queue="work", unique_key="u") for number in range(30))
        )
        assert len({answer.id for answer in answers}) == 1
        assert sum(answer.duplicate is None for answer in answers) == 1

    async def test_an_idempotency_key_has_one_answer_however_many_ask(self, queues: list[Queue]) -> None:
        answers = await asyncio.gather(
            *(queues[number % STORES].enqueue("t", queue="work", idempotency_key="i") for number in range(30))
        )
        assert len({answer.id for answer in answers}) == 1

    async def test_a_child_is_let_go_whether_its_parent_ends_before_or_after(
        self, queues: list[Queue]
    ) -> None:
        for number in range(20):
            parent = await queues[0].enqueue("parent", queue="work")
            [leased] = await queues[0].lease("work", worker="w")
            child, _ = await asyncio.gather(
                queues[1].enqueue("child", queue=f"children-{number}", parents=[parent.id]),
                queues[2].ack(leased),
            )
            assert (await queues[0].get(child.id)).status is Status.QUEUED

    async def test_a_settle_and_a_cancel_at_once_agree_on_what_happened(self, queues: list[Queue]) -> None:
        for _ in range(20):
            await queues[0].enqueue("t", queue="work")
            [leased] = await queues[0].lease("work", worker="w")
            settled, _cancelled = await asyncio.gather(
                queues[1].nack(leased, "no", retry_in=3600),
                queues[2].cancel(leased.id),
                return_exceptions=True,
            )
            assert not isinstance(settled, BaseException)
            job = await queues[0].get(leased.id)
            assert job.status is Status.CANCELLED

    async def test_only_one_of_two_settles_with_one_token_takes_effect(self, queues: list[Queue]) -> None:
        for _ in range(20):
            await queues[0].enqueue("t", queue="work")
            [leased] = await queues[0].lease("work", worker="w")
            answers = await asyncio.gather(
                queues[1].nack(leased, "no", retry=False), queues[2].ack(leased), return_exceptions=True
            )
            assert sum(isinstance(answer, LeaseLost) for answer in answers) == 1
            [attempt] = (await queues[0].history(leased.id)).attempts
            assert attempt.outcome in (Outcome.SUCCEEDED, Outcome.FAILED)

    async def test_a_rate_holds_between_all_of_them(self, queues: list[Queue]) -> None:
        await queues[0].configure("work", rate=Rate(5, per=3600, burst=5))
        await queues[0].enqueue_many([{"type": "t", "queue": "work"} for _ in range(40)])
        leased = await asyncio.gather(*(queue.lease("work", worker="w", limit=3) for queue in queues * 5))
        assert sum(map(len, leased)) == 5

    async def test_a_fire_time_makes_one_job_however_many_schedulers_fire(
        self, queues: list[Queue], database: Any
    ) -> None:
        await queues[0].put_schedule("tick", "* * * * * *", {"type": "t", "queue": "work"}, missed="one")
        await database.execute(
            "UPDATE penstock.schedule SET body = $1, next_fire_at = $2", *await _past(queues[0])
        )
        fired = await asyncio.gather(*(queue.fire_due() for queue in queues * 4))
        assert sum(len(one.jobs) for answers in fired for one in answers) == 1


async def _past(queue: Queue) -> tuple[str, Any]:
    """The schedule as if its fire time were long past."""
    import msgspec
    from msgspec.structs import replace

    schedule = await queue.schedule("tick")
    assert schedule.next_fire_at is not None
    past = schedule.next_fire_at.replace(year=schedule.next_fire_at.year - 1)
    return msgspec.json.encode(replace(schedule, next_fire_at=past)).decode(), past
