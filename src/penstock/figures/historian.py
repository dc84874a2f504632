"""Follows what happens and keeps the sums. Any number may run; one of them leads.

How far it has come is written before the sums are: two that both think they lead would otherwise count twice, and so the
second finds that the place has moved. A death in between leaves out what one pass had read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import lru_cache
from math import inf

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.core.codec import JsonText
from penstock.core.errors import EntryConflict, InvalidInput, PenstockError
from penstock.core.fingerprint import Failure, failure
from penstock.core.job import Status
from penstock.core.ports import Store, cadence
from penstock.core.registry import Event, PutEntry
from penstock.figures import (
    CATALOGUE,
    COUNTS,
    FAILURES,
    GRAINS,
    MINUTE,
    PLACE,
    PLACES,
    Counts,
    FailureGroup,
    Grain,
    Piece,
    Place,
    begin,
    coarse,
    hour_name,
    piece_name,
)

OFFICE = "figures"
LEAD_SECONDS = 15.0
LOOK_SECONDS, LONGEST_SECONDS = 2.0, 30.0
"""A tenant of whom nothing is heard is looked at ever more seldom, up to the latter."""
AT_ONCE = 1_000
MOST_PAGES = 20
"""Read in one pass over one tenant, so that a busy one holds up no other."""
MOST_TYPES = 1_000
MOST_NAMES = 20
MOST_SAMPLES = 5
MOST_ERROR_CHARS = 4_000
MOST_GROUPS = 1_000
"""Kinds of failures of a tenant that are told apart."""
FAILURE_SECONDS = 7 * 86_400.0
HOURS_KEPT = 48
_MS = timedelta(milliseconds=1)

logger = logging.getLogger("penstock.figures")


class Historian:
    """Keeps the figures of every tenant."""

    def __init__(
        self, store: Store, *, lead_seconds: float = LEAD_SECONDS, look_seconds: float = LOOK_SECONDS
    ) -> None:
        self._store = store
        self._lead_seconds = lead_seconds * cadence(store)
        self._look_seconds = look_seconds * cadence(store)
        self._holder = f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(4)}"
        self._tenants: dict[str, _Tenant] = {}
        self._asked: set[str] = set()
        self._woken = asyncio.Event()

    def look_at(self, tenant: str) -> None:
        """Somebody reads this tenant's figures: let them be of now."""
        self._asked.add(tenant)
        self._woken.set()

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                try:
                    seconds = await self._round()
                except Exception:
                    logger.warning("figures cannot be kept at the moment", exc_info=True)
                    seconds = LONGEST_SECONDS / 6
                await self._sleep(seconds)
        finally:
            await self._resign()

    async def _sleep(self, seconds: float) -> None:
        # Whoever looks again and again makes us look no more often than we would at a busy tenant.
        await asyncio.sleep(min(seconds, self._look_seconds))
        try:
            async with asyncio.timeout(max(0.0, seconds - self._look_seconds)):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    async def _round(self) -> float:
        """Look at every tenant whose time has come; says how long until the next."""
        if not await self._store.lead(OFFICE, self._holder, self._lead_seconds):
            self._tenants.clear()  # another counts now, and what we know of its sums is old
            return self._lead_seconds / 2
        clock = asyncio.get_running_loop().time
        for name in await self._store.tenants():
            self._tenants.setdefault(name, _Tenant(self._store, name))
        asked, self._asked = self._asked, set()
        for tenant in list(self._tenants.values()):
            if tenant.due_at > clock() and tenant.name not in asked:
                continue
            try:
                heard = await tenant.catch_up()
            except EntryConflict:
                self._tenants.pop(tenant.name, None)  # another was here: begin from what it left
                continue
            tenant.rest(heard, clock(), self._look_seconds)
        soonest = min((tenant.due_at for tenant in self._tenants.values()), default=inf)
        return min(max(0.0, soonest - clock()), self._lead_seconds / 3)

    async def _resign(self) -> None:
        try:
            async with asyncio.timeout(2):
                await self._store.lead(OFFICE, self._holder, 0)
        except Exception as error:
            logger.warning("%s could not give up the figures: %s", self._holder, error)


class _Tenant:
    """One tenant's sums, as far as they are still being added to."""

    def __init__(self, store: Store, name: str) -> None:
        self.name = name
        self.due_at = 0.0
        self._store = store
        self._pause = 0.0
        self._place: Place | None = None
        self._version = 0
        self._pieces: dict[str, Piece] = {}
        self._types: dict[str, list[str]] | None = None
        self._groups: set[str] = set()
        """Failures that are told apart, as far as we know; some may have lapsed."""

    def rest(self, heard: bool, now: float, look_seconds: float) -> None:
        """Look again soon while things happen, then ever later."""
        self._pause = look_seconds if heard else min(LONGEST_SECONDS, max(look_seconds, self._pause * 2))
        self.due_at = now + self._pause

    async def catch_up(self) -> bool:
        """Count what has happened since; says whether anything did."""
        if self._place is None:
            await self._begin()
        assert self._place is not None
        gathered, cursor, heard = _Gathered(), self._place.cursor, False
        for _ in range(MOST_PAGES):
            try:
                page = await self._store.events(self.name, after=cursor, limit=AT_ONCE)
            except InvalidInput:
                # Too old for what is kept, or of a store that was restored: what happened between is not counted.
                logger.warning(
                    "figures of tenant %s begin anew: the feed no longer knows their place", self.name
                )
                await self._begin_anew()
                return False
            for event in page.events:
                gathered.take(event)
            heard, cursor = heard or bool(page.events), page.next
            if len(page.events) < AT_ONCE:
                break
        if heard:
            await self._move(Place(cursor, self._place.since))
            await self._keep(gathered)
        else:
            self._place = replace(self._place, cursor=cursor)
        return heard

    async def _begin(self) -> None:
        entries = await self._store.entries(self.name, PLACES, [PLACE])
        if entries:
            self._place = msgspec.json.decode(entries[0].body, type=Place)
            self._version = entries[0].version
        else:
            await self._begin_anew()

    async def _begin_anew(self) -> None:
        page = await self._store.events(self.name, limit=1)
        await self._move(Place(page.next, await self._store.now()))

    async def _move(self, place: Place) -> None:
        command = PutEntry(PLACES, PLACE, _json(place), version=self._version)
        [answer] = await self._store.put_entries(self.name, [command])
        if isinstance(answer, PenstockError):
            raise answer
        assert answer is not None
        self._place, self._version = place, answer.version

    async def _keep(self, gathered: _Gathered) -> None:
        puts = [
            *await self._pieces_of(gathered),
            *await self._failures_of(gathered),
            *await self._types_of(gathered),
        ]
        for answer in await self._store.put_entries(self.name, puts):
            if isinstance(answer, PenstockError):
                logger.warning("figures of tenant %s: %s", self.name, answer)

    async def _pieces_of(self, gathered: _Gathered) -> list[PutEntry]:
        new = gathered.pieces()
        unknown = [name for name in new if name not in self._pieces]
        for entry in await self._store.entries(self.name, COUNTS, unknown) if unknown else []:
            self._pieces[entry.name] = msgspec.json.decode(entry.body, type=Piece)
        puts = []
        for name, (grain, piece) in new.items():
            there = self._pieces.setdefault(name, {})
            for queue, counts in piece.items():
                there.setdefault(queue, Counts()).add(counts)
            puts.append(PutEntry(COUNTS, name, _json(there), seconds=float(grain.kept_seconds)))
        self._pieces = {name: self._pieces[name] for name in new}  # older ones are read again if need be
        return puts

    async def _failures_of(self, gathered: _Gathered) -> list[PutEntry]:
        if not gathered.failures:
            return []
        known = {
            entry.name: msgspec.json.decode(entry.body, type=FailureGroup)
            for entry in await self._store.entries(self.name, FAILURES, list(gathered.failures))
        }
        if len(self._groups) + len(gathered.failures) > MOST_GROUPS:
            self._groups = {entry.name for entry in await self._store.entries(self.name, FAILURES)}
        puts = []
        for name, group in gathered.failures.items():
            if name not in known and len(self._groups) >= MOST_GROUPS:
                continue  # errors that never say the same twice must not fill the store
            self._groups.add(name)
            puts.append(
                PutEntry(FAILURES, name, _json(_joined(known.get(name), group)), seconds=FAILURE_SECONDS)
            )
        return puts

    async def _types_of(self, gathered: _Gathered) -> list[PutEntry]:
        if self._types is None:
            entries = await self._store.entries(self.name, PLACES, [CATALOGUE])
            self._types = msgspec.json.decode(entries[0].body, type=dict[str, list[str]]) if entries else {}
        news = False
        for kind, queue in gathered.types:
            queues = self._types.get(kind)
            if queues is None and len(self._types) < MOST_TYPES:
                queues = self._types[kind] = []
            if queues is not None and queue not in queues and len(queues) < MOST_NAMES:
                queues.append(queue)
                news = True
        return [PutEntry(PLACES, CATALOGUE, _json(self._types))] if news else []


class _Gathered(Struct):
    """What one pass has counted."""

    minutes: dict[datetime, Piece] = {}
    failures: dict[str, FailureGroup] = {}
    types: set[tuple[str, str]] = set()

    def take(self, event: Event) -> None:
        if event.kind != "job" or event.queue is None:
            return
        piece = self.minutes.setdefault(begin(MINUTE, event.at), {})
        _count(piece.setdefault(event.queue, Counts()), event)
        if event.what == "enqueued" and event.type is not None:
            self.types.add((event.type, event.queue))
        if event.what in ("failed", "lost") and event.error:
            self._failed(event, _failure(event.error))

    def pieces(self) -> dict[str, tuple[Grain, Piece]]:
        """The minutes, and what they come to in coarser grains."""
        made: dict[str, tuple[Grain, Piece]] = {}
        for at, minute in self.minutes.items():
            for grain in GRAINS:
                _, piece = made.setdefault(piece_name(grain, at), (grain, {}))
                for queue, counts in minute.items():
                    piece.setdefault(queue, Counts()).add(counts)
        return made

    def _failed(self, event: Event, one: Failure) -> None:
        if one.fingerprint not in self.failures and len(self.failures) >= MOST_GROUPS:
            return
        group = FailureGroup(
            fingerprint=one.fingerprint, error_type=one.error_type, top_frame=one.top_frame, text=one.text,
            first_seen=event.at, last_seen=event.at, count=1, dead=int(event.status in (Status.DEAD, Status.HELD)),
            hours={hour_name(event.at): 1}, queues=[event.queue or ""], types=[event.type or ""],
            sample_jobs=[event.name], sample_error=(event.error or "")[:MOST_ERROR_CHARS],
        )  # fmt: skip
        self.failures[one.fingerprint] = _joined(self.failures.get(one.fingerprint), group)


def _count(counts: Counts, event: Event) -> None:
    match event.what:
        case "enqueued":
            counts.arrived += 1
            return
        case "succeeded":
            counts.succeeded += 1
        case "failed":
            counts.failed += 1
        case "lost":
            counts.lost += 1
    counts.dead += event.status in (Status.DEAD, Status.HELD)
    counts.cancelled += event.status is Status.CANCELLED
    if event.started_at is None:
        return
    ran_ms = max(0.0, (event.at - event.started_at) / _MS)
    counts.busy_ms += round(ran_ms)
    if event.what in ("succeeded", "failed"):
        counts.runs[coarse(ran_ms)] = counts.runs.get(coarse(ran_ms), 0) + 1
    if event.ready_at is not None:
        waited = coarse(max(0.0, (event.started_at - event.ready_at) / _MS))
        counts.waits[waited] = counts.waits.get(waited, 0) + 1


def _joined(known: FailureGroup | None, new: FailureGroup) -> FailureGroup:
    if known is None:
        return new
    later, earlier = (new, known) if new.last_seen >= known.last_seen else (known, new)
    oldest = hour_name(later.last_seen - timedelta(hours=HOURS_KEPT))
    hours = {hour: count for hour, count in known.hours.items() if hour > oldest}
    for hour, count in new.hours.items():
        hours[hour] = hours.get(hour, 0) + count
    return replace(
        later,
        first_seen=min(known.first_seen, new.first_seen),
        count=known.count + new.count,
        dead=known.dead + new.dead,
        hours=hours,
        queues=_some(later.queues, earlier.queues, MOST_NAMES),
        types=_some(later.types, earlier.types, MOST_NAMES),
        sample_jobs=_some(later.sample_jobs, earlier.sample_jobs, MOST_SAMPLES),
    )


def _some(first: Iterable[str], then: Iterable[str], most: int) -> list[str]:
    return list(dict.fromkeys([*first, *then]))[:most]


@lru_cache(maxsize=1_000)
def _failure(error: str) -> Failure:
    return failure(error)


def _json(value: object) -> JsonText:
    return JsonText(msgspec.json.encode(value).decode())
