"""Whether a bucket keeps its promises. Some that speak S3 let two writers of one key both win."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from penstock.core.errors import StoreUnavailable
from penstock.stores.log.backings import Objects
from penstock.stores.log.errors import StoreNotConditional

WRITERS = 16
ROUNDS = 3
REMEMBERED = "PROBED"
"""The object that says that this place was tried and found good."""


async def probe(objects: Objects, store: str) -> None:
    """Try a store, unless it was found good before. StoreNotConditional says what it did wrong."""
    if await objects.get(REMEMBERED) is not None:
        return
    folder = f"probe/{secrets.token_hex(8)}"
    try:
        for number in range(ROUNDS):
            await _race(objects, store, f"{folder}/{number}")
        await _replacing(objects, store, f"{folder}/replaced")
        await _listing(objects, store, folder)
    finally:
        with suppress(StoreUnavailable):  # they harm nobody; what was found is worth more
            await objects.delete([*(f"{folder}/{number}" for number in range(ROUNDS)), f"{folder}/replaced"])
    await objects.now()  # which says how far it is off this machine's, if that is far
    await objects.create(
        REMEMBERED, msgspec.json.encode({"writers": WRITERS, "rounds": ROUNDS, "at": datetime.now(UTC)})
    )


async def _race(objects: Objects, store: str, key: str) -> None:
    entries = [secrets.token_bytes(16) for _ in range(WRITERS)]
    won = await asyncio.gather(*(objects.create(key, entry) for entry in entries))
    if won.count(True) != 1:
        raise StoreNotConditional(
            store, f"of {WRITERS} writers of one key {won.count(True)} were told that they won"
        )
    if await objects.get(key) != entries[won.index(True)]:
        raise StoreNotConditional(store, "what was written is not what is read right afterwards")
    if await objects.create(key, secrets.token_bytes(16)):
        raise StoreNotConditional(store, "an object was overwritten that was to be written only if absent")


async def _replacing(objects: Objects, store: str, key: str) -> None:
    first = await objects.replace(key, b"first", None)
    if first is None:
        raise StoreNotConditional(store, "an absent object was not replaced")
    won = await asyncio.gather(
        *(objects.replace(key, secrets.token_bytes(16), first) for _ in range(WRITERS))
    )
    winners = sum(version is not None for version in won)
    if winners != 1:
        raise StoreNotConditional(
            store, f"of {WRITERS} who replaced one version {winners} were told that they won"
        )


async def _listing(objects: Objects, store: str, folder: str) -> None:
    listed = {found.key for found in await objects.list(folder)}
    if missing := {f"{folder}/{number}" for number in range(ROUNDS)} - listed:
        raise StoreNotConditional(
            store, f"{len(missing)} of {ROUNDS} objects are not listed right after they were written"
        )
