"""The synthetic history: the same facts for the same arguments, and waits that follow from the workers there are."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="the lake's packages are not installed")
pytest.importorskip("numpy")

from penstock.lake import demo  # noqa: E402
from penstock.lake.tables import EVENTS  # noqa: E402

END = datetime(2026, 11, 2, tzinfo=UTC)


@pytest.fixture(scope="module")
def history() -> list[dict[str, Any]]:
    table = pa.Table.from_batches(demo.events(6_000, 10, 7, END))
    assert table.column_names == list(EVENTS)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def of_kind(history: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [row for row in history if row["kind"] == kind]


def test_has_as_many_jobs_as_asked_for_all_within_the_days(history: list[dict[str, Any]]) -> None:
    jobs = of_kind(history, "job")
    assert len(jobs) == len({job["job_id"] for job in jobs}) == 6_000
    assert {job["occurred_at"] for job in jobs} == {job["created_at"] for job in jobs}
    assert END - timedelta(days=10) <= min(row["occurred_at"] for row in history)
    assert max(row["occurred_at"] for row in history) < END


def test_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    first, again, other = (pa.Table.from_batches(demo.events(300, 3, seed, END)) for seed in (1, 1, 2))
    assert first.equals(again)
    assert not first.equals(other)


def test_knows_every_fact_by_its_place(history: list[dict[str, Any]]) -> None:
    places = Counter((row["tenant"], row["kind"], row["xid"], row["seq"], row["job_id"]) for row in history)
    assert max(places.values()) == 1
    assert all(row["day"] == row["occurred_at"].date().isoformat() for row in history)


def test_numbers_the_attempts_of_a_job_and_lets_each_begin_no_sooner_than_it_may(
    history: list[dict[str, Any]],
) -> None:
    lives: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(of_kind(history, "attempt"), key=lambda row: (row["ended_at"], row["attempt"])):
        lives.setdefault(row["job_id"], []).append(row)
    redriven = {row["job_id"] for row in of_kind(history, "change") if row["verb"] == "redrive"}
    let_go = {
        row["job_id"]: row["occurred_at"] for row in of_kind(history, "change") if row["verb"] == "unblock"
    }
    assert let_go
    for job_id, life in lives.items():
        assert [row["attempt"] for row in life] == list(range(1, len(life) + 1))
        asked = max(life[0]["scheduled_at"], life[0]["created_at"])
        assert life[0]["ready_at"] == max(asked, let_go.get(job_id, asked))
        for before, after in pairwise(life):
            assert before["run_at"] == after["ready_at"] or job_id in redriven
        assert all(row["ready_at"] <= row["started_at"] < row["ended_at"] for row in life)


def test_never_runs_two_attempts_on_one_worker_at_once(history: list[dict[str, Any]]) -> None:
    busy: dict[str, list[tuple[datetime, datetime]]] = {}
    for row in of_kind(history, "attempt"):
        busy.setdefault(row["worker"], []).append((row["started_at"], row["ended_at"]))
    for spells in busy.values():
        spells.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(spells))


def test_has_the_troubles_of_a_fleet(history: list[dict[str, Any]]) -> None:
    attempts = of_kind(history, "attempt")
    assert {row["outcome"] for row in attempts} == {"succeeded", "failed", "lost", "snoozed"}
    assert {row["verb"] for row in of_kind(history, "change")} >= {"cancel", "unblock", "redrive"}
    assert any(row["status"] == "dead" for row in attempts)
    assert any(row["schedule"] for row in attempts)
    refused = [row for row in attempts if (row["error"] or "").startswith("ConnectionRefusedError")]
    broken = [row for row in attempts if (row["error"] or "").startswith("TypeError")]
    assert max(row["started_at"] for row in refused) - min(row["started_at"] for row in refused) < timedelta(
        hours=3
    )
    assert {row["type"] for row in broken} == {"image.resize"}


def test_lets_a_child_begin_when_its_last_parent_has_ended(history: list[dict[str, Any]]) -> None:
    import msgspec

    ended = {
        row["job_id"]: row["ended_at"] for row in of_kind(history, "attempt") if row["status"] == "succeeded"
    }
    first = {row["job_id"]: row["started_at"] for row in of_kind(history, "attempt") if row["attempt"] == 1}
    seen = 0
    for job in of_kind(history, "job"):
        parents = msgspec.json.decode(job["options"]).get("parents", [])
        if parents and job["job_id"] in first:
            assert first[job["job_id"]] >= max(ended[parent] for parent in parents)
            seen += 1
    assert seen > 10


def test_writes_a_folder_for_each_day(tmp_path: Path) -> None:
    count = demo.write(tmp_path, 300, 3, 1, END)
    days = sorted(path.name for path in tmp_path.iterdir())
    assert days == ["day=2026-10-30", "day=2026-10-31", "day=2026-11-01"]
    import pyarrow.parquet as pq

    files = [pq.ParquetFile(path) for path in tmp_path.rglob("*.parquet")]
    assert sum(file.metadata.num_rows for file in files) == count
    assert {file.metadata.row_group(0).column(0).compression for file in files} == {"ZSTD"}
    assert all("day" not in file.schema_arrow.names for file in files)


@pytest.mark.parametrize(("jobs", "days"), [(0, 3), (3, 0)])
def test_refuses_a_history_of_nothing(jobs: int, days: int) -> None:
    with pytest.raises(ValueError, match="at least one job and one day"):
        list(demo.events(jobs, days, 1, END))


def test_refuses_an_end_without_a_time_zone() -> None:
    with pytest.raises(ValueError, match="time zone"):
        list(demo.events(1, 1, 1, END.replace(tzinfo=None)))
