"""Entries, allowances, insights and the audit log of the memory store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import islice

from msgspec import Struct

from penstock.core.bounds import LONGEST_SECONDS
from penstock.core.clock import Clock
from penstock.core.errors import EntryConflict, PenstockError
from penstock.core.job import Change
from penstock.core.machine import Machine
from penstock.core.registry import AuditPage, Entry, Insight, PutEntry, Spend, Spent, audit_place, outdated

_KEPT_FULL = timedelta(hours=1)


class Allowance(Struct, frozen=True, gc=False):
    """How far an allowance is used up."""

    remaining: float
    at: datetime
    full_at: datetime


class MemoryRegistry:
    """What the memory store keeps besides jobs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[tuple[str, str], dict[str, Entry]] = {}
        """By kind and name, and then by tenant: a token is looked up without knowing whose it is."""
        self._allowances: dict[tuple[str, str], Allowance] = {}
        self._insights: dict[tuple[str, str], Insight] = {}

    def machine(self, tenant: str, now: datetime) -> Machine:
        """The tenant's machine, which keeps the trails."""
        raise NotImplementedError

    async def put_entries(
        self, tenant: str, commands: Sequence[PutEntry]
    ) -> list[Entry | PenstockError | None]:
        now = self._clock.now()
        return [self._put_entry(tenant, command, now) for command in commands]

    def _put_entry(self, tenant: str, command: PutEntry, now: datetime) -> Entry | PenstockError | None:
        place = (command.kind, command.name)
        there = self._entries.get(place, {}).get(tenant)
        version = 0 if there is None or _is_over(there, now) else there.version
        if command.version is not None and command.version != version:
            return EntryConflict(command.kind, command.name)
        if command.body is None:
            self._drop_entry(place, tenant)
            if version:  # who drops what is not there has changed nothing
                self._audit(tenant, command, now)
            return None
        until = command.expires_at
        if until is None and command.seconds is not None:
            until = now + timedelta(seconds=command.seconds)
        entry = Entry(command.kind, tenant, command.name, version + 1, command.body, now, until)
        self._entries.setdefault(place, {})[tenant] = entry
        self._audit(tenant, command, now)
        return entry

    def _drop_entry(self, place: tuple[str, str], tenant: str) -> None:
        here = self._entries.get(place, {})
        here.pop(tenant, None)
        if not here:
            self._entries.pop(place, None)

    def _audit(self, tenant: str, command: PutEntry, now: datetime) -> None:
        if (audit := command.audit) is not None:
            change = Change(now, audit.verb, audit.actor, audit.reason, detail=audit.detail)
            self.machine(tenant, now).ledger.note(audit.name, change, command.kind)

    async def entries(self, tenant: str | None, kind: str, names: Sequence[str] | None = None) -> list[Entry]:
        now = self._clock.now()
        places = list(self._entries) if names is None else [(kind, name) for name in dict.fromkeys(names)]
        found = [
            entry
            for place in places
            if place[0] == kind
            for entry in self._entries.get(place, {}).values()
            if tenant in (None, entry.tenant) and not _is_over(entry, now)
        ]
        return sorted(found, key=lambda entry: (entry.tenant, entry.name))

    async def spend(self, tenant: str, spends: Sequence[Spend]) -> list[Spent]:
        now = self._clock.now()
        return [self._spend(tenant, spend, now) for spend in spends]

    def _spend(self, tenant: str, spend: Spend, now: datetime) -> Spent:
        there = self._allowances.get((tenant, spend.name)) or Allowance(spend.burst, now, now)
        now = max(now, there.at)
        remains = min(spend.burst, there.remaining + (now - there.at).total_seconds() * spend.rate)
        if spend.cost > remains:
            return Spent(False, remains, (spend.cost - remains) / spend.rate)
        remains -= spend.cost
        seconds = min((spend.burst - remains) / spend.rate, LONGEST_SECONDS)
        full_at = now + timedelta(seconds=seconds)
        self._allowances[tenant, spend.name] = Allowance(remains, now, full_at)
        return Spent(True, remains, 0.0)

    async def put_insights(self, insights: Sequence[Insight]) -> None:
        if not insights:
            return
        given = min(one.as_of for one in insights)
        newest = max((one.as_of for one in self._insights.values()), default=given)
        if newest > given:
            raise outdated(given, newest)
        # In place: whoever keeps it elsewhere, as a log does, holds the same dictionary.
        self._insights.clear()
        self._insights.update({(one.tenant, one.name): one for one in insights})

    async def insights(self, tenant: str, names: Sequence[str]) -> list[Insight]:
        found = (self._insights.get((tenant, name)) for name in sorted(set(names)))
        return [one for one in found if one is not None]

    async def audit(self, tenant: str, *, before: str | None = None, limit: int) -> AuditPage:
        end = audit_place(before)
        audited = self.machine(tenant, self._clock.now()).ledger.audited
        older = (one for one in reversed(audited) if end is None or one[0] < end)
        found = list(islice(older, limit + 1))
        lines = tuple(line for _, line in found[:limit])
        return AuditPage(lines, str(found[limit - 1][0]) if len(found) > limit else None)

    def _may_tidy(self, now: datetime) -> bool:
        """Whether `_tidy` would find anything."""
        entries = (entry for here in self._entries.values() for entry in here.values())
        return any(_is_over(entry, now) for entry in entries) or any(
            one.full_at + _KEPT_FULL <= now for one in self._allowances.values()
        )

    def _tidy(self, now: datetime) -> None:
        """Remove entries whose time is over and allowances that have long been full again."""
        over = [entry for here in self._entries.values() for entry in here.values() if _is_over(entry, now)]
        for entry in over:
            self._drop_entry((entry.kind, entry.name), entry.tenant)
        full = [place for place, one in self._allowances.items() if one.full_at + _KEPT_FULL <= now]
        for place in full:
            del self._allowances[place]


def _is_over(entry: Entry, now: datetime) -> bool:
    return entry.expires_at is not None and entry.expires_at <= now
