"""Durations, moments and JSON as people type and read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from penstock.cli.words import ago, read_duration, read_moment, span

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5", 1.5), ("30s", 30), ("5m", 300), ("5min", 300), ("1.5h", 5400), ("1h30m", 5400),
     ("7d", 604_800), ("2w", 1_209_600), ("500ms", 0.5), ("0", 0)],
)  # fmt: skip
def test_durations_are_read(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "-5", "5 minutes", "5m?", "inf", "nan", "1h-30m", "m"])
def test_what_is_no_duration_is_not(text: str) -> None:
    assert read_duration(text) is None


@pytest.mark.parametrize("text", ["", "x", "2030-13-01", "9:00"])
def test_what_is_no_moment_is_not(text: str) -> None:
    assert read_moment(text) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ms"), (0.25, "250 ms"), (1.5, "1.5 s"), (42.9, "42 s"), (60, "1 m"), (200, "3 m 20 s"), (3_600, "1 h"),
     (36_000 + 120, "10 h"), (90_000, "1 d 1 h"), (30 * 86_400, "30 d")],
)  # fmt: skip
def test_durations_are_told(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_moments_are_told_by_how_far_they_are() -> None:
    assert ago(NOW - timedelta(minutes=3), NOW) == "3 m ago"
    assert ago(NOW + timedelta(hours=2), NOW) == "in 2 h"
    assert ago(NOW, NOW) == "just now"
