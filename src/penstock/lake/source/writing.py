"""Spark's side of writing: a DataFrame's rows become jobs, slice by slice, each of them once.

A task that is run again, and a whole write that is, find by the keys of their rows what was written before. No row is
ever dropped without a word: what is no job fails the write, or is written down in the place that is named for it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from penstock.connecting import connect
from penstock.core import bounds
from penstock.core.commands import Enqueued
from penstock.core.errors import Conflict, InvalidInput, NotFound, PenstockError
from penstock.core.job import NewJob
from penstock.lake.source import quick
from penstock.lake.source.asking import KNOWN
from penstock.lake.source.bulk import CAREFUL, MOST_LOCKED, Taken, is_apart, one_by_one, staged, take_in
from penstock.lake.source.postgres import plain_url
from penstock.lake.source.rows import Rejected, Shape, shape, to_jobs
from penstock.queue import Queue

ROWS_A_SLICE = 50_000
"""A longer transaction would hold up everybody who follows what happens."""
BYTES_A_SLICE = 64 * 1024 * 1024
"""A slice is in memory several times over, and no text of Arrow's holds more than 2 GB."""
OF_THE_ROW = (InvalidInput, NotFound, Conflict)
"""What a store refuses a row for. Anything else (it is full, it is away) says nothing of the row, and ends the task."""
MOST_TOLD = 5
MOST_SHOWN = 300
MOST_TRIES = 10
_SCHEME = re.compile("([A-Za-z][A-Za-z0-9+.-]+):")

Answer = TypeVar("Answer")

logger = logging.getLogger("penstock.lake")


class BadRows(PenstockError):
    """Some rows are no jobs. Correct them, or set onBadRows to report, and rejectedPath to where they are to be written down."""

    code = "bad_rows"

    def __init__(self, number: int, examples: Sequence[str], *, alone: bool = False) -> None:
        others = "all others of their slice were" if alone else "nothing of the slice that holds them was"
        super().__init__(
            f"{number:,} rows are no jobs, and {others} written; the first: " + "; ".join(examples),
            number=number,
            examples=list(examples),
        )


@dataclass(frozen=True)
class Wrote(WriterCommitMessage):
    """What one task did. `known` are rows that had been written before, be it by the same task at its first try."""

    made: int = 0
    known: int = 0
    rejected: int = 0
    examples: tuple[str, ...] = ()

    def __add__(self, other: Wrote) -> Wrote:
        return Wrote(
            self.made + other.made,
            self.known + other.known,
            self.rejected + other.rejected,
            (self.examples + other.examples)[:MOST_TOLD],
        )


Put: TypeAlias = "Callable[[Any], tuple[Wrote, list[Rejected]]]"
"""Puts a slice, an Arrow table, into a store: what came of it, and the rows that are no jobs."""


class Writer(DataSourceArrowWriter):
    """Enqueues rows. How a slice of them comes into a store, its own writer says."""

    is_whole = False
    """Whether a slice that the store refuses a row of leaves nothing."""
    careful: tuple[str, ...] = ()
    """Columns that make a row one of those of which only a few go into a slice."""

    def __init__(
        self, url: str, shape: Shape, *, tenant: str, reports: bool = False, rejected_path: str | None = None
    ) -> None:
        self.url, self.shape, self.tenant = url, shape, tenant
        self.reports, self.rejected_path = reports, rejected_path
        self.load = uuid4().hex

    def _opened(self) -> AbstractContextManager[Put]:
        """The store, for as long as one task writes to it."""
        raise NotImplementedError

    def write(self, iterator: Iterator[Any]) -> Wrote:
        total = Wrote()
        with _Rejects(self.rejected_path, self.load) as rejects, self._opened() as put:
            for table in sliced(iterator, self.careful):
                wrote, bad = put(table)
                total += wrote + Wrote(rejected=len(bad), examples=_told(bad))
                rejects.add(bad)
        return total

    def commit(self, messages: list[Any]) -> None:
        total = sum((message for message in messages if message is not None), Wrote())
        logger.info("%d jobs made, %d were there before", total.made, total.known)
        if total.rejected:
            logger.warning(
                "%d rows are no jobs; all of them are in %s/%s; the first: %s",
                total.rejected, self.rejected_path, self.load, "; ".join(total.examples),
            )  # fmt: skip

    def abort(self, messages: list[Any]) -> None:
        logger.warning(
            "the write did not end well: some slices may be in. Write once more: rows are known by their keys"
        )

    def _refused(
        self, errors: Mapping[int, Exception], row: Callable[[int], Mapping[str, Any]]
    ) -> list[Rejected]:
        """The rows that the store has refused, by their places; unless they are to be reported, the write ends with them."""
        if other := next((error for error in errors.values() if not isinstance(error, OF_THE_ROW)), None):
            raise other  # to be written once more: rows are known by their keys
        refused = [Rejected(dict(row(place)), str(error)) for place, error in errors.items()]
        self._hold_to(refused, alone=not self.is_whole)
        return refused

    def _hold_to(self, bad: Sequence[Rejected], *, alone: bool = False) -> None:
        if bad and not self.reports:
            raise BadRows(len(bad), _told(bad), alone=alone)


class PostgresWriter(Writer):
    """A slice is a transaction: all of its jobs, or none. It ends early where many of them lock keys."""

    is_whole = True
    all_new = True
    """So far: who has met a row that was written before will meet more."""

    def __init__(self, url: str, shape: Shape, **options: Any) -> None:
        super().__init__(plain_url(url), shape, **options)
        self.careful = tuple(name for name in CAREFUL if name in shape.columns)

    @contextmanager
    def _opened(self) -> Iterator[Put]:
        import psycopg

        with psycopg.connect(self.url, autocommit=True, prepare_threshold=None) as connection:
            yield partial(self._slice, connection)

    def _slice(self, connection: Any, table: Any) -> tuple[Wrote, list[Rejected]]:
        stage, rest = quick.stage(self.shape, table)
        others = table.take(rest).to_pylist(maps_as_pydicts="strict") if len(rest) else []
        jobs, good, bad = to_jobs(self.shape, others)
        self._hold_to(bad)
        apart = [is_apart(job, bool(self.shape.keys)) for job in jobs]
        together = [place for place, one in enumerate(apart) if one]
        alone = [place for place, one in enumerate(apart) if not one]
        keyed = bool(self.shape.keys)

        def put() -> tuple[int, list[Rejected]]:
            made, refused = 0, []
            with connection.transaction():
                if stage is not None:
                    taken = take_in(connection, self.tenant, stage, keyed=keyed, straight=self.all_new)
                    made += taken.made
                    self.all_new = taken.made == stage.num_rows
                    refused += self._refused(taken.refused, lambda place: _row(table, place))
                if together:
                    taken = self._named(connection, [jobs[place] for place in together], keyed)
                    made += taken.made
                    refused += self._refused(taken.refused, lambda place: good[together[place]])
                if alone:
                    # Last: some have parents among the others, and the locks on their keys are held for the shortest time.
                    taken = one_by_one(connection, self.tenant, [jobs[place] for place in alone])
                    made += taken.made
                    refused += self._refused(taken.refused, lambda place: good[alone[place]])
            return made, refused

        made, refused = _again(put)
        bad += refused
        return Wrote(made, table.num_rows - made - len(bad)), bad

    def _named(self, connection: Any, jobs: Sequence[NewJob], keyed: bool) -> Taken:
        """Take jobs in that may have names of their own; those whose name is taken are asked about once more."""
        named = "id" in self.shape.columns
        taken = take_in(connection, self.tenant, staged(jobs), keyed=keyed, named=named)
        if not named or taken.made == len(jobs):
            return taken
        # Of one id given twice one row has it now, whichever that is: the other asks too.
        given = Counter(job.id for job in jobs)
        rest = [place for place, job in enumerate(jobs) if job.id not in taken.ids or given[job.id] > 1]
        asked = one_by_one(connection, self.tenant, [jobs[place] for place in rest])
        return Taken(taken.made + asked.made, {rest[place]: error for place, error in asked.refused.items()})


class DoorWriter(Writer):
    """Through the one door, into any store: a log, or a service.

    A slice goes out in as many calls as the store asks for. So one that a store refuses a row of, where the write is to fail
    then, may be in but for that row; written once more it is known by its keys.
    """

    @contextmanager
    def _opened(self) -> Iterator[Put]:
        with asyncio.Runner() as runner:
            door = connect(self.url, tenant=self.tenant, actor="spark")
            try:
                yield lambda table: runner.run(self._slice(door, table))
            finally:
                runner.run(door.close())

    async def _slice(self, door: Queue, table: Any) -> tuple[Wrote, list[Rejected]]:
        jobs, good, bad = to_jobs(self.shape, table.to_pylist(maps_as_pydicts="strict"))
        self._hold_to(bad)
        answers = await door.enqueue_many(jobs)
        refused = {place: one for place, one in enumerate(answers) if isinstance(one, PenstockError)}
        bad += self._refused(refused, lambda place: good[place])
        made = sum(isinstance(one, Enqueued) and one.duplicate is None for one in answers)
        return Wrote(made, table.num_rows - made - len(bad)), bad


class _Rejects:
    """Where a task writes the rows that are no jobs: one file, which the same task run again writes anew."""

    def __init__(self, folder: str | None, load: str) -> None:
        self._folder = folder
        context = TaskContext.get()
        self._name = f"{load}/part-{0 if context is None else context.partitionId():05d}.jsonl"
        self._file: Any = None

    def __enter__(self) -> _Rejects:
        return self

    def add(self, bad: Sequence[Rejected]) -> None:
        if not bad or self._folder is None:
            return
        if self._file is None:
            from pyarrow import fs

            system, path = fs.FileSystem.from_uri(self._folder)
            path = f"{path}/{self._name}"
            system.create_dir(path.rpartition("/")[0], recursive=True)
            self._file = system.open_output_stream(path)
        self._file.write("".join(f"{one.line}\n" for one in bad).encode("utf-8", "backslashreplace"))

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


WRITERS: Mapping[str, type[Writer]] = {
    **dict.fromkeys(("postgresql", "postgres"), PostgresWriter),
    **dict.fromkeys(("file", "s3", "gs", "az", "http", "https"), DoorWriter),
}


def writer(url: str, options: Mapping[str, str], schema: Any, overwrite: bool) -> Writer:
    """What writes the rows of a DataFrame with this schema."""
    if overwrite:
        raise InvalidInput("mode", "be append: jobs that were enqueued stay", "overwrite")
    if (scheme := urlsplit(url).scheme) not in WRITERS:
        raise InvalidInput("url", f"be one of {KNOWN}, or a service at https://", f"{scheme}:…")
    how = options.get("onBadRows", "fail").lower()
    if how not in ("fail", "report"):
        raise InvalidInput("onBadRows", "be fail or report", how)
    if how == "report" and not options.get("rejectedPath"):
        raise InvalidInput(
            "rejectedPath", "say where rows that are no jobs are written down, to have them reported", None
        )
    return WRITERS[scheme](
        url,
        shape(options, schema.names),
        tenant=bounds.name("tenant", options.get("tenant", "default")),
        reports=how == "report",
        rejected_path=_place(options.get("rejectedPath")),
    )


def _place(given: str | None) -> str | None:
    """Where rejected rows go, as every executor understands it; where none could write is refused before anything is written."""
    if not given:
        return None
    scheme = _SCHEME.match(given)
    if scheme is None:
        return str(Path(given).absolute())
    import pyarrow
    from pyarrow import fs

    try:
        fs.FileSystem.from_uri(given)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
        raise InvalidInput(
            "rejectedPath",
            "be a path, or a URI that pyarrow opens: file:///…, s3://bucket/…, gs://bucket/…, hdfs://host/… or, on Azure, "
            "abfss://container@account.dfs.core.windows.net/…",
            f"{scheme[1]}:…",  # some URIs hold a secret
        ) from None
    return given


def sliced(batches: Iterator[Any], careful: Sequence[str] = ()) -> Iterator[Any]:
    """Arrow batches as tables of so many rows and bytes, and so many rows that say any of the `careful` columns, at the most."""
    import pyarrow as pa

    def sizes(some: Any) -> tuple[int, int, int]:
        return some.num_rows, some.nbytes, _saying(some, careful)

    def fitting(batch: Any) -> int:
        """How many of its rows there is room for: one at least, or a large one would have no place anywhere."""
        number = bisect_right(
            range(1, batch.num_rows + 1),
            False,
            key=lambda n: any(size > left for size, left in zip(sizes(batch.slice(0, n)), room, strict=True)),
        )
        return number if held else max(1, number)

    whole = (ROWS_A_SLICE, BYTES_A_SLICE, MOST_LOCKED)
    held: list[Any] = []
    room: tuple[int, ...] = whole
    for batch in batches:
        while batch.num_rows:
            if some := fitting(batch):
                held.append(batch.slice(0, some))
                room = tuple(left - size for left, size in zip(room, sizes(held[-1]), strict=True))
                batch = batch.slice(some)
            if batch.num_rows:
                yield pa.Table.from_batches(held)
                held, room = [], whole
    if held:
        yield pa.Table.from_batches(held)


def _saying(batch: Any, columns: Sequence[str]) -> int:
    """How many rows say any of these columns."""
    import pyarrow.compute as pc

    masks = [pc.is_valid(batch[name]) for name in columns]
    return pc.sum(reduce(pc.or_, masks)).as_py() or 0 if masks else 0


def _row(table: Any, place: int) -> dict[str, Any]:
    [row] = table.slice(place, 1).to_pylist(maps_as_pydicts="strict")
    return dict(row)


def _told(bad: Sequence[Rejected]) -> tuple[str, ...]:
    return tuple(f"{one.reason} in {bounds.error_text(one.row, MOST_SHOWN)}" for one in bad[:MOST_TOLD])


def _again(put: Callable[[], Answer]) -> Answer:
    """Once more where the database gave way to somebody else: nothing was written."""
    from psycopg.errors import DeadlockDetected, SerializationFailure, UniqueViolation

    for _ in range(MOST_TRIES - 1):
        try:
            return put()
        except (DeadlockDetected, SerializationFailure, UniqueViolation):
            continue
    return put()
