"""A log as a source of the lake: what truly happened, wherever it is kept by now, is what PostgreSQL tells of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock import Queue, connect
from penstock.core import promises
from penstock.core.errors import InvalidInput
from penstock.core.job import NewJob
from penstock.core.ports import Store
from penstock.core.promises import LAKE, Promise
from penstock.core.registry import ALL_TENANTS, PutEntry
from penstock.lake.manifest import Lake, LakeOfAnother
from penstock.lake.tables import EVENTS
from penstock.stores.log import compacting, history
from penstock.stores.log.backings import open_backing
from penstock.stores.log.backings.files import FolderObjects
from penstock.stores.log.compacting import Rhythm, compact_once
from penstock.stores.log.snapshots import Manifest, Snapshots
from penstock.stores.log.store import SHARD
from penstock.stores.postgres.store import PostgresStore
from penstock.stores.wakeups.polling import NoWakeups
from penstock.testing import FakeClock, counting_ids
from support.postgres import emptied, server_url

pytest.importorskip("pyarrow")

from penstock.lake.source.asking import Ask  # noqa: E402
from penstock.lake.source.logs import LogReader  # noqa: E402

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ALWAYS = datetime(2026, 1, 9, 12, tzinfo=UTC)
ALL = Ask("events", tuple(EVENTS))
PLACE = ("xid", "seq")
"""What differs from store to store."""


class Story:
    """The same things happen, day by day, wherever it is told."""

    def __init__(self, url: str, open: Callable[[], Store], clock: FakeClock) -> None:
        self.url, self._open, self.clock = url, open, clock
        self._new_id = counting_ids(NOON)

    def ask(self, what: Callable[[Queue], Awaitable[Any]]) -> Any:
        async def within() -> Any:
            async with Queue(self._open(), actor="test") as queue:
                return await what(queue)

        return asyncio.run(within())

    def happen(self, day: int) -> None:
        self.clock.set(NOON + timedelta(days=day - 1))
        self.ask(self._work)

    async def _work(self, door: Queue) -> None:
        clock = self.clock

        async def put(**options: Any) -> str:
            await door.enqueue_many([NewJob(self._new_id(), "mail", **options)])
            return str(options)

        async def hold(limit: int = 1, seconds: float = 30) -> Any:
            return await door.lease("default", worker="w", limit=limit, lease_seconds=seconds)

        one, two, three = (self._new_id() for _ in range(3))
        await door.enqueue_many([NewJob(one, "mail", max_attempts=2), NewJob(two, "mail", priority=-1)])
        await door.enqueue_many([NewJob(three, "mail", parents=(one,), key="k", priority=-2)])
        clock.advance(seconds=10)
        [held] = await hold()
        clock.advance(seconds=1)
        await door.nack(held, error="ValueError: no", retry_in=5)
        clock.advance(seconds=6)
        [held] = await hold()
        clock.advance(seconds=2)
        await door.nack(held, error="ValueError: no", retry=False)  # dead; its child with it
        with pytest.raises(Exception, match="lease"):
            await door.ack(held)  # void
        clock.advance(seconds=1)
        await door.redrive(one, "again")
        clock.advance(seconds=3)
        [held] = await hold()
        clock.advance(seconds=1)
        await door.ack(held)
        [held] = await hold(seconds=5)
        clock.advance(seconds=20)  # lost
        await door.queues()
        await door.cancel(two, "enough")
        [held] = await hold()
        await door.snooze(held, 2)
        clock.advance(seconds=4)
        [held] = await hold()
        await door.ack(held, {"n": 1})
        await put(expires_in=timedelta(seconds=1), delay=timedelta(seconds=60), unique_key="u")
        clock.advance(seconds=2)
        await door.find()
        await door.configure("default", max_concurrency=7)
        await put(run_at=clock.now() + timedelta(hours=1), headers='{"a": 1}')


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock(NOON)

    async def now(self: FolderObjects) -> datetime:
        return clock.now()

    monkeypatch.setattr(FolderObjects, "now", now)
    return clock


@pytest.fixture
def story(tmp_path: Path, clock: FakeClock) -> Story:
    url = f"file://{tmp_path}/log"
    return Story(url, lambda: connect(url).store, clock)


def compact(story: Story, **rhythm: Any) -> Manifest:
    async def done() -> Manifest:
        await compact_once(story.url, SHARD, Rhythm(**rhythm))
        backing = open_backing(story.url)
        try:
            found = await Snapshots(backing.objects, SHARD).manifest()
            assert found is not None
            return found[0]
        finally:
            await backing.close()

    return asyncio.run(done())


def told(reader: LogReader, ask: Ask = ALL) -> list[dict[str, Any]]:
    return [
        row
        for part in reader.slices(ask, 4)
        for batch in reader.read(ask, part)
        for row in batch.to_pylist()
    ]


def in_postgres(days: int) -> Story:
    url, clock = server_url(), FakeClock(NOON)
    asyncio.run(emptied())
    other = Story(url, lambda: PostgresStore(url, clock, wakeups=NoWakeups()), clock)
    for day in range(1, days + 1):
        other.happen(day)
    return other


def placeless(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr({name: value for name, value in row.items() if name not in PLACE}) for row in rows)


def test_columns_are_those_of_the_lake() -> None:
    assert (*history.COLUMNS, "day") == tuple(EVENTS)


def test_facts_are_those_of_postgres_before_and_after_compaction(story: Story) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    from penstock.lake.source.postgres import PostgresReader

    story.happen(1)
    before = told(LogReader(story.url))
    manifest = compact(story)
    assert sum(one.count for one in manifest.history) == len(before) > 15
    assert told(LogReader(story.url)) == before
    story.happen(2)  # in the tail
    after = told(LogReader(story.url))
    assert len({(row["tenant"], row["kind"], row["xid"], row["seq"], row["job_id"]) for row in after}) == len(after)
    other = PostgresReader(in_postgres(2).url)
    for table in ("events", "attempts"):
        ask = Ask(table, ALL.columns) if table == "events" else Ask(table, ("job_id", "attempt", "ready_at", "run_at", "outcome", "result", "day"))
        theirs = [
            row for part in other.slices(ask, 4) for batch in other.read(ask, part) for row in batch.to_pylist()
        ]
        assert placeless(told(LogReader(story.url), ask)) == placeless(theirs)
