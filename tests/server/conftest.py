"""A service on each store, and a client that talks to it over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from penstock.access import Access
from penstock.core.ports import Store
from penstock.stores.memory import MemoryStore
from penstock.stores.postgres.store import PostgresStore
from support.postgres import emptied, server_url
from support.service import serving

NewClient = Callable[..., httpx.AsyncClient]


@pytest.fixture(params=["memory", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    if request.param == "postgres":
        await emptied()
        store: Store = PostgresStore(server_url(), connections=4)
    else:
        store = MemoryStore()
    yield store
    await store.close()


@pytest.fixture
async def url(store: Store) -> AsyncIterator[str]:
    async with serving(store) as url:
        yield url


@pytest.fixture
async def token(store: Store) -> str:
    """A token of the tenant `default` with every scope."""
    _, secret = await Access(store).create("default", "ada", ["admin"], actor="tests")
    return secret


@pytest.fixture
async def api(url: str, token: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30
    ) as api:
        yield api
