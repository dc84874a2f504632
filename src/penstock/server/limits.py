"""Allowances of tokens and tenants, held across all instances: each takes a little ahead from the store and serves from that."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Protocol

from penstock.access import Token
from penstock.coalesce import Coalesce
from penstock.core.errors import RateLimited
from penstock.core.limits import Rate
from penstock.core.registry import Spend, Spent

AHEAD_SECONDS = 0.2
"""How much of an allowance an instance takes at a time. What it does not use within a second is lost to everyone."""
KEPT_SECONDS = 1.0


class Allowance:
    """What this instance has taken of one allowance and not used yet."""

    __slots__ = ("left", "taken_at", "tenant", "until", "wait")

    def __init__(self) -> None:
        self.left = 0
        self.taken_at = 0.0
        self.wait = 0.0
        self.until = 0.0
        """Up to then nothing can be had: asking again would be in vain."""


class Standing:
    """How a caller stands with a limit, for the headers that tell."""

    __slots__ = ("left", "policy", "rate", "reset")

    def __init__(self, policy: str, rate: Rate, left: int, reset: float) -> None:
        self.policy, self.rate, self.left, self.reset = policy, rate, left, reset

    def headers(self) -> dict[str, str]:
        window = max(1, round(self.rate.per))
        return {
            "RateLimit-Policy": f'"{self.policy}";q={self.rate.limit};w={window}',
            "RateLimit": f'"{self.policy}";r={max(0, self.left)};t={max(0, math.ceil(self.reset))}',
        }


class Keeper(Protocol):
    """Where allowances are kept: the store, or Redis."""

    async def spend(self, tenant: str, spends: Sequence[Spend]) -> list[Spent]: ...


class Limits:
    """The allowances that callers of this instance draw on."""

    def __init__(self, keeper: Keeper, per_tenant: Rate | None = None) -> None:
        self._keeper = keeper
        self.per_tenant = per_tenant
        self._allowances: dict[tuple[str, str], Allowance] = {}
        self._spend: Coalesce[tuple[str, Spend], Spent] = Coalesce(self._spend_all)

    async def draw(self, token: Token, tenant: str) -> Standing | None:
        """Use up one call of the token's and the tenant's allowances; RateLimited if there is none left."""
        standing = None
        if self.per_tenant is not None:
            standing = await self._draw("tenant", tenant, "tenant", self.per_tenant)
        if token.rate is not None:
            standing = await self._draw("token", tenant, token.id, token.rate)
        return standing

    def refused(self, token: Token, error: RateLimited) -> Standing | None:
        """How a caller stands that has used its allowance up."""
        policy = str(error.facts["policy"])
        rate = token.rate if policy == "token" else self.per_tenant
        wait = error.facts["retry_after"]
        return None if rate is None or not isinstance(wait, float) else Standing(policy, rate, 0, wait)

    async def _draw(self, policy: str, tenant: str, name: str, rate: Rate) -> Standing:
        now = asyncio.get_running_loop().time()
        place = (tenant, f"{policy} {name}")
        allowance = self._allowances.get(place)
        if allowance is None:
            if len(self._allowances) > 100_000:
                self._allowances.clear()
            allowance = self._allowances[place] = Allowance()
        if now - allowance.taken_at > KEPT_SECONDS:
            allowance.left = 0
        if allowance.left < 1 and now >= allowance.until:
            await self._take(allowance, place, rate)
        if allowance.left < 1:
            raise RateLimited(policy, max(0.001, allowance.until - asyncio.get_running_loop().time()))
        allowance.left -= 1
        return Standing(policy, rate, allowance.left, rate.per / rate.limit)

    async def _take(self, allowance: Allowance, place: tuple[str, str], rate: Rate) -> None:
        """A share ahead if the store has so much, one call if not."""
        per_second = rate.limit / rate.per
        burst = float(max(rate.limit, rate.burst))
        ahead = max(1, min(int(per_second * AHEAD_SECONDS), int(burst)))
        spent = Spent(False, 0.0, 0.0)
        for cost in dict.fromkeys((ahead, 1)):
            spent = await self._spend((place[0], Spend(place[1], float(cost), per_second, burst)))
            now = asyncio.get_running_loop().time()
            if spent.granted:
                allowance.left += cost
                allowance.taken_at = now
                return
        allowance.until = now + spent.wait_seconds

    async def _spend_all(self, items: list[tuple[str, Spend]]) -> list[Spent | Exception]:
        answers: dict[int, Spent | Exception] = {}
        by_tenant: dict[str, list[int]] = {}
        for place, (tenant, _) in enumerate(items):
            by_tenant.setdefault(tenant, []).append(place)
        for tenant, places in by_tenant.items():
            try:
                spent = await self._keeper.spend(tenant, [items[place][1] for place in places])
                answers.update(zip(places, spent, strict=True))
            except Exception as error:
                answers.update((place, error) for place in places)
        return [answers[place] for place in range(len(items))]
