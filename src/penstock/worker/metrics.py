"""What a worker counts, as Prometheus reads it. A few numbers need no library."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

from penstock.worker import proc

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

Labels = tuple[tuple[str, str], ...]


class Counter:
    """A number that only grows. One without labels is there from the start, so that its first increase is seen."""

    def __init__(self, name: str, help: str, *, labelled: bool = True) -> None:
        self.name, self.help = name, help
        self._values: dict[Labels, float] = defaultdict(float)
        if not labelled:
            self._values[()] = 0.0

    def add(self, value: float = 1, **labels: str) -> None:
        self.count(tuple(labels.items()), value)

    def count(self, labels: Labels, value: float = 1) -> None:
        self._values[labels] += value

    def value(self, **labels: str) -> float:
        return self._values.get(tuple(labels.items()), 0.0)

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.help, "counter")
        for labels, value in list(self._values.items()):
            yield f"{self.name}{_shown(labels)} {_number(value)}"


class Reading:
    """A number that is read when somebody asks."""

    def __init__(
        self,
        name: str,
        help: str,
        read: Callable[[], float],
        kind: Literal["gauge", "counter"] = "gauge",
        labels: Labels = (),
    ) -> None:
        self.name, self.help, self._read, self._kind, self._labels = name, help, read, kind, labels

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.help, self._kind)
        yield f"{self.name}{_shown(self._labels)} {_number(self._read())}"


class Histogram:
    def __init__(self, name: str, help: str) -> None:
        self.name, self.help = name, help
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = defaultdict(float)

    def observe(self, labels: Labels, value: float) -> None:
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * (len(BUCKETS) + 1)
        counts[bisect_left(BUCKETS, value)] += 1
        self._sums[labels] += value

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.help, "histogram")
        for labels, counts in list(self._counts.items()):
            total = 0
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
                total += count
                yield f"{self.name}_bucket{_shown((*labels, ('le', bound)))} {total}"
            yield f"{self.name}_sum{_shown(labels)} {_number(self._sums[labels])}"
            yield f"{self.name}_count{_shown(labels)} {total}"


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
            "Jobs given back because no handler here runs them, by type.",
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
        self._readings: list[Reading] = []

    def gauge(self, name: str, help: str, read: Callable[[], float], **labels: str) -> None:
        self._readings.append(Reading(name, help, read, "gauge", tuple(labels.items())))

    def counter(self, name: str, help: str, read: Callable[[], float]) -> None:
        """A number that only grows and that somebody else keeps."""
        self._readings.append(Reading(name, help, read, "counter"))

    def text(self) -> str:
        """All of it, in Prometheus' text format."""
        parts: Sequence[Counter | Reading | Histogram] = (
            self.ended, self.leased, self.lost, self.unknown, self.lease_failures, self.unsettled,
            self.run_seconds, self.wait_seconds,
            *self._readings, *(Reading(name, help, partial(float, value), kind) for name, help, value, kind in proc.readings()),
        )  # fmt: skip
        return "\n".join(line for part in parts for line in part.lines()) + "\n"


def _head(name: str, help: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} {kind}"


def _number(value: float) -> str:
    """In full: a counter shown with six digits would stand still from a million on."""
    return str(int(value)) if value == int(value) else repr(float(value))


def _shown(labels: Labels) -> str:
    if not labels:
        return ""
    quoted = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{quoted}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
