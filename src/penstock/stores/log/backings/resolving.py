"""What became of a write whose answer was lost: the bytes at its key decide, never their absence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from random import Random

from penstock.core.errors import StoreUnavailable
from penstock.stores.log.errors import OutcomeUnknown, StorageGone, StorageRefused

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0


class Put(Enum):
    """How a conditional write went, as far as the store said."""

    WON = auto()
    REFUSED = auto()
    """Something is there, or another is writing it just now. It may be ours, from an attempt before."""
    UNKNOWN = auto()


async def create(
    put: Callable[[], Awaitable[Put]],
    get: Callable[[], Awaitable[bytes | None]],
    data: bytes,
    *,
    store: str,
    key: str,
    deadline_seconds: float,
    choices: Random,
) -> bool:
    """Write these bytes to an absent key, and learn whether they are there.

    Where nothing is found afterwards the outcome is still open: a write that is on its way may land yet. So the
    same bytes are sent to the same key again, until something is there or the deadline has passed.
    """
    in_doubt = False
    pause = FIRST_PAUSE_SECONDS
    try:
        async with asyncio.timeout(deadline_seconds):
            while True:
                try:
                    outcome = await put()
                    if outcome is Put.WON:
                        return True
                    in_doubt = in_doubt or outcome is Put.UNKNOWN
                    found = await get()
                    if found is not None:
                        return found == data
                except (StorageRefused, StorageGone) as error:
                    if not in_doubt:
                        raise
                    raise OutcomeUnknown(store, key, error.message) from None
                except StoreUnavailable:
                    in_doubt = True
                await asyncio.sleep(pause * (0.5 + choices.random()))
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
    except TimeoutError:
        raise OutcomeUnknown(store, key, f"waited {deadline_seconds:g} s") from None
