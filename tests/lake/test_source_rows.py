"""How rows are known again, cut into slices and shown when they are no jobs: without a database, and without Spark."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.core.errors import InvalidInput
from support.spark import WITHOUT

pytest.importorskip("pyspark", reason=WITHOUT)

import pyarrow as pa

from penstock.lake.source import quick, writing
from penstock.lake.source.rows import Rejected, hashed, shape, to_jobs
from penstock.lake.source.writing import sliced, writer

NOON = datetime(2031, 5, 6, 12, tzinfo=UTC)


def keys(kind: pa.DataType, *values: Any, name: str = "n") -> list[str | None]:
    """The keys of rows, by whichever way they are made."""
    rows = pa.table({name: pa.array(values, kind)})
    asked = shape({"type": "t", "keyColumns": name}, [name])
    stage, rest = quick.stage(asked, rows)
    assert len(rest) == 0
    assert stage is not None
    quickly: list[str | None] = stage["request"].to_pylist()
    jobs, _, _ = to_jobs(asked, rows.to_pylist(maps_as_pydicts="strict"))
    assert [job.idempotency_key for job in jobs] == quickly
    return quickly


def moments(zone: str) -> pa.DataType:
    return pa.timestamp("us", tz=zone)


class TestKeys:
    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            (moments, NOON),
            (lambda zone: pa.list_(moments(zone)), [NOON]),
            (lambda zone: pa.struct([("at", moments(zone))]), {"at": NOON}),
            (lambda zone: pa.map_(moments(zone), moments(zone)), [(NOON, NOON)]),
        ],
        ids=["a time", "a list", "a struct", "a map"],
    )
    def test_are_the_same_in_every_time_zone_of_a_session(self, kind: Any, value: Any) -> None:
        assert keys(kind("UTC"), value) == keys(kind("Europe/Paris"), value) == keys(kind("-03:00"), value)

    @pytest.mark.parametrize(
        "wrap", [lambda n: n, lambda n: [n], lambda n: {"a": [n]}], ids=["flat", "list", "deep"]
    )
    def test_tell_numbers_that_are_none_from_each_other_and_from_nothing(self, wrap: Any) -> None:
        found = {hashed(["n"], wrap(n)) for n in (nan, inf, -inf, None, 0.0)}
        assert len(found) == 5

    def test_of_maps_do_not_hang_on_the_order_of_entries(self) -> None:
        kind = pa.map_(pa.int32(), pa.string())
        one, other, another = keys(kind, [(2, "b"), (10, "a")], [(10, "a"), (2, "b")], [(10, "b"), (2, "a")])
        assert one == other != another

    def test_tell_columns_apart(self) -> None:
        assert keys(pa.int64(), 7, name="user_id") != keys(pa.int64(), 7, name="order_id")


def numbers(count: int, chars: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(count)), "payload": ["x" * chars] * count})


class TestSlices:
    def test_end_at_so_many_bytes_within_a_batch_and_across_batches(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writing, "BYTES_A_SLICE", 10_000)
        found = list(sliced(iter([numbers(20, 1_000), numbers(3), numbers(12, 1_000)])))
        assert [row for table in found for row in table["n"].to_pylist()] == [
            *range(20),
            *range(3),
            *range(12),
        ]
        assert max(table.nbytes for table in found) <= 10_000
        assert [table.num_rows for table in found] == [9, 9, 12, 5]

    def test_hold_one_row_at_least(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writing, "BYTES_A_SLICE", 10_000)
        assert [table.num_rows for table in sliced(iter([numbers(2, 20_000), numbers(1)]))] == [1, 1, 1]

    def test_end_at_so_many_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writing, "ROWS_A_SLICE", 8)
        found = [table.num_rows for table in sliced(iter([numbers(20), numbers(0), numbers(4)]))]
        assert found == [8, 8, 8]

    def test_of_large_payloads_are_much_smaller_than_what_arrow_can_hold(self) -> None:
        megabyte = pa.array(["x" * 1024 * 1024])
        batches = [pa.record_batch({"payload": megabyte}) for _ in range(100)]
        assert max(table.nbytes for table in sliced(iter(batches))) <= 64 * 1024 * 1024


class TestRejected:
    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            ({date(2031, 5, 6): 1}, {"2031-05-06": 1}),
            ([nan, {"a": [inf, 1.5]}], ["nan", {"a": ["inf", 1.5]}]),
            ({NOON: {(1, 2): None}}, {"2031-05-06 12:00:00+00:00": {"(1, 2)": None}}),
            ([b"\xff", Decimal("1.50"), time(1, 2), True], ["b'\\xff'", "1.50", "01:02:00", True]),
            ("half \ud800", "half \ud800"),
            (timedelta(1), "1 day, 0:00:00"),
        ],
    )
    def test_a_row_is_shown_whatever_is_in_it(self, value: Any, shown: Any) -> None:
        line = json.loads(Rejected({"n": value}, "why").line, parse_constant=pytest.fail)
        assert line == {"reason": "why", "row": {"n": shown}}


class TestPlaces:
    def place(self, given: str) -> str | None:
        options = {"type": "t", "keyColumns": "n", "onBadRows": "report", "rejectedPath": given}
        return writer("postgresql://h/d", options, SimpleNamespace(names=["n"]), False).rejected_path

    def test_a_path_is_taken_from_where_the_driver_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert self.place("bad rows") == str(tmp_path / "bad rows")
        assert self.place("/bad/a:b") == "/bad/a:b"

    @pytest.mark.parametrize("given", ["file:/bad", "file:///bad"])
    def test_a_uri_stays_as_it_is(self, given: str) -> None:
        assert self.place(given) == given

    @pytest.mark.parametrize("given", ["az://container/bad", "ftp://u:secret@host/bad", "file:bad"])
    def test_where_none_could_write_is_refused_by_the_driver(self, given: str) -> None:
        with pytest.raises(
            InvalidInput, match="rejectedPath must be a path, or a URI that pyarrow opens"
        ) as refused:
            self.place(given)
        assert "secret" not in str(refused.value)
