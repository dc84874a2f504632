"""The feed: what happened, each thing once and in one order, to whoever follows."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.core.errors import InvalidInput
from penstock.core.job import Status
from penstock.core.ports import Store
from penstock.core.registry import Event
from penstock.queue import Queue
from penstock.stores.memory import MemoryStore
from penstock.testing import START, FakeClock, counting_ids
from support.following import Follower, follow


def told(events: list[Event]) -> list[tuple[str, str, str]]:
    return [(event.kind, event.name, event.what) for event in events]


@pytest.fixture
async def follower(store: Store) -> Follower:
    return await follow(store)


class TestWhatIsTold:
    async def test_of_a_job_that_came_in(self, queue: Queue, follower: Follower) -> None:
        job = await queue.enqueue("email.send", queue="emails")
        [event] = await follower.hears(1)
        assert event == Event(event.cursor, START, "job", job.id, "enqueued", "emails", "email.send")

    async def test_of_an_attempt_that_ended(self, queue: Queue, follower: Follower, clock: FakeClock) -> None:
        job = await queue.enqueue("email.send", queue="emails")
        [leased] = await queue.lease("emails", worker="w1")
        clock.advance(seconds=3)
        await queue.ack(leased)
        [_, event] = await follower.hears(2)
        assert event == Event(
            event.cursor, clock.now(), "job", job.id, "succeeded", "emails", "email.send", Status.SUCCEEDED, 1, "w1",
            started_at=START, ready_at=START,
        )  # fmt: skip

    async def test_since_when_a_first_attempt_could_have_begun(
        self, queue: Queue, follower: Follower, clock: FakeClock
    ) -> None:
        await queue.enqueue("email.send", delay=5)
        clock.advance(seconds=7)
        for _ in range(2):
            [leased] = await queue.lease(worker="w1")
            await queue.snooze(leased, 0)
        [_, first, second] = await follower.hears(3)
        assert (first.started_at, first.ready_at) == (clock.now(), START + timedelta(seconds=5))
        assert (second.started_at, second.ready_at) == (clock.now(), None)

    async def test_why_an_attempt_failed(self, queue: Queue, follower: Follower) -> None:
        await queue.enqueue("email.send")
        [leased] = await queue.lease(worker="w1")
        await queue.nack(leased, "no such address", retry=False)
        [_, event] = await follower.hears(2)
        assert (event.what, event.status, event.error) == ("failed", Status.DEAD, "no such address")

    async def test_of_each_way_to_end_a_lease(
        self, queue: Queue, follower: Follower, clock: FakeClock
    ) -> None:
        job = await queue.enqueue("email.send", max_attempts=2)
        for end in (queue.release, lambda held: queue.snooze(held, 1), lambda held: queue.nack(held, "no")):
            [leased] = await queue.lease(worker="w1")
            await end(leased)
            clock.advance(hours=1)
        [leased] = await queue.lease(worker="w1", lease_seconds=5)
        clock.advance(seconds=6)
        events = await follower.hears(5)  # whoever looks finds the lease lost
        assert [event.name for event in events] == [job.id] * 5
        assert [(event.what, event.status, event.attempt) for event in events] == [
            ("enqueued", None, None),
            ("released", Status.QUEUED, 1),
            ("snoozed", Status.QUEUED, 2),
            ("failed", Status.QUEUED, 3),
            ("lost", Status.DEAD, 4),
        ]
        assert events[-1].at == clock.now() - timedelta(seconds=1)

    async def test_of_what_people_did_to_a_job(self, queue: Queue, follower: Follower) -> None:
        job = await queue.enqueue("email.send", queue="emails")
        await queue.cancel(job.id)
        await queue.redrive(job.id)
        _, cancelled, redriven = await follower.hears(3)
        assert cancelled == Event(
            cancelled.cursor, START, "job", job.id, "cancel", "emails", "email.send", Status.CANCELLED, actor="ada"
        )  # fmt: skip
        assert (redriven.what, redriven.status, redriven.actor) == ("redrive", Status.QUEUED, "ada")

    async def test_of_what_a_flow_decided(self, queue: Queue, follower: Follower) -> None:
        parent, other = await queue.enqueue("t"), await queue.enqueue("t", queue="other")
        child = await queue.enqueue("t", parents=[parent.id])
        orphan = await queue.enqueue("t", parents=[other.id])
        [leased] = await queue.lease(worker="w1")
        await queue.ack(leased)
        await queue.cancel(other.id)
        events = await follower.hears(8)
        assert told(events)[4:] == [
            ("job", parent.id, "succeeded"),
            ("job", child.id, "unblock"),
            ("job", other.id, "cancel"),
            ("job", orphan.id, "abandon"),
        ]
        assert events[-1].actor == "rule:flow"

    async def test_that_a_job_came_in_before_it_expired(
        self, queue: Queue, follower: Follower, clock: FakeClock
    ) -> None:
        late = await queue.enqueue("t", expires_at=START - timedelta(days=1))
        soon = await queue.enqueue("t", expires_in=5)
        clock.advance(seconds=5)
        assert told(await follower.hears(4)) == [
            ("job", late.id, "enqueued"),
            ("job", late.id, "expire"),
            ("job", soon.id, "enqueued"),
            ("job", soon.id, "expire"),
        ]

    async def test_of_queues_and_schedules(self, queue: Queue, follower: Follower, clock: FakeClock) -> None:
        await queue.pause("emails")
        await queue.put_schedule("daily", "* * * * *", {"type": "report.build"})
        clock.advance(minutes=1)
        [fired] = await queue.fire_due()
        await queue.drop_schedule("daily")
        events = await follower.hears(4)
        assert told(events) == [
            ("queue", "emails", "configure"),
            ("schedule", "daily", "put"),
            ("job", fired.jobs[0].id, "enqueued"),
            ("schedule", "daily", "drop"),
        ]
        assert [event.queue for event in events] == ["emails", None, "default", None]
        assert [event.actor for event in events] == ["ada", "ada", None, "ada"]

    async def test_nothing_of_what_was_refused_or_done_before(self, queue: Queue, follower: Follower) -> None:
        job = await queue.enqueue("t", {"a": 1})
        await queue.enqueue("t", {"a": 1}, id=job.id)
        with pytest.raises(InvalidInput):
            await queue.enqueue("")
        await queue.cancel(job.id)
        await queue.cancel(job.id)
        assert [event.what for event in await follower.hears(2)] == ["enqueued", "cancel"]

    async def test_nothing_of_what_came_before_one_began_to_follow(self, queue: Queue, store: Store) -> None:
        early = await follow(store)
        await queue.enqueue("t")
        await early.hears(1)
        late = await follow(store)
        job = await queue.enqueue("t")
        assert told(await late.hears(1)) == [("job", job.id, "enqueued")]


async def a_days_work(queue: Queue) -> int:
    """Things of all kinds, in batches and one by one; gives how many are told."""
    await queue.enqueue_many([{"type": "t"} for _ in range(7)])
    leased = await queue.lease(worker="w1", limit=5)
    await queue.settle_many([queue.acked(one) for one in leased[:3]])
    await queue.pause("default")
    await queue.settle_many([queue.nacked(leased[3], "no"), queue.acked(leased[4])])
    jobs = await queue.enqueue_many([{"type": "u", "unique_key": str(n)} for n in range(4)])
    await queue.cancel(jobs[1].id)  # type: ignore[union-attr]
    return 7 + 3 + 1 + 2 + 4 + 1


class TestWhereToGoOn:
    @pytest.mark.parametrize("limit", [1, 2, 3, 5, 17, 18, 19])
    async def test_in_pages_of_any_size_each_event_is_told_once_in_the_same_order(
        self, store: Store, queue: Queue, follower: Follower, limit: int
    ) -> None:
        start = follower.cursor
        whole = await follower.hears(await a_days_work(queue))
        assert await Follower(store, start).hears(len(whole), limit) == whole
        assert len({event.cursor for event in whole}) == len(whole)

    async def test_after_any_event_the_rest_is_told(
        self, store: Store, queue: Queue, follower: Follower
    ) -> None:
        whole = await follower.hears(await a_days_work(queue))
        for number, event in enumerate(whole, start=1):
            page = await store.events("default", after=event.cursor, limit=500)
            assert list(page.events) == whole[number:]

    async def test_a_cursor_stays_good_while_nothing_happens(self, queue: Queue, follower: Follower) -> None:
        for _ in range(3):
            assert await follower.polls() == []
        await queue.enqueue("t")
        await follower.hears(1)

    async def test_a_batch_is_told_in_the_order_of_its_ids(self, queue: Queue, follower: Follower) -> None:
        jobs = await queue.enqueue_many([{"type": "t"} for _ in range(20)])
        assert [event.name for event in await follower.hears(20)] == [job.id for job in jobs]  # type: ignore[union-attr]


class TestTenants:
    async def test_each_is_told_of_its_own_and_of_nothing_else(
        self, store: Store, queue: Queue, follower: Follower
    ) -> None:
        other = await follow(store, "acme")
        acme = queue.for_tenant("acme")
        ours = await queue.enqueue("t")
        theirs = await acme.enqueue("t", id=ours.id)
        await acme.cancel(theirs.id)
        await acme.pause("default")
        assert [event.what for event in await follower.hears(1)] == ["enqueued"]
        assert [event.what for event in await other.hears(3)] == ["enqueued", "cancel", "configure"]

    async def test_a_job_of_the_same_id_is_not_taken_for_anothers(
        self, queue: Queue, follower: Follower
    ) -> None:
        ours = await queue.enqueue("t", queue="ours")
        await queue.for_tenant("acme").enqueue("u", queue="theirs", id=ours.id)
        await queue.cancel(ours.id)
        assert {(event.queue, event.type) for event in await follower.hears(2)} == {("ours", "t")}


class TestRefused:
    @pytest.mark.parametrize(
        "after", ["", "x", "1", "a.b.c.d", "0.1.default", f"0.1.0.{'0' * 32}", "\x00", "1.٣.0.0", "." * 40]
    )
    async def test_what_is_no_cursor(self, store: Store, after: str) -> None:
        with pytest.raises(InvalidInput, match="after must be a"):
            await store.events("default", after=after, limit=5)

    async def test_a_cursor_of_another_store(self, store: Store) -> None:
        foreign = (await MemoryStore().events("default", limit=5)).next
        with pytest.raises(InvalidInput, match=r"begin again without one|that this feed has given"):
            await store.events("default", after=foreign, limit=5)

    async def test_a_cursor_that_was_tampered_with(self, store: Store, follower: Follower) -> None:
        feed, number, *rest = follower.cursor.split(".")
        later = ".".join([feed, str(int(number) + 10**6), *rest])
        with pytest.raises(InvalidInput):
            await store.events("default", after=later, limit=5)


class TestWhatHasLeft:
    @pytest.mark.only("memory", "log")
    async def test_one_who_fell_too_far_behind_is_told_so(
        self, queue: Queue, follower: Follower, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("penstock.core.ledger.MOST_TOLD", 10)
        behind = await follow(queue.store, "small")
        small = Queue(queue.store, tenant="small", ids=counting_ids())
        await small.enqueue_many([{"type": "t"} for _ in range(10)])
        start = behind.cursor
        await behind.hears(10)
        await small.enqueue("t")
        with pytest.raises(InvalidInput, match="after must be newer"):
            await Follower(queue.store, start, "small").polls()
        await behind.hears(1)
