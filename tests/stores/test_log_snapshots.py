"""A state that was saved and restored goes on exactly as the one it was saved from."""

from __future__ import annotations

import asyncio
import gc
import weakref
import zlib
from itertools import pairwise
from random import Random
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from penstock.core import ledger, ordering
from penstock.core.codec import JsonText
from penstock.core.commands import Ack, CancelJob, ConfigureQueue, LeaseJobs, PutSchedule
from penstock.core.job import Job, Status
from penstock.core.limits import Rate
from penstock.core.machine import Machine
from penstock.core.registry import Audited, Insight, PutEntry, Spend
from penstock.core.retry import Retry
from penstock.core.schedule import Schedule
from penstock.stores.log import entry, pooled, segments, snapshots
from penstock.stores.log.backings.memory import MemoryObjects
from penstock.stores.log.errors import LogCorrupt, LogTooNew
from penstock.stores.log.packing import PackedJobs
from penstock.stores.log.segments import held_by
from penstock.stores.log.snapshots import (
    Manifest,
    Snapshot,
    Snapshots,
    TenantAt,
)
from penstock.stores.log.state import Parts
from penstock.stores.log.touched import TouchedMachine, touched_in
from penstock.stores.memory import MemoryStore
from penstock.testing import START, FakeClock, make_job
from support.differential import TENANTS, Differential

SOME = settings(
    max_examples=40,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that has an end comes to it soon."""
    monkeypatch.setattr(snapshots, "JOBS_PER_SEGMENT", 5)
    monkeypatch.setattr(snapshots, "TOLD_PER_SEGMENT", 7)
    monkeypatch.setattr(pooled, "BYTES_PER_SEGMENT", 1_000)
    monkeypatch.setattr(ledger, "MOST_TOLD", 50)
    monkeypatch.setattr(ledger, "MOST_AUDITED", 10)
    monkeypatch.setattr(ordering, "MOST_IDLE_GROUPS", 1)


class Restored(Differential):
    """Histories in which the store is, at any moment, saved and replaced by one that was restored from that."""

    WEIGHTS: ClassVar[dict[str, float]] = {
        **Differential.WEIGHTS,
        "save_and_restore": 2,
        "peek": 1,
        "follow": 1,
        "keep_books": 1,
    }
    machine: type[Machine] = TouchedMachine

    def __init__(self) -> None:
        self.objects = MemoryObjects()
        self.snapshots = Snapshots(self.objects, "s00")
        self.cursor: str | None = None
        super().__init__()
        self.reference._feed = self.subject._feed = "feed"

    @classmethod
    def make_store(cls, clock: FakeClock) -> MemoryStore:
        return MemoryStore(clock, machine=cls.machine)

    @property
    def subject(self) -> MemoryStore:
        assert isinstance(self.store, MemoryStore)
        return self.store

    def save_and_restore(self, dice: Random) -> None:
        self.loop.run_until_complete(self._save_and_restore())

    async def _save_and_restore(self) -> None:
        parts = held_by(self.subject, self.clock.now(), len(self.sent))
        found = await self.snapshots.manifest()
        manifest, version = (Manifest("log"), None) if found is None else found
        written = await self.snapshots.write(parts, manifest.snapshot, touched_in(parts.machines.values()))
        assert await self.snapshots.publish(replace(manifest, snapshot=written), version) is not None
        store = MemoryStore(self.clock, self.subject._tokens, self.machine)
        store._feed = "feed"
        restored = held_by(store, START, 0)
        assert await self.snapshots.load(restored) is not None
        assert (restored.now, restored.number) == (parts.now, parts.number)
        self.store = store
        for name in parts.machines:
            assert inside(restored.machines[name]) == inside(parts.machines[name])
            assert shown(restored.machines[name]) == shown(parts.machines[name])

    def peek(self, dice: Random) -> None:
        """A look that only one side has must not make a difference."""
        tenant = dice.choice(TENANTS)
        self.loop.run_until_complete(self.subject.next_at(tenant, ["emails", "reports"]))

    def follow(self, dice: Random) -> None:
        after = self.cursor if dice.random() < 0.8 else None
        told, _ = self.both(lambda store, _: answered(store.events("acme", after=after, limit=20)))
        self.cursor = None if isinstance(told, Exception) else told.next
        self.both(lambda store, _: store.audit("acme", limit=50))

    def keep_books(self, dice: Random) -> None:
        tenant, name = dice.choice(TENANTS), dice.choice(["one", "two"])
        put = PutEntry(
            "worker", name, dice.choice([None, JsonText("1")]), None, dice.choice([None, 5]),
            dice.choice([None, Audited(name, "put", "ada")]),
        )  # fmt: skip
        self.both(lambda store, _: store.put_entries(tenant, [put]))
        self.both(lambda store, _: store.entries(None, "worker"))
        self.both(lambda store, _: store.spend(tenant, [Spend(name, 3, 0.5, 10)]))
        insight = Insight(tenant, name, self.clock.now(), JsonText("{}"))
        self.both(lambda store, _: store.put_insights([insight]))
        self.both(lambda store, _: store.insights(tenant, ["one", "two"]))
        holder = dice.choice("ab")
        self.both(lambda store, _: store.lead(name, holder, 20))

    def compare_state(self, tenant: str) -> None:
        super().compare_state(tenant)
        self.both(lambda store, _: store.audit(tenant, limit=50))


async def answered(awaitable: Any) -> Any:
    try:
        return await awaitable
    except Exception as error:
        return error


def inside(machine: Machine) -> dict[str, Any]:
    """What decides how a machine goes on, but for the order in which it would find that out."""
    ledger = machine.ledger
    return {
        "jobs": {job_id: ledger.jobs[job_id] for job_id in ledger.jobs},
        "trails": dict(ledger.trails),
        "lanes": list(ledger.lanes),
        "settings": [lane.settings for lane in ledger.lanes.values()],
        "counts": [lane.counts for lane in ledger.lanes.values()],
        "turns": [list(lane._turns.items()) for lane in ledger.lanes.values()],
        "turn": [(lane._turn, lane._full_until, lane.running) for lane in ledger.lanes.values()],
        "members": [
            {group.key: (group.members, group.running, group.turn) for group in lane._groups.values()}
            for lane in ledger.lanes.values()
        ],
        "orders": [
            {key: (order.running, order.admitted) for key, order in lane._orders.items()}
            for lane in ledger.lanes.values()
        ],
        "pending": ledger.flow._pending,
        "children": {parent: set(children) for parent, children in ledger.flow._children.items()},
        "holders": ledger.keys._holders,
        "told": (list(ledger.told), ledger.told_count),
        "audited": list(ledger.audited),
        "schedules": machine.schedules(),
    }


def shown(machine: Machine) -> list[str]:
    """What people are shown, to the letter: 30 and 30.0 are equal."""
    ledger = machine.ledger
    settings = [lane.settings for lane in ledger.lanes.values()]
    return [
        *map(
            repr, [*(ledger.jobs[job_id] for job_id in sorted(ledger.jobs)), *settings, *machine.schedules()]
        )
    ]


def test_a_store_that_was_saved_and_restored_answers_as_the_state_machine_does() -> None:
    run_state_machine_as_test(Restored, settings=SOME)


async def saved(objects: MemoryObjects, jobs: int = 12) -> tuple[Snapshots, MemoryStore]:
    """A snapshot of a store with some jobs."""
    store = MemoryStore(FakeClock())
    await store.enqueue("acme", [make_job() for _ in range(jobs)])
    kept = Snapshots(objects, "s00")
    written = await kept.write(held_by(store, START, 7), None)
    await kept.publish(Manifest("log", snapshot=written), None)
    return kept, store


class TestLoading:
    async def test_a_log_without_a_snapshot_has_nothing_to_load(self) -> None:
        parts = Parts()
        assert await Snapshots(MemoryObjects(), "s00").load(parts) is None
        assert parts == Parts()

    async def test_what_was_loaded_before_does_not_stay_in_memory(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The compactor loads it again after whatever went wrong, and that may go wrong for hours."""
        monkeypatch.setattr(snapshots, "FROZEN_FROM", 0)
        kept, _ = await saved(MemoryObjects())
        ledgers = []
        try:
            for _ in range(3):
                parts = Parts()
                await kept.load(parts)
                ledgers.append(weakref.ref(parts.machines["acme"].ledger))
            assert [ledger() is None for ledger in ledgers] == [True, True, False]
        finally:
            gc.unfreeze()

    async def test_a_segment_that_is_missing_is_told(self) -> None:
        objects = MemoryObjects()
        kept, _ = await saved(objects)
        [first, *_] = await objects.list("s00/seg")
        await objects.delete([first.key])
        with pytest.raises(LogCorrupt, match="not there"):
            await kept.load(Parts())

    async def test_a_segment_that_is_damaged_is_told(self) -> None:
        objects = MemoryObjects()
        kept, _ = await saved(objects)
        for found in await objects.list("s00/seg"):
            there = await objects.read(found.key)
            assert there is not None
            data = bytearray(there[0])
            data[len(data) // 2] ^= 1
            await objects.replace(found.key, bytes(data), there[1])
        with pytest.raises(LogCorrupt, match=r"damaged at s00/seg/\w+: .*checksum"):
            await kept.load(Parts())

    async def test_a_segment_in_the_place_of_another_is_told(self) -> None:
        objects = MemoryObjects()
        kept, _ = await saved(objects)
        first, *others = [found.key for found in await objects.list("s00/seg")]
        held = {key: await objects.read(key) for key in (first, *others)}
        for key, following in pairwise([first, *others, first]):
            there, other = held[key], held[following]
            assert there is not None
            assert other is not None
            await objects.replace(key, other[0], there[1])
        with pytest.raises(LogCorrupt, match="damaged at s00/seg/"):
            await kept.load(Parts())

    async def test_a_manifest_of_a_newer_version_is_told(self) -> None:
        objects = MemoryObjects()
        await objects.replace("s00/manifest", b'{"fmt": 99, "new": []}', None)
        with pytest.raises(LogTooNew):
            await Snapshots(objects, "s00").manifest()

    async def test_it_starts_over_when_the_watermark_has_passed_it_meanwhile(self) -> None:
        objects = MemoryObjects()
        kept, store = await saved(objects)

        class Overtaken(Snapshots):
            """While the first snapshot is loaded another is made, and the entries between the two are let go."""

            overtaken = False

            async def _fill(self, parts: Parts, snapshot: Snapshot) -> bool:
                complete = await super()._fill(parts, snapshot)
                if not self.overtaken:
                    self.overtaken = True
                    await store.enqueue("acme", [make_job()])
                    written = await kept.write(held_by(store, START, 9), None)
                    found = await kept.manifest()
                    assert found is not None
                    await kept.publish(Manifest("log", snapshot=written, watermark=8), found[1])
                return complete

        parts = Parts()
        await Overtaken(objects, "s00").load(parts)
        assert parts.number == 9
        assert len(parts.machines["acme"].ledger.jobs) == 13

    async def test_others_have_their_turn_while_it_loads(self) -> None:
        """What was saved in many pieces is taken in piece by piece."""
        objects = MemoryObjects()
        kept, _ = await saved(objects, jobs=40)
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        await kept.load(Parts())
        task.cancel()
        assert turns >= 8 + 6  # segments of five jobs, and of seven events


BIG = 1_048_576
"""What a payload may have."""


class Kept:
    """A store whose snapshots are made one after the other, as a compactor does."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock, machine=TouchedMachine)
        self.objects = MemoryObjects(self.clock.now)
        self.written: Snapshot | None = None

    async def write(self) -> TenantAt:
        parts = held_by(self.store, self.clock.now(), 1)
        touched = touched_in(parts.machines.values())
        self.written = await Snapshots(self.objects, "s00").write(parts, self.written, touched)
        for some in touched.values():
            some.clear()
        return self.written.tenants[0]

    async def sizes(self) -> list[int]:
        return [found.size for found in await self.objects.list("s00/seg")]

    async def loaded(self) -> Machine:
        assert self.written is not None
        kept = Snapshots(self.objects, "s00")
        found = await kept.manifest()
        await kept.publish(Manifest("log", snapshot=self.written), found and found[1])
        parts = Parts(new_machine=TouchedMachine)
        await kept.load(parts)
        return parts.machines["acme"]

    async def run(self, **ack: Any) -> None:
        """Lease the next job and end it."""
        [[leased]] = await self.store.lease("acme", [LeaseJobs("default", "w")])  # type: ignore[misc]
        await self.store.settle("acme", [Ack(leased.id, leased.token, **ack)])


class TestSizes:
    """What is too large for one request is never written, and then nothing of the log may ever go."""

    @pytest.fixture(autouse=True)
    def as_it_is(self, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()

    async def test_jobs_with_large_payloads_make_more_segments(self) -> None:
        kept = Kept()
        await kept.store.enqueue("acme", [make_job(payload="x" * (BIG - 2)) for _ in range(20)])
        there = await kept.write()
        assert [one.count for one in there.jobs] == [8, 8, 4]
        assert max(await kept.sizes()) < 10 * BIG
        assert inside(await kept.loaded()) == inside(kept.store.machine("acme", kept.clock.now()))

    async def test_so_do_large_results_in_what_is_told(self) -> None:
        kept = Kept()
        for _ in range(20):
            await kept.store.enqueue("acme", [make_job()])
            await kept.run(result=JsonText(f'"{"x" * (BIG - 2)}"'))
        there = await kept.write()
        assert [one.count for one in there.told] == [16, 16, 8]  # each came in, and ended
        assert max(await kept.sizes()) < 10 * BIG
        assert inside(await kept.loaded()) == inside(kept.store.machine("acme", kept.clock.now()))

    async def test_so_do_large_headers_and_large_changes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pooled, "BYTES_PER_SEGMENT", 10_000)
        kept = Kept()
        jobs = [make_job(headers={"n": f"{n}{'x' * 4_000}"}) for n in range(6)]
        await kept.store.enqueue("acme", jobs)
        await kept.store.cancel("acme", [CancelJob(job.id, "ada", "x" * 1_000) for job in jobs])
        there = await kept.write()
        assert [one.count for one in there.jobs] == [2, 2, 2]
        assert [one.count for one in there.audited] == [6]
        assert inside(await kept.loaded()) == inside(kept.store.machine("acme", kept.clock.now()))

    async def test_what_did_not_change_is_not_written_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pooled, "BYTES_PER_SEGMENT", 10_000)
        kept = Kept()

        async def more() -> None:
            await kept.store.enqueue("acme", [make_job(payload="x" * 3_000) for _ in range(6)])
            for _ in range(4):
                await kept.run(result=JsonText(f'"{"x" * 4_000}"'))

        await more()
        before = await kept.write()
        await more()
        after = await kept.write()
        sizes = await kept.sizes()
        assert await kept.write() == after
        assert len(await kept.sizes()) == len(sizes) + 1, "another head, and nothing else"
        assert [one.count for one in before.jobs] == [2, 2, 2]
        assert [one.count for one in after.jobs] == [2, 2, 2, 2, 4]
        assert after.jobs[:2] == before.jobs[:2], "of those that are in it none was touched"
        assert [one.count for one in before.told] == [9, 1]
        assert [one.count for one in after.told] == [9, 9, 2]
        assert after.told[0] == before.told[0]
        assert inside(await kept.loaded()) == inside(kept.store.machine("acme", kept.clock.now()))


class TestRequests:
    """Idempotency keys outlive the jobs that answered them, and have to be somewhere meanwhile."""

    async def test_those_of_jobs_that_have_left_are_kept_in_segments_as_small_and_dropped_when_they_lapse(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept = Kept()
        jobs = [make_job(idempotency_key=f"k{n}") for n in range(30)]
        settings = ConfigureQueue("default", {"retention_seconds": 0}, "ada")
        await kept.store.configure("acme", [settings])
        await kept.store.enqueue("acme", jobs)
        for _ in jobs:
            await kept.run()
        kept.clock.advance(seconds=1)
        await kept.store.sweep(limit=100)
        there = await kept.write()
        assert {one.count for one in there.jobs} == {0}
        assert len(there.jobs) == 6  # 5 each
        await kept.store.enqueue("acme", [make_job()])
        assert (await kept.write()).jobs[:5] == there.jobs[:5]
        restored = (await kept.loaded()).ledger.keys.requests
        assert restored == kept.store.machine("acme", kept.clock.now()).ledger.keys.requests
        assert len(restored) == 30
        kept.clock.advance(days=2)
        assert [one.count for one in (await kept.write()).jobs] == [1]


class TestRules:
    async def test_one_made_by_newer_rules_is_told_by_its_manifest_and_by_its_segments(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        objects = MemoryObjects()
        with monkeypatch.context() as newer:
            newer.setattr(entry, "RULES", entry.RULES + 1)
            kept, _ = await saved(objects)
        with pytest.raises(
            LogTooNew, match=r"manifest is in format 1 with rules 2, .* up to rules 1; upgrade"
        ):
            await kept.load(Parts())
        head = (await objects.list("s00/seg"))[0]
        data = await objects.get(head.key)
        assert data is not None
        with pytest.raises(LogTooNew, match="a snapshot is in format 1 with rules 2"):
            segments.restore_head(Parts(), data)

    async def test_one_that_does_not_say_is_of_the_first(self) -> None:
        objects = MemoryObjects()
        await objects.replace("s00/manifest", b'{"id": "log", "fmt": 1}', None)
        found = await Snapshots(objects, "s00").manifest()
        assert found is not None
        assert found[0].rules == 1
        given = Parts(number=7)
        format, body, _ = msgspec.msgpack.decode(segments.head_segment(given)[:-4], type=list[msgspec.Raw])
        older = msgspec.msgpack.encode([format, body])
        restored = Parts()
        segments.restore_head(restored, older + zlib.crc32(older).to_bytes(4, "big"))
        assert restored == given


class TestNumbers:
    """10 is not to become 10.0: whoever began at a snapshot shows what everybody else shows."""

    async def test_stay_as_they_were_given(self) -> None:
        kept, whole, broken = Kept(), Retry.fixed(5), Retry.fixed(5.0)
        store = kept.store
        await store.configure(
            "acme", [ConfigureQueue("default", {"retry": whole, "rate": Rate(3, 60)}, "ada")]
        )
        await store.configure("acme", [ConfigureQueue("other", {"retry": broken}, "ada")])
        jobs = [make_job(retry=whole), make_job(retry=broken), make_job(retry=whole)]
        await store.enqueue("acme", jobs)
        await store.lease("acme", [LeaseJobs("default", "w", seconds=30)])
        await store.put_schedules(
            "acme", [PutSchedule(Schedule("s", "* * * * *", make_job(retry=whole)), "ada")]
        )
        await store.spend("acme", [Spend("a", 3, 1, 10)])
        await kept.write()
        restored = await kept.loaded()
        assert shown(restored) == shown(store.machine("acme", kept.clock.now()))

    async def test_of_an_allowance_too(self) -> None:
        kept = Kept()
        await kept.store.enqueue("acme", [make_job()])
        await kept.store.spend("acme", [Spend("a", 3, 1, 10)])
        parts = held_by(kept.store, START, 1)
        restored = Parts()
        segments.restore_head(restored, segments.head_segment(parts))
        assert repr(restored.allowances) == repr(parts.allowances)

    async def test_of_jobs_that_share_what_they_have_in_common_while_they_wait(self) -> None:
        packed = PackedJobs("acme")
        jobs = [make_job(retry=Retry.fixed(5)), make_job(retry=Retry.fixed(5.0))]
        for asked in jobs:
            job = Job(asked, "acme", START, START, Status.QUEUED, START)
            packed[asked.id] = job
            packed.pack(job)
        assert [repr(packed[asked.id].asked) for asked in jobs] == [repr(asked) for asked in jobs]
