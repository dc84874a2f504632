"""What a worker counts, as Prometheus reads it. A few numbers need no library."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

Labels = tuple[tuple[str, str], ...]


class Counter:
    def __init__(self, name: str, help: str) -> None:
        self.name, self.help = name, help
        self._values: dict[Labels, float] = defaultdict(float)

    def add(self, value: float = 1, **labels: str) -> None:
        self.count(tuple(labels.items()), value)

    def count(self, labels: Labels, value: float = 1) -> None:
        self._values[labels] += value

    def value(self, **labels: str) -> float:
        return self._values.get(tuple(labels.items()), 0.0)

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.help, "counter")
        for labels, value in self._values.items():
            yield f"{self.name}{_shown(labels)} {value:g}"


class Gauge:
    """A number that is read when somebody asks."""

    def __init__(self, name: str, help: str, read: Callable[[], float]) -> None:
        self.name, self.help, self._read = name, help, read

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.help, "gauge")
        yield f"{self.name} {self._read():g}"


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
        for labels, counts in self._counts.items():
            total = 0
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
                total += count
                yield f"{self.name}_bucket{_shown((*labels, ('le', bound)))} {total}"
            yield f"{self.name}_sum{_shown(labels)} {self._sums[labels]:g}"
            yield f"{self.name}_count{_shown(labels)} {total}"


class Metrics:
    """Everything one worker counts."""

    def __init__(self) -> None:
        self.ended = Counter("penstock_attempts_total", "Attempts ended, by how they ended.")
        self.leased = Counter("penstock_leased_total", "Jobs leased, by queue.")
        self.lost = Counter("penstock_leases_lost_total", "Leases that were no longer ours.")
        self.unknown = Counter(
            "penstock_unknown_type_total", "Jobs given back because no handler here runs them."
        )
        self.run_seconds = Histogram("penstock_run_seconds", "How long handlers ran.")
        self.wait_seconds = Histogram(
            "penstock_pickup_seconds", "From the time a job was due to its handler's start."
        )
        self.gauges: list[Gauge] = []

    def gauge(self, name: str, help: str, read: Callable[[], float]) -> None:
        self.gauges.append(Gauge(name, help, read))

    def text(self) -> str:
        """All of it, in Prometheus' text format."""
        parts: Sequence[Counter | Gauge | Histogram] = (
            self.ended, self.leased, self.lost, self.unknown, self.run_seconds, self.wait_seconds, *self.gauges,
        )  # fmt: skip
        return "\n".join(line for part in parts for line in part.lines()) + "\n"


def _head(name: str, help: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} {kind}"


def _shown(labels: Labels) -> str:
    if not labels:
        return ""
    quoted = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{quoted}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
