"""What whoever holds the store sees when its storage fails: an error that says what was found, and what can still be read."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.connecting import connect
from penstock.core.errors import PenstockError, StoreUnavailable
from penstock.core.job import Status
from penstock.queue import Queue
from penstock.stores.log import entry as entry_module
from penstock.stores.log.backings.packed import pack
from penstock.stores.log.backings.probe import REMEMBERED
from penstock.stores.log.entry import entry, write
from penstock.stores.log.errors import (
    LogCorrupt,
    LogTooNew,
    OutcomeUnknown,
    StorageFull,
    StorageGone,
    StorageRefused,
)
from support.gcs import running_gcs
from support.s3 import S3, running_s3
from support.working import until


@pytest.fixture(params=[running_s3, running_gcs], ids=["s3", "gcs"])
def s3(request: pytest.FixtureRequest) -> Iterator[S3]:
    """A server that speaks S3, and then one that speaks as Google's does."""
    with request.param() as server:
        server.objects[f"jobs/{REMEMBERED}"] = (b"{}", datetime.now(UTC))
        yield server


@pytest.fixture
async def bucket(s3: S3) -> AsyncIterator[Queue]:
    async with connect(s3.url()) as queue:
        yield queue


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Queue]:
    async with connect(f"file://{tmp_path}/jobs") as queue:
        yield queue


def object_of(number: int) -> str:
    return f"jobs/s00/log/{number:020d}"


async def refused(queue: Queue) -> PenstockError:
    """How an enqueue fails."""
    with pytest.raises(PenstockError) as raised:
        await queue.enqueue("a")
    return raised.value


class TestFolder:
    @pytest.mark.parametrize(
        ("problem", "error"), [(errno.ENOSPC, StorageFull), (errno.EDQUOT, StorageFull), (errno.EACCES, StorageRefused)]
    )  # fmt: skip
    async def test_what_is_there_can_be_read_while_nothing_can_be_written(
        self, folder: Queue, problem: int, error: type[PenstockError], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job, soon = await folder.enqueue("a"), await folder.enqueue("a", delay=0.1)
        [held] = await folder.lease(worker="w", lease_seconds=1)
        ran_out = (await folder.get(held.id)).lease

        def failing(*args: Any) -> int:
            raise OSError(problem, os.strerror(problem))

        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", failing)
            assert type(await refused(folder)) is error
            assert ran_out is not None
            at = ran_out.expires_at

            async def is_over() -> bool:
                return await folder.store.now() >= at

            await until(is_over)  # and that cannot be written down either
            assert (await folder.get(job.id)).status is Status.RUNNING, "as of the newest entry"
            assert (await folder.get(soon.id)).id == soon.id
            assert [view.name for view in await folder.queues()] == ["default"]
            assert (await folder.history(job.id)).records == (), "its attempt has not ended for anybody"
        assert (await folder.get(job.id)).status is Status.QUEUED
        await folder.enqueue("a")
        assert len((await folder.find()).jobs) == 3

    async def test_one_that_was_removed_is_told_and_not_begun_anew(
        self, folder: Queue, tmp_path: Path
    ) -> None:
        await folder.enqueue("a")
        shutil.rmtree(tmp_path / "jobs")
        assert isinstance(await refused(folder), StorageGone)
        assert not (tmp_path / "jobs").exists()

    async def test_one_whose_format_was_lost_is_not_taken_for_new(
        self, folder: Queue, tmp_path: Path
    ) -> None:
        await folder.enqueue("a")
        (tmp_path / "jobs" / "FORMAT").unlink()
        async with connect(f"file://{tmp_path}/jobs") as late:
            with pytest.raises(LogCorrupt, match="FORMAT: it is missing or empty, and there is a log s00"):
                await late.queues()


class TestBucket:
    async def test_one_that_is_gone_is_told_by_those_who_had_it_open_and_those_who_come(
        self, s3: S3, bucket: Queue
    ) -> None:
        await bucket.enqueue("a")
        s3.buckets.clear()
        assert isinstance(await refused(bucket), StorageGone)
        async with connect(s3.url()) as late:
            assert isinstance(await refused(late), StorageGone)

    @pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"])
    async def test_expired_credentials_are_told_without_them_and_it_goes_on_with_new_ones(
        self, s3: S3, bucket: Queue, code: str
    ) -> None:
        await bucket.enqueue("a")
        s3.refuses = code
        # As S3 does; this token is of no variable that could be looked up.
        s3.refuses_with = (
            "<Token-0>FwoGZXIv\n/wEaDSecret</Token-0><RequestId>7K2</RequestId><HostId>a=</HostId>"
        )
        async with connect(s3.url()) as late:
            for queue in (bucket, late):
                error = await refused(queue)
                assert isinstance(error, StorageRefused)
                assert isinstance(error, StoreUnavailable), "workers try again"
                assert "secret" not in str(error).lower()
                assert "FwoGZXIv" not in str(error)
                assert "<Code>" in str(error), "what it was is told"
            s3.refuses = None
            await bucket.enqueue("a")
            assert len((await late.find()).jobs) == 2

    async def test_what_is_there_can_be_read_by_who_may_only_read(self, s3: S3, bucket: Queue) -> None:
        job = await bucket.enqueue("a")
        s3.refuses, s3.refuses_only = "AccessDenied", {"PUT", "POST", "DELETE"}
        async with connect(s3.url()) as late:
            assert isinstance(await refused(late), StorageRefused)
            for queue in (bucket, late):
                assert (await queue.get(job.id)).id == job.id

    async def test_who_may_not_delete_can_work(self, s3: S3, bucket: Queue) -> None:
        """Nothing but the compactor has to; the empty object that the time is read from stays behind."""
        s3.refuses, s3.refuses_only = "AccessDenied", {"POST", "DELETE"}
        await bucket.enqueue("a")
        assert len((await bucket.find()).jobs) == 1


class TestDamage:
    """Whoever has read beyond it goes on; whoever comes to it stops there, and neither skips nor mends."""

    async def _spoilt(
        self, s3: S3, bucket: Queue, spoilt: bytes, error: type[PenstockError], number: int = 2
    ) -> str:
        for _ in range(3):
            await bucket.enqueue("a")
        s3.objects[object_of(number)] = (spoilt, datetime.now(UTC))
        before = dict(s3.objects)
        async with connect(s3.url()) as late:
            with pytest.raises(error) as raised:
                await late.queues()
            with pytest.raises(error):
                await late.enqueue("a")
        assert {key: data for key, data in s3.objects.items() if "/log/" in key} == {
            key: data for key, data in before.items() if "/log/" in key
        }
        assert len((await bucket.find()).jobs) == 3
        await bucket.enqueue("a")
        return str(raised.value)

    async def test_a_truncated_entry(self, s3: S3, bucket: Queue) -> None:
        said = await self._spoilt(s3, bucket, pack(b"somebody", 1, b"whole")[:-1], LogCorrupt)
        assert "2" in said
        assert "restore it from a copy" in said

    async def test_an_entry_that_is_whole_and_makes_no_sense(self, s3: S3, bucket: Queue) -> None:
        said = await self._spoilt(s3, bucket, pack(b"somebody", 1, b"no entry"), LogCorrupt, 3)
        assert "entry 3" in said

    async def test_an_entry_in_the_place_of_another(self, s3: S3, bucket: Queue) -> None:
        """As one has it who wrote where the newest entry had been removed."""
        whole = entry(b"w" * 16, 1, datetime.now(UTC), [write("tick", "default", ()).data])
        said = await self._spoilt(s3, bucket, pack(b"somebody", 1, whole), LogCorrupt)
        assert "0002: it, or one right before it, is not what entry 3 was written behind" in said

    async def test_an_entry_of_a_newer_version(
        self, s3: S3, bucket: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as newer:
            newer.setattr(entry_module, "RULES", entry_module.RULES + 1)
            data = entry(b"w" * 16, 1, datetime.now(UTC), [write("tick", "default", ()).data])
        said = await self._spoilt(s3, bucket, pack(b"somebody", 1, data), LogTooNew, 3)
        assert "upgrade" in said

    async def test_behind_which_somebody_writes_unawares_leaves_it_open_whether_that_counts(
        self, s3: S3, bucket: Queue
    ) -> None:
        await bucket.enqueue("a")
        s3.objects[object_of(2)] = (pack(b"somebody", 1, b"no entry"), datetime.now(UTC))
        assert isinstance(await refused(bucket), OutcomeUnknown)
        written = [key for key in s3.objects if "/log/" in key]
        assert isinstance(await refused(bucket), LogCorrupt)
        assert [key for key in s3.objects if "/log/" in key] == written
