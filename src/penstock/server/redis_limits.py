"""Allowances in Redis (or Valkey): for services that many call, and that should not ask the database for leave each time."""

from __future__ import annotations

from collections.abc import Sequence

from redis.asyncio import Redis

from penstock.core.errors import StoreUnavailable
from penstock.core.registry import Spend, Spent

PREFIX = "penstock:allowance:"
CONNECT_SECONDS = 5.0

# By the server's own clock, in one step: nobody comes between the look and the taking.
_SCRIPT = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local cost, rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local kept = redis.call('HMGET', KEYS[1], 'left', 'at')
local left = burst
if kept[1] then
    left = math.min(burst, tonumber(kept[1]) + math.max(0, now - tonumber(kept[2])) * rate)
end
local granted = 0
if cost <= left then
    granted = 1
    left = left - cost
end
redis.call('HSET', KEYS[1], 'left', string.format('%.9f', left), 'at', string.format('%.6f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil(burst / rate * 1000) + 1000)
return {granted, string.format('%.9f', left)}
"""


class RedisAllowances:
    """`spend` of the store port, in Redis."""

    def __init__(self, url: str) -> None:
        self._client = Redis.from_url(
            url, socket_connect_timeout=CONNECT_SECONDS, socket_timeout=CONNECT_SECONDS
        )
        self._script = self._client.register_script(_SCRIPT)

    async def spend(self, tenant: str, spends: Sequence[Spend]) -> list[Spent]:
        try:
            async with self._client.pipeline(transaction=False) as pipe:
                for spend in spends:
                    key = f"{PREFIX}{tenant} {spend.name}"
                    await self._script([key], [spend.cost, spend.rate, spend.burst], client=pipe)
                answers = await pipe.execute()
        except Exception as error:
            raise StoreUnavailable("Redis", f"{type(error).__name__}: {error}") from error
        return [_spent(spend, *answer) for spend, answer in zip(spends, answers, strict=True)]

    async def aclose(self) -> None:
        await self._client.aclose()


def _spent(spend: Spend, granted: int, left: bytes) -> Spent:
    rest = float(left)
    return Spent(bool(granted), rest, 0.0 if granted else (spend.cost - rest) / spend.rate)
