"""What a lake promises its store, and what that says about the store: without Spark, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock import Queue
from penstock.core import promises
from penstock.core.promises import LAKE, Promise
from penstock.core.registry import ALL_TENANTS, PutEntry
from penstock.lake import keeping
from penstock.lake.errors import StoreRestored
from penstock.lake.keeping import PromiseUnknown, check_in, covered_until, tell
from penstock.lake.manifest import Lake, Manifest, new_manifest
from penstock.stores.postgres.store import PostgresStore
from penstock.stores.wakeups.polling import NoWakeups
from support.postgres import emptied, server_url

NOON = datetime(2026, 1, 9, 12, tzinfo=UTC)


@pytest.fixture
async def queue() -> AsyncIterator[Queue]:
    await emptied()
    async with Queue(PostgresStore(server_url(), wakeups=NoWakeups()), actor="ada") as queue:
        yield queue


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


async def promised(queue: Queue) -> dict[str, Promise]:
    return promises.read(await queue.store.entries(ALL_TENANTS, LAKE))


def manifest(**found: Any) -> Manifest:
    return replace(
        new_manifest({"feed": "f", "system": "s"}, {"xid": 7, "feed": "f", "system": "s"}), **found
    )


@pytest.mark.parametrize(
    ("found", "until"),
    [
        ({}, None),
        ({"read_at": NOON}, NOON),
        ({"read_at": NOON, "unchecked": ("2026-01-09",)}, NOON.replace(hour=0)),
        ({"read_at": NOON, "unchecked": ("2026-01-09",), "doubts": ("2026-01-03",)}, datetime(2026, 1, 3, tzinfo=UTC)),
        ({"read_at": NOON, "stale": ("2026-01-02", "2026-01-05")}, datetime(2026, 1, 2, tzinfo=UTC)),
        ({"read_at": NOON, "unchecked": ("2026-01-10",)}, NOON),
    ],
)  # fmt: skip
def test_a_lake_covers_what_ended_before_the_first_day_that_is_not_found_right(
    found: dict[str, Any], until: datetime | None
) -> None:
    covered = covered_until(manifest(**found))
    if until is None or until == NOON:
        assert covered == until
    else:
        assert covered == until - timedelta(microseconds=1)  # who ended at midnight ended on that day


async def test_a_run_promises_when_it_begins_and_tells_when_it_ends(queue: Queue, lake: Lake) -> None:
    one = manifest(read_at=NOON, doubts=("2026-01-03",))
    assert check_in(server_url(), lake, one) == 1
    [begun] = (await promised(queue)).values()
    assert (begun.place, begun.run, begun.told_at, begun.exported_until) == (lake.place, 1, None, None)
    tell(server_url(), lake, one)
    [(name, told)] = (await promised(queue)).items()
    assert (name, told.run, told.doubts) == (one.lake, 1, ("2026-01-03",))
    assert (told.exported_until, told.offset) == (covered_until(one), one.offset)
    assert told.told_at is not None
    # The next run holds the store to what the last one told, until it tells more.
    assert check_in(server_url(), lake, replace(one, run=1)) == 2
    assert (await promised(queue))[one.lake] == replace(told, run=2)


async def test_a_store_that_knows_of_fewer_runs_was_restored(queue: Queue, lake: Lake) -> None:
    one = manifest()
    first = check_in(server_url(), lake, one)
    [backup] = await queue.store.entries(ALL_TENANTS, LAKE)
    second = check_in(server_url(), lake, replace(one, run=first))
    # A run that died before anything of it was in the lake proves nothing.
    assert check_in(server_url(), lake, replace(one, run=first)) == second + 1
    await queue.store.put_entries(ALL_TENANTS, [PutEntry(LAKE, one.lake, backup.body)])
    with pytest.raises(StoreRestored, match="has made 2 runs over this store, and the store knows of 1"):
        check_in(server_url(), lake, replace(one, run=second))
    await queue.store.put_entries(ALL_TENANTS, [PutEntry(LAKE, one.lake, None)])  # from before the lake
    with pytest.raises(StoreRestored, match="the store knows of 0"):
        check_in(server_url(), lake, replace(one, run=second))
    assert await promised(queue) == {}


async def test_a_promise_that_was_lifted_is_made_anew_by_the_next_run(queue: Queue, lake: Lake) -> None:
    one, other = manifest(), manifest()
    for each in (one, other):
        check_in(server_url(), lake, each)
    with pytest.raises(PromiseUnknown, match="those that have are"):
        await keeping.forget(queue.store, "nobody's", "ada")
    [(name, _)] = await keeping.forget(queue.store, one.lake, "ada")
    assert name == one.lake
    assert [each.lifted for each in (await promised(queue)).values()].count(True) == 1
    assert await keeping.forget(queue.store, one.lake, "ada") == []
    assert check_in(server_url(), lake, replace(one, run=1)) == 2  # its runs were not forgotten
    assert promises.kept(await promised(queue)) == list((await promised(queue)).values())
    assert len(await keeping.forget(queue.store, None, "ada")) == 2
