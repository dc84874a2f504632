"""A database that was loaded from a dump: its rows bear the numbers of transactions of the server that they came from.

Those may be ahead of what this server has counted to. The feed and the lake tell only what lies below the oldest
transaction that still runs, so such rows would stay untold for a long time, and then be told as if they were new. Here they
are found, and stamped anew. Rows that are behind need nothing: whoever begins to follow this feed, which is another one than
that of the server they came from, has them below its beginning, and a lake reads from the beginning of all.
"""

from __future__ import annotations

from typing import Any

WIDE = ("job", "attempt", "change")

# What anybody sees was written by a transaction below the edge of what they see: no clock and no memory is needed.
_EDGE = "pg_snapshot_xmax(pg_current_snapshot())::text::bigint"

IS_LOADED = f"""
SELECT {" OR ".join(f"EXISTS (SELECT FROM penstock.{table} WHERE xid >= {_EDGE})" for table in WIDE)}
    OR EXISTS (SELECT FROM penstock.feed_floor WHERE xid > {_EDGE}) OR EXISTS (SELECT FROM penstock.feed WHERE newer > {_EDGE})"""

_NEW_FEED = """
WITH this AS (SELECT pg_current_xact_id()::text::bigint AS xid),
     gone AS (DELETE FROM penstock.feed_floor),
     floor AS (INSERT INTO penstock.feed_floor SELECT xid FROM this)
UPDATE penstock.feed SET id = gen_random_uuid(), older = this.xid, newer = this.xid, marked_at = now() FROM this"""

_LEAVES = """
SELECT inhrelid::regclass::text AS name FROM pg_inherits
WHERE inhparent = ANY ('{penstock.job, penstock.attempt, penstock.change}'::regclass[]) ORDER BY 1"""


async def is_loaded(connection: Any) -> bool:
    """Whether any row is ahead of this server."""
    loaded: bool = await connection.fetchval(IS_LOADED)
    return loaded


async def stamp_anew(connection: Any) -> int:
    """Give rows that are ahead of this server a number of this server's; says how many there were.

    Table by table: whoever follows meanwhile is told of each row once, after it was stamped. It may be done again.
    """
    if await connection.fetchval("SELECT to_regclass('penstock.feed_floor') IS NULL") or not await is_loaded(
        connection
    ):
        return 0
    await connection.execute(_NEW_FEED)
    stamped = 0
    for row in await connection.fetch(_LEAVES):
        done = await connection.execute(
            f"UPDATE {row['name']} SET xid = pg_current_xact_id()::text::bigint WHERE xid >= {_EDGE}"
        )
        stamped += int(done.rpartition(" ")[2])
    return stamped
