"""The options of a URL that weigh money against time: how long a write waits for company, how seldom one looks."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.connecting import connect
from penstock.core.errors import InvalidInput
from penstock.queue import Queue
from penstock.stores.log import log as log_module
from penstock.stores.log.backings.memory import MemoryBacking, MemoryTape
from penstock.stores.log.cost import commits_a_second
from penstock.stores.log.options import Options, read_options
from penstock.stores.log.shards import ShardedLogStore
from penstock.stores.log.store import LogStore
from support.virtual import VirtualLoop, run

PUT_SECONDS = 0.04
WINDOW_SECONDS = 0.25


class Remote(MemoryTape):
    """A tape that takes its time, as a bucket does."""

    def __init__(self) -> None:
        super().__init__()
        self.appended_at: list[float] = []
        self.reads = 0

    async def append(self, data: bytes) -> int:
        self.appended_at.append(_now())
        await asyncio.sleep(PUT_SECONDS)
        return await super().append(data)

    async def read(self, after: int, most: int = 1000) -> list[tuple[int, bytes]]:
        self.reads += 1
        return await super().read(after, most)


def _now() -> float:
    return asyncio.get_running_loop().time()


def with_queue(
    main: Callable[[Queue, Remote], Coroutine[Any, Any, None]], window: float = WINDOW_SECONDS
) -> None:
    async def opened() -> None:
        tape = Remote()
        queue = Queue(LogStore.on(tape, window=window))
        await main(queue, tape)
        await queue.close()

    run(opened())


async def enqueue_after(queue: Queue, seconds: float, **asked: Any) -> float:
    """How long it took."""
    await asyncio.sleep(seconds)
    begun = _now()
    await queue.enqueue("a", **asked)
    return _now() - begun


class TestWindow:
    def test_costs_one_who_is_alone_no_more_than_itself(self) -> None:
        async def main(queue: Queue, tape: Remote) -> None:
            for _ in range(3):
                assert await enqueue_after(queue, 1) == pytest.approx(WINDOW_SECONDS + PUT_SECONDS)

        with_queue(main)

    def test_lets_all_who_come_within_it_share_an_entry(self) -> None:
        async def main(queue: Queue, tape: Remote) -> None:
            took = await asyncio.gather(*(enqueue_after(queue, 0.02 * n) for n in range(12)))
            assert len(tape.appended_at) == 1
            assert max(took) == pytest.approx(WINDOW_SECONDS + PUT_SECONDS)
            assert min(took) < 0.1

        with_queue(main)

    def test_without_one_nobody_waits(self) -> None:
        async def main(queue: Queue, tape: Remote) -> None:
            assert await enqueue_after(queue, 0) == pytest.approx(PUT_SECONDS)
            await asyncio.gather(*(enqueue_after(queue, 0.02 * n) for n in range(12)))
            assert len(tape.appended_at) > 5

        with_queue(main, 0.0)

    def test_saves_requests_where_callers_come_one_by_one(self) -> None:
        async def main(queue: Queue, tape: Remote) -> None:
            await asyncio.gather(*(enqueue_after(queue, 0.05 * n) for n in range(200)))
            counts.append(len(tape.appended_at))

        counts: list[int] = []
        for window in (0.0, 0.1, 1.0):
            with_queue(main, window)
        assert counts[0] == 200
        assert counts[1] <= 100
        assert counts[2] <= 12

    @pytest.mark.parametrize("calls", [2, 20, pytest.param(200, marks=pytest.mark.long)])
    @pytest.mark.parametrize("window", [0.0, 0.25, 1.0])
    def test_makes_as_many_commits_as_the_costs_are_reckoned_with(self, calls: int, window: float) -> None:
        async def main(queue: Queue, tape: Remote) -> None:
            dice, at, times = Random(7), 0.0, list[float]()
            while (at := at + dice.expovariate(calls)) < 200:
                times.append(at)
            await asyncio.gather(*(enqueue_after(queue, at) for at in times))
            assert len(tape.appended_at) / 200 == pytest.approx(commits_a_second(calls, window), rel=0.2)

        with_queue(main, window)

    def test_is_over_when_an_entry_is_full(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_module, "MOST_OPS", 5)

        async def main(queue: Queue, tape: Remote) -> None:
            took = await asyncio.gather(*(enqueue_after(queue, 0) for _ in range(5)))
            assert took == [pytest.approx(PUT_SECONDS)] * 5
            assert len(tape.appended_at) == 1

        with_queue(main)

    def test_is_over_when_an_entry_is_full_of_bytes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_module, "MOST_BYTES", 20_000)

        async def main(queue: Queue, tape: Remote) -> None:
            small = asyncio.create_task(enqueue_after(queue, 0))
            large = await enqueue_after(queue, 0.01, payload={"of": "x" * 30_000})
            assert large <= 2 * PUT_SECONDS + 0.001
            assert await small <= 0.01 + 2 * PUT_SECONDS + 0.001

        with_queue(main)

    def test_is_over_when_a_long_list_comes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_module, "MOST_BYTES", 20_000)
        monkeypatch.setattr("penstock.stores.log.store.MOST_BYTES", 20_000)

        async def main(queue: Queue, tape: Remote) -> None:
            small = asyncio.create_task(enqueue_after(queue, 0))
            await asyncio.sleep(0.01)
            await queue.enqueue_many([{"type": "a", "payload": {"of": "x" * 9_000}} for _ in range(6)])
            assert await small < WINDOW_SECONDS

        with_queue(main)

    def test_keeps_the_order_of_those_who_wait(self) -> None:
        async def main(queue: Queue, tape: Remote) -> None:
            answers = await asyncio.gather(
                *(queue.enqueue("a", payload={"n": n}, unique_key="one") for n in range(9))
            )
            assert {answer.id for answer in answers} == {answers[0].id}
            assert (await queue.get(answers[0].id)).asked.payload == '{"n":0}'

        with_queue(main)

    def test_takes_back_what_was_given_up_meanwhile_and_lets_go_of_the_rest_at_the_end(self) -> None:
        async def main(queue: Queue, tape: Remote) -> None:
            await queue.enqueue("a")
            gone, stays = (asyncio.create_task(queue.enqueue("a")) for _ in range(2))
            await asyncio.sleep(0.01)
            gone.cancel()
            begun = _now()
            await queue.store.close()
            await stays
            assert _now() - begun <= PUT_SECONDS + 0.001
            assert len(tape.appended_at) == 2
            assert await tape.last() == 2
            assert gone.cancelled() or not await asyncio.wait([gone])
            fresh = Queue(LogStore.on(tape))
            assert len((await fresh.find()).jobs) == 2

        with_queue(main)

    def test_of_an_event_loop_that_has_ended_is_over(self) -> None:
        """A queue may be used by one loop after the other, whatever the first left behind."""
        tape = MemoryTape()
        queue = Queue(LogStore.on(tape, window=0.1))

        async def leave() -> None:
            asyncio.get_running_loop().create_task(queue.enqueue("left"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        async def go_on() -> int:
            await queue.enqueue("a")
            found = len((await queue.find()).jobs)
            await queue.close()
            return found

        asyncio.run(leave())
        assert queue.store._log._company._over is not None, "it ended inside a window"  # type: ignore[attr-defined]
        assert asyncio.run(go_on()) == 1


class TestPoll:
    @pytest.mark.parametrize(("poll", "looks"), [(5.0, (480, 720)), (30.0, (80, 120)), (1.0, (2400, 3600))])
    def test_is_the_longest_pause_between_two_looks(
        self, poll: float, looks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loop, tape = VirtualLoop(), Remote()
        monkeypatch.setattr(time, "monotonic", loop.time)

        async def rest() -> None:
            store = LogStore.on(tape, poll=poll)
            async with store.wakeups.listen("default", ["default"]):
                await asyncio.sleep(3_600)
            await store.close()

        try:
            loop.run_until_complete(rest())
        finally:
            monkeypatch.undo()
            loop.close()
        assert looks[0] <= tape.reads <= looks[1]


class TestUrl:
    @pytest.mark.parametrize(
        ("url", "rest", "options"),
        [
            ("file:./jobs", "file:./jobs", Options()),
            ("file:./jobs?window=50ms", "file:./jobs", Options(window=0.05)),
            (
                "s3://b/p?window=0.2s&region=eu-1&poll=1m",
                "s3://b/p?region=eu-1",
                Options(window=0.2, poll=60.0),
            ),
            ("gs://b?poll=500ms&shards=8", "gs://b", Options(poll=0.5, shards=8)),
            ("az://c/p?account=a&window=1s", "az://c/p?account=a", Options(window=1.0)),
            ("s3://b?window=0s&window=10ms", "s3://b", Options(window=0.01)),
        ],
    )
    def test_names_them(self, url: str, rest: str, options: Options) -> None:
        assert read_options(url) == (rest, options)

    @pytest.mark.parametrize("place", ["file:///tmp/jobs", "s3://b/p", "gs://b/p", "az://c/p?account=a"])
    @pytest.mark.parametrize(
        ("option", "said"),
        [
            ("window=2s", "window must be a duration from 0s to 1s, such as 250ms or 1s"),
            ("window=50", "window must be a duration"),
            ("window=-1ms", "window must be a duration"),
            ("window=", "window must be a duration"),
            ("poll=0s", "poll must be a duration from 100ms to 600s"),
            ("poll=1h", "poll must be a duration"),
            ("shards=0", "shards must be a number from 1 to 64"),
            ("shards=two", "shards must be a number"),
        ],
    )
    def test_that_makes_no_sense_is_refused(self, place: str, option: str, said: str) -> None:
        url = place + ("&" if "?" in place else "?") + option
        with pytest.raises(InvalidInput, match=said):
            connect(url)

    @pytest.mark.parametrize(
        "url", ["file:///tmp/jobs?windows=1s", "memory+log://x?endpoint=y", "s3://b?linger=1s"]
    )
    def test_with_an_unknown_one_lists_the_known(self, url: str) -> None:
        with pytest.raises(InvalidInput, match="window, poll, shards"):
            connect(url)

    async def test_reaches_every_log_of_a_place(self, tmp_path: Path) -> None:
        async with connect(f"file://{tmp_path}/jobs?shards=2&window=20ms&poll=9s") as queue:
            store = queue.store
            assert isinstance(store, ShardedLogStore)
            for log in await store.logs():
                assert log._log._company is not None
                assert log._log._company._seconds == 0.02
                assert log.wakeups._poll == 9.0
            assert (await store.usage()).poll_seconds == 9.0
            assert (await queue.enqueue("a")).id

    def test_shards_have_windows_of_their_own(self) -> None:
        async def main() -> Counter[str]:
            backing = MemoryBacking()
            queue = Queue(ShardedLogStore(backing, 2, window=WINDOW_SECONDS))
            await asyncio.gather(*(queue.enqueue("a", queue=f"q{n}") for n in range(20)))
            await queue.close()
            return backing.requests

        assert run(main())["put"] == 2
