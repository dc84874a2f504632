"""What may leave the store, where lakes are kept.

Times alone cannot say whether a lake has all of a job. A lease that ran out at noon, or a deadline that passed then, may be
noticed hours later, and the job has then ended at noon all the same; and a transaction takes its time when it begins, its
number when it first writes and commits last. A job that ended at T may thus be told by a transaction that a lake which read
after T has not seen.

So the rows are asked. Each carries the transaction that wrote it, and a lake has everything below its horizon, the oldest
transaction that still ran when it looked: one that was open then is not below it, and neither is anything that it wrote. A
job whose rows, what was asked and every attempt and change, are all below the horizon is in the lake as a whole. All of
them are looked at, not the last alone: a transaction that takes its number early and writes late may end a job that was
brought in under a higher number.

The time of the promise counts as well. It is where the first day begins that was not found to agree with the store, and so
no job leaves of which any fact lies on such a day: facts of a job are no later than its end.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.core import promises
from penstock.core.codec import JsonText
from penstock.core.promises import Promise
from penstock.stores.postgres.rows import Row

_EVERYTHING = 2**63 - 1


class Exported(Struct, frozen=True, gc=False):
    """Up to when, and below which transaction, all lakes have everything. None: there is no lake."""

    until: datetime | None = None
    below: int | None = None
    in_doubt: bool = False
    """Some day in a lake does not have what the store has: what could repair it stays."""

    def covers_day(self, day: date) -> bool:
        """Whether a day's tables may go, as far as times say."""
        if self.until is None:
            return True
        return not self.in_doubt and datetime.combine(day, time.max, UTC) <= self.until


def exported(row: Row, given: datetime | None = None) -> Exported:
    """What sql/promises.sql says, and what the sweep was told."""
    foreign = others(row)
    # One about another database, from which this one was loaded, says nothing about what is here.
    held = {
        lake: replace(promise, exported_until=None) if lake in foreign else promise
        for lake, promise in _promised(row).items()
    }
    kept = promises.kept(held)
    below = min((int(one.offset.get("xid", _EVERYTHING)) for one in kept), default=None)
    return Exported(promises.exported_until(held, given), below, any(one.doubts for one in kept))


def others(row: Row) -> dict[str, Promise]:
    """The promises that hold and are about another database than this."""
    here = (row["feed"], row["system"])
    return {
        lake: promise
        for lake, promise in _promised(row).items()
        if promise.offset
        and not promise.lifted
        and (promise.offset.get("feed"), promise.offset.get("system")) != here
    }


def _promised(row: Row) -> dict[str, Promise]:
    if row["promises"] is None:
        return {}
    bodies = msgspec.json.decode(row["promises"], type=dict[str, msgspec.Raw])
    return {lake: promises.decode(JsonText(str(body, "utf-8"))) for lake, body in bodies.items()}
