"""Server-sent events: what happens, as it happens, from wherever the client left off."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import StreamingResponse

from penstock.access import Scope
from penstock.core.errors import InvalidInput, PenstockError
from penstock.core.registry import Event
from penstock.server.feeds import AT_ONCE, TooFarBehind
from penstock.server.operation import Call, Operation
from penstock.server.wire import Id, Name

logger = logging.getLogger("penstock.server")

COMMENT_SECONDS = 15.0
_SCOPES = (Scope.READ, Scope.OPERATE)


class EventsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    after: Annotated[str, Meta(min_length=1, max_length=200)] | UnsetType = UNSET
    """An event's id, to go on after it; the same as the header `Last-Event-ID`."""
    queue: Name | UnsetType = UNSET
    type: Name | UnsetType = UNSET
    job: Id | UnsetType = UNSET


async def follow_events(call: Call) -> StreamingResponse:
    """What happens from now on, or after an event's id, as server-sent events. Each is JSON; its id resumes after it."""
    after = call.request.headers.get("last-event-id")
    if after is None and call.query.after is not UNSET:
        after = call.query.after
    if after is not None:
        if not after.isascii() or not 1 <= len(after) <= 200:
            raise InvalidInput("after", "be the id of an event", after)
        await call.service.store.events(
            call.caller.tenant, after=after, limit=1
        )  # refused before the stream begins
    return StreamingResponse(
        _told(call, after),
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        media_type="text/event-stream",
    )


async def _told(call: Call, after: str | None) -> AsyncIterator[bytes]:
    store, tenant = call.service.store, call.caller.tenant
    yield b": penstock\nretry: 2000\n\n"
    try:
        async with call.service.feeds.follow(tenant) as follower:
            # First what the client missed, read for it alone; what others hear meanwhile is kept, and not told twice.
            known: set[str] = set()
            while after is not None:
                page = await store.events(tenant, after=after, limit=AT_ONCE)
                known.update(event.cursor for event in page.events)
                if told := _frames(call, page.events):
                    yield told
                after = page.next if len(page.events) == AT_ONCE else None
            while (events := await follower.next(COMMENT_SECONDS)) is not None:
                await call.service.caller(call.request, _SCOPES)  # whose token was revoked hears no more
                yield (
                    _frames(call, (event for event in events if event.cursor not in known))
                    or b": still here\n\n"
                )
    except TooFarBehind:
        logger.info("one who follows %s reads too slowly and has to come back", tenant)
    except PenstockError as error:
        logger.info("a stream of events of %s ends: %s", tenant, error)


def _frames(call: Call, events: Iterable[Event]) -> bytes:
    query: EventsQuery = call.query
    return b"".join(
        frame(event)
        for event in events
        if (query.queue is UNSET or event.queue == query.queue)
        and (query.type is UNSET or event.type == query.type)
        and (query.job is UNSET or (event.kind == "job" and event.name == query.job))
    )


def frame(event: Event) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (
        event.cursor.encode(),
        f"{event.kind}.{event.what}".replace("\n", " ").encode(),
        msgspec.json.encode(event),
    )


OPERATIONS = (
    Operation(
        "GET", "/v1/events", follow_events, "Follow what happens", Event, _SCOPES, query=EventsQuery,
        media_type="text/event-stream", headers={"Last-Event-ID": "Where to go on: the id of an event"}, tag="Look",
    ),
)  # fmt: skip
