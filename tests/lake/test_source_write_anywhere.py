"""Jobs from the rows of a DataFrame into stores that are no PostgreSQL: through the one door, each once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.connecting import connect
from penstock.core.errors import InvalidInput, Overloaded, StoreUnavailable
from penstock.core.job import Status
from penstock.queue import Queue
from penstock.stores.log.store import LogStore
from penstock.stores.memory import MemoryStore
from support.service import ADMIN, serving
from support.spark import WITHOUT
from support.working import until

pytest.importorskip("pyspark", reason=WITHOUT)

import pyarrow as pa

from penstock.lake.source import writing
from penstock.lake.source.writing import BadRows, Wrote, writer


class Schema:
    def __init__(self, *names: str) -> None:
        self.names = list(names)


@pytest.fixture(params=["folder", "several logs", "service"])
async def url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[str]:
    if request.param == "service":
        monkeypatch.setenv("PENSTOCK_TOKEN", ADMIN)
        async with serving(MemoryStore()) as address:
            yield address
    else:
        yield f"file:{tmp_path}/queue" + ("?shards=3" if request.param == "several logs" else "")


async def write(url: str, table: pa.Table, **options: str) -> Wrote:
    def wrote() -> Wrote:
        made = writer(url, {"type": "t", **options}, Schema(*table.column_names), False)
        return made.write(iter(table.to_batches()))

    return await asyncio.to_thread(wrote)  # as Spark calls it: where no event loop is at work


def report(folder: Path) -> dict[str, str]:
    return {"onBadRows": "report", "rejectedPath": str(folder / "bad")}


async def asked(url: str, ask: Callable[[Queue], Coroutine[Any, Any, Any]]) -> Any:
    async with connect(url, tenant="t", actor="test") as queue:
        return await ask(queue)


async def payloads(url: str, queue: str) -> list[int]:
    page = await asked(url, lambda door: door.find(queue=queue, limit=1_000))
    assert all(job.status is Status.QUEUED for job in page.jobs)
    return sorted(json.loads(job.payload)["n"] for job in page.jobs)


def numbers(n: int) -> pa.Table:
    return pa.table({"n": list(range(n)), "payload": [f'{{"n":{i}}}' for i in range(n)]})


async def test_rows_written_once_more_make_no_new_jobs(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "ROWS_A_SLICE", 12)
    assert await write(url, numbers(20), tenant="t", queue="a", keyColumns="n") == Wrote(made=20)
    assert await write(url, numbers(30), tenant="t", queue="a", keyColumns="n") == Wrote(made=10, known=20)
    assert await write(url, numbers(2), tenant="t", queue="b", keyColumns="n") == Wrote(made=2)
    assert await payloads(url, "a") == list(range(30))
    assert await payloads(url, "b") == [0, 1]


async def test_what_is_no_job_fails_the_write_before_anything_of_its_slice_is_in(url: str) -> None:
    rows = pa.table({"n": [0, 1], "payload": ['{"n": 0}', "oops"]})
    with pytest.raises(
        BadRows, match=r"1 rows are no jobs, and nothing of the slice .* payload must be JSON"
    ):
        await write(url, rows, tenant="t", queue="a", keyColumns="n")
    assert await payloads(url, "a") == []


async def test_bad_rows_are_written_down_if_asked_for(url: str, tmp_path: Path) -> None:
    """One that no enqueue takes, and one that the store refuses: its key came before with another payload."""
    await write(url, pa.table({"n": [2], "payload": ['{"n": 9}']}), tenant="t", queue="a", keyColumns="n")
    rows = pa.table({"n": [0, 1, 2], "payload": ['{"n": 0}', "oops", '{"n": 2}']})
    wrote = await write(url, rows, tenant="t", queue="a", keyColumns="n", **report(tmp_path))
    assert (wrote.made, wrote.known, wrote.rejected) == (1, 0, 2)
    assert await payloads(url, "a") == [0, 9]
    [file] = (tmp_path / "bad").glob("*/part-*.jsonl")
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(one["row"]["n"], one["reason"].split()[0]) for one in found] == [
        (1, "payload"),
        (2, "idempotency"),
    ]


async def test_a_store_that_refuses_a_row_fails_the_write_which_may_be_repeated(
    url: str, tmp_path: Path
) -> None:
    await write(url, pa.table({"n": [1], "payload": ['{"n": 9}']}), tenant="t", queue="a", keyColumns="n")
    with pytest.raises(BadRows, match=r"all others of their slice were written.*with a different body"):
        await write(url, numbers(3), tenant="t", queue="a", keyColumns="n")
    wrote = await write(url, numbers(3), tenant="t", queue="a", keyColumns="n", **report(tmp_path))
    assert (wrote.made, wrote.known, wrote.rejected) == (0, 2, 1)


async def test_a_queue_that_is_full_ends_the_write_and_is_no_fault_of_its_rows(
    url: str, tmp_path: Path
) -> None:
    """Only a service holds to it."""
    if not url.startswith("http"):
        pytest.skip("a limit of the service")
    await asked(url, lambda door: door.configure("a", max_depth=5))
    await write(url, numbers(5), tenant="t", queue="a", keyColumns="n")

    async def is_full() -> bool:
        with suppress(Overloaded):
            await asked(url, lambda door: door.enqueue("t", {"n": 99}, queue="a", delay=1))
            return False
        return True

    await until(is_full)
    held = await payloads(url, "a")
    for how in ({"onBadRows": "fail"}, report(tmp_path)):
        with pytest.raises(Overloaded, match="queue a is full"):
            await write(url, numbers(9), tenant="t", queue="a", keyColumns="n", **how)
    assert await payloads(url, "a") == held
    await asked(url, lambda door: door.configure("a", max_depth=None))

    async def is_written() -> bool:
        with suppress(Overloaded):
            await write(url, numbers(9), tenant="t", queue="a", keyColumns="n")
            return True
        return False

    await until(is_written)
    assert set(range(9)) <= set(await payloads(url, "a"))


async def test_a_log_that_is_away_ends_the_write_and_is_no_fault_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file:{tmp_path}/queue?shards=3"
    rows = pa.table({"n": list(range(9)), "queue": [f"q{n}" for n in range(9)]})
    whole = LogStore.enqueue
    away: list[LogStore] = []

    async def enqueue(self: LogStore, tenant: str, jobs: Any) -> Any:
        away[:] = away or [self]
        if self is away[0]:
            raise StoreUnavailable("a log", "away")
        return await whole(self, tenant, jobs)

    with monkeypatch.context() as patched:
        patched.setattr(LogStore, "enqueue", enqueue)
        with pytest.raises(StoreUnavailable, match="away"):
            await write(url, rows, tenant="t", keyColumns="n", **report(tmp_path))
    wrote = await write(url, rows, tenant="t", keyColumns="n", **report(tmp_path))
    assert wrote.made > 0
    assert wrote.known > 0
    assert wrote.made + wrote.known == 9


def test_a_place_that_jobs_cannot_be_written_to_is_named() -> None:
    with pytest.raises(InvalidInput, match="or a service at https://; got 'ftp:…'"):
        writer("ftp://secret@host/x", {"type": "t"}, Schema("n"), False)
