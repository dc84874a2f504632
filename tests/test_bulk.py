"""Operations on many jobs: they go on page by page whoever runs them, can be watched and ended, and touch only what they should."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import pytest

from penstock import bulk
from penstock.bulk import Action, BulkOperation, BulkRunner, BulkState
from penstock.core.codec import NULL, decode
from penstock.core.commands import Filter, Page
from penstock.core.errors import InvalidInput, OperationNotFound, StoreUnavailable
from penstock.core.fingerprint import failure
from penstock.core.job import JobId, Status
from penstock.core.ports import Store
from penstock.queue import Queue
from penstock.stores.memory import MemoryStore
from penstock.stores.postgres.store import PostgresStore
from penstock.testing import START, FakeClock, counting_ids
from support.postgres import emptied, server_url
from support.stores import STORES
from support.working import LONG, until

ID = "019b7a2e-0000-7000-8000-000000000001"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "postgres"])
async def store(request: pytest.FixtureRequest, clock: FakeClock) -> AsyncIterator[Store]:
    store = STORES[request.param](clock)
    yield store
    await store.close()


@pytest.fixture
async def queue(store: Store) -> Queue:
    return Queue(store, actor="ada", ids=counting_ids(), entropy=lambda: 0.5)


async def enqueue(queue: Queue, number: int, /, **options: Any) -> list[JobId]:
    answers = await queue.enqueue_many([{"type": "email.send", **options} for _ in range(number)])
    return [answer.id for answer in answers]  # type: ignore[union-attr]


async def statuses(queue: Queue, ids: Sequence[str]) -> set[Status]:
    return {(await queue.get(job_id)).status for job_id in ids}


async def carry_out(runner: BulkRunner) -> None:
    """Do all there is to do, and give nothing up."""
    while await runner._round():
        pass


@asynccontextmanager
async def running(store: Store, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    """A runner while the block runs."""
    task = asyncio.create_task(BulkRunner(store, **{"look_seconds": 0.01, "at_once": 10, **options}).run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=LONG)


async def ended(queue: Queue, operation: BulkOperation) -> BulkOperation:
    async def has_ended() -> bool:
        return (await bulk.get(queue, operation.id)).state is not BulkState.RUNNING

    await until(has_ended)
    return await bulk.get(queue, operation.id)


class Gate:
    """Lets some calls through; the next one says that it has come, and waits."""

    def __init__(self, call: Callable[..., Awaitable[Any]], lets: int, before: bool = True) -> None:
        self.came, self.opened = asyncio.Event(), asyncio.Event()
        self._call = call
        self._lets = lets
        self._before = before

    async def __call__(self, *given: Any, **options: Any) -> Any:
        self._lets -= 1
        if self._lets >= 0:
            return await self._call(*given, **options)
        answer = None if self._before else await self._call(*given, **options)
        self.came.set()
        await self.opened.wait()
        return await self._call(*given, **options) if self._before else answer


class TestCarryingOut:
    async def test_every_job_that_matches_is_cancelled_page_by_page(self, queue: Queue, store: Store) -> None:
        ids, others = await enqueue(queue, 25, queue="emails"), await enqueue(queue, 2, queue="other")
        begun = await bulk.begin(queue, "cancel", {"queue": "emails"}, reason="wrong template")
        assert (begun.state, begun.matched, begun.action) == (BulkState.RUNNING, 0, Action.CANCEL)
        async with running(store):
            done = await ended(queue, begun)
        assert (done.state, done.matched, done.changed, done.refused) == (BulkState.DONE, 25, 25, 0)
        assert (done.actor, done.reason, done.created_at, done.ended_at) == (
            "ada",
            "wrong template",
            START,
            START,
        )
        assert await statuses(queue, ids) == {Status.CANCELLED}
        assert await statuses(queue, others) == {Status.QUEUED}
        [change] = (await queue.history(ids[0])).changes
        assert (change.actor, change.reason) == ("ada", "wrong template")

    async def test_dead_jobs_are_brought_back(self, queue: Queue, store: Store) -> None:
        ids = await enqueue(queue, 12)
        for leased in await queue.lease(worker="w", limit=12):
            await queue.nack(leased, "boom", retry=False)
        begun = await bulk.begin(queue, "redrive", {"status": "dead"})
        await carry_out(BulkRunner(store, at_once=5))
        done = await bulk.get(queue, begun.id)
        assert (done.state, done.matched, done.changed) == (BulkState.DONE, 12, 12)
        assert await statuses(queue, ids) == {Status.QUEUED}

    async def test_one_that_matches_nothing_is_done_at_once(self, queue: Queue, store: Store) -> None:
        begun = await bulk.begin(queue, "cancel", {"queue": "emails"})
        await carry_out(BulkRunner(store))
        done = await bulk.get(queue, begun.id)
        assert (done.state, done.matched) == (BulkState.DONE, 0)

    async def test_jobs_made_after_it_began_are_left_alone(
        self, queue: Queue, store: Store, clock: FakeClock
    ) -> None:
        before = await enqueue(queue, 3)
        begun = await bulk.begin(queue, "cancel", {})
        clock.advance(seconds=1)
        after = await enqueue(queue, 3)
        await carry_out(BulkRunner(store))
        assert (await bulk.get(queue, begun.id)).changed == 3
        assert await statuses(queue, before) == {Status.CANCELLED}
        assert await statuses(queue, after) == {Status.QUEUED}

    async def test_an_earlier_created_before_holds(
        self, queue: Queue, store: Store, clock: FakeClock
    ) -> None:
        early = await enqueue(queue, 1)
        middle = clock.advance(seconds=60)
        late = await enqueue(queue, 1)
        clock.advance(seconds=60)
        await bulk.begin(queue, "cancel", {"created_before": middle})
        await carry_out(BulkRunner(store))
        assert await statuses(queue, early) == {Status.CANCELLED}
        assert await statuses(queue, late) == {Status.QUEUED}

    async def test_refusals_are_counted_and_the_first_told(self, queue: Queue, store: Store) -> None:
        ids = await enqueue(queue, 30)
        for leased in await queue.lease(worker="w", limit=25):
            await queue.ack(leased)
        begun = await bulk.begin(queue, "cancel", {})
        await carry_out(BulkRunner(store, at_once=7))
        done = await bulk.get(queue, begun.id)
        assert (done.matched, done.changed, done.refused, len(done.refusals)) == (30, 5, 25, 20)
        assert done.refusals[0] == f"cannot cancel job {ids[24]}: it is succeeded"

    async def test_nothing_of_another_tenant_is_touched(self, queue: Queue, store: Store) -> None:
        other = queue.for_tenant("other", actor="bob")
        mine, theirs, kept = await enqueue(queue, 3), await enqueue(other, 4), queue.for_tenant("third")
        spared = await enqueue(kept, 2)
        begun = await bulk.begin(queue, "cancel", {"queue": "default"})
        their_begun = await bulk.begin(other, "cancel", {"queue": "default"})
        for operation_id in (begun.id, their_begun.id):
            with pytest.raises(OperationNotFound):
                await bulk.abort(kept, operation_id)
        await carry_out(BulkRunner(store, at_once=2))
        assert (await bulk.get(queue, begun.id)).changed == 3
        assert (await bulk.get(other, their_begun.id)).changed == 4
        assert [one.id for one in await bulk.operations(other)] == [their_begun.id]
        assert await statuses(queue, mine) == await statuses(other, theirs) == {Status.CANCELLED}
        assert await statuses(kept, spared) == {Status.QUEUED}

    async def test_a_long_one_holds_up_no_short_one(self, queue: Queue, store: Store) -> None:
        await enqueue(queue, 20, queue="long")
        await enqueue(queue, 1, queue="short")
        long = await bulk.begin(queue, "cancel", {"queue": "long"})
        short = await bulk.begin(queue, "cancel", {"queue": "short"})
        runner = BulkRunner(store, at_once=1)
        await runner._round()
        await runner._round()
        assert (await bulk.get(queue, short.id)).state is BulkState.DONE
        assert (await bulk.get(queue, long.id)).state is BulkState.RUNNING

    async def test_one_that_fails_holds_up_none_and_is_tried_again(
        self,
        queue: Queue,
        store: Store,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        for name in ("bad", "good"):
            await enqueue(queue, 3, queue=name)
        bad = await bulk.begin(queue, "cancel", {"queue": "bad"})
        good = await bulk.begin(queue, "cancel", {"queue": "good"})
        find = store.find

        async def failing(tenant: str, filter: Filter, *, after: JobId | None, limit: int) -> Page:
            if filter.queue == "bad":
                raise RuntimeError("planted")
            return await find(tenant, filter, after=after, limit=limit)

        with monkeypatch.context() as patched:
            patched.setattr(store, "find", failing)
            await carry_out(runner := BulkRunner(store, at_once=1))
        assert (await bulk.get(queue, good.id)).state is BulkState.DONE
        assert [record.getMessage() for record in caplog.records] == [
            f"operation {bad.id} of tenant default failed, and is tried again"
        ]
        runner._resting.clear()
        await carry_out(runner)
        assert (await bulk.get(queue, bad.id)).state is BulkState.DONE

    async def test_a_bell_tells_that_one_has_begun(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store, looked = MemoryStore(), asyncio.Event()
        queue, entries = Queue(store), store.entries

        async def look(*given: Any) -> Any:
            looked.set()
            return await entries(*given)

        monkeypatch.setattr(store, "entries", look)
        await enqueue(queue, 1)
        async with running(store, look_seconds=3_600):
            await asyncio.wait_for(looked.wait(), LONG)  # and found nothing, and sleeps
            assert (await ended(queue, await bulk.begin(queue, "cancel", {}))).changed == 1


class TestAborting:
    async def test_what_was_changed_stays_so_and_the_rest_is_left_alone(
        self, queue: Queue, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids = await enqueue(queue, 25)
        begun = await bulk.begin(queue, "cancel", {})
        monkeypatch.setattr(store, "cancel", gate := Gate(store.cancel, lets=1))
        async with running(store):
            await asyncio.wait_for(gate.came.wait(), LONG)
            under_way = await bulk.get(queue, begun.id)
            assert (under_way.state, under_way.matched, under_way.changed) == (BulkState.RUNNING, 10, 10)
            aborted = await bulk.abort(queue, begun.id)
            assert (aborted.state, aborted.ended_at) == (BulkState.ABORTED, START)
            gate.opened.set()

            async def has_noticed() -> bool:
                return (await bulk.get(queue, begun.id)).matched == 20

            await until(has_noticed)  # the page that was under way is counted
            await carry_out(BulkRunner(store))  # nobody goes on with it
        assert (await bulk.get(queue, begun.id)).state is BulkState.ABORTED
        assert await statuses(queue, ids[5:]) == {Status.CANCELLED}
        assert await statuses(queue, ids[:5]) == {Status.QUEUED}

    async def test_before_anyone_has_begun_nothing_is_changed(self, queue: Queue, store: Store) -> None:
        ids = await enqueue(queue, 3)
        begun = await bulk.begin(queue, "cancel", {})
        await bulk.abort(queue, begun.id)
        await carry_out(BulkRunner(store))
        assert (await bulk.get(queue, begun.id)).matched == 0
        assert await statuses(queue, ids) == {Status.QUEUED}

    async def test_one_that_has_ended_stays_as_it_is(self, queue: Queue, store: Store) -> None:
        begun = await bulk.begin(queue, "cancel", {})
        await carry_out(BulkRunner(store))
        assert (await bulk.abort(queue, begun.id)).state is BulkState.DONE

    async def test_it_is_not_lost_between_two_pages(
        self, queue: Queue, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A page is written down between the look and the write of whoever aborts."""
        await enqueue(queue, 25)
        begun = await bulk.begin(queue, "cancel", {})
        runner, now = BulkRunner(store, at_once=10), store.now

        async def meanwhile() -> Any:
            monkeypatch.undo()
            await runner._round()
            return await now()

        monkeypatch.setattr(store, "now", meanwhile)
        aborted = await bulk.abort(queue, begun.id)
        assert (aborted.state, aborted.matched) == (BulkState.ABORTED, 10)


class Doomed:
    """A store as a runner sees it whose process ends in the middle: a call that never returns, and no last word."""

    def __init__(self, store: Store, verb: str, lets: int, before: bool) -> None:
        self._store = store
        self.gate = Gate(getattr(store, verb), lets, before)
        setattr(self, verb, self.gate)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def lead(self, office: str, holder: str, seconds: float) -> bool:
        if not seconds:
            raise StoreUnavailable("the store", "we are dead")
        return await self._store.lead(office, holder, seconds)


class TestSeveralRunners:
    async def test_each_job_is_changed_by_one_of_them(
        self, queue: Queue, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids = await enqueue(queue, 12)
        changed: list[str] = []
        cancel = store.cancel

        async def counted(tenant: str, commands: Any) -> Any:
            changed.extend(command.job_id for command in commands)
            return await cancel(tenant, commands)

        monkeypatch.setattr(store, "cancel", counted)
        begun = await bulk.begin(queue, "cancel", {})
        async with running(store, at_once=1), running(store, at_once=1):
            done = await ended(queue, begun)
        assert (done.matched, done.changed) == (12, 12)
        assert sorted(changed) == ids

    @pytest.mark.parametrize(
        ("verb", "lets", "before"),
        [("cancel", 1, True), ("cancel", 1, False), ("put_entries", 1, True), ("put_entries", 1, False)],
        ids=["before a page", "after a page", "before writing it down", "after writing it down"],
    )
    async def test_what_a_killed_one_has_left_another_does(
        self, queue: Queue, store: Store, clock: FakeClock, verb: str, lets: int, before: bool
    ) -> None:
        ids = await enqueue(queue, 25)
        begun = await bulk.begin(queue, "cancel", {})
        doomed = Doomed(store, verb, lets, before)
        async with running(cast(Store, doomed)):
            await asyncio.wait_for(doomed.gate.came.wait(), LONG)
        second = BulkRunner(store, at_once=10)
        assert not await second._round()
        assert (await bulk.get(queue, begun.id)).state is BulkState.RUNNING, "it may be alive"
        clock.advance(seconds=30)
        await carry_out(second)
        done = await bulk.get(queue, begun.id)
        assert (done.state, done.matched, done.changed) == (BulkState.DONE, 25, 25)
        assert await statuses(queue, ids) == {Status.CANCELLED}

    async def test_one_that_is_stopped_hands_over_at_once(
        self, queue: Queue, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await enqueue(queue, 25)
        begun = await bulk.begin(queue, "cancel", {})
        with monkeypatch.context() as patched:
            patched.setattr(store, "cancel", gate := Gate(store.cancel, lets=1))
            async with running(store):
                await asyncio.wait_for(gate.came.wait(), LONG)
        await carry_out(BulkRunner(store))
        done = await bulk.get(queue, begun.id)
        assert (done.state, done.matched) == (BulkState.DONE, 25)

    async def test_one_that_was_paused_for_too_long_changes_no_figures(
        self, queue: Queue, store: Store, clock: FakeClock
    ) -> None:
        await enqueue(queue, 25)
        begun = await bulk.begin(queue, "cancel", {})
        slow = Doomed(store, "cancel", lets=1, before=False)
        runner = BulkRunner(cast(Store, slow), at_once=10)
        await runner._round()
        page = asyncio.create_task(runner._round())
        await asyncio.wait_for(slow.gate.came.wait(), LONG)
        clock.advance(seconds=31)
        await carry_out(BulkRunner(store, at_once=10))
        slow.gate.opened.set()  # it comes back, and would write down what it believes
        assert not await page
        done = await bulk.get(queue, begun.id)
        assert (done.state, done.matched, done.changed) == (BulkState.DONE, 25, 25)


PROGRAM = """
import asyncio, sys
from penstock import connect
from penstock.bulk import BulkRunner

async def main():
    async with connect(sys.argv[1]) as queue:
        cancel, pages = queue.store.cancel, 0

        async def stuck(tenant, commands):
            nonlocal pages
            pages += 1
            if pages == 3:
                print("in the middle", flush=True)
                await asyncio.Event().wait()
            return await cancel(tenant, commands)

        queue.store.cancel = stuck
        await BulkRunner(queue.store, lead_seconds=0.5, at_once=5).run()

asyncio.run(main())
"""


async def test_the_process_is_killed_and_another_goes_on() -> None:
    await emptied()
    store = PostgresStore(server_url(), connections=2)
    queue = Queue(store)
    ids = await enqueue(queue, 25)
    begun = await bulk.begin(queue, "cancel", {})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, server_url(), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), LONG) == b"in the middle\n"
        process.send_signal(signal.SIGKILL)
        assert (await bulk.get(queue, begun.id)).matched == 10
        async with running(store):
            done = await ended(queue, begun)
        assert (done.state, done.matched, done.changed) == (BulkState.DONE, 25, 25)
        assert await statuses(queue, ids) == {Status.CANCELLED}
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await store.close()


class TestLooking:
    async def test_operations_are_listed_newest_first(
        self, queue: Queue, store: Store, clock: FakeClock
    ) -> None:
        begun = []
        for _ in range(3):
            begun.append((await bulk.begin(queue, "cancel", {})).id)
            clock.advance(seconds=1)
        assert [one.id for one in await bulk.operations(queue)] == begun[::-1]

    async def test_one_that_has_ended_stays_for_a_week_and_one_that_has_not_for_ever(
        self, queue: Queue, store: Store, clock: FakeClock
    ) -> None:
        over = await bulk.begin(queue, "cancel", {})
        await carry_out(BulkRunner(store))
        left = await bulk.begin(queue, "cancel", {})
        clock.advance(days=6)
        assert {one.id for one in await bulk.operations(queue)} == {left.id, over.id}
        clock.advance(days=1)
        assert [one.id for one in await bulk.operations(queue)] == [left.id]
        with pytest.raises(OperationNotFound, match=over.id):
            await bulk.get(queue, over.id)

    async def test_the_audit_log_has_who_began_and_who_ended_what(self, queue: Queue, store: Store) -> None:
        begun = await bulk.begin(
            queue, "redrive", {"status": "dead", "queue": "emails"}, reason="mail is back"
        )
        await bulk.abort(queue.for_tenant("default", actor="grace"), begun.id)
        await bulk.abort(queue, begun.id)
        lines = (await store.audit("default", limit=10)).lines
        assert [(line.kind, line.name, line.change.verb, line.change.actor) for line in lines] == [
            ("bulk", begun.id, "bulk abort", "grace"),
            ("bulk", begun.id, "bulk redrive", "ada"),
        ]
        assert lines[1].change.reason == "mail is back"
        assert decode(lines[1].change.detail or NULL) == {"statuses": ["dead"], "queue": "emails"}

    async def test_its_filter_reads_back_as_it_was_given(self, queue: Queue) -> None:
        conditions = {
            "statuses": ["queued", "held"], "queue": "emails", "type": "email.send", "key": "k", "schedule": "s",
            "created_from": START - timedelta(days=1), "created_before": START - timedelta(hours=1),
        }  # fmt: skip
        begun = await bulk.begin(queue, "cancel", conditions)
        assert await bulk.get(queue, begun.id) == begun
        assert begun.filter == Filter(
            (Status.QUEUED, Status.HELD), "emails", "email.send", "k", "s",
            created_from=START - timedelta(days=1), created_before=START - timedelta(hours=1),
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("number", "most", "answer"),
        [(3, 10_000, (3, True)), (3, 3, (3, True)), (3, 2, (2, False)), (0, 1, (0, True))],
    )
    async def test_a_dry_run_counts_up_to_a_bound(
        self, queue: Queue, number: int, most: int, answer: tuple[int, bool]
    ) -> None:
        await enqueue(queue, number, queue="emails")
        await enqueue(queue, 2)
        assert await bulk.count(queue, {"queue": "emails"}, most=most) == answer

    @pytest.mark.parametrize(
        ("action", "conditions", "reason"),
        [
            ("delete", {}, None),
            ("cancel", {"colour": "red"}, None),
            ("cancel", {"status": "asleep"}, None),
            ("cancel", {}, "x" * 2_000),
        ],
        ids=["action", "condition", "status", "reason"],
    )
    async def test_what_makes_no_sense_is_refused_and_nothing_written(
        self, queue: Queue, action: str, conditions: dict[str, Any], reason: str | None
    ) -> None:
        with pytest.raises(InvalidInput):
            await bulk.begin(queue, action, conditions, reason=reason)
        assert await bulk.operations(queue) == []

    async def test_one_that_is_not_there_is_not_found(self, queue: Queue) -> None:
        for look in (bulk.get, bulk.abort):
            with pytest.raises(OperationNotFound, match=ID):
                await look(queue, ID)
            with pytest.raises(InvalidInput):
                await look(queue, "it")


class TestRateAndFailure:
    async def test_changes_a_second_s_worth_and_rests(self, queue: Queue, store: Store) -> None:
        ids = await enqueue(queue, 7)
        operation = await bulk.begin(queue, "cancel", {}, per_second=3)
        runner = BulkRunner(store, look_seconds=10)
        for changed in (3, 6):
            assert not await runner._round(), "it is to wait"
            assert (await bulk.get(queue, operation.id)).changed == changed
            assert not await runner._round(), "it has not waited yet"
            assert (await bulk.get(queue, operation.id)).changed == changed
            assert 0 < runner._rest_seconds() <= 1
            runner._resting.clear()  # the second is over
        await carry_out(runner)
        assert (await bulk.get(queue, operation.id)).state is BulkState.DONE
        assert await statuses(queue, ids) == {Status.CANCELLED}

    async def test_changes_jobs_of_one_failure_however_many_others_match(
        self, queue: Queue, store: Store
    ) -> None:
        ids = await enqueue(queue, 9, max_attempts=1)
        for number, held in enumerate(await queue.lease("default", worker="w", limit=9)):
            await queue.nack(held, f"KeyError: {number}" if number % 3 == 0 else f"OSError: {number}")
        wanted = failure("KeyError: 100").fingerprint
        assert await bulk.count(queue, {"statuses": ("dead",)}, fingerprint=wanted) == (3, True)
        operation = await bulk.begin(queue, "redrive", {"statuses": ("dead",)}, fingerprint=wanted)
        await carry_out(BulkRunner(store, at_once=2))
        done = await bulk.get(queue, operation.id)
        assert (done.matched, done.changed, done.state) == (3, 3, BulkState.DONE)
        brought_back = [(await queue.get(job_id)).status is Status.QUEUED for job_id in ids]
        assert brought_back == [number % 3 == 0 for number in range(9)]

    @pytest.mark.parametrize("rate", [0, -1, 1e9])
    async def test_a_rate_has_its_limits(self, queue: Queue, rate: float) -> None:
        with pytest.raises(InvalidInput, match="per_second"):
            await bulk.begin(queue, "cancel", {}, per_second=rate)
