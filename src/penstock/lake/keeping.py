"""The lake's promise to its store: what it has, so that the store may let go of it, and how often it has looked.

A run checks in before it takes anything in, and tells the store when it has come to its end. Checking in also proves that
the store is the one that the lake has read, and not a copy from before. The number of the run is written into the store
after the horizon was looked at, and into the manifest with the first batch. So a store that knows the number also has
everything up to that horizon, and one that knows only lower ones was restored from a backup, however far its transactions
have counted on since.

Of a store of several logs each is compacted by itself and may be restored by itself. So each keeps the promise, with what the
lake has read of that log, and each is asked how many runs it knows of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from typing import TypeVar

from msgspec.structs import replace

from penstock.connecting import connect
from penstock.core import promises
from penstock.core.errors import PenstockError
from penstock.core.ports import Store
from penstock.core.promises import LAKE, Promise
from penstock.core.registry import ALL_TENANTS, Audited, Entry, PutEntry
from penstock.lake.errors import LakeError, StoreRestored
from penstock.lake.manifest import Lake, Manifest, by_log
from penstock.stores.log.layout import shard_name
from penstock.stores.log.shards import ShardedLogStore

Answer = TypeVar("Answer")


class PromiseUnknown(LakeError):
    """No lake with this id has promised anything. `penstock doctor` tells of those that have."""

    code = "lake_promise_unknown"

    def __init__(self, lake: str, known: list[str]) -> None:
        said = f"those that have are {', '.join(known)}" if known else "none has"
        super().__init__(f"no lake {lake!r} has promised this store anything; {said}", lake=lake, known=known)


def check_in(url: str, lake: Lake, manifest: Manifest) -> int:
    """Say that a run begins, and hold the store to be no older than the lake. Returns the number of the run."""

    async def begin(store: Store) -> int:
        keepers, now = await _keepers(store), await store.now()
        found = await _all_found(keepers, manifest.lake)
        runs = _held_to(found, lake, manifest)
        # A run that died between two logs may be known to the first alone: its number is used up.
        run = max(runs) + 1
        for keeper, (entry, there) in zip(keepers, found, strict=True):
            promise = there or Promise(place=lake.place, run=0, since=now)
            await _put(
                keeper, manifest.lake, replace(promise, place=lake.place, run=run, lifted=False), entry
            )
        return run

    return _in_store(url, begin)


def hold_to_runs(url: str, lake: Lake, manifest: Manifest) -> None:
    """Hold the store to know of all runs of the lake, and change nothing."""

    async def look(store: Store) -> None:
        _held_to(await _all_found(await _keepers(store), manifest.lake), lake, manifest)

    _in_store(url, look)


def tell(url: str, lake: Lake, manifest: Manifest) -> None:
    """Tell the store what the lake has by now; from then on that may leave."""

    async def say(store: Store) -> None:
        keepers, now = await _keepers(store), await store.now()
        found = await _all_found(keepers, manifest.lake)
        for keeper, (entry, there), offset in zip(keepers, found, by_log(manifest.offset), strict=True):
            promise = there or Promise(place=lake.place, run=manifest.run, since=now)
            told = replace(
                promise,
                told_at=now,
                exported_until=covered_until(manifest),
                offset=offset,
                doubts=manifest.doubts,
            )
            await _put(keeper, manifest.lake, told, entry)

    _in_store(url, say)


def covered_until(manifest: Manifest) -> datetime | None:
    """Up to when everything is in every table, and was found to agree with the store.

    Today is never: what ended on a day may leave when the day is over and its counts are right.
    """
    if manifest.read_at is None:
        return None
    open_days = {*manifest.unchecked, *manifest.doubts, *manifest.stale}
    if not open_days:
        return manifest.read_at
    first = datetime.combine(date.fromisoformat(min(open_days)), datetime.min.time(), UTC)
    return min(manifest.read_at, first - timedelta(microseconds=1))


async def forget(store: Store, lake: str | None, actor: str) -> list[tuple[str, Promise]]:
    """Lift the promise of a lake, or of every one: history leaves the store again as if it had never been read.

    The number of its runs stays, for the lake may come back.
    """
    keepers = await _keepers(store)
    kept = [{entry.name: entry for entry in await keeper.entries(ALL_TENANTS, LAKE)} for keeper in keepers]
    known = sorted({name for entries in kept for name in entries})
    if lake is not None and lake not in known:
        raise PromiseUnknown(lake, known)
    lifted: dict[str, Promise] = {}
    for keeper, entries in zip(keepers, kept, strict=True):
        for name, promise in promises.read(entries.values()).items():
            if lake in (None, name) and not promise.lifted:
                audit = None if name in lifted else Audited(name, "forget", actor)
                lifted.setdefault(name, promise := replace(promise, lifted=True))
                await _put(keeper, name, promise, entries[name], audit)
    return list(lifted.items())


async def _keepers(store: Store) -> Sequence[Store]:
    """Where the store's promises are kept: with it, or with each of its logs."""
    return await store.logs() if isinstance(store, ShardedLogStore) else [store]


async def _all_found(keepers: Sequence[Store], lake: str) -> list[tuple[Entry | None, Promise | None]]:
    """What each keeper knows, asked at once: in a bucket each takes its time to open."""
    return list(await asyncio.gather(*(_found(keeper, lake) for keeper in keepers)))


async def _found(store: Store, lake: str) -> tuple[Entry | None, Promise | None]:
    entries = await store.entries(ALL_TENANTS, LAKE, [lake])
    return (entries[0], promises.decode(entries[0].body)) if entries else (None, None)


def _held_to(
    found: Sequence[tuple[Entry | None, Promise | None]], lake: Lake, manifest: Manifest
) -> list[int]:
    """Of how many runs each keeper knows; one that knows of fewer than the lake does is refused."""
    runs = [0 if there is None else there.run for _, there in found]
    for number, known in enumerate(runs):
        if known < manifest.run:
            log = f"log {shard_name(number)}" if len(found) > 1 else None
            raise StoreRestored(lake.place, manifest.run, known, log)
    return runs


async def _put(
    store: Store, lake: str, promise: Promise, there: Entry | None, audit: Audited | None = None
) -> None:
    version = 0 if there is None else there.version
    [answer] = await store.put_entries(
        ALL_TENANTS, [PutEntry(LAKE, lake, promises.encode(promise), version, audit=audit)]
    )
    if isinstance(answer, PenstockError):
        raise answer


def _in_store(url: str, ask: Callable[[Store], Awaitable[Answer]]) -> Answer:
    async def asked() -> Answer:
        async with connect(url, actor="lake") as queue:
            return await ask(queue.store)

    # In a thread of its own: a notebook has an event loop at work in this one.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(asked())).result()
