"""Many concurrent calls become one batch call, and each caller gets its own answer or its own error.

There is no timer. A batch is whatever arrived while the one before was on its way; on an idle system a call
goes out by itself in the next turn of the event loop.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from itertools import islice
from typing import Generic, TypeVar

from penstock.core.errors import InvalidInput, PenstockError

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MOST_GROUPS = 1_000
MOST_RIDING = 100
"""Longer lists go by themselves: they have nothing to gain from company, and would hold it up."""

_CLOSED = "this Coalesce is closed"
_BROKEN_OFF = "the batch was broken off, as when its event loop ends; it may have taken effect or not"


class Coalesce(Generic[Item, Answer]):
    """Gathers calls for `run`, which takes a batch and answers each item, in order, with a value or an exception.

    At most `at_once` batches of at most `most` items are on their way at a time. With a `backlog`, at most so
    many items wait for their batch; whoever comes then waits for room first, in the order of coming.
    """

    def __init__(
        self,
        run: Callable[[list[Item]], Awaitable[Sequence[Answer | Exception]]],
        *,
        most: int = 500,
        at_once: int = 1,
        backlog: int | None = None,
    ) -> None:
        if most < 1 or at_once < 1 or (backlog is not None and backlog < 1):
            raise ValueError("most, at_once and backlog must each be at least 1")
        self._run, self._most, self._at_once, self._backlog = run, most, at_once, backlog
        # Batches run in the context they were set up in: that of the first caller would be some stranger's.
        self._context = copy_context()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin(None)

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Start with nothing, on a loop of which nothing is known yet."""
        if self._loop is not None and not self._loop.is_closed() and (self._batches or self._pending):
            raise RuntimeError("this Coalesce is in use by another event loop")
        self._loop = loop
        self._pending: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._batches: set[asyncio.Task[None]] = set()
        self._about_to_take: asyncio.Task[None] | None = None
        self._room = None if self._backlog is None else asyncio.Semaphore(self._backlog)

    async def __call__(self, item: Item) -> Answer:
        """The answer to one item, raised if it is an exception.

        A caller cancelled before its batch has left takes its item back; afterwards only its answer is dropped.
        """
        future = await self.put(item)
        try:
            return await future
        finally:
            del future  # an error's traceback holds this frame; the frame should not hold the error

    async def put(self, item: Item) -> asyncio.Future[Answer]:
        """Hand in one item as soon as there is room; the answer comes later."""
        loop = asyncio.get_running_loop()
        if self._closed:
            raise RuntimeError(_CLOSED)
        if loop is not self._loop:
            self._begin(loop)
        if self._room is not None:
            await self._room.acquire()
        future: asyncio.Future[Answer] = loop.create_future()
        self._pending.append((item, future))
        self._start()
        return future

    async def close(self) -> None:
        """Take no more calls, and wait until everyone who has called is answered."""
        self._closed = True
        if self._loop is not asyncio.get_running_loop():
            self._begin(None)  # what an ended loop has left will not be answered any more
            return
        # Whoever waits for room is let in when a batch is taken, so before that one has ended.
        while self._batches:
            await asyncio.wait(self._batches)

    def _start(self) -> None:
        """Let a batch go, if something waits, nothing else is about to take it, and another may be on its way."""
        if self._pending and self._about_to_take is None and len(self._batches) < self._at_once:
            assert self._loop is not None
            # A task, so that everyone who calls in this turn of the loop comes along.
            task = self._loop.create_task(self._send(), context=self._context.copy())
            self._about_to_take = task
            self._batches.add(task)
            task.add_done_callback(self._ended)

    async def _send(self) -> None:
        self._about_to_take = None
        batch = self._take()
        self._start()  # a second one with the rest, where that is allowed
        if not batch:
            return
        try:
            answers = await self._run([item for item, _ in batch])
            if len(answers) != len(batch):
                raise RuntimeError(f"a batch of {len(batch)} got {len(answers)} answers")
            _tell(batch, answers)
        except Exception as error:
            _tell(batch, [error] * len(batch))
        except GeneratorExit:  # the loop was closed around it: there is nobody left to tell
            raise
        except BaseException as error:
            _tell(batch, [_broken_off(error)] * len(batch))
            task = asyncio.current_task()
            if not isinstance(error, asyncio.CancelledError) or task is None or task.cancelling():
                raise
            # Otherwise something within `run` was cancelled, not this.
        finally:
            batch.clear()  # as in __call__

    def _take(self) -> list[tuple[Item, asyncio.Future[Answer]]]:
        """The oldest items, without those whose callers have left."""
        batch: list[tuple[Item, asyncio.Future[Answer]]] = []
        pending, room = self._pending, self._room
        while pending and len(batch) < self._most:
            one = pending.popleft()
            if room is not None:
                room.release()
            if not one[1].done():
                batch.append(one)
        return batch

    def _ended(self, task: asyncio.Task[None]) -> None:
        # By now the callers it answered have run, and those who came back at once are in the next batch.
        self._batches.discard(task)
        if self._about_to_take is task:  # cancelled before its first step
            self._about_to_take = None
        if task.cancelled():  # the loop is ending, and would not wait for another batch
            while left := self._take():
                _tell(left, [_broken_off(None)] * len(left))
        else:
            self._start()


def _tell(
    batch: Sequence[tuple[Item, asyncio.Future[Answer]]], answers: Sequence[Answer | Exception]
) -> None:
    """Hand out the answers. No two callers share an exception: each raise would lengthen the other's traceback."""
    given: set[int] = set()
    for (_, future), answer in zip(batch, answers, strict=True):
        if future.done():
            continue
        if not isinstance(answer, Exception):
            future.set_result(answer)
            continue
        error = _another(answer) if id(answer) in given else answer
        given.add(id(answer))
        # A future has no place for StopIteration.
        future.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)


def _another(error: Exception) -> Exception:
    """An equal exception; the same one, if its class cannot be copied."""
    try:
        twin = copy.copy(error)
    except Exception:
        return error
    if type(twin) is not type(error):
        return error
    if notes := getattr(error, "__notes__", None):
        twin.__notes__ = list(notes)
    twin.__cause__, twin.__context__ = error.__cause__, error.__context__
    twin.__suppress_context__ = error.__suppress_context__
    return twin.with_traceback(error.__traceback__)


def _broken_off(cause: BaseException | None) -> Exception:
    error = RuntimeError(_BROKEN_OFF)
    error.__cause__ = cause
    return error


class Groups(Generic[Item, Answer]):
    """A `Coalesce` for each tenant that calls. A list rides along as one, so that its items keep their order."""

    def __init__(
        self,
        ask: Callable[[str, Sequence[Item]], Awaitable[Sequence[Answer | PenstockError]]],
        at_once: int,
    ) -> None:
        self._ask = ask
        self._at_once = at_once
        self._groups: dict[str, Coalesce[Sequence[Item], Sequence[Answer | PenstockError]]] = {}

    async def __call__(self, tenant: str, item: Item) -> Answer:
        """The answer to one item, raised if it is an error."""
        [answer] = await self._group(tenant)((item,))
        if isinstance(answer, PenstockError):
            raise answer
        return answer

    async def many(self, tenant: str, items: Sequence[Item]) -> Sequence[Answer | PenstockError]:
        """The answers to a list, each a value or an error."""
        if not items:
            return []
        if len(items) > MOST_RIDING:
            return await self._ask(tenant, items)
        return await self._group(tenant)(items)

    def _group(self, tenant: str) -> Coalesce[Sequence[Item], Sequence[Answer | PenstockError]]:
        group = self._groups.get(tenant)
        if group is None:
            if len(self._groups) >= MOST_GROUPS:
                self._groups.clear()  # those under way are held by their callers
            group = self._groups[tenant] = Coalesce(
                lambda lists: self._ask_all(tenant, lists), at_once=self._at_once
            )
        return group

    async def _ask_all(
        self, tenant: str, lists: Sequence[Sequence[Item]]
    ) -> Sequence[Sequence[Answer | PenstockError] | Exception]:
        try:
            answers = await self._ask(tenant, [item for one in lists for item in one])
        except InvalidInput:
            if len(lists) == 1:
                raise
            # Somebody sent what cannot be taken, and all were refused for it: the others are not to suffer.
            return [await self._ask_alone(tenant, one) for one in lists]
        given = iter(answers)
        return [list(islice(given, len(one))) for one in lists]

    async def _ask_alone(
        self, tenant: str, items: Sequence[Item]
    ) -> Sequence[Answer | PenstockError] | Exception:
        try:
            return await self._ask(tenant, items)
        except Exception as error:
            return error
