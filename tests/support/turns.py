"""Writers that append without a pause to one log of objects, in virtual time with the latencies of S3."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime
from random import Random

from penstock.stores.log.backings.memory import MemoryObjects
from penstock.stores.log.backings.numbered import ObjectTape

SECONDS = 20.0
PUT, GET = (0.040, 0.150), (0.015, 0.060)
"""Median and 99th percentile."""


class SlowObjects(MemoryObjects):
    """Objects as far away as a bucket. The write happens half way."""

    def __init__(self, seed: int) -> None:
        super().__init__(lambda: datetime(2030, 1, 1, tzinfo=UTC))
        self._choices = Random(seed)
        self.lost = self.puts = 0

    async def create(self, key: str, data: bytes) -> bool:
        seconds = self._latency(PUT)
        await asyncio.sleep(seconds / 2)
        won = await super().create(key, data)
        await asyncio.sleep(seconds / 2)
        self.puts += 1
        self.lost += not won
        return won

    async def get(self, key: str) -> bytes | None:
        seconds = self._latency(GET)
        await asyncio.sleep(seconds / 2)
        found = await super().get(key)
        await asyncio.sleep(seconds / 2)
        return found

    def _latency(self, of: tuple[float, float]) -> float:
        median, worst = of
        return median * math.exp(self._choices.gauss(0, math.log(worst / median) / 2.326))


async def appended(writers: int, seed: int = 1) -> tuple[list[int], SlowObjects]:
    """How many entries each of so many writers had confirmed."""
    objects = SlowObjects(seed)
    counts = [0] * writers

    async def write(n: int) -> None:
        tape = ObjectTape(objects, "s00", choices=Random(seed * 100 + n))
        while True:
            await tape.append(b"x")
            counts[n] += 1

    tasks = [asyncio.create_task(write(n)) for n in range(writers)]
    await asyncio.sleep(SECONDS)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return counts, objects


def fairness(counts: list[int]) -> float:
    """Jain's index: 1 if all are served alike, 1/n if one is served alone."""
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 0.0
