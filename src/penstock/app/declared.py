"""What code declares about queues, applied once: what people have changed since stays as they left it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from penstock.core.settings import described
from penstock.queue import Queue

logger = logging.getLogger("penstock")


async def apply_queue_settings(queue: Queue, declared: Mapping[str, Mapping[str, Any]], program: str) -> None:
    """Set each queue as declared, unless this very declaration was applied before: the audit trail remembers."""
    door = Queue(queue.store, tenant=queue.tenant, actor=f"code:{program}"[:128])
    reason = f"declared by {program}"  # a service writes down whose token it was instead of our actor
    for name, settings in declared.items():
        if not settings:
            continue
        trail = await door.history(name, "queue")
        before = [
            change.detail for change in trail.changes if change.actor == door.actor or change.reason == reason
        ]
        if not before or before[-1] != described(settings):
            await door.configure(name, reason=reason, **settings)
            logger.info("queue %s is set as declared: %s", name, described(settings))
