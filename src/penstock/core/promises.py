"""Retention with a promise: where a lake is kept, nothing leaves the store before the lake has it.

A promise is an entry of the service itself, one for each lake, so that it holds on every store and needs no table. A store
of several logs keeps one in each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from penstock.core.codec import JsonText
from penstock.core.registry import ALL_TENANTS, Entry

LAKE = "lake"
"""The kind of these entries; their tenant is ALL_TENANTS and their name the lake's id."""

NEVER = datetime.min.replace(tzinfo=UTC)
"""Before everything that ever ended."""


class Promise(Struct, frozen=True, kw_only=True):
    """How far a lake has the history of this store."""

    place: str
    """Where the lake is, as its driver says it."""
    run: int
    """How many runs have begun. A store that knows of fewer than the lake does was restored from a backup."""
    since: datetime
    told_at: datetime | None = None
    """When a run last came to its end."""
    exported_until: datetime | None = None
    """Jobs that ended later stay; None as long as no run has come to its end."""
    offset: Mapping[str, Any] = {}
    """Up to where the lake has read, in the store's own words. A store that can tell goes by it as well as by time."""
    doubts: tuple[str, ...] = ()
    """Days of which the lake does not have what the store has."""
    lifted: bool = False
    """Somebody has given the promise up. The next run makes it anew."""

    @property
    def until(self) -> datetime:
        return self.exported_until or NEVER


_HOLD_ALL = Promise(place="?", run=0, since=NEVER)


def read(entries: Iterable[Entry]) -> dict[str, Promise]:
    """The promises by the ids of their lakes, those that were lifted among them."""
    return {entry.name: decode(entry.body) for entry in entries if entry.tenant == ALL_TENANTS}


def decode(body: JsonText) -> Promise:
    """A promise as its entry holds it."""
    try:
        return msgspec.json.decode(body, type=Promise)
    except msgspec.DecodeError:
        return _HOLD_ALL  # whatever it means, it was not that history may go


def encode(promise: Promise) -> JsonText:
    return JsonText(msgspec.json.encode(promise).decode())


def kept(promises: Mapping[str, Promise]) -> list[Promise]:
    """Those that hold."""
    return [promise for promise in promises.values() if not promise.lifted]


def exported_until(promises: Mapping[str, Promise], given: datetime | None = None) -> datetime | None:
    """Up to when ended jobs may leave, by all promises and what the caller says; None where nobody says anything."""
    moments = [promise.until for promise in kept(promises)]
    return min([*moments, given] if given is not None else moments, default=None)
