"""A place of several logs as a source of the lake: each goes at its own pace, and nothing is read twice or passed over."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from penstock import connect
from penstock.core.errors import InvalidInput
from penstock.lake.errors import LakeOfAnother, StoreAhead, StoreBehind
from penstock.lake.manifest import Lake, Manifest, new_manifest, source_of
from penstock.lake.tables import SOURCE
from penstock.stores.log.errors import LogTooNew, ShardsDiffer
from penstock.stores.log.layout import FORMAT_KEY, shard_name, shard_of
from penstock.testing import FakeClock
from support.s3 import running_s3

pytest.importorskip("pyarrow")

from lake.happening import (
    ALL,
    FIRST,
    IN,
    LOGS,
    NOON,
    SECOND,
    THIRD,
    Story,
    clock_of_folders,
    compact,
    in_logs,
    in_postgres,
    placeless,
    told,
)
from penstock.lake.source import several
from penstock.lake.source.asking import Ask, Offset, Reader, open_reader
from penstock.lake.source.several import LogsReader, open_logs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return clock_of_folders(monkeypatch)


@pytest.fixture
def story(tmp_path: Path, clock: FakeClock) -> Story:
    return in_logs(tmp_path, clock)


def reader(story: Story) -> Reader:
    return open_reader(story.url)


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(map(repr, rows))


def read(story: Story, start: Offset, end: Offset, most: int = 4) -> list[dict[str, Any]]:
    """What lies between two offsets, each part by a reader of its own, as executors do."""
    return [
        row
        for part in reader(story).between(start, end, ALL, most)
        for batch in reader(story).read(ALL, part)
        for row in batch.to_pylist()
    ]


# ── What is read ──────────────────────────────────────────────────────────────────────────────────


def test_all_tables_are_those_of_postgres_before_and_after_compaction(story: Story) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    from penstock.lake.source.postgres import PostgresReader

    queues = (FIRST, SECOND, THIRD)
    story.happen(1, *queues)
    before = told(reader(story))
    assert {shard_of("default", row["queue"], LOGS) for row in before if row["queue"]} == {0, 1, 2}
    compact(story, 1)
    compact(story, 2)
    assert counted(told(reader(story))) == counted(before)
    story.happen(2, *queues)
    other = PostgresReader(in_postgres(2, *queues).url)
    for table in SOURCE:
        ask = Ask(table, tuple(SOURCE[table]))
        assert placeless(told(reader(story), ask)) == placeless(told(other, ask)), table


def test_a_fact_is_known_by_its_place_in_all_logs_together(story: Story) -> None:
    story.happen(1, SECOND, THIRD)
    rows = told(reader(story))
    # The same was done in both, so what is about no job is in entries of the same number.
    of_queues = [row for row in rows if row["kind"] == "change" and row["job_id"] is None and row["queue"]]
    assert len({row["xid"] // 64 for row in of_queues}) < len(of_queues) == 2
    known = {(row["tenant"], row["kind"], row["xid"], row["seq"], row["job_id"]) for row in rows}
    assert len(known) == len(rows)


def test_a_queue_has_one_row_and_a_filter_on_places_goes_by_what_is_told(story: Story) -> None:
    from penstock.lake.source.filters import Condition

    story.happen(1, FIRST, SECOND, THIRD)
    queues = told(reader(story), Ask("queues", tuple(SOURCE["queues"])))
    assert Counter(row["queue"] for row in queues) == dict.fromkeys(
        (name for queue in IN.values() for name in (queue, f"{queue}/other")), 1
    )
    one = told(reader(story))[-1]
    chosen = replace(
        ALL, conditions=(Condition("xid", "=", (one["xid"],)), Condition("seq", "=", (one["seq"],)))
    )
    assert told(reader(story), chosen) == [one]


def test_at_most_so_many_slices_whatever_the_number_of_logs(story: Story) -> None:
    story.happen(1, FIRST, SECOND, THIRD)
    compact(story, 0)
    compact(story, 1)
    story.happen(2, FIRST, SECOND, THIRD)  # a file and a tail
    start, end = reader(story).first(), reader(story).horizon()
    whole = counted(told(reader(story)))
    for most in (1, 2, 3, 7, 12):
        assert len(reader(story).between(start, end, ALL, most)) <= most
        assert counted(read(story, start, end, most)) == whole
        assert len(reader(story).slices(ALL, most)) <= most


def test_the_number_of_logs_in_the_url_is_no_part_of_the_place(story: Story) -> None:
    story.happen(1, SECOND)
    assert told(open_reader(f"{story.url}?shards=3")) == told(reader(story)) != []
    with pytest.raises(ShardsDiffer, match="made with shards=3"):
        open_reader(f"{story.url}?shards=2")
    with pytest.raises(InvalidInput, match="shards must be a number"):
        open_reader(f"{story.url}?shards=many")


async def test_in_a_bucket() -> None:
    with running_s3() as s3:
        address, _, options = s3.url().partition("?")
        url = f"{address}/place?shards=3&{options}"
        async with connect(url) as queue:
            for name in (SECOND, THIRD):
                await queue.enqueue("mail", queue=name)
        seen = open_reader(url)
        end = seen.horizon()
        rows = [
            row
            for part in seen.between(seen.first(), end, ALL, 3)
            for batch in open_reader(url).read(ALL, part)
            for row in batch.to_pylist()
        ]
        assert sorted((row["kind"], row["queue"]) for row in rows) == sorted(
            [("job", SECOND), ("job", THIRD)]
        )
        assert [one["xid"] for one in end["logs"]] == [1, 2, 2]


def test_one_log_is_read_as_ever_and_its_lakes_go_on(tmp_path: Path, clock: FakeClock) -> None:
    story = Story(f"file://{tmp_path}/log", lambda: connect(f"file://{tmp_path}/log").store, clock)
    story.happen(1)
    end = reader(story).horizon()
    assert set(end) == {"xid", "floor", "feed", "system"}
    assert end["system"] == "log/s00"
    assert {row["xid"] for row in told(reader(story))} <= set(range(1, end["xid"]))


# ── As a stream ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(3))
def test_whoever_is_killed_between_batches_has_each_fact_once(story: Story, seed: int) -> None:
    """As the pipeline goes: to a target, batch by batch; what was not committed with its offset is read again."""
    dice, queues = Random(seed), [FIRST, SECOND, THIRD]
    story.happen(1, FIRST)  # the others are empty yet
    place, had, batches, killed = reader(story).first(), list[dict[str, Any]](), 0, 0
    days = iter([2, 3, 4])

    def more() -> bool:
        """Let something happen in some of the logs, and others be compacted."""
        compact(story, dice.randrange(LOGS))
        if (day := next(days, None)) is not None:
            story.happen(day, *dice.sample(queues, dice.randint(1, 3)))
        return day is not None

    while place["xid"] < (target := reader(story).horizon())["xid"] or more():
        while place["xid"] < target["xid"]:
            end = reader(story).latest(place, ALL, dice.choice([3, 9, 30]), target)
            assert all(one["xid"] <= two["xid"] for one, two in zip(place["logs"], end["logs"], strict=True))
            if dice.random() < 0.2:
                more()
            batch = read(story, place, end)
            if dice.random() < 0.3:
                killed += 1
                break  # and the next run asks anew
            had, place, batches = had + batch, end, batches + 1
    assert batches > 5
    assert killed
    assert next(days, None) is None
    assert counted(had) == counted(told(reader(story)))
    assert read(story, place, place) == []


def test_a_busy_log_does_not_keep_the_others_waiting(story: Story) -> None:
    story.happen(1, FIRST, FIRST, FIRST, SECOND, THIRD)
    seen = reader(story)
    start = seen.first()
    end = seen.latest(start, ALL, 12, None)
    assert all(one["xid"] > two["xid"] for one, two in zip(end["logs"], start["logs"], strict=True))
    assert 6 <= len(read(story, start, end)) <= 18


@pytest.mark.parametrize(
    ("waiting", "most", "shares"),
    [
        ([0, 0, 0], 9, [3, 4, 9]),
        ([100, 100, 100], 9, [3, 3, 3]),
        ([100, 1, 0], 90, [89, 45, 30]),
        ([1, 2, 3], 1, [1, 1, 1]),
    ],
)
def test_what_one_log_has_not_the_others_may_have_more(
    waiting: list[int], most: int, shares: list[int]
) -> None:
    assert several._shares(waiting, most) == shares


# ── Whose offsets are taken ───────────────────────────────────────────────────────────────────────


def place_of(story: Story) -> Path:
    return Path(story.url.removeprefix("file://"))


def copied(story: Story, log: int, to: Path) -> Path:
    return Path(shutil.copytree(place_of(story) / shard_name(log), to / shard_name(log)))


def put_back(story: Story, log: int, copy: Path) -> None:
    shutil.rmtree(place_of(story) / shard_name(log))
    shutil.copytree(copy, place_of(story) / shard_name(log))


def lake_at(story: Story, folder: Path, offset: Offset) -> tuple[Lake, Manifest]:
    """A lake that has read so far."""
    lake = Lake(folder / "lake")
    return lake, lake.commit(new_manifest(source_of(offset), offset))


def test_a_log_that_fell_behind_is_named_though_the_others_are_far_ahead(
    story: Story, tmp_path: Path
) -> None:
    story.happen(1, FIRST, SECOND, THIRD)
    copy = copied(story, 1, tmp_path)
    story.happen(2, SECOND)
    had = reader(story).horizon()
    lake, manifest = lake_at(story, tmp_path, had)
    put_back(story, 1, copy)
    story.happen(3, FIRST, THIRD)
    story.happen(4, FIRST, THIRD)
    now = reader(story).horizon()
    assert now["xid"] > had["xid"]
    behind = had["logs"][1]["xid"]
    with pytest.raises(StoreBehind, match=f"read log s01 up to entry {behind}, and log s01 has only come to"):
        lake.check_source(manifest, now)
    for ask in (
        lambda: reader(story).latest(had, ALL, None, None),
        lambda: reader(story).latest(had, ALL, 5, now),
        lambda: reader(story).between(had, now, ALL, 3),
    ):
        with pytest.raises(InvalidInput, match="not be ahead of the log s01, which has come to entry"):
            ask()


def test_a_log_that_let_history_go_unread_is_named(story: Story, tmp_path: Path) -> None:
    story.happen(1, FIRST, SECOND, THIRD)
    lake, manifest = lake_at(story, tmp_path, reader(story).first())
    start = reader(story).first()
    compact(story, 2)
    story.clock.advance(days=9)
    assert compact(story, 2).history == []  # no lake has promised anything
    with pytest.raises(
        StoreAhead, match="read log s02 up to entry 0, and log s02 has kept everything only from"
    ):
        lake.check_source(manifest, reader(story).horizon())
    with pytest.raises(InvalidInput, match="has left the log s02 unread"):
        reader(story).latest(start, ALL, None, None)
    # What is left, a new lake takes.
    lake.check_source(new_manifest(manifest.source, reader(story).first()), reader(story).horizon())


def test_a_log_of_another_place_is_named(story: Story, tmp_path: Path, clock: FakeClock) -> None:
    url = f"file://{tmp_path}/other"
    other = Story(url, lambda: connect(f"{url}?shards={LOGS}").store, clock)
    for one in (story, other):
        one.happen(1, FIRST, SECOND, THIRD)
    had, theirs = reader(story).horizon(), reader(other).horizon()
    lake, manifest = lake_at(story, tmp_path, had)
    with pytest.raises(LakeOfAnother, match=f"feed {had['feed']} .* feed {theirs['feed']}"):
        lake.check_source(manifest, theirs)
    with pytest.raises(InvalidInput, match="this very place of logs"):
        reader(story).latest(theirs, ALL, None, None)
    put_back(story, 2, copied(other, 2, tmp_path))
    with pytest.raises(LakeOfAnother, match=r"and log s02 of the store is feed"):
        lake.check_source(manifest, reader(story).horizon())
    with pytest.raises(InvalidInput, match="this very log s02"):
        reader(story).latest(had, ALL, None, None)
    for odd in ({"xid": 1}, {**had, "logs": had["logs"][:2]}, {**had, "logs": [1, 2, 3]}):
        with pytest.raises(InvalidInput, match="hold offsets of this source"):
            reader(story).latest(odd, ALL, None, None)


def test_a_log_that_was_emptied_is_named(story: Story, tmp_path: Path) -> None:
    story.happen(1, FIRST, SECOND)
    had = reader(story).horizon()
    lake, manifest = lake_at(story, tmp_path, had)
    lake.check_source(manifest, had)
    story.happen(2, THIRD)  # which was empty
    lake.check_source(manifest, reader(story).horizon())
    assert len(read(story, had, reader(story).latest(had, ALL, None, None))) > 10
    shutil.rmtree(place_of(story) / "s01")
    with pytest.raises(StoreBehind, match="log s01 has only come to 1:"):
        lake.check_source(manifest, reader(story).horizon())


def test_a_log_of_a_newer_version_is_named(story: Story) -> None:
    story.happen(1, FIRST, SECOND, THIRD)
    compact(story, 1)
    path = place_of(story) / "s01" / "manifest"
    path.write_bytes(msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), "fmt": 99}))
    with pytest.raises(LogTooNew, match="s01/manifest is in format 99"):
        reader(story).horizon()
    (place_of(story) / FORMAT_KEY).write_bytes(b'{"fmt": 99}')
    with pytest.raises(LogTooNew, match="FORMAT is in format 99"):
        reader(story)


# ── For whoever compares ──────────────────────────────────────────────────────────────────────────


def test_what_closed_days_have_is_counted_in_each_log_up_to_its_own_place(story: Story) -> None:
    story.happen(1, FIRST, SECOND, THIRD)
    until = reader(story).horizon()
    days = [str((NOON + timedelta(days=day)).date()) for day in range(2)]

    def expected(rows: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
        return Counter((row["kind"], row["day"]) for row in rows if row["kind"] != "change")

    def found(until: Offset) -> dict[tuple[str, str], int]:
        sums: Counter[tuple[str, str]] = Counter()
        for (kind, day, _), number in open_logs(story.url).counted(until, days).items():
            sums[kind, day] += number
        return +sums

    before = expected(told(reader(story)))
    assert found(until) == before
    story.happen(2, SECOND)
    compact(story, 1)
    assert found(until) == before
    assert found(reader(story).horizon()) == expected(told(reader(story))) != before
    assert isinstance(reader(story), LogsReader)
