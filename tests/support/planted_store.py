"""Stores that are wrong on purpose, each in one way: what the simulation of the whole store must find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.core.commands import Settle, Settled
from penstock.core.errors import StoreUnavailable
from penstock.core.job import Job, Status
from penstock.core.machine import Machine
from penstock.core.ordering import Lane
from penstock.stores.log import snapshots
from penstock.stores.log.backings.numbered import ObjectTape
from penstock.stores.log.backings.resolving import Put
from penstock.stores.log.compacting import Compactor, Folding
from penstock.stores.log.entry import LogEntry, Written, entry
from penstock.stores.log.errors import OutcomeUnknown
from penstock.stores.log.log import Log, Source
from penstock.stores.log.packing import PackedLedger
from penstock.stores.log.state import State
from support.storesim import Objects

Plant = Callable[[pytest.MonkeyPatch], None]
Planted = tuple[Plant, dict[str, Any], int]
"""What is wrong, in which kind of run it shows, and the seed to begin with: some are met in one run of five."""


def no_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tape believes what it sees, however long it slept."""
    monkeypatch.setattr(ObjectTape, "_is_fresh", lambda self: True)


def holes_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tape confirms an entry though numbers below it are not taken."""

    async def leave(self: ObjectTape, number: int) -> None:
        pass

    monkeypatch.setattr(ObjectTape, "_fill_below", leave)


def answers_before_the_prefix_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is answered as if nobody had written anything in between."""

    async def append(self: Log, calls: Sequence[Written]) -> Sequence[Any]:
        source = await self._opened()
        while self._is_lost:
            self._is_lost = await self._read_some(source)
        ts = await source.now()
        self._batch += 1
        number = await source.tape.append(entry(self._writer, self._batch, ts, [call.data for call in calls]))
        self._answers[self._batch] = None
        if self.state.number < number:
            self.state.number = number - 1
            self._apply(number, LogEntry(self._writer, self._batch, ts, [call.op for call in calls]))
        answers = self._answers.pop(self._batch)
        if answers is None:
            raise OutcomeUnknown("the log", "a call", "it was cut")
        return answers

    monkeypatch.setattr(Log, "_append", append)


def absent_means_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A 404 after a lost answer is taken for a no."""

    async def create(self: Objects, key: str, data: bytes) -> bool:
        if await self._put(key, data) is Put.WON:
            return True
        found = await self.get(key)
        if found is None:
            raise StoreUnavailable("the simulated store", "nothing was written")
        return found == data

    monkeypatch.setattr(Objects, "create", create)


def an_unknown_append_is_sent_as_a_new_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may be in the log already is written a second time."""
    once = Log._append

    async def append(self: Log, calls: Sequence[Written]) -> Sequence[Any]:
        try:
            return await once(self, calls)
        except OutcomeUnknown:
            return await once(self, calls)

    monkeypatch.setattr(Log, "_append", append)


def what_is_written_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry stands in the log and could not be read back: the caller is told that nothing has happened."""

    async def read_up_to(self: Log, number: int, source: Source) -> None:
        while self.state.number < number:
            await self._read_some(source)

    monkeypatch.setattr(Log, "_read_up_to", read_up_to)


def any_token_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever knows the job may end the lease that another holds."""
    settle = Machine.settle

    def careless(self: Machine, command: Settle, now: Any) -> Settled:
        job = self.ledger.job(command.job_id)
        return settle(self, command if job.lease is None else replace(command, token=job.lease.token), now)

    monkeypatch.setattr(Machine, "settle", careless)


def no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a pause nor a limit keeps a queue from letting jobs out."""
    monkeypatch.setattr(Lane, "_barred", lambda self, now: None)


def a_snapshot_without_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever begins at a snapshot knows no idempotency key."""
    monkeypatch.setattr(
        snapshots,
        "_by_segment",
        lambda machine, now, there, stale: {index: {} for index in range(len(there))},
    )


def a_snapshot_without_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever begins at a snapshot takes running jobs for queued ones."""
    take_back = PackedLedger.take_back

    def free(job: Job) -> Job:
        return job if job.lease is None else replace(job, lease=None, status=Status.QUEUED)

    monkeypatch.setattr(
        PackedLedger, "take_back", lambda self, jobs, now: take_back(self, [*map(free, jobs)], now)
    )


def truncates_beyond_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is written is deleted, whatever the manifest says; also what came since the snapshot was made."""
    truncate = ObjectTape.truncate

    async def all_of_it(self: ObjectTape, until: int) -> None:
        await self._objects.delete([found.key for found in await self._objects.list(self._folder)])
        await truncate(self, until)

    monkeypatch.setattr(ObjectTape, "truncate", all_of_it)


def facts_are_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compactor that starts over keeps what it had gathered and not written."""
    open = Compactor._open

    async def keep(self: Compactor) -> Folding:
        rows = [] if self._facts is None else self._facts.rows
        state = await open(self)
        assert self._facts is not None
        self._facts.rows += rows
        return state

    monkeypatch.setattr(Compactor, "_open", keep)


def time_is_the_last_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer whose clock is behind takes everybody's time back."""
    apply = State.apply

    def back(self: State, number: int, found: LogEntry | None) -> list[Any]:
        if found is not None:
            self.time = self._moment.at = found.ts
        return apply(self, number, found)

    monkeypatch.setattr(State, "apply", back)


PLANTED: list[Planted] = [
    (no_watermark, {}, 1),
    (answers_before_the_prefix_is_read, {}, 0),
    (an_unknown_append_is_sent_as_a_new_entry, {"numbered": False}, 0),
    (a_snapshot_without_requests, {}, 1),
    (a_snapshot_without_leases, {}, 1),
    (truncates_beyond_the_snapshot, {}, 1),
]
MORE: list[Planted] = [
    (absent_means_not_written, {}, 5),
    (any_token_settles, {}, 11),
    (holes_are_left, {}, 0),
    (what_is_written_is_denied, {}, 0),
    (no_limits, {}, 0),
    (facts_are_told_again, {}, 0),
    (time_is_the_last_writers, {}, 0),
]
