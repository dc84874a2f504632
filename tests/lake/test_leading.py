"""The office of the lake's driver, on a real PostgreSQL: who comes back finds it open, and nobody else does."""

from __future__ import annotations

import asyncio

import pytest

from penstock import connect
from penstock.lake.leading import OFFICE, SECONDS, LakeBusy, Leading
from support.postgres import emptied, server_url


def test_who_could_not_say_that_it_had_gone_goes_on_at_once() -> None:
    """A store that is away for a moment ends a run, and is not told of it. The next run is the same driver's."""

    async def held() -> None:
        await emptied()
        async with connect(server_url()) as queue:
            assert await queue.store.lead(OFFICE, "me", SECONDS)

    asyncio.run(held())
    with pytest.raises(LakeBusy, match="somebody else holds the office"), Leading(server_url()):
        pass
    with Leading(server_url(), holder="me") as office:
        office.check()
