"""From a URL to a Queue."""

from __future__ import annotations

from urllib.parse import urlsplit

from penstock.core.errors import UnknownStore
from penstock.core.ports import Store
from penstock.queue import Queue
from penstock.stores.memory import MemoryStore

KNOWN = "memory:// and postgresql://"


def connect(url: str = "memory://", *, tenant: str = "default", actor: str = "app") -> Queue:
    """Open the store a URL names. `memory://` keeps jobs in this process, `postgresql://…` in a database."""
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
            return PostgresStore(url)
        case _:
            raise UnknownStore(url, KNOWN)
