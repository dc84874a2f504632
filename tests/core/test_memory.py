"""What a machine holds stays in proportion to the jobs it has, however long it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from penstock.core import ordering
from penstock.core.commands import (
    Snooze,
)
from penstock.core.limits import Rate
from penstock.core.machine import Machine
from penstock.core.timers import Timers
from penstock.stores.memory import MemoryStore
from support.bench import Bench

SECOND = timedelta(seconds=1)


pytestmark = pytest.mark.usefixtures("no_endless_loop")


def size(timers: Timers) -> int:
    return len(timers._heap)


def weights(machine: Machine) -> dict[str, int]:
    """How much every private collection of a machine holds. Trails are counted, not their records: history is kept."""
    lanes = list(machine.ledger.lanes.values())
    groups = [group for lane in lanes for group in lane._groups.values()]
    return {
        "jobs": len(machine.ledger.jobs),
        "trails": len(machine.ledger.trails),
        "leases": size(machine.ledger.leases),
        "deadlines": size(machine.ledger.deadlines),
        "ended": sum(size(timers) for timers in machine.ledger.ended.values()),
        "catalogue": len(machine.ledger.catalogue._ids),
        "requests": len(machine.ledger.keys.requests),
        "windows": len(machine.ledger.keys._windows),
        "holders": len(machine.ledger.keys._holders),
        "children": len(machine.ledger.flow._children),
        "pending": len(machine.ledger.flow._pending),
        "later": sum(size(lane._later) for lane in lanes),
        "queued": sum(size(lane._queued) for lane in lanes),
        "rotation": sum(len(lane._rotation) for lane in lanes),
        "throttled": sum(len(lane._throttled) for lane in lanes),
        "groups": len(groups),
        "turns": sum(len(lane._turns) for lane in lanes),
        "rates": sum(len(lane._rates) for lane in lanes),
        "group heaps": sum(len(group.heap) for group in groups),
        "orders": sum(len(lane._orders) for lane in lanes),
        "order heaps": sum(len(order.heap) for lane in lanes for order in lane._orders.values()),
    }


def _acked(bench: Bench) -> Iterator[None]:
    while True:
        bench.enqueue()
        bench.ack(bench.lease_one())
        yield


def _cancelled(bench: Bench) -> Iterator[None]:
    while True:
        bench.cancel(bench.enqueue())
        yield


def _cancelled_before_due(bench: Bench) -> Iterator[None]:
    while True:
        bench.cancel(bench.enqueue(delay=3_600))
        yield


def _cancelled_while_paused(bench: Bench) -> Iterator[None]:
    bench.configure(paused=True)
    number = 0
    while True:
        number += 1
        bench.cancel(bench.enqueue(key=f"key-{number}", priority=number % 1_000))
        yield


def _cancelled_behind_a_full_queue(bench: Bench) -> Iterator[None]:
    bench.configure(max_concurrency=1, lease_seconds=86_400)
    bench.enqueue()
    bench.lease_one()
    while True:
        bench.cancel(bench.enqueue())
        yield


def _lost(bench: Bench) -> Iterator[None]:
    bench.configure(lease_seconds=1)
    while True:
        job_id = bench.enqueue(max_attempts=1, on_exhausted="hold")
        bench.lease_one()
        bench.wait(2)
        bench.cancel(job_id)
        yield


def _beating(bench: Bench) -> Iterator[None]:
    bench.enqueue()
    leased = bench.lease_one()
    while True:
        bench.wait(1)
        bench.heartbeat(leased)
        yield


def _released(bench: Bench) -> Iterator[None]:
    bench.enqueue()
    while True:
        bench.release(bench.lease_one())
        bench.wait(0.001)
        yield


def _snoozed(bench: Bench) -> Iterator[None]:
    bench.enqueue()
    while True:
        leased = bench.lease_one()
        bench.machine.settle(Snooze(leased.id, leased.token, SECOND), bench.now)
        bench.wait(1)
        yield


def _urgent_before_one_that_never_runs(bench: Bench) -> Iterator[None]:
    bench.enqueue()
    while True:
        bench.enqueue(priority=5)
        bench.ack(bench.lease_one())
        yield


def _fair_keys(bench: Bench) -> Iterator[None]:
    bench.configure(fair=True)
    number = 0
    while True:
        number += 1
        bench.enqueue(key=f"key-{number}")
        bench.ack(bench.lease_one())
        yield


def _throttled_keys(bench: Bench) -> Iterator[None]:
    bench.configure(rate_per_key=Rate(1, per=5))
    number = 0
    while True:
        number += 1
        bench.enqueue(key=f"key-{number}")
        bench.cancel(bench.enqueue(key=f"key-{number}"))
        bench.ack(bench.lease_one())
        bench.wait(1)
        yield


def _arrivals_at_a_throttled_key(bench: Bench) -> Iterator[None]:
    bench.configure(rate_per_key=Rate(1, per=86_400))
    bench.enqueue(key="a")
    bench.ack(bench.lease_one())
    number = 0
    while True:
        number += 1
        bench.cancel(bench.enqueue(key="a", priority=number % 1_000))
        yield


def _cancelled_behind_an_ordering_key(bench: Bench) -> Iterator[None]:
    bench.enqueue(ordering_key="line", delay=60)
    while True:
        bench.cancel(bench.enqueue(ordering_key="line", delay=120))
        yield


def _cancelled_in_front_of_an_ordering_key(bench: Bench) -> Iterator[None]:
    bench.enqueue(ordering_key="line", delay=120)
    while True:
        bench.cancel(bench.enqueue(ordering_key="line", delay=60))
        yield


def _many_ordering_keys(bench: Bench) -> Iterator[None]:
    number = 0
    while True:
        number += 1
        bench.enqueue(ordering_key=f"line-{number}")
        bench.cancel(bench.enqueue(ordering_key=f"line-{number}"))
        bench.ack(bench.lease_one())
        yield


def _keys_of_requests(bench: Bench) -> Iterator[None]:
    number = 0
    while True:
        number += 1
        bench.enqueue(idempotency_key=f"request-{number}", idempotency_window=5, unique_key=f"one-{number}")
        bench.ack(bench.lease_one())
        bench.wait(1)
        yield


def _deadlines(bench: Bench) -> Iterator[None]:
    while True:
        bench.enqueue(expires_in=3_600)
        bench.enqueue(expires_in=1, delay=9)
        bench.ack(bench.lease_one())
        bench.wait(2)
        yield


def _flows(bench: Bench) -> Iterator[None]:
    while True:
        parent = bench.enqueue()
        bench.enqueue(parents=[parent])
        bench.ack(bench.lease_one())
        bench.ack(bench.lease_one())
        bench.prune()
        yield


def _children_that_come_too_late(bench: Bench) -> Iterator[None]:
    parent = bench.enqueue(delay=86_400)
    while True:
        bench.enqueue(parents=[parent], expires_in=0)
        yield


def _choosing(bench: Bench) -> Iterator[None]:
    for number in range(5):
        bench.enqueue(key="ab"[number % 2], ordering_key="line" if number < 2 else None)
    while True:
        bench.choose(2)
        yield


def _out_of_order(bench: Bench) -> Iterator[None]:
    bench.enqueue(priority=5)
    while True:
        bench.ack(bench.take(bench.enqueue()))
        yield


LIVES = [
    _acked, _cancelled, _cancelled_before_due, _cancelled_while_paused, _cancelled_behind_a_full_queue, _lost,
    _beating, _released, _snoozed, _urgent_before_one_that_never_runs, _fair_keys, _throttled_keys,
    _arrivals_at_a_throttled_key, _cancelled_behind_an_ordering_key, _cancelled_in_front_of_an_ordering_key,
    _many_ordering_keys, _keys_of_requests, _deadlines, _flows, _children_that_come_too_late, _choosing,
    _out_of_order,
]  # fmt: skip


class TestMemory:
    @pytest.mark.parametrize("life", LIVES, ids=lambda life: life.__name__[1:])
    def test_stays_bounded_however_long_it_goes_on(
        self, life: Callable[[Bench], Iterator[None]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ordering, "MOST_IDLE_GROUPS", 500)
        bench = Bench(retention_seconds=0)
        rounds = life(bench)
        for _ in range(3_000):
            next(rounds)
            bench.prune()
        # A heap may hold 1,024 entries that no longer apply before it is cleaned; nothing may hold 3,000.
        assert {name: weight for name, weight in weights(bench.machine).items() if weight > 2_100} == {}


async def test_offices_that_were_given_up_are_forgotten() -> None:
    """Each operation on many jobs has one of its own."""
    store = MemoryStore()
    for number in range(10):
        assert await store.lead(f"bulk:{number}", "me", 10)
        assert await store.lead(f"bulk:{number}", "me", 0)
    assert not store._leaders
