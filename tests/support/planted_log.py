"""Logs that are wrong on purpose, each in one way: what histories through several stores must be able to see."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from penstock.core.job import LeaseToken
from penstock.core.machine import Machine
from penstock.stores.log import log, state
from penstock.stores.log.entry import LogEntry
from penstock.stores.log.entry import entry as written
from penstock.stores.log.state import State

Plant = Callable[[pytest.MonkeyPatch], None]


def a_state_that_is_advanced_by_the_readers_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases run out where somebody happens to look, as of another time than elsewhere."""

    def look(self: State, read: Callable[[State], Any], now: datetime) -> Any:
        self.time = self._moment.at = max(self.time, now)
        return state.immediately(read(self))

    def machine(self: State, tenant: str, now: datetime) -> Machine:
        found = self._machines.setdefault(tenant, self._new_machine(tenant))
        if not self._is_applying:
            found.advance(now)
        return found

    monkeypatch.setattr(State, "look", look)
    monkeypatch.setattr(State, "machine", machine)
    monkeypatch.setattr(State, "is_due", lambda self, tenant, now: False)


def an_entry_that_is_applied_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came by another way meanwhile is taken for new."""
    apply = State.apply

    def twice(self: State, number: int, entry: LogEntry | None) -> list[Any]:
        answers = apply(self, number, entry)
        if number % 7 == 0:
            apply(self, number, entry)
        return answers

    monkeypatch.setattr(State, "apply", twice)
    monkeypatch.setattr(State, "_is_repeated", lambda self, entry: False)


def time_that_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry has its own writer's time, however slow that writer's clock."""

    def late(writer: bytes, batch: int, ts: datetime, ops: Any) -> bytes:
        return written(writer, batch, ts.replace(year=2025) if batch % 5 == 0 else ts, ops)

    monkeypatch.setattr(log, "entry", late)
    monkeypatch.setattr(state, "max", lambda ours, theirs: theirs, raising=False)


def looking_without_reading_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others were told is done is not seen here yet."""

    async def look(self: log.Log, asked: list[None]) -> list[None]:
        source = await self._opened()
        if self.state.number == 0:
            await self._read_some(source)
        return asked

    monkeypatch.setattr(log.Log, "_look", look)


def tokens_of_the_readers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process gives the same lease another token."""
    made = iter(range(10**9))
    monkeypatch.setattr(
        state, "_tokens", lambda prefix: (LeaseToken(f"{prefix}-{next(made)}") for _ in range(10**6))
    )


PLANTED: list[Plant] = [
    a_state_that_is_advanced_by_the_readers_clock,
    an_entry_that_is_applied_twice,
    time_that_goes_back,
    looking_without_reading_first,
    tokens_of_the_readers_own,
]
