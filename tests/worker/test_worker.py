"""The worker on memory and on PostgreSQL: how attempts end, what is kept alive, and what is given back."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import pydantic
import pytest

from penstock import (
    Discard,
    GiveUp,
    InvalidInput,
    JobContext,
    JobFailed,
    JobHandle,
    LeaseLost,
    Penstock,
    Retry,
    RetryAfter,
    Snooze,
    Status,
)
from penstock.core.job import Cause, Outcome
from penstock.worker.worker import Stopped
from support.working import LONG, Work, until


@dataclass
class Point:
    x: int
    y: int


class Colour(msgspec.Struct):
    name: str


class Person(pydantic.BaseModel):
    name: str
    born: date


class TestHowAttemptsEnd:
    async def test_a_result_comes_back(self, app: Penstock, work: Work) -> None:
        @app.job(name="add")
        async def add(a: int, b: int = 2) -> dict[str, int]:
            return {"sum": a + b}

        @app.job(name="add.plain")
        def add_plain(a: int, b: int) -> int:
            return a + b

        async with work():
            first, second = await add.enqueue(1), await add_plain.enqueue(a=20, b=3)
            assert await first.result(timeout=LONG) == {"sum": 3}
            assert await second.result(timeout=LONG) == 23

    async def test_a_plain_function_runs_in_a_thread(self, app: Penstock, work: Work) -> None:
        @app.job(name="where")
        def where() -> bool:
            return threading.current_thread() is threading.main_thread()

        async with work():
            assert await (await where.enqueue()).result(timeout=LONG) is False

    async def test_an_exception_is_a_failure_with_its_traceback(self, app: Penstock, work: Work) -> None:
        @app.job(name="boom", max_attempts=2, retry=Retry.fixed(0))
        async def boom() -> None:
            raise ValueError("no such thing")

        async with work():
            handle = await boom.enqueue()
            with pytest.raises(JobFailed, match="ValueError: no such thing") as caught:
                await handle.result(timeout=LONG)
        assert caught.value.status == Status.DEAD
        attempts = (await app.queue.history(handle.id)).attempts
        assert [attempt.outcome for attempt in attempts] == [Outcome.FAILED] * 2
        assert all("in boom" in (attempt.error or "") for attempt in attempts)

    async def test_a_handler_says_how_it_ends(self, app: Penstock, work: Work) -> None:
        seen: list[int] = []

        @app.job(name="says", max_attempts=5)
        async def says(what: str, ctx: JobContext) -> str:
            seen.append(ctx.attempt)
            if len(seen) == 1:
                match what:
                    case "retry":
                        raise RetryAfter(0, "not now")
                    case "snooze":
                        raise Snooze(0)
                    case "discard":
                        raise Discard("nothing to do")
                    case "give up":
                        raise GiveUp("it never will")
            return "done"

        async def one(what: str) -> Any:
            seen.clear()
            return await (await says.enqueue(what)).wait(timeout=LONG)

        async with work():
            assert (await one("retry")).status is Status.SUCCEEDED
            assert seen == [1, 2]
            assert (await one("snooze")).status is Status.SUCCEEDED
            assert seen == [1, 1], "a snoozed attempt does not count"
            discarded = await one("discard")
            assert (discarded.status, discarded.cause, discarded.error) == (
                Status.CANCELLED, Cause.DISCARDED, "nothing to do",
            )  # fmt: skip
            dead = await one("give up")
            assert (dead.status, dead.cause, dead.error) == (Status.DEAD, Cause.REFUSED, "it never will")

    async def test_a_timeout_is_a_failure(self, app: Penstock, work: Work) -> None:
        let_go = threading.Event()

        @app.job(name="slow", timeout=0.05, max_attempts=1)
        async def slow() -> None:
            await asyncio.sleep(LONG)

        @app.job(name="slow.thread", timeout=0.05, max_attempts=1)
        def slow_thread(ctx: JobContext) -> None:
            while not ctx.cancelled:
                let_go.wait(0.01)

        async with work():
            for job_type in (slow, slow_thread):
                with pytest.raises(JobFailed, match=r"timed out: it had not ended after 0\.05 seconds"):
                    await (await job_type.enqueue()).result(timeout=LONG)

    async def test_an_unknown_type_is_given_back_and_not_lost(
        self, app: Penstock, work: Work, caplog: pytest.LogCaptureFixture
    ) -> None:
        handle = await app.enqueue("unheard.of", {"a": 1})
        async with work():
            await until(lambda: _was_tried(handle))
        job = await handle.job()
        assert (job.status, job.attempts) == (Status.QUEUED, 0)
        assert job.run_at > datetime.now(UTC) + timedelta(seconds=10)
        assert "no handler here runs jobs of type 'unheard.of'" in caplog.text

    async def test_types_that_somebody_made_up_are_one_figure(self, app: Penstock, work: Work) -> None:
        handles = [await app.enqueue(f"unheard.of.{n}") for n in range(3)]
        async with work() as running:
            for handle in handles:
                await until(partial(_was_tried, handle))
        figures = running.worker.metrics.text()
        assert (
            'penstock_worker_attempts_total{queue="default",type="(unknown)",outcome="release"} 3' in figures
        )
        assert "penstock_worker_unknown_types_total 3" in figures
        assert "unheard" not in figures

    async def test_an_exception_whose_text_cannot_be_encoded_is_stored_escaped(
        self, app: Penstock, work: Work
    ) -> None:
        class Unspeakable(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no words")

        @app.job(name="bad.text", max_attempts=1)
        async def bad_text(how: str) -> None:
            raise Unspeakable if how == "raises" else ValueError("\0\ud800")

        async with work():
            with pytest.raises(JobFailed, match=r"\\x00\\ud800"):
                await (await bad_text.enqueue("nul")).result(timeout=LONG)
            with pytest.raises(JobFailed, match="Unspeakable"):
                await (await bad_text.enqueue("raises")).result(timeout=LONG)

    @pytest.mark.parametrize("value", [object(), float("nan"), "x" * 1_100_000])
    async def test_a_result_that_cannot_be_kept_fails_the_attempt(
        self, app: Penstock, work: Work, value: Any
    ) -> None:
        @app.job(name="bad.result", max_attempts=3)
        async def bad_result() -> Any:
            return value

        async with work():
            handle = await bad_result.enqueue()
            with pytest.raises(JobFailed, match="bad_result: result must be"):
                await handle.result(timeout=LONG)
        assert len((await app.queue.history(handle.id)).attempts) == 1


class TestArguments:
    async def test_what_code_is_made_of_is_understood(self, app: Penstock, work: Work) -> None:
        seen: list[Any] = []

        @app.job(name="rich")
        async def rich(
            point: Point, colours: list[Colour], person: Person, at: datetime, left: timedelta, maybe: int | None = None, **more: int
        ) -> Person:  # fmt: skip
            seen.extend([point, colours, person, at, left, maybe, more])
            return person

        at = datetime(2030, 1, 1, tzinfo=UTC)
        person = Person(name="Ada", born=date(1815, 12, 10))
        async with work():
            handle = await rich.enqueue(
                Point(1, 2), [Colour("red")], person, at=at, left=timedelta(minutes=5), extra=7
            )
            assert await handle.result(timeout=LONG) == {"name": "Ada", "born": "1815-12-10"}
        assert seen == [Point(1, 2), [Colour("red")], person, at, timedelta(minutes=5), None, {"extra": 7}]

    async def test_what_does_not_fit_is_refused_when_enqueued_with_the_field_named(
        self, app: Penstock
    ) -> None:
        @app.job(name="typed")
        async def typed(n: int, person: Person | None = None, ctx: JobContext | None = None) -> None: ...

        cases: list[tuple[tuple[Any, ...], dict[str, Any], str, str]] = [
            ((), {}, "arguments", "missing a required argument: 'n'"),
            ((), {"n": 1, "colour": "red"}, "arguments", "unexpected keyword argument 'colour'"),
            (("one",), {}, "n", "Expected int, got str"),
            ((1,), {"person": {"name": "Ada", "born": "never"}}, "person", "born"),
            ((object(),), {}, "payload", "be JSON"),
        ]
        for args, kwargs, field, says in cases:
            with pytest.raises(InvalidInput, match=says) as caught:
                await typed.enqueue(*args, **kwargs)
            assert caught.value.facts["field"] == field
        with pytest.raises(InvalidInput, match="Expected int"):
            await app.enqueue("typed", {"n": "one"})
        assert not (await app.queue.find()).jobs

    async def test_what_arrives_from_elsewhere_fails_without_retry(self, app: Penstock, work: Work) -> None:
        @app.job(name="typed", max_attempts=5)
        async def typed(n: int) -> None: ...

        async with work():
            answer = await app.queue.enqueue("typed", {"n": "one"})
            with pytest.raises(JobFailed, match="bad_arguments: n must fit typed"):
                await app.handle(answer.id).result(timeout=LONG)
            answer = await app.queue.enqueue("typed", [1])
            with pytest.raises(JobFailed, match="bad_arguments"):
                await app.handle(answer.id).result(timeout=LONG)
        assert len((await app.queue.history(answer.id)).attempts) == 1

    async def test_a_handler_whose_arguments_have_no_names_is_refused_at_once(self, app: Penstock) -> None:
        with pytest.raises(TypeError, match="cannot be given by name"):

            @app.job
            async def rest(*values: int) -> None: ...

    async def test_wrong_options_are_refused_at_once(self, app: Penstock) -> None:
        with pytest.raises(InvalidInput, match="priority must be a whole number"):
            app.job(name="a", priority="high")(_nothing)
        with pytest.raises(InvalidInput, match="have only the fields"):
            app.job(name="a", colour="red")(_nothing)
        app.job(name="a")(_nothing)
        with pytest.raises(InvalidInput, match="one handler only"):
            app.job(name="a")(_nothing)
        with pytest.raises(TypeError, match="would block"):
            app.job(name="b", runs="loop")(lambda: None)

    async def test_the_function_can_still_be_called(self, app: Penstock) -> None:
        @app.job
        async def twice(n: int) -> int:
            """Doubles."""
            return 2 * n

        assert await twice(4) == 8
        assert twice.__doc__ == "Doubles."
        assert twice.name.endswith("twice")


async def _nothing() -> None: ...


async def _was_tried(handle: JobHandle) -> bool:
    return bool((await handle._app.queue.history(handle.id)).attempts)


async def _is_at(handle: JobHandle, progress: str) -> bool:
    return (await handle.job()).progress == progress


class TestTheContext:
    async def test_progress_and_logs_are_kept(self, app: Penstock, work: Work) -> None:
        told, go_on = asyncio.Event(), asyncio.Event()

        @app.job(name="tells")
        async def tells(ctx: JobContext) -> None:
            logging.getLogger("shop").warning("half way of %s", ctx.job.type)
            ctx.progress({"percent": 10})
            ctx.progress({"percent": 50})
            told.set()
            await go_on.wait()

        async with work():
            handle = await tells.enqueue()
            await asyncio.wait_for(told.wait(), LONG)
            await until(lambda: _is_at(handle, '{"percent":50}'))
            go_on.set()
            await handle.wait(timeout=LONG)
        [attempt] = (await app.queue.history(handle.id)).attempts
        assert attempt.logs is not None
        assert "WARNING shop: half way of tells" in attempt.logs

    async def test_logs_of_jobs_side_by_side_are_told_apart_and_bounded(
        self, app: Penstock, work: Work
    ) -> None:
        @app.job(name="chatty")
        def chatty(word: str, times: int) -> None:
            for number in range(times):
                logging.getLogger("shop").warning("%s %d", word, number)

        async with work():
            handles = [await chatty.enqueue(word, 3) for word in ("tick", "tock")]
            long = await chatty.enqueue("long", 2_000)
            for handle in (*handles, long):
                await handle.wait(timeout=LONG)
        for handle, word in zip(handles, ("tick", "tock"), strict=True):
            [attempt] = (await app.queue.history(handle.id)).attempts
            assert [line.split(": ")[1] for line in (attempt.logs or "").splitlines()] == [
                f"{word} {n}" for n in range(3)
            ]
        [attempt] = (await app.queue.history(long.id)).attempts
        assert attempt.logs is not None
        assert len(attempt.logs) <= 16_384
        assert "more lines did not fit" in attempt.logs

    async def test_parents_results_are_there(self, app: Penstock, work: Work) -> None:
        @app.job(name="part")
        async def part(n: int) -> int:
            return n * n

        @app.job(name="whole")
        async def whole(ctx: JobContext) -> int:
            return sum(parent.result for parent in ctx.parents)

        flow = app.flow()
        parts = [flow.add(part.new(n)) for n in (1, 2, 3)]
        last = flow.add(whole.new(), after=parts)
        run = await flow.enqueue()
        async with work():
            assert (await run.results(timeout=LONG))[last.id] == 14


class TestCancelling:
    async def test_a_running_job_hears_of_it(self, app: Penstock, work: Work) -> None:
        started, stopped = asyncio.Event(), asyncio.Event()

        @app.job(name="long")
        async def long(ctx: JobContext) -> None:
            started.set()
            try:
                await asyncio.sleep(LONG)
            finally:
                stopped.set()

        async with work(concurrency=1):  # so that it leases nothing meanwhile, and hears of it all the same
            handle = await long.enqueue()
            await asyncio.wait_for(started.wait(), LONG)
            await handle.cancel("changed my mind")
            await asyncio.wait_for(stopped.wait(), LONG / 4)  # long before a heartbeat is due
            job = await handle.wait(timeout=LONG)
        assert (job.status, job.cause) == (Status.CANCELLED, Cause.CANCELLED)

    async def test_a_thread_is_asked_to_stop(self, app: Penstock, work: Work) -> None:
        started = threading.Event()

        @app.job(name="long")
        def long(ctx: JobContext) -> str:
            started.set()
            while not ctx.cancelled:
                time.sleep(0.005)
            return "tidied up"

        async with work():
            handle = await long.enqueue()
            await asyncio.to_thread(started.wait, LONG)
            await handle.cancel()
            assert (await handle.wait(timeout=LONG)).status is Status.CANCELLED


class TestLeases:
    async def test_a_handler_longer_than_its_lease_keeps_it(self, app: Penstock, work: Work) -> None:
        @app.job(name="long", max_attempts=1)
        async def long() -> str:
            await asyncio.sleep(2.5)
            return "done"

        async with work(lease_seconds=1):
            handle = await long.enqueue()
            assert await handle.result(timeout=LONG) == "done"
        assert len((await app.queue.history(handle.id)).attempts) == 1

    async def test_a_lost_lease_cancels_the_handler_and_nothing_is_settled(
        self, app: Penstock, work: Work
    ) -> None:
        started, stopped = asyncio.Event(), asyncio.Event()

        @app.job(name="long")
        async def long() -> None:
            started.set()
            try:
                await asyncio.sleep(LONG)
            finally:
                stopped.set()

        async with work(lease_seconds=1) as running:
            handle = await long.enqueue()
            await asyncio.wait_for(started.wait(), LONG)
            lease = (await handle.job()).lease
            assert lease is not None
            held = next(iter(running.worker._hand))
            await app.queue.release(held, delay=60)  # as if somebody else had settled it
            await asyncio.wait_for(stopped.wait(), LONG)
            await until(running.idle)
        assert (await handle.job()).status is Status.QUEUED
        assert running.worker.metrics.lost.value() == 1


class TestStopping:
    async def test_what_has_begun_is_finished(self, app: Penstock, work: Work) -> None:
        started, go_on = asyncio.Event(), asyncio.Event()

        @app.job(name="one")
        async def one() -> None:
            started.set()
            await go_on.wait()

        async with work(concurrency=1) as running:
            first, second = await one.enqueue(), await one.enqueue()
            await asyncio.wait_for(started.wait(), LONG)
            running.worker.stop()
            go_on.set()
            assert await asyncio.wait_for(running.task, LONG) is Stopped.DRAINED
        assert (await first.job()).status is Status.SUCCEEDED
        assert (await second.job()).status is Status.QUEUED

    async def test_what_outlasts_the_grace_period_is_given_back_without_using_up_the_attempt(
        self, app: Penstock, work: Work
    ) -> None:
        started = asyncio.Event()

        @app.job(name="one", max_attempts=1)
        async def one() -> None:
            started.set()
            await asyncio.sleep(LONG)

        async with work(grace_seconds=0.05) as running:
            handle = await one.enqueue()
            await asyncio.wait_for(started.wait(), LONG)
            assert await running.stop() is Stopped.CUT_OFF
        job = await handle.job()
        assert (job.status, job.attempts, job.leases) == (Status.QUEUED, 0, 1)

    async def test_asked_twice_it_hurries(self, app: Penstock, work: Work) -> None:
        started = asyncio.Event()

        @app.job(name="one", max_attempts=1)
        async def one() -> None:
            started.set()
            await asyncio.sleep(LONG)

        async with work(grace_seconds=LONG) as running:
            handle = await one.enqueue()
            await asyncio.wait_for(started.wait(), LONG)
            running.worker.stop()
            assert await running.stop() is Stopped.HURRIED
        assert (await handle.job()).status is Status.QUEUED

    async def test_what_the_store_gives_while_it_stops_is_given_back(
        self, app: Penstock, work: Work, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The answer to a lease call that is on its way is waited for: unheard, its jobs would be lost for a while."""
        store, asked, go_on = app.queue.store, asyncio.Event(), asyncio.Event()
        lease = store.lease

        async def slow_lease(tenant: str, requests: Any) -> Any:
            asked.set()
            await go_on.wait()
            return await lease(tenant, requests)

        app.job(name="one")(_nothing)
        handle = await app.enqueue("one")
        monkeypatch.setattr(store, "lease", slow_lease)
        async with work() as running:
            await asyncio.wait_for(asked.wait(), LONG)
            running.worker.stop()
            await asyncio.sleep(0)
            go_on.set()
            assert await asyncio.wait_for(running.task, LONG) is Stopped.DRAINED
        job = await handle.job()
        assert (job.status, job.attempts, job.leases) == (Status.QUEUED, 0, 1)

    async def test_a_worker_that_is_cancelled_gives_everything_back(self, app: Penstock, work: Work) -> None:
        started = asyncio.Event()

        @app.job(name="one", max_attempts=1)
        async def one() -> None:
            started.set()
            await asyncio.sleep(LONG)

        async with work(concurrency=1) as running:
            handle = await one.enqueue()
            await asyncio.wait_for(started.wait(), LONG)
            running.task.cancel()
            await asyncio.wait([running.task])
            assert running.task.cancelled()
        job = await handle.job()
        assert (job.status, job.attempts) == (Status.QUEUED, 0)

    async def test_a_thread_that_goes_on_does_not_keep_its_job(self, app: Penstock, work: Work) -> None:
        started, go_on = threading.Event(), threading.Event()

        @app.job(name="one", max_attempts=1)
        def one() -> None:
            started.set()
            go_on.wait(LONG)

        async with work(grace_seconds=0.05) as running:
            handle = await one.enqueue()
            await asyncio.to_thread(started.wait, LONG)
            assert await running.stop() is Stopped.CUT_OFF
        job = await handle.job()
        go_on.set()
        assert (job.status, job.attempts) == (Status.QUEUED, 0)


class TestQueues:
    async def test_by_pattern_with_those_that_come_later(
        self, app: Penstock, work: Work, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("penstock.worker.worker.QUEUES_SECONDS", 0.0)

        @app.job(name="one")
        async def one() -> None: ...

        await one.options(queue="shop.a").enqueue()
        async with work(queues="shop.*,other"):
            first = await one.options(queue="shop.a").enqueue()
            later = await one.options(queue="shop.b").enqueue()
            outside = await one.options(queue="bakery").enqueue()
            await first.result(timeout=LONG)
            await later.result(timeout=LONG)
        assert (await outside.job()).status is Status.QUEUED

    async def test_a_delayed_job_runs_when_it_is_due(self, app: Penstock, work: Work) -> None:
        @app.job(name="one")
        async def one() -> None: ...

        async with work():
            handle = await one.options(delay=0.3).enqueue()
            job = await handle.wait(timeout=LONG)
        [attempt] = (await app.queue.history(handle.id)).attempts
        assert attempt.started_at >= job.created_at + timedelta(seconds=0.3)

    async def test_settings_declared_in_code_are_applied_and_then_left_alone(
        self, app: Penstock, work: Work
    ) -> None:
        @app.job(name="one", queue="emails", max_concurrency=3)
        async def one() -> None: ...

        app.declare_queue("emails", fair=True)
        with pytest.raises(InvalidInput, match="declared once"):
            app.declare_queue("emails", max_concurrency=4)
        async with work():
            settings = (await app.queue.queue("emails")).settings
            assert (settings.max_concurrency, settings.fair) == (3, True)
        await app.queue.configure("emails", max_concurrency=9, reason="busy today")
        async with work():
            assert (await app.queue.queue("emails")).settings.max_concurrency == 9
        app.queue_settings["emails"]["max_concurrency"] = 4  # as in the program's next version
        async with work():
            assert (await app.queue.queue("emails")).settings.max_concurrency == 4

    async def test_every_job_runs_once_whatever_the_number(self, app: Penstock, work: Work) -> None:
        ran: list[int] = []
        all_ran = asyncio.Event()

        @app.job(name="one")
        async def one(n: int) -> None:
            ran.append(n)
            if len(ran) == 1_000:
                all_ran.set()

        async with work(concurrency=20) as running:
            await app.enqueue_many([one.new(n) for n in range(1_000)])
            await asyncio.wait_for(all_ran.wait(), LONG)
            await until(running.idle)
        assert sorted(ran) == list(range(1_000))
        [view] = await app.queue.queues()
        assert view.counts[Status.SUCCEEDED] == 1_000


class TestFlows:
    async def test_a_failed_flow_goes_on_from_where_it_failed(self, app: Penstock, work: Work) -> None:
        ran: list[str] = []
        broken = True

        @app.job(name="step", max_attempts=1)
        async def step(name: str) -> str:
            ran.append(name)
            if name == "b" and broken:
                raise ValueError("not yet")
            return name

        flow = app.flow()
        flow.chain(step.new("a"), step.new("b"), step.new("c"))
        run = await flow.enqueue()
        async with work():
            with pytest.raises(JobFailed, match="not yet"):
                await run.results(timeout=LONG)
            broken = False
            await run.retry("fixed")
            assert list((await run.results(timeout=LONG)).values()) == ["a", "b", "c"]
        assert ran == ["a", "b", "b", "c"]

    async def test_a_flow_with_a_job_that_is_refused_does_not_run_at_all(self, app: Penstock) -> None:
        flow = app.flow()
        first = flow.add(app.new("a"))
        flow.add(app.new("b", parents=["00000000-0000-7000-8000-000000000000"]), after=first)
        with pytest.raises(Exception, match="does not exist"):
            await flow.enqueue()
        assert [job.status for job in (await app.queue.find()).jobs] == [Status.CANCELLED]

    async def test_a_flow_can_be_cancelled(self, app: Penstock) -> None:
        flow = app.flow()
        flow.chain(app.new("a"), app.new("b"))
        run = await flow.enqueue()
        await run.cancel("never mind")
        assert set((await run.status()).values()) == {Status.CANCELLED}


class TestYourOwnLoop:
    async def test_lease_and_settle_by_hand(self, app: Penstock) -> None:
        handle = await app.enqueue("a", {"n": 1}, queue="emails")
        [leased] = await app.lease("emails", limit=10, lease_seconds=30, worker_id="w1")
        async with app.keep_alive(leased):
            await app.heartbeat(leased, progress=5)
        await app.ack(leased, {"ok": True})
        assert await handle.result(timeout=LONG) == {"ok": True}

    async def test_keep_alive_keeps_it_and_says_when_it_is_lost(self, app: Penstock) -> None:
        handle = await app.enqueue("a", max_attempts=1)
        [leased] = await app.lease(lease_seconds=1)
        async with app.keep_alive(leased):
            await asyncio.sleep(1.5)
            assert (await handle.job()).status is Status.RUNNING

        async def lose() -> None:
            async with app.keep_alive(leased):
                await app.release(leased, delay=60)
                await asyncio.sleep(LONG)

        with pytest.raises(LeaseLost):
            await lose()


class TestAWorkerBesideOtherCode:
    async def test_it_runs_while_the_block_does(self, app: Penstock) -> None:
        @app.job(name="add")
        async def add(a: int, b: int) -> int:
            return a + b

        async with app.worker(concurrency=2) as worker:
            assert await (await add.enqueue(1, 2)).result(timeout=LONG) == 3
            assert not worker.is_stopping
        assert worker.is_stopping

    async def test_what_keeps_it_from_starting_is_raised(self, app: Penstock) -> None:
        with pytest.raises(InvalidInput, match="concurrency"):
            async with app.worker(concurrency=0):
                pytest.fail("it never gets here")


class TestTheSyncFace:
    async def test_handlers_in_threads_can_use_it(self, app: Penstock, work: Work) -> None:
        @app.job(name="child")
        async def child(n: int) -> int:
            return n + 1

        @app.job(name="parent")
        def parent(n: int) -> int:
            result: int = child.sync.enqueue(n).sync.result(timeout=LONG)
            return result

        async with work():
            assert await (await parent.enqueue(1)).result(timeout=LONG) == 2

    async def test_it_refuses_to_block_an_event_loop(self, app: Penstock) -> None:
        with pytest.raises(RuntimeError, match=r"await the same call without \.sync"):
            app.sync.enqueue("a")

    def test_it_needs_no_event_loop(self) -> None:
        app = Penstock("memory://")
        handle = app.sync.enqueue("a", {"n": 1})
        [leased] = app.sync.lease()
        app.sync.ack(leased, 5)
        assert handle.sync.result(timeout=1) == 5
        app.sync.close()
        app.portal.close()
