"""Processes that append to one log and are killed in the middle of it, and what must be true of the log then."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from penstock.stores.log.backings import Tape

SCRIPT = Path(__file__).with_name("appending.py")
PATIENCE_SECONDS = 60
WRITERS = 3


async def confirmed_until_killed(url: str, kills: int, entries: int, seed: int = 1) -> dict[str, int]:
    """Kill one of several writers whenever so many entries were confirmed, start another in its place, so many times."""
    choices = random.Random(seed)
    told: dict[str, int] = {}
    enough = asyncio.Event()
    wanted = entries

    async def follow(process: Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.endswith(b"\n"):  # the last one may have been cut off
                entry, place = line.decode().split()
                told[entry] = int(place)
                if len(told) >= wanted:
                    enough.set()

    async def start(name: str) -> tuple[Process, asyncio.Task[None]]:
        process = await asyncio.create_subprocess_exec(sys.executable, str(SCRIPT), url, name, stdout=PIPE)
        return process, asyncio.create_task(follow(process))

    async def kill(process: Process, following: asyncio.Task[None]) -> None:
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await following

    running = [await start(f"w{n}") for n in range(WRITERS)]
    try:
        for number in range(kills):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await enough.wait()
            enough.clear()
            wanted = len(told) + entries
            victim = running.pop(choices.randrange(len(running)))
            await kill(*victim)
            running.append(await start(f"x{number}"))
    finally:
        for process, following in running:
            await kill(process, following)
    return told


async def check_nothing_is_lost(tape: Tape, told: dict[str, int]) -> None:
    """Every confirmed entry is there once, where it was said to be, and each caller's are in its order."""
    entries: dict[int, str] = {}
    while found := await tape.read(len(entries)):
        entries.update((number, data.decode()) for number, data in found)
    assert list(entries) == list(range(1, len(entries) + 1))
    written = [entry for entry in entries.values() if entry]
    assert len(set(written)) == len(written), "an entry is there twice"
    assert told, "nothing was confirmed: the test shows nothing"
    for entry, place in told.items():
        assert entries.get(place) == entry
    last: dict[str, int] = {}
    for entry in written:
        caller, _, number = entry.rpartition(".")
        assert int(number) == last.get(caller, -1) + 1, f"{entry} out of order"
        last[caller] = int(number)
