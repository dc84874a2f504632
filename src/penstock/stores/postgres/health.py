"""How the database is: sizes, dead rows, what a claim costs, and who keeps it from cleaning up."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from penstock.stores.postgres.rules import sql

LONG_SECONDS = 60
"""A snapshot older than this makes dead rows pile up in front of a busy queue."""

MANY_DEAD = 100_000


class Table(Struct, frozen=True):
    """One table of the queue; rows are PostgreSQL's own estimates."""

    name: str
    live: int
    dead: int
    bytes: int
    index_bytes: int
    vacuumed_at: datetime | None


class Pin(Struct, frozen=True):
    """Something that keeps vacuum from removing dead rows."""

    kind: str
    name: str
    """The pid of a session, the id of a prepared transaction, the name of a replication slot."""
    application: str
    username: str
    state: str
    seconds: float | None
    """How long it has been open; None where PostgreSQL does not say."""


class Health(Struct, frozen=True):
    tables: tuple[Table, ...]
    pins: tuple[Pin, ...]
    read_per_job: float | None
    """Index entries read for each job leased: near 1 is well, and it grows with dead rows in the way."""
    threats: tuple[str, ...]
    """What endangers the queue's speed, in sentences, each with what to do."""


async def health(connection: Any) -> Health:
    """Look at the database a queue lives in. Any role that may read the statistics views will do."""
    tables = tuple(Table(**row) for row in await connection.fetch(sql("health_tables")))
    pins = tuple(Pin(**row) for row in await connection.fetch(sql("health_pins")))
    read_per_job = await connection.fetchval(sql("health_claims"))
    return Health(tables, pins, read_per_job, threats(tables, pins))


def threats(tables: tuple[Table, ...], pins: tuple[Pin, ...]) -> tuple[str, ...]:
    """What endangers the queue's speed, and what to do about it."""
    found = [_pinned(pin) for pin in pins if pin.seconds is None or pin.seconds > LONG_SECONDS]
    found += [
        f"{table.name} has {table.dead:,} dead rows beside {table.live:,} live ones: see that autovacuum runs, "
        "and that nothing above keeps it from cleaning up"
        for table in tables
        if table.dead > max(MANY_DEAD, 2 * table.live)
    ]
    return tuple(found)


def _pinned(pin: Pin) -> str:
    since = "" if pin.seconds is None else f" for {pin.seconds:,.0f} s"
    who = " ".join(
        part for part in (pin.application, f"of {pin.username}" if pin.username else "", pin.state) if part
    )
    cure = {
        "session": f"end it with SELECT pg_terminate_backend({pin.name})",
        "prepared transaction": f"end it with ROLLBACK PREPARED '{pin.name}', or COMMIT PREPARED",
        "replication slot": f"let its reader catch up, or drop it with SELECT pg_drop_replication_slot('{pin.name}')",
    }[pin.kind]
    return f"{pin.kind} {pin.name} ({who}) has kept dead rows from being removed{since}: {cure}"
