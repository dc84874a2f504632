"""Each limit at its edge: the last value that goes through and the first that does not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core import bounds
from penstock.core.errors import InvalidInput
from penstock.core.job import OnExhausted, Status

quick = settings(max_examples=100, deadline=None, derandomize=True, database=None)

ID = "019b7a2e-0abc-7def-8000-00000000abcd"
TOO_LARGE = pytest.param(10**400, id="too large for a float")
TOO_LONG = pytest.param(10**5_000, id="too long to print")


def refuses(check: Callable[[], object], field: str = "field") -> str:
    """Assert that a check refuses, naming the field; returns what it says."""
    with pytest.raises(InvalidInput) as refused:
        check()
    assert refused.value.facts["field"] == field
    assert str(refused.value).startswith(f"{field} must ")
    return str(refused.value)


class TestName:
    @pytest.mark.parametrize("good", ["a", "_", "7", "email.send", "Az09_.:/@+-", "x" * bounds.NAME_CHARS])
    def test_takes(self, good: str) -> None:
        assert bounds.name("field", good) == good

    @pytest.mark.parametrize(
        "bad",
        [
            "", " ", ".a", "-a", "/a", "a b", "a\n", "a\0", "é", "a*", "x" * (bounds.NAME_CHARS + 1),
            "\ud800", None, 7, b"a", ["a"], Status.DEAD,
        ],
    )  # fmt: skip
    def test_refuses(self, bad: object) -> None:
        refuses(lambda: bounds.name("field", bad))


class TestText:
    def test_takes_as_many_characters_as_the_limit_and_no_more(self) -> None:
        assert bounds.text("field", "é" * 10, 10) == "é" * 10
        refuses(lambda: bounds.text("field", "é" * 11, 10))

    def test_takes_as_few_characters_as_the_least_and_no_fewer(self) -> None:
        assert bounds.text("field", "ab", 10, 2) == "ab"
        refuses(lambda: bounds.text("field", "a", 10, 2))

    def test_may_be_empty_unless_told_otherwise(self) -> None:
        assert bounds.text("field", "") == ""

    @pytest.mark.parametrize("good", ["a b", "line\nline", "日本語", "🎉", "\x01"])
    def test_takes(self, good: str) -> None:
        assert bounds.text("field", good) == good

    @pytest.mark.parametrize("bad", ["a\0b", "\ud800", "a\udfff", None, 7, b"a"])
    def test_refuses(self, bad: object) -> None:
        refuses(lambda: bounds.text("field", bad))


class TestKey:
    def test_is_text_of_one_to_so_many_characters(self) -> None:
        assert bounds.key("field", "k") == "k"
        assert bounds.key("field", "k" * bounds.KEY_CHARS) == "k" * bounds.KEY_CHARS
        refuses(lambda: bounds.key("field", ""))
        refuses(lambda: bounds.key("field", "k" * (bounds.KEY_CHARS + 1)))


class TestErrorText:
    def test_keeps_what_fits(self) -> None:
        fits = "x" * bounds.ERROR_CHARS
        assert bounds.error_text(fits) == fits

    def test_cuts_what_does_not_and_marks_the_cut(self) -> None:
        cut = bounds.error_text("x" * (bounds.ERROR_CHARS + 1))
        assert len(cut) == bounds.ERROR_CHARS == 4096
        assert cut == "x" * (bounds.ERROR_CHARS - len(bounds.CUT)) + bounds.CUT

    def test_escapes_what_no_store_can_hold(self) -> None:
        assert bounds.error_text("a\0b\ud800c\udfff") == "a\\x00b\\ud800c\\udfff"

    def test_measures_after_escaping(self) -> None:
        assert len(bounds.error_text("\0" * bounds.ERROR_CHARS)) == bounds.ERROR_CHARS

    def test_takes_an_exception_as_what_it_says(self) -> None:
        assert bounds.error_text(ValueError("no such address")) == "no such address"

    @quick
    @given(st.text(st.characters(codec=None), max_size=5_000))
    def test_always_gives_text_that_can_be_stored(self, text: str) -> None:
        stored = bounds.error_text(text)
        assert bounds.text("error", stored, bounds.ERROR_CHARS) == stored

    def test_survives_an_exception_that_cannot_say_what_it_is(self) -> None:
        class Unspeakable(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no words")

        assert "Unspeakable" in bounds.error_text(Unspeakable())


class TestInteger:
    @pytest.mark.parametrize("good", [-3, 0, 7])
    def test_takes_from_the_least_to_the_most(self, good: int) -> None:
        assert bounds.integer("field", good, -3, 7) == good

    @pytest.mark.parametrize("bad", [-4, 8, 1.0, "1", True, None, TOO_LARGE, TOO_LONG])
    def test_refuses(self, bad: object) -> None:
        refuses(lambda: bounds.integer("field", bad, -3, 7))

    def test_says_the_limits_so_that_a_person_can_read_them(self) -> None:
        assert "from 1 to 1,000,000; got 0" in refuses(lambda: bounds.integer("field", 0, 1, 1_000_000))


class TestNumber:
    @pytest.mark.parametrize("good", [0.5, 1, 7, 6.999, 7.0])
    def test_takes_from_the_least_to_the_most(self, good: float) -> None:
        assert bounds.number("field", good, 0.5, 7) == good

    @pytest.mark.parametrize(
        "bad",
        [0.499, 7.001, float("nan"), float("inf"), float("-inf"), "1", True, None, 1j,
         TOO_LARGE, pytest.param(-(10**400), id="too small for a float"), TOO_LONG],
    )  # fmt: skip
    def test_refuses(self, bad: object) -> None:
        refuses(lambda: bounds.number("field", bad, 0.5, 7))


class TestFlag:
    @pytest.mark.parametrize("good", [True, False])
    def test_takes(self, good: bool) -> None:
        assert bounds.flag("field", good) is good

    @pytest.mark.parametrize("bad", [0, 1, "true", None])
    def test_refuses(self, bad: object) -> None:
        refuses(lambda: bounds.flag("field", bad))


class TestMember:
    @pytest.mark.parametrize("good", ["hold", OnExhausted.HOLD])
    def test_takes_the_name_or_the_thing_itself(self, good: str) -> None:
        assert bounds.member("field", good, OnExhausted) is OnExhausted.HOLD

    @pytest.mark.parametrize("bad", ["Hold", "", None, 1, ["hold"], {"hold"}])
    def test_refuses(self, bad: object) -> None:
        assert "one of dead, hold" in refuses(lambda: bounds.member("field", bad, OnExhausted))


class TestMoment:
    @pytest.mark.parametrize("edge", [bounds.EARLIEST, bounds.LATEST])
    def test_takes_the_edges(self, edge: datetime) -> None:
        assert bounds.moment("field", edge) == edge

    def test_turns_every_zone_into_utc(self) -> None:
        noon = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=45)))
        moment = bounds.moment("field", noon)
        assert (moment, moment.tzinfo) == (datetime(2026, 1, 1, 6, 15, tzinfo=UTC), UTC)

    @pytest.mark.parametrize(
        "bad",
        [
            bounds.EARLIEST - timedelta(microseconds=1),
            bounds.LATEST + timedelta(microseconds=1),
            datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
            datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
            datetime(2026, 1, 1),  # noqa: DTZ001
            datetime(2026, 1, 1, tzinfo=UTC).date(),
            "2026-01-01T00:00:00Z",
            0,
            None,
        ],
    )
    def test_refuses(self, bad: object) -> None:
        refuses(lambda: bounds.moment("field", bad))


class TestSpan:
    @pytest.mark.parametrize(
        ("given", "span"),
        [
            (0, timedelta(0)),
            (1.5, timedelta(seconds=1, microseconds=500_000)),
            (timedelta(minutes=5), timedelta(minutes=5)),
            (bounds.LONGEST_SECONDS, timedelta(seconds=bounds.LONGEST_SECONDS)),
        ],
    )
    def test_takes_seconds_or_a_timedelta(self, given: Any, span: timedelta) -> None:
        assert bounds.span("field", given) == span

    @quick
    @given(st.timedeltas(timedelta(0), timedelta(seconds=bounds.LONGEST_SECONDS)))
    def test_keeps_a_timedelta_to_the_microsecond(self, span: timedelta) -> None:
        assert bounds.span("field", span) == span

    @pytest.mark.parametrize(
        "bad",
        [
            -0.001, timedelta(microseconds=-1), bounds.LONGEST_SECONDS + 1,
            timedelta(seconds=bounds.LONGEST_SECONDS, microseconds=1), timedelta.max,
            float("nan"), float("inf"), "5", True, None, TOO_LARGE,
        ],
    )  # fmt: skip
    def test_refuses(self, bad: object) -> None:
        refuses(lambda: bounds.span("field", bad))


class TestJobId:
    @quick
    @given(st.uuids())
    def test_takes_any_uuid_in_its_usual_form(self, uuid: UUID) -> None:
        assert bounds.job_id("field", str(uuid)) == str(uuid)

    @pytest.mark.parametrize(
        "bad",
        [
            pytest.param(ID.upper(), id="upper case"),
            pytest.param(f"{{{ID}}}", id="braces"),
            pytest.param(ID.replace("-", ""), id="no dashes"),
            pytest.param(f"urn:uuid:{ID}", id="urn"),
            pytest.param(f" {ID}", id="space before"),
            pytest.param(f"{ID}\n", id="newline after"),
            pytest.param(ID[:-1], id="too short"),
            pytest.param(f"{ID}0", id="too long"),
            pytest.param(ID[:-1] + "g", id="not a digit"),
            pytest.param(ID[:-1] + "\uff11", id="a digit of another script"),
            pytest.param("019b-7a2e-0abc-7def-8000-00000000abcd", id="dashes elsewhere"),
            pytest.param(ID.encode(), id="bytes"),
            pytest.param(UUID(ID), id="a UUID object"),
            pytest.param(None, id="None"),
        ],
    )
    def test_refuses(self, bad: object) -> None:
        refuses(lambda: bounds.job_id("field", bad))
