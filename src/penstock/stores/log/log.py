"""The log as one process holds it: what it writes goes out together, what others wrote is applied in order.

One append is on its way at a time; what is asked meanwhile rides in the next entry. A look at what others wrote serves
everyone who asked for one before it began.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from random import Random
from typing import Any, TypeVar

from msgspec import Struct

from penstock.coalesce import Coalesce
from penstock.core.errors import PenstockError, StoreUnavailable
from penstock.core.wakeups import Bell, WakeupsStatus
from penstock.stores.log.backings import Tape
from penstock.stores.log.company import Company
from penstock.stores.log.entry import LogEntry, Written, entry, read
from penstock.stores.log.errors import LogCorrupt, LogGap, LogStopped, LogTooNew, OutcomeUnknown, Truncated
from penstock.stores.log.options import REST, REST_JITTER
from penstock.stores.log.state import State
from penstock.stores.wakeups.bells import Switchboard
from penstock.stores.wakeups.loop import Loop
from penstock.stores.wakeups.memory import MemoryWakeups
from penstock.stores.wakeups.polling import LONGEST_SECONDS, Backoff

MOST_BYTES = 4 * 1_048_576
"""What an entry may have, unless a single call of one item has more."""
MOST_OPS = 1_000
READ_AT_ONCE = 1_000
APPLIED_AT_ONCE = 500
"""Commands of others that are applied before anyone else has a turn: some 10 ms."""

AHEAD_SECONDS = 2.0
TOLD_SECONDS = 60.0

logger = logging.getLogger("penstock.log")

Result = TypeVar("Result")
Now = Callable[[], Awaitable[datetime]]


class Source(Struct, frozen=True):
    """A log that was opened."""

    tape: Tape
    now: Now
    """The store's clock."""
    load: Callable[[MemoryWakeups], Awaitable[State]]
    """The newest snapshot; an empty state if there is none."""
    close: Callable[[], Awaitable[None]]


class Log:
    """What is in the log, and the way to add to it."""

    def __init__(
        self,
        name: str,
        open: Callable[[], Awaitable[Source]],
        random: Random | None = None,
        *,
        mark: bytes = b"",
        switchboard: Switchboard | None = None,
        window: float = 0.0,
        poll: float = LONGEST_SECONDS,
    ) -> None:
        self.wakeups = LogWakeups(self, random or Random(), switchboard, poll)
        self.followed_at = float("-inf")
        """When we last knew the end of the log, on the clock of this machine that nobody sets."""
        self._name = name
        self._open = open
        self._source: Source | None = None
        self._state: State | None = None
        self._opening: asyncio.Lock | None = None
        self._writer = mark + secrets.token_bytes(16 - len(mark))
        """Lease tokens begin with it, and so with the mark of their log."""
        self._batch = 0
        self._answers: dict[int, list[Any] | None] = {}
        """By batch: the answers to what we have under way; None until it is applied."""
        self._stopped: tuple[int, str] | None = None
        self._is_lost = True
        """Whether there may be something in the log that we cannot read: then nothing is written behind it."""
        self._told_at = float("-inf")
        self._commits: Coalesce[Written, Any] = Coalesce(self._commit, most=MOST_OPS)
        self._company = Company(window, MOST_OPS, MOST_BYTES) if window else None
        self.commit: Callable[[Written], Awaitable[Any]] = (
            self._commits if not window else self._commit_in_company
        )
        """Write a call down; its answer, raised if it is an error, once it is durable and applied."""
        self._looks: Coalesce[None, None] = Coalesce(self._look, most=1_000_000)

    @property
    def state(self) -> State:
        """How things stand as far as we have read. Only once `follow` or `commit` has gone through."""
        assert self._state is not None
        return self._state

    @property
    def is_open(self) -> bool:
        return self._state is not None

    async def commit_all(self, calls: Iterable[Written]) -> list[Any]:
        """Several calls, in their order, though perhaps in several entries; what each came to, be it an error.

        If all failed one error is raised for all; and if any may have taken effect, that is what it says.
        """
        if self._company is not None:
            self._company.end()  # here is company enough
        futures = [await self._commits.put(call) for call in calls]
        answers = await asyncio.gather(*futures, return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        failed.sort(
            key=lambda error: (isinstance(error, PenstockError), not isinstance(error, OutcomeUnknown))
        )
        if failed and (len(failed) == len(answers) or not isinstance(failed[0], PenstockError)):
            raise failed[0]
        return answers

    async def follow(self) -> None:
        """Apply what was in the log before this was called, whoever wrote it."""
        await self._looks(None)

    async def now(self) -> datetime:
        """The store's time."""
        source = await self._opened()
        return max(await self._asked(source.now()), self.state.time)

    async def close(self) -> None:
        await self.wakeups.close()
        if self._company is not None:
            self._company.end()
            await asyncio.sleep(0)  # those who waited in it are handed in
        await self._commits.close()
        await self._looks.close()
        source, self._source, self._state = self._source, None, None
        if source is not None:
            await source.close()

    # ── Writing ───────────────────────────────────────────────────────────────────────────────────

    async def _commit_in_company(self, call: Written) -> Any:
        assert self._company is not None
        await self._company.gathered(len(call.data))
        return await self._commits(call)

    async def _commit(self, calls: list[Written]) -> Sequence[Any]:
        answers: list[Any] = []
        for some in _split(calls):
            try:
                answers += await self._append(some)
            except Exception as error:  # what went before it is written, and answered
                answers += [error] * len(some)
        return answers

    async def _append(self, calls: Sequence[Written]) -> Sequence[Any]:
        source = await self._opened()
        while self._is_lost:
            self._is_lost = await self._read_some(source)
        ts = await self._asked(source.now())
        self._compare(ts)
        self._batch += 1
        batch = self._batch
        data = entry(self._writer, batch, ts, [call.data for call in calls])
        self._answers[batch] = None
        try:
            number = await self._asked(source.tape.append(data))
        except BaseException:
            self._answers.pop(batch, None)
            raise
        try:
            if number == self.state.number + 1:  # nobody came between: it need not be read again
                self._apply(number, LogEntry(self._writer, batch, ts, [call.op for call in calls]))
            await self._read_up_to(number, source)
            self.followed_at = time.monotonic()
        except (LogCorrupt, LogGap, LogTooNew) as error:
            self._is_lost = True
            raise OutcomeUnknown(self._name, "a call", error.message) from error
        finally:
            answers = self._answers.pop(batch, None)
        if answers is None:
            raise OutcomeUnknown(self._name, "a call", "the log was cut behind it before it was read back")
        return answers

    async def _read_up_to(self, number: int, source: Source) -> None:
        """Read up to an entry that is written: whatever goes wrong now, nobody may be told that it is not."""
        try:
            while self.state.number < number:
                if not await self._read_some(source):
                    raise LogGap(self._name, self.state.number + 1, number)
        except StoreUnavailable as error:
            self._is_lost = True
            raise OutcomeUnknown(self._name, "a call", error.message) from error

    def _compare(self, ts: datetime) -> None:
        """Tell of a log whose time is ahead of the store's: until that has caught up, nothing in it grows older."""
        ahead = (self.state.time - ts).total_seconds()
        if ahead > AHEAD_SECONDS and time.monotonic() - self._told_at > TOLD_SECONDS:
            self._told_at = time.monotonic()
            logger.warning(
                "%s has an entry from %.1f s in the future: some machine's clock was or is wrong",
                self._name,
                ahead,
            )

    # ── Reading ───────────────────────────────────────────────────────────────────────────────────

    async def _look(self, asked: list[None]) -> Sequence[None]:
        source = await self._opened()
        begun = time.monotonic()
        self._is_lost = True
        while await self._read_some(source) and not source.tape.ended(self.state.number, begun):
            pass
        self._is_lost = False
        self.followed_at = max(self.followed_at, begun)
        return asked

    async def _read_some(self, source: Source) -> bool:
        """Read and apply what comes next; says whether there was anything."""
        try:
            found = await self._asked(source.tape.read(self.state.number, READ_AT_ONCE))
        except Truncated as error:
            logger.warning("%s", error)
            await self._load(source, error.first - 1)
            return True
        applied = 0
        for number, data in found:
            if number > self.state.number:  # else it came by another way meanwhile
                others = read(self._name, number, data)
                self._apply(number, others)
                applied += 1 + sum(len(op.given) for op in others.ops) if others is not None else 1
            if applied >= APPLIED_AT_ONCE:
                applied = 0
                await asyncio.sleep(0)
        return bool(found)

    def _apply(self, number: int, found: LogEntry | None) -> None:
        self._check()
        if number != self.state.number + 1:
            raise LogGap(self._name, self.state.number + 1, number)
        try:
            answers = self.state.apply(number, found)
        except Exception as error:
            # Half of it may have happened here: from now on this process would answer otherwise than others.
            self._stopped = number, f"{type(error).__name__}: {error}"
            logger.exception("entry %d of %s could not be applied", number, self._name)
            raise LogStopped(self._name, *self._stopped) from error
        if found is not None and found.writer == self._writer and self._answers.get(found.batch, ()) is None:
            self._answers[found.batch] = answers

    # ── Opening ───────────────────────────────────────────────────────────────────────────────────

    def _check(self) -> None:
        if self._stopped is not None:
            raise LogStopped(self._name, *self._stopped)

    async def _opened(self) -> Source:
        self._check()
        if self._source is None or self._state is None:
            if self._opening is None:
                self._opening = asyncio.Lock()
            async with self._opening:
                if self._source is None:
                    self._source = await self._asked(self._open())
                if self._state is None:
                    await self._load(self._source, 0)
        assert self._source is not None
        return self._source

    async def _load(self, source: Source, least: int) -> None:
        state = await self._asked(source.load(self.wakeups))
        if state.number < least:
            raise LogGap(self._name, state.number + 1, least + 1)
        if self._state is None or state.number > self._state.number:
            self._state = state  # else another call was faster with it, and has read on since

    async def _asked(self, answer: Awaitable[Result]) -> Result:
        """What the backing answers; if it cannot, as an error that says that trying again may help."""
        try:
            return await answer
        except PenstockError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            raise StoreUnavailable(self._name, reason) from error


def _split(calls: Sequence[Written]) -> Iterator[Sequence[Written]]:
    """Calls in their order, as many together as an entry may hold."""
    some: list[Written] = []
    size = 0
    for call in calls:
        if some and size + len(call.data) > MOST_BYTES:
            yield some
            some, size = [], 0
        some.append(call)
        size += len(call.data)
    if some:
        yield some


class LogWakeups(MemoryWakeups):
    """Rings when an entry is applied that stirs something, whoever wrote it; so the log is read while somebody listens.

    It is looked at soon after something was rung, and ever more seldom while nothing is.
    """

    def __init__(
        self, log: Log, random: Random, switchboard: Switchboard | None = None, poll: float = LONGEST_SECONDS
    ) -> None:
        super().__init__(switchboard)
        self._log = log
        self._random = random
        self._poll = poll
        self._listeners = 0
        self._stirred = asyncio.Event()
        self._loop = Loop("following the log", self._session, random)

    @property
    def is_following(self) -> bool:
        """Whether what others write comes to us by itself."""
        return self._listeners > 0 and self._loop.is_up

    def wake(self, tenant: str, queues: Iterable[str]) -> None:
        self._stirred.set()
        super().wake(tenant, queues)

    def listen(self, tenant: str, queues: Iterable[str]) -> AbstractAsyncContextManager[Bell]:
        return self._listen_and_follow(tenant, queues)

    @asynccontextmanager
    async def _listen_and_follow(self, tenant: str, queues: Iterable[str]) -> AsyncIterator[Bell]:
        async with super().listen(tenant, queues) as bell:
            self._listeners += 1
            self._loop.start()
            try:
                yield bell
            finally:
                self._listeners -= 1
                if not self._listeners:
                    await self._loop.close()

    async def start(self) -> None:
        self._loop.start()
        await self._loop.tried()

    def status(self) -> WakeupsStatus:
        if self._loop.is_started and not self._loop.is_up:
            return WakeupsStatus("log", healthy=False, detail=self._loop.problem or "opening the log")
        return WakeupsStatus("log", healthy=True, detail="wakes by reading what others wrote to the log")

    async def close(self) -> None:
        await self._loop.close()

    async def _session(self, up: Callable[[], None]) -> None:
        self._stirred = asyncio.Event()  # an event belongs to the event loop that waited for it first
        await self._log.follow()
        up()
        waits = Backoff(self._random, longest_seconds=REST * self._poll, jitter=REST_JITTER)
        while True:
            if await self._rest(next(waits)):
                waits.reset()
            else:
                await self._log.follow()

    async def _rest(self, seconds: float) -> bool:
        """Let so much time go by since anybody last looked; says whether something was rung meanwhile."""
        while (left := self._log.followed_at + seconds - time.monotonic()) > 0:
            if await self._is_stirred(left):
                return True
        return False

    async def _is_stirred(self, seconds: float) -> bool:
        """Rest for so long, or until something is rung."""
        self._stirred.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._stirred.wait()
        except TimeoutError:
            return False
        return True


def in_parts(given: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """What was given with a call, cut so that each part fits into an entry by itself."""
    parts = min(len(given), -(-size // MOST_BYTES))
    step = -(-len(given) // parts)
    return [given[start : start + step] for start in range(0, len(given), step)]
