"""A tape of objects over real HTTP, in bad weather; what a store must do to be trusted with one."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime, timedelta

import pytest

from penstock.core.errors import InvalidInput, StoreUnavailable, UnknownStore
from penstock.stores.log.backings import Backing, numbered, open_backing
from penstock.stores.log.backings import objects as objects_module
from penstock.stores.log.backings.memory import MemoryObjects
from penstock.stores.log.backings.numbered import ObjectTape
from penstock.stores.log.backings.packed import filler, pack
from penstock.stores.log.backings.probe import REMEMBERED
from penstock.stores.log.errors import (
    LogCorrupt,
    LogGap,
    LogTooNew,
    OpenedElsewhere,
    OutcomeUnknown,
    StorageGone,
    StorageRefused,
    StoreNotConditional,
    Truncated,
)
from support.gcs import running_gcs
from support.killing import check_nothing_is_lost, confirmed_until_killed
from support.s3 import S3, Weather, running_s3
from support.turns import appended, fairness
from support.virtual import run

SHARD = "s00"
Running = Callable[..., AbstractContextManager[S3]]


EACH = pytest.mark.parametrize("running", [running_s3, running_gcs], ids=["s3", "gcs"])


@pytest.fixture(params=[running_s3, running_gcs], ids=["s3", "gcs"])
def new_s3(request: pytest.FixtureRequest) -> Iterator[S3]:
    """A server that speaks S3, and then one that speaks as Google's does."""
    with request.param() as server:
        yield server


@pytest.fixture
def s3(new_s3: S3) -> S3:
    """One that was found good before."""
    new_s3.objects[f"jobs/{REMEMBERED}"] = (b"{}", datetime.now(UTC))
    return new_s3


@pytest.fixture
async def backing(s3: S3) -> AsyncIterator[Backing]:
    backing = open_backing(s3.url())
    await backing.ready()
    yield backing
    await backing.close()


class TestLostAnswers:
    @pytest.mark.parametrize(
        "fault", ["500 before", "500 after", "503", "409", "cut before", "cut after", "late", "slow"]
    )
    async def test_are_resolved_by_what_is_there(self, s3: S3, backing: Backing, fault: str) -> None:
        tape = backing.tape(SHARD)
        await tape.append(b"one")
        s3.next.append(fault)
        assert await tape.append(b"two") == 2
        assert await tape.append(b"three") == 3
        assert [data for _, data in await tape.read(0)] == [b"one", b"two", b"three"]

    @pytest.mark.parametrize("fault", ["500 after", "cut after", "409", "500 before"])
    async def test_of_a_replacement_too(self, s3: S3, backing: Backing, fault: str) -> None:
        version = await backing.objects.replace("manifest", b"1", None)
        s3.next.append(fault)
        second = await backing.objects.replace("manifest", b"2", version)
        assert second is not None
        assert await backing.objects.read("manifest") == (b"2", second)
        s3.next.append(fault)
        assert await backing.objects.replace("manifest", b"3", version) is None

    @pytest.mark.parametrize("fault", ["500 after", "cut after", "409", "500 before", "late"])
    async def test_of_what_the_time_is_told_by_too(self, s3: S3, fault: str) -> None:
        backing = open_backing(s3.url())
        s3.ahead = timedelta(hours=1)
        s3.next.append(fault)
        assert await backing.objects.now() - datetime.now(UTC) > timedelta(minutes=59)
        await backing.close()

    async def test_that_stay_lost_are_neither_a_yes_nor_a_no(
        self, s3: S3, backing: Backing, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(objects_module, "DEADLINE_SECONDS", 0.3)
        tape = backing.tape(SHARD)
        await tape.append(b"one")
        s3.next.extend(["500 before"] * 5_000)
        with pytest.raises(OutcomeUnknown, match="may have taken effect or not"):
            await tape.append(b"two")
        s3.next.clear()
        assert await tape.append(b"two") == 2

    async def test_of_many_writers_lose_nothing(self, s3: S3) -> None:
        s3.weather = Weather(
            faults=dict.fromkeys(("500 after", "cut after", "409", "late", "503"), 0.05), late_seconds=0.05
        )
        backings = [open_backing(s3.url()) for _ in range(3)]
        told: dict[bytes, int] = {}

        async def write(name: str, backing: Backing) -> None:
            for number in range(15):
                entry = f"{name}.{number}".encode()
                told[entry] = await backing.tape(SHARD).append(entry)

        await asyncio.gather(*(write(f"w{n}", backing) for n, backing in enumerate(backings)))
        found: dict[int, bytes] = {}
        while more := await backings[0].tape(SHARD).read(len(found)):
            found.update(more)
        assert sorted(found) == list(range(1, len(found) + 1))
        assert {data: number for number, data in found.items() if data} == told
        for backing in backings:
            await backing.close()


class TestRequests:
    async def test_an_append_is_one_write_and_looking_is_one_read(self, s3: S3, backing: Backing) -> None:
        tape = backing.tape(SHARD)
        await tape.append(b"one")
        s3.requests.clear()
        for _ in range(5):
            await tape.append(b"more")
        assert s3.requests == {"PUT": 5}
        assert len(await tape.read(0)) == 6
        assert s3.requests == {"PUT": 5}
        assert await tape.read(6) == []
        assert s3.requests == {"PUT": 5, "GET": 1}

    async def test_who_is_far_behind_lists_and_fetches_at_once(self, s3: S3, backing: Backing) -> None:
        early = open_backing(s3.url())
        assert await early.tape(SHARD).read(0) == []
        for number in range(100):
            await backing.tape(SHARD).append(b"%d" % number)
        s3.requests.clear()
        assert len(await early.tape(SHARD).read(0)) == 100
        assert s3.requests["LIST"] <= 2
        late = open_backing(s3.url())
        assert len(await late.tape(SHARD).read(0)) == 100
        await early.close()
        await late.close()


class Measured(MemoryObjects):
    """Objects that tell how many bytes of entries were fetched."""

    fetched = 0

    async def get(self, key: str) -> bytes | None:
        found = await super().get(key)
        self.fetched += len(found or b"") if "/log/" in key else 0
        return found


class TestMuch:
    """More than is kept at hand, or than should be fetched at once."""

    @pytest.fixture
    def objects(self) -> Measured:
        return Measured()

    @pytest.fixture
    def tape(self, objects: Measured) -> ObjectTape:
        return ObjectTape(objects, SHARD)

    @pytest.mark.parametrize("behind", [2, 3, 30])
    @pytest.mark.parametrize("most", [1, 3, 1000])
    async def test_that_followed_at_once_is_not_taken_for_nothing(
        self, objects: Measured, tape: ObjectTape, behind: int, most: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("penstock.stores.log.backings.recent.REMEMBERED_BYTES", 100)
        other = ObjectTape(objects, SHARD)
        assert await other.read(0) == []
        told = [(await tape.append(bytes([n]) * 90), bytes([n]) * 90) for n in range(behind)]
        found: list[tuple[int, bytes]] = []
        while more := await other.read(len(found), most):
            found += more
        assert found == told

    async def test_is_remembered_from_one_fetch_to_its_end_and_fetched_once(
        self, objects: Measured, tape: ObjectTape, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in ("recent", "numbered"):
            monkeypatch.setattr(f"penstock.stores.log.backings.{module}.REMEMBERED_BYTES", 5_000)
        other = ObjectTape(objects, SHARD)
        assert await other.read(0) == []
        for _ in range(40):
            await tape.append(bytes(500))
        objects.fetched, number = 0, 0
        while more := await other.read(number):
            number = more[-1][0]
        assert number == 40
        assert objects.fetched < 1.2 * 40 * 500

    async def test_is_fetched_part_by_part(
        self, objects: Measured, tape: ObjectTape, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(numbered, "FETCH_BYTES", 10_000)
        for n in range(60):
            await tape.append(bytes([n]) * (20_000 if n == 30 else 900))
        late = ObjectTape(objects, SHARD)
        await late.last()
        number = 0
        while True:
            objects.fetched = 0
            if not (more := await late.read(number)):
                break
            assert objects.fetched <= 10_000 or len(more) == 1
            assert [number for number, _ in more] == list(range(number + 1, number + 1 + len(more)))
            number = more[-1][0]
        assert number == 60

    async def test_is_followed_part_by_part(
        self, objects: Measured, tape: ObjectTape, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(numbered, "REMEMBERED_BYTES", 10_000)
        other = ObjectTape(objects, SHARD)
        assert await other.read(0) == []
        for _ in range(60):
            await tape.append(bytes(900))
        objects.fetched = 0
        assert 5 < len(await other.read(0)) < 12
        assert objects.fetched <= 10_000


class TestSlowLine:
    """A second is enough for what is small; what is large has as long as it takes."""

    @pytest.fixture(autouse=True)
    def _short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(objects_module, "REQUEST_SECONDS", 1.0)
        monkeypatch.setattr(objects_module, "SLOWEST_BYTES_PER_SECOND", 200_000)
        monkeypatch.setattr(objects_module, "DEADLINE_SECONDS", 3.0)
        monkeypatch.setattr(objects_module, "_RETRIES", {"max_retries": 0})

    async def test_lets_a_large_object_through(self, s3: S3, backing: Backing) -> None:
        s3.weather.bytes_per_second = 400_000
        data = os.urandom(600_000)
        assert await backing.objects.create("large", data)
        assert s3.requests["PUT"] == 1
        assert await backing.objects.get("large") == data

    async def test_that_is_silent_keeps_nobody_waiting_for_small_ones(self, s3: S3, backing: Backing) -> None:
        await backing.objects.create("small", b"")
        s3.weather.slow_seconds = 60
        s3.next.append("slow")
        async with asyncio.timeout(6):  # the first attempt, what is there, and another
            assert await backing.objects.create("other", b"")
        s3.weather.get = (60, 60)
        async with asyncio.timeout(6):
            with pytest.raises(StoreUnavailable):
                await backing.objects.get("small")

    @pytest.mark.parametrize(("size", "seconds"), [(0, 1), (200_000, 1), (200_001, 2), (8 << 20, 64)])
    def test_is_given_time_by_what_is_written(self, size: int, seconds: float) -> None:
        assert objects_module._write_seconds(size) == seconds


class TestTurns:
    @pytest.mark.parametrize("writers", [2, 4])
    def test_serve_all_writers_alike_and_cost_no_throughput(self, writers: int) -> None:
        alone, _ = run(appended(1))
        counts, objects = run(appended(writers))
        assert fairness(counts) >= 0.95
        assert sum(counts) >= 0.8 * sum(alone)
        assert objects.lost <= 0.3 * objects.puts

    async def test_a_number_that_nobody_comes_for_is_filled(self) -> None:
        objects = MemoryObjects()
        tape = ObjectTape(objects, SHARD)
        await objects.create(f"{SHARD}/log/{3:020d}", pack(b"stranger", 1, b"three"))
        assert await tape.append(b"four") == 4
        assert await tape.read(0) == [(1, b""), (2, b""), (3, b"three"), (4, b"four")]
        assert await objects.get(f"{SHARD}/log/{1:020d}") == filler(1)


class TestWatermark:
    async def test_a_writer_that_slept_does_not_write_under_it(self) -> None:
        objects, clock = MemoryObjects(), [0.0]
        sleeper, other = (ObjectTape(objects, SHARD, clocks=lambda: (clock[0],)) for _ in range(2))
        await sleeper.append(b"one")
        for n in range(2, 6):
            assert await other.append(b"%d" % n) == n
        await objects.replace(f"{SHARD}/manifest", b'{"watermark": 5}', None)
        await other.truncate(5)
        clock[0] += timedelta(days=2).total_seconds()
        with pytest.raises(Truncated) as raised:
            await sleeper.read(1)
        assert raised.value.first == 6
        assert await sleeper.append(b"six") == 6

    async def test_a_write_that_took_longer_than_entries_are_kept_is_not_believed(self) -> None:
        clock = [0.0]

        class Sleepy(MemoryObjects):
            async def create(self, key: str, data: bytes) -> bool:
                if data.endswith(b"sleepy"):
                    for n in range(2, 6):
                        await other.append(b"%d" % n)
                    await self.replace(f"{SHARD}/manifest", b'{"watermark": 5}', None)
                    await other.truncate(5)
                    clock[0] += timedelta(days=2).total_seconds()
                return await super().create(key, data)

        objects = Sleepy()
        tape, other = (ObjectTape(objects, SHARD, clocks=lambda: (clock[0],)) for _ in range(2))
        await tape.append(b"one")
        with pytest.raises(OutcomeUnknown, match="all up to 5 were deleted"):
            await tape.append(b"sleepy")
        assert [found.key[-1] for found in await objects.list(SHARD + "/log")] == ["5"]  # the newest stays
        assert await tape.append(b"six") == 6

    async def test_must_be_published_before_anything_is_deleted(self) -> None:
        objects = MemoryObjects()
        tape = ObjectTape(objects, SHARD)
        await tape.append(b"one")
        with pytest.raises(InvalidInput, match="publish that first"):
            await tape.truncate(1)
        assert await tape.read(0) == [(1, b"one")]


class TestDamage:
    async def test_of_an_object_is_refused(self, s3: S3, backing: Backing) -> None:
        tape = backing.tape(SHARD)
        await tape.append(b"one")
        whole = pack(b"stranger", 1, b"two")
        for damaged, said in (
            (b"", "fewer than any entry"),
            (whole[:-1], "cut short or changed"),
            (b"hello, I am no entry of yours", "as no entry does"),
        ):
            s3.objects["jobs/s00/log/" + f"{2:020d}"] = (damaged, s3.objects["jobs/PROBED"][1])
            with pytest.raises(LogCorrupt, match=said):
                await tape.read(1)
        s3.objects["jobs/s00/log/" + f"{2:020d}"] = (b"PSE\x03" + whole[4:], s3.objects["jobs/PROBED"][1])
        with pytest.raises(LogTooNew, match="upgrade"):
            await tape.read(1)

    async def test_a_missing_object_is_a_gap(self, s3: S3, backing: Backing) -> None:
        for n in range(3):
            await backing.tape(SHARD).append(b"%d" % n)
        late = open_backing(s3.url())
        assert await late.tape(SHARD).last() == 3
        del s3.objects["jobs/s00/log/" + f"{2:020d}"]
        with pytest.raises(LogGap, match="no entry 2, though it has 3"):
            await late.tape(SHARD).read(0)
        await late.close()

    async def test_what_is_not_a_number_is_named(self, s3: S3, backing: Backing) -> None:
        await backing.objects.create("s00/log/readme", b"hello")
        with pytest.raises(LogCorrupt, match="not a number"):
            await backing.tape(SHARD).append(b"one")


class TestProbe:
    @EACH
    async def test_refuses_a_store_that_ignores_conditions(self, running: Running) -> None:
        with running(Weather(keeps_conditions=False)) as server:
            backing = open_backing(server.url())
            with pytest.raises(StoreNotConditional, match="16 writers of one key 16 were told that they won"):
                await backing.tape(SHARD).append(b"one")
            assert not [key for key in server.objects if "probe" in key or "log" in key]
            await backing.close()

    async def test_is_done_once_in_a_stores_life(self, new_s3: S3) -> None:
        for expected in (False, True):
            new_s3.requests.clear()
            backing = open_backing(new_s3.url())
            await backing.ready()
            assert (new_s3.requests == {"GET": 1}) is expected
            await backing.close()

    async def test_says_when_clocks_differ(self, new_s3: S3, caplog: pytest.LogCaptureFixture) -> None:
        new_s3.ahead = timedelta(minutes=5)
        backing = open_backing(new_s3.url())
        with caplog.at_level(logging.WARNING):
            await backing.ready()
        assert "s off this machine's" in caplog.text
        found = await backing.objects.head(REMEMBERED)
        assert found is not None
        assert abs((await backing.objects.now() - found.modified).total_seconds()) < 30
        await backing.close()


class TestBadWeather:
    async def test_a_bucket_that_is_gone_is_told(self, s3: S3, backing: Backing) -> None:
        tape = backing.tape(SHARD)
        await tape.append(b"one")
        s3.buckets.clear()
        for attempt in (tape.append(b"two"), tape.read(1), backing.objects.list("")):
            with pytest.raises(StorageGone, match="check its name"):
                await attempt

    @pytest.mark.parametrize("code", ["ExpiredToken", "AccessDenied"])
    async def test_lost_permission_is_told_without_the_credentials(
        self, s3: S3, backing: Backing, code: str
    ) -> None:
        tape = backing.tape(SHARD)
        await tape.append(b"one")
        s3.refuses = code
        for attempt in (tape.append(b"two"), tape.read(1), backing.objects.list("")):
            with pytest.raises(StorageRefused, match=r"<Code>.*check permissions and credentials") as raised:
                await attempt
            assert "secret" not in str(raised.value)
            assert raised.value.__cause__ is None
        s3.refuses = None
        assert await tape.append(b"two") == 2

    @pytest.mark.parametrize("code", ["SignatureDoesNotMatch", "InternalError"])
    async def test_what_a_careless_service_repeats_is_told_by_nobody(
        self, backing: Backing, s3: S3, code: str
    ) -> None:
        s3.refuses, s3.repeats = code, True
        with pytest.raises(StoreUnavailable, match="Code") as raised:
            await backing.objects.list("")
        said = str(raised.value)
        assert "secret" not in said
        assert not re.search("[0-9a-f]{32}", said), "that is a signature"

    @EACH
    async def test_nobody_listening_is_told(self, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(objects_module, "_RETRIES", {"max_retries": 0})
        with running() as server:
            url = server.url()
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "secret")
        backing = open_backing(url)
        with pytest.raises(StoreUnavailable, match="://queue/jobs could not be reached") as raised:
            await backing.tape(SHARD).read(0)
        assert "secret" not in str(raised.value)
        await backing.close()

    async def test_does_not_hang_in_a_forked_child(self, backing: Backing) -> None:
        await backing.tape(SHARD).append(b"one")
        child = os.fork()
        if child == 0:
            code = 1
            with suppress(BaseException):
                try:
                    backing.objects.get("x").send(None)
                except OpenedElsewhere:
                    code = 0
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222 it ends at once


class TestUrl:
    @pytest.mark.parametrize(
        ("url", "said"),
        [
            ("s3:///prefix", "name a bucket"),
            ("s3://bucket?endpont=x", "endpoint, region"),
            ("gs://bucket?region=x", "no options but endpoint"),
            ("gs://user:secret@bucket", "carry no credentials; let GOOGLE_APPLICATION_CREDENTIALS"),
            ("file://host/path", "file:///absolute"),
            ("s3://bucket/a//b", "have no empty part, . or .. in the prefix of its bucket; got 'a//b'"),
            ("gs://bucket/../b", "have no empty part"),
            ("file:///jobs#1", "have no #; write %23"),
            ("s3://key:sec#ret@bucket/prefix", "have no #; write %23; got '…#…'"),
        ],
    )
    def test_is_refused_if_it_makes_no_sense(self, url: str, said: str) -> None:
        with pytest.raises(InvalidInput, match=said):
            open_backing(url)

    def test_of_an_unknown_kind_lists_the_known(self) -> None:
        with pytest.raises(UnknownStore, match=r"s3://bucket/prefix"):
            open_backing("ftp://somewhere")

    @pytest.mark.parametrize(
        ("url", "variable", "value", "said"),
        [
            ("gs://bucket", "GOOGLE_APPLICATION_CREDENTIALS", "/no/such/file.json", "Unable to open"),
            ("gs://bucket", "GOOGLE_SERVICE_ACCOUNT_KEY", '{"private_key": "secret"}', "Unable to decode"),
            ("az://bucket", "AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0", "Account must be specified"),
            ("az://bucket?account=a", "AZURE_STORAGE_ACCOUNT_KEY", "no secret!", "Invalid Access Key"),
        ],
    )
    def test_with_credentials_that_are_none_is_refused(
        self, url: str, variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("GOOGLE_BEARER_TOKEN", raising=False)
        monkeypatch.setenv(variable, value)
        with pytest.raises(StorageRefused, match=f"{said}.*check permissions and credentials") as raised:
            open_backing(url)
        assert "secret" not in str(raised.value)
        assert "\n" not in str(raised.value)

    @pytest.mark.parametrize(
        "url",
        [
            "s3://AKIAX:sec/ret+gh@bucket/prefix",
            "s3://AKIAX:sec?ret@bucket/prefix",
            "s3://AKIAX:sec[ret@bucket/prefix",
            "s3://AKIAX:sec\u2100ret@bucket/prefix",
            "s3://AKI/AX:secret@bucket/prefix",
            "s3://AKIAX?sec=ret@bucket",
            "az://acc:sec/with/slash==@container/prefix",
            "gs://sec:ret/x@bucket",
            "s3://AKIAX:secret",
            "s3://bucket?endpoint=http://user:secret@127.0.0.1",
            "s3://bucket?endpoint=http%3A%2F%2Fuser%3Asecret%40127.0.0.1",
            "s3://AKIAX:ab?window=secret@bucket",
        ],
    )
    def test_is_refused_if_half_of_its_credentials_would_be_taken_for_a_name(self, url: str) -> None:
        with pytest.raises(
            InvalidInput, match="leave credentials to the environment, or write %2F"
        ) as raised:
            open_backing(url)
        said = f"{raised.value} {raised.value.facts}"
        assert raised.value.__suppress_context__ or raised.value.__context__ is None
        assert not [part for part in ("sec", "AK", "ret@", "acc:", "user") if part in said]

    def test_of_a_folder_on_a_host_is_refused_without_showing_it(self) -> None:
        with pytest.raises(InvalidInput, match="file:///absolute") as raised:
            open_backing("file://user:secret@host/path")
        assert "secret" not in str(raised.value)

    @pytest.mark.parametrize(
        ("url", "name"),
        [
            ("s3://AKIAX:sec%2Fret%3Fx%5B@bucket/prefix?region=x", "s3://bucket/prefix"),
            ("s3://AKIAX:s:ec@ret@bucket/prefix?region=x", "s3://bucket/prefix"),
            ("s3://bucket/team@example.com/queue?region=x", "s3://bucket/team@example.com/queue"),
        ],
    )
    def test_may_have_credentials_that_are_encoded_and_a_prefix_with_an_at(self, url: str, name: str) -> None:
        assert open_backing(url).name == name

    def test_shows_no_credentials(self) -> None:
        backing = open_backing("s3://key:secret@bucket/prefix?region=us-east-1")
        assert backing.name == "s3://bucket/prefix"


class TestKilled:
    async def test_processes_lose_nothing_that_was_confirmed(self, s3: S3) -> None:
        told = await confirmed_until_killed(s3.url(), kills=5, entries=30)
        backing = open_backing(s3.url())
        await check_nothing_is_lost(backing.tape(SHARD), told)
        await backing.close()
