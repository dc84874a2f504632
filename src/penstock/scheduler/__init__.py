"""The scheduler: what happens because time passed.

scheduler = Scheduler(queue)
await reconcile(queue, [Declaration("nightly", "0 3 * * *", {"type": "report.build"})], program="reports")
await scheduler.run()                            # until cancelled, or until scheduler.stop()
"""

from __future__ import annotations

from penstock.scheduler.reconcile import Declaration, Reconciled, reconcile
from penstock.scheduler.scheduler import Scheduler, SchedulerStatus

__all__ = ["Declaration", "Reconciled", "Scheduler", "SchedulerStatus", "reconcile"]
