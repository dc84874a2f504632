"""What a lake promises a store of several logs: in every log, for each is compacted, and may be restored, by itself."""

from __future__ import annotations

import asyncio
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from penstock import Queue, connect
from penstock.cli.main import main
from penstock.core import promises
from penstock.core.job import Status
from penstock.core.promises import LAKE, Promise
from penstock.core.registry import ALL_TENANTS, PutEntry
from penstock.insights.acting import apply, redrive
from penstock.lake import keeping
from penstock.lake.errors import StoreRestored
from penstock.lake.keeping import PromiseUnknown, check_in, covered_until, tell
from penstock.lake.manifest import Lake, Manifest, new_manifest, source_of
from penstock.lake.source.asking import open_reader
from penstock.stores.log.layout import shard_name, shard_of
from penstock.stores.log.shards import ShardedLogStore
from penstock.stores.log.snapshots import Manifest as LogManifest
from penstock.testing import FakeClock
from support.insights import FINGERPRINT, REFUSED, published

pytest.importorskip("pyarrow")

from lake.happening import FIRST, IN, LOGS, NOON, SECOND, THIRD, Story, clock_of_folders, compact, in_logs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return clock_of_folders(monkeypatch)


@pytest.fixture
def story(tmp_path: Path, clock: FakeClock) -> Story:
    return in_logs(tmp_path, clock)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def promised(story: Story) -> list[dict[str, Promise]]:
    """What each log knows."""

    async def ask(queue: Queue) -> list[dict[str, Promise]]:
        assert isinstance(queue.store, ShardedLogStore)
        return [promises.read(await log.entries(ALL_TENANTS, LAKE)) for log in await queue.store.logs()]

    found: list[dict[str, Promise]] = story.ask(ask)
    return found


def put(story: Story, log: int, name: str, promise: Promise) -> None:
    async def ask(queue: Queue) -> None:
        assert isinstance(queue.store, ShardedLogStore)
        logs = await queue.store.logs()
        await logs[log].put_entries(ALL_TENANTS, [PutEntry(LAKE, name, promises.encode(promise))])

    story.ask(ask)


def of(story: Story, **found: Any) -> Manifest:
    """A lake that has read all there is."""
    end = open_reader(story.url).horizon()
    return replace(new_manifest(source_of(end), end), **found)


def compacted(story: Story) -> list[LogManifest]:
    return [compact(story, log) for log in range(LOGS)]


# ── The promise ───────────────────────────────────────────────────────────────────────────────────


def test_every_log_keeps_it_with_what_was_read_of_that_log(story: Story, lake: Lake) -> None:
    story.happen(1, FIRST, THIRD)  # the second is empty
    one = of(story, read_at=NOON + timedelta(days=2), doubts=("2026-01-03",))
    assert check_in(story.url, lake, one) == 1
    for there in promised(story):
        [(name, begun)] = there.items()
        assert (name, begun.run, begun.exported_until, begun.place) == (one.lake, 1, None, lake.place)
    tell(story.url, lake, one)
    told = [there[one.lake] for there in promised(story)]
    assert [each.offset for each in told] == one.offset["logs"]
    assert len({each.offset["feed"] for each in told}) == LOGS
    assert {(each.run, each.exported_until, each.doubts) for each in told} == {
        (1, covered_until(one), ("2026-01-03",))
    }
    assert check_in(story.url, lake, replace(one, run=1)) == 2
    assert [there[one.lake] for there in promised(story)] == [replace(each, run=2) for each in told]


def test_no_log_lets_go_of_what_the_lake_has_not_read_of_it(story: Story, lake: Lake) -> None:
    story.happen(1, FIRST, SECOND, THIRD)
    one = of(story)
    check_in(story.url, lake, one)
    assert all(each.history for each in compacted(story))
    story.clock.advance(days=30)
    assert all(each.history for each in compacted(story))  # nothing was told yet
    has = replace(one, offset=open_reader(story.url).horizon(), read_at=story.clock.now())
    logs = has.offset["logs"]
    half = {**has.offset, "logs": [logs[0], {**logs[1], "xid": 3}, logs[2]]}
    tell(story.url, lake, replace(has, offset=half))
    assert [bool(each.history) for each in compacted(story)] == [False, True, False]
    tell(story.url, lake, has)
    assert not any(each.history for each in compacted(story))


def test_no_job_leaves_any_log_before_the_lake_has_it(story: Story, lake: Lake) -> None:
    async def end(queue: Queue) -> None:
        for name in IN.values():
            await queue.configure(name, retention_seconds=0)
            await queue.enqueue("mail", queue=name)
            [held] = await queue.lease(name, worker="w")
            await queue.ack(held)

    def left() -> int:
        pruned: int = story.ask(lambda queue: queue.sweep()).pruned
        return pruned

    story.ask(end)
    one = of(story)
    check_in(story.url, lake, one)
    story.clock.advance(days=1)
    assert left() == 0
    tell(story.url, lake, replace(one, read_at=NOON - timedelta(days=1)))
    assert left() == 0
    put(story, 0, one.lake, replace(promised(story)[0][one.lake], lifted=True, exported_until=None))
    put(story, 0, "other", replace(promised(story)[0][one.lake], lifted=False))
    assert left() == 0  # by what each of the others still knows
    assert left() == 0  # by what the first alone knows
    put(story, 0, "other", replace(promised(story)[0]["other"], lifted=True))
    tell(story.url, lake, replace(one, read_at=story.clock.now()))
    assert left() == LOGS


# ── What it proves ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("log", range(LOGS))
def test_a_log_that_was_restored_is_named_however_far_it_has_counted_on(
    story: Story, lake: Lake, tmp_path: Path, log: int
) -> None:
    place = Path(story.url.removeprefix("file://"))
    story.happen(1, FIRST, SECOND, THIRD)
    one = of(story)
    first = check_in(story.url, lake, one)
    shutil.copytree(place / shard_name(log), tmp_path / "copy")
    story.happen(2, FIRST, SECOND, THIRD)
    one = replace(one, offset=open_reader(story.url).horizon())
    second = check_in(story.url, lake, replace(one, run=first))
    one = replace(one, run=second)
    shutil.rmtree(place / shard_name(log))
    shutil.copytree(tmp_path / "copy", place / shard_name(log))
    story.happen(3, FIRST, SECOND, THIRD)
    story.happen(4, FIRST, SECOND, THIRD)
    lake.check_source(one, open_reader(story.url).horizon())  # places alone do not tell
    known = promised(story)
    with pytest.raises(
        StoreRestored, match=rf"made 2 runs over this store, and log s0{log} knows of 1: it was restored"
    ):
        check_in(story.url, lake, one)
    assert promised(story) == known
    # The sweep, and whoever forgets the lake, leave the proof where it is.
    asyncio.run(forget(story, one.lake))
    story.ask(lambda queue: queue.sweep())
    with pytest.raises(StoreRestored, match=f"log s0{log} knows of 1"):
        check_in(story.url, lake, one)


def test_a_run_that_died_between_two_logs_proves_nothing_and_is_not_counted_again(
    story: Story, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.happen(1, SECOND)
    one = of(story)
    with monkeypatch.context() as dying:
        kept, times = keeping._put, iter([True, False])

        async def put_once(*given: Any) -> None:
            if not next(times):
                raise KeyboardInterrupt
            await kept(*given)

        dying.setattr(keeping, "_put", put_once)
        with pytest.raises(KeyboardInterrupt):
            check_in(story.url, lake, one)
    assert [len(there) for there in promised(story)] == [1, 0, 0]
    assert check_in(story.url, lake, one) == 2
    assert [there[one.lake].run for there in promised(story)] == [2] * LOGS


# ── Let go ────────────────────────────────────────────────────────────────────────────────────────


async def forget(story: Story, lake: str | None) -> list[tuple[str, Promise]]:
    async with connect(story.url) as queue:
        return await keeping.forget(queue.store, lake, "ada")


def held(story: Story) -> list[list[str]]:
    return [sorted(name for name, one in there.items() if not one.lifted) for there in promised(story)]


def test_a_lake_is_forgotten_by_all_logs_and_told_of_once(story: Story, lake: Lake) -> None:
    story.happen(1, FIRST)
    one, other = of(story), of(story)
    for each in (one, other):
        check_in(story.url, lake, each)
    with pytest.raises(PromiseUnknown, match="those that have are"):
        asyncio.run(forget(story, "nobody's"))
    [(name, promise)] = asyncio.run(forget(story, one.lake))
    assert (name, promise.place) == (one.lake, lake.place)
    assert held(story) == [[other.lake]] * LOGS
    assert asyncio.run(forget(story, one.lake)) == []
    audit = story.ask(lambda queue: queue.store.audit(ALL_TENANTS, limit=10))
    assert [line.change.verb for line in audit.lines if line.kind == LAKE] == ["forget"]
    put(
        story, 0, other.lake, replace(promised(story)[0][other.lake], lifted=True)
    )  # killed after the first log
    assert [name for name, _ in asyncio.run(forget(story, None))] == [other.lake]
    assert held(story) == [[]] * LOGS
    assert check_in(story.url, lake, replace(one, run=1)) == 2
    assert held(story) == [[one.lake]] * LOGS


def test_what_only_the_first_log_was_told_the_sweep_tells_the_others(story: Story, lake: Lake) -> None:
    """As through a service, which writes where all entries are; or by one that was killed half-way."""
    story.happen(1, FIRST)
    one = of(story)
    check_in(story.url, lake, one)
    put(story, 2, one.lake, replace(promised(story)[2][one.lake], run=7))
    for lifted in (True, False):
        put(story, 0, one.lake, replace(promised(story)[0][one.lake], lifted=lifted))
        story.ask(lambda queue: queue.sweep())
        assert [(there[one.lake].lifted, there[one.lake].run) for there in promised(story)] == [
            (lifted, 1), (lifted, 1), (lifted, 7),
        ]  # fmt: skip


def test_on_the_command_line(story: Story, lake: Lake) -> None:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(
            main, arguments, env={"PENSTOCK_URL": story.url, "PENSTOCK_LAKE": lake.place}
        )

    story.happen(1, FIRST, SECOND)
    one = of(story)
    check_in(story.url, lake, one)
    story.clock.advance(days=30)
    told = run("doctor", "-o", "table").stdout
    assert "no run has come to its end: no job leaves the store" in " ".join(told.split())
    lake.commit(one)
    assert run("lake", "publish").stdout == "0 answers published, as of nothing yet\n"
    logs = one.offset["logs"]
    ahead = {**one.offset, "logs": [logs[0], {**logs[1], "xid": 10_000}, logs[2]]}
    lake.commit(replace(lake.manifest(), offset=ahead))
    refused = run("lake", "publish")
    assert refused.exit_code != 0
    assert "has read log s01 up to entry 10000, and log s01 has only come to" in refused.stderr
    done = run("lake", "forget", one.lake)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{one.lake} in {lake.place}: the store waits for it no longer\n"
    assert held(story) == [[]] * LOGS
    assert "lake" not in [line.split()[1] for line in run("doctor").stdout.splitlines() if line.strip()]


# ── The loop closes ───────────────────────────────────────────────────────────────────────────────


async def test_a_failure_is_redriven_and_a_plan_applied_in_whatever_log_they_are(tmp_path: Path) -> None:
    async with connect(f"file://{tmp_path}/logs?shards={LOGS}") as queue:
        await published(queue.store)
        assert shard_of("default", "emails", LOGS) != 0
        for name in ("emails", FIRST):
            await queue.enqueue("email.send", queue=name, max_attempts=1)
            [leased] = await queue.lease(name, worker="w")
            await queue.nack(leased, REFUSED)
        done = await redrive(queue, FINGERPRINT)
        assert (done.matched, done.changed) == (1, 1)
        assert (await queue.queue("emails")).counts[Status.QUEUED] == 1
        applied = await apply(queue, "emails", dry_run=False)
        assert (await queue.queue("emails")).settings.max_concurrency == applied.after.max_concurrency == 20
