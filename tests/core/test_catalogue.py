"""Jobs listed page by page, newest id first."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import catalogue
from penstock.core.catalogue import Catalogue
from penstock.core.commands import Filter
from penstock.core.job import Job, JobId, NewJob, Status
from penstock.testing import START

quick = settings(max_examples=100, deadline=None, derandomize=True, database=None)

EVERY = Filter()


class Shelf:
    """Some jobs and their catalogue."""

    def __init__(self, *numbers: int) -> None:
        self.jobs: dict[JobId, Job] = {}
        self.catalogue = Catalogue(self.jobs)
        for number in numbers:
            self.add(number)

    def add(self, number: int, queue: str = "default") -> None:
        job_id = JobId(f"{number:06}")
        self.jobs[job_id] = Job(
            NewJob(job_id, "t", queue=queue), "acme", START, START, Status.QUEUED, START
        )  # fmt: skip
        self.catalogue.add(job_id)

    def remove(self, number: int) -> None:
        del self.jobs[JobId(f"{number:06}")]

    def between(self, first: int, before: int | None) -> list[int]:
        below = None if before is None else JobId(f"{before:06}")
        return [int(job_id) for job_id in self.catalogue.between(JobId(f"{first:06}"), below)]

    def listed(self, filter: Filter = EVERY, limit: int = 3) -> list[int]:
        """Everything that matches, page by page."""
        page = self.catalogue.page(filter, None, limit)
        found = list(page.jobs)
        while page.next is not None:
            page = self.catalogue.page(filter, page.next, limit)
            found += page.jobs
        return [int(job.id) for job in found]


class TestPage:
    def test_of_nothing_is_empty_and_the_last(self) -> None:
        page = Shelf().catalogue.page(EVERY, None, 10)
        assert (page.jobs, page.next) == ((), None)

    def test_begins_with_the_newest(self) -> None:
        assert Shelf(1, 2, 3, 4).listed() == [4, 3, 2, 1]

    def test_holds_no_more_than_the_limit_and_says_where_to_go_on(self) -> None:
        page = Shelf(1, 2, 3, 4).catalogue.page(EVERY, None, 3)
        assert ([int(job.id) for job in page.jobs], page.next) == ([4, 3, 2], "000002")

    def test_that_ends_with_the_oldest_is_the_last(self) -> None:
        assert Shelf(1, 2, 3).catalogue.page(EVERY, None, 3).next is None

    def test_goes_on_below_an_id_that_has_left(self) -> None:
        shelf = Shelf(1, 2, 3, 4)
        shelf.remove(3)
        assert [int(job.id) for job in shelf.catalogue.page(EVERY, JobId("000003"), 9).jobs] == [2, 1]

    @quick
    @given(
        numbers=st.lists(st.integers(1, 200), unique=True, max_size=40),
        limit=st.integers(1, 10),
        gone=st.sets(st.integers(1, 200)),
    )
    def test_shows_each_job_once_in_whatever_order_they_came(
        self, numbers: list[int], limit: int, gone: set[int]
    ) -> None:
        shelf = Shelf(*numbers)
        for number in gone & set(numbers):
            shelf.remove(number)
        shelf.catalogue.tidy()
        assert shelf.listed(limit=limit) == sorted(set(numbers) - gone, reverse=True)

    def test_shows_a_job_once_that_left_and_came_back_under_its_id(self) -> None:
        shelf = Shelf(1, 2, 3)
        shelf.remove(1)
        shelf.catalogue.tidy()
        shelf.add(1)
        assert shelf.listed(limit=10) == [3, 2, 1]

    def test_shows_what_matches_and_nothing_else(self) -> None:
        shelf = Shelf(1, 2)
        shelf.add(3, queue="emails")
        shelf.add(4)
        shelf.add(5, queue="emails")
        assert shelf.listed(Filter(queue="emails"), limit=1) == [5, 3]

    def test_of_a_rare_match_is_cut_short_and_followed_by_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(catalogue, "MOST_EXAMINED", 4)
        shelf = Shelf()
        shelf.add(1, queue="emails")
        for number in range(2, 12):
            shelf.add(number)
        first = shelf.catalogue.page(Filter(queue="emails"), None, 5)
        assert (first.jobs, first.next) == ((), "000008")
        assert shelf.listed(Filter(queue="emails")) == [1]


class TestTidy:
    def test_forgets_ids_once_most_of_them_have_left(self) -> None:
        shelf = Shelf(*range(1, 101))
        for number in range(1, 61):
            shelf.remove(number)
        shelf.catalogue.tidy()
        assert len(shelf.catalogue._ids) == 40

    def test_leaves_a_list_alone_that_is_mostly_live(self) -> None:
        shelf = Shelf(*range(1, 101))
        shelf.remove(1)
        shelf.catalogue.tidy()
        assert shelf.listed(limit=50) == list(range(100, 1, -1))


def test_a_range_of_ids_has_those_that_are_still_here() -> None:
    shelf = Shelf(1, 3, 5, 7, 9)
    shelf.remove(5)
    assert shelf.between(2, 9) == [3, 7]
    assert shelf.between(3, None) == [3, 7, 9]
    assert shelf.between(0, 1) == []
