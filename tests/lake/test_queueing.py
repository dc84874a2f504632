"""Erlang's formula, against values that are printed in tables and against a queue that was run."""

from __future__ import annotations

import math
from heapq import heapreplace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lake.queueing import erlang_c, mean_wait_ms, servers_for, waits_longer


@pytest.mark.parametrize(
    ("load", "servers", "share"), [(0.5, 1, 0.5), (1.0, 2, 1 / 3), (2.0, 3, 4 / 9), (10.0, 14, 0.1741), (0.0, 1, 0.0)]
)  # fmt: skip
def test_gives_the_share_that_waits(load: float, servers: int, share: float) -> None:
    assert erlang_c(load, servers) == pytest.approx(share, abs=1e-4)


def test_waits_for_ever_where_there_are_too_few() -> None:
    assert erlang_c(2.0, 2) == 1.0
    assert waits_longer(2.0, 2, 1000, 10_000) == 1.0
    assert mean_wait_ms(2.0, 2, 1000) == math.inf


@given(st.floats(0.0, 200.0), st.floats(10.0, 100_000.0), st.integers(1, 100_000), st.floats(0.5, 0.999))
def test_asks_for_the_fewest_that_keep_the_promise(
    load: float, service: float, wait: int, objective: float
) -> None:
    servers = servers_for(load, service, wait, objective)
    assert servers > load
    assert waits_longer(load, servers, service, wait) <= 1 - objective
    if servers > 1:
        assert servers - 1 <= load or waits_longer(load, servers - 1, service, wait) > 1 - objective


def test_says_what_a_queue_does() -> None:
    random, servers, load = Random(5), 4, 3.0
    free, clock, waited = [0.0] * servers, 0.0, 0.0
    for _ in range(200_000):
        clock += random.expovariate(load)
        start = max(clock, free[0])
        waited += start - clock
        heapreplace(free, start + random.expovariate(1.0))
    assert waited / 200_000 * 1000 == pytest.approx(mean_wait_ms(load, servers, 1000), rel=0.1)
