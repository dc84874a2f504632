"""How long to wait before a failed job runs again."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Self, assert_never

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from penstock.core import bounds

Wait = Annotated[float, Meta(ge=0, le=bounds.LONGEST_SECONDS)]


class RetryKind(StrEnum):
    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


class Retry(Struct, frozen=True, gc=False):
    """A back-off policy. Times are seconds; `jitter` is the largest fraction added on top, after the cap."""

    kind: RetryKind
    base: Wait
    factor: Annotated[float, Meta(ge=1, le=100)] = 2.0
    cap: Wait = 3600.0
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.1

    def __post_init__(self) -> None:
        force_setattr(self, "kind", bounds.member("retry.kind", self.kind, RetryKind))
        bounds.number("retry.base", self.base, 0, bounds.LONGEST_SECONDS)
        bounds.number("retry.factor", self.factor, 1, 100)
        bounds.number("retry.cap", self.cap, 0, bounds.LONGEST_SECONDS)
        bounds.number("retry.jitter", self.jitter, 0, 1)

    @classmethod
    def fixed(cls, base: float, *, jitter: float = 0.1) -> Self:
        """Wait `base` seconds each time."""
        return cls(RetryKind.FIXED, base, cap=bounds.LONGEST_SECONDS, jitter=jitter)

    @classmethod
    def linear(cls, base: float, *, cap: float = 3600.0, jitter: float = 0.1) -> Self:
        """Wait `base`, `2·base`, `3·base` … seconds."""
        return cls(RetryKind.LINEAR, base, cap=cap, jitter=jitter)

    @classmethod
    def exponential(
        cls, base: float = 5.0, *, factor: float = 2.0, cap: float = 3600.0, jitter: float = 0.1
    ) -> Self:
        """Wait `base`, `base·factor`, `base·factor²` … seconds."""
        return cls(RetryKind.EXPONENTIAL, base, factor, cap, jitter)

    def delay(self, attempt: int, entropy: float) -> timedelta:
        """The wait after failed attempt number `attempt`; `entropy` in [0, 1) places it within the jitter."""
        match self.kind:
            case RetryKind.FIXED:
                seconds = self.base
            case RetryKind.LINEAR:
                seconds = self.base * attempt
            case RetryKind.EXPONENTIAL:
                try:
                    seconds = self.base * self.factor ** (attempt - 1)
                except OverflowError:  # a patient job outgrows a float; it has long outgrown the cap
                    seconds = self.cap
            case _:
                assert_never(self.kind)
        seconds = min(seconds, self.cap) * (1 + self.jitter * entropy)
        return timedelta(microseconds=round(seconds * 1_000_000))


DEFAULT_RETRY = Retry.exponential()
