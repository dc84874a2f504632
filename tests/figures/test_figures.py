"""Figures are kept while things happen, and reading them counts nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from penstock.core.ports import Store
from penstock.core.registry import PutEntry
from penstock.figures import (
    COUNTS,
    MINUTE,
    PLACE,
    PLACES,
    Counts,
    Span,
    failure_groups,
    figures,
    is_rising,
    last_hour,
    percentile,
    piece_name,
    recent,
    types,
)
from penstock.figures.historian import MOST_GROUPS, Historian, _Tenant
from penstock.queue import Queue
from penstock.stores.memory import MemoryStore
from penstock.testing import FakeClock
from support.postgres import EmptyPostgresStore


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=[MemoryStore, EmptyPostgresStore], ids=["memory", "postgres"])
async def queue(request: pytest.FixtureRequest, clock: FakeClock) -> AsyncIterator[Queue]:
    store: Store = request.param(clock)
    yield Queue(store)
    await store.close()


async def run(queue: Queue, error: str | None = None, **options: object) -> str:
    """A job from its enqueue to the end of its first attempt."""
    made = await queue.enqueue("email.send", queue="emails", **options)
    [held] = await queue.lease("emails", worker="w")
    await (queue.ack(held) if error is None else queue.nack(held, error, retry=False))
    return str(made.id)


async def begun(queue: Queue) -> _Tenant:
    """A historian's view of the one tenant, from now on."""
    await queue.queues()
    tenant = _Tenant(queue.store, queue.tenant)
    await tenant.catch_up()
    return tenant


async def test_what_came_and_what_ended_by_minute_and_queue(queue: Queue, clock: FakeClock) -> None:
    historian = await begun(queue)
    await run(queue)
    clock.advance(seconds=60)
    await run(queue)
    await run(queue, "ValueError: no")
    await queue.enqueue("report", queue="reports")
    assert await historian.catch_up()
    hour = await figures(queue.store, queue.tenant, Span.HOUR)
    assert (hour.series.arrived[-2:], hour.series.succeeded[-2:]) == ([1, 3], [1, 1])
    assert (hour.series.failed[-2:], hour.series.dead[-2:]) == ([0, 1], [0, 1])
    assert [(one.queue, one.arrived) for one in hour.queues] == [("emails", 3), ("reports", 1)]
    day = await figures(queue.store, queue.tenant, Span.DAY, "reports")
    assert sum(day.series.arrived) == 1
    assert sum((await figures(queue.store, queue.tenant, Span.WEEK)).series.arrived) == 4


async def test_waits_and_runs_are_those_of_the_attempts(queue: Queue, clock: FakeClock) -> None:
    historian = await begun(queue)
    await queue.enqueue("slow", queue="emails", delay=5)
    clock.advance(seconds=7)  # so it waits two seconds and not seven
    [held] = await queue.lease("emails", worker="w")
    clock.advance(seconds=0.5)
    await queue.ack(held)
    await historian.catch_up()
    [emails] = (await figures(queue.store, queue.tenant, Span.HOUR)).queues
    assert emails.wait.p50_ms == pytest.approx(2_000, rel=0.06)
    assert emails.run.p50_ms == pytest.approx(500, rel=0.06)
    assert emails.busy_ms == 500


async def test_another_goes_on_where_one_has_ended(queue: Queue) -> None:
    first = await begun(queue)
    await run(queue)
    await first.catch_up()
    await run(queue)
    second = _Tenant(queue.store, queue.tenant)
    await second.catch_up()
    assert sum((await figures(queue.store, queue.tenant, Span.HOUR)).series.succeeded) == 2


async def test_of_two_that_both_lead_one_counts(queue: Queue) -> None:
    first = await begun(queue)
    second = _Tenant(queue.store, queue.tenant)
    await second.catch_up()
    await run(queue)
    await first.catch_up()
    with pytest.raises(Exception, match="changed"):
        await second.catch_up()
    assert sum((await figures(queue.store, queue.tenant, Span.HOUR)).series.succeeded) == 1


async def test_a_place_that_the_feed_no_longer_knows_is_begun_anew(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    historian = await begun(queue)
    await run(queue)
    await historian.catch_up()
    [place] = await queue.store.entries(queue.tenant, PLACES, [PLACE])
    broken = place.body.replace('"cursor":"', '"cursor":"x')
    await queue.store.put_entries(queue.tenant, [PutEntry(PLACES, PLACE, broken)])  # type: ignore[arg-type]
    later = _Tenant(queue.store, queue.tenant)
    assert not await later.catch_up()
    assert "begin anew" in caplog.text
    await run(queue)
    await later.catch_up()
    assert sum((await figures(queue.store, queue.tenant, Span.HOUR)).series.succeeded) == 2


async def test_reading_figures_reads_a_bounded_number_of_entries(queue: Queue, clock: FakeClock) -> None:
    for _ in range(3):
        await queue.store.put_entries(
            queue.tenant,
            [PutEntry(COUNTS, piece_name(MINUTE, clock.now()), '{"q":[1]}')],  # type: ignore[arg-type]
        )
        clock.advance(seconds=60)
    assert sum((await figures(queue.store, queue.tenant, Span.QUARTER)).series.arrived) == 3


class TestFailures:
    async def test_are_grouped_by_what_they_have_in_common(self, queue: Queue) -> None:
        historian = await begun(queue)
        ids = [await run(queue, f"ValueError: no user {number}") for number in (17, 4711)]
        await run(queue, "OSError: disk full")
        await historian.catch_up()
        groups = {group.error_type: group for group in await failure_groups(queue.store, queue.tenant)}
        assert groups.keys() == {"ValueError", "OSError"}
        assert (groups["ValueError"].count, groups["ValueError"].dead) == (2, 2)
        assert set(groups["ValueError"].sample_jobs) == set(ids)
        assert groups["ValueError"].queues == ["emails"]

    async def test_grow_from_pass_to_pass(self, queue: Queue, clock: FakeClock) -> None:
        historian = await begun(queue)
        for _ in range(6):
            await run(queue, "ValueError: no")
            await historian.catch_up()
        [group] = await failure_groups(queue.store, queue.tenant)
        assert (group.count, recent(group, clock.now(), 1)) == (6, 6)
        assert is_rising(group, clock.now())
        turned = clock.now().replace(minute=0) + timedelta(
            hours=1
        )  # that the hour is over is no reason to be calm
        assert (last_hour(group, turned), is_rising(group, turned)) == (6, True)
        assert not is_rising(group, clock.now() + timedelta(hours=2))

    async def test_that_never_say_the_same_do_not_fill_the_store(self, clock: FakeClock) -> None:
        queue = Queue(MemoryStore(clock))
        historian = await begun(queue)
        letters = "abcdefghij"
        for number in range(MOST_GROUPS + 20):
            word = "".join(letters[int(digit)] for digit in str(number))
            await run(queue, f"ValueError: {word}")
        await historian.catch_up()
        assert len(await failure_groups(queue.store, queue.tenant)) == MOST_GROUPS


async def test_types_are_remembered_with_their_queues(queue: Queue) -> None:
    historian = await begun(queue)
    await run(queue)
    await queue.enqueue("email.send", queue="other")
    await historian.catch_up()
    assert [(one.type, one.queues) for one in await types(queue.store, queue.tenant)] == [
        ("email.send", ["emails", "other"])
    ]


async def test_one_tenant_sees_nothing_of_another(queue: Queue) -> None:
    historian = await begun(queue)
    await run(queue, "ValueError: no")
    await historian.catch_up()
    assert not (await figures(queue.store, "others", Span.HOUR)).queues
    assert not await failure_groups(queue.store, "others")


async def test_who_does_not_lead_counts_nothing(clock: FakeClock) -> None:
    queue = Queue(MemoryStore(clock))
    await queue.enqueue("email.send")
    assert await queue.store.lead("figures", "somebody else", 60)
    historian = Historian(queue.store)
    await historian._round()
    assert not await queue.store.entries(queue.tenant, PLACES)


def test_percentiles_are_within_a_bucket() -> None:
    assert percentile({}, 0.5) is None
    counts = Counts(waits={0: 1})
    counts.add(Counts(waits={0: 1, 10: 2}))
    assert counts.waits == {0: 2, 10: 2}
