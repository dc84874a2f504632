"""How long jobs wait for so many workers: Erlang's formula, for jobs that come at random into one line.

Real run times vary more, and real jobs come in bursts, so a measured wait is often longer. What the formula is good
for is the number of workers below which waits grow without end, and how much more is comfortable.
"""

from __future__ import annotations

import math


def erlang_c(load: float, servers: int) -> float:
    """The share of jobs that find all servers busy. The load is in erlangs: arrivals per second × seconds each takes."""
    if servers <= load:
        return 1.0
    blocked = 1.0
    for number in range(1, servers + 1):
        blocked = load * blocked / (number + load * blocked)
    return blocked / (1 - load / servers * (1 - blocked))


def waits_longer(load: float, servers: int, service_ms: float, than_ms: float) -> float:
    """The share of jobs that wait longer than this."""
    if servers <= load:
        return 1.0
    return erlang_c(load, servers) * math.exp(-(servers - load) * than_ms / service_ms)


def mean_wait_ms(load: float, servers: int, service_ms: float) -> float:
    if servers <= load:
        return math.inf
    return erlang_c(load, servers) * service_ms / (servers - load)


def servers_for(load: float, service_ms: float, wait_ms: float, objective: float) -> int:
    """The fewest servers with which this share of jobs waits no longer than that."""
    servers = max(1, math.floor(load) + 1)
    while load > 0 and waits_longer(load, servers, service_ms, wait_ms) > 1 - objective:
        servers += 1
    return servers
