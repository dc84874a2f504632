"""What happened, as a feed that leaves nothing out.

Rows commit out of order, so a reader that remembers the highest number it has seen loses what commits later. Here it
remembers a transaction, and is told only of those below the oldest one still running (migrations/0005_feed.sql). The
price: a transaction that writes and stays open, anywhere on the server, holds the feed up for as long.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from penstock.core.errors import InvalidInput
from penstock.core.job import Status
from penstock.core.registry import Event, Events
from penstock.stores.postgres.registry import Registry
from penstock.stores.postgres.rows import Row
from penstock.stores.postgres.rules import sql

_NOBODY = UUID(int=0)
_BEFORE = -1
"""Less than the number of anything in a transaction."""


class _Place(msgspec.Struct, frozen=True):
    """A place in the feed: a transaction, in it the number of a record, 0 for jobs, and of these the id."""

    feed: str
    xid: int
    seq: int = _BEFORE
    id: UUID = _NOBODY

    @property
    def cursor(self) -> str:
        return f"{self.feed}.{self.xid}.{self.seq}.{self.id.hex}"


class Feed(Registry):
    """The part of the store that tells what happened."""

    async def events(self, tenant: str, *, after: str | None = None, limit: int) -> Events:
        """By transaction, in the order in which these began to write: mostly, but not always, the order of `at`."""
        await self._catch_up(tenant)
        [feed] = await self._fetch(sql("feed"))
        if after is None:
            return Events((), _Place(feed["name"], max(feed["floor"], feed["horizon"])).cursor)
        place = _read(after)
        _check(place, feed, after)
        found = await self._fetch(sql("events"), tenant, place.xid, place.seq, place.id, limit)
        # Again, since a day may have gone between the look at the feed and the look at its tables.
        [feed] = await self._fetch(sql("feed"))
        _check(place, feed, after)
        events = tuple(_to_event(row, place.feed) for row in found if row["xid"] is not None)
        if len(events) == limit:
            return Events(events, events[-1].cursor)
        end = _Place(place.feed, found[0]["horizon"])
        return Events(events, end.cursor if end.xid > place.xid else after)


def _read(after: str) -> _Place:
    try:
        feed, xid, seq, job_id = after.split(".")
        place = _Place(feed, int(xid), int(seq), UUID(job_id))
        if place.cursor == after and 0 <= place.xid < 2**63 and _BEFORE <= place.seq < 2**63:
            return place
    except ValueError:
        pass
    raise InvalidInput("after", "be a cursor that this feed has given", after)


def _check(place: _Place, feed: Row, after: str) -> None:
    """Refuse a place of another feed, one from before what is kept, and one that this feed has not come to yet."""
    if place.feed != feed["name"] or place.xid > max(feed["floor"], feed["horizon"]):
        raise InvalidInput("after", "be a cursor of this very feed; begin again without one", after)
    if place.xid < feed["floor"]:
        raise InvalidInput(
            "after", "be newer: some of what came after it has left; begin again without one", after
        )


def _to_event(row: Row, feed: str) -> Event:
    status = None if row["status"] is None else Status(row["status"])
    return Event(
        _Place(feed, row["xid"], row["seq"], row["id"]).cursor, row["at"], row["kind"], row["name"], row["what"],
        row["queue"], row["type"], status, row["attempt"], row["worker"], row["actor"], row["error"],
        row["started_at"], row["ready_at"],
    )  # fmt: skip
