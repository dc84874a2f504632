"""The floor: a bare asyncpg loop over Penstock's own statements, with no checks, no values and no worker around it.

What Penstock's Python costs is the distance from here. It has no wake-ups, so no pick-up is measured on it.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import uuid_utils

from benchmarks.peers.harness import BATCH, Payload, main
from penstock.stores.postgres.days import Window
from penstock.stores.postgres.migrate import migrate
from penstock.stores.postgres.rules import sql

TENANT, QUEUE, TYPE = "default", "bench", "email.send"
AHEAD = 500
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
MARGIN = timedelta(seconds=1)
# As the store sets them: without them it would be another plan, not a lower floor.
SETTINGS = {"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_sort": "off"}


class Floor:
    def __init__(self, url: str) -> None:
        self.url = url
        self.pool: Any = None

    async def open(self, callers: int) -> None:
        self.pool = await asyncpg.create_pool(
            self.url, min_size=1, max_size=callers, server_settings=SETTINGS, reset=_leave_as_it_is
        )

    async def install(self) -> None:
        await migrate(self.url)
        await self.pool.execute(
            """WITH line AS (INSERT INTO penstock.queue (tenant, name, settings) VALUES ($1, $2, $3))
               INSERT INTO penstock.lane (tenant, queue, priority) VALUES ($1, $2, 0)""",
            TENANT, QUEUE, "{}",
        )  # fmt: skip

    async def enqueue_many(self, payloads: Sequence[Payload]) -> None:
        for start in range(0, len(payloads), BATCH):
            await self._enqueue(payloads[start : start + BATCH])

    async def enqueue(self, payload: Payload) -> None:
        await self._enqueue([payload])

    async def _enqueue(self, payloads: Sequence[Payload]) -> None:
        number = len(payloads)
        nothing = [None] * number
        await self.pool.fetch(
            sql("enqueue"), TENANT, None, [str(uuid_utils.uuid7()) for _ in payloads], [QUEUE] * number, [TYPE] * number,
            [json.dumps(payload) for payload in payloads], [0] * number, nothing, nothing, nothing, nothing,
        )  # fmt: skip

    @asynccontextmanager
    async def work(self, handled: Callable[[int], None]) -> AsyncIterator[None]:
        worker = asyncio.create_task(self._loop(handled))
        try:
            yield
        finally:
            worker.cancel()
            with suppress(asyncio.CancelledError):
                await worker

    async def _loop(self, handled: Callable[[int], None]) -> None:
        async with self.pool.acquire() as connection:
            lease, ack = await connection.prepare(sql("lease")), await connection.prepare(sql("ack"))
            noticed = floor = LONG_AGO
            window = Window()
            while True:
                tokens = [secrets.token_hex(16) for _ in range(AHEAD)]
                rows = await lease.fetch(
                    TENANT, QUEUE, None, AHEAD, tokens, "bench", None, noticed, *window.of((TENANT, QUEUE))
                )
                window.saw((TENANT, QUEUE), rows[0]["now"], [], some_outside=False)
                noticed = rows[0]["now"] - MARGIN
                if rows[0]["id"] is None:
                    await asyncio.sleep(0.005)
                    continue
                for row in rows:
                    handled(json.loads(row["payload"])["number"])
                ids, tokens = [row["id"] for row in rows], [row["token"] for row in rows]
                nothing = [None] * len(rows)
                await ack.fetch(TENANT, None, ids, tokens, nothing, nothing)
                if rows[0]["run_at"] - floor > 2 * MARGIN:
                    floor = rows[0]["run_at"] - MARGIN
                    await connection.execute(sql("raise"), TENANT, QUEUE, 0, floor)

    async def unfinished(self) -> int:
        number: int = await self.pool.fetchval(
            "SELECT (SELECT count(*) FROM penstock.ready) + (SELECT count(*) FROM penstock.lease)"
        )
        return number

    async def close(self) -> None:
        await self.pool.close()


async def _leave_as_it_is(connection: Any) -> None:
    """As in the store: a round trip per call is saved."""


if __name__ == "__main__":
    main(Floor)
