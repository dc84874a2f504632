"""What every backing promises, tried on each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import pytest

from penstock.core.errors import InvalidInput
from penstock.stores.log.backings import Backing, Objects, Tape, open_backing
from penstock.stores.log.errors import Truncated
from support.buckets import running_ministack
from support.gcs import running_gcs
from support.s3 import running_s3

BACKINGS = ("memory", "folder", "s3", "ministack", "gcs", "azurite")


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    with running_s3() as server:
        yield server.url("")


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_ministack(tmp_path_factory.mktemp("ministack")) as url:
        yield url


@pytest.fixture(scope="module")  # no longer: it sets the environment
def gcs() -> Iterator[str]:
    with running_gcs() as server:
        yield server.url("")


@pytest.fixture(params=BACKINGS)
async def backing(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backing]:
    match request.param:
        case "memory":
            opened = open_backing("memory+log://")
        case "folder":
            opened = open_backing(f"file://{tmp_path}/queue")
        case bucket:
            parts = urlsplit(request.getfixturevalue(bucket))
            opened = open_backing(urlunsplit(parts._replace(path=f"/{uuid4()}")))
    yield opened
    await opened.close()


@pytest.fixture
def objects(backing: Backing) -> Objects:
    return backing.objects


@pytest.fixture
def tape(backing: Backing) -> Tape:
    return backing.tape("s00")


class TestCreate:
    async def test_of_sixteen_writers_of_one_key_exactly_one_wins(self, objects: Objects) -> None:
        for number in range(3):
            key = f"race/{number}"
            won = await asyncio.gather(*(objects.create(key, b"%d" % writer) for writer in range(16)))
            assert won.count(True) == 1
            assert await objects.get(key) == b"%d" % won.index(True)

    async def test_over_an_existing_key_fails_and_changes_nothing(self, objects: Objects) -> None:
        assert await objects.create("a/b", b"first")
        assert not await objects.create("a/b", b"second")
        assert await objects.get("a/b") == b"first"

    async def test_the_same_bytes_again_are_there(self, objects: Objects) -> None:
        assert await objects.create("a", b"same")
        assert await objects.create("a", b"same")

    async def test_refuses_a_key_that_is_not_one_everywhere(self, objects: Objects) -> None:
        for key in ("", "/a", "a/", "a//b", "../a", "a/./b", ".hidden", "a\0b"):
            with pytest.raises(InvalidInput, match="key must"):
                await objects.create(key, b"")


class TestRead:
    async def test_what_is_not_there_is_none(self, objects: Objects) -> None:
        assert await objects.get("no/such") is None
        assert await objects.head("no/such") is None
        assert await objects.read("no/such") is None
        with pytest.raises(KeyError):
            await objects.get_range("no/such", 0, 1)

    async def test_parts_and_sizes(self, objects: Objects) -> None:
        await objects.create("parts", b"0123456789")
        assert await objects.get_range("parts", 2, 3) == b"234"
        assert await objects.get_range("parts", 8, 5) == b"89"
        found = await objects.head("parts")
        assert found is not None
        assert (found.key, found.size) == ("parts", 10)
        assert abs((found.modified - await objects.now()).total_seconds()) < 60

    async def test_lists_a_folder_in_order_as_soon_as_it_is_written(self, objects: Objects) -> None:
        for key in ("log/3", "log/1", "logs/1", "log/deep/2", "other"):
            await objects.create(key, b"x")
        assert [found.key for found in await objects.list("log/")] == ["log/1", "log/3", "log/deep/2"]
        assert [found.key for found in await objects.list("log", after="log/1", most=1)] == ["log/3"]
        assert len(await objects.list("")) == 5
        assert await objects.list("nothing/") == []

    async def test_deletes_what_is_there_and_minds_nothing_else(self, objects: Objects) -> None:
        await objects.create("a", b"")
        await objects.create("b", b"")
        await objects.delete(["a", "no/such"])
        assert [found.key for found in await objects.list("")] == ["b"]
        await objects.delete([])


class TestReplace:
    async def test_needs_the_version_that_is_there(self, objects: Objects) -> None:
        first = await objects.replace("manifest", b"1", None)
        assert first is not None
        assert await objects.read("manifest") == (b"1", first)
        second = await objects.replace("manifest", b"2", first)
        assert second is not None
        assert await objects.replace("manifest", b"3", first) is None
        assert await objects.replace("manifest", b"3", None) is None
        assert await objects.read("manifest") == (b"2", second)

    async def test_of_an_absent_one_fails(self, objects: Objects) -> None:
        version = await objects.replace("manifest", b"1", None)
        await objects.delete(["manifest"])
        assert await objects.replace("manifest", b"2", version) is None

    async def test_of_sixteen_replacers_exactly_one_wins(self, objects: Objects) -> None:
        version = await objects.replace("manifest", b"0", None)
        won = await asyncio.gather(
            *(objects.replace("manifest", b"w%d" % writer, version) for writer in range(16))
        )
        [winner] = [writer for writer, answer in enumerate(won) if answer is not None]
        assert await objects.read("manifest") == (b"w%d" % winner, won[winner])


class TestTape:
    async def test_numbers_entries_from_one_on(self, tape: Tape) -> None:
        assert await tape.last() == 0
        assert await tape.read(0) == []
        assert [await tape.append(data) for data in (b"a", b"b", b"c")] == [1, 2, 3]
        assert await tape.read(0) == [(1, b"a"), (2, b"b"), (3, b"c")]
        assert await tape.read(1, most=1) == [(2, b"b")]
        assert await tape.read(3) == []
        assert await tape.last() == 3

    async def test_callers_at_once_get_numbers_of_their_own(self, tape: Tape) -> None:
        numbers = await asyncio.gather(*(tape.append(b"%d" % n) for n in range(50)))
        assert sorted(numbers) == list(range(1, 51))
        assert dict(await tape.read(0)) == {number: b"%d" % n for n, number in enumerate(numbers)}

    async def test_one_entry_may_be_large_and_may_be_the_same_as_another(self, tape: Tape) -> None:
        large = bytes(range(256)) * 8192
        assert [await tape.append(data) for data in (large, b"x", b"x", large)] == [1, 2, 3, 4]
        assert [data for _, data in await tape.read(0)] == [large, b"x", b"x", large]

    async def test_says_from_where_it_can_be_read_once_truncated(self, tape: Tape, backing: Backing) -> None:
        for n in range(1, 11):
            await tape.append(b"%d" % n)
        await backing.objects.replace("s00/manifest", b'{"watermark": 10}', None)
        await tape.truncate(10)
        with pytest.raises(Truncated) as raised:
            await tape.read(3)
        assert raised.value.first == 11
        assert await tape.last() == 10
        assert await tape.read(10) == []
        assert await tape.append(b"11") == 11
        assert await tape.read(10) == [(11, b"11")]
        await tape.truncate(3)

    async def test_tapes_of_one_backing_do_not_meet(self, backing: Backing) -> None:
        one, other = backing.tape("s00"), backing.tape("s01")
        await one.append(b"one")
        assert await other.read(0) == []
        assert backing.tape("s00") is one
