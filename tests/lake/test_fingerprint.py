"""Failure fingerprints: the same for the same failure whomever it hits, others for others, and the same in every engine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lake import fingerprint as f
from penstock.lake.fleet import error_text

TOLD = """\
ValueError: order 4711 of ada@example.com is void

Traceback (most recent call last):
  File "/srv/app/shop/jobs.py", line 12, in handle
    ship(order)
  File "/srv/app/shop/orders.py", line 40, in ship
    raise ValueError(f"order {order.id} of {order.mail} is void")
ValueError: order 4711 of ada@example.com is void"""

NORMAL = [
    ("order 12 is void", "order <n> is void"),
    ("took -3.25 s, then 1e-05, then 7,000", "took <n> s, then <n>, then <n>"),
    ("user42 at utf8", "user<n> at utf<n>"),
    ("job 018f3c1e-7b1a-7cde-8f00-0123456789ab is gone", "job <uuid> is gone"),
    ("object at 0x7f3a90b2c1d0 and deadbeef00", "object at <n> and <n>"),
    ("token a8f3k2zz9 expired", "token <n> expired"),
    ("no such file: /var/lib/app/x-1.txt", "no such file: <path>"),
    (r"no such file: C:\Users\ada\x.txt", "no such file: <path>"),
    ("either and/or both", "either and/or both"),
    ("to ada.l+x@mail.example.com", "to <email>"),
    ("cannot reach 10.0.0.7:5432", "cannot reach <host>"),
    ("cannot reach fe80:0:0:0:1ff:fe23:4567:890a now", "cannot reach <host> now"),
    ("cannot reach db-1.prod.internal, sorry", "cannot reach <host>, sorry"),
    ("cannot reach db-1.prod:5432", "cannot reach <host>"),
    ("GET https://api.example.com/v1/users/7?x=1 said 502", "GET <url> said <n>"),
    ("due 2026-11-02T10:00:00.25+00:00 passed", "due <time> passed"),
    ("can't open 'my file' or \"yours\"", "can't open <str> or <str>"),
    ("two\n  lines", "two lines"),
    ("", ""),
]  # fmt: skip

AWKWARD = [
    *(text for text, _ in NORMAL), TOLD, *(error_text(kind, 12_345, "w-1") for kind in ("smtp", "refused", "timeout", "lost", "killed")),
    "Traceback (most recent call last):\n  File \"x.py\", line 3, in <module>\n    f()\nKeyError: 'name'",
    "ünïcödé 12 – naïve 'ß' ٣٤", "a'b'c'd", "'' \"\"", "$1 \\1 \\ $", "x" * 5000, "9" * 2000, "\t\n ", "lease lost: worker x",
    "ConnectionError", "a.b.C: x", "Error:\n\nTraceback (most recent call last):\n", "𝕏 1 😀 '😀' 2",
]  # fmt: skip


@pytest.mark.parametrize(("text", "normal"), NORMAL)
def test_puts_words_for_what_differs(text: str, normal: str) -> None:
    assert f.normalise(text) == normal


def test_knows_an_error_by_its_type_text_and_last_frame() -> None:
    found = f.failure(TOLD)
    assert found.error_type == "ValueError"
    assert found.top_frame == "orders.py in ship"
    assert found.text == "ValueError: order <n> of <email> is void"
    assert len(found.fingerprint) == 16
    assert set(found.fingerprint) <= set("0123456789abcdef")


def test_is_the_same_when_lines_move_and_the_folder_is_another() -> None:
    moved = TOLD.replace("line 40", "line 44").replace("/srv/app", "/home/me").replace("4711", "12")
    assert f.failure(moved) == f.failure(TOLD)


@pytest.mark.parametrize(
    "changed",
    [("ValueError", "TypeError"), ("is void", "is late"), ("orders.py", "order.py"), ("in ship", "in send")],
)
def test_is_another_for_another_type_text_file_or_function(changed: tuple[str, str]) -> None:
    assert f.failure(TOLD.replace(*changed)).fingerprint != f.failure(TOLD).fingerprint


def test_takes_the_last_line_of_a_bare_traceback() -> None:
    bare = TOLD.partition("\n\n")[2]
    assert f.failure(bare) == f.failure(TOLD)


def test_has_no_type_where_there_is_none() -> None:
    assert f.failure("lease lost: worker a-1 sent no heartbeat").error_type == ""
    assert f.failure("bad_arguments: x must be a number").error_type == "bad_arguments"


words = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=8)
varied = st.one_of(
    st.integers(-(10**12), 10**12).map(str),
    st.floats(1e-9, 1e20).map(repr),
    st.integers(0, 2**64).map(hex),
    st.binary(min_size=6, max_size=16).map(bytes.hex).filter(lambda text: any(c.isdigit() for c in text)),
)


@given(words, words, varied, varied)
def test_does_not_change_with_numbers(before: str, after: str, one: str, other: str) -> None:
    assert f.failure(f"{before} {one} {after}") == f.failure(f"{before} {other} {after}")


@given(words, st.uuids(), st.uuids())
def test_does_not_change_with_ids(word: str, one: object, other: object) -> None:
    assert f.failure(f"job {one}: {word}") == f.failure(f"job {other}: {word}")


@given(words, st.ip_addresses(v=4), st.ip_addresses(v=4), st.integers(1, 65535))
def test_does_not_change_with_addresses(word: str, one: object, other: object, port: int) -> None:
    assert f.failure(f"{word} {one}:{port} down") == f.failure(f"{word} {other}:{port} down")


@given(st.text(st.characters(codec="ascii", exclude_characters="'\n"), max_size=30))
def test_does_not_change_with_what_is_quoted(quoted: str) -> None:
    assert f.failure(f"no such name '{quoted}' here") == f.failure("no such name 'x' here")


@given(st.text(max_size=200))
def test_takes_any_text_and_leaves_no_digit_in_it(text: str) -> None:
    assert not set("0123456789") & set(f.normalise(text))


@pytest.fixture(scope="module")
def duckdb() -> Any:
    return pytest.importorskip("duckdb", reason="the lake's packages are not installed").connect()


class TestDuckDb:
    def test_says_the_same(self, duckdb: Any) -> None:
        text, kind, frame = f.text_duckdb("e"), f.type_duckdb("t"), f.frame_duckdb("e")
        rows = duckdb.execute(
            f"""SELECT {f.fingerprint_duckdb("k", "w", "t")}, k, w, t
                FROM (SELECT *, {kind} AS k, {frame} AS w FROM (SELECT e, {text} AS t FROM (SELECT unnest($1::text[]) AS e)))""",
            [AWKWARD],
        ).fetchall()
        assert [f.Failure(*row) for row in rows] == [f.failure(error) for error in AWKWARD]
