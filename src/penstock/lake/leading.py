"""One driver at a time: the store's office `lake`, kept from a thread while Spark works."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import threading
import time
from types import TracebackType
from uuid import uuid4

from penstock.connecting import connect
from penstock.core.errors import Conflict
from penstock.core.ports import Store

logger = logging.getLogger("penstock.lake")

OFFICE = "lake"
SECONDS = 30.0


class LakeBusy(Conflict):
    """Another driver works on the lake of this store. Wait for it, or stop it; a dead one is followed after half a minute."""

    code = "lake_busy"

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; a lake is written by one driver at a time. Run again when it has ended")


class OfficeLost(Conflict):
    """The office ran out while the run was at work, as when the store is away for long. Nothing it has not committed counts; run again."""

    code = "lake_office_lost"

    def __init__(self) -> None:
        super().__init__(
            f"the office {OFFICE!r} was lost while the run was at work: the store could not be asked in time, or somebody else "
            "holds it now. What was not committed counts for nothing; run again"
        )


def new_holder() -> str:
    """A name to hold the office by."""
    return f"{platform.node()}:{os.getpid()}:{uuid4().hex[:8]}"


class Leading:
    """`with Leading(url) as office:` holds the office. `office.check()` before whatever others must not do at once.

    It saves work and decides nothing: of two who think they lead, the manifest lets one commit. Who comes back under the
    same name goes on at once, though the store could not be told that it had gone.
    """

    def __init__(self, url: str, seconds: float = SECONDS, *, holder: str | None = None) -> None:
        self._url, self._seconds = url, seconds
        self._holder = holder or new_holder()
        self._until = 0.0
        self._asked = threading.Event()
        self._failed: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="penstock lake office", daemon=True)

    def __enter__(self) -> Leading:
        self._thread.start()
        self._asked.wait()
        try:
            if self._failed is not None:
                raise self._failed
            if not self._until:
                raise LakeBusy(f"somebody else holds the office {OFFICE!r}")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            try:
                self._loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError:
                pass  # it has just ended by itself
        self._thread.join()

    def check(self) -> None:
        """Refuse to go on if the office is no longer ours."""
        # By our own steady clock, from before we asked: never longer than in the store.
        if time.monotonic() >= self._until:
            raise OfficeLost

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._keep())
        except BaseException as error:
            self._failed = error
            self._until = 0.0
        finally:
            self._asked.set()
            self._loop.close()

    async def _keep(self) -> None:
        async with connect(self._url, actor="lake") as queue:
            if not await self._ask(queue.store):
                return
            self._asked.set()
            while not self._stop.is_set():
                try:
                    await asyncio.wait_for(self._stop.wait(), self._seconds / 3)
                except TimeoutError:
                    try:
                        if not await self._ask(queue.store):
                            return
                    except Exception as error:
                        logger.warning("the office %r could not be kept: %s", OFFICE, error)
            self._until = 0.0
            await queue.store.lead(OFFICE, self._holder, 0)

    async def _ask(self, store: Store) -> bool:
        asked_at = time.monotonic()
        held = await store.lead(OFFICE, self._holder, self._seconds)
        self._until = asked_at + self._seconds if held else 0.0
        return held


class Alone:
    """Holds nothing: for a lake that no store has."""

    def check(self) -> None: ...
