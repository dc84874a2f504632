"""What a worker counts, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.telemetry.prometheus import Counter, Counts, Histogram, Reading, render, store_requests
from penstock.worker import proc


class Metrics:
    """Everything one worker counts. It may be read from any thread."""

    def __init__(self) -> None:
        self.ended = Counter(
            "penstock_worker_attempts_total", "Attempts ended, by queue, type and how they ended."
        )
        self.leased = Counter("penstock_worker_jobs_leased_total", "Jobs leased, by queue.")
        self.lost = Counter(
            "penstock_worker_leases_lost_total", "Leases that were no longer ours.", labelled=False
        )
        self.unknown = Counter(
            "penstock_worker_unknown_types_total",
            "Jobs given back because no handler here runs them; the log names their types.",
            labelled=False,
        )
        self.lease_failures = Counter(
            "penstock_worker_lease_failures_total",
            "Times that the store could not be asked for jobs.",
            labelled=False,
        )
        self.unsettled = Counter(
            "penstock_worker_unsettled_total",
            "Jobs whose end could not be told; they run again.",
            labelled=False,
        )
        self.run_seconds = Histogram("penstock_worker_run_seconds", "How long attempts ran, by type.")
        self.wait_seconds = Histogram(
            "penstock_worker_pickup_seconds", "From the time a job was due to its lease, by queue."
        )
        self._readings: list[Reading | Counts] = []

    def gauge(self, name: str, help: str, read: Callable[[], float], **labels: str) -> None:
        self._readings.append(Reading(name, help, read, "gauge", tuple(labels.items())))

    def counter(self, name: str, help: str, read: Callable[[], float]) -> None:
        """A number that only grows and that somebody else keeps."""
        self._readings.append(Reading(name, help, read, "counter"))

    def requests(self, store: object) -> None:
        """Tell how often this store asks its storage, if it counts that."""
        self._readings.extend(store_requests(store))

    def text(self) -> str:
        """All of it, in Prometheus' text format."""
        return render((
            self.ended, self.leased, self.lost, self.unknown, self.lease_failures, self.unsettled,
            self.run_seconds, self.wait_seconds,
            *self._readings, *(Reading(name, help, partial(float, value), kind) for name, help, value, kind in proc.readings()),
        ))  # fmt: skip
