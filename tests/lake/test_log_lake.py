"""A log as a source of the lake: what truly happened, wherever it is kept by now, is what PostgreSQL tells of it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from penstock import Queue, connect
from penstock.core import promises
from penstock.core.errors import InvalidInput
from penstock.core.job import NewJob
from penstock.core.promises import LAKE, Promise
from penstock.core.registry import ALL_TENANTS, PutEntry
from penstock.lake.errors import LakeOfAnother
from penstock.lake.manifest import Lake
from penstock.lake.tables import EVENTS, SOURCE
from penstock.stores.log import compacting, history
from penstock.stores.log.backings import Backing, open_backing
from penstock.stores.log.snapshots import Snapshots
from penstock.stores.log.state import Parts
from penstock.stores.log.store import SHARD
from penstock.testing import FakeClock, counting_ids

pytest.importorskip("pyarrow")

from lake.happening import (
    ALL,
    ALWAYS,
    NOON,
    Story,
    clock_of_folders,
    compact,
    in_postgres,
    placeless,
    rows,
    told,
)
from penstock.lake.source.asking import Ask
from penstock.lake.source.logs import LogReader


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return clock_of_folders(monkeypatch)


@pytest.fixture
def story(tmp_path: Path, clock: FakeClock) -> Story:
    url = f"file://{tmp_path}/log"
    return Story(url, lambda: connect(url).store, clock)


def test_columns_are_those_of_the_lake() -> None:
    assert (*history.COLUMNS, "day") == tuple(EVENTS)


def test_facts_are_those_of_postgres_before_and_after_compaction(story: Story) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    from penstock.lake.source.postgres import PostgresReader

    story.happen(1)
    before = told(LogReader(story.url))
    manifest = compact(story)
    assert sum(one.count for one in manifest.history) == len(before) > 15
    assert told(LogReader(story.url)) == before
    story.happen(2)  # in the tail
    after = told(LogReader(story.url))
    assert len({(row["tenant"], row["kind"], row["xid"], row["seq"], row["job_id"]) for row in after}) == len(
        after
    )
    other = PostgresReader(in_postgres(2).url)
    for table in SOURCE:
        ask = Ask(table, tuple(SOURCE[table]))
        theirs = [
            row
            for part in other.slices(ask, 4)
            for batch in other.read(ask, part)
            for row in batch.to_pylist()
        ]
        assert placeless(told(LogReader(story.url), ask)) == placeless(theirs), table


def test_a_stream_has_each_fact_once_while_the_compactor_works(story: Story) -> None:
    story.happen(1)
    reader = LogReader(story.url)
    place, had, rounds = reader.first(), [], 0
    while True:
        end = LogReader(story.url).latest(place, ALL, 4, None)
        if end["xid"] == place["xid"]:
            break
        parts = LogReader(story.url).between(place, end, ALL, 3)
        if rounds == 2:
            compact(story)  # between plan and look
        if rounds == 3:
            story.happen(2)
        had += [
            row
            for part in parts
            for batch in LogReader(story.url).read(ALL, part)
            for row in batch.to_pylist()
        ]
        place, rounds = end, rounds + 1
    assert rounds > 5
    assert had == told(LogReader(story.url))
    assert LogReader(story.url).between(place, place, ALL, 3) == []


def test_filters_and_days_are_kept_to(story: Story) -> None:
    from penstock.lake.source.filters import Condition

    for day in (1, 2):
        story.happen(day)
    compact(story)
    everything = told(LogReader(story.url))
    second = NOON.date() + timedelta(days=1)
    chosen = replace(
        ALL,
        first_day=second,
        last_day=second,
        tenant="default",
        conditions=(Condition("kind", "=", ("job",)),),
    )
    wanted = [row for row in everything if row["day"] == str(second) and row["kind"] == "job"]
    assert told(LogReader(story.url), chosen) == wanted != []
    assert told(LogReader(story.url), replace(ALL, tenant="nobody")) == []


def test_a_place_of_another_log_or_of_the_future_is_refused(story: Story, tmp_path: Path) -> None:
    story.happen(1)
    reader = LogReader(story.url)
    start, end = reader.first(), reader.horizon()
    ahead = {**end, "xid": end["xid"] + 1}
    with pytest.raises(InvalidInput, match="restored from a copy"):
        reader.latest(ahead, ALL, None, None)
    with pytest.raises(InvalidInput, match="this very log"):
        reader.latest({**start, "feed": "other"}, ALL, None, None)
    with pytest.raises(InvalidInput, match="offsets of this source"):
        reader.latest({"xid": 1}, ALL, None, None)


# ── The promise ───────────────────────────────────────────────────────────────────────────────────


def promise(story: Story, **said: Any) -> None:
    """Say what a lake would, with what it has read."""

    async def put(queue: Queue) -> None:
        there = await queue.store.entries(ALL_TENANTS, LAKE, ["lake"])
        made = Promise(place="/lake", run=1, since=NOON, **said)
        command = PutEntry(LAKE, "lake", promises.encode(made), there[0].version if there else 0)
        [answer] = await queue.store.put_entries(ALL_TENANTS, [command])
        assert not isinstance(answer, Exception)

    story.ask(put)


def test_history_stays_until_the_lake_has_it_and_found_it_right(story: Story) -> None:
    story.happen(1)
    promise(story)
    assert compact(story).exported == 0
    has = LogReader(story.url).horizon()
    start = {**has, "xid": 0}
    story.clock.advance(days=30)
    kept = compact(story)
    assert kept.history
    assert kept.floor == 0
    promise(story, offset=has)  # read, and not compared yet
    assert (after := compact(story)).history
    assert after.exported == has["xid"] - 1
    promise(story, offset={**has, "feed": "other"}, exported_until=story.clock.now())
    assert compact(story).history  # of another log
    promise(story, offset={**has, "xid": 3}, exported_until=story.clock.now())
    assert compact(story).history  # not all of it read
    promise(story, offset=has, exported_until=story.clock.now())
    gone = compact(story)
    assert gone.history == []
    assert 0 < gone.floor < has["xid"]
    with pytest.raises(InvalidInput, match="has left the log unread"):
        LogReader(story.url).latest({**start, "floor": 0}, ALL, None, None)
    LogReader(story.url).latest(has, ALL, None, None)


def test_history_goes_after_a_week_where_no_lake_follows(story: Story) -> None:
    story.happen(1)
    assert compact(story).history
    story.clock.advance(days=6)
    assert compact(story).history
    story.clock.advance(days=2)
    assert compact(story).history == []


def test_entries_may_go_once_what_they_brought_about_is_kept(story: Story) -> None:
    story.happen(1)
    promise(story)
    before = told(LogReader(story.url))
    compact(story)
    story.clock.advance(days=2)
    assert compact(story).watermark > 0
    assert told(LogReader(story.url)) == before


def test_without_pyarrow_no_snapshot_outruns_the_lake(
    story: Story, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    story.happen(1)
    with monkeypatch.context() as patch:
        patch.setattr(history, "is_possible", lambda: False)
        first = compact(story)
        assert (first.history, first.floor) == ([], first.number)
        assert "pyarrow" in caplog.text
        promise(story)
        story.happen(2)
        assert compact(story).number == first.number
    after = told(LogReader(story.url))
    assert {row["day"] for row in after} == {"2026-01-02"}  # the first day had left before there was a lake
    assert compact(story).number > first.number
    assert told(LogReader(story.url)) == after


def test_what_was_held_back_for_the_lake_is_in_the_snapshot_after_it(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "is_possible", lambda: False)
    story.happen(1)

    async def compacted() -> Any:
        backing = open_backing(story.url)
        one = compacting.compactor(backing.tape(SHARD), backing.objects, SHARD)
        await one.compact()
        await asyncio.to_thread(promise, story)
        await asyncio.to_thread(story.happen, 2)
        before = await asyncio.to_thread(story.ask, lambda queue: queue.find())
        assert not (await one.compact()).wrote
        await asyncio.to_thread(promise, story, lifted=True)
        assert (await one.compact()).wrote
        await backing.close()
        return before.jobs

    jobs = asyncio.run(compacted())
    backing = open_backing(story.url)
    parts = Parts()
    asyncio.run(loaded(backing, parts))
    assert {job.id: job for job in parts.machines["default"].ledger.jobs.values()} == {
        job.id: job for job in jobs
    }


async def loaded(backing: Backing, parts: Parts) -> None:
    await Snapshots(backing.objects, SHARD).load(parts)
    await backing.close()


# ── The pipeline ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spark
def test_the_lake_of_a_log_is_that_of_postgres(
    spark: Any, story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.lake import pipeline
    from penstock.lake.pipeline import run_once
    from penstock.lake.recipes import recipes

    some = tuple(one for one in recipes() if one.table in ("attempts", "jobs", "hourly"))
    monkeypatch.setattr(pipeline, "recipes", lambda: some)
    ours, theirs = Lake(tmp_path / "ours"), Lake(tmp_path / "theirs")

    def run(lake: Lake = ours, url: str = story.url) -> Any:
        return run_once(spark, url, lake, as_of=ALWAYS)

    story.happen(1)
    assert run().events > 15  # all of it from the tail
    story.happen(2)
    compact(story)
    story.happen(3)
    report = run()  # from a file that the lake has half of, and from the tail
    assert report.checked == ["2026-01-02", "2026-01-03"]
    assert report.mismatches == []
    assert report.published
    assert run().events == 0
    other = in_postgres(3)
    assert run(theirs, other.url).mismatches == []
    assert rows(ours) == rows(theirs)
    assert (compact(story).exported or 0) > 0  # as the run has promised
    with pytest.raises(LakeOfAnother):
        run(theirs)
    # A day of which the lake lacks something is found out.
    from penstock.lake.reconcile import mismatches

    events = spark.read.parquet(
        *[
            ours.storage.path(file)
            for folder in ours.manifest().folders("events", ["2026-01-02"])
            for file in ours.storage.files(folder)
        ]
    )
    lacking = events.where("NOT (kind = 'job' AND priority = -1)")
    [found] = mismatches(lacking, story.url, ours.manifest().offset, ["2026-01-02"])
    assert (found.kind, found.in_store - found.in_lake) == ("job", 1)


# ── Gathering ─────────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_leaves_in_the_entry_in_which_it_ended_is_told_of_in_full() -> None:
    facts = history.Facts()
    machine = facts.machine("acme")
    new_id = counting_ids(NOON)
    facts.begin(1)
    machine.enqueue(NewJob(new_id(), "mail", expires_at=NOON), NOON)  # it had expired before it came in
    assert machine.prune(NOON + timedelta(days=4000), 10) == 1
    machine.enqueue(NewJob(new_id(), "mail"), NOON)
    facts.end()
    facts.begin(2)
    machine.enqueue(NewJob(new_id(), "mail"), NOON)
    facts.end()
    assert [(row.xid, row.seq, row.kind, row.type) for row in facts.rows] == [
        (1, 0, "job", "mail"),
        (1, 1, "change", "mail"),
        (1, 2, "job", "mail"),
        (2, 0, "job", "mail"),
    ]


def test_an_entry_may_bring_about_more_than_a_ledger_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("penstock.core.ledger", "penstock.stores.log.history"):
        monkeypatch.setattr(f"{module}.MOST_TOLD", 8)
    facts = history.Facts()
    machine = facts.machine("acme")
    new_id = counting_ids(NOON)
    facts.begin(1)
    for _ in range(50):
        machine.enqueue(NewJob(new_id(), "mail"), NOON)
    facts.end()
    assert [row.seq for row in facts.rows] == list(range(50))


def test_small_files_become_one_and_large_ones_stay(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    story.happen(1)
    first = compact(story).history
    story.happen(2)
    [one] = compact(story).history
    assert one.first == first[0].first
    assert one.count == len(told(LogReader(story.url))) > first[0].count
    monkeypatch.setattr("penstock.stores.log.compacting.FACTS_PER_FILE", one.count)
    story.happen(3)
    assert compact(story).history[0] == one
    assert len({row["day"] for row in told(LogReader(story.url))}) == 3
