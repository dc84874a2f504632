"""A run of the lake that found out little: enough to ask about, written by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from penstock.core.fingerprint import failure
from penstock.core.ports import Store
from penstock.core.registry import Insight
from penstock.insights import SUMMARY, Body, Summary, encoded

AS_OF = datetime(2026, 3, 2, 12, tzinfo=UTC)
REFUSED = "ConnectionError: 10.0.0.7:25 refused job 42"
"""What a job fails with; the lake knows it by its fingerprint."""
FINGERPRINT = failure(REFUSED).fingerprint


def _figures(**more: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("succeeded", "failed", "lost", "dead", "cancelled", "retried", "busy_ms"), 1)
    return {"queue": "emails", "type": "email.send", "arrivals": 3, **counts, **more}


TABLES: dict[str, list[dict[str, Any]]] = {
    "hourly": [
        _figures(hour="2026-03-02T11:00:00Z", wait_hist={"0": 1, "100": 98, "300": 1}, run_hist={"200": 4}),
        _figures(hour="2026-03-02T11:00:00Z", type="email.scan", wait_hist={"300": 100}, run_hist={"200": 4}),
        _figures(hour="2026-03-02T10:00:00Z", queue="reports", type="r", wait_hist={}, run_hist={}),
    ],
    "daily": [_figures(day="2026-03-01", wait_hist={}, run_hist={})],
    "failures": [
        {
            "fingerprint": FINGERPRINT, "error_type": "ConnectionError", "top_frame": "",
            "text": failure(REFUSED).text, "first_seen": "2026-03-01T00:00:00Z", "last_seen": "2026-03-02T11:30:00Z",
            "count": 7, "count_24h": 5, "trend": 2.5, "is_new": False, "queues": ["emails"], "types": ["email.send"],
            "sample_jobs": [],
        }
    ],
    "capacity": [
        {"queue": "emails", "hour_of_week": at, "arrivals_per_hour": 60.0, "service_ms": 500.0, "offered_load": at / 10}
        for at in range(168)
    ],
    "capacity_plan": [
        {
            "queue": "emails", "concurrency": 20, "lease_seconds": 45.0, "heartbeat_seconds": 15.0,
            "peak_hour_of_week": 167, "expected_wait_ms": 120.0, "utilisation": 0.83, "why": "16.7 erlangs at the peak",
        }
    ],
    "slo": [
        {
            "queue": "emails", "target_wait_ms": 60_000, "objective": 0.99, "window": "24h", "good": 970, "total": 1000,
            "attainment": 0.97, "burn_rate": 3.0,
        }
    ],
    "anomalies": [
        {
            "queue": "emails", "hour": "2026-03-02T11:00:00Z", "metric": "arrivals", "value": 900.0, "expected": 60.0,
            "score": 12.0, "direction": "high",
        }
    ],
    "flows": [
        {
            "root_id": "019b7a2e-0000-7000-8000-000000000001", "jobs": 3, "began_at": "2026-03-02T10:00:00Z",
            "ended_at": None, "critical_ms": 5_000, "critical_path": [], "status": "active",
        }
    ],
    "schedules": [
        {
            "schedule": "nightly", "day": "2026-03-02", "fires": 24, "late_hist": {"10": 24}, "p50_ms": 1.2,
            "p99_ms": 1.2, "max_ms": 2.0, "missed": 1,
        }
    ],
    "usage": [
        {"day": "2026-03-02", "queue": "emails", "type": "email.send", "jobs": 70, "attempts": 80, "busy_ms": 90_000}
    ],
}  # fmt: skip


async def published(store: Store, tenant: str = "default") -> None:
    bodies = {
        name: Body(list(rows[0]), [list(row.values()) for row in rows]) for name, rows in TABLES.items()
    }
    summary = Summary({name: len(rows) for name, rows in TABLES.items()})
    told = [Insight(tenant, name, AS_OF, encoded(body)) for name, body in bodies.items()]
    await store.put_insights([*told, Insight(tenant, SUMMARY, AS_OF, encoded(summary))])
