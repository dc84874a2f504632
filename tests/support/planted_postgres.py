"""PostgreSQL stores that are wrong on purpose, each in one way: what several of them at once must give away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from penstock.core.errors import JobNotFound, LeaseLost
from penstock.stores.postgres import connected, reading, rules, store
from penstock.stores.postgres.rules import Session
from penstock.stores.postgres.store import PostgresStore

Plant = Callable[[pytest.MonkeyPatch], None]


def _without(patch: pytest.MonkeyPatch, name: str, *parts: str) -> None:
    """Leave parts of a statement out."""
    read = rules.sql

    def sql(wanted: str) -> str:
        text = read(wanted)
        if wanted == name:
            for part in parts:
                assert part in text, f"{name}.sql has no {part!r}: plant the bug anew"
                text = text.replace(part, "")
        return text

    for module in (rules, store, connected, reading):
        patch.setattr(module, "sql", sql)


# ── What one store cannot know of itself ──────────────────────────────────────────────────────────


def acks_whatever_the_token(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "ack", "AND l.token = g.token")


def never_looks_for_leases_that_others_took(patch: pytest.MonkeyPatch) -> None:
    """A store that looks for lost leases once, and then only for its own."""
    patch.setattr(PostgresStore, "_noticed_until", lambda self, tenant: self._given_now())


_PLAIN = [("priority", 5)]
_WORK = {"enqueue": 6, "lease": 6, "settle": 6, "pass_time": 1}

SCATTERED: list[tuple[Plant, dict[str, Any]]] = [
    (
        acks_whatever_the_token,
        {"OPTIONS": _PLAIN, "WEIGHTS": {**_WORK, "settle_with_the_token_of_another_job": 6}},
    ),
    (never_looks_for_leases_that_others_took, {"OPTIONS": _PLAIN, "WEIGHTS": {**_WORK, "pass_time": 6}}),
]
"""Each with what its histories should be about, where it would otherwise take many to come across it."""


# ── What shows only when two do it at the same moment ─────────────────────────────────────────────


def leases_from_a_governed_queue_side_by_side(patch: pytest.MonkeyPatch) -> None:
    """The queue's row is read but not locked: two callers count the same free slot."""
    load_settings = Session.load_settings

    async def load(self: Session, queues: Iterable[str], *, lock: bool = False) -> None:
        await load_settings(self, queues)

    patch.setattr(Session, "load_settings", load)


def decides_about_jobs_that_others_decide_about(patch: pytest.MonkeyPatch) -> None:
    """Jobs are loaded but not locked."""
    _without(patch, "lock", "FOR UPDATE")


def forgets_children_that_come_in_meanwhile(patch: pytest.MonkeyPatch) -> None:
    """The fate of a flow is decided by who was in it before its jobs were locked."""
    read, asked = rules.sql, 0

    def sql(name: str) -> str:
        nonlocal asked
        asked += name == "flow"
        # The second look, after the lock, sees nobody new.
        return "SELECT unnest($2::uuid[]) AS id WHERE $1 <> ''" if name == "flow" and asked % 2 == 0 else read(name)  # fmt: skip

    patch.setattr(rules, "sql", sql)


def says_lost_of_a_lease_that_was_written_anew(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat that waited for a cancel finds its lease gone and believes it."""

    async def heartbeat(self: Any, tenant: str, beats: Sequence[Any]) -> list[Any]:
        known = await self._known(tenant, [beat.job_id for beat in beats])
        return [LeaseLost(b.job_id) if b.job_id in known else JobNotFound(b.job_id) for b in beats]

    patch.setattr(PostgresStore, "_heartbeat_by_rules", heartbeat)


def lets_two_hold_a_unique_key(patch: pytest.MonkeyPatch) -> None:
    """Nobody holds the lock of a key that a job comes with."""
    lock_names = Session.lock_names

    async def lock(self: Session, names: Iterable[str]) -> None:
        kept = [name for name in names if not name.startswith(("unique ", "request "))]
        await lock_names(self, kept)

    patch.setattr(Session, "lock_names", lock)


def believes_in_holders_that_have_ended(patch: pytest.MonkeyPatch) -> None:
    """Who held a unique key before its jobs were locked holds it for good."""
    patch.setattr(rules.JournalKeys, "forget_holders", lambda self, gone: None)


AT_ONCE: list[tuple[Plant, dict[str, Any]]] = [
    (decides_about_jobs_that_others_decide_about, {}),
    (forgets_children_that_come_in_meanwhile, {"OPTIONS": _PLAIN, "WEIGHTS": {"enqueue": 6, "cancel": 6}}),
    (
        says_lost_of_a_lease_that_was_written_anew,
        {"OPTIONS": _PLAIN, "WEIGHTS": {"enqueue": 3, "lease": 6, "heartbeat": 9, "cancel": 9}},
    ),
    (
        leases_from_a_governed_queue_side_by_side,
        {"OPTIONS": _PLAIN, "WEIGHTS": {**_WORK, "configure": 6}},
    ),
    (
        lets_two_hold_a_unique_key,
        {"OPTIONS": [("unique_key", "u1"), ("idempotency_key", "i1")], "WEIGHTS": _WORK},
    ),
    (
        believes_in_holders_that_have_ended,
        {
            "OPTIONS": [("unique_key", "u1"), ("unique_key", "u2"), ("expires_in", 3)],
            "WEIGHTS": {"enqueue": 9, "lease": 2, "cancel": 3, "settle": 3, "pass_time": 6},
        },
    ),
]
