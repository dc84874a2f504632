"""Allowances kept in a real Redis: exact however many ask, and never more than was allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing

import pytest

from penstock.access import Access
from penstock.core.errors import StoreUnavailable
from penstock.core.limits import Rate
from penstock.core.registry import Spend
from penstock.server.redis_limits import RedisAllowances
from penstock.stores.memory import MemoryStore
from support.service import serving
from support.wakeup_servers import RedisServer, find_redis


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    program = find_redis()
    if program is None:
        pytest.skip("there is no redis-server or valkey-server here")
    server = RedisServer(program)
    yield server
    server.stop()


async def test_no_more_is_granted_than_was_allowed(server: RedisServer) -> None:
    async with aclosing(RedisAllowances(server.url)) as one, aclosing(RedisAllowances(server.url)) as two:
        spend = Spend("token t", 3.0, 0.001, 100.0)
        batches = await asyncio.gather(*((one, two)[n % 2].spend("acme", [spend] * 3) for n in range(20)))
        answers = [answer for batch in batches for answer in batch]
        assert sum(answer.granted for answer in answers) == 33
        refused = next(answer for answer in answers if not answer.granted)
        assert 0.9 < refused.left < 1.1
        assert 1_900 < refused.wait_seconds < 2_100
        [other] = await one.spend("other", [spend])
        assert other.granted, "another tenant has an allowance of its own"


async def test_it_fills_up_again(server: RedisServer) -> None:
    async with aclosing(RedisAllowances(server.url)) as allowances:
        spend = Spend("fills", 1.0, 50.0, 1.0)
        first, second = await allowances.spend("t", [spend, spend])
        assert (first.granted, second.granted) == (True, False)
        await asyncio.sleep(second.wait_seconds + 0.005)
        [third] = await allowances.spend("t", [spend])
        assert third.granted


async def test_a_server_that_is_away_is_told_as_such(server: RedisServer) -> None:
    async with aclosing(RedisAllowances("redis://127.0.0.1:1/0")) as allowances:
        with pytest.raises(StoreUnavailable, match="Redis"):
            await allowances.spend("t", [Spend("n", 1.0, 1.0, 1.0)])


async def test_services_share_them(server: RedisServer) -> None:
    import httpx

    store = MemoryStore()
    _, secret = await Access(store).create("default", "busy", ["read"], actor="tests", rate=Rate(7, per=3600))
    headers = {"Authorization": f"Bearer {secret}"}
    async with (
        aclosing(RedisAllowances(server.url)) as allowances,
        serving(store, allowances=allowances) as one,
        serving(store, allowances=allowances) as two,
        httpx.AsyncClient(headers=headers) as client,
    ):
        answers = await asyncio.gather(*(client.get(f"{(one, two)[n % 2]}/v1/queues") for n in range(20)))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [429] * 13
