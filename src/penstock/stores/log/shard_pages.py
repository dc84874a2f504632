"""What several logs tell, page by page, as if it were one."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice, repeat
from typing import Any, TypeVar

from msgspec.structs import replace

from penstock.core.commands import Page
from penstock.core.errors import InvalidInput
from penstock.core.registry import AuditPage, Event, Events
from penstock.stores.log.store import LogStore

Item = TypeVar("Item")

NOTHING_LEFT = "x"


def merged(pages: Sequence[Page], limit: int) -> Page:
    """One page of jobs of several, newest id first: only as far down as all of them have looked."""
    down_to = max((page.next for page in pages if page.next is not None), default=None)
    jobs = sorted((job for page in pages for job in page.jobs), key=lambda job: job.id, reverse=True)
    seen = [job for job in jobs if down_to is None or job.id >= down_to]
    if len(seen) > limit:
        return Page(tuple(seen[:limit]), seen[limit - 1].id)
    return Page(tuple(seen), down_to)


async def audit(logs: Sequence[LogStore], tenant: str, before: str | None, limit: int) -> AuditPage:
    """Newest first by their time. A place is one in each log: how far it was told, or that nothing is left."""
    if len(logs) == 1:
        return await logs[0].audit(tenant, before=before, limit=limit)
    places = [""] * len(logs) if before is None else before.split("-")
    if len(places) != len(logs):
        raise InvalidInput("before", "be the `next` of a page of this audit log", before)

    async def page(n: int, most: int) -> AuditPage:
        if places[n] == NOTHING_LEFT:
            return AuditPage(())
        return await logs[n].audit(tenant, before=places[n] or None, limit=most)

    pages = await asyncio.gather(*(page(n, limit) for n in range(len(logs))))
    told = list(
        _in_turn([page.lines for page in pages], limit, lambda line: line.change.at, newest_first=True)
    )
    for n, of in enumerate(pages):
        taken = sum(1 for log, _ in told if log == n)
        if taken == len(of.lines):
            places[n] = of.next or NOTHING_LEFT
        elif taken:
            places[n] = (await page(n, taken)).next or NOTHING_LEFT
    is_all = all(place == NOTHING_LEFT for place in places)
    return AuditPage(tuple(line for _, line in told), None if is_all else "-".join(places))


class Feed:
    """The events of several logs: each log's in its order, and those of several by their time.

    A cursor is the place's id, a number in each log, and whose it is.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._feeds: dict[int, str] = {}
        """The name of each log's own feed, where it is known."""

    async def events(self, logs: Sequence[LogStore], tenant: str, after: str | None, limit: int) -> Events:
        await self._learn_feeds(logs, tenant)
        if after is None:
            begun = await asyncio.gather(*(log.events(tenant, limit=limit) for log in logs))
            return Events((), self._cursor(tenant, [int(one.next.split(".")[1]) for one in begun]))
        numbers = self._read_cursor(tenant, after, len(logs))
        try:
            parts = await asyncio.gather(
                *(
                    log.events(tenant, after=f"{self._feeds[n]}.{numbers[n]}.{tenant}", limit=limit)
                    for n, log in enumerate(logs)
                )
            )
        except InvalidInput as error:
            raise InvalidInput("after", str(error.facts["must"]), after) from None
        events: list[Event] = []
        for n, event in _in_turn([part.events for part in parts], limit, lambda event: event.at):
            numbers[n] += 1
            events.append(replace(event, cursor=self._cursor(tenant, numbers)))
        return Events(tuple(events), events[-1].cursor if events else after)

    async def _learn_feeds(self, logs: Sequence[LogStore], tenant: str) -> None:
        unknown = [n for n in range(len(logs)) if n not in self._feeds]
        found = await asyncio.gather(*(logs[n].events(tenant, limit=1) for n in unknown))
        self._feeds.update({n: one.next.split(".")[0] for n, one in zip(unknown, found, strict=True)})

    def _cursor(self, tenant: str, numbers: Sequence[int]) -> str:
        whose = blake2b(tenant.encode(), digest_size=8).hexdigest()
        return f"{self._place}.{'-'.join(map(str, numbers))}.{whose}"

    def _read_cursor(self, tenant: str, after: str, logs: int) -> list[int]:
        texts = after.partition(".")[2].partition(".")[0].split("-")
        numbers = [int(text) for text in texts if text.isascii() and text.isdigit() and len(text) <= 18]
        if len(numbers) != logs or after != self._cursor(tenant, numbers):
            raise InvalidInput("after", "be a cursor of this very feed; begin again without one", after)
        return numbers


def _in_turn(
    parts: Sequence[Sequence[Item]], most: int, at: Callable[[Item], Any], *, newest_first: bool = False
) -> Iterator[tuple[int, Item]]:
    """Of the logs' first ones always the one whose turn it is by its time, and which log it is of."""
    each = (zip(repeat(n), part) for n, part in enumerate(parts))
    return islice(heapq.merge(*each, key=lambda one: at(one[1]), reverse=newest_first), most)
