"""The compactor: it follows a log with a state of its own, writes snapshots, and lets go of what nobody needs any more.

It runs in a process of its own, so that no worker waits for it, and may be killed at any moment. Each step leaves
something whole behind, and what is deleted has been announced before:

    1  write the segments that changed, and what     nothing names them yet
       happened since the last snapshot (`history`)
    2  publish the manifest: snapshot and watermark  by compare-and-swap; whoever loses starts over
    3  truncate the tape up to the watermark         older than `retention`, in the snapshot and in the history
    4  delete segments unnamed for a day             whoever wrote them can no longer name them

What happened is named for as long as a lake that follows has not got it and found it right; where none follows, for a week.

There should be one for each log. If there are two, they cost twice as much and do no harm.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.core.errors import PenstockError, StoreUnavailable
from penstock.stores.log import history
from penstock.stores.log.backings import Objects, Tape, open_backing
from penstock.stores.log.entry import read
from penstock.stores.log.errors import LogCorrupt, LogGap, Truncated
from penstock.stores.log.history import Facts, promised, read_until
from penstock.stores.log.snapshots import (
    KEPT_UNNAMED,
    HistoryAt,
    Manifest,
    Mark,
    Snapshot,
    Snapshots,
)
from penstock.stores.log.state import Parts, State
from penstock.stores.log.touched import TouchedMachine, touched_in

log = logging.getLogger(__name__)

READ_AT_ONCE = 1000
FACTS_PER_FILE = 50_000
MARKS_PER_RETENTION = 48
BUSY_ENTRIES, AT_REST = 20, 12
"""With fewer new entries it looks more seldom, up to so many times: nobody waits for it."""
ENDS_WITHIN_SECONDS = 10.0
TOLD_SECONDS = 600
"""So often it is told that it cannot be started: each sweep tries."""
LAPSES_SECONDS = 900
"""After so long without a sweep, another program does them and has a compactor of its own."""


class Rhythm(Struct, frozen=True):
    """How often a snapshot is made, and how long entries stay."""

    entries: int = 1_000
    seconds: float = 300
    retention: timedelta = timedelta(hours=24)
    """By the store's clock. Longer than any writer or reader may be suspended without noticing."""
    poll_seconds: float = 5
    history: timedelta = timedelta(days=7)
    """How long what happened is kept for a lake that may yet come. One that has come decides by itself."""


class Folding(Protocol):
    """A state, as far as the compactor is concerned."""

    @property
    def parts(self) -> Parts: ...

    def fold(self, number: int, data: bytes) -> None:
        """Apply the entry behind these bytes."""
        ...


class Compacted(Struct, frozen=True):
    """What one round came to."""

    number: int
    """The entry that the newest snapshot stands at."""
    wrote: bool = False
    watermark: int = 0
    deleted: int = 0


class Compactor:
    def __init__(
        self,
        tape: Tape,
        objects: Objects,
        shard: str,
        begin: Callable[[Parts], Folding],
        rhythm: Rhythm | None = None,
    ) -> None:
        self._tape = tape
        self._objects = objects
        self._snapshots = Snapshots(objects, shard)
        self._begin = begin
        self._rhythm = rhythm or Rhythm()
        self._state: Folding | None = None
        self._manifest = Manifest("")
        self._version: str | None = None
        self._facts = Facts() if history.is_possible() else None
        self._written: list[HistoryAt] = []
        """Files of what happened since the snapshot, which the next one will name."""
        self._was_told = False

    async def follow(self) -> int:
        """Apply what was written since; returns how many entries the newest snapshot does not have."""
        state = self._state or await self._open()
        while True:
            try:
                entries = await self._tape.read(state.parts.number, READ_AT_ONCE)
            except Truncated as error:
                # Another compactor has gone past us, or past what our tape has seen: begin at its snapshot.
                state = await self._open()
                if state.parts.number + 1 < error.first:
                    raise LogGap(error.log, state.parts.number + 1, error.first) from error
                continue
            if not entries:
                return state.parts.number - self._manifest.number
            for number, data in entries:
                self._fold(state, number, data)
            if self._facts is not None and len(self._facts.rows) >= FACTS_PER_FILE:
                await self._write_facts(state.parts.number)

    def _fold(self, state: Folding, number: int, data: bytes) -> None:
        if self._facts is None:
            state.fold(number, data)
            return
        self._facts.begin(number)
        state.fold(number, data)
        self._facts.end()

    async def compact(self) -> Compacted:
        """One round: a snapshot of what was followed, if there is anything new, and what may go after it."""
        await self.follow()
        assert self._state is not None
        parts = self._state.parts
        now = await self._objects.now()
        wrote = parts.number > self._manifest.number and self._may_go_on(parts)
        snapshot = self._manifest.snapshot
        if wrote:
            # What was touched belongs to the manifest that the state began with, so both are forgotten together.
            snapshot = await self._snapshots.write(parts, snapshot, touched_in(parts.machines.values()))
        try:
            with_history = await self._with_history(parts, now, wrote)
        except LogCorrupt:
            if await self._is_current():
                raise
            return self._start_over()
        manifest = succeeding(with_history, snapshot, now, self._rhythm.retention, self._manifest)
        manifest = replace(
            manifest, id=manifest.id or parts.name, made_by=f"{socket.gethostname()}-{os.getpid()}"
        )
        if not wrote and (manifest.watermark, manifest.retired, manifest.history, manifest.exported) == (
            self._manifest.watermark, self._manifest.retired, self._manifest.history, self._manifest.exported,
        ):  # fmt: skip
            return Compacted(manifest.number, False, manifest.watermark)
        # A manifest that was not confirmed may be there all the same: then everything begins with it.
        state, self._state = self._state, None
        version = await self._snapshots.publish(manifest, self._version)
        if version is None:
            return self._start_over()
        self._state = state
        self._manifest, self._version = manifest, version
        if wrote:
            self._written = []
            for touched in touched_in(parts.machines.values()).values():
                touched.clear()
        await self._tape.truncate(manifest.watermark)
        deleted = await self._snapshots.delete_unnamed(now - KEPT_UNNAMED)
        return Compacted(manifest.number, wrote, manifest.watermark, deleted)

    async def _is_current(self) -> bool:
        """Whether our manifest is still the one that holds; what an earlier one names may be gone."""
        found = await self._snapshots.manifest()
        return (None if found is None else found[1]) == self._version

    def _start_over(self) -> Compacted:
        """Another was first: what it wrote is the truth now."""
        self._state = None
        return Compacted(self._manifest.number, False, self._manifest.watermark)

    # ── What happened ─────────────────────────────────────────────────────────────────────────────

    def _may_go_on(self, parts: Parts) -> bool:
        """Whether a snapshot may be made: what happened before it can be told by nobody afterwards."""
        if self._facts is not None:
            return True
        if not self._was_told:
            self._was_told = True
            log.warning(
                'what happens is not kept for a lake: that needs pyarrow, which comes with pip install "penstock[lake]"'
            )
        return not promised(parts)

    async def _with_history(self, parts: Parts, now: datetime, wrote: bool) -> Manifest:
        """The manifest as it was, with what happened since, without what nobody needs, and with the lake's promise."""
        manifest = self._manifest
        made = promised(parts)
        exported = min((read_until(parts, promise) for promise in made), default=None)
        manifest = replace(manifest, exported=exported)
        if self._facts is None:
            return manifest
        kept, forgotten = (
            (list(manifest.history), manifest.forgotten)
            if manifest.told == manifest.number
            else ([], manifest.number)  # some compactor could not keep it
        )
        seen = min((promise.until for promise in made), default=now - self._rhythm.history)
        while kept and kept[0].until <= seen and (exported is None or kept[0].last <= exported):
            forgotten = kept.pop(0).last
        if not wrote:
            return replace(manifest, history=kept, forgotten=forgotten, told=manifest.number)
        if self._written:  # by a round that came no further
            kept = [one for one in kept if one.last < self._written[0].first]
        await self._write_facts(parts.number, kept)
        return replace(manifest, history=[*kept, *self._written], forgotten=forgotten, told=parts.number)

    async def _write_facts(self, last: int, before: list[HistoryAt] | None = None) -> None:
        """Write what was gathered up to an entry; into one file with the last before it, as long as that is small."""
        assert self._facts is not None
        rows = self._facts.rows
        if not rows:
            return
        facts, first, until = history.table(rows), rows[0].xid, max(row.occurred_at for row in rows)
        if before and not self._written and before[-1].count + len(rows) <= FACTS_PER_FILE:
            earlier = before.pop()
            facts = history.joined([history.decoded(await self._snapshots.get_history(earlier)), facts])
            first, until = earlier.first, max(until, earlier.until)
        name = await self._snapshots.put_history(first, last, history.encoded(facts))
        self._written.append(HistoryAt(first, last, name, facts.num_rows, until))
        self._facts.rows = []

    async def run(self, stopped: asyncio.Event) -> None:
        """Go on until told to stop; what fails is tried again. It looks ever more seldom while little comes, or it fails."""
        last, stood_at, shortest = time.monotonic(), 0, self._rhythm.poll_seconds
        pause = shortest
        while not stopped.is_set():
            try:
                behind = await self.follow()
                number = self._manifest.number + behind
                is_busy, stood_at = number - stood_at >= BUSY_ENTRIES, number
                pause = shortest if is_busy else min(2 * pause, AT_REST * shortest)
                rest = 1 if behind >= BUSY_ENTRIES else AT_REST
                if behind >= self._rhythm.entries or time.monotonic() - last >= rest * self._rhythm.seconds:
                    told = await self.compact()
                    last = time.monotonic()
                    log.debug(
                        "snapshot at %s, watermark %s, %s deleted", told.number, told.watermark, told.deleted
                    )
            except PenstockError as error:
                log.warning("the compactor could not go on and tries again: %s", error)
                pause = min(2 * pause, AT_REST * shortest)
                # A store that is away leaves what was read as it was, and to load it again is a whole snapshot.
                if not isinstance(error, StoreUnavailable):
                    self._state = None
            await _wait(stopped, pause)

    async def _open(self) -> Folding:
        self._state = None  # what it holds goes with the facts gathered so far
        self._facts, self._written = Facts() if self._facts is not None else None, []
        parts = Parts(new_machine=TouchedMachine if self._facts is None else self._facts.machine)
        found = await self._snapshots.load(parts)
        if self._facts is not None:
            self._facts.follow(parts)
        self._manifest, self._version = (Manifest(""), None) if found is None else found
        self._state = self._begin(parts)
        return self._state


def succeeding(
    manifest: Manifest,
    snapshot: Snapshot | None,
    now: datetime,
    retention: timedelta,
    earlier: Manifest | None = None,
) -> Manifest:
    """The manifest that follows one, with a snapshot that was written by now; `earlier` is the one that was published."""
    before, after = (earlier or manifest).names(), replace(manifest, snapshot=snapshot).names()
    retired = {name: since for name, since in manifest.retired.items() if since >= now - KEPT_UNNAMED}
    retired.update(dict.fromkeys(sorted(before - after), now))
    marks = list(manifest.marks)
    if snapshot is not None and (not marks or now - marks[-1].at >= retention / MARKS_PER_RETENTION):
        marks.append(Mark(snapshot.number, now))  # whatever it holds was written before now
    old = [mark.number for mark in marks if mark.at <= now - retention]
    watermark = max([manifest.watermark, *old])
    if manifest.exported is not None:
        # What is kept as history need not be kept as entries, too.
        watermark = max(manifest.watermark, min(watermark, max(manifest.exported, manifest.told)))
    marks = [mark for mark in marks if mark.number > watermark]
    return replace(manifest, snapshot=snapshot, watermark=watermark, marks=marks, retired=retired)


async def _wait(stopped: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stopped.wait(), seconds)
    except TimeoutError:
        pass


# ── A process of its own ──────────────────────────────────────────────────────────────────────────


class Told(Struct, frozen=True):
    """What the process is told, through its standard input: the URL may hold credentials, and a command line is seen."""

    url: str
    shard: str
    rhythm: Rhythm


class CompactorProcess:
    """The compactor in a process that ends with us, however we end: its standard input closes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, url: str, shard: str, rhythm: Rhythm | None = None) -> CompactorProcess:
        # In a session of its own: Ctrl-C is for whoever started it, who ends it when that is done.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "penstock.stores.log.compacting",
            stdin=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(Told(url, shard, rhythm or Rhythm())) + b"\n")
        await process.stdin.drain()
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    def end(self) -> None:
        """Let it end when it has done what it is at."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def stop(self) -> int:
        """Let it end, and wait for that; not for ever, because it may be far behind, or stuck."""
        self.end()
        try:
            return await asyncio.wait_for(self._process.wait(), ENDS_WITHIN_SECONDS)
        except TimeoutError:
            self._process.kill()  # as it may be at any moment
            return await self._process.wait()


class Tended:
    """The compactor of a log, kept going by whoever sweeps: of all programs that is the one whose scheduler leads."""

    def __init__(self, url: str, shard: str, rhythm: Rhythm | None = None) -> None:
        self._url = url
        self._shard = shard
        self._rhythm = rhythm
        self._sweeps = 0
        self._process: CompactorProcess | None = None
        self._lapsing: asyncio.TimerHandle | None = None
        self._told_at = float("-inf")

    @property
    def process(self) -> CompactorProcess | None:
        return self._process

    async def keep_going(self) -> None:
        """Called with each sweep. One sweep alone may be anybody's; who does it again leads."""
        self._sweeps += 1
        if self._sweeps < 2:
            return
        if self._process is None or not self._process.is_running:
            try:
                self._process = await CompactorProcess.start(self._url, self._shard, self._rhythm)
            except OSError as error:  # no memory, no descriptors, no interpreter: sweeping needs none of it
                self._tell(error)
                return
        if self._lapsing is not None:
            self._lapsing.cancel()
        self._lapsing = asyncio.get_running_loop().call_later(LAPSES_SECONDS, self._process.end)

    def _tell(self, error: OSError) -> None:
        if time.monotonic() - self._told_at >= TOLD_SECONDS:
            self._told_at = time.monotonic()
            log.warning("the compactor of %s could not be started and is tried again: %s", self._shard, error)

    async def close(self) -> None:
        if self._lapsing is not None:
            self._lapsing.cancel()
        if self._process is not None:
            await self._process.stop()


class _Followed:
    """The state that readers have, too."""

    def __init__(self, state: State, name: str) -> None:
        self._state = state
        self._name = name

    @property
    def parts(self) -> Parts:
        return self._state.parts

    def fold(self, number: int, data: bytes) -> None:
        self._state.apply(number, read(self._name, number, data))


def compactor(tape: Tape, objects: Objects, shard: str, rhythm: Rhythm | None = None) -> Compactor:
    """The compactor of a log of jobs."""
    return Compactor(tape, objects, shard, lambda parts: _Followed(State(parts), shard), rhythm)


async def compact_once(url: str, shard: str, rhythm: Rhythm | None = None) -> Compacted:
    """Follow a log to its end and compact it, for those who run this by cron."""
    backing = open_backing(url)
    try:
        return await compactor(backing.tape(shard), backing.objects, shard, rhythm).compact()
    finally:
        await backing.close()


async def _main() -> None:
    told = msgspec.json.decode(await asyncio.to_thread(sys.stdin.buffer.readline), type=Told)
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait_for_the_end() -> None:
        sys.stdin.buffer.read()
        loop.call_soon_threadsafe(stopped.set)

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    backing = open_backing(told.url)
    try:
        await compactor(backing.tape(told.shard), backing.objects, told.shard, told.rhythm).run(stopped)
    finally:
        await backing.close()


if __name__ == "__main__":
    asyncio.run(_main())
