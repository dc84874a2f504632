"""A state that was saved and restored goes on exactly as the one it was saved from."""

from __future__ import annotations

import asyncio
import gc
import weakref
from itertools import pairwise
from random import Random
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from penstock.core import ledger, ordering
from penstock.core.codec import JsonText
from penstock.core.machine import Machine
from penstock.core.registry import Audited, Insight, PutEntry, Spend
from penstock.stores.log import snapshots
from penstock.stores.log.backings.memory import MemoryObjects
from penstock.stores.log.errors import LogCorrupt, LogTooNew
from penstock.stores.log.segments import held_by
from penstock.stores.log.snapshots import Manifest, Snapshot, Snapshots, TouchedMachine, touched_in
from penstock.stores.log.state import Parts
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
