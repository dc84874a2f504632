"""Counters, readings and histograms in Prometheus' text format. A few numbers need no library."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite, isnan
from typing import Any, Literal, Protocol

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

OTHER = "other"
"""What stands for every value of a label beyond the most that are told apart."""

Kind = Literal["gauge", "counter", "histogram"]
Labels = tuple[tuple[str, str], ...]


class Metric(Protocol):
    def lines(self) -> Iterator[str]: ...


class Counter:
    """A number that only grows. One without labels is there from the start, so that its first increase is seen.

    With `most`, that many sets of labels are told apart and the rest is counted as one: names come from outside, and
    whoever makes them up must not fill our memory, nor that of whoever reads this.
    """

    def __init__(self, name: str, help: str, *, labelled: bool = True, most: int | None = None) -> None:
        self.name, self.help = name, help
        self._most = most
        self._values: dict[Labels, float] = {} if labelled else {(): 0.0}

    def add(self, value: float = 1, **labels: str) -> None:
        self.count(tuple(labels.items()), value)

    def count(self, labels: Labels, value: float = 1) -> None:
        values = self._values
        if labels not in values:
            labels = _bounded(labels, len(values), self._most)
        values[labels] = values.get(labels, 0.0) + value

    def value(self, **labels: str) -> float:
        return self._values.get(tuple(labels.items()), 0.0)

    def lines(self) -> Iterator[str]:
        return samples(self.name, self.help, "counter", list(self._values.items()))


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
        return samples(self.name, self.help, self._kind, [(self._labels, self._read())])


class Counts:
    """Numbers that somebody else counts, by one label."""

    def __init__(self, name: str, help: str, label: str, read: Callable[[], Mapping[str, float]]) -> None:
        self.name, self.help, self._label, self._read = name, help, label, read

    def lines(self) -> Iterator[str]:
        counted = [(((self._label, which),), count) for which, count in self._read().items()]
        return samples(self.name, self.help, "counter", counted)


def store_requests(store: Any) -> list[Counts]:
    """How often a store has asked its storage, where each time may cost money."""
    if not hasattr(store, "requests"):
        return []
    help = "Requests that the log has sent to its folder or bucket."
    return [Counts("penstock_store_requests_total", help, "kind", lambda: store.requests)]


class Histogram:
    """How often a value was at most so large. `most` bounds the sets of labels, as a counter's does."""

    def __init__(
        self, name: str, help: str, *, buckets: Sequence[float] = BUCKETS, most: int | None = None
    ) -> None:
        self.name, self.help = name, help
        self._buckets = buckets
        self._most = most
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, labels: Labels, value: float) -> None:
        counts = self._counts.get(labels)
        if counts is None:
            labels = _bounded(labels, len(self._counts), self._most)
            self._sums.setdefault(labels, 0.0)  # before the counts, by which a reader in another thread goes
            counts = self._counts.setdefault(labels, [0] * (len(self._buckets) + 1))
        counts[bisect_left(self._buckets, value)] += 1
        self._sums[labels] += value

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.help, "histogram")
        for labels, counts in list(self._counts.items()):
            total = 0
            for bound, count in zip((*map(str, self._buckets), "+Inf"), counts, strict=True):
                total += count
                yield f"{self.name}_bucket{_shown((*labels, ('le', bound)))} {total}"
            yield f"{self.name}_sum{_shown(labels)} {_number(self._sums[labels])}"
            yield f"{self.name}_count{_shown(labels)} {total}"


def samples(name: str, help: str, kind: Kind, values: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    """The lines of one metric. Without a value it is declared all the same, so that people find it."""
    yield from _head(name, help, kind)
    for labels, value in values:
        yield f"{name}{_shown(labels)} {_number(value)}"


def render(parts: Iterable[Metric]) -> str:
    """All of them, as Prometheus reads it."""
    return "\n".join(line for part in parts for line in part.lines()) + "\n"


def _bounded(labels: Labels, known: int, most: int | None) -> Labels:
    if most is None or known < most:
        return labels
    return tuple((name, OTHER) for name, _ in labels)


def _head(name: str, help: str, kind: Kind) -> Iterator[str]:
    escaped = help.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {name} {escaped}"
    yield f"# TYPE {name} {kind}"


def _number(value: float) -> str:
    """In full: a counter shown with six digits would stand still from a million on."""
    if not isfinite(value):
        return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


def _shown(labels: Labels) -> str:
    if not labels:
        return ""
    quoted = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{quoted}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
