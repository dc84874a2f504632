"""Stores on logs that tests can look into."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from penstock.core.ports import Store
from penstock.stores.log.backings.memory import MemoryBacking, MemoryTape
from penstock.stores.log.shards import ShardedLogStore
from penstock.stores.log.store import LogStore
from penstock.testing import FakeClock


def log_store(clock: FakeClock) -> Store:
    """A store on a log of its own."""
    return ShardedLogStore(MemoryBacking(clock=clock.now))


def sharded_store(clock: FakeClock) -> Store:
    """A store of three logs: what is about two queues is in most tests about two logs."""
    return ShardedLogStore(MemoryBacking(clock=clock.now), shards=3)


DIFFERS = {
    # What holds in one log only.
    "test_the_same_key_with_a_different_body_is_a_conflict": "one of the differences is the queue, and so the log",
    "test_the_key_counts_across_queues_of_a_tenant": "it counts across the queues of a log",
    # Parents in a queue of another log are refused: see TestFlows in test_shards.py.
    "test_everything_that_was_asked_for_is_kept": "its parent is in another log",
    "test_a_job_that_waits_for_a_parent_does_not_keep_its_ordering_key_waiting": "its parent is in another log",
    "test_a_child_let_go_late_takes_its_place_by_the_time_it_asked_for": "its parent is in another log",
    "test_a_flow_may_cross_queues": "of one log, or with a common first part of their names",
    "test_of_what_a_flow_decided": "one parent is in another log",
    "test_a_lease_of_another_queue_is_a_reason_to_look_if_a_child_waits_for_it": "its parent is in another log",
    # What happened in several logs is told by its time, and here all of it happens at the same.
    "test_of_queues_and_schedules": "at one moment, in several logs",
    "test_lists_what_people_did_to_jobs_queues_and_schedules_newest_first": "at one moment, in several logs",
    "test_goes_on_where_a_page_ended_whatever_happens_meanwhile": "at one moment, in several logs",
    # It takes a cursor apart that looks otherwise: see TestFeed in test_shards.py.
    "test_a_cursor_that_was_tampered_with": "a cursor has several numbers",
}
"""Tests of conformance that a store of several logs is not held to, and why."""


class ByTenant(ShardedLogStore):
    """Each tenant in one log: the whole of what the rules say holds for it, though schedules are in another."""

    def shard(self, tenant: str, queue: str) -> int:
        return super().shard(tenant, "")


def store_sharded_by_tenant(clock: FakeClock) -> Store:
    return ByTenant(MemoryBacking(clock=clock.now), shards=3)


def several_log_stores(clock: FakeClock) -> Sequence[Store]:
    """Stores of several processes, as it were, on one log."""
    tape = MemoryTape()
    return [LogStore.on(tape, clock) for _ in range(3)]


def slow_log_stores(clock: FakeClock) -> Sequence[Store]:
    """The same, each at some distance from the log: what they do overlaps in ever other ways."""
    tape, dice = MemoryTape(), Random(0)
    return [LogStore.on(Distant(tape, dice), clock) for _ in range(3)]


class Distant(MemoryTape):
    """A tape to which the way is sometimes longer, and the way back too."""

    def __init__(self, tape: MemoryTape, dice: Random) -> None:
        super().__init__()
        self._tape = tape
        self._dice = dice

    async def append(self, data: bytes) -> int:
        await self._travel()
        number = await self._tape.append(data)
        await self._travel()
        return number

    async def read(self, after: int, most: int = 1000) -> list[tuple[int, bytes]]:
        await self._travel()
        found = await self._tape.read(after, most)
        await self._travel()
        return found

    async def _travel(self) -> None:
        for _ in range(self._dice.randrange(4)):
            await asyncio.sleep(0)
