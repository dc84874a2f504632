"""The same things happen wherever they are told: in a log, in several, in PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import Queue, connect
from penstock.core.job import JobId, NewJob
from penstock.core.ports import Store
from penstock.lake.manifest import Lake
from penstock.lake.source.asking import Ask, Reader
from penstock.lake.tables import EVENTS
from penstock.stores.log.backings import open_backing
from penstock.stores.log.backings.files import FolderObjects
from penstock.stores.log.compacting import Rhythm, compact_once
from penstock.stores.log.layout import shard_name, shard_of
from penstock.stores.log.snapshots import Manifest, Snapshots
from penstock.stores.postgres.store import PostgresStore
from penstock.stores.wakeups.polling import NoWakeups
from penstock.testing import FakeClock, counting_ids
from support.postgres import emptied, server_url

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ALWAYS = datetime(2026, 1, 9, 12, tzinfo=UTC)
ALL = Ask("events", tuple(EVENTS))
PLACE = ("xid", "seq")
"""What differs from store to store."""


class Story:
    """The same things happen, day by day, wherever it is told."""

    def __init__(self, url: str, open: Callable[[], Store], clock: FakeClock) -> None:
        self.url, self._open, self.clock = url, open, clock
        self._ids: dict[str, Callable[[], JobId]] = {}

    def ask(self, what: Callable[[Queue], Awaitable[Any]]) -> Any:
        async def within() -> Any:
            async with Queue(self._open(), actor="test") as queue:
                return await what(queue)

        return asyncio.run(within())

    def happen(self, day: int, *queues: str) -> None:
        """The same in each of these queues, hour by hour, or in `default`."""
        for hour, queue in enumerate(queues or ("default",)):
            self.clock.set(NOON + timedelta(days=day - 1, hours=hour))
            self.ask(partial(self._work, queue))

    async def _work(self, queue: str, door: Queue) -> None:
        clock = self.clock
        # Ids of its own, by which order among equals goes: what happens in one queue is the same whatever does in others.
        new_id = self._ids.setdefault(queue, counting_ids(NOON + timedelta(minutes=len(self._ids))))

        async def put(**options: Any) -> str:
            await door.enqueue_many([NewJob(new_id(), "mail", **{"queue": queue, **options})])
            return str(options)

        async def hold(limit: int = 1, seconds: float = 30) -> Any:
            return await door.lease(queue, worker="w", limit=limit, lease_seconds=seconds)

        one, two, three = (new_id() for _ in range(3))
        await door.enqueue_many(
            [NewJob(one, "mail", queue=queue, max_attempts=2), NewJob(two, "mail", queue=queue, priority=-1)]
        )
        await door.enqueue_many([NewJob(three, "mail", queue=queue, parents=(one,), key="k", priority=-2)])
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
        await put(queue=f"{queue}/other")
        await door.configure(queue, max_concurrency=7)
        await door.put_schedule(f"nightly-{queue}", "0 3 * * *", {"type": "mail", "queue": queue})
        await put(run_at=clock.now() + timedelta(hours=1), headers='{"a": 1}')


def clock_of_folders(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The clock of all stores in folders."""
    clock = FakeClock(NOON)

    async def now(self: FolderObjects) -> datetime:
        return clock.now()

    monkeypatch.setattr(FolderObjects, "now", now)
    return clock


def compact(story: Story, log: int = 0, **rhythm: Any) -> Manifest:
    """A round of the compactor of a log; answers with the manifest that is there then; an empty one has none."""

    async def done() -> Manifest:
        await compact_once(story.url, shard_name(log), Rhythm(**rhythm))
        backing = open_backing(story.url)
        try:
            found = await Snapshots(backing.objects, shard_name(log)).manifest()
            return Manifest("") if found is None else found[0]
        finally:
            await backing.close()

    return asyncio.run(done())


def told(reader: Reader, ask: Ask = ALL) -> list[dict[str, Any]]:
    return [
        row for part in reader.slices(ask, 4) for batch in reader.read(ask, part) for row in batch.to_pylist()
    ]


def in_postgres(days: int, *queues: str) -> Story:
    url, clock = server_url(), FakeClock(NOON)
    asyncio.run(emptied())
    other = Story(url, lambda: PostgresStore(url, clock, wakeups=NoWakeups()), clock)
    for day in range(1, days + 1):
        other.happen(day, *queues)
    return other


def placeless(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr({name: value for name, value in row.items() if name not in PLACE}) for row in rows)


def rows(lake: Lake) -> dict[str, list[str]]:
    """Silver and gold, as DuckDB reads them from the files."""
    import duckdb

    manifest = lake.manifest()
    found = {}
    for table in sorted({*manifest.tables} - {"events"}):
        files = [
            lake.storage.path(file)
            for folder in manifest.folders(table)
            for file in lake.storage.files(folder)
        ]
        read = duckdb.read_parquet(files, hive_partitioning=False).fetchall() if files else []
        found[table] = sorted(map(repr, read))
    return found


# ── In several logs ───────────────────────────────────────────────────────────────────────────────

LOGS = 3
IN = {shard_of("default", f"q{n}", LOGS): f"q{n}" for n in range(9)}
"""A queue of each log."""
FIRST, SECOND, THIRD = IN[0], IN[1], IN[2]


def in_logs(folder: Path, clock: FakeClock) -> Story:
    """A story in a place of three logs, which says nothing of their number once it is made."""
    url = f"file://{folder}/logs"
    return Story(url, lambda: connect(f"{url}?shards={LOGS}").store, clock)
