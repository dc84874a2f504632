"""What people have set as the longest wait in each queue: read from the store by each run, kept in the manifest."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from penstock.core.settings import QueueSettings
from penstock.lake.source import Ask, Reader

OBJECTIVE = 0.99
"""Which share of its jobs waits no longer than a queue's target."""
USUAL_SECONDS = QueueSettings().target_seconds
_COLUMNS = ("tenant", "queue", "settings")


class Target(Struct, frozen=True, order=True, array_like=True):
    """How long a job of this queue may wait."""

    tenant: str
    queue: str
    seconds: float
    objective: float = OBJECTIVE


class _Settings(Struct):
    """Of a queue's settings what is looked at here."""

    target_seconds: float = USUAL_SECONDS


def read_targets(reader: Reader) -> tuple[Target, ...]:
    """Those that are not the usual one."""
    ask = Ask("queues", _COLUMNS)
    rows = (
        row
        for slice in reader.slices(ask, 1)
        for batch in reader.read(ask, slice)
        for row in zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True)
    )
    found = (Target(tenant, queue, _seconds(settings)) for tenant, queue, settings in rows)
    return tuple(sorted(one for one in found if one.seconds != USUAL_SECONDS))


def _seconds(settings: str) -> float:
    return msgspec.json.decode(settings, type=_Settings).target_seconds
