"""From a URL to a Queue."""

from __future__ import annotations

from urllib.parse import urlsplit

from penstock.core.errors import UnknownStore
from penstock.queue import Queue
from penstock.stores.memory import MemoryStore


def connect(url: str = "memory://", *, tenant: str = "default", actor: str = "app") -> Queue:
    """Open the store a URL names. `memory://` keeps jobs in this process."""
    if urlsplit(url).scheme == "memory":
        return Queue(MemoryStore(), tenant=tenant, actor=actor)
    raise UnknownStore(url, "memory://")
