"""What time it is in a log, though machines' clocks are wrong: nobody's lease ends early, and nothing is lost."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.core.commands import Leased
from penstock.core.errors import StoreUnavailable
from penstock.core.job import Status
from penstock.queue import Queue
from penstock.stores.log.backings import clocks
from penstock.stores.log.backings.clocks import MachineClock, StoreClock
from penstock.stores.log.backings.files import FolderObjects
from penstock.stores.log.backings.memory import MemoryObjects
from penstock.stores.log.backings.numbered import ObjectTape
from penstock.stores.log.errors import ClockOff
from penstock.stores.log.log import Source
from penstock.stores.log.state import State
from penstock.stores.log.store import LogStore
from penstock.stores.wakeups.memory import MemoryWakeups
from support.virtual import VirtualLoop, run

START = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = 3600.0


class Bucket:
    """Objects dated to the second by a clock that is right, which the loop's is."""

    def __init__(self) -> None:
        self.off = 0.0
        self.slow = 0.0
        self.writes = 0
        self.objects = MemoryObjects(self.time)

    def time(self) -> datetime:
        return START + timedelta(seconds=int(_now() + self.off))

    async def write(self) -> str:
        self.writes += 1
        await asyncio.sleep(0.05 + self.slow)
        await self.objects.create(key := f"clock/{self.writes}", b"")
        return key

    async def dated(self, key: str) -> datetime:
        found = await self.objects.head(key)
        assert found is not None
        return found.modified


class Machine:
    """A machine whose wall clock may be off, or be set."""

    def __init__(self, bucket: Bucket, off: float = 0.0, clock: type[StoreClock] = StoreClock) -> None:
        self.bucket, self.off = bucket, off
        self.clock = clock("the bucket", bucket.write, bucket.dated, wall=self.wall, steady=self.steady)

    def wall(self) -> float:
        return START.timestamp() + _now() + self.off

    def steady(self) -> float:
        return 77.0 + _now()

    def queue(self) -> Queue:
        async def load(wakeups: MemoryWakeups) -> State:
            return State(wakeups=wakeups)

        async def leave_open() -> None:
            pass

        async def open() -> Source:
            tape = ObjectTape(self.bucket.objects, "s00", clocks=lambda: (_now(),))
            return Source(tape, self.clock.now, load, leave_open)

        return Queue(LogStore(open))

    async def error(self) -> float:
        """How far it is off the bucket's time."""
        return (await self.clock.now() - START).total_seconds() - _now() - self.bucket.off


def _now() -> float:
    return asyncio.get_running_loop().time()


class GoesByTheWall(StoreClock):
    async def now(self) -> datetime:
        return datetime.fromtimestamp(self._wall(), UTC)


class LooksOnce(StoreClock):
    """Goes by what was measured first, and the machine's clock."""

    async def now(self) -> datetime:
        if self._ahead is None:
            self._ahead = await self._measured(None)
            self._first = self._ahead - (self._wall() - self._steady())
        return datetime.fromtimestamp(self._wall() + self._first, UTC)


async def beside_one_that_is_right(
    other: Machine, then: Callable[[], None] = lambda: None
) -> tuple[Status, float]:
    """One works under a lease of half a minute, another writes; what became of the lease, and how long it lasted."""
    right = Machine(other.bucket).queue()
    queue, its = right, other.queue()
    ids = [(await queue.enqueue("a")).id]
    [leased] = await queue.lease(worker="w", lease_seconds=30)
    begun = _now()
    ids += [(await its.enqueue("b", queue="other")).id]
    then()
    for _ in range(10):
        await asyncio.sleep(2)
        ids.append((await its.enqueue("b", queue="other")).id)
    status = (await queue.get(leased.id)).status
    while await _is_held(queue, leased):
        await asyncio.sleep(1)
        await its.enqueue("b", queue="other")
    lasted = _now() - begun
    assert all([(await its.get(one)).id == one for one in ids]), "something is lost"
    assert {(await queue.get(one)).id for one in ids} == set(ids)
    for one in (queue, its):
        await one.close()
    return status, lasted


async def _is_held(queue: Queue, leased: Leased) -> bool:
    return (await queue.get(leased.id)).status is Status.RUNNING


class TestInABucket:
    @pytest.mark.parametrize("off", [HOUR, -HOUR, 5.0, -5.0, 0.4])
    def test_a_writer_whose_clock_is_off_ends_nobodys_lease(self, off: float) -> None:
        async def main() -> tuple[Status, float]:
            return await beside_one_that_is_right(Machine(Bucket(), off))

        status, lasted = run(main())
        assert status is Status.RUNNING
        assert 28 <= lasted <= 34

    @pytest.mark.parametrize("off", [HOUR, -HOUR])
    def test_nor_does_one_whose_clock_is_set_wrong_while_it_works(self, off: float) -> None:
        async def main() -> tuple[Status, float]:
            machine = Machine(Bucket())
            return await beside_one_that_is_right(machine, lambda: setattr(machine, "off", off))

        status, lasted = run(main())
        assert status is Status.RUNNING
        assert 28 <= lasted <= 34

    @pytest.mark.parametrize("wrong", [GoesByTheWall, LooksOnce])
    def test_without_the_measure_it_would(self, wrong: type[StoreClock]) -> None:
        async def main() -> tuple[Status, float]:
            machine = Machine(Bucket(), HOUR if wrong is GoesByTheWall else 0.0, wrong)
            return await beside_one_that_is_right(machine, lambda: setattr(machine, "off", HOUR))

        status, lasted = run(main())
        assert status is not Status.RUNNING
        assert lasted < 25

    def test_a_clock_that_is_set_while_it_is_measured_is_not_believed(self) -> None:
        async def main() -> float:
            machine = Machine(Bucket())
            asyncio.get_running_loop().call_later(0.02, setattr, machine, "off", HOUR)
            return await machine.error()

        assert abs(run(main())) <= 1.0

    def test_it_is_measured_anew_every_few_minutes_and_when_it_was_set_and_not_for_each_entry(self) -> None:
        async def main() -> list[int]:
            machine, counts = Machine(Bucket()), []
            for seconds, off in (
                (0, 0),
                (100, 0),
                (100, 0),
                (0, 50),
                (10, 50),
                (clocks.GOOD_FOR_SECONDS, 50),
            ):
                await asyncio.sleep(seconds)
                machine.off = float(off)
                assert abs(await machine.error()) <= 1.0
                counts.append(machine.bucket.writes)
            return counts

        assert run(main()) == [1, 1, 1, 2, 2, 3]

    def test_that_cannot_be_told_refuses_to_write_and_goes_on_by_itself(self) -> None:
        """One bucket behind two servers whose clocks are an hour apart, say."""

        class TwoServers(Bucket):
            broken = False

            async def dated(self, key: str) -> datetime:
                off = HOUR * self.writes if self.broken else 0.0
                return await super().dated(key) + timedelta(seconds=off)

        async def main() -> None:
            bucket = TwoServers()
            queue = Machine(bucket).queue()
            await queue.enqueue("a")
            bucket.broken = True
            await asyncio.sleep(clocks.GOOD_FOR_SECONDS)
            with pytest.raises(
                ClockOff, match=r"is \+3,[56]\d\d\.\d s off what it dated before; nothing was written"
            ) as raised:
                await queue.enqueue("a")
            assert isinstance(raised.value, StoreUnavailable), "workers try again"
            entries = len(await bucket.objects.list("s00/log"))
            assert len((await queue.find()).jobs) == 1, "it can be read"
            bucket.broken = False
            await queue.enqueue("a")
            assert len(await bucket.objects.list("s00/log")) == entries + 1 == 2
            await queue.close()

        run(main())

    def test_that_was_really_set_is_the_time(self) -> None:
        """Time is the store's: two measures that agree are believed, whatever the machine says."""

        async def main() -> float:
            machine = Machine(Bucket())
            await machine.clock.now()
            machine.bucket.off = 2 * HOUR
            await asyncio.sleep(clocks.GOOD_FOR_SECONDS)
            return await machine.error()

        assert abs(run(main())) <= 1.0

    @pytest.mark.parametrize(("slow", "off", "refused"), [(6, 0.0, False), (6, HOUR, True), (60, 0.0, True)])
    def test_a_store_that_is_slow_is_believed_as_far_as_it_says_anything(
        self, slow: float, off: float, refused: bool
    ) -> None:
        async def main() -> None:
            machine = Machine(Bucket(), off)
            machine.bucket.slow = slow
            if not refused:
                assert abs(await machine.error()) <= 1.0
                return
            with pytest.raises(ClockOff, match=f"a write to it takes {slow}"):
                await machine.clock.now()
            machine.bucket.slow = 0.0
            assert abs(await machine.error()) <= 1.0

        run(main())

    @pytest.mark.parametrize("slow", [(5, 0, 5), (0, 5, 5), (5, 5, 0)])
    def test_a_slow_store_is_not_believed_where_it_was_quick_once_and_said_otherwise(
        self, slow: tuple[float, ...]
    ) -> None:
        class Moody(Bucket):
            async def write(self) -> str:
                self.slow = slow[self.writes % len(slow)]
                return await super().write()

        async def main() -> None:
            with pytest.raises(ClockOff):
                await Machine(Moody(), 5.0).clock.now()
            assert abs(await Machine(Moody()).error()) <= 1.0, "what nothing refutes"

        run(main())

    def test_is_measured_once_for_all_who_ask_meanwhile(self) -> None:
        async def main() -> int:
            machine = Machine(Bucket())
            assert len({*await asyncio.gather(*(machine.clock.now() for _ in range(50)))}) == 1
            return machine.bucket.writes

        assert run(main()) == 1

    def test_says_once_that_the_machines_is_off(self, caplog: pytest.LogCaptureFixture) -> None:
        async def main() -> None:
            machine = Machine(Bucket(), HOUR)
            for _ in range(3):
                await machine.clock.now()
                await asyncio.sleep(clocks.GOOD_FOR_SECONDS)

        with caplog.at_level(logging.WARNING, "penstock.log"):
            run(main())
        [told] = [record.getMessage() for record in caplog.records]
        assert re.match(
            r"the clock of the bucket is -3[56]\d\d\.\d s off this machine's; the store's is used", told
        )


class TestOfAMachine:
    """Its folder's time. All processes there have this one clock."""

    def _clock(self) -> tuple[MachineClock, list[float]]:
        wall_and_steady = [1e9, 5.0]
        return MachineClock(
            "a folder", lambda: wall_and_steady[0], lambda: wall_and_steady[1]
        ), wall_and_steady

    def _after(self, seconds: float, clock: MachineClock, times: list[float]) -> float:
        times[0] += seconds
        times[1] += seconds
        return clock.now().timestamp() - 1e9

    def test_goes_on_as_before_when_it_is_set_ahead_by_mistake(self) -> None:
        clock, times = self._clock()
        times[0] += HOUR
        assert self._after(10, clock, times) == pytest.approx(10)
        assert self._after(40, clock, times) == pytest.approx(50)
        times[0] -= HOUR
        assert self._after(100, clock, times) == pytest.approx(150)
        times[0] += HOUR
        assert self._after(10, clock, times) == pytest.approx(160), "the minute begins anew"

    def test_is_believed_when_it_stays_so(self, caplog: pytest.LogCaptureFixture) -> None:
        clock, times = self._clock()
        times[0] += HOUR
        with caplog.at_level(logging.WARNING, "penstock.log"):
            assert self._after(0, clock, times) == pytest.approx(0)
            assert self._after(clocks.STANDS_SECONDS - 1, clock, times) == pytest.approx(59)
            assert self._after(1, clock, times) == pytest.approx(HOUR + 60)
        assert [record.getMessage() for record in caplog.records] == [
            "the clock of this machine was set +3600.0 s ahead; a folder goes by it if it is still so in 60 s"
        ]

    @pytest.mark.parametrize("step", [-HOUR, -3.0, 1.5])
    def test_is_believed_at_once_where_that_harms_nobody(self, step: float) -> None:
        clock, times = self._clock()
        times[0] += step
        assert self._after(10, clock, times) == pytest.approx(step + 10)

    def test_is_the_machines(self, tmp_path: Path) -> None:
        loop = VirtualLoop()
        found = loop.run_until_complete(FolderObjects(tmp_path).now())
        loop.close()
        assert abs((found - datetime.now(UTC)).total_seconds()) < 60
