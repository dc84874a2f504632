"""An app for workers that tests start as processes of their own."""

from __future__ import annotations

import asyncio
import os
import time

from penstock import JobContext, Penstock

app = Penstock(name="test")


@app.job(name="quick")
async def quick(n: int) -> int:
    return n


@app.job(name="pid")
async def pid() -> int:
    return os.getpid()


@app.job(name="sleep", max_attempts=5)
async def sleep(seconds: float, ctx: JobContext) -> str:
    ctx.progress("begun")
    await asyncio.sleep(seconds)
    return "slept"


@app.job(name="block")
async def block(seconds: float, ctx: JobContext) -> str:
    ctx.progress("begun")
    await asyncio.sleep(0.2)
    time.sleep(seconds)  # noqa: ASYNC251 (that is the point)
    return "blocked"


@app.job(name="stuck")
def stuck(seconds: float, ctx: JobContext) -> str:
    ctx.progress("begun")
    time.sleep(seconds)
    return "came back"


@app.job(name="die")
async def die() -> None:
    os._exit(1)


@app.job(name="limited", queue="limited", max_concurrency=2)
async def limited(seconds: float) -> None:
    await asyncio.sleep(seconds)


@app.job(name="per.customer", queue="customers", max_concurrency_per_key=1, fair=True)
async def per_customer(seconds: float) -> None:
    await asyncio.sleep(seconds)
