"""A heap of moments that forgets what no longer applies."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.job import JobId
from penstock.core.timers import Timers
from penstock.testing import START

quick = settings(max_examples=100, deadline=None, derandomize=True, database=None)


class Diary:
    """Jobs, and for each the one moment that applies to it."""

    def __init__(self) -> None:
        self.moments: dict[JobId, datetime] = {}
        self.timers = Timers(lambda at, job_id: self.moments.get(job_id) == at)

    def set(self, name: str, seconds: int) -> datetime:
        at = START + timedelta(seconds=seconds)
        self.moments[JobId(name)] = at
        self.timers.set(at, JobId(name))
        return at

    def size(self) -> int:
        return len(self.timers._heap)


class TestTimers:
    def test_has_no_first_when_nothing_is_set(self) -> None:
        assert Diary().timers.first() is None

    def test_tells_of_the_soonest_and_gives_it(self) -> None:
        diary = Diary()
        diary.set("late", 9)
        soon = diary.set("soon", 3)
        assert diary.timers.first() == soon
        assert diary.timers.pop() == (soon, "soon")

    def test_gives_the_lower_id_first_when_two_are_due_at_once(self) -> None:
        diary = Diary()
        diary.set("b", 5)
        at = diary.set("a", 5)
        assert diary.timers.first() == at
        assert diary.timers.pop()[1] == "a"

    def test_does_not_tell_of_a_moment_that_was_moved(self) -> None:
        diary = Diary()
        diary.set("moved", 1)
        moved = diary.set("moved", 8)
        assert diary.timers.first() == moved

    def test_does_not_tell_of_what_is_gone(self) -> None:
        diary = Diary()
        diary.set("gone", 1)
        diary.moments.clear()
        assert diary.timers.first() is None

    @quick
    @given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 50)), max_size=60))
    def test_gives_all_that_applies_in_order(self, changes: list[tuple[str, int]]) -> None:
        diary = Diary()
        for name, seconds in changes:
            diary.set(name, seconds)
        expected = sorted((at, name) for name, at in diary.moments.items())
        given = []
        while diary.timers.first() is not None:
            at, name = diary.timers.pop()
            given.append((at, name))
            del diary.moments[name]
        assert given == expected

    def test_stays_small_when_one_moment_is_moved_over_and_over(self) -> None:
        diary = Diary()
        for seconds in range(20_000):
            diary.set("beating", seconds)
        assert diary.size() <= 1_025

    def test_grows_with_what_applies(self) -> None:
        diary = Diary()
        for number in range(5_000):
            diary.set(f"job-{number:05}", number)
        assert diary.size() == 5_000

    def test_shrinks_again_once_most_has_gone(self) -> None:
        diary = Diary()
        for number in range(5_000):
            diary.set(f"job-{number:05}", 10_000 + number)
        diary.moments.clear()
        for seconds in range(10_000):
            diary.set("beating", 20_000 + seconds)
        assert diary.size() <= 1_025
