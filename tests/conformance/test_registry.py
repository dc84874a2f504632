"""What a store keeps besides jobs: entries under their guards, allowances, and the log of what people changed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from penstock.core.codec import JsonText
from penstock.core.errors import EntryConflict, InvalidInput
from penstock.core.job import Change
from penstock.core.ports import Store
from penstock.core.registry import ALL_TENANTS, Audited, AuditLine, Entry, PutEntry, Spend, Spent
from penstock.queue import Queue
from penstock.testing import START, FakeClock

ONE = JsonText('{"n": 1}')
TWO = JsonText('{"n":  2}')


async def put(store: Store, name: str = "a", body: JsonText | None = ONE, **given: Any) -> Any:
    tenant = given.pop("tenant", "default")
    [answer] = await store.put_entries(tenant, [PutEntry("thing", name, body, **given)])
    return answer


def by(actor: str, verb: str = "made", name: str = "thing-1") -> Audited:
    return Audited(name, verb, actor, "because", JsonText('{"so":"it is"}'))


class TestEntries:
    async def test_a_new_one_has_version_one_and_is_found_as_it_was_put(self, store: Store) -> None:
        entry = await put(store, seconds=60)
        assert entry == Entry("thing", "default", "a", 1, ONE, START, START + timedelta(seconds=60))
        assert await store.entries("default", "thing") == [entry]

    async def test_replacing_it_counts_its_version_up(self, store: Store, clock: FakeClock) -> None:
        await put(store, seconds=60)
        at = clock.advance(seconds=5)
        entry = await put(store, body=TWO)
        assert entry == Entry("thing", "default", "a", 2, TWO, at)
        assert await store.entries("default", "thing") == [entry]

    async def test_a_moment_may_be_given_instead_of_seconds(self, store: Store, clock: FakeClock) -> None:
        until = START + timedelta(seconds=60)
        await put(store, expires_at=until)
        clock.advance(seconds=5)
        assert (await put(store, expires_at=until)).expires_at == until

    @pytest.mark.parametrize(("guard", "fits"), [(None, True), (0, False), (1, False), (2, True), (3, False)])
    @pytest.mark.parametrize("body", [ONE, None])
    async def test_a_guard_lets_only_its_version_be_changed(
        self, store: Store, guard: int | None, fits: bool, body: JsonText | None
    ) -> None:
        await put(store)
        before = await put(store, body=TWO)
        answer = await put(store, body=body, version=guard)
        left = await store.entries("default", "thing")
        if not fits:
            assert isinstance(answer, EntryConflict)
            assert left == [before]
        elif body is None:
            assert answer is None
            assert left == []
        else:
            assert left == [answer]
            assert answer.version == 3

    @pytest.mark.parametrize(("guard", "fits"), [(None, True), (0, True), (1, False)])
    async def test_what_is_not_there_has_version_nought(
        self, store: Store, guard: int | None, fits: bool
    ) -> None:
        answer = await put(store, version=guard)
        assert isinstance(answer, Entry if fits else EntryConflict)
        assert len(await store.entries("default", "thing")) == fits

    async def test_dropping_what_is_not_there_is_harmless(self, store: Store) -> None:
        assert await put(store, body=None) is None

    async def test_one_that_was_dropped_is_new_again(self, store: Store) -> None:
        await put(store)
        await put(store, body=None)
        assert (await put(store, version=0)).version == 1

    async def test_a_batch_takes_effect_in_its_order_and_a_refusal_leaves_the_rest_alone(
        self, store: Store
    ) -> None:
        answers = await store.put_entries(
            "default",
            [
                PutEntry("thing", "b", ONE, version=0),
                PutEntry("thing", "a", ONE, version=7),
                PutEntry("thing", "b", TWO, version=0),
                PutEntry("thing", "b", TWO, version=1),
                PutEntry("other", "b", ONE, version=0),
                PutEntry("thing", "c", ONE),
                PutEntry("thing", "c", None, version=1),
            ],
        )
        versions = [answer.version if isinstance(answer, Entry) else answer for answer in answers]
        assert [versions[place] for place in (0, 3, 4, 5, 6)] == [1, 2, 1, 1, None]
        assert [type(versions[place]) for place in (1, 2)] == [EntryConflict, EntryConflict]
        assert [entry.name for entry in await store.entries("default", "thing")] == ["b"]

    async def test_an_empty_batch_does_nothing(self, store: Store) -> None:
        assert await store.put_entries("default", []) == []
        assert await store.spend("default", []) == []

    async def test_of_many_that_must_be_new_one_wins(self, store: Store) -> None:
        bodies = [JsonText(str(number)) for number in range(8)]
        answers = await asyncio.gather(*(put(store, body=body, version=0) for body in bodies))
        won = [answer for answer in answers if isinstance(answer, Entry)]
        assert len(won) == 1
        assert await store.entries("default", "thing") == won

    async def test_of_many_changes_under_one_guard_one_wins(self, store: Store) -> None:
        await put(store)
        bodies = [JsonText(str(number)) for number in range(8)]
        answers = await asyncio.gather(*(put(store, body=body, version=1) for body in bodies))
        assert [type(answer) for answer in answers].count(Entry) == 1

    async def test_none_is_lost_of_many_changes_without_a_guard(self, store: Store) -> None:
        answers = await asyncio.gather(*(put(store) for _ in range(8)))
        assert sorted(answer.version for answer in answers) == list(range(1, 9))

    async def test_are_listed_by_kind_in_the_order_of_their_names(self, store: Store) -> None:
        for name in ("b", "C", "é", "a"):
            await put(store, name)
        await store.put_entries("default", [PutEntry("other", "a", ONE)])
        names = [entry.name for entry in await store.entries("default", "thing")]
        assert names == ["C", "a", "b", "é"]

    async def test_are_looked_up_by_name_each_once(self, store: Store) -> None:
        for name in ("a", "b", "c"):
            await put(store, name)
        found = await store.entries("default", "thing", names=["c", "x", "a", "c"])
        assert [entry.name for entry in found] == ["a", "c"]
        assert await store.entries("default", "thing", names=[]) == []
        assert await store.entries("default", "other", names=["a"]) == []


class TestExpiry:
    async def test_from_then_on_it_is_gone(self, store: Store, clock: FakeClock) -> None:
        entry = await put(store, seconds=60)
        clock.advance(seconds=59.999)
        assert await store.entries("default", "thing", names=["a"]) == [entry]
        clock.advance(seconds=0.001)
        assert await store.entries("default", "thing") == []
        assert await store.entries("default", "thing", names=["a"]) == []

    @pytest.mark.parametrize(("guard", "fits"), [(None, True), (0, True), (1, False)])
    async def test_its_name_is_as_good_as_new(
        self, store: Store, clock: FakeClock, guard: int | None, fits: bool
    ) -> None:
        await put(store, seconds=60)
        clock.advance(seconds=60)
        answer = await put(store, body=TWO, version=guard)
        if fits:
            assert answer == Entry("thing", "default", "a", 1, TWO, clock.now())
        else:
            assert isinstance(answer, EntryConflict)

    async def test_putting_it_again_keeps_it(self, store: Store, clock: FakeClock) -> None:
        await put(store, seconds=60)
        clock.advance(seconds=30)
        await put(store, seconds=60)
        clock.advance(seconds=45)
        assert len(await store.entries("default", "thing")) == 1

    async def test_a_sweep_leaves_what_is_not_over(self, store: Store, clock: FakeClock) -> None:
        kept = [await put(store, "a"), await put(store, "c", seconds=61)]
        await put(store, "b", seconds=60)
        await put(store, "d", seconds=60, tenant="acme")
        clock.advance(seconds=60)
        await store.sweep(limit=100)
        assert await store.entries(None, "thing") == kept


class TestTenants:
    async def test_each_has_its_own_entry_of_a_name(self, store: Store) -> None:
        ours = await put(store)
        theirs = await put(store, body=TWO, version=0, tenant="acme")
        assert await store.entries("default", "thing") == [ours]
        assert await store.entries("acme", "thing", names=["a"]) == [theirs]

    async def test_nobody_changes_anothers(self, store: Store) -> None:
        ours = await put(store, audit=by("ada"))
        assert isinstance(await put(store, body=TWO, version=1, tenant="acme"), EntryConflict)
        assert await put(store, body=None, tenant="acme") is None
        assert await store.entries("default", "thing") == [ours]

    async def test_without_a_tenant_everyones_are_found(self, store: Store) -> None:
        for tenant in ("default", ALL_TENANTS, "acme"):
            await put(store, "b", tenant=tenant)
            await put(store, "a", tenant=tenant)
        everyones = await store.entries(None, "thing")
        assert [(entry.tenant, entry.name) for entry in everyones] == [
            (tenant, name) for tenant in ("*", "acme", "default") for name in ("a", "b")
        ]
        assert await store.entries(None, "thing", names=["b"]) == everyones[1::2]

    async def test_the_services_own_entries_are_no_tenants(self, store: Store) -> None:
        await put(store, tenant=ALL_TENANTS)
        assert await store.entries("default", "thing") == []

    async def test_entries_make_nobody_a_tenant(self, store: Store) -> None:
        await put(store, audit=by("ada"))
        await store.audit("acme", limit=1)
        assert await store.tenants() == []

    async def test_an_allowance_is_one_tenants(self, store: Store) -> None:
        spend = Spend("requests", 1, rate=1, burst=1)
        assert (await store.spend("default", [spend]))[0].granted
        assert (await store.spend("acme", [spend]))[0].granted

    async def test_the_audit_log_is_one_tenants(self, store: Store, queue: Queue) -> None:
        await put(store, audit=by("ada"))
        await queue.pause("default")
        assert (await store.audit("acme", limit=10)).lines == ()
        [trail] = await store.history("acme", [("thing", "thing-1")])
        assert not isinstance(trail, Exception)
        assert trail.records == ()


class TestAudit:
    async def test_a_change_of_an_entry_is_told_with_who_and_why(
        self, store: Store, queue: Queue, clock: FakeClock
    ) -> None:
        await put(store, audit=by("ada"))
        at = clock.advance(seconds=1)
        await put(store, body=None, audit=by("bob", "dropped"))
        detail = JsonText('{"so":"it is"}')
        made, dropped = (await queue.history("thing-1", "thing")).records
        assert made == Change(START, "made", "ada", "because", None, detail)
        assert dropped == Change(at, "dropped", "bob", "because", None, detail)
        assert (await store.audit("default", limit=10)).lines == (
            AuditLine("thing", "thing-1", dropped),
            AuditLine("thing", "thing-1", made),
        )

    async def test_what_was_refused_or_changed_nothing_is_not_told(
        self, store: Store, queue: Queue, clock: FakeClock
    ) -> None:
        await put(store, version=1, audit=by("ada"))
        await put(store, body=None, audit=by("ada"))
        await put(store, seconds=1)
        clock.advance(seconds=1)
        await put(store, body=None, audit=by("ada"))  # it was gone by itself
        assert (await queue.history("thing-1", "thing")).records == ()
        assert (await store.audit("default", limit=10)).lines == ()

    async def test_a_batch_is_told_in_its_order(self, store: Store) -> None:
        names = ["c", "a", "b", "a"]
        await store.put_entries(
            "default", [PutEntry("thing", name, ONE, audit=by("ada", name=name)) for name in names]
        )
        lines = (await store.audit("default", limit=10)).lines
        assert [line.name for line in lines] == names[::-1]

    async def test_an_entry_changed_without_audit_leaves_no_trace(self, store: Store) -> None:
        await put(store)
        assert (await store.audit("default", limit=10)).lines == ()

    @pytest.mark.parametrize("kind", ["thing", "queue", "schedule"])
    async def test_what_has_no_trail_has_an_empty_one(self, queue: Queue, kind: str) -> None:
        assert (await queue.history("unheard-of", kind)).records == ()

    async def test_lists_what_people_did_to_jobs_queues_and_schedules_newest_first(
        self, store: Store, queue: Queue
    ) -> None:
        job = await queue.enqueue("email.send")
        await queue.pause("default", "lunch")
        await queue.put_schedule("daily", "* * * * *", {"type": "report.build"})
        await put(store, audit=by("bob"))
        await queue.cancel(job.id)
        page = await store.audit("default", limit=10)
        told = [(line.kind, line.name, line.change.verb, line.change.actor) for line in page.lines]
        assert told == [
            ("job", job.id, "cancel", "ada"),
            ("thing", "thing-1", "made", "bob"),
            ("schedule", "daily", "put", "ada"),
            ("queue", "default", "configure", "ada"),
        ]
        assert page.lines[-1].change.reason == "lunch"
        assert page.next is None

    async def test_what_rules_did_is_left_out(self, store: Store, queue: Queue) -> None:
        parent = await queue.enqueue("report.collect")
        child = await queue.enqueue("report.build", parents=[parent.id])
        await queue.cancel(parent.id)
        assert [change.actor for change in (await queue.history(child.id)).changes] == ["rule:flow"]
        [line] = (await store.audit("default", limit=10)).lines
        assert line.name == parent.id

    async def test_goes_on_where_a_page_ended_whatever_happens_meanwhile(
        self, store: Store, queue: Queue
    ) -> None:
        names = [f"q{number}" for number in range(5)]
        for name in names:
            await queue.pause(name)
        seen, before = [], None
        while True:
            page = await store.audit("default", before=before, limit=2)
            seen += [line.name for line in page.lines]
            await queue.pause(f"later-{len(seen)}")
            if (before := page.next) is None:
                break
            assert len(page.lines) == 2
        assert seen == names[::-1]

    async def test_a_full_last_page_has_no_next(self, store: Store, queue: Queue) -> None:
        await queue.pause("a")
        await queue.pause("b")
        assert (await store.audit("default", limit=2)).next is None

    @pytest.mark.parametrize("before", ["", "x", "-1", "1 ", "9" * 30])
    async def test_refuses_a_place_that_it_never_named(self, store: Store, before: str) -> None:
        with pytest.raises(InvalidInput, match="before"):
            await store.audit("default", before=before, limit=2)


class TestSpend:
    async def test_takes_all_of_the_cost_or_nothing(self, store: Store) -> None:
        spends = [Spend("a", cost, rate=2, burst=10) for cost in (6, 5, 4, 1)]
        assert await store.spend("default", spends) == [
            Spent(True, 4, 0),
            Spent(False, 4, 0.5),
            Spent(True, 0, 0),
            Spent(False, 0, 0.5),
        ]

    async def test_each_of_a_batch_is_answered_in_its_place(self, store: Store) -> None:
        spends = [Spend(name, cost, rate=1, burst=10) for name, cost in [("b", 1), ("a", 2), ("b", 3)]]
        assert [spent.left for spent in await store.spend("default", spends)] == [9, 8, 6]

    async def test_fills_up_with_time_but_never_above_its_burst(self, store: Store, clock: FakeClock) -> None:
        all_of_it = Spend("a", 10, rate=2, burst=10)
        assert (await store.spend("default", [all_of_it]))[0].granted
        clock.advance(seconds=4.5)
        assert await store.spend("default", [all_of_it]) == [Spent(False, 9, 0.5)]
        clock.advance(seconds=0.5)
        assert await store.spend("default", [all_of_it]) == [Spent(True, 0, 0)]
        clock.advance(days=1)
        assert await store.spend("default", [Spend("a", 1, rate=2, burst=10)]) == [Spent(True, 9, 0)]

    async def test_a_smaller_burst_holds_at_once(self, store: Store) -> None:
        await store.spend("default", [Spend("a", 1, rate=1, burst=10)])
        assert await store.spend("default", [Spend("a", 4, rate=1, burst=3)]) == [Spent(False, 3, 1)]

    async def test_a_clock_that_goes_back_neither_gives_nor_takes(
        self, store: Store, clock: FakeClock
    ) -> None:
        spend = Spend("a", 1, rate=1, burst=9)
        assert await store.spend("default", [spend]) == [Spent(True, 8, 0)]
        clock.advance(seconds=-5)
        assert await store.spend("default", [spend]) == [Spent(True, 7, 0)]
        clock.advance(seconds=5)
        assert await store.spend("default", [spend]) == [Spent(True, 6, 0)]

    async def test_a_sweep_forgets_nothing_that_was_spent(self, store: Store, clock: FakeClock) -> None:
        await store.spend("default", [Spend("slow", 10, rate=1 / 3600, burst=10)])
        await store.spend("default", [Spend("fast", 10, rate=1, burst=10)])
        clock.advance(hours=5)
        await store.sweep(limit=100)
        spends = [Spend("slow", 6, rate=1 / 3600, burst=10), Spend("fast", 10, rate=1, burst=10)]
        slow, fast = await store.spend("default", spends)
        assert not slow.granted
        assert slow.left == pytest.approx(5)
        assert fast == Spent(True, 0, 0)

    async def test_many_at_once_get_no_more_than_there_is(self, store: Store) -> None:
        spend = Spend("a", 1, rate=1, burst=5)
        answers = await asyncio.gather(*(store.spend("default", [spend, spend]) for _ in range(8)))
        assert sum(spent.granted for answer in answers for spent in answer) == 5
