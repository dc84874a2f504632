"""The handlers that `penstock dev` runs when it is given no app: something to play with."""

from __future__ import annotations

import asyncio
import random

from penstock import JobContext, Penstock, Retry

app = Penstock(name="penstock-dev")


@app.job(name="hello")
async def hello(name: str = "world") -> str:
    return f"Hello, {name}!"


@app.job(name="slow", timeout=600)
async def slow(ctx: JobContext, seconds: float = 10.0) -> str:
    """Takes its time, and says how far it is."""
    steps = max(1, round(seconds * 2))
    for step in range(steps):
        ctx.progress({"done": step, "of": steps})
        await asyncio.sleep(seconds / steps)
    return f"slept for {seconds:g} s"


@app.job(name="flaky", max_attempts=4, retry=Retry.exponential(base=1, cap=10))
async def flaky(chance: float = 0.5) -> str:
    """Fails by chance, and is tried again."""
    if random.random() < chance:
        raise RuntimeError("bad luck; it will be tried again")
    return "good luck"


@app.cron("* * * * *", name="tick")
async def tick() -> str:
    """Once a minute."""
    return "tock"
