"""Entries, allowances and the audit log of the memory store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from penstock.core.clock import Clock
from penstock.core.errors import EntryConflict, PenstockError
from penstock.core.registry import AuditPage, Entry, PutEntry, Spend, Spent


class MemoryRegistry:
    """What the memory store keeps besides jobs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[tuple[str, str, str], Entry] = {}
        self._allowances: dict[tuple[str, str], tuple[float, datetime]] = {}

    async def put_entries(
        self, tenant: str, commands: Sequence[PutEntry]
    ) -> list[Entry | PenstockError | None]:
        now = self._clock.now()
        return [self._put_entry(tenant, command, now) for command in commands]

    def _put_entry(self, tenant: str, command: PutEntry, now: datetime) -> Entry | PenstockError | None:
        place = (command.kind, tenant, command.name)
        there = self._entries.get(place)
        version = 0 if there is None or _is_over(there, now) else there.version
        if command.version is not None and command.version != version:
            return EntryConflict(command.kind, command.name)
        if command.body is None:
            self._entries.pop(place, None)
            return None
        until = None if command.seconds is None else now + timedelta(seconds=command.seconds)
        entry = Entry(command.kind, tenant, command.name, version + 1, command.body, now, until)
        self._entries[place] = entry
        return entry

    async def entries(self, tenant: str | None, kind: str, names: Sequence[str] | None = None) -> list[Entry]:
        now = self._clock.now()
        wanted = None if names is None else set(names)
        found = [
            entry
            for entry in self._entries.values()
            if entry.kind == kind
            and tenant in (None, entry.tenant)
            and (wanted is None or entry.name in wanted)
            and not _is_over(entry, now)
        ]
        return sorted(found, key=lambda entry: (entry.tenant, entry.name))

    async def spend(self, tenant: str, spends: Sequence[Spend]) -> list[Spent]:
        now = self._clock.now()
        return [self._spend(tenant, spend, now) for spend in spends]

    def _spend(self, tenant: str, spend: Spend, now: datetime) -> Spent:
        left, at = self._allowances.get((tenant, spend.name), (spend.burst, now))
        left = min(spend.burst, left + max(0.0, (now - at).total_seconds()) * spend.rate)
        granted = spend.cost <= left
        if granted:
            left -= spend.cost
        self._allowances[tenant, spend.name] = (left, now)
        return Spent(granted, left, 0.0 if granted else (spend.cost - left) / spend.rate)

    async def audit(self, tenant: str, *, before: str | None = None, limit: int) -> AuditPage:
        raise NotImplementedError


def _is_over(entry: Entry, now: datetime) -> bool:
    return entry.expires_at is not None and entry.expires_at <= now
