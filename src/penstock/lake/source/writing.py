"""Spark's side of writing: a DataFrame's rows become jobs, slice by slice, each of them once.

A task that is run again, and a whole write that is, find by the keys of their rows what was written before. No row is
ever dropped without a word: what is no job fails the write, or is reported and, if a place is named for it, written down.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
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
from penstock.lake.source.bulk import MOST_LOCKED, Taken, is_apart, one_by_one, staged, take_in
from penstock.lake.source.postgres import plain_url
from penstock.lake.source.rows import Rejected, Shape, shape, to_jobs
from penstock.queue import Queue

ROWS_A_SLICE = 50_000
"""A longer transaction would hold up everybody who follows what happens."""
OF_THE_ROW = (InvalidInput, NotFound, Conflict)
"""What a store refuses a row for. Anything else (it is full, it is away) says nothing of the row, and ends the task."""
MOST_TOLD = 5
MOST_SHOWN = 300
MOST_TRIES = 10

Answer = TypeVar("Answer")

logger = logging.getLogger("penstock.lake")


class BadRows(PenstockError):
    """Some rows are no jobs. Correct them, or set onBadRows to report, with a rejectedPath to have them written down."""

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
            for table in sliced(iterator, ROWS_A_SLICE):
                wrote, bad = put(table)
                total += wrote + Wrote(rejected=len(bad), examples=_told(bad))
                rejects.add(bad)
        return total

    def commit(self, messages: list[Any]) -> None:
        total = sum((message for message in messages if message is not None), Wrote())
        logger.info("%d jobs made, %d were there before", total.made, total.known)
        if total.rejected:
            where = f"; all of them are in {self.rejected_path}/{self.load}" if self.rejected_path else ""
            logger.warning(
                "%d rows are no jobs%s; the first: %s", total.rejected, where, "; ".join(total.examples)
            )

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
    """A slice is a transaction: all of its jobs, or none."""

    is_whole = True
    all_new = True
    """So far: who has met a row that was written before will meet more."""

    @contextmanager
    def _opened(self) -> Iterator[Put]:
        import psycopg

        with psycopg.connect(plain_url(self.url), autocommit=True, prepare_threshold=None) as connection:
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

        def at_once() -> tuple[Taken, list[Rejected]]:
            """What can be taken in by set, in one transaction."""
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
            return Taken(made), refused

        made = 0
        if stage is not None or together:
            taken, refused = _again(at_once)
            made += taken.made
            bad += refused
        for begin in range(0, len(alone), MOST_LOCKED):
            some = alone[begin : begin + MOST_LOCKED]

            def by_one(some: Sequence[int] = some) -> tuple[Taken, list[Rejected]]:
                with connection.transaction():
                    taken = one_by_one(connection, self.tenant, [jobs[place] for place in some])
                    return taken, self._refused(taken.refused, lambda place: good[some[place]])

            taken, refused = _again(by_one)
            made += taken.made
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
    return WRITERS[scheme](
        url,
        shape(options, schema.names),
        tenant=bounds.name("tenant", options.get("tenant", "default")),
        reports=how == "report",
        rejected_path=_place(options.get("rejectedPath")),
    )


def _place(path: str | None) -> str | None:
    return path if path is None or "://" in path else str(Path(path).absolute())


def sliced(batches: Iterator[Any], most: int) -> Iterator[Any]:
    """Arrow batches as tables of at most so many rows."""
    import pyarrow as pa

    held: list[Any] = []
    room = most
    for batch in batches:
        while batch.num_rows:
            held.append(batch.slice(0, room))
            room -= held[-1].num_rows
            batch = batch.slice(held[-1].num_rows)
            if room == 0:
                yield pa.Table.from_batches(held)
                held, room = [], most
    if held:
        yield pa.Table.from_batches(held)


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
