"""Every store there is: adding one here is all it takes to hold it to the rules."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.ports import Store
from penstock.stores.memory import MemoryStore
from penstock.testing import FakeClock
from support.logs import log_store, sharded_store
from support.postgres import EmptyPostgresStore, SqlEnqueuingStore
from support.service import ServedMemoryStore

STORES: dict[str, Callable[[FakeClock], Store]] = {
    "memory": MemoryStore,
    "postgres": EmptyPostgresStore,
    "sql": SqlEnqueuingStore,
    "remote": ServedMemoryStore,
    "log": log_store,
    "shards": sharded_store,
}
