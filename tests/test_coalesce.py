"""Many concurrent calls, one batch call, each caller its own answer."""

from __future__ import annotations

import asyncio
import gc
import signal
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar
from itertools import chain
from typing import Any

import pytest

from penstock.coalesce import MOST_RIDING, Coalesce, Groups
from penstock.core.errors import InvalidInput, LeaseLost, PenstockError, StoreUnavailable


class Doubler:
    """Answers each number with its double, when it is let; remembers every batch."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.started = asyncio.Event()
        self.under_way = self.most_under_way = 0
        self.error: BaseException | None = None

    async def __call__(self, items: list[int]) -> Sequence[int | Exception]:
        self.batches.append(items)
        self.started.set()
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.open.wait()
            await asyncio.sleep(0)
            if self.error is not None:
                raise self.error
            return [ValueError(f"{item} is odd") if item % 2 else item * 2 for item in items]
        finally:
            self.under_way -= 1

    async def hold(self, coalesce: Coalesce[int, int], item: int = 0) -> asyncio.Task[int]:
        """A call whose batch is on its way and stays there until `open` is set."""
        self.open.clear()
        self.started.clear()
        task = asyncio.create_task(coalesce(item))
        await self.started.wait()
        return task


@pytest.fixture(autouse=True)
def no_endless_wait() -> Iterator[None]:
    """What this piece does wrong, it mostly does by never answering."""

    def ring(*_: object) -> None:
        raise TimeoutError("somebody was never answered")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
async def run() -> Doubler:
    return Doubler()


async def turns(number: int = 5) -> None:
    """Let everyone who can go on do so."""
    for _ in range(number):
        await asyncio.sleep(0)


def calls(coalesce: Coalesce[int, int], items: Sequence[int]) -> list[asyncio.Task[int]]:
    return [asyncio.create_task(coalesce(item)) for item in items]


class TestBatches:
    async def test_a_call_alone_is_a_batch_of_one(self, run: Doubler) -> None:
        assert await Coalesce(run)(2) == 4
        assert run.batches == [[2]]

    async def test_a_call_alone_waits_for_no_timer(self, run: Doubler) -> None:
        task = asyncio.create_task(Coalesce(run)(2))
        await turns(2)
        assert run.batches == [[2]]
        await task

    async def test_calls_of_one_turn_go_together(self, run: Doubler) -> None:
        coalesce = Coalesce(run)
        assert await asyncio.gather(*(coalesce(item) for item in range(0, 64, 2))) == list(range(0, 128, 4))
        assert len(run.batches) == 1

    async def test_what_arrives_meanwhile_is_the_next_batch(self, run: Doubler) -> None:
        coalesce = Coalesce(run)
        first = await run.hold(coalesce)
        rest = calls(coalesce, [2, 4])
        await turns()
        rest += calls(coalesce, [6])
        await turns()
        assert run.batches == [[0]]
        run.open.set()
        assert await asyncio.gather(first, *rest) == [0, 4, 8, 12]
        assert run.batches == [[0], [2, 4, 6]]

    async def test_callers_who_come_back_at_once_stay_together(self, run: Doubler) -> None:
        coalesce = Coalesce(run)

        async def caller(item: int) -> None:
            for _ in range(10):
                await coalesce(item)

        early = [asyncio.create_task(caller(0)) for _ in range(4)]
        await turns(2)
        late = [asyncio.create_task(caller(2)) for _ in range(4)]  # while the first batch is on its way
        await asyncio.gather(*early, *late)
        assert [len(batch) for batch in run.batches] == [4, *[8] * 9, 4]

    async def test_no_batch_has_more_than_most(self, run: Doubler) -> None:
        coalesce = Coalesce(run, most=3)
        await asyncio.gather(*(coalesce(item) for item in range(0, 16, 2)))
        assert run.batches == [[0, 2, 4], [6, 8, 10], [12, 14]]

    @pytest.mark.parametrize("at_once", [1, 2, 3])
    async def test_no_more_are_on_their_way_than_at_once(self, run: Doubler, at_once: int) -> None:
        coalesce = Coalesce(run, most=2, at_once=at_once)
        run.open.clear()
        tasks = calls(coalesce, range(0, 40, 2))
        await turns(10)
        assert run.under_way == at_once
        run.open.set()
        await asyncio.gather(*tasks)
        assert run.most_under_way == at_once
        assert sorted(chain(*run.batches)) == list(range(0, 40, 2))

    async def test_two_at_once_do_not_split_what_fits_in_one(self, run: Doubler) -> None:
        coalesce = Coalesce(run, at_once=2)
        before = len(asyncio.all_tasks())
        tasks = calls(coalesce, range(0, 10, 2))
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == before + len(tasks) + 1
        await asyncio.gather(*tasks)
        assert run.batches == [[0, 2, 4, 6, 8]]

    async def test_a_second_one_leaves_while_the_first_is_on_its_way(self, run: Doubler) -> None:
        coalesce = Coalesce(run, at_once=2)
        first = await run.hold(coalesce)
        second = calls(coalesce, [2])
        await turns()
        assert run.batches == [[0], [2]]
        run.open.set()
        await asyncio.gather(first, *second)

    async def test_run_in_the_context_they_were_set_up_in(self) -> None:
        who: ContextVar[str] = ContextVar("who", default="nobody")
        seen: list[str] = []

        async def run(items: list[int]) -> list[int]:
            seen.append(who.get())
            return items

        who.set("the one who set it up")
        coalesce = Coalesce(run)
        who.set("the caller")
        await coalesce(1)
        assert seen == ["the one who set it up"]

    @pytest.mark.parametrize("wrong", [{"most": 0}, {"at_once": 0}, {"backlog": 0}])
    async def test_refuse_sizes_below_one(self, run: Doubler, wrong: dict[str, int]) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            Coalesce(run, **wrong)


class TestErrors:
    async def test_an_item_gets_its_own(self, run: Doubler) -> None:
        coalesce = Coalesce(run)
        answers = await asyncio.gather(*(coalesce(item) for item in (2, 3, 4)), return_exceptions=True)
        assert [answers[0], str(answers[1]), answers[2]] == [4, "3 is odd", 8]

    async def test_of_the_batch_reach_every_caller(self, run: Doubler) -> None:
        run.error = StoreUnavailable("there", "away")
        coalesce = Coalesce(run)
        answers = await asyncio.gather(*(coalesce(item) for item in range(3)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
        assert {str(answer) for answer in answers} == {str(run.error)}
        assert [answer.facts for answer in answers if isinstance(answer, StoreUnavailable)] == [
            {"store": "there", "reason": "away"}
        ] * 3

    async def test_of_the_batch_are_each_callers_own(self, run: Doubler) -> None:
        """Raised again and again, a shared one would carry every other caller's frames."""
        run.error = StoreUnavailable("there", "away")
        run.error.add_note("seen by all")
        coalesce = Coalesce(run)
        depths: list[int] = []
        errors: list[BaseException] = []

        async def caller(item: int) -> None:
            try:
                await coalesce(item)
            except StoreUnavailable as error:
                depths.append(len(traceback.extract_tb(error.__traceback__)))
                error.add_note(f"caller {item}")
                errors.append(error)

        await asyncio.gather(*(caller(item) for item in range(5)))
        assert len(set(map(id, errors))) == 5
        assert len(set(depths)) == 1
        assert [error.__notes__ for error in errors] == [["seen by all", f"caller {n}"] for n in range(5)]

    async def test_of_the_batch_tell_where_they_came_from(self, run: Doubler) -> None:
        cause = OSError("the wire")
        run.error = StoreUnavailable("there", "away")
        run.error.__cause__ = cause
        coalesce = Coalesce(run)
        for answer in await asyncio.gather(*(coalesce(item) for item in range(2)), return_exceptions=True):
            assert isinstance(answer, StoreUnavailable)
            assert answer.__cause__ is cause
            assert answer.__suppress_context__
            assert "__call__" in [frame.name for frame in traceback.extract_tb(answer.__traceback__)][-1]

    async def test_of_the_batch_tell_during_what_they_came(self, run: Doubler) -> None:
        run.error = StoreUnavailable("there", "away")
        run.error.__context__ = OSError("the wire")
        coalesce = Coalesce(run)
        for answer in await asyncio.gather(*(coalesce(item) for item in range(2)), return_exceptions=True):
            assert isinstance(answer, StoreUnavailable)
            assert answer.__context__ is run.error.__context__
            assert not answer.__suppress_context__

    async def test_that_cannot_be_copied_are_given_as_they_are(self, run: Doubler) -> None:
        class Odd(Exception):
            def __init__(self, *, reason: str) -> None:
                super().__init__("odd", reason)

        run.error = Odd(reason="x")
        coalesce = Coalesce(run)
        answers = await asyncio.gather(*(coalesce(item) for item in range(2)), return_exceptions=True)
        assert answers == [run.error] * 2

    async def test_one_answer_given_to_many_is_each_callers_own(self) -> None:
        lost = LeaseLost("1")

        async def run(items: list[int]) -> list[int | Exception]:
            return [lost] * len(items)

        coalesce = Coalesce(run)
        answers = await asyncio.gather(*(coalesce(item) for item in range(3)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [LeaseLost] * 3
        assert len(set(map(id, answers))) == 3

    async def test_do_not_stop_the_next_batch(self, run: Doubler) -> None:
        coalesce = Coalesce(run)
        first = await run.hold(coalesce)
        second = calls(coalesce, [2])
        await turns()
        run.error = StoreUnavailable("there", "away")
        run.open.set()
        with pytest.raises(StoreUnavailable):
            await first
        run.error = None
        assert await second[0] == 4
        assert await coalesce(6) == 12

    @pytest.mark.parametrize("answers", [[], [1], [1, 2, 3]])
    async def test_too_few_or_too_many_answers_are_one(self, answers: list[int]) -> None:
        async def run(items: list[int]) -> list[int]:
            return answers

        coalesce = Coalesce(run)
        got = await asyncio.gather(coalesce(1), coalesce(2), return_exceptions=True)
        assert [str(one) for one in got] == [f"a batch of 2 got {len(answers)} answers"] * 2

    async def test_a_run_that_is_no_coroutine_is_one(self) -> None:
        coalesce: Coalesce[int, int] = Coalesce(lambda items: items)  # type: ignore[arg-type, return-value]
        with pytest.raises(TypeError):
            await coalesce(1)

    async def test_an_answer_that_no_future_can_hold_is_one(self) -> None:
        async def run(items: list[int]) -> list[int | Exception]:
            return [StopIteration(1), *items[1:]]

        coalesce = Coalesce(run)
        got = await asyncio.gather(coalesce(1), coalesce(2), return_exceptions=True)
        assert [str(got[0]), got[1]] == ["StopIteration(1)", 2]

    async def test_leave_nothing_for_the_collector(self) -> None:
        """A store that is away for an hour fails thousands of batches; their items should be gone by then."""

        class Item:
            pass

        async def run(items: list[Item]) -> list[Item]:
            raise StoreUnavailable("there", "away")

        coalesce = Coalesce(run)
        gc.collect()
        gc.disable()
        try:
            await asyncio.gather(*(self._swallow(coalesce, Item()) for _ in range(3)))
            await turns()
            assert not [one for one in gc.get_objects() if type(one) is Item]
        finally:
            gc.enable()

    async def _swallow(self, coalesce: Coalesce[Any, Any], item: object) -> None:
        try:
            await coalesce(item)
        except StoreUnavailable:
            pass


class TestCancelled:
    async def test_a_caller_does_not_take_its_neighbours_along(self, run: Doubler) -> None:
        coalesce = Coalesce(run)
        run.open.clear()
        first, second, third = calls(coalesce, [2, 4, 6])
        await run.started.wait()
        second.cancel()
        await turns()
        run.open.set()
        await asyncio.gather(first, second, third, return_exceptions=True)
        assert (first.result(), second.cancelled(), third.result()) == (4, True, 12)
        assert run.batches == [[2, 4, 6]]
        assert await coalesce(8) == 16

    async def test_even_all_callers_do_not_break_off_their_batch(self, run: Doubler) -> None:
        coalesce = Coalesce(run)
        held = await run.hold(coalesce)
        held.cancel()
        await turns()
        assert run.under_way == 1
        run.open.set()
        assert await coalesce(2) == 4
        assert run.batches == [[0], [2]]

    async def test_a_caller_whose_batch_has_not_left_takes_its_item_back(self, run: Doubler) -> None:
        coalesce = Coalesce(run, most=2)
        held = await run.hold(coalesce)
        rest = calls(coalesce, [2, 4, 6, 8])
        await turns()
        rest[1].cancel()
        await turns()
        run.open.set()
        await asyncio.gather(held, *rest, return_exceptions=True)
        assert run.batches == [[0], [2, 6], [8]]

    async def test_no_batch_is_sent_when_every_caller_has_left(self, run: Doubler) -> None:
        coalesce = Coalesce(run)
        held = await run.hold(coalesce)
        rest = calls(coalesce, [2, 4])
        await turns()
        for task in rest:
            task.cancel()
        run.open.set()
        await asyncio.gather(held, *rest, return_exceptions=True)
        await turns()
        assert run.batches == [[0]]
        assert await coalesce(6) == 12

    async def test_a_caller_too_late_for_its_error_leaves_no_complaint(
        self, run: Doubler, caplog: pytest.LogCaptureFixture
    ) -> None:
        coalesce = Coalesce(run)
        held = await run.hold(coalesce, 1)
        run.open.set()
        await turns(2)  # the error is in the future; the caller has not looked yet
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        del held
        gc.collect()
        assert caplog.records == []

    async def test_something_within_run_is_an_error_of_that_batch_alone(self, run: Doubler) -> None:
        run.error = asyncio.CancelledError()
        coalesce = Coalesce(run)
        with pytest.raises(RuntimeError, match="broken off"):
            await coalesce(1)
        run.error = None
        assert await coalesce(2) == 4

    async def test_a_batch_before_its_first_step_tells_and_leaves_the_way_free(self, run: Doubler) -> None:
        coalesce = Coalesce(run)
        put = await coalesce.put(2)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        with pytest.raises(RuntimeError, match="broken off"):
            await put
        assert run.batches == []
        assert await coalesce(4) == 8


class TestBacklog:
    async def test_makes_callers_wait_outside(self, run: Doubler) -> None:
        coalesce = Coalesce(run, backlog=2)
        held = await run.hold(coalesce)
        inside = [await coalesce.put(2), await coalesce.put(4)]
        outside = asyncio.create_task(coalesce.put(6))
        await turns()
        assert not outside.done()
        run.open.set()
        assert await asyncio.gather(held, *inside) == [0, 4, 8]
        assert await (await outside) == 12

    async def test_lets_in_by_order_of_coming(self, run: Doubler) -> None:
        coalesce = Coalesce(run, most=2, backlog=1)
        await asyncio.gather(*(coalesce(item) for item in range(0, 20, 2)))
        assert list(chain(*run.batches)) == list(range(0, 20, 2))

    async def test_gives_the_room_of_those_who_left_to_others(self, run: Doubler) -> None:
        coalesce = Coalesce(run, backlog=1)
        for _ in range(3):
            held = await run.hold(coalesce)
            inside, outside = calls(coalesce, [2, 4])
            await turns()
            inside.cancel()
            outside.cancel()
            run.open.set()
            await asyncio.gather(held, inside, outside, return_exceptions=True)
        run.batches.clear()
        assert await asyncio.gather(*(coalesce(item) for item in (2, 4, 6))) == [4, 8, 12]

    async def test_does_not_count_what_is_on_its_way(self, run: Doubler) -> None:
        coalesce = Coalesce(run, backlog=1)
        held = await run.hold(coalesce)
        put = await coalesce.put(2)
        run.open.set()
        assert [await held, await put] == [0, 4]


class TestClose:
    async def test_of_an_idle_one_is_immediate(self, run: Doubler) -> None:
        await Coalesce(run).close()
        coalesce = Coalesce(run)
        await coalesce(2)
        await coalesce.close()
        await coalesce.close()

    async def test_waits_for_what_is_under_way_and_what_waits(self, run: Doubler) -> None:
        coalesce = Coalesce(run, most=2, backlog=3)
        tasks = [await run.hold(coalesce), *calls(coalesce, range(2, 20, 2))]
        await turns()
        closing = asyncio.create_task(coalesce.close())
        await turns()
        assert not closing.done()
        run.open.set()
        await closing
        assert run.under_way == 0
        await turns()
        assert [task.result() for task in tasks] == list(range(0, 40, 4))

    async def test_refuses_later_calls(self, run: Doubler) -> None:
        coalesce = Coalesce(run)
        await coalesce.close()
        with pytest.raises(RuntimeError, match="closed"):
            await coalesce(2)
        assert run.batches == []

    async def test_cancelled_does_not_break_off_the_batch(self, run: Doubler) -> None:
        coalesce = Coalesce(run)
        held = await run.hold(coalesce)
        closing = asyncio.create_task(coalesce.close())
        await turns()
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        run.open.set()
        assert await held == 0


def until_done(main: Callable[[], Awaitable[Any]]) -> Any:
    """Run on a loop that is then closed as it is: nothing cancelled, nothing waited for."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


class TestLoops:
    """Plain functions: each brings loops of its own."""

    async def _double(self, items: list[int]) -> list[int]:
        await asyncio.sleep(0)
        return [item * 2 for item in items]

    async def _stall(self, items: list[int]) -> list[int]:
        if 0 in items:
            await asyncio.Event().wait()
        return await self._double(items)

    def test_one_after_the_other_may_use_it(self) -> None:
        coalesce: Coalesce[int, int] = Coalesce(self._double, backlog=2)

        async def main() -> list[int]:
            return await asyncio.gather(*(coalesce(item) for item in range(5)))

        assert [asyncio.run(main()) for _ in range(3)] == [[0, 2, 4, 6, 8]] * 3

    def test_one_that_ends_in_the_middle_leaves_nothing_behind(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        coalesce: Coalesce[int, int] = Coalesce(self._stall, backlog=2)

        async def leave() -> None:
            self.tasks = calls(coalesce, range(5))
            await turns()

        async def main() -> int:
            return await coalesce(2)

        asyncio.run(leave())
        assert all(task.cancelled() for task in self.tasks)
        assert asyncio.run(main()) == 4
        assert caplog.records == []

    def test_one_that_ends_tells_those_who_only_handed_in(self) -> None:
        coalesce: Coalesce[int, int] = Coalesce(self._stall)

        async def leave() -> list[asyncio.Future[int]]:
            first = await coalesce.put(0)
            await turns()
            return [first, await coalesce.put(2)]

        for future in asyncio.run(leave()):
            assert "broken off" in str(future.exception())

    def test_one_closed_around_a_batch_does_not_block_the_next(self) -> None:
        coalesce: Coalesce[int, int] = Coalesce(self._stall, backlog=1)

        async def leave() -> None:
            self.tasks = calls(coalesce, range(3))
            await turns()

        async def main() -> int:
            return await coalesce(2)

        until_done(leave)
        assert until_done(main) == 4
        self.tasks.clear()
        gc.collect()

    def test_one_in_use_keeps_others_out(self) -> None:
        coalesce: Coalesce[int, int] = Coalesce(self._stall)

        async def use() -> None:
            self.tasks = calls(coalesce, [0])
            await turns()

        async def main() -> None:
            await coalesce(2)

        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(use())
            with pytest.raises(RuntimeError, match="another event loop"):
                until_done(main)
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(turns())
        finally:
            loop.close()

    def test_close_after_the_loop_has_ended_is_immediate(self) -> None:
        coalesce: Coalesce[int, int] = Coalesce(self._stall)

        async def leave() -> None:
            self.tasks = calls(coalesce, [0])
            await turns()

        until_done(leave)
        until_done(coalesce.close)
        self.tasks.clear()
        gc.collect()


class Told:
    """Answers each text with its tenant before it; refuses what is too long, and the whole call for what is empty."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[str]]] = []

    async def __call__(self, tenant: str, items: Sequence[str]) -> list[str | PenstockError]:
        self.batches.append((tenant, list(items)))
        await asyncio.sleep(0)
        if "" in items:
            raise InvalidInput("text", "be given", "")
        return [LeaseLost(item) if len(item) > 3 else f"{tenant} {item}" for item in items]


class TestGroups:
    async def test_singles_and_lists_go_together_and_lists_stay_whole(self) -> None:
        told = Told()
        groups: Groups[str, str] = Groups(told, 2)
        first, [second, refused, third], fourth, none = await asyncio.gather(
            groups("t", "a"), groups.many("t", ["b", "long", "c"]), groups("t", "d"), groups.many("t", [])
        )
        assert told.batches == [("t", ["a", "b", "long", "c", "d"])]
        assert (first, second, third, fourth) == ("t a", "t b", "t c", "t d")
        assert isinstance(refused, LeaseLost)
        assert none == []

    async def test_a_single_call_raises_its_error(self) -> None:
        groups: Groups[str, str] = Groups(Told(), 1)
        with pytest.raises(LeaseLost):
            await groups("t", "long")

    async def test_tenants_are_kept_apart(self) -> None:
        told = Told()
        groups: Groups[str, str] = Groups(told, 1)
        assert [*await asyncio.gather(groups("t", "a"), groups("u", "a"))] == ["t a", "u a"]
        assert told.batches == [("t", ["a"]), ("u", ["a"])]

    async def test_a_long_list_goes_by_itself(self) -> None:
        told = Told()
        groups: Groups[str, str] = Groups(told, 1)
        await asyncio.gather(groups("t", "a"), groups.many("t", ["b"] * (MOST_RIDING + 1)))
        assert sorted(len(items) for _, items in told.batches) == [1, MOST_RIDING + 1]

    async def test_a_call_refused_for_one_callers_value_is_asked_again_for_the_others(self) -> None:
        groups: Groups[str, str] = Groups(Told(), 1)
        good, bad, fine = await asyncio.gather(
            groups("t", "a"), groups("t", ""), groups.many("t", ["b", "c"]), return_exceptions=True
        )
        assert good == "t a"
        assert isinstance(bad, InvalidInput)
        assert fine == ["t b", "t c"]
