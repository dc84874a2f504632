"""From a URL to a Queue."""

from __future__ import annotations

import os
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from penstock.core.errors import UnknownStore
from penstock.core.ports import Store
from penstock.queue import Queue
from penstock.stores.memory import MemoryStore
from penstock.stores.wakeups import from_url

KNOWN = "memory:// and postgresql://"


def connect(url: str = "memory://", *, tenant: str = "default", actor: str = "app") -> Queue:
    """Open the store a URL names. `memory://` keeps jobs in this process, `postgresql://…` in a database.

    `postgresql://…?pooled=true` is for a URL that leads to a transaction-mode pooler. The variable PENSTOCK_WAKEUPS says
    how workers are woken: `redis://…`, `none://` (they poll), or the `postgresql://…` of the database behind the pooler.
    """
    return Queue(_store(url), tenant=tenant, actor=actor)


def _store(url: str) -> Store:
    match urlsplit(url).scheme:
        case "memory":
            return MemoryStore()
        case "postgresql" | "postgres":
            try:
                from penstock.stores.postgres.store import PostgresStore
            except ModuleNotFoundError as error:
                raise UnknownStore(
                    url, f'{KNOWN}, the latter with pip install "penstock[postgres]" ({error})'
                ) from None
            address, pooled = _without(url, "pooled")
            wakeups = os.environ.get("PENSTOCK_WAKEUPS") or address
            return PostgresStore(address, pooled=pooled == "true", wakeups=from_url(wakeups))
        case _:
            raise UnknownStore(url, KNOWN)


def _without(url: str, option: str) -> tuple[str, str | None]:
    """A URL without one option of its query, and that option's value."""
    parts = urlsplit(url)
    given = parse_qsl(parts.query, keep_blank_values=True)
    rest = urlencode([(name, value) for name, value in given if name != option])
    return urlunsplit(parts._replace(query=rest)), dict(given).get(option)
