"""What the lake found out, kept for everyone to read: a run as a whole or not at all, and never an older one over a newer."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from penstock.core.codec import JsonText
from penstock.core.errors import InvalidInput
from penstock.core.ports import Store
from penstock.core.registry import Insight
from penstock.testing import START

ONE = JsonText('{"rows":[{"n":  1}]}')
TWO = JsonText('{"rows":[{"n": "zwölf"}]}')
LATER = START + timedelta(hours=1)


def slo(body: JsonText = ONE, as_of: datetime = START, tenant: str = "default") -> Insight:
    return Insight(tenant, "slo", as_of, body)


def flows(body: JsonText = ONE, as_of: datetime = START) -> Insight:
    return Insight("default", "flows", as_of, body)


async def test_are_found_as_they_were_put_by_name(store: Store) -> None:
    await store.put_insights([slo(), flows(TWO)])
    assert await store.insights("default", ["slo", "flows", "slo", "nothing"]) == [flows(TWO), slo()]
    assert await store.insights("default", ["slo"]) == [slo()]
    assert await store.insights("default", []) == []


async def test_a_later_run_takes_the_place_of_an_earlier_one(store: Store) -> None:
    await store.put_insights([slo()])
    await store.put_insights([slo(TWO, LATER)])
    assert await store.insights("default", ["slo"]) == [slo(TWO, LATER)]


async def test_the_same_run_may_be_published_again(store: Store) -> None:
    await store.put_insights([slo()])
    await store.put_insights([slo(TWO)])
    assert await store.insights("default", ["slo"]) == [slo(TWO)]


async def test_an_earlier_run_is_refused_as_a_whole(store: Store) -> None:
    await store.put_insights([slo(TWO, LATER)])
    with pytest.raises(InvalidInput, match="as_of must be no older than what is published"):
        await store.put_insights([flows(), slo()])
    assert await store.insights("default", ["flows", "slo"]) == [slo(TWO, LATER)]


async def test_an_earlier_run_is_refused_though_it_tells_of_others(store: Store) -> None:
    await store.put_insights([slo(TWO, LATER)])
    with pytest.raises(InvalidInput, match="as_of must be no older than what is published"):
        await store.put_insights([slo(tenant="other")])
    assert await store.insights("default", ["slo"]) == [slo(TWO, LATER)]
    assert await store.insights("other", ["slo"]) == []


async def test_what_a_later_run_does_not_tell_of_is_gone(store: Store) -> None:
    await store.put_insights([slo(), flows(), slo(tenant="other")])
    await store.put_insights([slo(TWO, LATER)])
    assert await store.insights("default", ["flows", "slo"]) == [slo(TWO, LATER)]
    assert await store.insights("other", ["slo"]) == []


async def test_a_tenant_has_its_own(store: Store) -> None:
    await store.put_insights([slo(), slo(TWO, tenant="other")])
    assert await store.insights("default", ["slo"]) == [slo()]
    assert await store.insights("other", ["slo"]) == [slo(TWO, tenant="other")]


async def test_a_run_without_any_is_no_run(store: Store) -> None:
    await store.put_insights([slo()])
    await store.put_insights([])
    assert await store.insights("default", ["slo"]) == [slo()]


async def test_of_runs_that_publish_at_once_the_newest_stays_as_a_whole(store: Store) -> None:
    runs = [START + timedelta(hours=number) for number in (3, 1, 4, 2)]
    done = await asyncio.gather(
        *(store.put_insights([flows(as_of=as_of), slo(as_of=as_of)]) for as_of in runs),
        return_exceptions=True,
    )
    assert all(one is None or isinstance(one, InvalidInput) for one in done)
    left = await store.insights("default", ["flows", "slo"])
    assert {one.as_of for one in left} == {max(runs)}
