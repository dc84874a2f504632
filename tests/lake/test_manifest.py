"""The lake's manifest: all of a run or nothing of it, and no lake that must not be touched is touched."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.lake.errors import (
    LakeBroken,
    LakeEdited,
    LakeError,
    LakeMissing,
    LakeMoved,
    LakeNewer,
    LakeOfAnother,
    LakeUnwritten,
    StoreAhead,
    StoreBehind,
)
from penstock.lake.manifest import (
    FORMAT,
    NAME,
    WHOLE,
    Lake,
    Manifest,
    decode,
    encode,
    here,
    lacking,
    new_manifest,
    tables,
    with_parts,
)

SOURCE = {"feed": "f", "system": "1"}
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def begun(lake: Lake) -> Manifest:
    return lake.commit(new_manifest(SOURCE, {"xid": 100, "floor": 5}), now=NOON)


@pytest.fixture
def put(lake: Lake) -> Callable[[str], str]:
    """Write a folder, as Spark would."""

    def write(folder: str) -> str:
        path = Path(lake.storage.path(folder))
        path.mkdir(parents=True, exist_ok=True)
        (path / "part-0.zstd.parquet").write_bytes(b"rows")
        (path / ".part-0.zstd.parquet.crc").write_bytes(b"crc")
        (path / "_SUCCESS").touch()
        return folder

    return write


def text_of(lake: Lake) -> str:
    return Path(lake.storage.path(NAME)).read_text()


def edited(lake: Lake, change: Callable[[dict[str, Any]], Any]) -> str:
    """Edit the manifest by hand; returns what then stands there."""
    found = json.loads(text_of(lake))
    change(found)
    Path(lake.storage.path(NAME)).write_text(json.dumps(found))
    return text_of(lake)


class TestCommit:
    def test_what_was_committed_is_what_is_found(
        self, lake: Lake, begun: Manifest, put: Callable[[str], str]
    ) -> None:
        made = with_parts(begun, "hourly", {"2026-03-01": (put("gold/hourly/1-a/part=2026-03-01"),)})
        made = replace(made, data_as_of=NOON, counts={"2026-03-01": {"job": 3}}, offset={"xid": 200})
        committed = lake.commit(made, now=NOON)
        assert lake.manifest() == committed
        assert committed.batch == begun.batch + 1
        assert committed.committed_at == NOON
        assert committed.tables == made.tables

    def test_there_is_no_lake_before_the_first(self, lake: Lake) -> None:
        assert lake.find() is None
        with pytest.raises(LakeMissing, match="penstock lake run"):
            lake.manifest()

    def test_who_comes_second_is_refused_and_changes_nothing(self, lake: Lake, begun: Manifest) -> None:
        mine = lake.commit(replace(begun, doubts=("mine",)))
        with pytest.raises(LakeMoved, match="was at batch 1 and is at 2"):
            lake.commit(replace(begun, doubts=("theirs",)))
        assert lake.manifest() == mine

    def test_two_lakes_begun_at_once_are_one(self, lake: Lake, begun: Manifest) -> None:
        with pytest.raises(LakeMoved):
            lake.commit(new_manifest(SOURCE, {"xid": 0}))
        assert lake.manifest() == begun

    def test_a_lake_that_took_the_place_of_another_is_not_taken_for_it(
        self, lake: Lake, begun: Manifest
    ) -> None:
        Path(lake.storage.path(NAME)).unlink()
        other = lake.commit(new_manifest(SOURCE, {"xid": 0}))
        assert other.batch == begun.batch
        with pytest.raises(LakeMoved, match=f"was {begun.lake} and is {other.lake}"):
            lake.commit(begun)
        assert lake.manifest() == other

    def test_what_is_not_there_is_not_made_to_count(
        self, lake: Lake, begun: Manifest, put: Callable[[str], str]
    ) -> None:
        """A run wrote it, and somebody has removed it since; or it was written to another machine's disk."""
        there, gone = put("gold/slo/2-a"), put("gold/flows/2-a")
        assert lake.vacuum(timedelta(), now=datetime.now(UTC) + timedelta(seconds=1)) == [gone, there]
        made = with_parts(with_parts(begun, "slo", {WHOLE: (there,)}), "flows", {WHOLE: (gone,)})
        put(there)
        with pytest.raises(
            LakeUnwritten, match="there is nothing in gold/flows/2-a: somebody has removed it"
        ):
            lake.commit(made)
        assert lake.manifest() == begun
        put(gone)
        assert lake.commit(made).batch == begun.batch + 1

    def test_of_many_at_once_exactly_one_commits(self, lake: Lake, begun: Manifest) -> None:
        together = Barrier(8)

        def commit(number: int) -> bool:
            together.wait()
            try:
                lake.commit(replace(begun, doubts=(str(number),)))
            except LakeMoved:
                return False
            return True

        with ThreadPoolExecutor(8) as threads:
            won = list(threads.map(commit, range(8)))
        assert won.count(True) == 1
        assert lake.manifest().doubts == (str(won.index(True)),)
        assert lake.manifest().batch == begun.batch + 1

    def test_who_dies_before_the_file_is_replaced_has_changed_nothing(
        self, lake: Lake, begun: Manifest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def die(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as dying:
            dying.setattr(Path, "replace", die)
            with pytest.raises(KeyboardInterrupt):
                lake.commit(begun)
        assert lake.manifest() == begun
        assert lake.commit(begun).batch == begun.batch + 1

    def test_who_reads_meanwhile_never_reads_a_part(self, lake: Lake, begun: Manifest) -> None:
        wide = replace(begun, counts={f"day-{n}": {"job": n} for n in range(2_000)})
        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(self._commit_often, lake, wide)
            seen = {lake.manifest().batch}
            while not writing.done():
                seen.add(lake.manifest().batch)
            writing.result()
        assert lake.manifest().batch == begun.batch + 30
        assert len(seen) > 1

    def _commit_often(self, lake: Lake, manifest: Manifest) -> None:
        for _ in range(30):
            manifest = lake.commit(manifest)


def test_what_is_committed_while_vacuum_looks_is_not_taken_away(
    lake: Lake, begun: Manifest, put: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = put("gold/slo/2-a")

    def found() -> Iterator[tuple[str, datetime]]:
        yield folder, NOON
        lake.commit(with_parts(begun, "slo", {WHOLE: (folder,)}))

    monkeypatch.setattr(lake, "_parts", found)
    assert lake.vacuum(timedelta()) == []
    assert lacking(lake, lake.manifest()) == []


class TestRefusals:
    def test_a_lake_of_a_newer_version(self, lake: Lake, begun: Manifest) -> None:
        def newer(found: dict[str, Any]) -> None:
            # As a version would that adds up in another way, and has fields of its own.
            found["checksum"] = "blake3:00"
            found["manifest"] |= {"format": FORMAT + 1, "written_by": "9.0", "shards": [1]}

        text = edited(lake, newer)
        for touch in (lake.manifest, lambda: lake.commit(begun), lake.vacuum):
            with pytest.raises(LakeNewer, match=r"format 2, written by Penstock 9\.0.*upgrade"):
                touch()
        assert text_of(lake) == text

    @pytest.mark.parametrize(
        "change",
        [
            lambda found: found["manifest"].update(batch=7),
            lambda found: found["manifest"]["offset"].update(xid=1),
            lambda found: found.update(checksum="sha256:0"),
            lambda found: found.pop("checksum"),
            lambda found: found.clear(),
        ],
    )
    def test_a_manifest_edited_by_hand(
        self, lake: Lake, begun: Manifest, change: Callable[[dict[str, Any]], Any]
    ) -> None:
        text = edited(lake, change)
        for touch in (lake.manifest, lambda: lake.commit(begun), lake.vacuum):
            with pytest.raises(LakeEdited, match="put the original back"):
                touch()
        assert text_of(lake) == text

    @pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
    def test_a_file_that_is_no_manifest(self, text: bytes) -> None:
        with pytest.raises(LakeEdited, match="no manifest"):
            decode(text, "here")

    @pytest.mark.parametrize("cut", range(2, 400, 37))
    def test_a_manifest_that_was_cut_off(self, lake: Lake, begun: Manifest, cut: int) -> None:
        with pytest.raises(LakeEdited):
            decode(encode(begun)[:-cut], "here")

    def test_one_that_adds_up_and_is_none(self) -> None:
        odd = encode(replace(new_manifest({}, {}), batch="many"))
        with pytest.raises(LakeEdited, match="adds up, but"):
            decode(odd, "here")

    def test_data_whose_manifest_is_gone(
        self, lake: Lake, begun: Manifest, put: Callable[[str], str]
    ) -> None:
        put("bronze/events/1-a/part=2026-03-01")
        Path(lake.storage.path(NAME)).unlink()
        with pytest.raises(LakeEdited, match="gone, and there is data under bronze"):
            lake.find()

    def test_a_store_of_another_database(self, lake: Lake, begun: Manifest) -> None:
        with pytest.raises(LakeOfAnother, match=r"feed f system 1.*feed f system 2") as refused:
            lake.check_source(begun, {**SOURCE, "system": "2", "xid": 500, "floor": 5})
        assert refused.value.facts["store"] == {"feed": "f", "system": "2"}

    def test_a_store_that_was_restored_from_a_backup(self, lake: Lake, begun: Manifest) -> None:
        with pytest.raises(StoreBehind, match=r"up to transaction 100.*only come to 99.*backup"):
            lake.check_source(begun, {**SOURCE, "xid": 99, "floor": 5})

    def test_a_store_that_has_let_history_go_unread(self, lake: Lake, begun: Manifest) -> None:
        with pytest.raises(StoreAhead, match="only from 101 on"):
            lake.check_source(begun, {**SOURCE, "xid": 500, "floor": 101})

    @pytest.mark.parametrize(("xid", "floor"), [(100, 5), (500, 100), (500, 4), (90, 100)])
    def test_a_store_that_goes_on_from_there_is_not(
        self, lake: Lake, begun: Manifest, xid: int, floor: int
    ) -> None:
        lake.check_source(begun, {**SOURCE, "xid": xid, "floor": floor})

    def test_a_new_lake_takes_what_is_still_there(self, lake: Lake) -> None:
        lake.check_source(new_manifest(SOURCE, {"xid": 0, "floor": 70}), {**SOURCE, "xid": 100, "floor": 70})

    def test_each_is_known_by_its_code(self) -> None:
        for each in (LakeMissing, LakeNewer, LakeEdited, LakeOfAnother, StoreBehind, StoreAhead):
            assert issubclass(each, LakeError)
            assert each.code.startswith("lake_")
            assert each.__doc__


class TestVacuum:
    LATER = timedelta(days=2)

    def test_removes_what_runs_that_died_left(
        self, lake: Lake, begun: Manifest, put: Callable[[str], str]
    ) -> None:
        kept = put("silver/jobs/2-a/part=2026-03-01")
        lake.commit(with_parts(begun, "jobs", {"2026-03-01": (kept,)}))
        lost = [put("silver/jobs/3-b/part=2026-03-01"), put("gold/failures/3-b")]
        assert lake.vacuum() == []  # a run may be at work
        assert sorted(lake.vacuum(now=datetime.now(UTC) + self.LATER)) == sorted(lost)
        assert tables(lake.place)["jobs"]
        assert not any(Path(lake.storage.path(folder)).exists() for folder in lost)

    def test_what_was_replaced_stays_for_those_who_read_it(
        self, lake: Lake, begun: Manifest, put: Callable[[str], str]
    ) -> None:
        old, other = put("silver/jobs/2-a/part=2026-03-01"), put("silver/jobs/2-a/part=2026-03-02")
        first = lake.commit(with_parts(begun, "jobs", {"2026-03-01": (old,), "2026-03-02": (other,)}))
        new = put("silver/jobs/3-b/part=2026-03-01")
        # Written long ago, replaced just now.
        at = datetime.now(UTC) + timedelta(days=30)
        second = lake.commit(with_parts(first, "jobs", {"2026-03-01": (new,)}), now=at)
        assert second.retired == {old: at}
        assert lake.vacuum(now=at + timedelta(hours=23)) == []
        assert lake.vacuum(now=at + timedelta(hours=24)) == [old]
        assert len(tables(lake.place)["jobs"]) == 2
        assert lake.commit(second, now=at + timedelta(hours=24)).retired == {}  # nobody needs to remember it

    def test_what_is_left_to_those_who_read_it_is_not_looked_for_at_every_commit(
        self, lake: Lake, begun: Manifest, put: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = begun
        for n in range(1, 4):
            made = lake.commit(with_parts(made, "slo", {WHOLE: (put(f"gold/slo/{n}-a"),)}), now=NOON)
        filled, asked = lake.storage.filled, list[set[str]]()

        def look(folders: Iterable[str]) -> set[str]:
            asked.append({*folders})
            return filled(asked[-1])

        monkeypatch.setattr(lake.storage, "filled", look)
        made = lake.commit(made, now=NOON + timedelta(hours=23))
        assert {*made.retired} == {"gold/slo/1-a", "gold/slo/2-a"}
        assert not any(asked)
        made = lake.commit(made, now=NOON + timedelta(hours=24))
        assert {*made.retired} == {"gold/slo/1-a", "gold/slo/2-a"}, "they are still there"
        assert {"gold/slo/1-a", "gold/slo/2-a"} in asked

    def test_an_emptied_folder_of_a_run_goes_with_the_last_of_its_days(
        self, lake: Lake, begun: Manifest, put: Callable[[str], str]
    ) -> None:
        day = put("silver/jobs/2-a/part=2026-03-01")
        Path(lake.storage.path("silver/jobs/2-a/_SUCCESS")).touch()
        soon = datetime.now(UTC) + self.LATER
        assert lake.vacuum(now=soon) == [day]
        assert lake.vacuum(now=soon) == ["silver/jobs/2-a"]
        assert lake.vacuum(now=soon) == []
        lake.storage.remove(day)  # another was at it

    def test_two_days_of_one_run_go_each_by_itself(
        self, lake: Lake, begun: Manifest, put: Callable[[str], str]
    ) -> None:
        parts = {day: (put(f"silver/jobs/2-a/part={day}"),) for day in ("2026-03-01", "2026-03-02")}
        first = lake.commit(with_parts(begun, "jobs", parts))
        second = lake.commit(with_parts(first, "jobs", {}, gone=["2026-03-01"]))
        assert second.folders("jobs") == ["silver/jobs/2-a/part=2026-03-02"]
        gone = lake.vacuum(now=datetime.now(UTC) + self.LATER)
        assert gone == ["silver/jobs/2-a/part=2026-03-01"]


class TestReaders:
    def test_get_the_files_that_count_and_no_others(
        self, lake: Lake, begun: Manifest, put: Callable[[str], str]
    ) -> None:
        days = {day: (put(f"bronze/events/2-a/part={day}"),) for day in ("2026-03-02", "2026-03-01")}
        made = with_parts(begun, "events", days)
        made = with_parts(made, "failures", {WHOLE: (put("gold/failures/2-a"),)})
        lake.commit(made)
        put("gold/failures/3-b")
        root = lake.place
        assert tables(root) == {
            "events": [
                f"{root}/bronze/events/2-a/part=2026-03-01/part-0.zstd.parquet",
                f"{root}/bronze/events/2-a/part=2026-03-02/part-0.zstd.parquet",
            ],
            "failures": [f"{root}/gold/failures/2-a/part-0.zstd.parquet"],
        }

    def test_a_day_in_several_folders_is_all_of_them(self, begun: Manifest) -> None:
        made = with_parts(begun, "events", {"b": ("3",), "a": ("1", "2")})
        assert made.folders("events") == ["1", "2", "3"]
        assert made.folders("events", ["a"]) == ["1", "2"]
        assert made.folders("jobs") == []

    def test_what_somebody_has_removed_is_noticed(
        self, lake: Lake, begun: Manifest, put: Callable[[str], str]
    ) -> None:
        there, gone = put("gold/slo/2-a"), put("gold/flows/2-a")
        made = lake.commit(with_parts(with_parts(begun, "slo", {WHOLE: (there,)}), "flows", {WHOLE: (gone,)}))
        lake.storage.remove(gone)
        assert lacking(lake, made) == [gone]
        with pytest.raises(LakeBroken, match=f"lacks what its manifest names: {gone}"):
            here(lake, [there, gone])


def test_the_lake_needs_no_spark_to_be_read() -> None:
    import subprocess
    import sys

    code = "import sys, penstock.lake.manifest; print([m for m in ('pyspark', 'pyarrow', 'pandas') if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


def test_what_is_no_lakes_is_seen(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert Lake(tmp_path / "not there").others() == []
    for name in ("bronze", "gold", ".DS_Store", "lost+found", "shop.py"):
        (tmp_path / name).mkdir()
    assert lake.others() == ["shop.py"]


def test_whose_history_it_is_is_told_in_the_words_of_the_store() -> None:
    database, log = ({"feed": "a", "system": system} for system in ("7001", "log"))
    assert "stamped anew" in str(LakeOfAnother("here", {"feed": "b", "system": "7001"}, database))
    said = str(LakeOfAnother("here", {"feed": "b", "system": "log"}, log))
    assert "begun anew" in said
    assert "database" not in said
