"""A lake in a bucket, on services that speak as S3, Google's and Azure's do: one commits, nothing half sent counts, and any machine reads it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from threading import Barrier
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from penstock.core.errors import InvalidInput, PenstockError
from penstock.lake.errors import LakeEdited, LakeMoved, LakeUnwritten
from penstock.lake.manifest import (
    NAME,
    WHOLE,
    Lake,
    Manifest,
    here,
    lacking,
    new_manifest,
    tables,
    with_parts,
)
from penstock.lake.objects import BucketUnfit, ObjectStorage
from penstock.stores.log.errors import StorageGone, StorageRefused
from support.buckets import lake_on_azurite
from support.emulated_s3 import ACCESS, new_bucket, s3_service
from support.gcs import GCS, access_to, running_gcs
from support.s3 import FAULTS
from support.spark import WITHOUT

obstore = pytest.importorskip("obstore")

from obstore.exceptions import GenericError  # noqa: E402

SOURCE = {"feed": "f", "system": "1"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_service(tmp_path_factory.mktemp("s3")) as address:
        yield address


@pytest.fixture(scope="module")
def gcs() -> Iterator[GCS]:
    with running_gcs() as server:
        yield server


OTHERS = [pytest.param("gcs", marks=pytest.mark.long), pytest.param("azure", marks=pytest.mark.long)]


@pytest.fixture(params=["s3", "gcs", "azure"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty one: on what speaks S3, on what speaks as Google's does, and on Azurite."""
    match request.param:
        case "s3":
            service = request.getfixturevalue("service")
            bucket, access = new_bucket(service), {**ACCESS, "AWS_ENDPOINT": service}
        case "gcs":
            server = request.getfixturevalue("gcs")
            bucket, access = f"gs://queue/{uuid4()}", access_to(server)
        case _:
            container, access = lake_on_azurite(request.getfixturevalue("azurite"))
            bucket = f"{container}/{uuid4()}"
    for name, value in {**access, "XDG_CACHE_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    return f"{bucket}/some/lake"


@pytest.fixture
def lake(place: str) -> Lake:
    return Lake(place)


@pytest.fixture
def begun(lake: Lake) -> Manifest:
    return lake.commit(new_manifest(SOURCE, {"xid": 100, "floor": 5}))


def put(lake: Lake, folder: str) -> str:
    """Write a folder, as Spark would, and have it sent."""
    path = Path(lake.storage.draft(folder))
    path.mkdir(parents=True)
    (path / "part-0.zstd.parquet").write_bytes(folder.encode())
    (path / ".part-0.zstd.parquet.crc").write_bytes(b"crc")
    (path / "_SUCCESS").touch()
    lake.storage.sync(folder)
    return folder


class TestCommit:
    def test_what_was_committed_is_what_everybody_finds(
        self, lake: Lake, begun: Manifest, place: str
    ) -> None:
        assert lake.commit(replace(begun, doubts=("a day",))) == Lake(f"{place}/").manifest()
        assert lake.place == place

    def test_there_is_no_lake_before_the_first(self, lake: Lake) -> None:
        assert lake.find() is None

    def test_of_many_at_once_exactly_one_commits(self, place: str, begun: Manifest) -> None:
        for at in range(begun.batch, begun.batch + 5):
            together, found = Barrier(8), Lake(place).manifest()

            def commit(number: int, together: Barrier = together, found: Manifest = found) -> bool:
                mine = Lake(place)
                mine.manifest()
                together.wait()
                try:
                    mine.commit(replace(found, doubts=(str(number),)))
                except LakeMoved:
                    return False
                return True

            with ThreadPoolExecutor(8) as threads:
                won = list(threads.map(commit, range(8)))
            assert won.count(True) == 1
            assert Lake(place).manifest().doubts == (str(won.index(True)),)
            assert Lake(place).manifest().batch == at + 1

    def test_of_many_who_begin_it_exactly_one_does(self, place: str) -> None:
        together = Barrier(4)

        def begin(number: int) -> bool:
            mine = Lake(place)
            together.wait()
            try:
                mine.commit(new_manifest(SOURCE, {"xid": number}))
            except LakeMoved:
                return False
            return True

        with ThreadPoolExecutor(4) as threads:
            won = list(threads.map(begin, range(4)))
        assert won.count(True) == 1
        assert Lake(place).manifest().offset == {"xid": won.index(True)}

    @pytest.mark.parametrize("when", ["before", "after", "later"])
    def test_an_answer_that_is_lost_is_found_out(
        self, lake: Lake, begun: Manifest, monkeypatch: pytest.MonkeyPatch, when: str
    ) -> None:
        """Cut off before the service had it, after, or so that it takes effect when the next try is on its way."""
        send, late = obstore.put, list[Callable[[], Any]]()

        def cut(store: Any, path: str, file: Any, **options: Any) -> Any:
            if path != NAME:
                return send(store, path, file, **options)
            if late:
                late.pop()()
                return send(store, path, file, **options)
            if when == "after":
                send(store, path, file, **options)
            late.append(lambda: send(store, path, file, **options) if when == "later" else None)
            raise GenericError("planted: no answer")

        monkeypatch.setattr(obstore, "put", cut)
        made = lake.commit(replace(begun, doubts=("mine",)))
        assert (made.batch, made.doubts) == (begun.batch + 1, ("mine",))
        assert lake.manifest() == made

    @pytest.mark.parametrize("place", ["gcs"], indirect=True)
    @pytest.mark.parametrize("fault", FAULTS)
    def test_whatever_the_weather_each_commit_counts_once(
        self, lake: Lake, begun: Manifest, gcs: GCS, fault: str
    ) -> None:
        """The same from a server that breaks, instead of a client."""
        made = begun
        for n in (1, 2):
            gcs.next.append(fault)
            made = lake.commit(replace(made, doubts=(str(n),)))
            assert not gcs.next
            assert (made.batch, made.doubts) == (begun.batch + n, (str(n),))
            assert lake.manifest() == made

    @pytest.mark.parametrize(
        ("kept", "said"),
        [
            ((), "an object that was there was created"),
            (("create",), "another version than the one named was replaced"),
        ],
    )
    def test_a_service_that_keeps_to_no_conditions_is_refused(
        self, lake: Lake, monkeypatch: pytest.MonkeyPatch, kept: tuple[str, ...], said: str
    ) -> None:
        send = obstore.put

        def careless(store: Any, path: str, file: Any, mode: Any = None, **options: Any) -> Any:
            return send(store, path, file, **options, **({"mode": mode} if mode in kept else {}))

        monkeypatch.setattr(obstore, "put", careless)
        with pytest.raises(BucketUnfit, match=f"does not keep to conditions: {said}"):
            lake.commit(new_manifest(SOURCE, {"xid": 1}))
        assert lake.storage.read(NAME) is None

    def test_one_that_was_edited_is_refused(self, lake: Lake, begun: Manifest, place: str) -> None:
        text = lake.storage.read(NAME)
        assert text is not None
        obstore.put(obstore.store.from_url(place), NAME, text.replace(b'"f"', b'"g"'))
        with pytest.raises(LakeEdited, match="adds up to"):
            lake.commit(begun)

    def test_data_whose_manifest_is_gone_is_noticed(self, lake: Lake) -> None:
        put(lake, "bronze/events/1-a/part=2026-03-01")
        with pytest.raises(LakeEdited, match="gone, and there is data under bronze"):
            lake.find()


class TestFiles:
    def test_readers_get_the_urls_that_count(self, lake: Lake, begun: Manifest, place: str) -> None:
        kept = put(lake, "gold/failures/2-a")
        lake.commit(with_parts(begun, "failures", {WHOLE: (kept,)}))
        put(lake, "gold/failures/3-b")
        assert tables(place) == {"failures": [f"{place}/gold/failures/2-a/part-0.zstd.parquet"]}

    def test_another_machine_fetches_what_it_needs_and_that_once(
        self, lake: Lake, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        day, other = (put(lake, f"silver/jobs/2-a/part=2026-03-0{n}") for n in (1, 2))
        fetched: list[str] = []
        get = obstore.get

        def noted(store: Any, path: str) -> Any:
            fetched.append(path)
            return get(store, path)

        monkeypatch.setattr(obstore, "get", noted)
        for _ in range(2):
            there = ObjectStorage(place, tmp_path / "there")
            [path] = there.fetched([day])
            assert [file.read_bytes() for file in Path(path).glob("*.parquet")] == [day.encode()]
        assert fetched == [f"{day}/part-0.zstd.parquet"]
        # What was cut off when it was fetched last is fetched again.
        (Path(path) / "part-0.zstd.parquet").write_bytes(b"half")
        assert ObjectStorage(place, tmp_path / "there").fetched([day, other])[0] == path
        assert (Path(path) / "part-0.zstd.parquet").read_bytes() == day.encode()

    def test_what_was_cleared_up_on_this_machine_is_fetched_again(
        self, place: str, lake: Lake, tmp_path: Path
    ) -> None:
        day = put(lake, "silver/jobs/2-a/part=2026-03-01")
        there = Lake(ObjectStorage(place, tmp_path / "there"))
        [file] = here(there, [day])
        Path(file).unlink()
        assert [Path(one).read_bytes() for one in here(there, [day])] == [day.encode()]

    def test_this_machine_keeps_no_copy_for_ever_of_what_no_longer_counts(
        self, place: str, lake: Lake, begun: Manifest, tmp_path: Path
    ) -> None:
        old, new, fresh = (put(lake, f"silver/jobs/{n}-a/part=2026-03-01") for n in (2, 3, 4))
        there = Lake(ObjectStorage(place, tmp_path / "there"))
        here(there, [old, new, fresh])
        long_ago = (datetime.now(UTC) - timedelta(days=2)).timestamp()
        for one in (old, new):
            for path in (tmp_path / "there" / one, *(tmp_path / "there" / one).iterdir()):
                os.utime(path, (long_ago, long_ago))
        made = with_parts(begun, "jobs", {"2026-03-01": (old,)})
        made = lake.commit(with_parts(lake.commit(made), "jobs", {"2026-03-01": (new,)}))
        there.tidy(made)
        assert (tmp_path / "there" / old).exists(), "it was replaced just now, and may be read"
        there.tidy(replace(made, retired={}))
        assert [(tmp_path / "there" / one).exists() for one in (old, new, fresh)] == [False, True, True]
        assert here(there, [old]), "of the lake itself nothing is gone"

    def test_looks_for_folders_table_by_table_and_not_through_all_the_lake(
        self, lake: Lake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folders = [put(lake, f"silver/jobs/{n}-a/part=2026-03-01") for n in (2, 3)] + [
            put(lake, "gold/slo/2-a")
        ]
        listed, list_ = list[str](), obstore.list

        def noted(store: Any, prefix: str) -> Any:
            listed.append(prefix)
            return list_(store, prefix)

        monkeypatch.setattr(obstore, "list", noted)
        assert lake.storage.filled([*folders, "gold/slo/3-a"]) == {*folders}
        assert sorted(listed) == ["gold/slo/", "silver/jobs/"]

    def test_a_large_file_is_sent_in_parts_and_arrives_whole(
        self, lake: Lake, place: str, tmp_path: Path
    ) -> None:
        folder = "silver/jobs/2-a/part=2026-03-01"
        path = Path(lake.storage.draft(folder))
        path.mkdir(parents=True)
        large = Random(1).randbytes(12_000_000)
        (path / "part-0.parquet").write_bytes(large)
        lake.storage.sync(folder)
        [there] = ObjectStorage(place, tmp_path / "there").fetched([folder])
        assert Path(there, "part-0.parquet").read_bytes() == large

    def test_what_somebody_has_removed_is_noticed(self, lake: Lake, begun: Manifest) -> None:
        there, gone = put(lake, "gold/slo/2-a"), put(lake, "gold/flows/2-a")
        made = with_parts(with_parts(begun, "slo", {WHOLE: (there,)}), "flows", {WHOLE: (gone,)})
        made = lake.commit(made)
        lake.storage.remove(gone)
        assert lacking(lake, made) == [gone]
        with pytest.raises(LakeUnwritten, match=f"there is nothing in {gone}"):
            lake.commit(
                with_parts(lake.commit(with_parts(made, "flows", {}, [WHOLE])), "flows", {WHOLE: (gone,)})
            )

    def test_vacuum_removes_what_runs_that_died_left(self, lake: Lake, begun: Manifest) -> None:
        kept = put(lake, "silver/jobs/2-a/part=2026-03-01")
        lake.commit(with_parts(begun, "jobs", {"2026-03-01": (kept,)}))
        lost = put(lake, "silver/jobs/3-b/part=2026-03-01")
        assert lake.vacuum() == []  # a run may be at work
        assert lake.vacuum(now=datetime.now(UTC) + timedelta(days=2)) == [lost]
        assert lake.storage.filled([kept, lost]) == {kept}

    def test_what_another_has_removed_meanwhile_is_no_error(
        self, lake: Lake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folders = [put(lake, f"silver/jobs/{n}-a/part=2026-03-01") for n in range(3)]
        delete = obstore.delete

        def after_another(store: Any, paths: Any) -> None:
            with monkeypatch.context() as other:
                other.setattr(obstore, "delete", delete)
                lake.storage.remove(folders[1])
            delete(store, paths)

        monkeypatch.setattr(obstore, "delete", after_another)
        lake.storage.remove("silver/jobs")
        assert lake.storage.filled(folders) == set()

    def test_a_forked_process_opens_it_anew(self, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(RuntimeError, match="forked; open it anew"):
            lake.find()

    def test_other_places_are_refused(self) -> None:
        with pytest.raises(InvalidInput, match="be a path, or a bucket by one of s3://"):
            Lake("ftp://host/lake")


class TestRefusals:
    """What is said when the storage does not let us, which no credential is part of."""

    def refused(self, place: str) -> dict[str, PenstockError]:
        """What everything that is asked of it is answered."""
        storage = ObjectStorage(place)
        asked: dict[str, Callable[[], Any]] = {
            "read": lambda: storage.read(NAME),
            "swap": lambda: storage.swap(NAME, lambda _: b"new"),
            "folders": lambda: storage.folders("silver"),
            "filled": lambda: storage.filled(["silver/jobs/2-a"]),
            "fetched": lambda: storage.fetched(["silver/jobs/2-a"]),
            "remove": lambda: storage.remove("silver"),
        }
        refusals: dict[str, PenstockError] = {}
        for name, ask in asked.items():
            with pytest.raises(PenstockError) as raised:
                ask()
            assert "the lake in " in str(raised.value)
            assert "secret" not in str(raised.value)
            assert "\n" not in str(raised.value)
            assert raised.value.__cause__ is None
            refusals[name] = raised.value
        return refusals

    @pytest.mark.parametrize("place", ["gcs", "azure"], indirect=True)
    def test_wrong_credentials_are_told(
        self, place: str, begun: Manifest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as wrong:
            wrong.setenv("GOOGLE_BEARER_TOKEN", "secret-of-yesterday")
            wrong.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
            refusals = self.refused(place)
            with pytest.raises(StorageRefused):
                ObjectStorage(place).version(NAME)
        assert {type(error) for error in refusals.values()} == {StorageRefused}, refusals
        assert Lake(place).manifest() == begun

    def test_a_bucket_that_is_not_there_is_told_and_is_no_empty_lake(self, place: str) -> None:
        refusals = self.refused(re.sub("://[^/@]+", "://no-such-bucket", place))
        assert {type(error) for error in refusals.values()} == {StorageGone}, refusals

    def test_credentials_that_are_none_are_told_when_it_is_opened(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("GOOGLE_BEARER_TOKEN", raising=False)
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", '{"private_key": "secret"}')
        with pytest.raises(StorageRefused, match="Unable to decode service account") as raised:
            Lake("gs://queue/lake")
        assert "secret" not in str(raised.value)


@pytest.mark.spark
class TestPipeline:
    """What Spark makes goes by way of this machine: its Hadoop, as it comes from PyPI, knows no buckets."""

    @pytest.fixture
    def history(self, spark: Any, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        pytest.importorskip("pyspark", reason=WITHOUT)
        from lake.test_pipeline import History, some
        from penstock.lake import pipeline

        class InBucket(History):
            def tables(self) -> dict[str, list[str]]:
                """As a machine sees them that had no part in it."""
                from pyarrow import parquet

                manifest, found = self.manifest, {}
                there = ObjectStorage(place, tmp_path / f"there-{manifest.batch}")
                for table in manifest.tables:
                    folders = there.fetched(manifest.folders(table))
                    files = [file for folder in folders for file in Path(folder).glob("*.parquet")]
                    rows = [row for file in files for row in parquet.ParquetFile(file).read().to_pylist()]
                    found[table] = sorted(map(repr, rows))
                return found

        monkeypatch.setattr(pipeline, "recipes", some)
        history = InBucket(spark, tmp_path)
        history.lake = Lake(place)
        return history

    @pytest.mark.parametrize("place", ["s3", *OTHERS], indirect=True)
    def test_runs_that_die_are_followed_by_one_that_makes_it_good(
        self, history: Any, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from lake.test_pipeline import Killed, dying_at

        history.happen(1)
        assert history.run().mismatches == []
        for number, deadly in enumerate(("bronze committed", "tables about to be committed")):
            history.happen(1 + number, number=1)
            with pytest.raises(Killed):
                history.run(on_step=dying_at(deadly))
        history.happen(2)
        send, sent = obstore.put, list[str]()

        def dies(store: Any, path: str, file: Any, **options: Any) -> Any:
            """In the middle of what a run sends."""
            sent.append(path)
            if path.startswith("silver"):
                raise Killed
            return send(store, path, file, **options)

        with monkeypatch.context() as dying:
            dying.setattr(obstore, "put", dies)
            with pytest.raises(Killed):
                history.run()
        # On another machine, which has nothing of it yet.
        history.lake = Lake(ObjectStorage(place, tmp_path / "elsewhere"))
        history.run()
        survived = history.tables()
        for table in ("jobs", "attempts"):
            assert len(survived[table]) == history.in_store(f"SELECT count(*) FROM penstock.{table[:-1]}")[0]
        history.run(rebuild=True)
        assert history.tables() == survived
        assert history.lake.vacuum(now=datetime.now(UTC) + timedelta(days=2))
        assert history.tables() == survived

    def test_of_two_drivers_one_commits(self, history: Any, place: str, tmp_path: Path) -> None:
        from lake.test_pipeline import History, _Anyone

        history.happen(1)
        other: Any = History.__new__(type(history))
        other.__dict__ = {**history.__dict__, "lake": Lake(ObjectStorage(place, tmp_path / "other"))}

        def overtaken(step: str) -> None:
            if step == "bronze written":
                other.run(office=_Anyone())

        with pytest.raises(LakeMoved, match="nothing of this run counts"):
            history.run(on_step=overtaken, office=_Anyone())
        once = history.tables()
        assert len(once["jobs"]) == 3
        history.run(rebuild=True)
        assert history.tables() == once
