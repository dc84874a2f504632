"""A job that has left the store is told from the lake, as it was: in Python, over HTTP and on the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from click.testing import CliRunner
from msgspec.structs import asdict, replace

from penstock import Queue, connect
from penstock.access import Access
from penstock.cli.main import main
from penstock.cli.serving import archive_in
from penstock.core.archive import Archived
from penstock.core.codec import NULL
from penstock.core.commands import History
from penstock.core.errors import JobNotFound, StoreUnavailable
from penstock.core.job import Attempt, Job, JobId, LeaseToken, Record
from penstock.lake import archive as module
from penstock.lake.archive import LakeArchive
from penstock.lake.keeping import check_in, forget, tell
from penstock.lake.manifest import FORMAT, Lake, new_manifest, source_of
from penstock.lake.tables import EVENTS
from penstock.stores.memory import MemoryStore
from support.postgres import EmptyPostgresStore, server_url
from support.service import serving
from support.spark import WITHOUT

pa = pytest.importorskip("pyarrow", reason=WITHOUT)
pytest.importorskip("adbc_driver_postgresql", reason=WITHOUT)
import pyarrow.compute as pc  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from penstock.lake.source import Ask, open_reader  # noqa: E402

AS_OF = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
async def queue() -> AsyncIterator[Queue]:
    async with Queue(EmptyPostgresStore(None), actor="ada") as queue:
        yield queue


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
async def archive(lake: Lake) -> AsyncIterator[LakeArchive]:
    opened = LakeArchive(lake.place)
    yield opened
    await opened.close()


def take_in(lake: Lake, url: str | None = None) -> None:
    """Make a lake of all that is in a store: bronze, and of silver as much as says which jobs there are."""
    ask = Ask("events", tuple(EVENTS))
    reader = open_reader(url or server_url())
    events = pa.Table.from_batches(
        batch for part in reader.slices(ask, 1) for batch in reader.read(ask, part)
    )
    events = events.filter(pc.is_valid(events["job_id"]))
    born: dict[str, tuple[str, ...]] = {}
    silver: dict[str, tuple[str, ...]] = {}
    before = lake.find()
    batch = 1 if before is None else before.batch + 1
    days = pc.strftime(events["created_at"], "%Y-%m-%d")
    for day in pc.unique(days).to_pylist():
        rows = events.filter(pc.equal(days, day))
        # Spark writes them in several files, and what is read twice is there twice.
        for number, folder in enumerate(
            (f"bronze/events/{batch}/part={day}", f"silver/jobs/{batch}/part={day}")
        ):
            place = Path(lake.storage.path(folder))
            place.mkdir(parents=True)
            pq.write_table(rows, place / "one.parquet")
            pq.write_table(rows, place / "two.parquet")
            (silver if number else born)[day] = (folder,)
    manifest = before or new_manifest(source_of(reader.horizon()), {"xid": 1})
    tables = {"events": born, "jobs": silver}
    lake.commit(replace(manifest, tables=tables, born=born, read_at=AS_OF, data_as_of=AS_OF))


def cut_off(lake: Lake) -> None:
    """Have the files end too soon."""
    for file in Path(lake.place).glob("silver/jobs/**/*.parquet"):
        file.write_bytes(file.read_bytes()[:-9])


@contextmanager
def away(place: str) -> Iterator[None]:
    """A folder is not where it was."""
    Path(place).rename(f"{place}-away")
    yield
    Path(f"{place}-away").rename(place)


async def leave(queue: Queue) -> None:
    """Every job that has ended leaves the store."""
    for view in await queue.queues():
        await queue.configure(view.name, retention_seconds=0)
    await queue.sweep()


async def end(queue: Queue, **options: Any) -> JobId:
    made = await queue.enqueue("mail", {"to": "bob"}, **options)
    [held] = await queue.lease(worker="w")
    await queue.ack(held, "sent")
    return made.id


def in_lake(job: Job, history: History) -> tuple[Job, tuple[Record, ...]]:
    """What is left of a job's life: all but what it said and came to."""
    records = tuple(
        replace(one, token=LeaseToken(""), result=None, logs=None) if isinstance(one, Attempt) else one
        for one in history.records
    )
    return replace(job, asked=replace(job.asked, payload=NULL), result=None, progress=None), records


async def test_a_job_that_left_is_told_as_it_was(queue: Queue, lake: Lake, archive: LakeArchive) -> None:
    ids = [await end(queue, key="k", headers={"a": "b"}, priority=3, max_attempts=7, idempotency_key="once")]
    parent = await queue.enqueue("parent", queue="p", max_attempts=2)
    child = await queue.enqueue("child", queue="c", parents=[parent.id], ordering_key="o")
    ids += [parent.id, child.id]
    for n in range(3):
        [held] = await queue.lease("p", worker="w")
        if n == 0:
            await queue.release(held)
        elif n == 1:
            await queue.nack(held, "ValueError: no", retry_in=0)
        else:
            await queue.ack(held)
    [held] = await queue.lease("c", worker="w")
    await queue.nack(held, "for good", retry=False)
    await queue.redrive(child.id, "once more")
    [held] = await queue.lease("c", worker="w")
    await queue.ack(held)
    cancelled = await queue.enqueue("t", queue="x", unique_key="u", run_at=datetime(2040, 1, 1, tzinfo=UTC))
    await queue.cancel(cancelled.id, "not wanted")
    abandoned = await queue.enqueue("t", queue="x", parents=[cancelled.id])
    stopped = await queue.enqueue("t", queue="y")
    [held] = await queue.lease("y", worker="w")
    await queue.cancel(stopped.id)
    await queue.discard(held, "asked to")
    ids += [cancelled.id, abandoned.id, stopped.id, await end(queue, expires_in=60)]
    as_they_were = [in_lake(await queue.get(one), await queue.history(one)) for one in ids]
    take_in(lake)
    await leave(queue)
    for one, (job, records) in zip(ids, as_they_were, strict=True):
        with pytest.raises(JobNotFound):
            await queue.get(one)
        found = await archive.find("default", one)
        assert found is not None
        assert found.history.records == records
        # Whether it was asked to stop is no fact of its own, and why an attempt was the last one none at all.
        known = replace(job, cancel_requested=False, cause=job.cause if found.job.cause else None)
        assert asdict(found.job) == asdict(known)
        assert found.data_as_of == AS_OF


@pytest.mark.parametrize("logs", [1, 3])
async def test_the_same_of_logs_where_each_entry_numbers_anew(tmp_path: Path, lake: Lake, logs: int) -> None:
    url = f"file://{tmp_path}/logs"
    async with connect(f"{url}?shards={logs}") as queue:
        were = {}
        for name in ("q0", "q1", "q2"):  # of three logs, one in each
            made = await queue.enqueue("mail", queue=name, max_attempts=2, key="k", priority=-1)
            await queue.enqueue_many([{"type": "other", "queue": name} for _ in range(3)])
            # In one entry, and ours the last of them: what the next entry does to it has a lower number.
            together = await queue.lease(name, worker="w", limit=4)
            assert together[-1].id == made.id
            await queue.settle_many([queue.nacked(one, "ValueError: no", retry=False) for one in together])
            await queue.redrive(made.id, "once more")
            [leased] = await queue.lease(name, worker="w")
            await queue.ack(leased)
            were[made.id] = in_lake(await queue.get(made.id), await queue.history(made.id))
        await asyncio.to_thread(take_in, lake, url)
        archive = LakeArchive(lake.place)
        for id, (job, records) in were.items():
            found = await archive.find("default", id)
            assert found is not None
            assert found.history.records == records
            assert found.job == job
        await archive.close()


async def test_only_its_own_tenant_is_told_and_only_what_an_id_says_the_day_of(
    queue: Queue, lake: Lake, archive: LakeArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await archive.find("default", JobId(str(uuid4()))) is None  # nor is there a lake
    acme = queue.for_tenant("acme")
    theirs = await end(acme)
    odd = await end(queue, id=str(uuid4()))
    take_in(lake)
    assert await archive.find("acme", theirs) is not None
    assert await archive.find("default", theirs) is None
    monkeypatch.setattr(module, "_rows", None)  # nothing is read for it
    assert await archive.find("default", odd) is None
    assert await archive.find("default", JobId("ffffffff-ffff-7fff-bfff-ffffffffffff")) is None


async def test_a_manifest_is_read_again_when_it_was_replaced_and_answers_kept_till_then(
    queue: Queue, lake: Lake, archive: LakeArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await end(queue)
    take_in(lake)
    second = await end(queue)
    assert await archive.find("default", first) is not None
    assert await archive.find("default", second) is None
    looked: list[str] = []
    look_up = module.look_up

    def counted(lake: Lake, manifest: Any, tenant: str, job_id: JobId) -> Archived | None:
        looked.append(job_id)
        return look_up(lake, manifest, tenant, job_id)

    monkeypatch.setattr(module, "look_up", counted)
    assert await archive.find("default", first) is not None
    assert await archive.find("default", second) is None
    assert looked == []
    take_in(lake)
    assert await archive.find("default", second) is not None
    assert looked == [second]


async def test_a_lake_that_cannot_be_read_is_no_reason_to_say_that_there_was_no_job(
    queue: Queue, lake: Lake, archive: LakeArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await end(queue)
    take_in(lake)
    monkeypatch.setattr(module, "MOST_WAITING", 0)
    with pytest.raises(StoreUnavailable, match="0 readers wait"):
        await archive.find("default", job_id)
    monkeypatch.setattr(module, "MOST_WAITING", 9)
    cut_off(lake)
    with pytest.raises(StoreUnavailable, match="Parquet"):
        await archive.find("default", job_id)
    manifest = Path(lake.place) / "manifest.json"
    manifest.write_text(manifest.read_text().replace(f'"format": {FORMAT}', '"format": 99'))
    with pytest.raises(StoreUnavailable, match="has format 99"):
        await archive.find("default", job_id)


async def test_files_that_are_gone_are_not_told_as_a_job_that_never_was(
    queue: Queue, lake: Lake, archive: LakeArchive
) -> None:
    job_id = await end(queue)
    take_in(lake)
    for table in ("events", "jobs"):
        [folder] = lake.manifest().folders(table)
        with (
            away(lake.storage.path(folder)),
            pytest.raises(StoreUnavailable, match=f"lacks what its manifest names: {folder}"),
        ):
            await archive.find("default", job_id)
    assert await archive.find("default", job_id) is not None


async def test_a_lake_that_was_there_and_is_not_is_out_of_reach(
    queue: Queue, lake: Lake, archive: LakeArchive
) -> None:
    """As when its disk is not mounted."""
    job_id = await end(queue)
    take_in(lake)
    assert await archive.find("default", job_id) is not None
    with away(lake.place), pytest.raises(StoreUnavailable, match="there is no lake in"):
        await archive.find("default", job_id)
    assert await archive.find("default", job_id) is not None


async def test_so_is_one_that_the_store_has_let_jobs_go_to(queue: Queue, lake: Lake) -> None:
    job_id = await end(queue)
    archive = LakeArchive(lake.place, queue.store)
    manifest = new_manifest({"feed": "f", "system": "s"}, {"xid": 7, "feed": "f", "system": "s"})
    await asyncio.to_thread(check_in, server_url(), lake, manifest)
    assert await archive.find("default", job_id) is None, "nothing has left yet"
    await asyncio.to_thread(tell, server_url(), lake, replace(manifest, read_at=AS_OF))
    with pytest.raises(StoreUnavailable, match="there is no lake in"):
        await archive.find("default", job_id)
    await forget(queue.store, manifest.lake, "ada")
    assert await archive.find("default", job_id) is None
    await archive.close()


async def test_over_http_and_on_the_command_line(
    queue: Queue, lake: Lake, archive: LakeArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, theirs = await end(queue), await end(queue.for_tenant("acme"))
    take_in(lake)
    for one in (queue, queue.for_tenant("acme")):
        await leave(one)
    _, secret = await Access(queue.store).create("default", "ada", ["read"], actor="tests")
    sent = {"Authorization": f"Bearer {secret}"}
    async with (
        serving(queue.store, archive=archive) as url,
        httpx.AsyncClient(base_url=url, headers=sent) as api,
    ):
        told = (await api.get(f"/v1/jobs/{job_id}")).json()
        assert (told["id"], told["status"], told["type"]) == (job_id, "succeeded", "mail")
        assert (told["source"], told["data_as_of"]) == ("lake", "2030-01-01T00:00:00Z")
        assert "payload" not in told
        assert told["lacking"] == ["payload", "result", "progress", "logs"]
        trail = (await api.get(f"/v1/jobs/{job_id}/attempts")).json()
        assert ([one["outcome"] for one in trail["attempts"]], trail["source"]) == (["succeeded"], "lake")
        never = theirs[:-1] + ("0" if theirs[-1] != "0" else "1")
        for address in ("/v1/jobs/{}", "/v1/jobs/{}/attempts"):
            said = [(await api.get(address.format(one))) for one in (theirs, never)]
            assert [one.status_code for one in said] == [404, 404]
            assert said[0].text.replace(theirs, never) == said[1].text
        fresh = await queue.enqueue("t")
        there = (await api.get(f"/v1/jobs/{fresh.id}")).json()
        assert there["payload"] == {}
        assert {"source", "data_as_of", "lacking"}.isdisjoint(there)

    def show(*options: str, lake: str | None = lake.place) -> Any:
        env = {"PENSTOCK_URL": server_url(), "PENSTOCK_WAKEUPS": "none://", "PENSTOCK_LAKE": lake}
        return CliRunner().invoke(main, ["jobs", "show", job_id, *options], env=env)

    shown = json.loads((await asyncio.to_thread(show, "-o", "json")).stdout)
    assert (shown["source"], shown["status"], len(shown["history"])) == ("lake", "succeeded", 1)
    assert "payload" not in shown
    table = await asyncio.to_thread(show, "-o", "table")
    assert "the lake as of 2030-01-01" in table.stdout
    assert "no payload, result, progress or logs any more" in table.stdout
    assert (await asyncio.to_thread(lambda: show(lake=None))).exit_code == 3
    monkeypatch.setattr("penstock.cli.serving.find_spec", lambda name: None)
    assert archive_in(lake.place, MemoryStore()) is None
