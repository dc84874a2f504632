"""Which queues are meant by the names and patterns that a worker was given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase


def is_pattern(name: str) -> bool:
    return any(letter in name for letter in "*?[")


def matching(weights: Mapping[str, float], known: Iterable[str]) -> dict[str, float]:
    """The weights of the queues themselves; a queue named outright keeps its own, whatever pattern it fits."""
    found = {name: weight for name, weight in weights.items() if not is_pattern(name)}
    for name in known:
        for pattern, weight in weights.items():
            if name not in found and is_pattern(pattern) and fnmatchcase(name, pattern):
                found[name] = weight
    return found
