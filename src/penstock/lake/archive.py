"""A job that has left the store, from the lake: without Spark, and without reading more than the day it was created on.

A job's id is a UUIDv7 and so says when it was made. The manifest knows the folders of that day, and Parquet lets all rows
but its own be passed over. An id that says no time is not looked for: that would mean to read the lake from end to end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import replace

from penstock.core import promises
from penstock.core.archive import Archived
from penstock.core.codec import NULL, JsonText
from penstock.core.commands import History
from penstock.core.errors import StoreUnavailable
from penstock.core.job import Attempt, Cause, Change, Job, JobId, LeaseToken, NewJob, Outcome, Record, Status
from penstock.core.ports import Store
from penstock.core.promises import LAKE
from penstock.core.registry import ALL_TENANTS
from penstock.lake.errors import LakeError, LakeMissing
from penstock.lake.manifest import Lake, Manifest, here

READERS = 2
"""How many jobs are looked for at once; reading Parquet is work for a processor."""
MOST_WAITING = 64
MOST_REMEMBERED = 256
TIDY_SECONDS = 3600.0

Row = dict[str, Any]
Place = tuple[str, JobId]

_Held = tuple[object, Manifest | None, dict[Place, Archived | None]]
"""A manifest, its version, and what was looked up in it."""
_DAY = timedelta(days=1)
_ENDED = (Status.SUCCEEDED, Status.DEAD, Status.HELD, Status.CANCELLED)
_CAUSES = {"cancel": Cause.CANCELLED, "expire": Cause.EXPIRED, "abandon": Cause.PARENT_FAILED}
_UNCOUNTED = (Outcome.RELEASED, Outcome.SNOOZED)


class _Unknown:
    """Stands for what was not looked up yet."""


_UNKNOWN = _Unknown()


class LakeArchive:
    """Looks for jobs in a lake. Its manifest is read again when it was replaced, and answers are kept until then.

    The `store` that they have left says whether there is to be a lake: then one that is not there is out of reach, and
    not one that knows of no job.
    """

    def __init__(self, lake: str | Path, store: Store | None = None) -> None:
        self._lake, self._store = Lake(lake), store
        self._threads = ThreadPoolExecutor(READERS, "penstock lake archive")
        self._waiting = 0
        self._held: _Held = (None, None, {})
        self._tidied = time.monotonic()

    async def find(self, tenant: str, job_id: JobId) -> Archived | None:
        if self._waiting >= MOST_WAITING:
            raise StoreUnavailable(
                f"the lake in {self._lake.place}", f"{MOST_WAITING} readers wait for it already"
            )
        self._waiting += 1
        try:
            found = await asyncio.get_running_loop().run_in_executor(
                self._threads, self._find, tenant, job_id
            )
            if found is None and self._held[1] is None and await self._is_promised():
                raise LakeMissing(self._lake.place)
            return found
        except (LakeError, OSError, ValueError) as error:  # what is no Parquet is a ValueError
            raise StoreUnavailable(f"the lake in {self._lake.place}", str(error)) from error
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _is_promised(self) -> bool:
        """Whether jobs may have left the store because a lake has them."""
        entries = [] if self._store is None else await self._store.entries(ALL_TENANTS, LAKE)
        return any(one.exported_until for one in promises.kept(promises.read(entries)))

    # ── In a thread ───────────────────────────────────────────────────────────────────────────────

    def _find(self, tenant: str, job_id: JobId) -> Archived | None:
        _, manifest, known = self._current()
        if manifest is None:
            return None
        place = (tenant, job_id)
        found = known.get(place, _UNKNOWN)
        if isinstance(found, _Unknown):
            found = look_up(self._lake, manifest, tenant, job_id)
            if len(known) >= MOST_REMEMBERED:
                known.clear()
            known[place] = found
        return found

    def _current(self) -> _Held:
        # Two threads may both read a new manifest, which is harmless: what is held is replaced as a whole.
        held, version = self._held, self._lake.version()
        if version != held[0]:
            found = self._lake.find()
            if found is None and held[1] is not None:
                # It was there: now its disk is not mounted, or the bucket was emptied.
                raise LakeMissing(self._lake.place)
            if found is not None:
                self._tidy(found)
            held = self._held = (version, found, {})
        return held

    def _tidy(self, manifest: Manifest) -> None:
        """Now and then let go of what was fetched and no longer counts: here nobody runs vacuum."""
        if time.monotonic() >= self._tidied + TIDY_SECONDS:
            self._tidied = time.monotonic()
            self._lake.tidy(manifest)


def look_up(lake: Lake, manifest: Manifest, tenant: str, job_id: JobId) -> Archived | None:
    """A job of a tenant's, by the folders of the day it was created on."""
    if manifest.data_as_of is None:
        return None
    for day in _days(manifest, job_id):
        folders = manifest.tables.get("jobs", {}).get(day, ())
        if _rows(lake, folders, tenant, job_id, ["job_id"]):
            events = _rows(lake, manifest.born.get(day, ()), tenant, job_id, None)
            return _told(tenant, job_id, _in_order(manifest, events), manifest.data_as_of) if events else None
    return None


def _days(manifest: Manifest, job_id: JobId) -> Iterator[str]:
    """The day in a job's id, and those around it: an id is made before its job comes in, and by another clock.

    And those on which jobs came in long after their ids say, such as those of fire times that were missed, or long before:
    there are clocks that are off by more than a day.
    """
    made = UUID(job_id)
    if made.version != 7:
        return
    try:
        moment = datetime.fromtimestamp((made.int >> 80) / 1000, UTC)
        yield from (str((moment + away).date()) for away in (timedelta(), _DAY, -_DAY))
        yield from manifest.strays.get(str(moment.date()), ())
    except (OverflowError, ValueError):  # some day that no lake has
        return


def _rows(
    lake: Lake, folders: Sequence[str], tenant: str, job_id: JobId, columns: list[str] | None
) -> list[Row]:
    files = here(lake, folders)
    if not files:
        return []
    import pyarrow.dataset as ds

    its_own = (ds.field("job_id") == job_id) & (ds.field("tenant") == tenant)
    # One after the other and in small batches: what a look-up may use up is not for the lake's size to say.
    scanner = ds.dataset(files, format="parquet").scanner(
        columns=columns, filter=its_own, batch_size=16_384, batch_readahead=1, fragment_readahead=1, use_threads=False
    )  # fmt: skip
    rows: list[Row] = scanner.to_table().to_pylist()
    return rows


def _in_order(manifest: Manifest, events: Sequence[Row]) -> list[Row]:
    """Facts of one job as they happened. PostgreSQL numbers them all in one row; a log begins anew with each entry."""
    is_log = manifest.source.get("system", "").startswith("log")
    return sorted(events, key=lambda row: (row["xid"] if is_log else 0, row["seq"]))


def _told(tenant: str, job_id: JobId, events: Sequence[Row], as_of: datetime) -> Archived | None:
    """A job as its events tell it in their order, each of them once."""
    facts = {(row["kind"], row["xid"], row["seq"]): _in_utc(row) for row in events}
    came = next((row for row in facts.values() if row["kind"] == "job"), None)
    if came is None:
        return None
    records = tuple(_record(job_id, row) for row in facts.values() if row["kind"] != "job")
    asked, created_at, run_at = _asked(job_id, came), came["created_at"], came["scheduled_at"]
    expires_at = asked.expires_at or (None if asked.expires_in is None else created_at + asked.expires_in)
    job = Job(asked, tenant, created_at, run_at, Status.QUEUED, run_at, expires_at)
    if job.asked.parents:
        job = replace(job, status=Status.WAITING)
    for record in records:
        job = _after(job, record)
    return Archived(job, History(records), as_of)


def _after(job: Job, record: Record) -> Job:
    """What a job became by something that happened to it."""
    status = job.status if record.status is None else record.status
    if isinstance(record, Attempt):
        counts = 0 if record.outcome in _UNCOUNTED else 1
        return replace(
            job, status=status, run_at=record.run_at, attempts=job.attempts + counts, leases=record.number,
            error=record.error if counts else job.error, ended_at=record.ended_at if status in _ENDED else None,
        )  # fmt: skip
    if record.verb == "redrive":
        return replace(
            job, status=status, run_at=record.at, expires_at=None, attempts=0, cause=None, ended_at=None
        )
    if status in _ENDED and status is not job.status:
        return replace(job, status=status, cause=_CAUSES.get(record.verb), ended_at=record.at)
    return replace(job, status=status)


def _asked(job_id: JobId, row: Row) -> NewJob:
    given = msgspec.json.decode(row["options"]) if row["options"] else {}
    columns = ("queue", "type", "priority", "run_at", "key", "schedule")
    return msgspec.convert(
        {**given, **{name: row[name] for name in columns}, "id": job_id, "payload": NULL}, NewJob
    )


def _record(job_id: JobId, row: Row) -> Record:
    status = None if row["status"] is None else Status(row["status"])
    if row["kind"] == "change":
        detail = None if row["detail"] is None else JsonText(row["detail"])
        return Change(row["occurred_at"], row["verb"], row["actor"], row["reason"], status, detail)
    assert status is not None
    return Attempt(
        job_id, row["attempt"], row["worker"], LeaseToken(""), row["started_at"], row["ended_at"],
        Outcome(row["outcome"]), status, row["run_at"], row["error"],
    )  # fmt: skip


def _in_utc(row: Row) -> Row:
    return {
        name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in row.items()
    }
