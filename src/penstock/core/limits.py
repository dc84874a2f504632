"""Rate limits that need one timestamp of state, exact to the microsecond."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

from msgspec import Meta, Struct

from penstock.core import bounds
from penstock.core.errors import InvalidInput


class Rate(Struct, frozen=True, gc=False):
    """At most `limit` leases in any span of `per` seconds; `burst` lets that many more minus one go at once.

    With the default burst of 1 the limit is exact and leases are evenly spaced. With burst b, at most
    `limit + b - 1` leases fall into any span of `per` seconds.
    """

    limit: Annotated[int, Meta(ge=1, le=1_000_000)]
    per: Annotated[float, Meta(ge=0.001, le=bounds.LONGEST_SECONDS)] = 1.0
    burst: Annotated[int, Meta(ge=1, le=1_000_000)] = 1

    def __post_init__(self) -> None:
        bounds.integer("rate.limit", self.limit, 1, 1_000_000)
        bounds.number("rate.per", self.per, 0.001, bounds.LONGEST_SECONDS)
        bounds.integer("rate.burst", self.burst, 1, 1_000_000)
        if self.limit / self.per > 1_000_000:
            raise InvalidInput(
                "rate", "allow at most 1,000,000 leases a second", f"{self.limit} per {self.per} s"
            )

        if self.per * self.burst / self.limit > bounds.LONGEST_SECONDS:
            raise InvalidInput("rate.burst", "be worth at most ten years of the rate", self.burst)

    @property
    def spacing(self) -> timedelta:
        """The time one lease uses up, rounded up so that rounding never lets one too many through."""
        return timedelta(microseconds=-(-round(self.per * 1_000_000) // self.limit))

    def opens_at(self, full_until: datetime) -> datetime:
        """When the next lease is allowed, given the time up to which the rate is used up."""
        return full_until - self.spacing * (self.burst - 1)

    def use(self, full_until: datetime | None, now: datetime) -> datetime:
        """The time up to which the rate is used up, once one more lease is given now."""
        return (now if full_until is None or full_until < now else full_until) + self.spacing
